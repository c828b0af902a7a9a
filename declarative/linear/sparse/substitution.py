"""Solutions with the factor, compiled by Numba: substitution, and corrections with the matrix itself."""

from __future__ import annotations

import numpy as np

from ..machine import Floats, inner, woven
from .lanes import Factor, Indices, Plan, Rows
from .pivots import CORRECTIONS, FADED, GOAL, SMALLEST


@inner
def load_right(right: Floats, count: int, place: Indices, group: int, ordered: Floats) -> None:
    """One of the right-hand sides (batch, size, counts), in the order of elimination."""
    lanes = ordered.shape[1]
    for b in range(lanes):
        problem = min(group * lanes + b, right.shape[0] - 1)
        for i in range(len(place)):
            ordered[place[i], b] = right[problem, i, count]


@inner
def store(x: Floats, place: Indices, group: int, count: int, found: Floats) -> None:
    """One of the solutions (batch, size, counts)."""
    lanes = x.shape[1]
    for b in range(min(lanes, found.shape[0] - group * lanes)):
        for i in range(len(place)):
            found[group * lanes + b, i, count] = x[place[i], b]


@woven
def substitute(plan: Plan, factor: Factor, x: Floats, lanes: int) -> None:
    """x = K^-1 x, (size, lanes)."""
    size = len(x)
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


@woven
def subtract_product(plan: Plan, entries: Floats, rows: Rows, lanes: int) -> None:
    """Subtract K x from the residual, and add |K| |x| to the total, for the x on trial."""
    x, residual, total = rows.trial, rows.residual, rows.total
    for e in range(len(plan.slots)):
        i, j = plan.first[e], plan.second[e]
        for b in range(lanes):
            residual[i, b] -= entries[e, b] * x[j, b]
            total[i, b] += abs(entries[e, b] * x[j, b])
        if i != j:
            for b in range(lanes):
                residual[j, b] -= entries[e, b] * x[i, b]
                total[j, b] += abs(entries[e, b] * x[i, b])


@woven
def measure(plan: Plan, rows: Rows, most: Floats, error: Floats, lanes: int) -> None:
    """The largest residual relative to the largest total, of unknowns or constraints, whichever is more; (lanes,).

    A total that falls from one correction to the next counts as no less than a part of the ``most`` that it was, (2,
    lanes): where a solution is zero, it would be rounding errors.
    """
    size = len(rows.residual)
    left, total, broken = np.zeros((2, lanes)), np.full((2, lanes), SMALLEST), np.zeros(lanes)
    for i in range(size):
        kind = 1 if plan.is_constraint[i] else 0
        for b in range(lanes):
            left[kind, b] = max(left[kind, b], abs(rows.residual[i, b]))
            total[kind, b] = max(total[kind, b], rows.total[i, b])
            broken[b] += 0.0 * rows.residual[i, b]
    for b in range(lanes):
        for kind in range(2):
            most[kind, b] = max(most[kind, b], total[kind, b])
            total[kind, b] = max(total[kind, b], FADED * most[kind, b])
        error[b] = max(left[0, b] / total[0, b], left[1, b] / total[1, b])
        if broken[b] != 0.0:  # not a number, which comparisons pass over
            error[b] = np.inf


@woven
def begin(rows: Rows, error: Floats, lanes: int) -> None:
    """The first residual is the right-hand side."""
    size = len(rows.right)
    for i in range(size):
        for b in range(lanes):
            rows.residual[i, b] = rows.right[i, b]
            rows.x[i, b] = 0.0
    for b in range(lanes):
        error[b] = np.inf


@woven
def correct(rows: Rows, lanes: int) -> None:
    """Try the solution that the residual, substituted, leads to; its own residual is to come."""
    size = len(rows.right)
    for i in range(size):
        for b in range(lanes):
            rows.trial[i, b] = rows.x[i, b] + rows.residual[i, b]
            rows.residual[i, b] = rows.right[i, b]
            rows.total[i, b] = abs(rows.right[i, b])


@woven
def accept(rows: Rows, now: Floats, error: Floats, lanes: int) -> bool:
    """Keep what is better, and say whether it is worth going on."""
    size = len(rows.right)
    for i in range(size):
        for b in range(lanes):
            rows.x[i, b] = rows.trial[i, b] if now[b] < error[b] else rows.x[i, b]
    going = False
    for b in range(lanes):
        going = going or GOAL < now[b] < 0.5 * error[b]
        error[b] = min(now[b], error[b])
    return going


@inner
def solve(plan: Plan, entries: Floats, factor: Factor, rows: Rows, error: Floats) -> None:
    """x = K^-1 right, corrected until its relative residual is at the goal or does not fall any more."""
    lanes = len(error)
    if lanes == 1:  # which the compiler then knows
        _solve(plan, entries, factor, rows, error, 1)
    else:
        _solve(plan, entries, factor, rows, error, lanes)


@woven
def _solve(plan: Plan, entries: Floats, factor: Factor, rows: Rows, error: Floats, lanes: int) -> None:
    now, most = np.empty(lanes), np.zeros((2, lanes))
    begin(rows, error, lanes)
    for _ in range(CORRECTIONS + 1):
        substitute(plan, factor, rows.residual, lanes)
        correct(rows, lanes)
        subtract_product(plan, entries, rows, lanes)
        measure(plan, rows, most, now, lanes)
        if not accept(rows, now, error, lanes):
            break
