"""Problems of engineering design and of global optimisation with optima known from many publications.

Those named G are from the collection of the CEC 2006 competition on constrained optimisation (Liang and others, 2006);
they have no published start.
"""
# ruff: noqa: ARG005 - the functions of a problem all have all of its unknowns as arguments

from __future__ import annotations

from math import cos, pi, sin, sqrt

import torch
from torch import Tensor

from .programme import Programme, componentwise


def spring(x1, x2, x3):
    return [
        1 - x2**3 * x3 / (71785 * x1**4),
        (4 * x2**2 - x1 * x2) / (12566 * (x2 * x1**3 - x1**4)) + 1 / (5108 * x1**2) - 1,
        1 - 140.45 * x1 / (x2**2 * x3),
        (x1 + x2) / 1.5 - 1,
    ]


def welded_beam(x1, x2, x3, x4):
    """A beam of length 14 under a load of 6000, in inches and pounds; each row in units of its limit."""
    load, length, young, shear = 6000, 14, 30e6, 12e6
    squares = ((x1 + x3) / 2) ** 2
    radius = (x2**2 / 4 + squares).sqrt()
    primary = load / (sqrt(2) * x1 * x2)
    secondary = load * (length + x2 / 2) * radius / (2 * sqrt(2) * x1 * x2 * (x2**2 / 12 + squares))
    stress = (primary**2 + primary * secondary * x2 / radius + secondary**2).sqrt()
    buckling = 4.013 * young * x3 * x4**3 / (6 * length**2) * (1 - x3 / (2 * length) * sqrt(young / (4 * shear)))
    return [
        stress / 13600 - 1,
        6 * load * length / (x4 * x3**2) / 30000 - 1,
        x1 - x4,
        (0.10471 * x1**2 + 0.04811 * x3 * x4 * (14 + x2)) / 5 - 1,
        4 * load * length**3 / (young * x3**3 * x4) / 0.25 - 1,
        1 - buckling / load,
    ]


def speed_reducer(x1, x2, x3, x4, x5, x6, x7):
    return [
        27 / (x1 * x2**2 * x3) - 1,
        397.5 / (x1 * x2**2 * x3**2) - 1,
        1.93 * x4**3 / (x2 * x3 * x6**4) - 1,
        1.93 * x5**3 / (x2 * x3 * x7**4) - 1,
        ((745 * x4 / (x2 * x3)) ** 2 + 16.9e6).sqrt() / (110 * x6**3) - 1,
        ((745 * x5 / (x2 * x3)) ** 2 + 157.5e6).sqrt() / (85 * x7**3) - 1,
        x2 * x3 / 40 - 1,
        5 * x2 / x1 - 1,
        x1 / (12 * x2) - 1,
        (1.5 * x6 + 1.9) / x4 - 1,
        (1.1 * x7 + 1.9) / x5 - 1,
    ]


def g1_rows(u: Tensor) -> list[Tensor]:
    x, y, z = u[:4], u[4:9], u[9:12]
    return [
        2 * x[0] + 2 * x[1] + z[0] + z[1] - 10,
        2 * x[0] + 2 * x[2] + z[0] + z[2] - 10,
        2 * x[1] + 2 * x[2] + z[1] + z[2] - 10,
        z - 8 * x[:3],
        z[0] - 2 * x[3] - y[0],
        z[1] - 2 * y[1] - y[2],
        z[2] - 2 * y[3] - y[4],
    ]


def charges(angles: Tensor) -> Tensor:
    """The energy of charges on the sphere, the first at a pole and the second on a meridian, to leave no symmetry."""
    fixed = torch.cat([angles.new_zeros(2), angles[:1], angles.new_zeros(1), angles[1:]])
    tilt, turn = fixed[::2], fixed[1::2]
    points = torch.stack([tilt.sin() * turn.cos(), tilt.sin() * turn.sin(), tilt.cos()], 1)
    first, second = torch.triu_indices(len(points), len(points), 1)
    return (points[first] - points[second]).square().sum(1).rsqrt().sum()


def on_spheres(u: Tensor) -> Tensor:
    points = u.view(-1, 3)
    first, second = torch.triu_indices(len(points), len(points), 1)
    return (points[first] - points[second]).square().sum(1).rsqrt().sum()


def spiral(n: int) -> list[tuple[float, float]]:
    """Tilts and turns of points spread over the sphere."""
    return [(pi * (i + 0.5) / n, 2.4 * i) for i in range(n)]


def spiral_points(n: int) -> list[float]:
    return [x for tilt, turn in spiral(n) for x in (sin(tilt) * cos(turn), sin(tilt) * sin(turn), cos(tilt))]


def thomson_angles(n: int, optimum: float) -> Programme:
    start = [angle for point in spiral(n) for angle in point]
    return Programme(f"Thomson {n}, angles", charges, [start[2], *start[4:]], optimum)


def thomson_points(n: int, optimum: float) -> Programme:
    return Programme(
        f"Thomson {n}, points",
        on_spheres,
        spiral_points(n),
        optimum,
        lambda u: [u.view(-1, 3).square().sum(1) - 1],
    )


PROBLEMS = [
    componentwise(
        "tension spring",
        lambda x1, x2, x3: (x3 + 2) * x2 * x1**2,
        [0.1, 0.5, 10],
        0.0126652328,
        inequality=spring,
        lower=[0.05, 0.25, 2],
        upper=[2, 1.3, 15],
        unit=0.01,
    ),
    componentwise(
        "welded beam",
        lambda x1, x2, x3, x4: 1.10471 * x1**2 * x2 + 0.04811 * x3 * x4 * (14 + x2),
        [0.4, 6, 9, 0.5],
        1.724852309,
        inequality=welded_beam,
        lower=[0.125, 0.1, 0.1, 0.1],
        upper=[2, 10, 10, 2],
    ),
    componentwise(
        "speed reducer",
        lambda x1, x2, x3, x4, x5, x6, x7: (
            0.7854 * x1 * x2**2 * (3.3333 * x3**2 + 14.9334 * x3 - 43.0934)
            - 1.508 * x1 * (x6**2 + x7**2)
            + 7.4777 * (x6**3 + x7**3)
            + 0.7854 * (x4 * x6**2 + x5 * x7**2)
        ),
        [3, 0.75, 22, 8, 8, 3.4, 5.2],
        2994.4710661,
        inequality=speed_reducer,
        lower=[2.6, 0.7, 17, 7.3, 7.3, 2.9, 5],
        upper=[3.6, 0.8, 28, 8.3, 8.3, 3.9, 5.5],
    ),
    componentwise(
        "pressure vessel",
        lambda x1, x2, x3, x4: 0.6224 * x1 * x3 * x4 + 1.7781 * x2 * x3**2 + 3.1661 * x1**2 * x4 + 19.84 * x1**2 * x3,
        [1, 1, 50, 100],
        5885.3327736,
        inequality=lambda x1, x2, x3, x4: [
            0.0193 * x3 - x1,
            0.00954 * x3 - x2,
            1 - (pi * x3**2 * x4 + 4 / 3 * pi * x3**3) / 1296000,
        ],
        lower=[0, 0, 10, 10],
        upper=[99, 99, 200, 200],
    ),
    componentwise(
        "cantilever beam",
        lambda *x: 0.0624 * sum(x),
        [5, 5, 5, 5, 5],
        1.3399563604,
        inequality=lambda *x: [sum(c / w**3 for c, w in zip((61, 37, 19, 7, 1), x, strict=True)) - 1],
        lower=0.01,
        upper=100,
    ),
    Programme(
        "G1",
        lambda u: 5 * u[:4].sum() - 5 * u[:4].square().sum() - u[4:].sum(),
        [0.4] * 9 + [1] * 3 + [0.4],
        -15.0,
        inequality=g1_rows,
        lower=0,
        upper=[1] * 9 + [100] * 3 + [1],
        others=[-12.65625, -12.453125, -10.109375, -13.828125],
    ),
    Programme(
        "G3",
        lambda u: -(sqrt(10) ** 10) * u.prod(),
        [0.1 + 0.05 * i for i in range(10)],
        -1.0,
        lambda u: [u.square().sum() - 1],
        lower=0,
        upper=1,
    ),
    componentwise(
        "G8",
        lambda x1, x2: -(torch.sin(2 * pi * x1) ** 3) * torch.sin(2 * pi * x2) / (x1**3 * (x1 + x2)),
        [1.3, 4.2],
        -0.0958250414,
        inequality=lambda x1, x2: [x1**2 - x2 + 1, 1 - x1 + (x2 - 4) ** 2],
        lower=0,
        upper=10,
    ),
    componentwise(
        "G11",
        lambda x1, x2: x1**2 + (x2 - 1) ** 2,
        [0.5, 0],
        0.75,
        lambda x1, x2: [x2 - x1**2],
        lower=-1,
        upper=1,
    ),
    componentwise(
        "G24",
        lambda x1, x2: -x1 - x2,
        [1, 1],
        -5.508013271,
        inequality=lambda x1, x2: [
            -2 * x1**4 + 8 * x1**3 - 8 * x1**2 + x2 - 2,
            -4 * x1**4 + 32 * x1**3 - 88 * x1**2 + 96 * x1 + x2 - 36,
        ],
        lower=0,
        upper=[3, 4],
        others=[-4.4199847],
    ),
    componentwise(
        "Maratos",
        lambda x1, x2: 10 * (x1**2 + x2**2 - 1) - x1,
        [1.1, 0.1],
        -1.0,
        lambda x1, x2: [x1**2 + x2**2 - 1],
    ),
    componentwise(
        "Wächter and Biegler",
        lambda x1, x2, x3: x1,
        [-2, 3, 1],
        1.0,
        lambda x1, x2, x3: [x1**2 - x2 - 1, x1 - x3 - 0.5],
        lower=[-torch.inf, 0, 0],
    ),
    thomson_angles(4, 3.674234614),
    thomson_angles(6, 9.985281374),
    thomson_angles(12, 49.165253058),
    thomson_points(5, 6.474691495),
    thomson_points(8, 19.675287861),
]
