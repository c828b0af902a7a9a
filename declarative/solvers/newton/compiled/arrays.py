"""The arrays that the kernels work on, a row for each problem, and how they are cut from one buffer."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ....linear.jit import Floats, copy, copy_pairs, cut, inner
from ..parameters import Tolerances

Flags = NDArray[np.bool_]
Counts = NDArray[np.int64]


class Expansion(NamedTuple):
    """Values and derivatives in the units of the user."""

    objective: Floats  # (batch,)
    slope: Floats  # of the Lagrangian, (batch, m)
    values: Floats  # (batch, k)
    jacobian: Floats  # (batch, entries)
    hessian: Floats  # (batch, entries)


class Iterate(NamedTuple):
    """Points, the models there, and what a step changes besides: see ``state.py``."""

    objective: Floats  # (batch,)
    gradient: Floats  # (batch, m)
    values: Floats  # (batch, k)
    jacobian: Floats  # (batch, entries)
    hessian: Floats  # (batch, entries)
    u: Floats  # (batch, m)
    s: Floats  # (batch, q)
    y: Floats  # (batch, k)
    shift: Floats  # (batch,)
    filter: Floats  # (batch, FILTER, 2)
    stored: Counts  # (batch,)


class Fixed(NamedTuple):
    """What a step does not change of a problem: the rest of its state, and its scales."""

    barrier: Floats  # (batch,)
    weight: Floats  # (batch,)
    theta_max: Floats  # (batch,)
    last_barrier: Floats  # (batch, 0) or (batch, 1)
    start: Floats  # (batch, m)
    scale: Floats  # of the objective, (batch,)
    rows: Floats  # of the constraints, (batch, k)


class System(NamedTuple):
    """The linear system of the step, [H + diag(primal), A'; A, -diag(dual)] [z; s] = [r; t], and its solution."""

    primal: Floats  # (batch, m)
    dual: Floats  # (batch, k)
    r: Floats  # (batch, m)
    t: Floats  # (batch, k)
    z: Floats  # (batch, m)
    s: Floats  # (batch, k)
    factored: Flags  # whether the matrix is as it should be, (batch,)
    pivot: Floats  # the least one of H along the constraints, relatively; positive if H is definite there, (batch,)


class Outcome(NamedTuple):
    """What is known of a step besides where it leads."""

    multipliers: Floats  # at the trial point, in the convention of the batch, (batch, k)
    length: Floats  # of the step, (batch,)
    slope: Floats  # of the objective and its barrier along the step, (batch,)
    optimal: Flags  # whether the current point fulfils the optimality conditions, (batch,)
    solved: Flags  # and the step from there is short, (batch,)
    accepted: Flags  # whether it is progress, (batch,)


class Problems(NamedTuple):
    """Problems side by side, with all that an iteration makes of them."""

    current: Iterate
    trial: Iterate
    fixed: Fixed
    system: System
    outcome: Outcome
    inputs: Floats  # of the functions, (batch, entries)


class Common(NamedTuple):
    """What problems side by side have in common."""

    p: int  # the number of equalities
    rows: Counts  # of the entries of A that are stored
    columns: Counts
    diagonal: Counts  # where that of H is among its entries, -1 if an entry is not stored, (m,)
    tolerances: Tolerances
    scratch: Floats


def examples() -> tuple[Problems, Common]:
    """Of the types that kernels are compiled for."""
    row, rows, flags, counts = np.empty(0), np.empty((0, 0)), np.empty(0, bool), np.empty(0, np.int64)
    iterate = Iterate(row, rows, rows, rows, rows, rows, rows, rows, row, np.empty((0, 0, 0)), counts)
    fixed, system = Fixed(row, row, row, rows, rows, row, rows), System(*(rows,) * 6, flags, row)
    problems = Problems(iterate, iterate, fixed, system, Outcome(rows, row, row, flags, flags, flags), rows)
    return problems, Common(0, counts, counts, counts, Tolerances(0.0, 0.0, 0.0, 0.0, 0.0), row)


OF_U, OF_Y, OF_S, SCALARS, COUNTS, FLAGS = 8, 9, 2, 11, 2, 4  # how many arrays of each kind problems have


def size_of_problem(x: Problems) -> int:
    """How many numbers a problem like these takes in a buffer."""
    m, k, q = x.current.u.shape[1], x.current.y.shape[1], x.current.s.shape[1]
    entries = x.current.jacobian.shape[1] + x.current.hessian.shape[1] + 2 * x.current.filter.shape[1]
    rest = x.fixed.last_barrier.shape[1] + x.inputs.shape[1]
    return int(OF_U * m + OF_Y * k + OF_S * q + SCALARS + 2 * entries + rest)


@inner
def _block(numbers: Floats, begin: int, count: int, rows: int, columns: int) -> tuple[Floats, int]:
    """So many matrices in a buffer, and where they end."""
    block, end = cut(numbers, begin, count, rows * columns)
    return block.reshape(count, rows, columns), end


@inner
def problems_in(x: Problems, numbers: Floats, counts: Counts, flags: Flags, size: int) -> Problems:
    """Room for so many problems like these, in buffers."""
    pairs = x.current.filter.shape[1]
    scalars, n = cut(numbers, 0, SCALARS, size)
    us, n = _block(numbers, n, OF_U, size, x.current.u.shape[1])
    ys, n = _block(numbers, n, OF_Y, size, x.current.y.shape[1])
    slacks, n = _block(numbers, n, OF_S, size, x.current.s.shape[1])
    jacobians, n = _block(numbers, n, 2, size, x.current.jacobian.shape[1])
    hessians, n = _block(numbers, n, 2, size, x.current.hessian.shape[1])
    filters, n = _block(numbers, n, 2, size, 2 * pairs)
    last, n = cut(numbers, n, size, x.fixed.last_barrier.shape[1])
    inputs, n = cut(numbers, n, size, x.inputs.shape[1])
    before, after = filters.reshape(2, size, pairs, 2)[0], filters.reshape(2, size, pairs, 2)[1]
    return Problems(
        Iterate(
            scalars[0], us[0], ys[0], jacobians[0], hessians[0], us[1], slacks[0], ys[1], scalars[1], before, counts[0]
        ),
        Iterate(
            scalars[2], us[2], ys[2], jacobians[1], hessians[1], us[3], slacks[1], ys[3], scalars[3], after, counts[1]
        ),
        Fixed(scalars[4], scalars[5], scalars[6], last, us[4], scalars[7], ys[4]),
        System(us[5], ys[5], us[6], ys[6], us[7], ys[7], flags[0], scalars[8]),
        Outcome(ys[8], scalars[9], scalars[10], flags[1], flags[2], flags[3]),
        inputs,
    )


@inner
def copy_iterate(to: Iterate, i: int, x: Iterate, j: int) -> None:
    """Problem j of one, to place i of the other."""
    to.objective[i], to.shift[i], to.stored[i] = x.objective[j], x.shift[j], x.stored[j]
    copy(to.gradient[i], x.gradient[j])
    copy(to.values[i], x.values[j])
    copy(to.jacobian[i], x.jacobian[j])
    copy(to.hessian[i], x.hessian[j])
    copy(to.u[i], x.u[j])
    copy(to.s[i], x.s[j])
    copy(to.y[i], x.y[j])
    copy_pairs(to.filter[i], x.filter[j])


@inner
def copy_problem(to: Problems, i: int, x: Problems, j: int) -> None:
    """The same of all that is known of a problem, but for the system and the length of the step."""
    copy_iterate(to.current, i, x.current, j)
    copy_iterate(to.trial, i, x.trial, j)
    copy(to.inputs[i], x.inputs[j])
    a, b = to.fixed, x.fixed
    a.barrier[i], a.weight[i], a.theta_max[i], a.scale[i] = b.barrier[j], b.weight[j], b.theta_max[j], b.scale[j]
    copy(a.last_barrier[i], b.last_barrier[j])
    copy(a.start[i], b.start[j])
    copy(a.rows[i], b.rows[j])
    to.system.factored[i], to.system.pivot[i] = x.system.factored[j], x.system.pivot[j]
    to.outcome.solved[i], to.outcome.accepted[i] = x.outcome.solved[j], x.outcome.accepted[j]
