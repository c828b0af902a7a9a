"""From Schittkowski, "More Test Examples for Nonlinear Programming Codes" (1987): unlike those of the first book."""
# ruff: noqa: ARG005 - the functions of a problem all have all of its unknowns as arguments

from __future__ import annotations

from math import inf, log, sqrt

import torch
from torch import Tensor

from .hs001_020 import valley
from .mgh import steps
from .programme import Programme, componentwise


def hilbert(number: int, n: int) -> Programme:
    """A linear programme with the matrix of Hilbert; the solution is all ones."""
    matrix = 1 / (steps(n)[:, None] + steps(n) - 1)
    cost = matrix.sum(1)
    return Programme(
        f"S{number}",
        lambda u: cost @ u,
        [0] * n,
        cost.sum().item(),
        inequality=lambda u: [cost - matrix @ u],
        lower=0,
    )


def ellipse(number: int, optimum: float, squared_axis: float) -> Programme:
    """The point of an ellipse that is nearest to (20, -20), from its centre, where the constraint has no gradient."""
    return componentwise(
        f"S{number}",
        lambda x1, x2: (x1 - 20) ** 2 + (x2 + 20) ** 2,
        [0, 0],
        optimum,
        lambda x1, x2: [x1**2 / 100 + x2**2 / squared_axis - 1],
    )


def powers_on_the_sphere(number: int, n: int, optimum: float) -> Programme:
    return Programme(
        f"S{number}",
        lambda u: (steps(n) * (u**2 + u**4)).sum(),
        [2] * n,
        optimum,
        lambda u: [u.square().sum() - 1],
    )


def saturation(x1: Tensor, x2: Tensor, x3: Tensor, x4: Tensor) -> Tensor:
    return 2 - torch.exp(-10 * x1 * torch.exp(-x3)) - torch.exp(-10 * x2 * torch.exp(-x4))


PROBLEMS = [
    componentwise("S215", lambda x1, x2: x2, [1, 1], 0.0, inequality=lambda x1, x2: [x1**2 - x2], lower=[0, -inf]),
    componentwise(
        "S216",
        lambda x1, x2: 100 * (x1**2 - x2) ** 2 + (x1 - 1) ** 2,
        [-1.2, 1],
        0.99937529288,
        lambda x1, x2: [x1 * (x1 - 4) - 2 * x2 + 12],
    ),
    componentwise(
        "S217",
        lambda x1, x2: -x2,
        [10, 10],
        -0.8,
        lambda x1, x2: [x1**2 + x2**2 - 1],
        lambda x1, x2: [2 * x2 - x1 - 1],
        lower=[0, -inf],
    ),
    componentwise(
        "S220",
        lambda x1, x2: x1,
        [25000, 25000],
        1.0,
        lambda x1, x2: [(x1 - 1) ** 3 - x2],
        lower=[1, 0],
        regular=False,
    ),
    componentwise(
        "S221",
        lambda x1, x2: -x1,
        [0.25, 0.25],
        -1.0,
        inequality=lambda x1, x2: [x2 - (1 - x1) ** 3],
        lower=0,
        upper=1,
        regular=False,
    ),
    componentwise(
        "S222",
        lambda x1, x2: -x1,
        [1.3, 0.2],
        -1.5,
        inequality=lambda x1, x2: [(x1 - 1) ** 3 + x2 - 0.125],
        lower=0,
    ),
    componentwise(
        "S223",
        lambda x1, x2: -x1,
        [0.1, 3.3],
        -log(log(10)),
        inequality=lambda x1, x2: [x1.exp().exp() - x2],
        lower=0,
        upper=[10, 10],
    ),
    componentwise(
        "S224",
        lambda x1, x2: 2 * x1**2 + x2**2 - 48 * x1 - 40 * x2,
        [0.1, 0.1],
        -304.0,
        inequality=lambda x1, x2: [-x1 - 3 * x2, x1 + 3 * x2 - 18, -x1 - x2, x1 + x2 - 8],
        lower=0,
        upper=6,
    ),
    componentwise(
        "S226",
        lambda x1, x2: -x1 * x2,
        [0.8, 0.05],
        -0.5,
        inequality=lambda x1, x2: [-(x1**2) - x2**2, x1**2 + x2**2 - 1],
        lower=0,
    ),
    componentwise(
        "S227",
        lambda x1, x2: (x1 - 2) ** 2 + (x2 - 1) ** 2,
        [0.5, 0.5],
        1.0,
        inequality=lambda x1, x2: [x1**2 - x2, x2**2 - x1],
    ),
    componentwise(
        "S228",
        lambda x1, x2: x1**2 + x2,
        [0, 0],
        -3.0,
        inequality=lambda x1, x2: [x1 + x2 - 1, x1**2 + x2**2 - 9],
    ),
    componentwise(
        "S230",
        lambda x1, x2: x2,
        [0, 0],
        0.375,
        inequality=lambda x1, x2: [2 * x1**2 - x1**3 - x2, 2 * (1 - x1) ** 2 - (1 - x1) ** 3 - x2],
    ),
    componentwise("S231", valley, [-1.2, 1], 0.0, inequality=lambda x1, x2: [-x1 / 3 - x2 - 0.1, x1 / 3 - x2 - 0.1]),
    componentwise("S233", valley, [1.2, 1], 0.0, inequality=lambda x1, x2: [0.25 - x1**2 - x2**2]),
    componentwise(
        "S234",
        lambda x1, x2: (x2 - x1) ** 4 - (1 - x1),
        [1, 1],
        -0.8,
        inequality=lambda x1, x2: [x1**2 + x2**2 - 1],
        lower=0.2,
        upper=2,
    ),
    componentwise(
        "S248",
        lambda x1, x2, x3: -x2,
        [-0.1, -1, 0.1],
        -0.8,
        lambda x1, x2, x3: [x1**2 + x2**2 + x3**2 - 1],
        lambda x1, x2, x3: [2 * x2 - x1 - 1],
    ),
    componentwise(
        "S254",
        lambda x1, x2, x3: torch.log10(x3) - x2,
        [1, 1, 1],
        -sqrt(3),
        lambda x1, x2, x3: [x2**2 + x3**2 - 4, x3 - 1 - x1**2],
        lower=[-inf, -inf, 1],
    ),
    componentwise(
        "S265",
        saturation,
        [0, 0, 0, 0],
        0.97474658,
        lambda x1, x2, x3, x4: [x1 + x2 - 1, x3 + x4 - 1],
        lower=0,
        upper=1,
    ),
    hilbert(277, 4),
    hilbert(278, 6),
    componentwise(
        "S315",
        lambda x1, x2: -x2,
        [-0.1, -0.9],
        -0.8,
        inequality=lambda x1, x2: [2 * x2 - x1 - 1, -(x1**2) - x2**2, x1**2 + x2**2 - 1],
    ),
    ellipse(316, (20 * sqrt(2) - 10) ** 2, 100),
    ellipse(317, 372.46661, 64),
    ellipse(318, 412.75005, 36),
    ellipse(320, 485.53146, 4),
    ellipse(322, 499.96001, 0.01),
    componentwise(
        "S323",
        lambda x1, x2: x1**2 + x2**2 - 4 * x1 + 4,
        [0, 1],
        3.7989446,
        inequality=lambda x1, x2: [x2 - x1 - 2, x1**2 - x2 + 1],
        lower=0,
    ),
    componentwise(
        "S325",
        lambda x1, x2: x1**2 + x2,
        [-3, 0],
        3.7913415,
        lambda x1, x2: [x1**2 + x2**2 - 9],
        lambda x1, x2: [x1 + x2 - 1, x1 + x2**2 - 1],
    ),
    componentwise(
        "S326",
        lambda x1, x2: x1**2 + x2**2 - 16 * x1 - 10 * x2,
        [4, 3],
        -79.807821,
        inequality=lambda x1, x2: [x1**2 - 6 * x1 + 4 * x2 - 11, 3 * x2 - x1 * x2 + torch.exp(x1 - 3) - 1],
        lower=0,
        upper=10,
    ),
    componentwise(
        "S336",
        lambda x1, x2, x3: 7 * x1 - 6 * x2 + 4 * x3,
        [0, 0, 0],
        -0.33789573,
        lambda x1, x2, x3: [x1**2 + 2 * x2**2 + 3 * x3**2 - 1, 5 * x1 + 5 * x2 - 3 * x3 - 6],
    ),
    componentwise(
        "S338",
        lambda x1, x2, x3: -(x1**2) - x2**2 - x3**2,
        [0, 0, 0],
        -10.992806,
        lambda x1, x2, x3: [0.5 * x1 + x2 + x3 - 1, x1**2 + 2 / 3 * x2**2 + x3**2 / 4 - 4],
        others=[-7.2056984486],
    ),
    componentwise(
        "S339",
        lambda x1, x2, x3: 0.2 / (x1 * x2 * x3) + 4 / x1 + 3 / x3,
        [1, 1, 1],
        3.3616797,
        inequality=lambda x1, x2, x3: [2 * x1 * x3 + x1 * x2 - 10],
        lower=0,
    ),
    componentwise(
        "S340",
        lambda x1, x2, x3: -x1 * x2 * x3,
        [1, 1, 1],
        -0.054,
        inequality=lambda x1, x2, x3: [x1 + 2 * x2 + 2 * x3 - 1.8],
        lower=0,
        upper=[1, inf, inf],
    ),
    componentwise(
        "S343",
        lambda x1, x2, x3: -2.01e-9 * x1**4 * x2 * x3**2,
        [22.3, 0.5, 125],
        -5.6847825,
        inequality=lambda x1, x2, x3: [x1**2 * x2 - 675, 1e-7 * x1**2 * x3**2 - 0.419],
        lower=0,
        upper=[36, 5, 125],
    ),
    powers_on_the_sphere(394, 20, 1.9166667),
]
