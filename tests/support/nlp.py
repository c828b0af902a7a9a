"""Nonlinear programmes from the literature with their published optimal values.

Numbers are those of Hock and Schittkowski, "Test Examples for Nonlinear Programming Codes" (1981); the unconstrained
ones are from More, Garbow and Hillstrom (1981). ``x`` is a factor on the objective, 1 in the published problem.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import pi, sqrt

import torch
from torch import Tensor

from declarative import DeclarativeNode


@dataclass(frozen=True)
class Programme:
    name: str
    objective: Callable[[Tensor], Tensor]
    start: list[float]
    optimum: float
    equality: Callable[[Tensor], list[Tensor]] | None = None
    inequality: Callable[[Tensor], list[Tensor]] | None = None  # not positive

    def node(self, **options) -> DeclarativeNode:
        def stacked(functions):
            return None if functions is None else lambda _, u: torch.cat([v.reshape(-1) for v in functions(u)])

        start = torch.tensor(self.start, dtype=torch.float64)
        return DeclarativeNode(
            lambda x, u: x * self.objective(u),
            stacked(self.equality),
            stacked(self.inequality),
            **{"start": start, **options},
        )


def bounds(u, low, high):
    return [torch.as_tensor(low, dtype=u.dtype) - u, u - torch.as_tensor(high, dtype=u.dtype)]


EQUALITY = [
    Programme("HS6", lambda u: (1 - u[0]) ** 2, [-1.2, 1], 0.0, lambda u: [10 * (u[1] - u[0] ** 2)]),
    Programme(
        "HS7",
        lambda u: torch.log(1 + u[0] ** 2) - u[1],
        [2, 2],
        -sqrt(3),
        lambda u: [(1 + u[0] ** 2) ** 2 + u[1] ** 2 - 4],
    ),
    Programme(
        "HS9",
        lambda u: torch.sin(pi * u[0] / 12) * torch.cos(pi * u[1] / 16),
        [0, 0],
        -0.5,
        lambda u: [4 * u[0] - 3 * u[1]],
    ),
    Programme(
        "HS26",
        lambda u: (u[0] - u[1]) ** 2 + (u[1] - u[2]) ** 4,
        [-2.6, 2, 2],
        0.0,
        lambda u: [(1 + u[1] ** 2) * u[0] + u[2] ** 4 - 3],
    ),
    Programme(
        "HS27",
        lambda u: 0.01 * (u[0] - 1) ** 2 + (u[1] - u[0] ** 2) ** 2,
        [2, 2, 2],
        0.04,
        lambda u: [u[0] + u[2] ** 2 + 1],
    ),
    Programme(
        "HS28",
        lambda u: (u[0] + u[1]) ** 2 + (u[1] + u[2]) ** 2,
        [-4, 1, 1],
        0.0,
        lambda u: [u[0] + 2 * u[1] + 3 * u[2] - 1],
    ),
    Programme(
        "HS39",
        lambda u: -u[0],
        [2, 2, 2, 2],
        -1.0,
        lambda u: [u[1] - u[0] ** 3 - u[2] ** 2, u[0] ** 2 - u[1] - u[3] ** 2],
    ),
    Programme(
        "HS40",
        lambda u: -u.prod(),
        [0.8] * 4,
        -0.25,
        lambda u: [u[0] ** 3 + u[1] ** 2 - 1, u[0] ** 2 * u[3] - u[2], u[3] ** 2 - u[1]],
    ),
    Programme(
        "HS42",
        lambda u: sum((u[i] - i - 1) ** 2 for i in range(4)),
        [1] * 4,
        28 - 10 * sqrt(2),
        lambda u: [u[0] - 2, u[2] ** 2 + u[3] ** 2 - 2],
    ),
    Programme(
        "HS46",
        lambda u: (u[0] - u[1]) ** 2 + (u[2] - 1) ** 2 + (u[3] - 1) ** 4 + (u[4] - 1) ** 6,
        [sqrt(2) / 2, 1.75, 0.5, 2, 2],
        0.0,
        lambda u: [u[0] ** 2 * u[3] + torch.sin(u[3] - u[4]) - 1, u[1] + u[2] ** 4 * u[3] ** 2 - 2],
    ),
    Programme(
        "HS48",
        lambda u: (u[0] - 1) ** 2 + (u[1] - u[2]) ** 2 + (u[3] - u[4]) ** 2,
        [3, 5, -3, 2, -2],
        0.0,
        lambda u: [u.sum() - 5, u[2] - 2 * (u[3] + u[4]) + 3],
    ),
    Programme(
        "HS49",
        lambda u: (u[0] - u[1]) ** 2 + (u[2] - 1) ** 2 + (u[3] - 1) ** 4 + (u[4] - 1) ** 6,
        [10, 7, 2, -3, 0.8],
        0.0,
        lambda u: [u[0] + u[1] + u[2] + 4 * u[3] - 7, u[2] + 5 * u[4] - 6],
    ),
    Programme(
        "HS50",
        lambda u: (u[0] - u[1]) ** 2 + (u[1] - u[2]) ** 2 + (u[2] - u[3]) ** 4 + (u[3] - u[4]) ** 2,
        [35, -31, 11, 5, -5],
        0.0,
        lambda u: [u[i] + 2 * u[i + 1] + 3 * u[i + 2] - 6 for i in range(3)],
    ),
    Programme(
        "HS51",
        lambda u: (u[0] - u[1]) ** 2 + (u[1] + u[2] - 2) ** 2 + (u[3] - 1) ** 2 + (u[4] - 1) ** 2,
        [2.5, 0.5, 2, -1, 0.5],
        0.0,
        lambda u: [u[0] + 3 * u[1] - 4, u[2] + u[3] - 2 * u[4], u[1] - u[4]],
    ),
    Programme(
        "HS52",
        lambda u: (4 * u[0] - u[1]) ** 2 + (u[1] + u[2] - 2) ** 2 + (u[3] - 1) ** 2 + (u[4] - 1) ** 2,
        [2] * 5,
        1859 / 349,
        lambda u: [u[0] + 3 * u[1], u[2] + u[3] - 2 * u[4], u[1] - u[4]],
    ),
    Programme(
        "HS61",
        lambda u: 4 * u[0] ** 2 + 2 * u[1] ** 2 + 2 * u[2] ** 2 - 33 * u[0] + 16 * u[1] - 24 * u[2],
        [0, 0, 0],
        -143.6461422,
        lambda u: [3 * u[0] - 2 * u[1] ** 2 - 7, 4 * u[0] - u[2] ** 2 - 11],
    ),
    Programme(
        "HS77",
        lambda u: (u[0] - 1) ** 2 + (u[0] - u[1]) ** 2 + (u[2] - 1) ** 2 + (u[3] - 1) ** 4 + (u[4] - 1) ** 6,
        [2] * 5,
        0.24150513,
        lambda u: [
            u[0] ** 2 * u[3] + torch.sin(u[3] - u[4]) - 2 * sqrt(2),
            u[1] + u[2] ** 4 * u[3] ** 2 - 8 - sqrt(2),
        ],
    ),
    Programme(
        "HS78",
        lambda u: u.prod(),
        [-2, 1.5, 2, -1, -1],
        -2.91970041,
        lambda u: [u.square().sum() - 10, u[1] * u[2] - 5 * u[3] * u[4], u[0] ** 3 + u[1] ** 3 + 1],
    ),
    Programme(
        "HS79",
        lambda u: (u[0] - 1) ** 2 + (u[0] - u[1]) ** 2 + (u[1] - u[2]) ** 2 + (u[2] - u[3]) ** 4 + (u[3] - u[4]) ** 4,
        [2] * 5,
        0.0787768209,
        lambda u: [
            u[0] + u[1] ** 2 + u[2] ** 3 - 2 - 3 * sqrt(2),
            u[1] - u[2] ** 2 + u[3] + 2 - 2 * sqrt(2),
            u[0] * u[4] - 2,
        ],
    ),
]


def rosenbrock(u):
    return (100 * (u[1:] - u[:-1] ** 2) ** 2 + (1 - u[:-1]) ** 2).sum()


INEQUALITY = [
    Programme("HS1", rosenbrock, [-2, 1], 0.0, inequality=lambda u: [-1.5 - u[1]]),
    Programme(
        "HS10",
        lambda u: u[0] - u[1],
        [-10, 10],
        -1.0,
        inequality=lambda u: [3 * u[0] ** 2 - 2 * u[0] * u[1] + u[1] ** 2 - 1],
    ),
    Programme(
        "HS11",
        lambda u: (u[0] - 5) ** 2 + u[1] ** 2 - 25,
        [4.9, 0.1],
        -8.498464223,
        inequality=lambda u: [u[0] ** 2 - u[1]],
    ),
    Programme(
        "HS12",
        lambda u: 0.5 * u[0] ** 2 + u[1] ** 2 - u[0] * u[1] - 7 * u[0] - 7 * u[1],
        [0, 0],
        -30.0,
        inequality=lambda u: [4 * u[0] ** 2 + u[1] ** 2 - 25],
    ),
    Programme(
        "HS14",
        lambda u: (u[0] - 2) ** 2 + (u[1] - 1) ** 2,
        [2, 2],
        9 - 2.875 * sqrt(7),
        lambda u: [u[0] - 2 * u[1] + 1],
        lambda u: [u[0] ** 2 / 4 + u[1] ** 2 - 1],
    ),
    Programme(
        "HS22",
        lambda u: (u[0] - 2) ** 2 + (u[1] - 1) ** 2,
        [2, 2],
        1.0,
        inequality=lambda u: [u[0] + u[1] - 2, u[0] ** 2 - u[1]],
    ),
    Programme(
        "HS24",
        lambda u: ((u[0] - 3) ** 2 - 9) * u[1] ** 3 / (27 * sqrt(3)),
        [1, 0.5],
        -1.0,
        inequality=lambda u: [
            u[1] - u[0] / sqrt(3),
            -u[0] - sqrt(3) * u[1],
            u[0] + sqrt(3) * u[1] - 6,
            -u,
        ],
    ),
    Programme(
        "HS29",
        lambda u: -u.prod(),
        [1, 1, 1],
        -16 * sqrt(2),
        inequality=lambda u: [u[0] ** 2 + 2 * u[1] ** 2 + 4 * u[2] ** 2 - 48],
    ),
    Programme(
        "HS43",
        lambda u: u[0] ** 2 + u[1] ** 2 + 2 * u[2] ** 2 + u[3] ** 2 - 5 * u[0] - 5 * u[1] - 21 * u[2] + 7 * u[3],
        [0, 0, 0, 0],
        -44.0,
        inequality=lambda u: [
            u.square().sum() + u[0] - u[1] + u[2] - u[3] - 8,
            u[0] ** 2 + 2 * u[1] ** 2 + u[2] ** 2 + 2 * u[3] ** 2 - u[0] - u[3] - 10,
            2 * u[0] ** 2 + u[1] ** 2 + u[2] ** 2 + 2 * u[0] - u[1] - u[3] - 5,
        ],
    ),
    Programme(
        "HS65",
        lambda u: (u[0] - u[1]) ** 2 + (u[0] + u[1] - 10) ** 2 / 9 + (u[2] - 5) ** 2,
        [-5, 5, 0],
        0.9535288567,
        inequality=lambda u: [u.square().sum() - 48, *bounds(u, [-4.5, -4.5, -5], [4.5, 4.5, 5])],
    ),
    Programme(
        "HS71",
        lambda u: u[0] * u[3] * (u[0] + u[1] + u[2]) + u[2],
        [1, 5, 5, 1],
        17.0140173,
        lambda u: [u.square().sum() - 40],
        lambda u: [25 - u.prod(), *bounds(u, [1.0] * 4, [5.0] * 4)],
    ),
    Programme(
        "HS100",
        lambda u: (
            (u[0] - 10) ** 2
            + 5 * (u[1] - 12) ** 2
            + u[2] ** 4
            + 3 * (u[3] - 11) ** 2
            + 10 * u[4] ** 6
            + 7 * u[5] ** 2
            + u[6] ** 4
            - 4 * u[5] * u[6]
            - 10 * u[5]
            - 8 * u[6]
        ),
        [1, 2, 0, 4, 0, 1, 1],
        680.6300573,
        inequality=lambda u: [
            2 * u[0] ** 2 + 3 * u[1] ** 4 + u[2] + 4 * u[3] ** 2 + 5 * u[4] - 127,
            7 * u[0] + 3 * u[1] + 10 * u[2] ** 2 + u[3] - u[4] - 282,
            23 * u[0] + u[1] ** 2 + 6 * u[5] ** 2 - 8 * u[6] - 196,
            4 * u[0] ** 2 + u[1] ** 2 - 3 * u[0] * u[1] + 2 * u[2] ** 2 + 5 * u[5] - 11 * u[6],
        ],
    ),
]

QUADRATIC = [
    Programme(
        "HS21",
        lambda u: 0.01 * u[0] ** 2 + u[1] ** 2 - 100,
        [-1, -1],
        -99.96,
        inequality=lambda u: [10 - 10 * u[0] + u[1], *bounds(u, [2.0, -50.0], [50.0, 50.0])],
    ),
    Programme(
        "HS35",
        lambda u: (
            9 - 8 * u[0] - 6 * u[1] - 4 * u[2] + 2 * u[0] ** 2 + 2 * u[1] ** 2 + u[2] ** 2
            + 2 * u[0] * u[1] + 2 * u[0] * u[2]
        ),
        [0.5] * 3,
        1 / 9,
        inequality=lambda u: [u[0] + u[1] + 2 * u[2] - 3, -u],
    ),
    Programme(
        "HS76",
        lambda u: (
            u[0] ** 2 + 0.5 * u[1] ** 2 + u[2] ** 2 + 0.5 * u[3] ** 2 - u[0] * u[2] + u[2] * u[3]
            - u[0] - 3 * u[1] + u[2] - u[3]
        ),
        [0.5] * 4,
        -4.681818181,
        inequality=lambda u: [
            u[0] + 2 * u[1] + u[2] + u[3] - 5,
            3 * u[0] + u[1] + 2 * u[2] - u[3] - 4,
            1.5 - u[1] - 4 * u[2],
            -u,
        ],
    ),
    Programme(
        "HS53",
        lambda u: (u[0] - u[1]) ** 2 + (u[1] + u[2] - 2) ** 2 + (u[3] - 1) ** 2 + (u[4] - 1) ** 2,
        [2] * 5,
        176 / 43,
        lambda u: [u[0] + 3 * u[1], u[2] + u[3] - 2 * u[4], u[1] - u[4]],
        lambda u: bounds(u, [-10.0] * 5, [10.0] * 5),
    ),
    Programme(
        "HS3",
        lambda u: u[1] + 1e-5 * (u[1] - u[0]) ** 2,
        [10, 1],
        0.0,
        inequality=lambda u: [-u[1]],
    ),
]  # fmt: skip

UNCONSTRAINED = [
    Programme("Rosenbrock", rosenbrock, [-1.2, 1], 0.0),
    Programme(
        "extended Rosenbrock", lambda u: sum(rosenbrock(u[i : i + 2]) for i in range(0, 10, 2)), [-1.2, 1] * 5, 0.0
    ),
    Programme(
        "Powell badly scaled",
        lambda u: (1e4 * u[0] * u[1] - 1) ** 2 + (torch.exp(-u[0]) + torch.exp(-u[1]) - 1.0001) ** 2,
        [0, 1],
        0.0,
    ),
    Programme(
        "Brown badly scaled",
        lambda u: (u[0] - 1e6) ** 2 + (u[1] - 2e-6) ** 2 + (u[0] * u[1] - 2) ** 2,
        [1, 1],
        0.0,
    ),
    Programme(
        "Wood",
        lambda u: (
            100 * (u[1] - u[0] ** 2) ** 2 + (1 - u[0]) ** 2 + 90 * (u[3] - u[2] ** 2) ** 2 + (1 - u[2]) ** 2
            + 10 * (u[1] + u[3] - 2) ** 2 + 0.1 * (u[1] - u[3]) ** 2
        ),
        [-3, -1, -3, -1],
        0.0,
    ),
    Programme(
        "Beale",
        lambda u: sum((c - u[0] * (1 - u[1] ** i)) ** 2 for i, c in enumerate((1.5, 2.25, 2.625), 1)),
        [1, 1],
        0.0,
    ),
]  # fmt: skip

PROGRAMMES = EQUALITY + INEQUALITY + QUADRATIC + UNCONSTRAINED
