"""An iteration of the Newton method as machine code, problem by problem: what ``newton_step.py`` says in torch.

Some 300 small operations on tensors become three passes over the batch: before the step's system is solved, before the
functions are evaluated, and after that. In double precision on the CPU, if Numba is installed; elsewhere the operations
are done one by one. Comparisons are written such that what is not a number is never good.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..linear.dense_kernel import solve_kkt
from ..linear.jit import Floats, compiled, copy, copy_pairs, cut, inner, larger, smaller
from .newton_step import (
    BOUNDARY,
    CENTRED,
    DELTA,
    ETA,
    FILTER,
    FIRST_SHIFT,
    GAMMA_PHI,
    GAMMA_THETA,
    LEAST,
    LEAST_SHIFT,
    LESS_SHIFT,
    LOWERINGS,
    MORE_SHIFT,
    S_PHI,
    S_THETA,
)

LEAST_FRACTION, MOST_FRACTION = BOUNDARY
FARTHEST = 1e20  # a bound at infinity is merely far away
TAME = (1e-100, 1e100)  # products of slacks within these stay finite when the next one is multiplied
ROUNDING = 10 * float(np.finfo(np.float64).eps)


class Places(NamedTuple):
    """Which entries of A and H are stored."""

    rows: NDArray[np.int64]  # of the entries of A
    columns: NDArray[np.int64]
    diagonal: NDArray[np.int64]  # where that of H is among its entries, -1 if an entry is not stored, (m,)


class Here(NamedTuple):
    """A batch of models and states, as in ``newton_step.py``."""

    objective: Floats  # (batch,)
    gradient: Floats  # (batch, m)
    values: Floats  # (batch, k)
    jacobian: Floats  # (batch, entries)
    hessian: Floats  # (batch, entries)
    u: Floats  # (batch, m)
    s: Floats  # (batch, q)
    y: Floats  # (batch, k)
    shift: Floats  # (batch,)
    weight: Floats  # (batch,)
    largest: Floats  # (batch,)
    last: Floats  # (batch, 0) or (batch, 1)
    start: Floats  # (batch, m)
    scale: Floats  # of the objective, (batch,)
    rows: Floats  # of the constraints, (batch, k)


class Changed(NamedTuple):
    """What an iteration changes."""

    barrier: Floats  # (batch,)
    filter: Floats  # (batch, FILTER, 2)
    stored: NDArray[np.int64]  # (batch,)


class Equations(NamedTuple):
    """The system of the step, and whether its problem is solved where it is, but for the length of the step."""

    primal: Floats  # (batch, m)
    dual: Floats  # (batch, k)
    r: Floats  # (batch, m)
    t: Floats  # (batch, k)
    settled: NDArray[np.bool_]  # (batch,)


class Step(NamedTuple):
    """The solution of these, and what is to be said of their matrix."""

    z: Floats  # (batch, m)
    s: Floats  # (batch, k)
    good: NDArray[np.bool_]  # (batch,)
    room: Floats  # (batch,)


class Trial(NamedTuple):
    """Where a step leads, and what is known of it before anything is evaluated there."""

    u: Floats  # (batch, m)
    s: Floats  # (batch, q)
    y: Floats  # (batch, k)
    multipliers: Floats  # the same in the convention of the batch, (batch, k)
    length: Floats  # of the step, (batch,)
    slope: Floats  # of the objective and its barrier along the step, (batch,)
    solved: NDArray[np.bool_]  # (batch,)


class Found(NamedTuple):
    """Values and derivatives in the units of the user."""

    objective: Floats  # (batch,)
    slope: Floats  # of the Lagrangian, (batch, m)
    values: Floats  # (batch, k)
    jacobian: Floats  # (batch, entries)
    hessian: Floats  # (batch, entries)


class There(NamedTuple):
    """The model at the trial point, and what has become of the filter."""

    objective: Floats  # (batch,)
    gradient: Floats  # (batch, m)
    values: Floats  # (batch, k)
    jacobian: Floats  # (batch, entries)
    hessian: Floats  # (batch, entries)
    filter: Floats  # (batch, FILTER, 2)
    stored: NDArray[np.int64]  # (batch,)
    shift: Floats  # (batch,)
    accepted: NDArray[np.bool_]  # (batch,)


class Limits(NamedTuple):
    """When a problem is solved, and how small its barrier may be."""

    feasibility: float
    stationarity: float
    complementarity: float
    barrier: float
    near: float  # steps that are shorter, relative to u, need not be taken


@inner
def _room(fraction: float, value: float, change: float, length: float) -> float:
    """The length of a step that keeps a value positive, if that is shorter."""
    shorter: float = smaller(length, -fraction * value / change) if change < 0 else length
    return shorter


def scratch_for(m: int, k: int, p: int, dense: bool) -> Floats:
    """A buffer that these passes need, with or without the matrices of steps of dense problems."""
    return np.empty(3 * m + 3 * k + dense * (m * m + p * m + p * p))


@inner
def vectors_in(scratch: Floats, m: int, k: int) -> tuple[Floats, Floats, Floats, Floats, Floats]:
    """Room for three vectors of unknowns and two of constraints; not beside that for a dense step."""
    last = 3 * m + k
    return scratch[:m], scratch[m : 2 * m], scratch[2 * m : 3 * m], scratch[3 * m : last], scratch[last : last + k]


@inner
def solve_some_dense(here: Here, equations: Equations, step: Step, scratch: Floats, begin: int, end: int) -> None:
    """The steps of small dense problems, from the one to before the other."""
    m, k = here.u.shape[1], here.y.shape[1]
    p = k - here.s.shape[1]
    matrix, at = cut(scratch, 0, m, m)
    half, at = cut(scratch, at, p, m)
    complement, at = cut(scratch, at, p, p)
    forces = scratch[at : at + k]
    for n in range(begin, end):
        for a in range(m):
            for b in range(a + 1):
                matrix[a, b] = here.hessian[n, a * m + b]
            matrix[a, a] += equations.primal[n, a]
        for i in range(k):
            forces[i] = here.weight[n] if i < p else 1 / equations.dual[n, i]
        copy(step.z[n], equations.r[n])
        copy(step.s[n], equations.t[n])
        rows = here.jacobian[n].reshape(k, m)
        found = solve_kkt(matrix, rows, forces, p, step.z[n], step.s[n], half, complement)
        step.good[n], step.room[n] = found


@compiled
def solve_dense(here: Here, equations: Equations, step: Step, scratch: Floats) -> None:
    """The steps of all."""
    solve_some_dense(here, equations, step, scratch, 0, len(here.u))


class Measured(NamedTuple):
    """How far one problem is from its solution."""

    stationarity: float
    steepest: float  # the largest slope
    missed: float  # the largest residual
    violated: float
    gap: float
    product: float  # the largest s y
    large: float  # what it is relative to
    stretched: float  # the largest y times the terms of its inequality
    off: float  # how far an s y is from the last barrier, if there is one


@inner
def measured(
    places: Places, here: Here, n: int, slope: Floats, force: Floats, residual: Floats, terms: Floats
) -> Measured:
    """How far it is; what its terms are is left in the last four."""
    s, y = here.s[n], here.y[n]
    p = len(y) - len(s)
    copy(slope, here.gradient[n])
    force.fill(0.0)
    terms.fill(0.0)
    for e in range(len(places.rows)):
        i, a = places.rows[e], places.columns[e]
        pull = here.jacobian[n, e] * y[i]
        slope[a] += pull
        force[a] += abs(pull)
        terms[i] += abs(here.jacobian[n, e] * here.u[n, a])
    missed, violated, gap, product, large, stretched, off = 0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.0
    for i in range(len(y)):
        value = here.values[n, i]
        residual[i] = value if i < p else value + s[i - p]
        missed = larger(missed, abs(residual[i]))
        violated = larger(violated, abs(value) if i < p else larger(0.0, value))
        if i >= p:
            span, both = larger(1.0, terms[i]), s[i - p] * y[i]
            large, stretched = larger(large, y[i] / 100), larger(stretched, y[i] * span)
            product, gap = larger(product, both), larger(gap, both / span)
            if here.last.shape[1]:
                off = larger(off, abs(both - here.last[n, 0]))
    steepest, forces = 0.0, 1.0
    for a in range(len(slope)):
        steepest = larger(steepest, abs(slope[a]))
        forces = larger(larger(forces, abs(here.gradient[n, a])), force[a])
    return Measured(steepest / forces, steepest, missed, violated, gap, product, large, stretched, off)


@inner
def _lower_barrier(here: Here, n: int, found: Measured, limits: Limits, changed: Changed) -> float:
    """The barrier of a problem that has solved its present one well enough, lowered; the filter starts anew."""
    before: float = changed.barrier[n]
    barrier = before
    if not here.s.shape[1]:
        return before
    lowest = smaller(limits.barrier * found.stretched, 0.2 * limits.complementarity * found.large)
    if here.last.shape[1]:
        lowest = larger(lowest, here.last[n, 0])
    enough = larger(larger(found.stationarity, found.missed) / 10, found.product / (1 + 10 * found.large))
    for _ in range(LOWERINGS):
        if barrier >= enough:
            barrier = smaller(larger(smaller(0.2 * barrier, barrier**1.5), lowest), barrier)
    if barrier < before:
        changed.filter[n].fill(np.inf)
        changed.stored[n] = 0
        changed.barrier[n] = barrier
    return barrier


@inner
def diagonal_of(places: Places, hessian: Floats, bend: Floats) -> None:
    """The diagonal of H."""
    for a in range(len(bend)):
        e = places.diagonal[a]
        bend[a] = hessian[e] if e >= 0 else 0.0


@inner
def _set_up(here: Here, n: int, barrier: float, steepest: float, bend: Floats, residual: Floats, to: Equations) -> None:
    """The system of the step, but for the slope."""
    s, y, dual, t = here.s[n], here.y[n], to.dual[n], to.t[n]
    p = len(y) - len(s)
    set_primal(here.shift[n], steepest, bend, to.primal[n])
    for i in range(p):
        dual[i], t[i] = 0.0, -residual[i]
    for i in range(p, len(y)):
        dual[i] = s[i - p] / y[i]
        t[i] = s[i - p] - residual[i] - barrier / y[i]


@inner
def shift_more(places: Places, here: Here, n: int, to: Equations, scratch: Floats) -> None:
    """A larger regularisation of one problem."""
    m = here.u.shape[1]
    bend, steepest, before = scratch[:m], 0.0, here.shift[n]
    diagonal_of(places, here.hessian[n], bend)
    for a in range(m):
        steepest = larger(steepest, abs(to.r[n, a]))
    here.shift[n] = larger(MORE_SHIFT * before, FIRST_SHIFT)
    set_primal(here.shift[n], steepest, bend, to.primal[n])


@inner
def set_primal(shift: float, steepest: float, bend: Floats, primal: Floats) -> None:
    """What is added to the diagonal of H."""
    largest = 0.0
    for a in range(len(bend)):
        largest = larger(largest, abs(bend[a]))
    least = larger(larger(1e-6 * largest, 1e-3 * steepest), 1e-8)
    for a in range(len(bend)):
        primal[a] = shift * larger(abs(bend[a]), least)


@inner
def _is_settled(here: Here, n: int, found: Measured, limits: Limits) -> bool:
    ended = found.gap / found.large <= limits.complementarity
    if here.last.shape[1]:
        ended = found.off / found.large <= smaller(CENTRED * here.last[n, 0], limits.complementarity)
    return ended and found.violated <= limits.feasibility and found.stationarity <= limits.stationarity


@inner
def prepare_some(
    places: Places,
    here: Here,
    limits: Limits,
    changed: Changed,
    equations: Equations,
    scratch: Floats,
    begin: int,
    end: int,
) -> None:
    """The barrier, the system of Newton's step, and whether the problem is solved where it is."""
    m, k = here.u.shape[1], here.y.shape[1]
    slope, force, bend, residual, terms = vectors_in(scratch, m, k)
    for n in range(begin, end):
        found = measured(places, here, n, slope, force, residual, terms)
        barrier = _lower_barrier(here, n, found, limits, changed)
        diagonal_of(places, here.hessian[n], bend)
        _set_up(here, n, barrier, found.steepest, bend, residual, equations)
        for a in range(m):
            equations.r[n, a] = -slope[a]
        equations.settled[n] = _is_settled(here, n, found, limits)


@compiled
def prepare(
    places: Places, here: Here, limits: Limits, changed: Changed, equations: Equations, scratch: Floats
) -> None:
    """The same for all."""
    prepare_some(places, here, limits, changed, equations, scratch, 0, len(here.u))


@inner
def _nearness(u: Floats, start: Floats, gradient: Floats, bend: Floats, z: Floats) -> float:
    """The length of the step relative to u, the largest over its entries."""
    energy, longest = 0.0, 0.0
    for a in range(len(z)):
        energy += (abs(gradient[a]) + abs(bend[a]) * abs(u[a])) * abs(u[a])
    for a in range(len(z)):
        reach = math.sqrt(energy / bend[a]) if bend[a] > 0 else 0.0
        size = abs(u[a]) + 1e-3 * (abs(u[a] - start[a]) + reach)
        longest = larger(longest, abs(z[a]) / (size if 0 < size < np.inf else 1.0))
    return longest


@inner
def move_some(
    places: Places,
    here: Here,
    limits: Limits,
    barriers: Floats,
    equations: Equations,
    step: Step,
    trial: Trial,
    share: float,
    scratch: Floats,
    begin: int,
    end: int,
) -> None:
    """Along the step, by a share of what slacks and multipliers stay positive with."""
    p, k, bend = here.y.shape[1] - here.s.shape[1], here.y.shape[1], scratch[: here.u.shape[1]]
    for n in range(begin, end):
        s, y, z, dy, barrier = here.s[n], here.y[n], step.z[n], step.s[n], barriers[n]
        fraction = smaller(larger(1 - barrier, LEAST_FRACTION), MOST_FRACTION)
        length, own, along = 1.0, 1.0, 0.0
        for i in range(p, k):
            change = barrier / y[i] - s[i - p] - dy[i] * equations.dual[n, i]
            trial.s[n, i - p] = change
            along -= barrier * change / s[i - p]
            length, own = _room(fraction, s[i - p], change, length), _room(fraction, y[i], dy[i], own)
        length *= share
        for i in range(p, k):
            trial.s[n, i - p] = s[i - p] + length * trial.s[n, i - p]
            centre = barrier / trial.s[n, i - p]  # keep s y within sight of the barrier, so that no pair is lost
            trial.y[n, i] = larger(smaller(y[i] + own * dy[i], 1e10 * centre), 1e-10 * centre)
        for i in range(k):
            trial.y[n, i] = trial.y[n, i] if i >= p else y[i] + length * dy[i]
            trial.multipliers[n, i] = -trial.y[n, i] * here.rows[n, i] / here.scale[n]
        for a in range(len(z)):
            along += here.gradient[n, a] * z[a]
            trial.u[n, a] = here.u[n, a] + length * z[a]
        trial.length[n], trial.slope[n] = length, along
        trial.solved[n] = equations.settled[n]
        if equations.settled[n]:
            diagonal_of(places, here.hessian[n], bend)
            trial.solved[n] = _nearness(here.u[n], here.start[n], here.gradient[n], bend, z) <= limits.near


@compiled
def move(
    places: Places,
    here: Here,
    limits: Limits,
    barriers: Floats,
    equations: Equations,
    step: Step,
    trial: Trial,
    share: float,
    scratch: Floats,
) -> None:
    """The same for all."""
    move_some(places, here, limits, barriers, equations, step, trial, share, scratch, 0, len(here.u))


@inner
def _merit(objective: float, values: Floats, s: Floats, barrier: float) -> tuple[float, float]:
    """(theta, phi): the violation, and the objective with its barrier."""
    p, theta = len(values) - len(s), 0.0
    for i in range(p):
        theta += abs(values[i])
    product = 1.0  # one logarithm of several slacks
    for i in range(len(s)):
        theta += abs(values[p + i] + s[i])
        product *= s[i] if s[i] > 0 else np.nan
        if not TAME[0] < product < TAME[1]:
            objective -= barrier * math.log(product)
            product = 1.0
    return theta, objective - barrier * math.log(product)


@inner
def _scale(places: Places, here: Here, n: int, found: Found, f: int, trial: Trial, there: There) -> None:
    """The model at the trial point, number f of what was found; slacks that are no smaller than the room there is."""
    scale, p = here.scale[n], here.y.shape[1] - here.s.shape[1]
    there.objective[n] = found.objective[f] * scale
    copy(there.gradient[n], found.slope[f])
    for e in range(found.hessian.shape[1]):
        there.hessian[n, e] = found.hessian[f, e] * scale
    for e in range(len(places.rows)):
        i = places.rows[e]
        there.gradient[n, places.columns[e]] += found.jacobian[f, e] * trial.multipliers[n, i]
        there.jacobian[n, e] = found.jacobian[f, e] * here.rows[n, i]
    for a in range(there.gradient.shape[1]):
        there.gradient[n, a] *= scale
    for i in range(here.y.shape[1]):
        value = larger(found.values[f, i], -FARTHEST) * here.rows[n, i]
        there.values[n, i] = value
        if i >= p and abs(value) < np.inf:
            trial.s[n, i - p] = larger(trial.s[n, i - p], -value)


@inner
def _is_free(pairs: Floats, theta: float, phi: float) -> bool:
    """Whether the filter lets a point pass."""
    free = True
    for i in range(FILTER):
        free = free and (theta < pairs[i, 0] or phi < pairs[i, 1])
    return free


@inner
def judge_some(
    places: Places, here: Here, found: Found, changed: Changed, trial: Trial, there: There, begin: int, end: int
) -> None:
    """Whether each step is progress; the model at the trial point, and what is remembered of the one before.

    What was found is of these problems alone.
    """
    for n in range(begin, end):
        barrier = changed.barrier[n]
        theta_before, phi_before = _merit(here.objective[n], here.values[n], here.s[n], barrier)
        _scale(places, here, n, found, n - begin, trial, there)
        theta, phi = _merit(there.objective[n], there.values[n], trial.s[n], barrier)
        length, slope = trial.length[n], trial.slope[n]
        descent = max(-slope, 0.0) ** S_PHI
        by_objective = theta_before <= LEAST * here.largest[n] and length * descent > DELTA * theta_before**S_THETA
        change = phi - phi_before - ROUNDING * abs(phi_before)
        armijo = change <= ETA * length * slope
        better = theta <= (1 - GAMMA_THETA) * theta_before or change <= -GAMMA_PHI * theta_before
        good = (armijo if by_objective else better) and theta < here.largest[n] and abs(phi) < np.inf
        good = good and _is_free(changed.filter[n], theta, phi)
        copy_pairs(there.filter[n], changed.filter[n])
        there.stored[n] = changed.stored[n]
        if good and not (by_objective and armijo):
            there.filter[n, changed.stored[n] % FILTER, 0] = (1 - GAMMA_THETA) * theta_before
            there.filter[n, changed.stored[n] % FILTER, 1] = phi_before - GAMMA_PHI * theta_before
            there.stored[n] += 1
        shift = here.shift[n] * smaller(here.shift[n], LESS_SHIFT)
        there.shift[n] = shift if shift >= LEAST_SHIFT else 0.0
        there.accepted[n] = good


@compiled
def judge(places: Places, here: Here, found: Found, changed: Changed, trial: Trial, there: There) -> None:
    """The same for all."""
    judge_some(places, here, found, changed, trial, there, 0, len(here.u))
