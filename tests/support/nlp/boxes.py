"""Smooth functions in a box, from the literature of global optimisation, and two convex ones."""

from __future__ import annotations

from math import pi

import torch
from torch import Tensor

from .hs001_020 import rosenbrock
from .mgh import chebyquad, least_squares, steps
from .programme import Programme, componentwise, numbers

HEIGHTS = numbers([1, 1.2, 3, 3.2])


def hartmann(steepness: list[list[float]], centres: list[list[int]], optimum: float, others=()) -> Programme:
    a, p = numbers(steepness), numbers(centres) / 1e4
    n = a.shape[1]
    return Programme(
        f"Hartmann {n}",
        lambda u: -HEIGHTS @ torch.exp(-(a * (u - p) ** 2).sum(1)),
        [0.5] * n,
        optimum,
        lower=0,
        upper=1,
        others=others,
    )


def branin(x1: Tensor, x2: Tensor) -> Tensor:
    return (x2 - 5.1 / (4 * pi**2) * x1**2 + 5 / pi * x1 - 6) ** 2 + 10 * (1 - 1 / (8 * pi)) * x1.cos() + 10


def camel(x1: Tensor, x2: Tensor) -> Tensor:
    return (4 - 2.1 * x1**2 + x1**4 / 3) * x1**2 + x1 * x2 + 4 * (x2**2 - 1) * x2**2


def goldstein_price(x1: Tensor, x2: Tensor) -> Tensor:
    first = 19 - 14 * x1 + 3 * x1**2 - 14 * x2 + 6 * x1 * x2 + 3 * x2**2
    second = 18 - 32 * x1 + 12 * x1**2 + 48 * x2 - 36 * x1 * x2 + 27 * x2**2
    return (1 + (x1 + x2 + 1) ** 2 * first) * (30 + (2 * x1 - 3 * x2) ** 2 * second)


def obstacle(n: int, optimum: float) -> Programme:
    """A string under its own weight that lies on a bump."""
    bump = 0.1 - 0.8 * (steps(n) / (n + 1) - 0.4) ** 2 * 4

    def energy(u: Tensor) -> Tensor:
        ends = torch.cat([u.new_zeros(1), u, u.new_zeros(1)])
        return (n + 1) / 2 * (ends[1:] - ends[:-1]).square().sum() + u.sum() / (n + 1)

    return Programme(f"obstacle {n}", energy, [0.2] * n, optimum, lower=bump.tolist())


def nonnegative(m: int, n: int, optimum: float) -> Programme:
    matrix = torch.sin(steps(m)[:, None] * steps(n)) + 0.1
    target = torch.cos(2 * steps(m))
    return least_squares("nonnegative least squares", lambda u: matrix @ u - target, [1] * n, optimum, lower=0)


PROBLEMS = [
    Programme("Rosenbrock below 0.8", rosenbrock, [-1.2, 0.8, -1.2, 0.8], 0.50261844161, lower=-2, upper=0.8),
    least_squares("Chebyquad 6 in its interval", chebyquad, [i / 7 for i in range(1, 7)], lower=0, upper=1),
    componentwise("Branin", branin, [2.5, 7.5], 0.3978873577, lower=[-5, 0], upper=[10, 15]),
    componentwise("six-hump camel", camel, [1, 1], -1.031628453, lower=[-3, -2], upper=[3, 2]),
    componentwise("Goldstein and Price", goldstein_price, [0.5, -0.5], 3.0, lower=-2, upper=2),
    hartmann(
        [[3, 10, 30], [0.1, 10, 35], [3, 10, 30], [0.1, 10, 35]],
        [[3689, 1170, 2673], [4699, 4387, 7470], [1091, 8732, 5547], [381, 5743, 8828]],
        -3.8627797873,
        others=[-3.0897641344],
    ),
    hartmann(
        [[10, 3, 17, 3.5, 1.7, 8], [0.05, 10, 17, 0.1, 8, 14], [3, 3.5, 1.7, 10, 17, 8], [17, 8, 0.05, 10, 0.1, 14]],
        [
            [1312, 1696, 5569, 124, 8283, 5886],
            [2329, 4135, 8307, 3736, 1004, 9991],
            [2348, 1451, 3522, 2883, 3047, 6650],
            [4047, 8828, 8732, 5743, 1091, 381],
        ],
        -3.322368011,
    ),
    obstacle(20, 0.063350614483),
    nonnegative(12, 8, 5.4898330435),
]
