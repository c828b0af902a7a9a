"""Problems 83 to 99 of Hock and Schittkowski, "Test Examples for Nonlinear Programming Codes" (1981).

There is no problem 82 or 94; 85 is a long simulation and 87 has jumps: both are left out.
"""
# ruff: noqa: ARG001, ARG005 - the functions of a problem all have all of its unknowns as arguments

from __future__ import annotations

from collections.abc import Sequence
from math import pi, tan

import torch
from scipy.optimize import brentq
from torch import Tensor

from .programme import Programme, componentwise, numbers

# HS84: the coefficients of 1, x2, x3, x4, x5 in the gain and in three resources, all times x1
GAIN = numbers([-8720288.849, 150512.5253, -156.6950325, 476470.3222, 729482.8271])
RESOURCES = numbers(
    [
        [-145421.402, 2931.1506, -40.427932, 5106.192, 15711.36],
        [-155011.1084, 4360.53352, 12.9492344, 10236.884, 13176.786],
        [-326669.5104, 7390.68412, -27.8986976, 16643.076, 30988.146],
    ]
)
LIMITS = numbers([294e3, 294e3, 277.2e3])

# HS86 and its dual HS117, the first problem of Colville
SHELL_LINEAR = numbers([-15, -27, -36, -18, -12])
SHELL_CUBIC = numbers([4, 8, 10, 6, 2])
SHELL_QUADRATIC = numbers(
    [
        [30, -20, -10, 32, -10],
        [-20, 39, -6, -31, 32],
        [-10, -6, 10, -6, -10],
        [32, -31, -6, 39, -20],
        [-10, 32, -10, -20, 30],
    ]
)
SHELL_ROWS = numbers(
    [
        [-16, 2, 0, 1, 0],
        [0, -2, 0, 4, 2],
        [-3.5, 0, 2, 0, 0],
        [0, -2, 0, -4, -1],
        [0, -9, -2, 1, -2.8],
        [2, 0, -4, 0, 0],
        [-1, -1, -1, -1, -1],
        [-1, -2, -3, -2, -1],
        [1, 2, 3, 4, 5],
        [1, 1, 1, 1, 1],
    ]
)
SHELL_SIDES = numbers([-40, -2, -0.25, -4, -4, -1, -40, -60, 5, 1])

# HS99: thrust and the ends of the phases of a flight
THRUST = [50, 50, 75, 75, 75, 100, 100]
PHASES = [25, 25, 50, 50, 50, 90, 90]
GRAVITY = 32


def affine_in_mix(coefficients: Tensor, u: Tensor) -> Tensor:
    return u[0] * (coefficients[..., 0] + coefficients[..., 1:] @ u[1:])


def colville_3(x1: Tensor, x2: Tensor, x3: Tensor, x4: Tensor, x5: Tensor) -> list[Tensor]:
    first = 85.334407 + 0.0056858 * x2 * x5 + 0.0006262 * x1 * x4 - 0.0022053 * x3 * x5
    second = 80.51249 + 0.0071317 * x2 * x5 + 0.0029955 * x1 * x2 + 0.0021813 * x3**2
    third = 9.300961 + 0.0047026 * x3 * x5 + 0.0012547 * x1 * x3 + 0.0019085 * x3 * x4
    return [-first, first - 92, 90 - second, second - 110, 20 - third, third - 25]


# HS88 to HS92: the first roots of z tan(z) = 1, those of a heat equation with radiation
ROOTS = numbers([brentq(lambda z: z * tan(z) - 1, j * pi, j * pi + pi / 2 - 1e-9) for j in range(30)])
WEIGHTS = 2 * ROOTS.sin() / (ROOTS + ROOTS.sin() * ROOTS.cos())


def overlap() -> Tensor:
    """The integrals over [0, 1] of cos(ROOTS_i s) cos(ROOTS_j s)."""
    total, apart = ROOTS[:, None] + ROOTS, ROOTS[:, None] - ROOTS
    return 0.5 * (total.sin() / total + torch.sinc(apart / pi))


OVERLAP = overlap()
SLOPE = 2 * (ROOTS.sin() - ROOTS * ROOTS.cos()) / ROOTS**3  # the integrals of (1 - s^2) cos(ROOTS s)


def heating_error(u: Tensor) -> Tensor:
    """The squared distance of the final temperatures from (1 - s^2) / 2, when the heat is switched at times u^2."""
    switches = u.square().flip(0).cumsum(0).flip(0)
    signs = numbers([1.0] + [2.0 * (-1) ** i for i in range(1, len(u))])
    final = (signs[:, None] * torch.exp(-switches[:, None] * ROOTS**2)).sum(0) + (-1) ** len(u)
    modes = -WEIGHTS * final
    return modes @ OVERLAP @ modes - modes @ SLOPE + 2 / 15


def heating(name: str, start: list[float]) -> Programme:
    return Programme(
        name, lambda u: u.square().sum(), start, 1.36265681, inequality=lambda u: [heating_error(u) - 1e-4]
    )


def transformer(x1: Tensor, x2: Tensor, x3: Tensor, x4: Tensor, x5: Tensor, x6: Tensor) -> tuple[Tensor, Tensor]:
    return x1 * x4 * (x1 + x2 + x3), x2 * x3 * (x1 + 1.57 * x2 + x4)


def transformer_cost(*x: Tensor) -> Tensor:
    core, winding = transformer(*x)
    return 0.0204 * core + 0.0187 * winding + 0.0607 * core * x[4] ** 2 + 0.0437 * winding * x[5] ** 2


def transformer_limits(*x: Tensor) -> list[Tensor]:
    core, winding = transformer(*x)
    return [
        2.07 - 0.001 * torch.stack(x).prod(),
        0.00062 * core * x[4] ** 2 + 0.00058 * winding * x[5] ** 2 - 1,
    ]


def separation(x1: Tensor, x2: Tensor, x3: Tensor, x4: Tensor, x5: Tensor, x6: Tensor) -> list[Tensor]:
    return [
        17.1 * x1 + 38.2 * x2 + 204.2 * x3 + 212.3 * x4 + 623.4 * x5 + 1495.5 * x6
        - 169 * x1 * x3 - 3580 * x3 * x5 - 3810 * x4 * x5 - 18500 * x4 * x6 - 24300 * x5 * x6,
        17.9 * x1 + 36.8 * x2 + 113.9 * x3 + 169.7 * x4 + 337.8 * x5 + 1385.2 * x6
        - 139 * x1 * x3 - 2450 * x4 * x5 - 16600 * x4 * x6 - 17200 * x5 * x6,
        -273 * x2 - 70 * x4 - 819 * x5 + 26000 * x4 * x5,
        159.9 * x1 - 311 * x2 + 587 * x4 + 391 * x5 + 2198 * x6 - 14000 * x1 * x6,
    ]  # fmt: skip


def separating(name: str, optimum: float, needed: list[float], others: Sequence[float] = ()) -> Programme:
    return componentwise(
        name,
        lambda x1, x2, x3, x4, x5, x6: 4.3 * x1 + 31.8 * x2 + 63.3 * x3 + 15.8 * x4 + 68.5 * x5 + 4.7 * x6,
        [0, 0, 0, 0, 0, 0],
        optimum,
        inequality=lambda *x: [need - row for need, row in zip(needed, separation(*x), strict=True)],
        lower=0,
        upper=[0.31, 0.046, 0.068, 0.042, 0.028, 0.0134],
        others=others,
    )


def flight(u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Distance, height and climb at the end of HS99."""
    distance, height, climb = 0 * u[0], 0 * u[0], 0 * u[0]
    for angle, thrust, phase in zip(u, THRUST, PHASES, strict=True):
        acceleration = thrust * angle.sin() - GRAVITY
        height = height + climb * phase + acceleration * phase**2 / 2
        climb = climb + acceleration * phase
        distance = distance + thrust * phase * angle.cos()
    return distance, height, climb


PROBLEMS = [
    componentwise(
        "HS83",
        lambda x1, x2, x3, x4, x5: 5.3578547 * x3**2 + 0.8356891 * x1 * x5 + 37.293239 * x1 - 40792.141,
        [78, 33, 27, 27, 27],
        -30665.53867,
        inequality=colville_3,
        lower=[78, 33, 27, 27, 27],
        upper=[102, 45, 45, 45, 45],
    ),
    Programme(
        "HS84",
        lambda u: 24345 - affine_in_mix(GAIN, u),
        [2.52, 2, 37.5, 9.25, 6.8],
        -5280335.133,
        inequality=lambda u: [-affine_in_mix(RESOURCES, u), affine_in_mix(RESOURCES, u) - LIMITS],
        lower=[0, 1.2, 20, 9, 6.5],
        upper=[1000, 2.4, 60, 9.3, 7],
    ),
    Programme(
        "HS86",
        lambda u: SHELL_LINEAR @ u + u @ SHELL_QUADRATIC @ u + SHELL_CUBIC @ u**3,
        [0, 0, 0, 0, 1],
        -32.34867897,
        inequality=lambda u: [SHELL_SIDES - SHELL_ROWS @ u],
        lower=0,
    ),
    heating("HS88", [0.5, -0.5]),
    heating("HS89", [0.5, -0.5, 0.5]),
    heating("HS90", [0.5, -0.5, 0.5, -0.5]),
    heating("HS91", [0.5, -0.5, 0.5, -0.5, 0.5]),
    heating("HS92", [0.5, -0.5, 0.5, -0.5, 0.5, -0.5]),
    componentwise(
        "HS93",
        transformer_cost,
        [5.54, 4.4, 12.02, 11.82, 0.702, 0.852],
        135.075961,
        inequality=transformer_limits,
        lower=0,
    ),
    separating("HS95", 0.015619514, [4.97, -1.88, -29.08, -78.02]),
    separating("HS96", 0.015619514, [4.97, -1.88, -69.08, -118.02]),
    separating("HS97", 3.1358091, [32.97, 25.12, -29.08, -78.02], [4.0712463565]),
    separating("HS98", 3.1358091, [32.97, 25.12, -124.08, -173.02], [4.0712463565]),
    Programme(
        "HS99",
        lambda u: -flight(u)[0] ** 2,
        [0.5] * 7,
        -831079892,
        lambda u: [flight(u)[1] - 1e5, flight(u)[2] - 1e3],
        lower=0,
        upper=1.58,
    ),
]  # fmt: skip
