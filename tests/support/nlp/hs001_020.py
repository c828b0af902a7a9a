"""Problems 1 to 20 of Hock and Schittkowski, "Test Examples for Nonlinear Programming Codes" (1981)."""
# ruff: noqa: ARG005 - the functions of a problem all have all of its unknowns as arguments

from __future__ import annotations

from math import inf, pi, sqrt

import torch
from torch import Tensor

from .programme import Programme, componentwise


def rosenbrock(u: Tensor) -> Tensor:
    return (100 * (u[1:] - u[:-1] ** 2) ** 2 + (1 - u[:-1]) ** 2).sum()


def valley(x1: Tensor, x2: Tensor) -> Tensor:
    return 100 * (x2 - x1**2) ** 2 + (1 - x1) ** 2


PROBLEMS = [
    Programme("HS1", rosenbrock, [-2, 1], 0.0, lower=[-inf, -1.5]),
    Programme("HS2", rosenbrock, [-2, 1], 0.0504261879, lower=[-inf, 1.5], others=[4.9412293]),
    componentwise("HS3", lambda x1, x2: x2 + 1e-5 * (x2 - x1) ** 2, [10, 1], 0.0, lower=[-inf, 0]),
    componentwise("HS4", lambda x1, x2: (x1 + 1) ** 3 / 3 + x2, [1.125, 0.125], 8 / 3, lower=[1, 0]),
    componentwise(
        "HS5",
        lambda x1, x2: torch.sin(x1 + x2) + (x1 - x2) ** 2 - 1.5 * x1 + 2.5 * x2 + 1,
        [0, 0],
        -sqrt(3) / 2 - pi / 3,
        lower=[-1.5, -3],
        upper=[4, 3],
        others=[pi - sqrt(3) / 2 - pi / 3],
    ),
    componentwise("HS6", lambda x1, x2: (1 - x1) ** 2, [-1.2, 1], 0.0, lambda x1, x2: [10 * (x2 - x1**2)]),
    componentwise(
        "HS7",
        lambda x1, x2: torch.log(1 + x1**2) - x2,
        [2, 2],
        -sqrt(3),
        lambda x1, x2: [(1 + x1**2) ** 2 + x2**2 - 4],
    ),
    componentwise("HS8", lambda x1, x2: 0 * x1 - 1, [2, 1], -1.0, lambda x1, x2: [x1**2 + x2**2 - 25, x1 * x2 - 9]),
    componentwise(
        "HS9",
        lambda x1, x2: torch.sin(pi * x1 / 12) * torch.cos(pi * x2 / 16),
        [0, 0],
        -0.5,
        lambda x1, x2: [4 * x1 - 3 * x2],
    ),
    componentwise(
        "HS10",
        lambda x1, x2: x1 - x2,
        [-10, 10],
        -1.0,
        inequality=lambda x1, x2: [3 * x1**2 - 2 * x1 * x2 + x2**2 - 1],
    ),
    componentwise(
        "HS11",
        lambda x1, x2: (x1 - 5) ** 2 + x2**2 - 25,
        [4.9, 0.1],
        -8.498464223,
        inequality=lambda x1, x2: [x1**2 - x2],
    ),
    componentwise(
        "HS12",
        lambda x1, x2: 0.5 * x1**2 + x2**2 - x1 * x2 - 7 * x1 - 7 * x2,
        [0, 0],
        -30.0,
        inequality=lambda x1, x2: [4 * x1**2 + x2**2 - 25],
    ),
    componentwise(
        "HS13",
        lambda x1, x2: (x1 - 2) ** 2 + x2**2,
        [-2, -2],
        1.0,
        inequality=lambda x1, x2: [x2 - (1 - x1) ** 3],
        lower=0,
        regular=False,
    ),
    componentwise(
        "HS14",
        lambda x1, x2: (x1 - 2) ** 2 + (x2 - 1) ** 2,
        [2, 2],
        9 - 2.875 * sqrt(7),
        lambda x1, x2: [x1 - 2 * x2 + 1],
        lambda x1, x2: [x1**2 / 4 + x2**2 - 1],
    ),
    componentwise(
        "HS15",
        valley,
        [-2, 1],
        306.5,
        inequality=lambda x1, x2: [1 - x1 * x2, -x1 - x2**2],
        upper=[0.5, inf],
        others=[360.3797672],
    ),
    componentwise(
        "HS16",
        valley,
        [-2, 1],
        0.25,
        inequality=lambda x1, x2: [-x1 - x2**2, -(x1**2) - x2],
        lower=[-0.5, -inf],
        upper=[0.5, 1],
        others=[23.1446609],
    ),
    componentwise(
        "HS17",
        valley,
        [-2, 1],
        1.0,
        inequality=lambda x1, x2: [x1 - x2**2, x2 - x1**2],
        lower=[-0.5, -inf],
        upper=[0.5, 1],
    ),
    componentwise(
        "HS18",
        lambda x1, x2: 0.01 * x1**2 + x2**2,
        [2, 2],
        5.0,
        inequality=lambda x1, x2: [25 - x1 * x2, 25 - x1**2 - x2**2],
        lower=[2, 0],
        upper=50,
    ),
    componentwise(
        "HS19",
        lambda x1, x2: (x1 - 10) ** 3 + (x2 - 20) ** 3,
        [20.1, 5.84],
        -6961.81381,
        inequality=lambda x1, x2: [
            100 - (x1 - 5) ** 2 - (x2 - 5) ** 2,
            (x2 - 5) ** 2 + (x1 - 6) ** 2 - 82.81,
        ],
        lower=[13, 0],
        upper=100,
    ),
    componentwise(
        "HS20",
        valley,
        [-2, 1],
        81.5 - 25 * sqrt(3),
        inequality=lambda x1, x2: [-x1 - x2**2, -(x1**2) - x2, 1 - x1**2 - x2**2],
        lower=[-0.5, -inf],
        upper=[0.5, inf],
        others=[83.5 - 25 * sqrt(3)],
    ),
]
