"""The regularisation of small dense problems as machine code: what ``newton.py`` does in torch if a step is no descent.

Where H is not positive definite along the constraints, negative curvature is turned, or H is shifted, or a weight of
A'A is all that is missing. What belongs to the saddle point nearby, or needs more than that, is left to ``newton.py``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..linear.jit import Floats, by_address, compiled, copy, inner, larger, separate
from ..linear.spectrum_kernel import NOTHING, Spectrum, find_spectrum, spectrum_in, spectrum_size, turn
from .newton_kernel import (
    Equations,
    Here,
    Limits,
    Places,
    Step,
    diagonal_of,
    measured,
    set_primal,
    solve_some_dense,
    vectors_in,
)
from .newton_step import MORE_SHIFT, REACH, STRAY, TINY_SHIFT

ATTEMPTS = 12  # of ever larger weights and shifts
LEAST_SIZE = 1e-8  # of H and of A, where they vanish


class Kept(NamedTuple):
    """What a regularisation changes, as it was; and room to find one in."""

    hessian: Floats  # (m * m,)
    sizes: Floats  # shift and weight, (2,)
    spectrum: Spectrum
    slope: Floats  # (m,)
    bend: Floats  # (m,)


def kept_size(m: int) -> int:
    """How many numbers that takes."""
    return m * m + 2 + 2 * m + spectrum_size(m)


@inner
def kept_in(numbers: Floats, m: int) -> Kept:
    """The same in a buffer of so many numbers."""
    n = m * m
    slope, bend = numbers[n + 2 : n + 2 + m], numbers[n + 2 + m : n + 2 + 2 * m]
    return Kept(numbers[:n], numbers[n : n + 2], spectrum_in(numbers[n + 2 + 2 * m :], m), slope, bend)


@inner
def put_back(here: Here, n: int, kept: Kept) -> None:
    """The problem as it was."""
    copy(here.hessian[n], kept.hessian)
    here.shift[n], here.weight[n] = kept.sizes[0], kept.sizes[1]


@inner
def _weight_unit(here: Here, n: int) -> float:
    """A weight of A'A that is worth as much as H; zero if there are no equalities."""
    m, p = here.u.shape[1], here.y.shape[1] - here.s.shape[1]
    size, most = LEAST_SIZE, LEAST_SIZE
    if not p:
        return 0.0
    for e in range(m * m):
        size = larger(size, abs(here.hessian[n, e]))
    for a in range(m):
        total = 0.0
        for i in range(p):
            total += here.jacobian[n, i * m + a] * here.jacobian[n, i * m + a]
        most = larger(most, total)
    return size / most


@inner
def _reach(here: Here, n: int) -> float:
    """How long a step may be that curvature says nothing about."""
    far = 0.0
    for a in range(here.u.shape[1]):
        far = larger(far, larger(abs(here.u[n, a]), abs(here.u[n, a] - here.start[n, a])))
    return REACH * (far if far > 0 else 1.0)


@inner
def _turn(here: Here, n: int, barrier: float, violated: float, equations: Equations, kept: Kept) -> None:
    """Turn H, or shift it, if it curves down along the constraints."""
    m, k, p = here.u.shape[1], here.y.shape[1], here.y.shape[1] - here.s.shape[1]
    size, slope, spectrum = kept.bend, kept.slope, kept.spectrum
    if not find_spectrum(here.hessian[n], here.jacobian[n], equations.dual[n], p, size, spectrum):
        return
    least = spectrum.values[0]
    for a in range(m):
        least = min(least, spectrum.values[a])
    if least > NOTHING:
        return
    here.shift[n] = larger(here.shift[n], TINY_SHIFT)
    if violated > STRAY:
        here.shift[n] = larger(here.shift[n], -2 * least)
        return
    for a in range(m):
        slope[a] = -equations.r[n, a]
    for i in range(p, k):
        force = (here.y[n, i] * here.values[n, i] + barrier) / here.s[n, i - p]
        for a in range(m):
            slope[a] += here.jacobian[n, i * m + a] * force
    turn(here.hessian[n], slope, _reach(here, n), spectrum)


@inner
def regularise(
    places: Places,
    here: Here,
    n: int,
    limits: Limits,
    barrier: float,
    equations: Equations,
    step: Step,
    kept: Kept,
    scratch: Floats,
) -> None:
    """The step of a problem whose H is not positive definite along the constraints; what is not good is as it was."""
    m, k = here.u.shape[1], here.y.shape[1]
    slope, force, bend, residual, terms = vectors_in(scratch, m, k)
    found = measured(places, here, n, slope, force, residual, terms)
    feasible = found.violated <= 10 * limits.feasibility
    if feasible and found.stationarity <= 10 * limits.stationarity and found.gap <= 1e-6 * found.large:
        return  # a saddle point may be near
    copy(kept.hessian, here.hessian[n])
    kept.sizes[0], kept.sizes[1] = here.shift[n], here.weight[n]
    unit, attempt = _weight_unit(here, n), 0
    diagonal_of(places, here.hessian[n], bend)
    set_primal(1.0, found.steepest, bend, kept.bend)
    _turn(here, n, barrier, found.violated, equations, kept)
    steepest = found.steepest
    while True:
        diagonal_of(places, here.hessian[n], bend)
        set_primal(here.shift[n], steepest, bend, equations.primal[n])
        solve_some_dense(here, equations, step, scratch, n, n + 1)
        if step.room[n] > 0 or attempt == ATTEMPTS:
            break
        if attempt < 2 and unit > 0:  # a larger weight may be all that is missing
            here.weight[n] = unit if here.weight[n] == 0 else larger(here.weight[n], 1e4 * unit)
        else:
            here.shift[n] = larger(MORE_SHIFT * here.shift[n], TINY_SHIFT)
        attempt += 1
    if not step.good[n]:
        put_back(here, n, kept)


def _examples() -> tuple[Any, ...]:
    row, rows, flags, places = np.empty(0), np.empty((0, 0)), np.empty(0, bool), np.empty(0, np.int64)
    here = Here(row, rows, rows, rows, rows, rows, rows, rows, row, row, row, rows, rows, row, rows)
    equations, step = Equations(rows, rows, rows, rows, flags), Step(rows, rows, flags, row)
    return Places(places, places, places), here, Limits(0.0, 0.0, 0.0, 0.0, 0.0), row, equations, step, row, row, 0


mend = by_address(_examples)


@separate(_examples)
def mend_dense(
    places: Places,
    here: Here,
    limits: Limits,
    barriers: Floats,
    equations: Equations,
    step: Step,
    numbers: Floats,  # room for one problem
    scratch: Floats,
    n: int,
) -> None:
    """The step of one problem with an H that is positive definite; it is not good if there is none."""
    kept = kept_in(numbers, here.u.shape[1])
    regularise(places, here, n, limits, barriers[n], equations, step, kept, scratch)


@compiled
def mend_all(
    places: Places,
    here: Here,
    limits: Limits,
    barriers: Floats,
    equations: Equations,
    step: Step,
    numbers: Floats,
    scratch: Floats,
    address: int,
) -> None:
    """The steps of those whose H is not positive definite; another H takes its place."""
    for n in range(len(here.u)):
        if not step.room[n] > 0:
            mend(address, (places, here, limits, barriers, equations, step, numbers, scratch, n))
