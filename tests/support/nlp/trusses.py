"""Trusses: how thick should the bars be?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations
from math import gcd, inf, sqrt

import torch
from torch import Tensor

from .programme import Programme, componentwise, numbers


class Truss:
    """Bars between nodes of the plane; ``forces`` are on the free nodes, those that are not supported."""

    def __init__(
        self, nodes: Sequence[tuple[float, float]], bars: Sequence[tuple[int, int]], supported: set[int], forces: Tensor
    ) -> None:
        self.bars = bars
        points = numbers(nodes)
        vectors = torch.stack([points[head] - points[tail] for tail, head in bars])
        self.lengths = vectors.square().sum(1).sqrt()
        directions = torch.zeros(len(bars), len(nodes), 2, dtype=torch.float64)
        for row, (tail, head) in enumerate(bars):
            directions[row, tail], directions[row, head] = -vectors[row], vectors[row]
        free = [node for node in range(len(nodes)) if node not in supported]
        self.elongations = (directions[:, free] / self.lengths[:, None, None]).flatten(1)  # (bars, 2 free nodes)
        self.forces = forces

    def stiffness(self, areas: Tensor) -> Tensor:
        return self.elongations.T @ ((areas / self.lengths)[:, None] * self.elongations)

    def internal(self, areas: Tensor, displacements: Tensor) -> Tensor:
        """What the bars do to the free nodes."""
        return self.elongations.T @ (areas / self.lengths * (self.elongations @ displacements))

    def strains(self, displacements: Tensor) -> Tensor:
        return self.elongations @ displacements / self.lengths


def ground_structure(columns: int, rows: int) -> Truss:
    """All bars that pass no other node, on a wall at the left, with a load at the lower right corner."""
    nodes = [(float(i), float(j)) for i in range(columns) for j in range(rows)]
    wall = set(range(rows))

    def straight(tail: int, head: int) -> bool:
        across, up = (int(b - a) for a, b in zip(nodes[tail], nodes[head], strict=True))
        return gcd(across, up) == 1 and not {tail, head} <= wall

    bars = [pair for pair in combinations(range(len(nodes)), 2) if straight(*pair)]
    forces = torch.zeros(2 * (len(nodes) - rows), dtype=torch.float64)
    forces[-2 * rows + 1] = -1.0
    return Truss(nodes, bars, wall, forces)


def least_compliance(name: str, truss: Truss, optimum: float) -> Programme:
    """Areas alone: the displacements follow from them."""
    k = len(truss.bars)
    volume = truss.lengths.sum().item()
    return Programme(
        name,
        lambda u: truss.forces @ torch.linalg.solve(truss.stiffness(u), truss.forces),
        [1.0] * k,
        optimum,
        inequality=lambda u: [truss.lengths @ u - volume],
        lower=0.01,
    )


def least_volume(name: str, truss: Truss, optimum: float, compliance: float) -> Programme:
    """Areas and displacements at once, with their balance of forces as equalities."""
    k, free = len(truss.bars), len(truss.forces)
    first = torch.linalg.solve(truss.stiffness(torch.ones(k, dtype=torch.float64)), truss.forces)
    return Programme(
        name,
        lambda u: truss.lengths @ u[:k],
        [1.0] * k + first.tolist(),
        optimum,
        lambda u: [truss.internal(u[:k], u[k:]) - truss.forces],
        lambda u: [truss.forces @ u[k:] - compliance],
        lower=[0.01] * k + [-inf] * free,
    )


# The ten-bar truss, in inches, kips and thousandths: stresses up to 25, displacements up to 2
TEN_BARS = Truss(
    [(720, 360), (720, 0), (360, 360), (360, 0), (0, 360), (0, 0)],
    [(4, 2), (2, 0), (5, 3), (3, 1), (2, 3), (0, 1), (4, 3), (5, 2), (2, 1), (3, 0)],
    {4, 5},
    numbers([0, 0, 0, -100, 0, 0, 0, -100]),
)
MODULUS = 1e4


def ten_bars_displaced(u: Tensor) -> Tensor:
    return torch.linalg.solve(TEN_BARS.stiffness(u) * MODULUS, TEN_BARS.forces)


def ten_bars_limits(u: Tensor) -> list[Tensor]:
    displacements = ten_bars_displaced(u)
    stresses = MODULUS * TEN_BARS.strains(displacements)
    return [stresses / 25 - 1, -stresses / 25 - 1, displacements[1::2] / 2 - 1, -displacements[1::2] / 2 - 1]


def ten_bars(name: str, limits: Callable[[Tensor], list[Tensor]], optimum: float, **more) -> Programme:
    weight = 0.1 * TEN_BARS.lengths
    return Programme(name, lambda u: weight @ u, [10.0] * 10, optimum, inequality=limits, lower=0.1, **more)


def three_bars(x1: Tensor, x2: Tensor) -> list[Tensor]:
    whole = sqrt(2) * x1**2 + 2 * x1 * x2
    return [
        2 * (sqrt(2) * x1 + x2) / whole - 2,
        2 * x2 / whole - 2,
        2 / (sqrt(2) * x2 + x1) - 2,
    ]


PROBLEMS = [
    componentwise(
        "three bars",
        lambda x1, x2: 100 * (2 * sqrt(2) * x1 + x2),
        [0.5, 0.5],
        263.8958434,
        inequality=three_bars,
        lower=1e-3,
        upper=1,
    ),
    ten_bars("ten bars", ten_bars_limits, 5060.8536598, others=[5076.6692999]),
    ten_bars("ten bars, stresses", lambda u: ten_bars_limits(u)[:2], 1593.1809091),
    least_compliance("compliance 3 x 2", ground_structure(3, 2), 3.9789582666),
    least_compliance("compliance 3 x 3", ground_structure(3, 3), 0.92244085083),
    least_volume("volume 3 x 2", ground_structure(3, 2), 3.2443781749, 20.0),
    least_volume("volume 4 x 2", ground_structure(4, 2), 5.7408846134, 40.0),
]
