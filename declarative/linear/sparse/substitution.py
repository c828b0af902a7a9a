"""Solutions with the factor, compiled by Numba: substitution, and corrections with the matrix itself."""

from __future__ import annotations

import numpy as np

from .lanes import Factor, Floats, Indices, Plan, Rows, compiled
from .pivots import CORRECTIONS, GOAL, SMALLEST


@compiled
def load_right(right: Floats, count: int, place: Indices, group: int, ordered: Floats) -> None:
    """One of the right-hand sides (batch, size, counts), in the order of elimination."""
    lanes = ordered.shape[1]
    for b in range(lanes):
        problem = min(group * lanes + b, right.shape[0] - 1)
        for i in range(len(place)):
            ordered[place[i], b] = right[problem, i, count]


@compiled
def store(x: Floats, place: Indices, group: int, count: int, found: Floats) -> None:
    """One of the solutions (batch, size, counts)."""
    lanes = x.shape[1]
    for b in range(min(lanes, found.shape[0] - group * lanes)):
        for i in range(len(place)):
            found[group * lanes + b, i, count] = x[place[i], b]


@compiled
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


@compiled
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


@compiled
def relative(plan: Plan, residual: Floats, total: Floats, error: Floats) -> None:
    """The largest residual relative to the largest total, of unknowns or constraints, whichever is more; (lanes,)."""
    size, lanes = residual.shape
    most, least, broken = np.zeros((2, lanes)), np.full((2, lanes), SMALLEST), np.zeros(lanes)
    for i in range(size):
        kind = 1 if plan.is_constraint[i] else 0
        for b in range(lanes):
            most[kind, b] = max(most[kind, b], abs(residual[i, b]))
            least[kind, b] = max(least[kind, b], total[i, b])
            broken[b] += 0.0 * residual[i, b]
    for b in range(lanes):
        error[b] = max(most[0, b] / least[0, b], most[1, b] / least[1, b])
        if broken[b] != 0.0:  # not a number, which comparisons pass over
            error[b] = np.inf


@compiled
def solve(plan: Plan, entries: Floats, factor: Factor, rows: Rows, error: Floats) -> None:
    """x = K^-1 right, corrected until its relative residual is at the goal or does not fall any more."""
    right, x, residual, total, trial = rows
    size, lanes = right.shape
    now = np.empty(lanes)
    residual[:] = right
    x[:] = 0.0
    error[:] = np.inf
    for _ in range(CORRECTIONS + 1):
        substitute(plan, factor, residual)
        trial[:] = x + residual
        residual[:] = right
        total[:] = np.abs(right)
        subtract_product(plan, entries, trial, residual, total)
        relative(plan, residual, total, now)
        going = (now > GOAL) & (now < 0.5 * error)
        better = now < error
        for i in range(size):
            for b in range(lanes):
                x[i, b] = trial[i, b] if better[b] else x[i, b]
        error[:] = np.where(better, now, error)
        if not going.any():
            break
