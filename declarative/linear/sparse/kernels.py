"""The factorisation compiled by Numba: column by column in the order of elimination, the inner loop over problems.

Values are stored (group, entry, lane): the problems of a group lie side by side, so that one instruction serves several
of them, and there are so few that the factors of a group stay close to the processor. For one group, in the order of
elimination:

    W = L D, column by column:  W_ij = K_ij - sum over columns k before j of  L_ik W_jk,
    L = W D^-1.

W is kept beside L because it makes a block of D of size two no different from two of size one.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .pivots import PIVOT, REPLACED, SMALLEST
from .symbolic import Symbolic

numba: Any = importlib.import_module("numba")  # optional, and without types

Floats = NDArray[np.float64]
Indices = NDArray[np.int32]
Flags = NDArray[np.bool_]


class Plan(NamedTuple):
    """The arrays of a symbolic analysis."""

    slots: Indices  # as in Symbolic
    first: Indices  # the position of each entry of K, its row
    second: Indices  # and its column
    pair: Flags
    is_constraint: Flags
    starts: Indices
    rows: Indices
    columns: Indices
    row_starts: Indices
    by_row: Indices

    @classmethod
    def of(cls, symbolic: Symbolic) -> Plan:
        """In the types that the kernels expect."""
        row_starts, by_row = symbolic.by_rows
        first, second = symbolic.coordinates
        integers = (symbolic.starts, symbolic.rows, symbolic.columns, row_starts, by_row)
        slots, first, second = (part.astype(np.int32) for part in (symbolic.slots, first, second))
        return cls(slots, first, second, symbolic.pair, symbolic.is_constraint, *(x.astype(np.int32) for x in integers))


class Factor(NamedTuple):
    """The factor of one group of problems."""

    inverse: Floats  # the diagonal of D^-1, (size, lanes)
    coupling: Floats  # of its blocks, beside the diagonal, (size, lanes)
    lower: Floats  # L, (fill, lanes)
    inertia: NDArray[np.int64]  # pivots above, below and at zero, (3, lanes)


class Work(NamedTuple):
    """Memory for what is needed on the way."""

    below: Floats  # W, (fill, lanes)
    made: Floats  # the size of what each pivot is made from, (size, lanes)
    across: Floats  # the same for the entry beside the diagonal of a block, (lanes,)
    scale: Floats  # the largest entry in each row of K, (size, lanes)
    where: Indices  # the entry of each row in the present column, (size,)


def _compiled(function: Callable[..., Any]) -> Any:
    return numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"})(function)


@_compiled
def load(part: Floats, group: int, begin: int, entries: Floats) -> None:
    """Entries of K, from values (batch, ...) of the batch; lanes to spare repeat the last problem."""
    lanes = entries.shape[1]
    for b in range(lanes):
        problem = min(group * lanes + b, part.shape[0] - 1)
        for e in range(part.shape[1]):
            entries[begin + e, b] = part[problem, e]


@_compiled
def factorise(plan: Plan, entries: Floats, factor: Factor, work: Work) -> None:
    """L and D^-1 of one group, from the entries of K (entries, lanes)."""
    _spread(plan, entries, factor, work)
    lanes = entries.shape[1]
    j = 0
    while j < len(plan.pair):
        begin, end = plan.starts[j], plan.starts[j + 1]
        _update(plan, j, j, factor, work)
        if plan.pair[j]:
            _update(plan, j + 1, j, factor, work)
            _invert_two(j, begin, factor, work)
            beside = end - begin - 1  # from an entry of the first column to that of the second
            for b in range(lanes):
                work.below[begin, b] = 0.0
                factor.lower[begin, b] = 0.0
            for p in range(begin + 1, end):
                for b in range(lanes):
                    x, y, a = work.below[p, b], work.below[p + beside, b], factor.coupling[j, b]
                    factor.lower[p, b] = x * factor.inverse[j, b] + y * a
                    factor.lower[p + beside, b] = x * a + y * factor.inverse[j + 1, b]
            j += 2
        else:
            _invert_one(j, plan.is_constraint[j], factor, work)
            for p in range(begin, end):
                for b in range(lanes):
                    factor.lower[p, b] = work.below[p, b] * factor.inverse[j, b]
            j += 1


@_compiled
def _spread(plan: Plan, entries: Floats, factor: Factor, work: Work) -> None:
    """Put the entries of K where the factor will be."""
    size, lanes = factor.inverse.shape
    factor.inverse[:] = 0.0
    factor.inertia[:] = 0
    work.below[:] = 0.0
    work.scale[:] = 0.0
    for e in range(len(plan.slots)):
        slot, i, j = plan.slots[e], plan.first[e], plan.second[e]
        for b in range(lanes):
            value = entries[e, b]
            work.scale[i, b] = max(work.scale[i, b], abs(value))
            work.scale[j, b] = max(work.scale[j, b], abs(value))
            if slot < size:
                factor.inverse[slot, b] += value
            else:
                work.below[slot - size, b] += value


@_compiled
def _update(plan: Plan, c: int, last: int, factor: Factor, work: Work) -> None:
    """Column c of W, from the columns before ``last``."""
    lanes = work.below.shape[1]
    for p in range(plan.starts[c], plan.starts[c + 1]):
        work.where[plan.rows[p]] = p
    for b in range(lanes):
        work.made[c, b] = abs(factor.inverse[c, b])
        if plan.pair[c]:
            work.across[b] = abs(work.below[plan.starts[c], b])
    for r in range(plan.row_starts[c], plan.row_starts[c + 1]):
        q = plan.by_row[r]
        k = plan.columns[q]
        if k >= last:
            break
        for b in range(lanes):
            change = factor.lower[q, b] * work.below[q, b]
            factor.inverse[c, b] -= change
            work.made[c, b] += abs(change)
        if plan.pair[c]:  # the next entry of column k belongs to the other half
            for b in range(lanes):
                work.across[b] += abs(factor.lower[q + 1, b] * work.below[q, b])
        for p in range(q + 1, plan.starts[k + 1]):
            t = work.where[plan.rows[p]]
            for b in range(lanes):
                work.below[t, b] -= factor.lower[p, b] * work.below[q, b]


@_compiled
def _invert_one(j: int, is_constraint: bool, factor: Factor, work: Work) -> None:
    """A pivot by itself; what cannot be told from zero is replaced, with the sign that its kind should have."""
    for b in range(factor.inverse.shape[1]):
        pivot = factor.inverse[j, b]
        if abs(pivot) > PIVOT * work.made[j, b]:
            factor.inertia[0 if pivot > 0 else 1, b] += 1
        else:
            factor.inertia[2, b] += 1
            pivot = REPLACED * max(work.made[j, b], work.scale[j, b], SMALLEST) * (-1 if is_constraint else 1)
        factor.inverse[j, b] = 1 / pivot


@_compiled
def _invert_two(j: int, link: int, factor: Factor, work: Work) -> None:
    """A block [h, a; a, c]; a singular one is moved towards a negative determinant, as KKT matrices should have."""
    for b in range(factor.inverse.shape[1]):
        h, a, c = factor.inverse[j, b], work.below[link, b], factor.inverse[j + 1, b]
        determinant = h * c - a * a
        noise = abs(h) * work.made[j + 1, b] + abs(c) * work.made[j, b] + 2 * abs(a) * work.across[b]
        if abs(determinant) > PIVOT * noise:
            one = 0 if determinant < 0 or h > 0 else 1
            factor.inertia[one, b] += 1
            factor.inertia[1 if determinant < 0 else one, b] += 1
        else:
            factor.inertia[2, b] += 1
            factor.inertia[0 if h + c > 0 else (1 if h + c < 0 else 2), b] += 1
            to_h = REPLACED * max(work.made[j, b], work.scale[j, b], SMALLEST) * (-1 if c > 0 else 1)
            to_c = REPLACED * max(work.made[j + 1, b], work.scale[j + 1, b], SMALLEST) * (1 if h < 0 else -1)
            h, c = h + to_h, c + to_c
            determinant = h * c - a * a
        factor.inverse[j, b], factor.inverse[j + 1, b] = c / determinant, h / determinant
        factor.coupling[j, b] = -a / determinant


@_compiled
def substitute(plan: Plan, factor: Factor, x: Floats) -> None:
    """x = K^-1 x, (size, lanes)."""
    size, lanes = x.shape
    for j in range(size):
        for p in range(plan.starts[j], plan.starts[j + 1]):
            i = plan.rows[p]
            for b in range(lanes):
                x[i, b] -= factor.lower[p, b] * x[j, b]
    for j in range(size):
        if plan.pair[j]:
            for b in range(lanes):
                one, two, a = x[j, b], x[j + 1, b], factor.coupling[j, b]
                x[j, b] = factor.inverse[j, b] * one + a * two
                x[j + 1, b] = a * one + factor.inverse[j + 1, b] * two
        elif j == 0 or not plan.pair[j - 1]:
            for b in range(lanes):
                x[j, b] *= factor.inverse[j, b]
    for j in range(size - 1, -1, -1):
        for p in range(plan.starts[j], plan.starts[j + 1]):
            i = plan.rows[p]
            for b in range(lanes):
                x[j, b] -= factor.lower[p, b] * x[i, b]


@_compiled
def subtract_product(plan: Plan, entries: Floats, x: Floats, residual: Floats, total: Floats) -> None:
    """Subtract K x from the residual, and add |K| |x| to the total, (size, lanes)."""
    lanes = x.shape[1]
    for e in range(len(plan.slots)):
        i, j = plan.first[e], plan.second[e]
        for b in range(lanes):
            residual[i, b] -= entries[e, b] * x[j, b]
            total[i, b] += abs(entries[e, b] * x[j, b])
        if i != j:
            for b in range(lanes):
                residual[j, b] -= entries[e, b] * x[i, b]
                total[j, b] += abs(entries[e, b] * x[i, b])


@_compiled
def relative(plan: Plan, residual: Floats, total: Floats, error: Floats) -> None:
    """The largest residual relative to the largest total, of unknowns and of constraints, whichever is more; (lanes,)."""
    size, lanes = residual.shape
    for b in range(lanes):
        most, least = np.zeros(2), np.zeros(2)
        for i in range(size):
            kind = 1 if plan.is_constraint[i] else 0
            value = abs(residual[i, b])
            most[kind] = value if not value <= most[kind] else most[kind]  # keeps what is not a number
            least[kind] = max(least[kind], total[i, b])
        error[b] = max(most[0] / max(least[0], SMALLEST), most[1] / max(least[1], SMALLEST))
        if np.isnan(most).any():
            error[b] = np.inf


@_compiled
def solve(plan: Plan, entries: Floats, factor: Factor, right: Floats, x: Floats, error: Floats, goal: float, most: int) -> None:
    """x = K^-1 right, corrected until its relative residual is at the goal or does not fall any more."""
    size, lanes = right.shape
    x[:] = right
    substitute(plan, factor, x)
    residual, total = np.empty((size, lanes)), np.empty((size, lanes))
    trial, now = x.copy(), np.empty(lanes)
    error[:] = np.inf
    for _ in range(most + 1):
        residual[:] = right
        total[:] = np.abs(right)
        subtract_product(plan, entries, trial, residual, total)
        relative(plan, residual, total, now)
        going = False
        for b in range(lanes):
            if now[b] < error[b]:
                going = going or (now[b] > goal and now[b] < 0.5 * error[b])
                error[b] = now[b]
                x[:, b] = trial[:, b]
        if not going:
            break
        substitute(plan, factor, residual)
        trial[:] = x + residual
