"""The regularisation of small dense problems as machine code: what ``regularisation.py`` does in torch.

Where H is not positive definite along the constraints, negative curvature is reflected, or H is shifted, or a weight of
A'A is all that is missing. What belongs to the saddle point nearby, or needs more than that, is left to torch.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ....linear.jit import Floats, by_address, compiled, copy, inner, larger, separate
from ....linear.spectrum_kernel import NOTHING, Spectrum, find_spectrum, spectrum_in, spectrum_size, turn
from ..parameters import COMPLEMENTARY, HEAVIER, LEAST_SIZE, MORE_SHIFT, REACH, STATIONARY, STRAY, TINY_SHIFT
from .arrays import Common, Problems, examples
from .iteration import find_diagonal, find_primal, measure, vectors_in
from .steps import solve_dense

ATTEMPTS = 12  # of ever larger weights and shifts


class Unregularised(NamedTuple):
    """What a regularisation of one problem changes, as it was; and room to find one in."""

    hessian: Floats  # (m * m,)
    sizes: Floats  # shift and weight, (2,)
    spectrum: Spectrum
    slope: Floats  # (m,)
    unit: Floats  # what a shift of 1 adds to the diagonal of H, (m,)


def regularisation_size(m: int) -> int:
    """How many numbers that takes."""
    return m * m + 2 + 2 * m + spectrum_size(m)


@inner
def unregularised_in(numbers: Floats, m: int) -> Unregularised:
    """The same in a buffer of so many numbers."""
    n = m * m
    slope, unit = numbers[n + 2 : n + 2 + m], numbers[n + 2 + m : n + 2 + 2 * m]
    return Unregularised(numbers[:n], numbers[n : n + 2], spectrum_in(numbers[n + 2 + 2 * m :], m), slope, unit)


@inner
def undo(x: Problems, n: int, before: Unregularised) -> None:
    """The problem as it was."""
    copy(x.current.hessian[n], before.hessian)
    x.current.shift[n], x.fixed.weight[n] = before.sizes[0], before.sizes[1]


@inner
def _weight_unit(x: Problems, n: int, p: int) -> float:
    """A weight of A'A that is worth as much as H; zero if there are no equalities."""
    m, hessian, jacobian, size, most = (
        x.current.u.shape[1],
        x.current.hessian,
        x.current.jacobian,
        LEAST_SIZE,
        LEAST_SIZE,
    )
    if not p:
        return 0.0
    for e in range(m * m):
        size = larger(size, abs(hessian[n, e]))
    for a in range(m):
        total = 0.0
        for i in range(p):
            total += jacobian[n, i * m + a] * jacobian[n, i * m + a]
        most = larger(most, total)
    return size / most


@inner
def _reach(u: Floats, start: Floats) -> float:
    """How long a step may be that curvature says nothing about."""
    far = 0.0
    for a in range(len(u)):
        far = larger(far, larger(abs(u[a]), abs(u[a] - start[a])))
    return REACH * (far if far > 0 else 1.0)


@inner
def _correct_inertia(x: Problems, n: int, p: int, violation: float, room: Unregularised) -> None:
    """Reflect the curvature of H, or shift it, if it curves down along the constraints."""
    here, system, slope, spectrum, m = x.current, x.system, room.slope, room.spectrum, x.current.u.shape[1]
    if not find_spectrum(here.hessian[n], here.jacobian[n], system.dual[n], p, room.unit, spectrum):
        return
    least = spectrum.values[0]
    for a in range(m):
        least = min(least, spectrum.values[a])
    if least > NOTHING:
        return
    here.shift[n] = larger(here.shift[n], TINY_SHIFT)
    if violation > STRAY:
        here.shift[n] = larger(here.shift[n], -2 * least)
        return
    for a in range(m):
        slope[a] = -system.r[n, a]
    for i in range(p, here.y.shape[1]):
        force = (here.y[n, i] * here.values[n, i] + x.fixed.barrier[n]) / here.s[n, i - p]
        for a in range(m):
            slope[a] += here.jacobian[n, i * m + a] * force
    turn(here.hessian[n], slope, _reach(here.u[n], x.fixed.start[n]), spectrum)


def _examples() -> tuple[Any, ...]:
    return *examples(), np.empty(0), 0


regularise = by_address(_examples)


@separate(_examples)
def regularise_dense(x: Problems, common: Common, numbers: Floats, n: int) -> None:
    """The step of one problem with an H that is positive definite along the constraints; what is not good is as it was.

    The buffer has room for one problem.
    """
    here, system, shift, weight = x.current, x.system, x.current.shift, x.fixed.weight
    before = unregularised_in(numbers, here.u.shape[1])
    vectors, tolerances = vectors_in(common.scratch, here.u.shape[1], here.y.shape[1]), common.tolerances
    found = measure(x, common, n, vectors)
    feasible = found.violation <= STATIONARY * tolerances.feasibility
    stationary = found.stationarity <= STATIONARY * tolerances.stationarity
    if feasible and stationary and found.gap <= COMPLEMENTARY * found.large:
        return  # a saddle point may be near
    copy(before.hessian, here.hessian[n])
    before.sizes[0], before.sizes[1] = shift[n], weight[n]
    unit, attempt, diagonal = _weight_unit(x, n, common.p), 0, vectors.diagonal
    find_diagonal(common, here.hessian[n], diagonal)
    find_primal(1.0, found.steepest, diagonal, before.unit)
    _correct_inertia(x, n, common.p, found.violation, before)
    while True:
        find_diagonal(common, here.hessian[n], diagonal)
        find_primal(shift[n], found.steepest, diagonal, system.primal[n])
        solve_dense(x, common, n, n + 1)
        if system.pivot[n] > 0 or attempt == ATTEMPTS:
            break
        if attempt < 2 and unit > 0:  # a larger weight may be all that is missing
            weight[n] = unit if weight[n] == 0 else larger(weight[n], HEAVIER * unit)
        else:
            shift[n] = larger(MORE_SHIFT * shift[n], TINY_SHIFT)
        attempt += 1
    if not system.factored[n]:
        undo(x, n, before)


@compiled
def regularise_all(x: Problems, common: Common, numbers: Floats, address: int) -> None:
    """The same for those problems of a batch whose H is not positive definite; another H takes its place."""
    for n in range(len(x.current.u)):
        if not x.system.pivot[n] > 0:
            regularise(address, (x, common, numbers, n))
