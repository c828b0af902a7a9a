"""The factorisation compiled by Numba: column by column in the order of elimination, for problems side by side."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..jit import Floats, by_address, inlined, inner, separate
from ..simd import LANES, absolute, all_less, broadcast, load, store, where_less
from .kernel_arrays import Factor, Plan, Work
from .ldl import PIVOT, REPLACED, SMALLEST


@inner
def arrange(part: Floats, group: int, begin: int, entries: Floats) -> None:
    """Entries of K, from values (batch, ...) of the batch; lanes to spare repeat the last problem."""
    lanes = entries.shape[1]
    if lanes == LANES and part.shape[0] >= (group + 1) * LANES:  # which the compiler then knows
        for e in range(part.shape[1]):
            for b in range(LANES):
                entries[begin + e, b] = part[group * LANES + b, e]
        return
    for b in range(lanes):
        problem = min(group * lanes + b, part.shape[0] - 1)
        for e in range(part.shape[1]):
            entries[begin + e, b] = part[problem, e]


@inlined
def _factorise(plan: Plan, entries: Floats, factor: Factor, work: Work, lanes: int) -> None:
    """L and D^-1 of one group, from the entries of K (entries, lanes)."""
    _spread(plan, entries, factor, work, lanes)
    lower, below = factor.lower, work.below
    j = np.int64(0)  # of one type throughout: zero by itself has its own, for which all would be compiled again
    while j < len(plan.pair):
        begin, end = plan.starts[j], plan.starts[j + 1]
        if plan.pair[j]:
            beside = end - begin - 1  # from an entry of the first column to that of the second
            _update_two(plan, j, beside, factor, work, lanes)
            _invert_two(plan, j, factor, work, lanes)
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
            _update_one(plan, j, factor, work, lanes)
            _invert_one(plan, j, factor, work, lanes)
            inverse = load(factor.inverse, j, lanes)
            for p in range(begin, end):
                store(lower, p, load(below, p, lanes) * inverse, lanes)
            j += 1


@inlined
def _spread(plan: Plan, entries: Floats, factor: Factor, work: Work, lanes: int) -> None:
    """Put the entries of K where the factor will be."""
    size = len(factor.inverse)
    none = broadcast(0.0, lanes)
    for i in range(size):
        store(factor.inverse, i, none, lanes)
    for i in range(4):
        store(factor.counts, i, none, lanes)
    for p in range(len(plan.rows)):
        store(work.below, p, none, lanes)
    for e in range(len(plan.slots)):
        slot, entry = np.int64(plan.slots[e]), load(entries, e, lanes)
        if slot < size:
            store(factor.inverse, slot, load(factor.inverse, slot, lanes) + entry, lanes)
        else:
            store(work.below, slot - size, load(work.below, slot - size, lanes) + entry, lanes)


@inlined
def _update_one(plan: Plan, j: int, factor: Factor, work: Work, lanes: int) -> None:
    """Column j of W, from the columns before it; two at a time where they are a pair, whose entries are alike."""
    lower, below, rows, where = factor.lower, work.below, plan.rows, work.where
    for p in range(plan.starts[j], plan.starts[j + 1]):
        where[rows[p]] = p
    pivot = load(factor.inverse, j, lanes)
    made = absolute(pivot)
    r, last = plan.row_starts[j], plan.row_starts[j + 1]
    while r < last:
        q = np.int64(plan.by_row[r])
        k = plan.columns[q]
        end = np.int64(plan.starts[k + 1])
        w = load(below, q, lanes)
        change = load(lower, q, lanes) * w
        pivot, made = pivot - change, made + absolute(change)
        if plan.pair[k]:
            beside = end - plan.starts[k] - 1
            v = load(below, q + beside, lanes)
            change = load(lower, q + beside, lanes) * v
            pivot, made = pivot - change, made + absolute(change)
            for p in range(q + 1, end):
                t = where[rows[p]]
                term = load(lower, p, lanes) * w + load(lower, p + beside, lanes) * v
                store(below, t, load(below, t, lanes) - term, lanes)
            r += 2
        else:
            for p in range(q + 1, end):
                t = where[rows[p]]
                store(below, t, load(below, t, lanes) - load(lower, p, lanes) * w, lanes)
            r += 1
    store(factor.inverse, j, pivot, lanes)
    store(work.made, j, made, lanes)


@inlined
def _update_two(plan: Plan, j: int, beside: int, factor: Factor, work: Work, lanes: int) -> None:
    """The same for a pair of columns: a column before them has entries in both of their rows, one below the other."""
    lower, below, rows, where = factor.lower, work.below, plan.rows, work.where
    begin = np.int64(plan.starts[j])
    for p in range(begin, plan.starts[j + 1]):
        where[rows[p]] = p
    pivot, coupling, other = (
        load(factor.inverse, j, lanes),
        load(below, begin, lanes),
        load(factor.inverse, j + 1, lanes),
    )
    made, made_other = absolute(pivot), absolute(other)
    r, last = plan.row_starts[j], plan.row_starts[j + 1]
    while r < last:
        q = np.int64(plan.by_row[r])
        k = plan.columns[q]
        end = np.int64(plan.starts[k + 1])
        a, b = load(below, q, lanes), load(below, q + 1, lanes)
        x, y = load(lower, q, lanes), load(lower, q + 1, lanes)
        change, change_other = x * a, y * b
        pivot, made = pivot - change, made + absolute(change)
        other, made_other = other - change_other, made_other + absolute(change_other)
        coupling = coupling - y * a
        if plan.pair[k]:
            to = end - plan.starts[k] - 1
            c, d = load(below, q + to, lanes), load(below, q + to + 1, lanes)
            x, y = load(lower, q + to, lanes), load(lower, q + to + 1, lanes)
            change, change_other = x * c, y * d
            pivot, made = pivot - change, made + absolute(change)
            other, made_other = other - change_other, made_other + absolute(change_other)
            coupling = coupling - y * c
            for p in range(q + 2, end):
                t = np.int64(where[rows[p]])
                x, y = load(lower, p, lanes), load(lower, p + to, lanes)
                store(below, t, load(below, t, lanes) - (x * a + y * c), lanes)
                store(below, t + beside, load(below, t + beside, lanes) - (x * b + y * d), lanes)
            r += 2
        else:
            for p in range(q + 2, end):
                t = np.int64(where[rows[p]])
                x = load(lower, p, lanes)
                store(below, t, load(below, t, lanes) - x * a, lanes)
                store(below, t + beside, load(below, t + beside, lanes) - x * b, lanes)
            r += 1
    store(below, begin, coupling, lanes)
    store(factor.inverse, j, pivot, lanes)
    store(factor.inverse, j + 1, other, lanes)
    store(work.made, j, made, lanes)
    store(work.made, j + 1, made_other, lanes)


@inlined
def _count(factor: Factor, above: Any, below: Any, lanes: int) -> None:
    """So many more pivots above and below zero."""
    store(factor.counts, 0, load(factor.counts, 0, lanes) + above, lanes)
    store(factor.counts, 1, load(factor.counts, 1, lanes) + below, lanes)


@inlined
def _invert_one(plan: Plan, j: int, factor: Factor, work: Work, lanes: int) -> None:
    """A pivot by itself."""
    one, none = broadcast(1.0, lanes), broadcast(0.0, lanes)
    pivots = load(factor.inverse, j, lanes)
    if all_less(broadcast(PIVOT, lanes) * load(work.made, j, lanes), absolute(pivots)):  # as nearly always
        above = where_less(none, pivots, one, none)
        _count(factor, above, one - above, lanes)
        store(factor.inverse, j, one / pivots, lanes)
        return
    for b in range(lanes):
        pivot = factor.inverse[j, b]
        if abs(pivot) > PIVOT * work.made[j, b]:
            factor.counts[0 if pivot > 0 else 1, b] += 1
        elif np.isfinite(pivot):
            factor.counts[3 if plan.is_constraint[j] else 2, b] += 1
            pivot = _replacement(plan, j, b, work) * (-1 if plan.is_constraint[j] else 1)
        factor.inverse[j, b] = 1 / pivot


@inlined
def _invert_two(plan: Plan, j: int, factor: Factor, work: Work, lanes: int) -> None:
    """A block [h, a; a, c]."""
    one, two, none = broadcast(1.0, lanes), broadcast(2.0, lanes), broadcast(0.0, lanes)
    hs, both, cs = (
        load(factor.inverse, j, lanes),
        load(work.below, plan.starts[j], lanes),
        load(factor.inverse, j + 1, lanes),
    )
    of_h, of_c = load(work.made, j, lanes), load(work.made, j + 1, lanes)
    determinants = hs * cs - both * both
    # More than what is compared below, for a mean is more than the root of a product.
    terms = absolute(hs) * of_c + absolute(cs) * of_h + absolute(both) * (of_h + of_c)
    if all_less(broadcast(PIVOT, lanes) * terms, absolute(determinants)):  # as nearly always
        above = where_less(determinants, none, one, where_less(none, hs, two, none))
        _count(factor, above, two - above, lanes)
        inverse = one / determinants
        store(factor.inverse, j, cs * inverse, lanes)
        store(factor.inverse, j + 1, hs * inverse, lanes)
        store(factor.coupling, j, (none - both) * inverse, lanes)
        return
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


def _examples() -> tuple[Any, ...]:
    rows = np.empty((0, 1))
    return Plan.none(), rows, Factor(rows, rows, rows, rows), Work(rows, rows, np.empty(0, np.uint32))


@separate(_examples)
def factorise_alone(plan: Plan, entries: Floats, factor: Factor, work: Work) -> None:
    """One problem."""
    _factorise(plan, entries, factor, work, 1)


@separate(_examples)
def factorise_beside(plan: Plan, entries: Floats, factor: Factor, work: Work) -> None:
    """Problems side by side."""
    _factorise(plan, entries, factor, work, LANES)


factorise = by_address(_examples)
