"""The factorisation compiled by Numba: column by column in the order of elimination, for problems side by side.

For one group of problems, in the order of elimination:

    W = L D, column by column:  W_ij = K_ij - sum over columns k before j of  L_ik W_jk,
    L = W D^-1.

W is kept beside L because it makes a block of D of size two no different from two of size one.
"""

from __future__ import annotations

import math

import numpy as np

from ..machine import Floats, inner, woven
from ..vector import LANES, load, size_of, store
from .lanes import Factor, Plan, Work
from .pivots import PIVOT, REPLACED, SMALLEST


@inner
def arrange(part: Floats, group: int, begin: int, entries: Floats) -> None:
    """Entries of K, from values (batch, ...) of the batch; lanes to spare repeat the last problem."""
    lanes = entries.shape[1]
    for b in range(lanes):
        problem = min(group * lanes + b, part.shape[0] - 1)
        for e in range(part.shape[1]):
            entries[begin + e, b] = part[problem, e]


@inner
def factorise(plan: Plan, entries: Floats, factor: Factor, work: Work) -> None:
    """L and D^-1 of one group, from the entries of K (entries, lanes)."""
    if entries.shape[1] == 1:
        _factorise(plan, entries, factor, work, 1)
    else:
        _factorise(plan, entries, factor, work, LANES)


@woven
def _factorise(plan: Plan, entries: Floats, factor: Factor, work: Work, lanes: int) -> None:
    _spread(plan, entries, factor, work, lanes)
    lower, below = factor.lower, work.below
    j = np.int64(0)  # of one type throughout: zero by itself has its own, for which all would be compiled again
    while j < len(plan.pair):
        begin, end = plan.starts[j], plan.starts[j + 1]
        _update(plan, j, j, factor, work, lanes)
        if plan.pair[j]:
            _update(plan, j + 1, j, factor, work, lanes)
            _invert_two(plan, j, factor, work, lanes)
            beside = end - begin - 1  # from an entry of the first column to that of the second
            one, two, both = (
                load(factor.inverse, j, lanes),
                load(factor.inverse, j + 1, lanes),
                load(factor.coupling, j, lanes),
            )
            for b in range(lanes):
                lower[begin, b] = 0.0  # what connects the halves belongs to D
            for p in range(begin + 1, end):
                x, y = load(below, p, lanes), load(below, p + beside, lanes)
                store(lower, p, x * one + y * both, lanes)
                store(lower, p + beside, x * both + y * two, lanes)
            j += 2
        else:
            _invert_one(plan, j, factor, work, lanes)
            inverse = load(factor.inverse, j, lanes)
            for p in range(begin, end):
                store(lower, p, load(below, p, lanes) * inverse, lanes)
            j += 1


@woven
def _spread(plan: Plan, entries: Floats, factor: Factor, work: Work, lanes: int) -> None:
    """Put the entries of K where the factor will be."""
    size = len(factor.inverse)
    factor.inverse.fill(0.0)
    factor.counts.fill(0)
    work.below.fill(0.0)
    for e in range(len(plan.slots)):
        slot, entry = np.int64(plan.slots[e]), load(entries, e, lanes)
        if slot < size:
            store(factor.inverse, slot, load(factor.inverse, slot, lanes) + entry, lanes)
        else:
            store(work.below, slot - size, load(work.below, slot - size, lanes) + entry, lanes)


@woven
def _update(plan: Plan, c: int, last: int, factor: Factor, work: Work, lanes: int) -> None:
    """Column c of W, from the columns before ``last``."""
    lower, below, rows, where = factor.lower, work.below, plan.rows, work.where
    for p in range(plan.starts[c], plan.starts[c + 1]):
        where[rows[p]] = p
    pivot = load(factor.inverse, c, lanes)
    made = size_of(pivot)
    for r in range(plan.row_starts[c], plan.row_starts[c + 1]):
        q = plan.by_row[r]
        k = plan.columns[q]
        if k >= last:
            break
        weight = load(below, q, lanes)
        change = load(lower, q, lanes) * weight
        pivot, made = pivot - change, made + size_of(change)
        for p in range(q + 1, plan.starts[k + 1]):
            t = where[rows[p]]
            store(below, t, load(below, t, lanes) - load(lower, p, lanes) * weight, lanes)
    store(factor.inverse, c, pivot, lanes)
    store(work.made, c, made, lanes)


@woven
def _invert_one(plan: Plan, j: int, factor: Factor, work: Work, lanes: int) -> None:
    """A pivot by itself; what cannot be told from zero is replaced, with the sign that its kind should have."""
    for b in range(lanes):
        pivot = factor.inverse[j, b]
        if abs(pivot) > PIVOT * work.made[j, b]:
            factor.counts[0 if pivot > 0 else 1, b] += 1
        elif np.isfinite(pivot):  # what is not finite stays, and is not counted
            factor.counts[3 if plan.is_constraint[j] else 2, b] += 1
            pivot = _replacement(plan, j, b, work) * (-1 if plan.is_constraint[j] else 1)
        factor.inverse[j, b] = 1 / pivot


@woven
def _invert_two(plan: Plan, j: int, factor: Factor, work: Work, lanes: int) -> None:
    """A block [h, a; a, c]; a singular one is moved towards a negative determinant, as KKT matrices should have."""
    for b in range(lanes):
        h, a, c = factor.inverse[j, b], work.below[plan.starts[j], b], factor.inverse[j + 1, b]
        determinant = h * c - a * a
        made_h, made_c = (
            work.made[j, b],
            work.made[j + 1, b],
        )  # and a is made from terms up to the root of their product
        if abs(determinant) > PIVOT * (abs(h) * made_c + abs(c) * made_h + 2 * abs(a) * math.sqrt(made_h * made_c)):
            one = 0 if determinant < 0 or h > 0 else 1
            factor.counts[one, b] += 1
            factor.counts[1 if determinant < 0 else one, b] += 1
        elif np.isfinite(determinant):
            factor.counts[0 if h + c > 0 else 2, b] += 1
            factor.counts[1 if h + c < 0 else 3, b] += 1
            to_h = _replacement(plan, j, b, work) * (-1 if c > 0 else 1)
            to_c = _replacement(plan, j + 1, b, work) * (1 if h < 0 else -1)
            h, c = h + to_h, c + to_c
            determinant = h * c - a * a
        factor.inverse[j, b], factor.inverse[j + 1, b] = c / determinant, h / determinant
        factor.coupling[j, b] = -a / determinant


@inner
def _replacement(plan: Plan, j: int, b: int, work: Work) -> float:
    """A small number beside what the pivot is made from and what it would eliminate."""
    beside: float = max(work.made[j, b], SMALLEST)
    for p in range(plan.starts[j], plan.starts[j + 1]):
        beside += abs(work.below[p, b])
    return REPLACED * beside
