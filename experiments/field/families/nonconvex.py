"""Test problems of Hock and Schittkowski, by their formulas, as batches of copies whose constants are perturbed.

p has two entries, both 1 for the published problem: the first is in the objective, the second in the constraints (in
the objective again, where there are none).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..cases import Case, Functions, Programme
from .family import Family, generator

INF = np.inf
NUDGE = 0.05  # relative, of the constants
ROOT = 2**0.5


@dataclass(frozen=True)
class Problem:
    """A published problem: where one starts, the bounds, and the value at the solution."""

    start: tuple[float, ...]
    value: float
    objective: Callable[[Any, Any, Any], Any]  # of the operations, p and the entries of u
    equality: Callable[[Any, Any, Any], list[Any]] | None = None
    inequality: Callable[[Any, Any, Any], list[Any]] | None = None  # <= 0
    lower: tuple[float, ...] = ()
    upper: tuple[float, ...] = ()

    def functions(self, m: Any) -> Functions:
        """Of vectors."""
        n = len(self.start)

        def vector(rows: Callable[[Any, Any, Any], list[Any]] | None) -> Any:
            if rows is None:
                return None
            return lambda p, u: m.concat(rows(m, p, [u[i] for i in range(n)]))

        objective = lambda p, u: self.objective(m, p, [u[i] for i in range(n)])  # noqa: E731
        return Functions(objective, vector(self.equality), vector(self.inequality))

    def programme(self, p: Any) -> Programme:
        """A batch of copies."""
        n = len(self.start)
        lower, upper = np.array(self.lower or (-INF,) * n), np.array(self.upper or (INF,) * n)
        return Programme(self.functions, p, np.tile(self.start, (len(p), 1)), lower, upper)


def squares(x: Any) -> Any:
    """Their sum."""
    return sum(one * one for one in x)


PROBLEMS = {
    1: Problem(
        (-2, 1), 0.0, lambda m, p, x: 100 * (x[1] - p[1] * x[0] ** 2) ** 2 + (p[0] - x[0]) ** 2,
        lower=(-INF, -1.5), upper=(INF, INF),
    ),
    6: Problem((-1.2, 1), 0.0, lambda m, p, x: (p[0] - x[0]) ** 2, lambda m, p, x: [10 * (x[1] - p[1] * x[0] ** 2)]),
    7: Problem(
        (2, 2), -(3**0.5), lambda m, p, x: m.log(1 + x[0] ** 2) - p[0] * x[1],
        lambda m, p, x: [(1 + x[0] ** 2) ** 2 + x[1] ** 2 - 4 * p[1]],
    ),
    10: Problem(
        (-10, 10), -1.0, lambda m, p, x: x[0] - p[0] * x[1],
        inequality=lambda m, p, x: [3 * x[0] ** 2 - 2 * x[0] * x[1] + x[1] ** 2 - p[1]],
    ),
    12: Problem(
        (0, 0), -30.0, lambda m, p, x: x[0] ** 2 / 2 + x[1] ** 2 - x[0] * x[1] - 7 * p[0] * x[0] - 7 * x[1],
        inequality=lambda m, p, x: [4 * x[0] ** 2 + x[1] ** 2 - 25 * p[1]],
    ),
    14: Problem(
        (2, 2), 9 - 2.875 * 7**0.5, lambda m, p, x: (x[0] - 2 * p[0]) ** 2 + (x[1] - 1) ** 2,
        lambda m, p, x: [x[0] - 2 * x[1] + 1], lambda m, p, x: [x[0] ** 2 / 4 + x[1] ** 2 - p[1]],
    ),
    28: Problem(
        (-4, 1, 1), 0.0, lambda m, p, x: (x[0] + x[1]) ** 2 + (p[0] * x[1] + x[2]) ** 2,
        lambda m, p, x: [x[0] + 2 * x[1] + 3 * x[2] - p[1]],
    ),
    29: Problem(
        (1, 1, 1), -16 * ROOT, lambda m, p, x: -p[0] * x[0] * x[1] * x[2],
        inequality=lambda m, p, x: [x[0] ** 2 + 2 * x[1] ** 2 + 4 * x[2] ** 2 - 48 * p[1]],
    ),
    35: Problem(
        (0.5, 0.5, 0.5), 1 / 9,
        lambda m, p, x: 9 - 8 * p[0] * x[0] - 6 * x[1] - 4 * x[2] + 2 * x[0] ** 2 + 2 * x[1] ** 2 + x[2] ** 2
        + 2 * x[0] * x[1] + 2 * x[0] * x[2],
        inequality=lambda m, p, x: [x[0] + x[1] + 2 * x[2] - 3 * p[1]], lower=(0, 0, 0), upper=(INF,) * 3,
    ),
    39: Problem(
        (2, 2, 2, 2), -1.0, lambda m, p, x: -p[0] * x[0],
        lambda m, p, x: [x[1] - x[0] ** 3 - x[2] ** 2, p[1] * x[0] ** 2 - x[1] - x[3] ** 2],
    ),
    40: Problem(
        (0.8, 0.8, 0.8, 0.8), -0.25, lambda m, p, x: -p[0] * x[0] * x[1] * x[2] * x[3],
        lambda m, p, x: [x[0] ** 3 + x[1] ** 2 - p[1], x[0] ** 2 * x[3] - x[2], x[3] ** 2 - x[1]],
    ),
    42: Problem(
        (1, 1, 1, 1), 28 - 10 * ROOT,
        lambda m, p, x: (x[0] - 1) ** 2 + (x[1] - 2) ** 2 + (x[2] - 3 * p[0]) ** 2 + (x[3] - 4) ** 2,
        lambda m, p, x: [x[0] - 2, x[2] ** 2 + x[3] ** 2 - 2 * p[1]],
    ),
    43: Problem(
        (0, 0, 0, 0), -44.0,
        lambda m, p, x: x[0] ** 2 + x[1] ** 2 + 2 * x[2] ** 2 + x[3] ** 2 - 5 * x[0] - 5 * x[1] - 21 * p[0] * x[2]
        + 7 * x[3],
        inequality=lambda m, p, x: [
            squares(x) + x[0] - x[1] + x[2] - x[3] - 8 * p[1],
            x[0] ** 2 + 2 * x[1] ** 2 + x[2] ** 2 + 2 * x[3] ** 2 - x[0] - x[3] - 10,
            2 * x[0] ** 2 + x[1] ** 2 + x[2] ** 2 + 2 * x[0] - x[1] - x[3] - 5,
        ],
    ),
    48: Problem(
        (3, 5, -3, 2, -2), 0.0, lambda m, p, x: (x[0] - p[0]) ** 2 + (x[1] - x[2]) ** 2 + (x[3] - x[4]) ** 2,
        lambda m, p, x: [sum(x[1:], x[0]) - 5 * p[1], x[2] - 2 * (x[3] + x[4]) + 3],
    ),
    65: Problem(
        (-5, 5, 0), 0.9535288567,
        lambda m, p, x: (x[0] - x[1]) ** 2 + (x[0] + x[1] - 10 * p[0]) ** 2 / 9 + (x[2] - 5) ** 2,
        inequality=lambda m, p, x: [squares(x) - 48 * p[1]], lower=(-4.5, -4.5, -5), upper=(4.5, 4.5, 5),
    ),
    71: Problem(
        (1, 5, 5, 1), 17.0140173, lambda m, p, x: x[0] * x[3] * (x[0] + x[1] + x[2]) + p[0] * x[2],
        lambda m, p, x: [squares(x) - 40 * p[1]], lambda m, p, x: [25 - x[0] * x[1] * x[2] * x[3]],
        lower=(1,) * 4, upper=(5,) * 4,
    ),
    77: Problem(
        (2,) * 5, 0.24150513,
        lambda m, p, x: (x[0] - p[0]) ** 2 + (x[0] - x[1]) ** 2 + (x[2] - 1) ** 2 + (x[3] - 1) ** 4 + (x[4] - 1) ** 6,
        lambda m, p, x: [
            x[0] ** 2 * x[3] + m.sin(x[3] - x[4]) - 2 * ROOT * p[1], x[1] + x[2] ** 4 * x[3] ** 2 - 8 - ROOT,
        ],
    ),
    78: Problem(
        (-2, 1.5, 2, -1, -1), -2.91970041, lambda m, p, x: p[0] * x[0] * x[1] * x[2] * x[3] * x[4],
        lambda m, p, x: [squares(x) - 10 * p[1], x[1] * x[2] - 5 * x[3] * x[4], x[0] ** 3 + x[1] ** 3 + 1],
    ),
    79: Problem(
        (2,) * 5, 0.0787768209,
        lambda m, p, x: (x[0] - p[0]) ** 2 + (x[0] - x[1]) ** 2 + (x[1] - x[2]) ** 2 + (x[2] - x[3]) ** 4
        + (x[3] - x[4]) ** 4,
        lambda m, p, x: [
            x[0] + x[1] ** 2 + x[2] ** 3 - 2 - 3 * ROOT * p[1], x[1] - x[2] ** 2 + x[3] + 2 - 2 * ROOT, x[0] * x[4] - 2,
        ],
    ),
}  # fmt: skip


def case(size: int, batch: int, seed: int) -> Case:
    """Copies of the problem of that number."""
    draw = generator("nonconvex", size, batch, seed)
    p = 1 + NUDGE * draw.uniform(-1, 1, (batch, 2))
    programme = PROBLEMS[size].programme(p)
    return Case(programme, {"p": p}, draw.standard_normal(programme.start.shape))


FAMILIES = (
    Family(
        "nonconvex", "Hock and Schittkowski's problems, perturbed", "nonlinear", "number of the problem in their book",
        "Nonconvex programmes with 2 to 5 unknowns, each with copies whose constants are off by up to 5 %; truth: "
        "Newton's method on the optimality conditions at the solution that IPOPT finds from the published start.",
        case, tuple((number, 64) for number in PROBLEMS), ((7, 2), (71, 2)),
        ordered=False,
    ),
)  # fmt: skip
