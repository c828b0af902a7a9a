"""The unconstrained problems of Moré, Garbow and Hillstrom, "Testing Unconstrained Optimization Software" (1981).

Sums of squares, from the starts of that paper. The constants in the names are the numbers of unknowns.
"""

from __future__ import annotations

from collections.abc import Callable
from math import pi, sqrt

import torch
from torch import Tensor

from .programme import Programme, numbers, readings

Residual = Callable[[Tensor], Tensor]


def least_squares(name: str, residual: Residual, start, optimum: float = 0.0, **more) -> Programme:
    more.setdefault("unit", min(1.0, optimum) or 1.0)
    return Programme(name, lambda u: residual(u).square().sum(), start, optimum, **more)


def steps(count: int, first: int = 1) -> Tensor:
    return torch.arange(first, first + count, dtype=torch.float64)


def rosenbrock_pairs(u):
    return torch.cat([10 * (u[1::2] - u[::2] ** 2), 1 - u[::2]])


def freudenstein_roth(u):
    x1, x2 = u
    return torch.stack([-13 + x1 + ((5 - x2) * x2 - 2) * x2, -29 + x1 + ((x2 + 1) * x2 - 14) * x2])


def jennrich_sampson(u):
    i = steps(10)
    return 2 + 2 * i - (i * u[0]).exp() - (i * u[1]).exp()


def helical_valley(u):
    """On the side of u[0] < 0 the angle is half a turn further on."""
    turn = torch.atan(u[1] / u[0]) / (2 * pi) + torch.where(u[0] < 0, 0.5, 0.0)
    return torch.stack([10 * (u[2] - 10 * turn), 10 * (u[:2].square().sum().sqrt() - 1), u[2]])


BARD = numbers([0.14, 0.18, 0.22, 0.25, 0.29, 0.32, 0.35, 0.39, 0.37, 0.58, 0.73, 0.96, 1.34, 2.10, 4.39])


def bard(u):
    i, v = steps(15), 16 - steps(15)
    return BARD - (u[0] + i / (v * u[1] + torch.minimum(i, v) * u[2]))


HALF_BELL = [0.0009, 0.0044, 0.0175, 0.0540, 0.1295, 0.2420, 0.3521]
BELL = numbers([*HALF_BELL, 0.3989, *reversed(HALF_BELL)])


def gaussian(u):
    return u[0] * torch.exp(-u[1] * ((8 - steps(15)) / 2 - u[2]) ** 2 / 2) - BELL


RESISTANCES = readings(
    """
    34780 28610 23650 19630 16370 13720 11540 9744 8261 7030 6005 5147 4427 3820 3307 2872
    """
)


def meyer(u):
    return u[0] * torch.exp(u[1] / (45 + 5 * steps(16) + u[2])) - RESISTANCES


def gulf(u):
    t = steps(99) / 100
    distance = 25 + (-50 * t.log()) ** (2 / 3) - u[1]
    return torch.exp(-(distance.abs() ** u[2]) / u[0]) - t


def box(u):
    t = steps(10) / 10
    return torch.exp(-t * u[0]) - torch.exp(-t * u[1]) - u[2] * (torch.exp(-t) - torch.exp(-10 * t))


def powell_singular(u):
    x1, x2, x3, x4 = u[::4], u[1::4], u[2::4], u[3::4]
    return torch.cat([x1 + 10 * x2, sqrt(5) * (x3 - x4), (x2 - 2 * x3) ** 2, sqrt(10) * (x1 - x4) ** 2])


def wood(u):
    x1, x2, x3, x4 = u
    rows = [
        10 * (x2 - x1**2),
        1 - x1,
        sqrt(90) * (x4 - x3**2),
        1 - x3,
        sqrt(10) * (x2 + x4 - 2),
        (x2 - x4) / sqrt(10),
    ]
    return torch.stack(rows)


REACTION = numbers([0.1957, 0.1947, 0.1735, 0.1600, 0.0844, 0.0627, 0.0456, 0.0342, 0.0323, 0.0235, 0.0246])
DOSES = numbers([4, 2, 1, 0.5, 0.25, 0.167, 0.125, 0.1, 0.0833, 0.0714, 0.0625])


def kowalik_osborne(u):
    return REACTION - u[0] * (DOSES**2 + DOSES * u[1]) / (DOSES**2 + DOSES * u[2] + u[3])


def brown_dennis(u):
    t = steps(20) / 5
    return (u[0] + t * u[1] - t.exp()) ** 2 + (u[2] + u[3] * t.sin() - t.cos()) ** 2


DECAY = readings(
    """
    0.844 0.908 0.932 0.936 0.925 0.908 0.881 0.850 0.818 0.784 0.751 0.718 0.685 0.658 0.628 0.603 0.580 0.558
    0.538 0.522 0.506 0.490 0.478 0.467 0.457 0.448 0.438 0.431 0.424 0.420 0.414 0.411 0.406
    """
)


def osborne_1(u):
    t = 10 * steps(33, 0)
    return DECAY - (u[0] + u[1] * torch.exp(-t * u[3]) + u[2] * torch.exp(-t * u[4]))


def biggs(u):
    t = steps(13) / 10
    y = torch.exp(-t) - 5 * torch.exp(-10 * t) + 3 * torch.exp(-4 * t)
    return u[2] * torch.exp(-t * u[0]) - u[3] * torch.exp(-t * u[1]) + u[5] * torch.exp(-t * u[4]) - y


PEAKS = readings(
    """
    1.366 1.191 1.112 1.013 0.991 0.885 0.831 0.847 0.786 0.725 0.746 0.679 0.608 0.655 0.616 0.606 0.602 0.626
    0.651 0.724 0.649 0.649 0.694 0.644 0.624 0.661 0.612 0.558 0.533 0.495 0.500 0.423 0.395 0.375 0.372 0.391
    0.396 0.405 0.428 0.429 0.523 0.562 0.607 0.653 0.672 0.708 0.633 0.668 0.645 0.632 0.591 0.559 0.597 0.625
    0.739 0.710 0.729 0.720 0.636 0.581 0.428 0.292 0.162 0.098 0.054
    """
)


def osborne_2(u):
    t = steps(65, 0)[:, None] / 10
    centres = torch.cat([u.new_zeros(1), u[8:11]])
    powers = torch.cat([t, (t - centres[1:]) ** 2], 1)
    return PEAKS - torch.exp(-powers * u[4:8]) @ u[:4]


def watson(u):
    j, t = steps(len(u), 0), steps(29)[:, None] / 29
    slope = (t ** (j[1:] - 1) * j[1:]) @ u[1:]
    return torch.cat([slope - (t**j @ u) ** 2 - 1, u[:1], u[1:2] - u[:1] ** 2 - 1])


def penalty_1(u):
    return torch.cat([sqrt(1e-5) * (u - 1), (u.square().sum() - 0.25).reshape(1)])


def penalty_2(u):
    n, a = len(u), sqrt(1e-5)
    i = steps(n - 1, 2)
    growth = torch.exp(i / 10) + torch.exp((i - 1) / 10)
    pairs = a * (torch.exp(u[1:] / 10) + torch.exp(u[:-1] / 10) - growth)
    single = a * (torch.exp(u[1:] / 10) - torch.exp(numbers(-0.1)))
    weighted = (torch.arange(n, 0, -1) * u**2).sum() - 1
    return torch.cat([u[:1] - 0.2, pairs, single, weighted.reshape(1)])


def variably_dimensioned(u):
    weighted = (steps(len(u)) * (u - 1)).sum().reshape(1)
    return torch.cat([u - 1, weighted, weighted**2])


def trigonometric(u):
    return len(u) - u.cos().sum() + steps(len(u)) * (1 - u.cos()) - u.sin()


def brown_almost_linear(u):
    return torch.cat([u[:-1] + u.sum() - (len(u) + 1), (u.prod() - 1).reshape(1)])


def grid(n: int) -> Tensor:
    return steps(n) / (n + 1)


def discrete_boundary(u):
    n, zero = len(u), u.new_zeros(1)
    before, after = torch.cat([zero, u[:-1]]), torch.cat([u[1:], zero])
    return 2 * u - before - after + (u + grid(n) + 1) ** 3 / (2 * (n + 1) ** 2)


def discrete_integral(u):
    n, t = len(u), grid(len(u))
    kernel = torch.minimum(t[:, None] * (1 - t), t * (1 - t[:, None]))
    return u + kernel @ (u + t + 1) ** 3 / (2 * (n + 1))


def broyden_tridiagonal(u):
    zero = u.new_zeros(1)
    return (3 - 2 * u) * u - torch.cat([zero, u[:-1]]) - 2 * torch.cat([u[1:], zero]) + 1


def broyden_banded(u):
    place = torch.arange(len(u))
    apart = place[:, None] - place
    band = ((apart <= 5) & (apart >= -1) & (apart != 0)).double()
    return u * (2 + 5 * u**2) + 1 - band @ (u * (1 + u))


def linear(matrix: Tensor) -> Residual:
    return lambda u: matrix @ u - 1


def full_rank(m: int, n: int) -> Tensor:
    return torch.eye(m, n, dtype=torch.float64) - 2 / m


def rank_one(m: int, n: int, zeros: bool) -> Tensor:
    """With zeros, the first and last row and column vanish."""
    rows, columns = steps(m), steps(n)
    if zeros:
        rows, columns = rows - 1, columns.clone()
        rows[-1], columns[0], columns[-1] = 0, 0, 0
    return rows[:, None] * columns


def chebyquad(u):
    """The means of the shifted Chebyshev polynomials at u, less their integrals."""
    t = 2 * u - 1
    polynomials = [torch.ones_like(t), t]
    for _ in range(len(u) - 1):
        polynomials.append(2 * t * polynomials[-1] - polynomials[-2])
    integrals = numbers([0 if i % 2 else -1 / (i**2 - 1) for i in range(1, len(u) + 1)])
    return torch.stack(polynomials[1:]).mean(1) - integrals


PROBLEMS = [
    least_squares("Rosenbrock", rosenbrock_pairs, [-1.2, 1]),
    least_squares("Freudenstein and Roth", freudenstein_roth, [0.5, -2], others=[48.984253679]),
    Programme(
        "Powell badly scaled",
        lambda u: (1e4 * u[0] * u[1] - 1) ** 2 + (torch.exp(-u[0]) + torch.exp(-u[1]) - 1.0001) ** 2,
        [0, 1],
        0.0,
    ),
    Programme(
        "Brown badly scaled",
        lambda u: (u[0] - 1e6) ** 2 + (u[1] - 2e-6) ** 2 + (u[0] * u[1] - 2) ** 2,
        [1, 1],
        0.0,
    ),
    least_squares(
        "Beale", lambda u: numbers([1.5, 2.25, 2.625]) - u[0] * (1 - torch.stack([u[1], u[1] ** 2, u[1] ** 3])), [1, 1]
    ),
    least_squares("Jennrich and Sampson", jennrich_sampson, [0.3, 0.4], 124.36218236),
    least_squares("helical valley", helical_valley, [-1, 0, 0]),
    least_squares("Bard", bard, [1, 1, 1], 8.2148773e-3),
    least_squares("Gaussian", gaussian, [0.4, 1, 0], 1.1279328e-8),
    least_squares("Meyer", meyer, [0.02, 4000, 250], 87.945855),
    least_squares("Gulf", gulf, [5, 2.5, 0.15]),
    least_squares("Box", box, [0, 10, 20]),
    least_squares("Powell singular", powell_singular, [3, -1, 0, 1]),
    least_squares("Wood", wood, [-3, -1, -3, -1]),
    least_squares("Kowalik and Osborne", kowalik_osborne, [0.25, 0.39, 0.415, 0.39], 3.0750561e-4),
    least_squares("Brown and Dennis", brown_dennis, [25, 5, -5, -1], 85822.201626),
    least_squares("Osborne 1", osborne_1, [0.5, 1.5, -1, 0.01, 0.02], 5.4648947e-5),
    least_squares("Biggs", biggs, [1, 2, 1, 1, 1, 1]),
    least_squares("Osborne 2", osborne_2, [1.3, 0.65, 0.65, 0.7, 0.6, 3, 5, 7, 2, 4.5, 5.5], 4.0137736e-2),
    least_squares("Watson 6", watson, [0] * 6, 2.2876701e-3),
    least_squares("Watson 9", watson, [0] * 9, 1.3997601e-6),
    least_squares("Watson 12", watson, [0] * 12, 4.7223811e-10),
    least_squares("extended Rosenbrock", rosenbrock_pairs, [-1.2, 1] * 5),
    least_squares("extended Powell singular", powell_singular, [3, -1, 0, 1] * 3),
    least_squares("penalty I 4", penalty_1, [1, 2, 3, 4], 2.2499775e-5),
    least_squares("penalty I 10", penalty_1, list(range(1, 11)), 7.0876515e-5),
    least_squares("penalty II 4", penalty_2, [0.5] * 4, 9.3762931e-6),
    least_squares("penalty II 10", penalty_2, [0.5] * 10, 2.9366054e-4),
    least_squares("variably dimensioned", variably_dimensioned, [1 - i / 10 for i in range(1, 11)]),
    least_squares("trigonometric", trigonometric, [1 / 10] * 10, others=[2.7950611e-5]),
    least_squares("Brown almost linear", brown_almost_linear, [0.5] * 10),
    least_squares("discrete boundary value", discrete_boundary, [t * (t - 1) for t in grid(10).tolist()]),
    least_squares("discrete integral equation", discrete_integral, [t * (t - 1) for t in grid(10).tolist()]),
    least_squares("Broyden tridiagonal", broyden_tridiagonal, [-1] * 10),
    least_squares("Broyden banded", broyden_banded, [-1] * 10),
    least_squares("linear, full rank", linear(full_rank(20, 10)), [1] * 10, 10.0),
    least_squares("linear, rank 1", linear(rank_one(20, 10, False)), [1] * 10, 20 * 19 / (2 * 41)),
    least_squares("linear, rank 1 with zeros", linear(rank_one(20, 10, True)), [1] * 10, (400 + 60 - 6) / (2 * 37)),
    least_squares("Chebyquad 7", chebyquad, [i / 8 for i in range(1, 8)]),
    least_squares("Chebyquad 8", chebyquad, [i / 9 for i in range(1, 9)], 3.5168737e-3),
    least_squares("Chebyquad 9", chebyquad, [i / 10 for i in range(1, 10)]),
    least_squares("Chebyquad 10", chebyquad, [i / 11 for i in range(1, 11)], 4.7727137e-3, others=[6.5039547e-3]),
]
