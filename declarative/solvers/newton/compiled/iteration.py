"""An iteration of the Newton method as machine code, problem by problem: what ``iteration.py`` says in torch.

Some 300 small operations on tensors become three passes over the batch: before the step's system is solved, before the
functions are evaluated, and after that (in ``filter``). Each is for the problems from ``begin`` to before ``end``.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from ....linear.jit import Floats, compiled, copy, inner, larger, smaller
from ..parameters import BOUNDARY, CENTRAL, CENTRED, LOWERINGS, Tolerances
from .arrays import Common, Problems

LEAST_FRACTION, MOST_FRACTION = BOUNDARY


def scratch_for(m: int, k: int, p: int, dense: bool) -> Floats:
    """A buffer that these passes need, with or without the matrices of steps of dense problems."""
    return np.empty(3 * m + 3 * k + dense * (m * m + p * m + p * p))


class Vectors(NamedTuple):
    """Terms of the optimality conditions of one problem, in the scratch buffer; not beside a dense step."""

    slope: Floats  # (m,)
    force: Floats  # (m,)
    diagonal: Floats  # of H, (m,)
    residual: Floats  # (k,)
    terms: Floats  # the sizes of what is summed up in the constraints, (k,)


@inner
def vectors_in(scratch: Floats, m: int, k: int) -> Vectors:
    """Where they are."""
    last = 3 * m + k
    return Vectors(
        scratch[:m], scratch[m : 2 * m], scratch[2 * m : 3 * m], scratch[3 * m : last], scratch[last : last + k]
    )


class Measures(NamedTuple):
    """How far one problem is from its solution."""

    stationarity: float
    steepest: float  # the largest slope
    residual: float  # the largest one
    violation: float
    gap: float
    product: float  # the largest s y
    large: float  # what it is relative to
    stretched: float  # the largest y times the terms of its inequality
    off: float  # how far an s y is from the last barrier, if there is one


@inner
def measure(x: Problems, common: Common, n: int, to: Vectors) -> Measures:
    """How far it is; what its terms are is left in the vectors."""
    here, last, p = x.current, x.fixed.last_barrier[n], common.p
    s, y, slope, force, residual, terms = here.s[n], here.y[n], to.slope, to.force, to.residual, to.terms
    copy(slope, here.gradient[n])
    force.fill(0.0)
    terms.fill(0.0)
    for e in range(len(common.rows)):
        i, a = common.rows[e], common.columns[e]
        pull = here.jacobian[n, e] * y[i]
        slope[a] += pull
        force[a] += abs(pull)
        terms[i] += abs(here.jacobian[n, e] * here.u[n, a])
    missed, violation, gap, product, large, stretched, off = 0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.0
    for i in range(len(y)):
        value = here.values[n, i]
        residual[i] = value if i < p else value + s[i - p]
        missed = larger(missed, abs(residual[i]))
        violation = larger(violation, abs(value) if i < p else larger(0.0, value))
        if i >= p:
            span, both = larger(1.0, terms[i]), s[i - p] * y[i]
            large, stretched = larger(large, y[i] / 100), larger(stretched, y[i] * span)
            product, gap = larger(product, both), larger(gap, both / span)
            if len(last):
                off = larger(off, abs(both - last[0]))
    steepest, forces = 0.0, 1.0
    for a in range(len(slope)):
        steepest = larger(steepest, abs(slope[a]))
        forces = larger(larger(forces, abs(here.gradient[n, a])), force[a])
    return Measures(steepest / forces, steepest, missed, violation, gap, product, large, stretched, off)


@inner
def _lower_barrier(x: Problems, n: int, found: Measures, tolerances: Tolerances) -> float:
    """The barrier of a problem that has solved its present one well enough, lowered; the filter starts anew."""
    before: float = x.fixed.barrier[n]
    barrier = before
    if not x.current.s.shape[1]:
        return before
    lowest = smaller(tolerances.barrier * found.stretched, 0.2 * tolerances.complementarity * found.large)
    if x.fixed.last_barrier.shape[1]:
        lowest = larger(lowest, x.fixed.last_barrier[n, 0])
    enough = larger(larger(found.stationarity, found.residual) / 10, found.product / (1 + 10 * found.large))
    for _ in range(LOWERINGS):
        if barrier >= enough:
            barrier = smaller(larger(smaller(0.2 * barrier, barrier**1.5), lowest), barrier)
    if barrier < before:
        x.current.filter[n].fill(np.inf)
        x.current.stored[n] = 0
        x.fixed.barrier[n] = barrier
    return barrier


@inner
def find_diagonal(common: Common, hessian: Floats, diagonal: Floats) -> None:
    """The diagonal of H."""
    for a in range(len(diagonal)):
        e = common.diagonal[a]
        diagonal[a] = hessian[e] if e >= 0 else 0.0


@inner
def find_primal(shift: float, steepest: float, diagonal: Floats, primal: Floats) -> None:
    """What a shift adds to the diagonal of H: so many times its size."""
    most = 0.0
    for a in range(len(diagonal)):
        most = larger(most, abs(diagonal[a]))
    least = larger(larger(1e-6 * most, 1e-3 * steepest), 1e-8)
    for a in range(len(diagonal)):
        primal[a] = shift * larger(abs(diagonal[a]), least)


@inner
def _is_optimal(found: Measures, last: Floats, tolerances: Tolerances) -> bool:
    complementary = found.gap / found.large <= tolerances.complementarity
    if len(last):
        complementary = found.off / found.large <= smaller(CENTRED * last[0], tolerances.complementarity)
    feasible = found.violation <= tolerances.feasibility
    return complementary and feasible and found.stationarity <= tolerances.stationarity


@inner
def prepare(x: Problems, common: Common, begin: int, end: int) -> None:
    """The barrier, the system of Newton's step, and whether the problem is solved where it is."""
    here, system, p = x.current, x.system, common.p
    vectors = vectors_in(common.scratch, here.u.shape[1], here.y.shape[1])
    for n in range(begin, end):
        found = measure(x, common, n, vectors)
        barrier = _lower_barrier(x, n, found, common.tolerances)
        find_diagonal(common, here.hessian[n], vectors.diagonal)
        find_primal(here.shift[n], found.steepest, vectors.diagonal, system.primal[n])
        for a in range(here.u.shape[1]):
            system.r[n, a] = -vectors.slope[a]
        for i in range(here.y.shape[1]):
            if i < p:
                system.dual[n, i], system.t[n, i] = 0.0, -vectors.residual[i]
            else:
                s, y = here.s[n, i - p], here.y[n, i]
                system.dual[n, i], system.t[n, i] = s / y, s - vectors.residual[i] - barrier / y
        x.outcome.optimal[n] = _is_optimal(found, x.fixed.last_barrier[n], common.tolerances)


@inner
def _relative_step(u: Floats, start: Floats, gradient: Floats, diagonal: Floats, z: Floats) -> float:
    """The length of the step relative to u, the largest over its entries."""
    energy, longest = 0.0, 0.0
    for a in range(len(z)):
        energy += (abs(gradient[a]) + abs(diagonal[a]) * abs(u[a])) * abs(u[a])
    for a in range(len(z)):
        reach = math.sqrt(energy / diagonal[a]) if diagonal[a] > 0 else 0.0
        size = abs(u[a]) + 1e-3 * (abs(u[a] - start[a]) + reach)
        longest = larger(longest, abs(z[a]) / (size if 0 < size < np.inf else 1.0))
    return longest


@inner
def _to_boundary(fraction: float, value: float, change: float, length: float) -> float:
    """The length of a step that keeps a value positive, if that is shorter."""
    shorter: float = smaller(length, -fraction * value / change) if change < 0 else length
    return shorter


@inner
def move(x: Problems, common: Common, share: float, begin: int, end: int) -> None:
    """Along the step, by a share of what slacks and multipliers stay positive with."""
    here, there, fixed, outcome, p, k = x.current, x.trial, x.fixed, x.outcome, common.p, x.current.y.shape[1]
    diagonal = common.scratch[: here.u.shape[1]]
    for n in range(begin, end):
        s, y, z, dy, barrier = here.s[n], here.y[n], x.system.z[n], x.system.s[n], fixed.barrier[n]
        fraction = smaller(larger(1 - barrier, LEAST_FRACTION), MOST_FRACTION)
        length, dual_length, along = 1.0, 1.0, 0.0
        for i in range(p, k):
            change = barrier / y[i] - s[i - p] - dy[i] * x.system.dual[n, i]
            there.s[n, i - p] = change
            along -= barrier * change / s[i - p]
            length = _to_boundary(fraction, s[i - p], change, length)
            dual_length = _to_boundary(fraction, y[i], dy[i], dual_length)
        length *= share
        for i in range(p, k):
            there.s[n, i - p] = s[i - p] + length * there.s[n, i - p]
            centre = barrier / there.s[n, i - p]
            there.y[n, i] = larger(smaller(y[i] + dual_length * dy[i], CENTRAL[1] * centre), CENTRAL[0] * centre)
        for i in range(k):
            there.y[n, i] = there.y[n, i] if i >= p else y[i] + length * dy[i]
            outcome.multipliers[n, i] = -there.y[n, i] * fixed.rows[n, i] / fixed.scale[n]
        for a in range(len(z)):
            along += here.gradient[n, a] * z[a]
            there.u[n, a] = here.u[n, a] + length * z[a]
        outcome.length[n], outcome.slope[n] = length, along
        outcome.solved[n] = outcome.optimal[n]
        if outcome.optimal[n]:
            find_diagonal(common, here.hessian[n], diagonal)
            step = _relative_step(here.u[n], fixed.start[n], here.gradient[n], diagonal, z)
            outcome.solved[n] = step <= common.tolerances.step


@inner
def correct(x: Problems, common: Common, n: int) -> None:
    """A second-order correction: the system of a step that makes up for what the constraints came to along this one."""
    move(x, common, 1.0, n, n + 1)  # for the slacks of the step alone
    p = common.p
    for i in range(x.current.y.shape[1]):
        before, after = x.current.values[n, i], x.trial.values[n, i]
        if i >= p:
            before, after = before + x.current.s[n, i - p], after + x.trial.s[n, i - p]
        total = x.outcome.length[n] * before + (after if np.isfinite(after) else 0.0)
        x.system.t[n, i] += before - total


@compiled
def move_all(x: Problems, common: Common, share: float) -> None:
    """:func:`move`, for all problems of a batch."""
    move(x, common, share, 0, len(x.current.u))
