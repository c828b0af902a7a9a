"""Problems 100 to 109 of Hock and Schittkowski, "Test Examples for Nonlinear Programming Codes" (1981)."""
# ruff: noqa: ARG001, ARG005 - the functions of a problem all have all of its unknowns as arguments

from __future__ import annotations

from math import cos, inf, log, pi, sin

import torch
from torch import Tensor

from .programme import Programme, componentwise, numbers


def monomials(u: Tensor, terms: list[tuple[float, list[float]]]) -> Tensor:
    """The sum of c * u1^a1 * u2^a2 ..., for u > 0."""
    factors, exponents = numbers([c for c, _ in terms]), numbers([a for _, a in terms])
    return factors @ (exponents @ u.log()).exp()


def posynomial_cost(a: float):
    return lambda u: monomials(
        u,
        [
            (10, [1, -1, 0, 2, 0, -3, a]),
            (15, [-1, -2, 1, 1, -1, 0, -0.5]),
            (20, [-2, 1, 0, -1, -2, 1, 0]),
            (25, [2, 2, -1, 0, 0.5, -2, 1]),
        ],
    )


POSYNOMIALS = [
    [
        (0.5, [0.5, 0, -1, 0, 0, -2, 1]),
        (0.7, [3, 1, -2, 0, 0, 1, 0.5]),
        (0.2, [0, -1, 1, -0.5, 0, 2 / 3, 0.25]),
    ],
    [
        (1.3, [-0.5, 1, -1, 0, -1, 1, 0]),
        (0.8, [0, 0, 1, -1, -1, 2, 0]),
        (3.1, [-1, 0.5, 0, -2, -1, 1 / 3, 0]),
    ],
    [
        (2, [1, 0, -1.5, 0, 1, -1, 1 / 3]),
        (0.1, [0, 1, -0.5, 0, 1, -1, -0.5]),
        (1, [-1, 1, 0.5, 0, 1, 0, 0]),
        (0.65, [0, -2, 1, 0, 1, -1, 1]),
    ],
    [
        (0.2, [-2, 1, 0, -1, 0.5, 0, 1 / 3]),
        (0.3, [0.5, 2, 1, 1 / 3, -2 / 3, 0, 0.25]),
        (0.4, [-3, -2, 1, 0, 1, 0, 0.75]),
        (0.5, [0, 0, -2, 1, 0, 0, 0.5]),
    ],
]


def posynomial(name: str, optimum: float, a: float) -> Programme:
    cost = posynomial_cost(a)
    return Programme(
        name,
        cost,
        [6] * 7,
        optimum,
        inequality=lambda u: [*(monomials(u, row) - 1 for row in POSYNOMIALS), 100 - cost(u), cost(u) - 3000],
        lower=[0.1] * 6 + [0.01],
        upper=10,
    )


def reactors(x1, x2, x3, x4, x5, x6, x7, x8):
    return 0.4 * (x1 / x7) ** 0.67 + 0.4 * (x2 / x8) ** 0.67 + 10 - x1 - x2


def reactor_limits(x1, x2, x3, x4, x5, x6, x7, x8):
    cost = reactors(x1, x2, x3, x4, x5, x6, x7, x8)
    return [
        0.0588 * x5 * x7 + 0.1 * x1 - 1,
        0.0588 * x6 * x8 + 0.1 * x1 + 0.1 * x2 - 1,
        4 * x3 / x5 + 2 * x3**-0.71 / x5 + 0.0588 * x3**-1.3 * x7 - 1,
        4 * x4 / x6 + 2 * x4**-0.71 / x6 + 0.0588 * x4**-1.3 * x8 - 1,
        0.1 - cost,
        cost - 4.2,
    ]


# HS105: how many of 235 blood pressures there are of each value
PRESSURES = numbers([95, 105, *range(110, 225, 5), *range(230, 255, 5)])
COUNTS = numbers([1, 1, 4, 4, 15, 15, 15, 13, 21, 12, 17, 4, 20, 8, 17, 8, 6, 6, 7, 4, 3, 3, 8, 1, 6, 5, 1, 7, 1, 2])


def mixture(x1, x2, x3, x4, x5, x6, x7, x8):
    """Minus the log-likelihood of a mixture of three normal distributions."""
    parts = [(x1, x3, x6), (x2, x4, x7), (1 - x1 - x2, x5, x8)]
    densities = [share / width * torch.exp(-((PRESSURES - mean) ** 2) / (2 * width**2)) for share, mean, width in parts]
    return -(COUNTS @ torch.log(sum(densities)) - 235 * log(2 * pi) / 2)


SCALE = 48.4 / 50.176
C, D = SCALE * sin(0.25), SCALE * cos(0.25)


def scheduling(x1, x2, x3, x4, x5, x6, x7, x8, x9):
    """The power balances of HS107."""
    s8, c8, s9, c9, s89, c89 = x8.sin(), x8.cos(), x9.sin(), x9.cos(), (x8 - x9).sin(), (x8 - x9).cos()
    return [
        0.4 - x1 + 2 * C * x5**2 + x5 * x6 * (D * s8 - C * c8) + x5 * x7 * (D * s9 - C * c9),
        0.4 - x2 + 2 * C * x6**2 - x5 * x6 * (D * s8 + C * c8) - x6 * x7 * (D * s89 + C * c89),
        0.8 + 2 * C * x7**2 - x5 * x7 * (D * s9 + C * c9) + x6 * x7 * (D * s89 - C * c89),
        0.2 - x3 + 2 * D * x5**2 - x5 * x6 * (C * s8 + D * c8) - x5 * x7 * (C * s9 + D * c9),
        0.2 - x4 + 2 * D * x6**2 + x5 * x6 * (C * s8 - D * c8) + x6 * x7 * (C * s89 - D * c89),
        -0.337 + 2 * D * x7**2 + x5 * x7 * (C * s9 - D * c9) - x6 * x7 * (C * s89 + D * c89),
    ]


def hexagon(x1, x2, x3, x4, x5, x6, x7, x8, x9):
    return [
        x3**2 + x4**2 - 1,
        x5**2 + x6**2 - 1,
        x9**2 - 1,
        x1**2 + (x2 - x9) ** 2 - 1,
        (x1 - x5) ** 2 + (x2 - x6) ** 2 - 1,
        (x1 - x7) ** 2 + (x2 - x8) ** 2 - 1,
        (x3 - x5) ** 2 + (x4 - x6) ** 2 - 1,
        (x3 - x7) ** 2 + (x4 - x8) ** 2 - 1,
        x7**2 + (x8 - x9) ** 2 - 1,
        x2 * x3 - x1 * x4,
        -x3 * x9,
        x5 * x9,
        x6 * x7 - x5 * x8,
    ]


LOAD, SINE, COSINE = 50.176, sin(0.25), cos(0.25)


def voltages(x1, x2, x3, x4, x5, x6, x7, x8, x9):
    """The power balances of HS109, in megawatts."""
    shunt = 0.7533e-3 * LOAD - 2 * COSINE
    rows = [
        x5 * x6 * torch.sin(-x3 - 0.25) + x5 * x7 * torch.sin(-x4 - 0.25) + 2 * SINE * x5**2 + (400 - x1) * LOAD,
        x5 * x6 * torch.sin(x3 - 0.25) + x6 * x7 * torch.sin(x3 - x4 - 0.25) + 2 * SINE * x6**2 + (400 - x2) * LOAD,
        x5 * x7 * torch.sin(x4 - 0.25) + x6 * x7 * torch.sin(x4 - x3 - 0.25) + 2 * SINE * x7**2 + 881.779 * LOAD,
        x5 * x6 * torch.cos(-x3 - 0.25) + x5 * x7 * torch.cos(-x4 - 0.25) + shunt * x5**2 + (x8 - 200) * LOAD,
        x5 * x6 * torch.cos(x3 - 0.25) + x6 * x7 * torch.cos(x3 - x4 - 0.25) + shunt * x6**2 + (x9 - 200) * LOAD,
        x5 * x7 * torch.cos(x4 - 0.25) + x6 * x7 * torch.cos(x4 - x3 - 0.25) + shunt * x7**2 + 22.938 * LOAD,
    ]
    return [row / LOAD for row in rows]


PROBLEMS = [
    componentwise(
        "HS100",
        lambda x1, x2, x3, x4, x5, x6, x7: (
            (x1 - 10) ** 2 + 5 * (x2 - 12) ** 2 + x3**4 + 3 * (x4 - 11) ** 2 + 10 * x5**6 + 7 * x6**2 + x7**4
            - 4 * x6 * x7 - 10 * x6 - 8 * x7
        ),
        [1, 2, 0, 4, 0, 1, 1],
        680.6300573,
        inequality=lambda x1, x2, x3, x4, x5, x6, x7: [
            2 * x1**2 + 3 * x2**4 + x3 + 4 * x4**2 + 5 * x5 - 127,
            7 * x1 + 3 * x2 + 10 * x3**2 + x4 - x5 - 282,
            23 * x1 + x2**2 + 6 * x6**2 - 8 * x7 - 196,
            4 * x1**2 + x2**2 - 3 * x1 * x2 + 2 * x3**2 + 5 * x6 - 11 * x7,
        ],
    ),
    posynomial("HS101", 1809.76476, -0.25),
    posynomial("HS102", 911.880571, 0.125),
    posynomial("HS103", 543.667958, 0.5),
    componentwise(
        "HS104", reactors, [6, 3, 0.4, 0.2, 6, 6, 1, 0.5], 3.9511634396, inequality=reactor_limits, lower=0.1, upper=10
    ),
    componentwise(
        "HS105",
        mixture,
        [0.1, 0.2, 100, 125, 175, 11.2, 13.2, 15.8],
        1136.3073036,  # printed as 1138.416240
        inequality=lambda x1, x2, *_: [x1 + x2 - 1],
        lower=[0.001, 0.001, 100, 130, 170, 5, 5, 5],
        upper=[0.499, 0.449, 180, 210, 240, 25, 25, 25],
        others=[1136.360984],
    ),
    componentwise(
        "HS106",
        lambda x1, x2, x3, *_: x1 + x2 + x3,
        [5000, 5000, 5000, 200, 350, 150, 225, 425],
        7049.2480205,  # printed as 7049.330923
        inequality=lambda x1, x2, x3, x4, x5, x6, x7, x8: [
            0.0025 * (x4 + x6) - 1,
            0.0025 * (x5 + x7 - x4) - 1,
            0.01 * (x8 - x5) - 1,
            833.33252 * x4 + 100 * x1 - x1 * x6 - 83333.333,
            1250 * x5 + x2 * x4 - x2 * x7 - 1250 * x4,
            1250000 + x3 * x5 - x3 * x8 - 2500 * x5,
        ],
        lower=[100, 1000, 1000, 10, 10, 10, 10, 10],
        upper=[10000, 10000, 10000, 1000, 1000, 1000, 1000, 1000],
    ),
    componentwise(
        "HS107",
        lambda x1, x2, *_: 3000 * x1 + 1000 * x1**3 + 2000 * x2 + 666.667 * x2**3,
        [0.8, 0.8, 0.2, 0.2, 1.0454, 1.0454, 1.0454, 0, 0],
        5055.011803,
        scheduling,
        lower=[0, 0, -inf, -inf, 0.90909, 0.90909, 0.90909, -inf, -inf],
        upper=[inf, inf, inf, inf, 1.0909, 1.0909, 1.0909, inf, inf],
    ),
    componentwise(
        "HS108",
        lambda x1, x2, x3, x4, x5, x6, x7, x8, x9: (
            -0.5 * (x1 * x4 - x2 * x3 + x3 * x9 - x5 * x9 + x5 * x8 - x6 * x7)
        ),
        [1] * 9,
        -0.8660254038,
        inequality=hexagon,
        lower=[-inf] * 8 + [0],
        others=[-0.67498144293],
    ),
    componentwise(
        "HS109",
        lambda x1, x2, *_: 3 * x1 + 1e-6 * x1**3 + 2 * x2 + 0.522074e-6 * x2**3,
        [0] * 9,
        5326.8513301,  # printed as 5362.06928
        voltages,
        lambda x1, x2, x3, x4, x5, x6, x7, x8, x9: [
            x3 - x4 - 0.55,
            x4 - x3 - 0.55,
            (x1**2 + x8**2) / 1500 - 1500,
            (x2**2 + x9**2) / 1500 - 1500,
        ],
        lower=[0, 0, -0.55, -0.55, 196, 196, 196, -400, -400],
        upper=[inf, inf, 0.55, 0.55, 252, 252, 252, 800, 800],
    ),
]  # fmt: skip
