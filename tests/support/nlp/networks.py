"""Flows, pools, pipes and power in networks."""
# ruff: noqa: ARG005 - the functions of a problem all have all of its unknowns as arguments

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import torch
from torch import Tensor

from .mgh import steps
from .programme import Programme, componentwise, numbers

Edges = Sequence[tuple[int, int]]


def incidence(nodes: int, edges: Edges) -> Tensor:
    """What flows out of each node, less what flows in."""
    matrix = torch.zeros(nodes, len(edges), dtype=torch.float64)
    for column, (tail, head) in enumerate(edges):
        matrix[tail, column], matrix[head, column] = 1, -1
    return matrix


def lattice(rows: int, columns: int) -> list[tuple[int, int]]:
    """To the right and downwards."""
    places = [(i, j) for i in range(rows) for j in range(columns)]
    right = [(i * columns + j, i * columns + j + 1) for i, j in places if j + 1 < columns]
    down = [(i * columns + j, (i + 1) * columns + j) for i, j in places if i + 1 < rows]
    return right + down


def balance(nodes: int, edges: Edges, supply: Tensor):
    """All nodes but the last, whose balance follows from the others."""
    matrix = incidence(nodes, edges)[:-1]
    return lambda u: [matrix @ u - supply[:-1]]


def from_first_to_last(nodes: int, amount: float) -> Tensor:
    supply = torch.zeros(nodes, dtype=torch.float64)
    supply[0], supply[-1] = amount, -amount
    return supply


def cheapest_flow(name: str, rows: int, columns: int, optimum: float) -> Programme:
    """A convex cost, with capacities that bind."""
    edges, nodes = lattice(rows, columns), rows * columns
    k = steps(len(edges))
    linear, square = 1 + (7 * k).fmod(5), 0.1 + 0.3 * (3 * k).fmod(4)
    return Programme(
        name,
        lambda u: linear @ u + square @ u**2,
        [1.0] * len(edges),
        optimum,
        balance(nodes, edges, from_first_to_last(nodes, 4)),
        lower=0,
        upper=(2.1 + (2 * k).fmod(3) / 2).tolist(),
    )


def traffic(name: str, rows: int, columns: int, optimum: float) -> Programme:
    """The equilibrium of drivers (Beckmann): travel times grow with the fourth power of the flow."""
    edges, nodes = lattice(rows, columns), rows * columns
    k = steps(len(edges))
    free, capacity = 1 + (5 * k).fmod(7) / 2, 1 + (3 * k).fmod(5) / 2
    return Programme(
        name,
        lambda u: free @ (u + 0.03 * u * (u / capacity) ** 4),
        [2.0] * len(edges),
        optimum,
        balance(nodes, edges, from_first_to_last(nodes, 6)),
        lower=0,
    )


# The paradox of Braess: with the bridge 6 drivers take 92 minutes each on three routes, without it they take 83
BRAESS = [(0, 1), (0, 2), (1, 2), (1, 3), (2, 3)]


def braess(u: Tensor) -> Tensor:
    fixed, slope = numbers([0, 50, 10, 50, 0]), numbers([10, 1, 1, 1, 10])
    return fixed @ u + slope @ u**2 / 2


def water(name: str, optimum: float) -> Programme:
    """Pipes in a 3 x 3 lattice: the flows have the least content (Hazen and Williams), their signs are free."""
    edges = lattice(3, 3)
    resistance = 0.5 + steps(len(edges)).mul(4).fmod(7) / 3
    return Programme(
        name,
        lambda u: resistance @ (u**2 + 1e-4) ** 1.426 / 2.852,
        [0.5] * len(edges),
        optimum,
        balance(9, edges, numbers([5, -1, 0, -1, 0.5, -1, -0.5, 1, -3])),
    )


def pooling(name: str, optimum: float, demand: float, cost: float, others: Sequence[float]) -> Programme:
    """Haverly's pool: crudes of 3 and 1 per cent sulphur are pooled, one of 2 per cent is not; two products.

    Unknowns: both crudes, from the pool to each product, past the pool to each product, the sulphur in the pool.
    """
    return componentwise(
        name,
        lambda a, b, px, py, cx, cy, s: 6 * a + cost * b + 10 * (cx + cy) - 9 * (px + cx) - 15 * (py + cy),
        [50, 50, 50, 50, 50, 50, 2],
        optimum,
        lambda a, b, px, py, cx, cy, s: [a + b - px - py, (s * (px + py) - 3 * a - b) / 10],
        lambda a, b, px, py, cx, cy, s: [
            (s * px + 2 * cx - 2.5 * (px + cx)) / 10,
            (s * py + 2 * cy - 1.5 * (py + cy)) / 10,
            px + cx - demand,
            py + cy - 200,
        ],
        lower=[0, 0, 0, 0, 0, 0, 1],
        upper=[inf, inf, inf, inf, inf, inf, 3],
        others=others,
    )


def transport() -> Programme:
    """Optimal transport with an entropy, 4 sources and 5 sinks."""
    cost = ((steps(4)[:, None] - 1.2 * steps(5)) / 3) ** 2
    rows, columns = numbers([0.1, 0.2, 0.3, 0.4]), numbers([0.3, 0.25, 0.2, 0.15, 0.1])
    return Programme(
        "entropic transport",
        lambda u: (u * (cost.reshape(-1) + 0.1 * (u.log() - 1))).sum(),
        (rows[:, None] * columns).reshape(-1).tolist(),
        -0.21467041218502822,
        lambda u: [u.view(4, 5).sum(1) - rows, (u.view(4, 5).sum(0) - columns)[:-1]],
    )


PROBLEMS = [
    cheapest_flow("flow 3 x 3", 3, 3, 62.923448802),
    cheapest_flow("flow 5 x 5", 5, 5, 98.66470985),
    traffic("traffic 3 x 3", 3, 3, 64.947807998),
    traffic("traffic 4 x 5", 4, 5, 107.39281044),
    Programme("Braess", braess, [3, 3, 0, 3, 3], 386.0, balance(4, BRAESS, from_first_to_last(4, 6)), lower=0),
    water("water 3 x 3", 15.843512253),
    transport(),
    pooling("Haverly 1", -400.0, 100, 16, [-100]),
    pooling("Haverly 2", -600.0, 600, 16, [-400]),
    pooling("Haverly 3", -750.0, 100, 13, [-125]),
]
