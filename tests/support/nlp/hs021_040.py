"""Problems 21 to 40 of Hock and Schittkowski, "Test Examples for Nonlinear Programming Codes" (1981)."""
# ruff: noqa: ARG005 - the functions of a problem all have all of its unknowns as arguments

from __future__ import annotations

from math import log, sqrt

import torch
from torch import Tensor

from .programme import Programme, componentwise, numbers

LEVELS = numbers([0.01 * i for i in range(1, 100)])
AGES = 25 + (-50 * LEVELS.log()) ** (2 / 3)


def survival_error(x1: Tensor, x2: Tensor, x3: Tensor) -> Tensor:
    return (torch.exp(-((AGES - x2) ** x3) / x1) - LEVELS).square().sum()


PROBLEMS = [
    componentwise(
        "HS21",
        lambda x1, x2: 0.01 * x1**2 + x2**2 - 100,
        [-1, -1],
        -99.96,
        inequality=lambda x1, x2: [10 - 10 * x1 + x2],
        lower=[2, -50],
        upper=50,
    ),
    componentwise(
        "HS22",
        lambda x1, x2: (x1 - 2) ** 2 + (x2 - 1) ** 2,
        [2, 2],
        1.0,
        inequality=lambda x1, x2: [x1 + x2 - 2, x1**2 - x2],
    ),
    componentwise(
        "HS23",
        lambda x1, x2: x1**2 + x2**2,
        [3, 1],
        2.0,
        inequality=lambda x1, x2: [
            1 - x1 - x2,
            1 - x1**2 - x2**2,
            9 - 9 * x1**2 - x2**2,
            x2 - x1**2,
            x1 - x2**2,
        ],
        lower=-50,
        upper=50,
    ),
    componentwise(
        "HS24",
        lambda x1, x2: ((x1 - 3) ** 2 - 9) * x2**3 / (27 * sqrt(3)),
        [1, 0.5],
        -1.0,
        inequality=lambda x1, x2: [x2 - x1 / sqrt(3), -x1 - sqrt(3) * x2, x1 + sqrt(3) * x2 - 6],
        lower=0,
    ),
    componentwise("HS25", survival_error, [100, 12.5, 3], 0.0, lower=[0.1, 0, 0], upper=[100, 25.6, 5]),
    componentwise(
        "HS26",
        lambda x1, x2, x3: (x1 - x2) ** 2 + (x2 - x3) ** 4,
        [-2.6, 2, 2],
        0.0,
        lambda x1, x2, x3: [(1 + x2**2) * x1 + x3**4 - 3],
    ),
    componentwise(
        "HS27",
        lambda x1, x2, x3: 0.01 * (x1 - 1) ** 2 + (x2 - x1**2) ** 2,
        [2, 2, 2],
        0.04,
        lambda x1, x2, x3: [x1 + x3**2 + 1],
    ),
    componentwise(
        "HS28",
        lambda x1, x2, x3: (x1 + x2) ** 2 + (x2 + x3) ** 2,
        [-4, 1, 1],
        0.0,
        lambda x1, x2, x3: [x1 + 2 * x2 + 3 * x3 - 1],
    ),
    componentwise(
        "HS29",
        lambda x1, x2, x3: -x1 * x2 * x3,
        [1, 1, 1],
        -16 * sqrt(2),
        inequality=lambda x1, x2, x3: [x1**2 + 2 * x2**2 + 4 * x3**2 - 48],
    ),
    componentwise(
        "HS30",
        lambda x1, x2, x3: x1**2 + x2**2 + x3**2,
        [1, 1, 1],
        1.0,
        inequality=lambda x1, x2, x3: [1 - x1**2 - x2**2],
        lower=[1, -10, -10],
        upper=10,
    ),
    componentwise(
        "HS31",
        lambda x1, x2, x3: 9 * x1**2 + x2**2 + 9 * x3**2,
        [1, 1, 1],
        6.0,
        inequality=lambda x1, x2, x3: [1 - x1 * x2],
        lower=[-10, 1, -10],
        upper=[10, 10, 1],
    ),
    componentwise(
        "HS32",
        lambda x1, x2, x3: (x1 + 3 * x2 + x3) ** 2 + 4 * (x1 - x2) ** 2,
        [0.1, 0.7, 0.2],
        1.0,
        lambda x1, x2, x3: [1 - x1 - x2 - x3],
        lambda x1, x2, x3: [3 - 6 * x2 - 4 * x3 + x1**3],
        lower=0,
    ),
    componentwise(
        "HS33",
        lambda x1, x2, x3: (x1 - 1) * (x1 - 2) * (x1 - 3) + x3,
        [0, 0, 3],
        sqrt(2) - 6,
        inequality=lambda x1, x2, x3: [x1**2 + x2**2 - x3**2, 4 - x1**2 - x2**2 - x3**2],
        lower=0,
        upper=[torch.inf, torch.inf, 5],
    ),
    componentwise(
        "HS34",
        lambda x1, x2, x3: -x1,
        [0, 1.05, 2.9],
        -log(log(10)),
        inequality=lambda x1, x2, x3: [x1.exp() - x2, x2.exp() - x3],
        lower=0,
        upper=[100, 100, 10],
    ),
    componentwise(
        "HS35",
        lambda x1, x2, x3: 9 - 8 * x1 - 6 * x2 - 4 * x3 + 2 * x1**2 + 2 * x2**2 + x3**2 + 2 * x1 * x2 + 2 * x1 * x3,
        [0.5, 0.5, 0.5],
        1 / 9,
        inequality=lambda x1, x2, x3: [x1 + x2 + 2 * x3 - 3],
        lower=0,
    ),
    componentwise(
        "HS36",
        lambda x1, x2, x3: -x1 * x2 * x3,
        [10, 10, 10],
        -3300.0,
        inequality=lambda x1, x2, x3: [x1 + 2 * x2 + 2 * x3 - 72],
        lower=0,
        upper=[20, 11, 42],
    ),
    componentwise(
        "HS37",
        lambda x1, x2, x3: -x1 * x2 * x3,
        [10, 10, 10],
        -3456.0,
        inequality=lambda x1, x2, x3: [x1 + 2 * x2 + 2 * x3 - 72, -x1 - 2 * x2 - 2 * x3],
        lower=0,
        upper=42,
    ),
    componentwise(
        "HS38",
        lambda x1, x2, x3, x4: (
            100 * (x2 - x1**2) ** 2
            + (1 - x1) ** 2
            + 90 * (x4 - x3**2) ** 2
            + (1 - x3) ** 2
            + 10.1 * ((x2 - 1) ** 2 + (x4 - 1) ** 2)
            + 19.8 * (x2 - 1) * (x4 - 1)
        ),
        [-3, -1, -3, -1],
        0.0,
        lower=-10,
        upper=10,
    ),
    componentwise(
        "HS39",
        lambda x1, x2, x3, x4: -x1,
        [2, 2, 2, 2],
        -1.0,
        lambda x1, x2, x3, x4: [x2 - x1**3 - x3**2, x1**2 - x2 - x4**2],
    ),
    Programme(
        "HS40",
        lambda u: -u.prod(),
        [0.8, 0.8, 0.8, 0.8],
        -0.25,
        lambda u: [u[0] ** 3 + u[1] ** 2 - 1, u[0] ** 2 * u[3] - u[2], u[3] ** 2 - u[1]],
    ),
]
