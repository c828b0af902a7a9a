"""Quadratic programs in rational arithmetic: solutions and gradients without rounding, by trying all active sets."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Row = list[Fraction]


def rational(values: Array) -> Row:
    return [Fraction(float(value)) for value in np.ravel(values)]


def rows_of(matrix: Array) -> list[Row]:
    return [rational(row) for row in matrix]


def eliminate(matrix: Sequence[Row], right: Row) -> Row | None:
    """Solve a square system; None where the matrix is singular."""
    n = len(right)
    work = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    for column in range(n):
        pivot = next((i for i in range(column, n) if work[i][column]), None)
        if pivot is None:
            return None
        work[column], work[pivot] = work[pivot], work[column]
        head = work[column]
        for i in range(column + 1, n):
            factor = work[i][column] / head[column]
            if factor:
                work[i] = [a - factor * b for a, b in zip(work[i], head, strict=True)]
    x: Row = [Fraction(0)] * n
    for i in reversed(range(n)):
        x[i] = (work[i][n] - sum(work[i][j] * x[j] for j in range(i + 1, n))) / work[i][i]
    return x


@dataclass(frozen=True)
class Exact:
    """The solution of one quadratic program, and the gradient of v' y with respect to q, b and h."""

    y: Array
    active: tuple[int, ...]
    margin: float  # the least multiplier or slack, relative to the largest: how far the next active set is
    gradient_q: Array
    gradient_b: Array
    gradient_h: Array
    condition: float  # of the KKT matrix, its rows and columns brought to the same size


def solve(Q: Array, q: Array, A: Array, b: Array, G: Array, h: Array, v: Array) -> Exact | None:
    """Minimise u'Qu/2 + q'u subject to Au = b and Gu <= h; None where no active set has a unique solution."""
    for count in range(len(h) + 1):
        for active in itertools.combinations(range(len(h)), count):
            found = _with_active(Q, q, A, b, G, h, v, active)
            if found is not None:
                return found
    return None


def _with_active(
    Q: Array, q: Array, A: Array, b: Array, G: Array, h: Array, v: Array, active: tuple[int, ...]
) -> Exact | None:
    m, p, chosen = len(q), len(b), list(active)
    constraints = rows_of(np.concatenate([A, G[chosen]]))
    k = len(constraints)
    matrix = [[*row, *(c[i] for c in constraints)] for i, row in enumerate(rows_of(Q))]
    matrix += [[*row, *[Fraction(0)] * k] for row in constraints]
    right = [*(-value for value in rational(q)), *rational(b), *rational(h[chosen])]
    solution = eliminate(matrix, right)
    adjoint = eliminate(matrix, [*rational(v), *[Fraction(0)] * k])
    if solution is None or adjoint is None:
        return None
    y, multipliers = solution[:m], solution[m + p :]
    slacks = [
        limit - sum(g * u for g, u in zip(row, y, strict=True))
        for i, (row, limit) in enumerate(zip(rows_of(G), rational(h), strict=True))
        if i not in active
    ]
    if any(value < 0 for value in (*multipliers, *slacks)):
        return None
    gradient_h = np.zeros(len(h))
    gradient_h[chosen] = _floats(adjoint[m + p :])
    margins = [_least(multipliers), _least(slacks)]
    return Exact(
        _floats(y),
        active,
        min(margins),
        -_floats(adjoint[:m]),
        _floats(adjoint[m : m + p]),
        gradient_h,
        _condition(matrix),
    )


def _floats(values: Sequence[Fraction]) -> Array:
    return np.array([float(value) for value in values])


def _least(values: Sequence[Fraction]) -> float:
    return float(min(values) / max(values)) if values and max(values) > 0 else (0.0 if values else 1.0)


def _condition(matrix: Sequence[Row]) -> float:
    dense = np.array([[float(entry) for entry in row] for row in matrix])
    for _ in range(5):  # a change of units is not what makes a problem hard
        size = np.sqrt(np.abs(dense).max(1, initial=0.0))
        size[size == 0] = 1.0
        dense = dense / size[:, None] / size
    return float(np.linalg.cond(dense))
