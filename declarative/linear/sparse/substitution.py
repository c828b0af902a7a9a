"""Solutions with the factor, compiled by Numba: substitution, and corrections with the matrix itself."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..jit import Floats, address_of, by_address, inlined, inner, separate
from ..simd import LANES, absolute, broadcast, load, store, where_less
from .elimination import factorise_alone, factorise_beside
from .kernel_arrays import Factor, Indices, Plan, Rows
from .ldl import CORRECTIONS, FADED, SMALLEST


@inner
def load_right(right: Floats, count: int, place: Indices, group: int, ordered: Floats) -> None:
    """One of the right-hand sides (batch, size, counts), in the order of elimination."""
    lanes = ordered.shape[1]
    for b in range(lanes):
        problem = min(group * lanes + b, right.shape[0] - 1)
        for i in range(len(place)):
            ordered[place[i], b] = right[problem, i, count]


@inner
def store_solution(x: Floats, place: Indices, group: int, count: int, found: Floats) -> None:
    """One of the solutions (batch, size, counts)."""
    lanes = x.shape[1]
    for b in range(min(lanes, found.shape[0] - group * lanes)):
        for i in range(len(place)):
            found[group * lanes + b, i, count] = x[place[i], b]


@inlined
def _substitute(plan: Plan, factor: Factor, x: Floats, lanes: int) -> None:
    """x = K^-1 x, (size, lanes); two columns at a time where they are a pair, whose entries are alike."""
    size, starts, rows, lower = len(x), plan.starts, plan.rows, factor.lower
    j = np.int64(0)
    while j < size:
        begin, end = np.int64(starts[j]), np.int64(starts[j + 1])
        one = load(x, j, lanes)
        if plan.pair[j]:  # of which the first entry connects the two, and belongs to D
            two, a, beside = load(x, j + 1, lanes), load(factor.coupling, j, lanes), end - begin - 1
            for p in range(begin + 1, end):
                term = load(lower, p, lanes) * one + load(lower, p + beside, lanes) * two
                store(x, rows[p], load(x, rows[p], lanes) - term, lanes)
            store(x, j, load(factor.inverse, j, lanes) * one + a * two, lanes)
            store(x, j + 1, a * one + load(factor.inverse, j + 1, lanes) * two, lanes)
            j += 2
        else:
            for p in range(begin, end):
                store(x, rows[p], load(x, rows[p], lanes) - load(lower, p, lanes) * one, lanes)
            store(x, j, one * load(factor.inverse, j, lanes), lanes)
            j += 1
    j = np.int64(size - 1)
    while j >= 0:
        first = j - 1 if j > 0 and plan.pair[j - 1] else j
        begin, end = np.int64(starts[first]), np.int64(starts[first + 1])
        one, two = load(x, first, lanes), load(x, j, lanes)
        if first < j:
            beside = end - begin - 1
            for p in range(begin + 1, end):
                known = load(x, rows[p], lanes)
                one = one - load(lower, p, lanes) * known
                two = two - load(lower, p + beside, lanes) * known
            store(x, j, two, lanes)
        else:
            for p in range(begin, end):
                one = one - load(lower, p, lanes) * load(x, rows[p], lanes)
        store(x, first, one, lanes)
        j = first - 1


@inlined
def _try(plan: Plan, entries: Floats, rows: Rows, lanes: int) -> None:
    """The solution that the residual, substituted, leads to: its own residual, and the size of the terms of that."""
    x, residual, total = rows.trial, rows.residual, rows.total
    for i in range(len(x)):
        right = load(rows.right, i, lanes)
        store(x, i, load(rows.x, i, lanes) + load(residual, i, lanes), lanes)
        store(residual, i, right, lanes)
        store(total, i, absolute(right), lanes)
    for e in range(len(plan.slots)):
        i, j, entry = plan.first[e], plan.second[e], load(entries, e, lanes)
        term = entry * load(x, j, lanes)
        store(residual, i, load(residual, i, lanes) - term, lanes)
        store(total, i, load(total, i, lanes) + absolute(term), lanes)
        if i != j:
            term = entry * load(x, i, lanes)
            store(residual, j, load(residual, j, lanes) - term, lanes)
            store(total, j, load(total, j, lanes) + absolute(term), lanes)


@inlined
def _larger(a: Any, b: Any) -> Any:
    return where_less(a, b, b, a)


@inlined
def _measured(plan: Plan, rows: Rows, lanes: int) -> Any:
    """The largest residual relative to the largest total, of unknowns or constraints, whichever is more.

    A total that falls from one correction to the next counts as no less than a part of the most that it was: where a
    solution is zero, it would be rounding errors.
    """
    zero, least, never = broadcast(0.0, lanes), broadcast(SMALLEST, lanes), broadcast(np.inf, lanes)
    left, left_of_constraints, broken = zero, zero, zero
    total, total_of_constraints = least, least
    for i in range(len(rows.residual)):
        residual = load(rows.residual, i, lanes)
        broken = broken + zero * residual
        if plan.is_constraint[i]:
            left_of_constraints = _larger(left_of_constraints, absolute(residual))
            total_of_constraints = _larger(total_of_constraints, load(rows.total, i, lanes))
        else:
            left, total = _larger(left, absolute(residual)), _larger(total, load(rows.total, i, lanes))
    faded = broadcast(FADED, lanes)
    most, most_of_constraints = (
        _larger(load(rows.most, 0, lanes), total),
        _larger(load(rows.most, 1, lanes), total_of_constraints),
    )
    store(rows.most, 0, most, lanes)
    store(rows.most, 1, most_of_constraints, lanes)
    error = _larger(
        left / _larger(total, faded * most),
        left_of_constraints / _larger(total_of_constraints, faded * most_of_constraints),
    )
    # Where something is not a number, which comparisons pass over, neither is the sum of zeros.
    return where_less(absolute(broken), broadcast(1.0, lanes), error, never)


@inlined
def _accept(rows: Rows, now: Any, error: Floats, goal: float, lanes: int) -> bool:
    """Keep what is better, and say whether it is worth going on."""
    before = load(error, 0, lanes)
    for i in range(len(rows.x)):
        store(rows.x, i, where_less(now, before, load(rows.trial, i, lanes), load(rows.x, i, lanes)), lanes)
    one, none = broadcast(1.0, lanes), broadcast(0.0, lanes)
    worth = where_less(now, broadcast(0.5, lanes) * before, where_less(broadcast(goal, lanes), now, one, none), none)
    store(error, 0, worth, lanes)
    going = False
    for b in range(lanes):
        going = going or error[b] > 0
    store(error, 0, where_less(now, before, now, before), lanes)
    return going


@inlined
def _solve(plan: Plan, entries: Floats, factor: Factor, rows: Rows, error: Floats, goal: float, lanes: int) -> None:
    """x = K^-1 right, corrected until its relative residual is at the goal or does not fall any more."""
    for i in range(len(rows.right)):
        store(rows.residual, i, load(rows.right, i, lanes), lanes)
        store(rows.x, i, broadcast(0.0, lanes), lanes)
    rows.most.fill(0.0)
    error.fill(np.inf)
    for _ in range(CORRECTIONS + 1):
        _substitute(plan, factor, rows.residual, lanes)
        _try(plan, entries, rows, lanes)
        if not _accept(rows, _measured(plan, rows, lanes), error, goal, lanes):
            break


def _examples() -> tuple[Any, ...]:
    rows = np.empty((0, 1))
    return Plan.none(), rows, Factor(*[rows] * 4), Rows(*[rows] * 6), np.empty(0), 0.0


@separate(_examples)
def solve_alone(plan: Plan, entries: Floats, factor: Factor, rows: Rows, error: Floats, goal: float) -> None:
    """One problem."""
    _solve(plan, entries, factor, rows, error, goal, 1)


@separate(_examples)
def solve_beside(plan: Plan, entries: Floats, factor: Factor, rows: Rows, error: Floats, goal: float) -> None:
    """Problems side by side."""
    _solve(plan, entries, factor, rows, error, goal, LANES)


solve = by_address(_examples)


class Kernels(NamedTuple):
    """Where the machine code is for as many problems side by side as there are; zero: nowhere."""

    factorise: int
    solve: int

    @classmethod
    def none(cls) -> Kernels:
        """For what needs none."""
        return cls(0, 0)

    @classmethod
    def of(cls, lanes: int) -> Kernels:
        """For one problem or several."""
        if lanes == 1:
            return cls(address_of(factorise_alone), address_of(solve_alone))
        return cls(address_of(factorise_beside), address_of(solve_beside))
