"""Problems 61 to 81 of Hock and Schittkowski, "Test Examples for Nonlinear Programming Codes" (1981).

Problem 67 is defined by an inner iteration and left out.
"""
# ruff: noqa: ARG005 - the functions of a problem all have all of its unknowns as arguments

from __future__ import annotations

from math import sqrt

import torch
from torch import Tensor

from .programme import Programme, componentwise, numbers, readings

# The concentrations that HS70 fits, measured at these times
TIMES = numbers([0.1, *range(1, 19)])
OBSERVED = readings(
    """
    0.00189 0.1038 0.268 0.506 0.577 0.604 0.725 0.898 0.947 0.845 0.702 0.528 0.385 0.257 0.159 0.0869 0.0453
    0.01509 0.00189
    """
)


def normal(z: Tensor) -> Tensor:
    return 0.5 * (1 + torch.erf(z / sqrt(2)))


def inspection(name: str, optimum: float, a: float, b: float, d: float, n: int) -> Programme:
    """The cost of a plan of inspection: HS68 and HS69."""
    return componentwise(
        name,
        lambda x1, x2, x3, x4: (a * n - (b * torch.expm1(x1) - x3) * x4 / (torch.expm1(x1) + x4)) / x1,
        [1, 1, 1, 1],
        optimum,
        lambda x1, x2, x3, x4: [
            x3 - 2 * normal(-x2),
            x4 - normal(-x2 + d * sqrt(n)) - normal(-x2 - d * sqrt(n)),
        ],
        lower=[1e-4, 0, 0, 0],
        upper=[100, 100, 2, 2],
    )


def reservoirs(x1: Tensor, x2: Tensor, x3: Tensor, x4: Tensor) -> Tensor:
    """The error of HS70; one of the four 7.658 is printed as 7.685, and has been 7.685 in all codes since."""
    b = x3 + (1 - x3) * x4

    def share(weight: Tensor, order: Tensor, factor: Tensor, unit: float) -> Tensor:
        powers = order * factor.log() + (order - 1) * (TIMES / unit).log() + order * (1 - factor * TIMES / 7.658)
        return (1 + 1 / (12 * order)) * weight * (order / 6.2832).sqrt() * powers.exp()

    return (share(x3, x2, b, 7.685) + share(1 - x3, x1, b / x4, 7.658) - OBSERVED).square().sum()


def power_flow(name: str, optimum: float, a: float) -> Programme:
    """HS74 and HS75: two generators, three nodes."""
    return componentwise(
        name,
        lambda x1, x2, x3, x4: 3 * x1 + 1e-6 * x1**3 + 2 * x2 + 2e-6 / 3 * x2**3,
        [0, 0, 0, 0],
        optimum,
        lambda x1, x2, x3, x4: [
            1000 * torch.sin(-x3 - 0.25) + 1000 * torch.sin(-x4 - 0.25) + 894.8 - x1,
            1000 * torch.sin(x3 - 0.25) + 1000 * torch.sin(x3 - x4 - 0.25) + 894.8 - x2,
            1000 * torch.sin(x4 - 0.25) + 1000 * torch.sin(x4 - x3 - 0.25) + 1294.8,
        ],
        lambda x1, x2, x3, x4: [x3 - x4 - a, x4 - x3 - a],
        lower=[0, 0, -a, -a],
        upper=[1200, 1200, a, a],
    )


def on_curves(x1: Tensor, x2: Tensor, x3: Tensor, x4: Tensor, x5: Tensor) -> list[Tensor]:
    """The constraints of HS78, HS80 and HS81."""
    return [x1**2 + x2**2 + x3**2 + x4**2 + x5**2 - 10, x2 * x3 - 5 * x4 * x5, x1**3 + x2**3 + 1]


PROBLEMS = [
    componentwise(
        "HS61",
        lambda x1, x2, x3: 4 * x1**2 + 2 * x2**2 + 2 * x3**2 - 33 * x1 + 16 * x2 - 24 * x3,
        [0, 0, 0],
        -143.6461422,
        lambda x1, x2, x3: [3 * x1 - 2 * x2**2 - 7, 4 * x1 - x3**2 - 11],
    ),
    componentwise(
        "HS62",
        lambda x1, x2, x3: (
            -32.174
            * (
                255 * torch.log((x1 + x2 + x3 + 0.03) / (0.09 * x1 + x2 + x3 + 0.03))
                + 280 * torch.log((x2 + x3 + 0.03) / (0.07 * x2 + x3 + 0.03))
                + 290 * torch.log((x3 + 0.03) / (0.13 * x3 + 0.03))
            )
        ),
        [0.7, 0.2, 0.1],
        -26272.51448,
        lambda x1, x2, x3: [x1 + x2 + x3 - 1],
        lower=0,
        upper=1,
    ),
    componentwise(
        "HS63",
        lambda x1, x2, x3: 1000 - x1**2 - 2 * x2**2 - x3**2 - x1 * x2 - x1 * x3,
        [2, 2, 2],
        961.7151721,
        lambda x1, x2, x3: [8 * x1 + 14 * x2 + 7 * x3 - 56, x1**2 + x2**2 + x3**2 - 25],
        lower=0,
    ),
    componentwise(
        "HS64",
        lambda x1, x2, x3: 5 * x1 + 5e4 / x1 + 20 * x2 + 7.2e4 / x2 + 10 * x3 + 1.44e5 / x3,
        [1, 1, 1],
        6299.842428,
        inequality=lambda x1, x2, x3: [4 / x1 + 32 / x2 + 120 / x3 - 1],
        lower=1e-5,
    ),
    componentwise(
        "HS65",
        lambda x1, x2, x3: (x1 - x2) ** 2 + (x1 + x2 - 10) ** 2 / 9 + (x3 - 5) ** 2,
        [-5, 5, 0],
        0.9535288567,
        inequality=lambda x1, x2, x3: [x1**2 + x2**2 + x3**2 - 48],
        lower=[-4.5, -4.5, -5],
        upper=[4.5, 4.5, 5],
    ),
    componentwise(
        "HS66",
        lambda x1, x2, x3: 0.2 * x3 - 0.8 * x1,
        [0, 1.05, 2.9],
        0.5181632741,
        inequality=lambda x1, x2, x3: [x1.exp() - x2, x2.exp() - x3],
        lower=0,
        upper=[100, 100, 10],
    ),
    inspection("HS68", -0.920425026, a=1e-4, b=1, d=1, n=24),
    inspection("HS69", -956.71288, a=0.1, b=1000, d=1, n=4),
    componentwise(
        "HS70",
        reservoirs,
        [2, 4, 0.04, 2],
        0.0089231773,  # printed as 0.007498464, which no point has
        inequality=lambda x1, x2, x3, x4: [-x3 - (1 - x3) * x4],
        lower=1e-5,
        upper=[100, 100, 1, 100],
        others=[0.0094019732],
    ),
    Programme(
        "HS71",
        lambda u: u[0] * u[3] * (u[0] + u[1] + u[2]) + u[2],
        [1, 5, 5, 1],
        17.0140173,
        lambda u: [u.square().sum() - 40],
        lambda u: [25 - u.prod()],
        lower=1,
        upper=5,
    ),
    componentwise(
        "HS72",
        lambda x1, x2, x3, x4: 1 + x1 + x2 + x3 + x4,
        [1, 1, 1, 1],
        727.67937,
        inequality=lambda x1, x2, x3, x4: [
            4 / x1 + 2.25 / x2 + 1 / x3 + 0.25 / x4 - 0.0401,
            0.16 / x1 + 0.36 / x2 + 0.64 / x3 + 0.64 / x4 - 0.010085,
        ],
        lower=0.001,
        upper=[4e5, 3e5, 2e5, 1e5],
    ),
    componentwise(
        "HS73",
        lambda x1, x2, x3, x4: 24.55 * x1 + 26.75 * x2 + 39 * x3 + 40.5 * x4,
        [1, 1, 1, 1],
        29.8943782,
        lambda x1, x2, x3, x4: [x1 + x2 + x3 + x4 - 1],
        lambda x1, x2, x3, x4: [
            5 - 2.3 * x1 - 5.6 * x2 - 11.1 * x3 - 1.3 * x4,
            21
            + 1.645 * torch.sqrt(0.28 * x1**2 + 0.19 * x2**2 + 20.5 * x3**2 + 0.62 * x4**2)
            - 12 * x1
            - 11.9 * x2
            - 41.8 * x3
            - 52.1 * x4,
        ],
        lower=0,
    ),
    power_flow("HS74", 5126.4981, 0.55),
    power_flow("HS75", 5174.4129, 0.48),
    componentwise(
        "HS76",
        lambda x1, x2, x3, x4: x1**2 + 0.5 * x2**2 + x3**2 + 0.5 * x4**2 - x1 * x3 + x3 * x4 - x1 - 3 * x2 + x3 - x4,
        [0.5, 0.5, 0.5, 0.5],
        -4.681818181,
        inequality=lambda x1, x2, x3, x4: [
            x1 + 2 * x2 + x3 + x4 - 5,
            3 * x1 + x2 + 2 * x3 - x4 - 4,
            1.5 - x2 - 4 * x3,
        ],
        lower=0,
    ),
    componentwise(
        "HS77",
        lambda x1, x2, x3, x4, x5: (x1 - 1) ** 2 + (x1 - x2) ** 2 + (x3 - 1) ** 2 + (x4 - 1) ** 4 + (x5 - 1) ** 6,
        [2, 2, 2, 2, 2],
        0.24150513,
        lambda x1, x2, x3, x4, x5: [
            x1**2 * x4 + torch.sin(x4 - x5) - 2 * sqrt(2),
            x2 + x3**4 * x4**2 - 8 - sqrt(2),
        ],
    ),
    componentwise(
        "HS78", lambda x1, x2, x3, x4, x5: x1 * x2 * x3 * x4 * x5, [-2, 1.5, 2, -1, -1], -2.91970041, on_curves
    ),
    componentwise(
        "HS79",
        lambda x1, x2, x3, x4, x5: (x1 - 1) ** 2 + (x1 - x2) ** 2 + (x2 - x3) ** 2 + (x3 - x4) ** 4 + (x4 - x5) ** 4,
        [2, 2, 2, 2, 2],
        0.0787768209,
        lambda x1, x2, x3, x4, x5: [
            x1 + x2**2 + x3**3 - 2 - 3 * sqrt(2),
            x2 - x3**2 + x4 + 2 - 2 * sqrt(2),
            x1 * x5 - 2,
        ],
    ),
    componentwise(
        "HS80",
        lambda x1, x2, x3, x4, x5: torch.exp(x1 * x2 * x3 * x4 * x5),
        [-2, 2, 2, -1, -1],
        0.0539498478,
        on_curves,
        lower=[-2.3, -2.3, -3.2, -3.2, -3.2],
        upper=[2.3, 2.3, 3.2, 3.2, 3.2],
    ),
    componentwise(
        "HS81",
        lambda x1, x2, x3, x4, x5: torch.exp(x1 * x2 * x3 * x4 * x5) - 0.5 * (x1**3 + x2**3 + 1) ** 2,
        [-2, 2, 2, -1, -1],
        0.0539498478,
        on_curves,
        lower=[-2.3, -2.3, -3.2, -3.2, -3.2],
        upper=[2.3, 2.3, 3.2, 3.2, 3.2],
    ),
]
