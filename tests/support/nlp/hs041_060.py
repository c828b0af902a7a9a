"""Problems 41 to 60 of Hock and Schittkowski, "Test Examples for Nonlinear Programming Codes" (1981)."""
# ruff: noqa: ARG005 - the functions of a problem all have all of its unknowns as arguments

from __future__ import annotations

from math import asin, exp, inf, sqrt

import torch
from torch import Tensor

from .hs001_020 import valley
from .programme import Programme, componentwise, numbers, readings

# Available chlorine by age of the product, for HS57
WEEKS = numbers(
    [8] * 2 + [10] * 4 + [12] * 4 + [14] * 3 + [16] * 3 + [18] * 2 + [20] * 3 + [22] * 3 + [24] * 3 + [26] * 3
    + [28] * 2 + [30] * 3 + [32] * 2 + [34] + [36] * 2 + [38] * 2 + [40, 42]
)  # fmt: skip
CHLORINE = readings(
    """
    0.49 0.49 0.48 0.47 0.48 0.47 0.46 0.46 0.45 0.43 0.45 0.43 0.43 0.44 0.43 0.43 0.46 0.45 0.42 0.42 0.43
    0.41 0.41 0.40 0.42 0.40 0.40 0.41 0.40 0.41 0.41 0.40 0.40 0.40 0.38 0.41 0.40 0.40 0.41 0.38 0.40 0.40
    0.39 0.39
    """
)


def chlorine_error(x1: Tensor, x2: Tensor) -> Tensor:
    return (CHLORINE - x1 - (0.49 - x1) * torch.exp(-x2 * (WEEKS - 8))).square().sum()


def bell(x1: Tensor, x2: Tensor, x3: Tensor, x4: Tensor, x5: Tensor, x6: Tensor) -> Tensor:
    correlated = (x1 - 1e4) ** 2 / 6.4e7 + (x1 - 1e4) * (x2 - 1) / 2e4 + (x2 - 1) ** 2
    apart = (x3 - 2e6) ** 2 / 4.9e13 + (x4 - 10) ** 2 / 2.5e3 + (x5 - 1e-3) ** 2 / 2.5e-3 + (x6 - 1e8) ** 2 / 2.5e17
    return -torch.exp(-0.5 * (correlated / 0.96 + apart))


def yield_surface(x1: Tensor, x2: Tensor) -> Tensor:
    return (
        -75.196 + 3.8112 * x1 - 0.12694 * x1**2 + 2.0567e-3 * x1**3 - 1.0345e-5 * x1**4
        + 6.8306 * x2 - 0.25645 * x2**2 + 3.4604e-3 * x2**3 - 1.3514e-5 * x2**4 + 28.106 / (x2 + 1)
        - 0.030234 * x1 * x2 + 1.28134e-3 * x1**2 * x2 - 3.5256e-5 * x1**3 * x2 + 2.266e-7 * x1**4 * x2
        - 3.405e-4 * x1 * x2**2 + 5.2375e-6 * x1**2 * x2**2 + 6.3e-8 * x1**3 * x2**2
        + 1.6638e-6 * x1 * x2**3 - 7e-10 * x1**3 * x2**3 + 2.8673 * torch.exp(5e-4 * x1 * x2)
    )  # fmt: skip


PROBLEMS = [
    componentwise(
        "HS41",
        lambda x1, x2, x3, x4: 2 - x1 * x2 * x3,
        [2, 2, 2, 2],
        52 / 27,
        lambda x1, x2, x3, x4: [x1 + 2 * x2 + 2 * x3 - x4],
        lower=0,
        upper=[1, 1, 1, 2],
    ),
    componentwise(
        "HS42",
        lambda x1, x2, x3, x4: (x1 - 1) ** 2 + (x2 - 2) ** 2 + (x3 - 3) ** 2 + (x4 - 4) ** 2,
        [1, 1, 1, 1],
        28 - 10 * sqrt(2),
        lambda x1, x2, x3, x4: [x1 - 2, x3**2 + x4**2 - 2],
    ),
    componentwise(
        "HS43",
        lambda x1, x2, x3, x4: x1**2 + x2**2 + 2 * x3**2 + x4**2 - 5 * x1 - 5 * x2 - 21 * x3 + 7 * x4,
        [0, 0, 0, 0],
        -44.0,
        inequality=lambda x1, x2, x3, x4: [
            x1**2 + x2**2 + x3**2 + x4**2 + x1 - x2 + x3 - x4 - 8,
            x1**2 + 2 * x2**2 + x3**2 + 2 * x4**2 - x1 - x4 - 10,
            2 * x1**2 + x2**2 + x3**2 + 2 * x1 - x2 - x4 - 5,
        ],
    ),
    componentwise(
        "HS44",
        lambda x1, x2, x3, x4: x1 - x2 - x3 - x1 * x3 + x1 * x4 + x2 * x3 - x2 * x4,
        [0, 0, 0, 0],
        -15.0,
        inequality=lambda x1, x2, x3, x4: [
            x1 + 2 * x2 - 8,
            4 * x1 + x2 - 12,
            3 * x1 + 4 * x2 - 12,
            2 * x3 + x4 - 8,
            x3 + 2 * x4 - 8,
            x3 + x4 - 5,
        ],
        lower=0,
        others=[-13],
    ),
    Programme("HS45", lambda u: 2 - u.prod() / 120, [2, 2, 2, 2, 2], 1.0, lower=0, upper=[1, 2, 3, 4, 5]),
    componentwise(
        "HS46",
        lambda x1, x2, x3, x4, x5: (x1 - x2) ** 2 + (x3 - 1) ** 2 + (x4 - 1) ** 4 + (x5 - 1) ** 6,
        [sqrt(2) / 2, 1.75, 0.5, 2, 2],
        0.0,
        lambda x1, x2, x3, x4, x5: [x1**2 * x4 + torch.sin(x4 - x5) - 1, x2 + x3**4 * x4**2 - 2],
    ),
    componentwise(
        "HS47",
        lambda x1, x2, x3, x4, x5: (x1 - x2) ** 2 + (x2 - x3) ** 3 + (x3 - x4) ** 4 + (x4 - x5) ** 4,
        [2, sqrt(2), -1, 2 - sqrt(2), 0.5],
        -0.0267141826939,
        lambda x1, x2, x3, x4, x5: [x1 + x2**2 + x3**3 - 3, x2 - x3**2 + x4 - 1, x1 * x5 - 1],
        others=[0],  # printed as the solution; there is descent from it, but of third order only
    ),
    componentwise(
        "HS48",
        lambda x1, x2, x3, x4, x5: (x1 - 1) ** 2 + (x2 - x3) ** 2 + (x4 - x5) ** 2,
        [3, 5, -3, 2, -2],
        0.0,
        lambda x1, x2, x3, x4, x5: [x1 + x2 + x3 + x4 + x5 - 5, x3 - 2 * (x4 + x5) + 3],
    ),
    componentwise(
        "HS49",
        lambda x1, x2, x3, x4, x5: (x1 - x2) ** 2 + (x3 - 1) ** 2 + (x4 - 1) ** 4 + (x5 - 1) ** 6,
        [10, 7, 2, -3, 0.8],
        0.0,
        lambda x1, x2, x3, x4, x5: [x1 + x2 + x3 + 4 * x4 - 7, x3 + 5 * x5 - 6],
    ),
    componentwise(
        "HS50",
        lambda x1, x2, x3, x4, x5: (x1 - x2) ** 2 + (x2 - x3) ** 2 + (x3 - x4) ** 4 + (x4 - x5) ** 2,
        [35, -31, 11, 5, -5],
        0.0,
        lambda *x: [x[i] + 2 * x[i + 1] + 3 * x[i + 2] - 6 for i in range(3)],
    ),
    componentwise(
        "HS51",
        lambda x1, x2, x3, x4, x5: (x1 - x2) ** 2 + (x2 + x3 - 2) ** 2 + (x4 - 1) ** 2 + (x5 - 1) ** 2,
        [2.5, 0.5, 2, -1, 0.5],
        0.0,
        lambda x1, x2, x3, x4, x5: [x1 + 3 * x2 - 4, x3 + x4 - 2 * x5, x2 - x5],
    ),
    componentwise(
        "HS52",
        lambda x1, x2, x3, x4, x5: (4 * x1 - x2) ** 2 + (x2 + x3 - 2) ** 2 + (x4 - 1) ** 2 + (x5 - 1) ** 2,
        [2, 2, 2, 2, 2],
        1859 / 349,
        lambda x1, x2, x3, x4, x5: [x1 + 3 * x2, x3 + x4 - 2 * x5, x2 - x5],
    ),
    componentwise(
        "HS53",
        lambda x1, x2, x3, x4, x5: (x1 - x2) ** 2 + (x2 + x3 - 2) ** 2 + (x4 - 1) ** 2 + (x5 - 1) ** 2,
        [2, 2, 2, 2, 2],
        176 / 43,
        lambda x1, x2, x3, x4, x5: [x1 + 3 * x2, x3 + x4 - 2 * x5, x2 - x5],
        lower=-10,
        upper=10,
    ),
    componentwise(
        "HS54",
        bell,
        [6e3, 1.5, 4e6, 2, 3e-3, 5e7],
        -exp(-27 / 280),
        lambda x1, x2, x3, x4, x5, x6: [x1 + 4e3 * x2 - 1.76e4],
        lower=[0, -10, 0, 0, -1, 0],
        upper=[2e4, 10, 1e7, 20, 1, 2e8],
    ),
    componentwise(
        "HS55",
        lambda x1, x2, x3, x4, x5, x6: x1 + 2 * x2 + 4 * x5 + torch.exp(x1 * x4),
        [1, 2, 0, 0, 0, 2],
        19 / 3,
        lambda x1, x2, x3, x4, x5, x6: [
            x1 + 2 * x2 + 5 * x5 - 6,
            x1 + x2 + x3 - 3,
            x4 + x5 + x6 - 2,
            x1 + x4 - 1,
            x2 + x5 - 2,
            x3 + x6 - 2,
        ],
        lower=0,
        upper=[1, inf, inf, 1, inf, inf],
        others=[20 / 3],
    ),
    componentwise(
        "HS56",
        lambda x1, x2, x3, x4, x5, x6, x7: -x1 * x2 * x3,
        [1, 1, 1] + [asin(sqrt(1 / 4.2))] * 3 + [asin(sqrt(5 / 7.2))],
        -3.456,
        lambda x1, x2, x3, x4, x5, x6, x7: [
            x1 - 4.2 * x4.sin() ** 2,
            x2 - 4.2 * x5.sin() ** 2,
            x3 - 4.2 * x6.sin() ** 2,
            x1 + 2 * x2 + 2 * x3 - 7.2 * x7.sin() ** 2,
        ],
    ),
    componentwise(
        "HS57",
        chlorine_error,
        [0.42, 5],
        0.02845966972,
        inequality=lambda x1, x2: [0.09 - 0.49 * x2 + x1 * x2],
        lower=[0.4, -4],
    ),
    componentwise(
        "HS58",
        valley,
        [-2, 1],
        (1 + sqrt((sqrt(5) - 1) / 2)) ** 2,  # printed as 3.19033354957, at a point that is not feasible
        inequality=lambda x1, x2: [x1 - x2**2, x2 - x1**2, 1 - x1**2 - x2**2],
        lower=[-2, -inf],
        upper=[0.5, inf],
    ),
    componentwise(
        "HS59",
        yield_surface,
        [90, 10],
        -7.8027894715,  # printed as -7.804226324, at a point that has this value
        inequality=lambda x1, x2: [700 - x1 * x2, x1**2 / 125 - x2, 5 * (x1 - 55) - (x2 - 50) ** 2],
        lower=0,
        upper=[75, 65],
        others=[-6.7495052737],
    ),
    componentwise(
        "HS60",
        lambda x1, x2, x3: (x1 - 1) ** 2 + (x1 - x2) ** 2 + (x2 - x3) ** 4,
        [2, 2, 2],
        0.03256820025,
        lambda x1, x2, x3: [x1 * (1 + x2**2) + x3**4 - 4 - 3 * sqrt(2)],
        lower=-10,
        upper=10,
    ),
]
