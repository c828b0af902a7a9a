"""Problems 110 to 119 of Hock and Schittkowski, "Test Examples for Nonlinear Programming Codes" (1981).

There is no problem 115.
"""
# ruff: noqa: ARG001, ARG005 - the functions of a problem all have all of its unknowns as arguments

from __future__ import annotations

import torch
from torch import Tensor

from .hs083_099 import SHELL_CUBIC, SHELL_LINEAR, SHELL_QUADRATIC, SHELL_ROWS, SHELL_SIDES
from .programme import Programme, componentwise, numbers

# HS111 and HS112: free energies of the ten compounds, and how many atoms of each element each has
FREE_ENERGIES = numbers([-6.089, -17.164, -34.054, -5.914, -24.721, -14.986, -24.1, -10.708, -26.662, -22.179])
ATOMS = numbers([[1, 2, 2, 0, 0, 1, 0, 0, 0, 1], [0, 0, 0, 1, 2, 1, 1, 0, 0, 0], [0, 0, 1, 0, 0, 0, 1, 1, 2, 1]])
AMOUNTS = numbers([2, 1, 1])


def free_energy(amounts: Tensor) -> Tensor:
    return amounts @ (FREE_ENERGIES + torch.log(amounts / amounts.sum()))


def alkylation(x1, x2, x3, x4, x5, x6, x7, x8, x9, x10):
    a, b = 0.99, 0.9
    octane = 35.82 - 0.222 * x10
    performance = 3 * x7 - 133
    yielded = 1.12 * x1 + 0.13167 * x1 * x8 - 0.00667 * x1 * x8**2
    quality = 57.425 + 1.098 * x8 - 0.038 * x8**2 + 0.325 * x6
    pairs = [(octane, x9, b), (performance, x10, a), (yielded, x4, a), (quality, x7, a)]
    return [row for value, x, share in pairs for row in (share * x - value, value - x / share)]


def membrane(x1, x2, x3, x4, x5, x6, x7, x8, x9, x10, x11, x12, x13):
    a, b, c = 0.002, 1.262626, 1.231059

    def permeation(x, y):
        return 0.03475 * x + 0.975 * x * y - 0.00975 * x**2 - y

    return [
        x2 - x3,
        x1 - x2,
        a * x7 - a * x8 - 1,
        50 - x11 - x12 - x13,
        x11 + x12 + x13 - 250,
        b * x10 - c * x3 * x10 - x13,
        b * x9 - c * x2 * x9 - x12,
        b * x8 - c * x1 * x8 - x11,
        permeation(x2, x5),
        permeation(x3, x6),
        permeation(x1, x4),
        x1 * x8 + x4 * x7 - x4 * x8 - x5 * x7,
        a * (x2 * x9 + x5 * x8 - x1 * x8 - x6 * x9) + x5 + x6 - 1,
        x3 * x10 + x6 * x9 + 500 * x2 - 500 * x6 - x2 * x9 - x2 * x10,
        a * (x2 * x10 - x3 * x10) + 0.9 - x2,
    ]


def shell_dual(u: Tensor) -> Tensor:
    v, w = u[:10], u[10:]
    return -SHELL_SIDES @ v + w @ SHELL_QUADRATIC @ w + 2 * SHELL_CUBIC @ w**3


def shell_dual_rows(u: Tensor) -> list[Tensor]:
    v, w = u[:10], u[10:]
    return [v @ SHELL_ROWS - 2 * SHELL_QUADRATIC @ w - 3 * SHELL_CUBIC * w**2 - SHELL_LINEAR]


# HS118: three plants over five periods
COSTS, SQUARES = numbers([2.3, 1.7, 2.2] * 5), numbers([1e-4, 1e-4, 1.5e-4] * 5)
DEMANDS = numbers([60, 50, 70, 85, 100])


def ramps(u: Tensor) -> list[Tensor]:
    change = u[3:] - u[:-3]
    return [-7 - change, change - numbers([6, 7, 6] * 4), DEMANDS - u.view(5, 3).sum(1)]


# HS119: which pairs interact, and the eight balances
PAIRS = {
    1: [1, 4, 7, 8, 16], 2: [2, 3, 7, 10], 3: [3, 7, 9, 10, 14], 4: [4, 7, 11, 15], 5: [5, 6, 10, 12, 16],
    6: [6, 8, 15], 7: [7, 11, 13], 8: [8, 10, 15], 9: [9, 12, 16], 10: [10, 14], 11: [11, 13], 12: [12, 14],
    13: [13, 14], 14: [14], 15: [15], 16: [16],
}  # fmt: skip
FIRST = torch.tensor([i - 1 for i, partners in PAIRS.items() for _ in partners])
SECOND = torch.tensor([j - 1 for partners in PAIRS.values() for j in partners])
BALANCES = torch.cat(
    [
        numbers(
            [
                [0.22, 0.20, 0.19, 0.25, 0.15, 0.11, 0.12, 0.13],
                [-1.46, 0, -1.30, 1.82, -1.15, 0, 0.80, 0],
                [1.29, -0.89, 0, 0, -1.16, -0.96, 0, -0.49],
                [-1.10, -1.06, 0.95, -0.54, 0, -1.78, -0.41, 0],
                [0, 0, 0, -1.43, 1.51, 0.59, -0.33, -0.43],
                [0, -1.72, -0.33, 0, 1.62, 1.24, 0.21, -0.26],
                [1.12, 0, 0, 0.31, 0, 0, 1.12, 0],
                [0, 0.45, 0.26, -1.10, 0.58, 0, -1.03, 0.10],
            ]
        ),
        torch.eye(8, dtype=torch.float64),
    ],
    1,
)
BALANCES[6, 8] = -0.36
TOTALS = numbers([2.5, 1.1, -3.1, -3.5, 1.3, 2.1, 2.3, -1.5])


def interactions(u: Tensor) -> Tensor:
    squares = u**2 + u + 1
    return (squares[FIRST] * squares[SECOND]).sum()


PROBLEMS = [
    Programme(
        "HS110",
        lambda u: ((u - 2).log() ** 2 + (10 - u).log() ** 2).sum() - u.prod() ** 0.2,
        [9] * 10,
        -45.77846971,
        lower=2.001,
        upper=9.999,
    ),
    Programme(
        "HS111",
        lambda u: free_energy(u.exp()),
        [-2.3] * 10,
        -47.76109026,
        lambda u: [ATOMS @ u.exp() - AMOUNTS],
        lower=-100,
        upper=100,
    ),
    Programme("HS112", free_energy, [0.1] * 10, -47.76109026, lambda u: [ATOMS @ u - AMOUNTS], lower=1e-6),
    componentwise(
        "HS113",
        lambda x1, x2, x3, x4, x5, x6, x7, x8, x9, x10: (
            x1**2 + x2**2 + x1 * x2 - 14 * x1 - 16 * x2 + (x3 - 10) ** 2 + 4 * (x4 - 5) ** 2 + (x5 - 3) ** 2
            + 2 * (x6 - 1) ** 2 + 5 * x7**2 + 7 * (x8 - 11) ** 2 + 2 * (x9 - 10) ** 2 + (x10 - 7) ** 2 + 45
        ),
        [2, 3, 5, 5, 1, 2, 7, 3, 6, 10],
        24.3062091,
        inequality=lambda x1, x2, x3, x4, x5, x6, x7, x8, x9, x10: [
            4 * x1 + 5 * x2 - 3 * x7 + 9 * x8 - 105,
            10 * x1 - 8 * x2 - 17 * x7 + 2 * x8,
            -8 * x1 + 2 * x2 + 5 * x9 - 2 * x10 - 12,
            3 * (x1 - 2) ** 2 + 4 * (x2 - 3) ** 2 + 2 * x3**2 - 7 * x4 - 120,
            5 * x1**2 + 8 * x2 + (x3 - 6) ** 2 - 2 * x4 - 40,
            0.5 * (x1 - 8) ** 2 + 2 * (x2 - 4) ** 2 + 3 * x5**2 - x6 - 30,
            x1**2 + 2 * (x2 - 2) ** 2 - 2 * x1 * x2 + 14 * x5 - 6 * x6,
            -3 * x1 + 6 * x2 + 12 * (x9 - 8) ** 2 - 7 * x10,
        ],
    ),
    componentwise(
        "HS114",
        lambda x1, x2, x3, x4, x5, x6, x7, x8, x9, x10: (
            5.04 * x1 + 0.035 * x2 + 10 * x3 + 3.36 * x5 - 0.063 * x4 * x7
        ),
        [1745, 12000, 110, 3048, 1974, 89.2, 92.8, 8, 3.6, 145],
        -1768.80696,
        lambda x1, x2, x3, x4, x5, x6, x7, x8, x9, x10: [
            1.22 * x4 - x1 - x5,
            98000 * x3 / (x4 * x9 + 1000 * x3) - x6,
            (x2 + x5) / x1 - x8,
        ],
        alkylation,
        lower=[1e-5, 1e-5, 1e-5, 1e-5, 1e-5, 85, 90, 3, 1.2, 145],
        upper=[2000, 16000, 120, 5000, 2000, 93, 95, 12, 4, 162],
    ),
    componentwise(
        "HS116",
        lambda *x: x[10] + x[11] + x[12],
        [0.5, 0.8, 0.9, 0.1, 0.14, 0.5, 489, 80, 650, 450, 150, 150, 150],
        97.587509559,  # printed as 97.588409
        inequality=membrane,
        lower=[0.1, 0.1, 0.1, 1e-4, 0.1, 0.1, 0.1, 0.1, 500, 0.1, 1, 1, 1e-4],
        upper=[1, 1, 1, 0.1, 0.9, 0.9, 1000, 1000, 1000, 500, 150, 150, 150],
    ),
    Programme(
        "HS117", shell_dual, [0.001] * 6 + [60] + [0.001] * 8, 32.34867897, inequality=shell_dual_rows, lower=0
    ),
    Programme(
        "HS118",
        lambda u: COSTS @ u + SQUARES @ u**2,
        [20, 55, 15] + [20, 60, 20] * 4,
        664.82045,
        inequality=ramps,
        lower=[8, 43, 3] + [0] * 12,
        upper=[21, 57, 16] + [90, 120, 60] * 4,
    ),
    Programme("HS119", interactions, [10] * 16, 244.899698, lambda u: [BALANCES @ u - TOTALS], lower=0, upper=5),
]  # fmt: skip
