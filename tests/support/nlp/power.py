"""Optimal power flow in polar coordinates: small public systems with their well-known costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, pi

import torch
from torch import Tensor

from .programme import Programme, numbers

BASE = 100  # MVA


@dataclass(frozen=True)
class Branch:
    tail: int
    head: int
    resistance: float
    reactance: float
    charging: float = 0.0
    ratio: float = 1.0
    rating: float = inf  # in MVA


@dataclass(frozen=True)
class Generator:
    bus: int
    cost: tuple[float, float, float]  # of 1, MW and MW squared
    power: tuple[float, float]  # in MW
    reactive: tuple[float, float]  # in MVAr


@dataclass(frozen=True)
class Grid:
    """Buses are numbered from 1; ``loads`` and ``shunts`` are in MW and MVAr."""

    buses: int
    branches: Sequence[Branch]
    generators: Sequence[Generator]
    loads: dict[int, tuple[float, float]]
    voltage: tuple[float, float]
    shunts: dict[int, float]

    def admittances(self) -> tuple[Tensor, Tensor]:
        """Of all buses, and of the rated branches: two rows each, for the currents at its tail and at its head."""
        bus = torch.zeros(self.buses, self.buses, dtype=torch.complex128)
        ends = []
        for branch in self.branches:
            series = 1 / complex(branch.resistance, branch.reactance)
            own = series + 0.5j * branch.charging
            places = [branch.tail - 1, branch.head - 1]
            block = torch.tensor([[own / branch.ratio**2, -series / branch.ratio], [-series / branch.ratio, own]])
            rows = torch.zeros(2, self.buses, dtype=torch.complex128)
            rows[:, places] = block.to(torch.complex128)
            bus[places] += rows
            if branch.rating < inf:
                ends.append(rows)
        for place, susceptance in self.shunts.items():
            bus[place - 1, place - 1] += 1j * susceptance / BASE
        return bus, torch.cat(ends) if ends else bus[:0]


def injections(admittance: Tensor, at: Tensor, angle: Tensor, voltage: Tensor) -> tuple[Tensor, Tensor]:
    """Active and reactive power into each row of admittances from its bus, in real arithmetic."""
    cosine, sine = voltage * angle.cos(), voltage * angle.sin()
    real = admittance.real @ cosine - admittance.imag @ sine
    imaginary = admittance.real @ sine + admittance.imag @ cosine
    return cosine[at] * real + sine[at] * imaginary, sine[at] * real - cosine[at] * imaginary


def power_flow(name: str, grid: Grid, optimum: float) -> Programme:
    """Unknowns: the angles but the first, the voltages, active and reactive power of the generators (per unit)."""
    n, g = grid.buses, len(grid.generators)
    bus, ends = grid.admittances()
    rated = [branch for branch in grid.branches if branch.rating < inf]
    end_buses = torch.tensor([place - 1 for b in rated for place in (b.tail, b.head)], dtype=torch.long)
    ratings = numbers([b.rating / BASE for b in rated for _ in range(2)])
    placed = torch.zeros(n, g, dtype=torch.float64)
    placed[[one.bus - 1 for one in grid.generators], range(g)] = 1
    loads = numbers([grid.loads.get(place, (0, 0)) for place in range(1, n + 1)]) / BASE
    costs = numbers([one.cost for one in grid.generators])

    def parts(u: Tensor) -> tuple[Tensor, ...]:
        angle, voltage, power, reactive = u.split([n - 1, n, g, g])
        return torch.cat([angle.new_zeros(1), angle]), voltage, power, reactive

    def cost(u: Tensor) -> Tensor:
        power = parts(u)[2] * BASE
        return (costs[:, 0] + costs[:, 1] * power + costs[:, 2] * power**2).sum()

    def balances(u: Tensor) -> list[Tensor]:
        angle, voltage, power, reactive = parts(u)
        active, passive = injections(bus, torch.arange(n), angle, voltage)
        return [active + loads[:, 0] - placed @ power, passive + loads[:, 1] - placed @ reactive]

    def flows(u: Tensor) -> list[Tensor]:
        angle, voltage, *_ = parts(u)
        active, passive = injections(ends, end_buses, angle, voltage)
        return [active**2 + passive**2 - ratings**2]

    ranges = [(-pi, pi)] * (n - 1) + [grid.voltage] * n
    ranges += [(low / BASE, high / BASE) for one in grid.generators for low, high in [one.power]]
    ranges += [(low / BASE, high / BASE) for one in grid.generators for low, high in [one.reactive]]
    middle = [sum(one.power) / 2 / BASE for one in grid.generators]
    return Programme(
        name,
        cost,
        [0.0] * (n - 1) + [1.0] * n + middle + [0.0] * g,
        optimum,
        balances,
        flows if rated else None,
        lower=[low for low, _ in ranges],
        upper=[high for _, high in ranges],
    )


NINE = Grid(
    9,
    [
        Branch(1, 4, 0, 0.0576, 0, rating=250),
        Branch(4, 5, 0.017, 0.092, 0.158, rating=250),
        Branch(5, 6, 0.039, 0.17, 0.358, rating=150),
        Branch(3, 6, 0, 0.0586, 0, rating=300),
        Branch(6, 7, 0.0119, 0.1008, 0.209, rating=150),
        Branch(7, 8, 0.0085, 0.072, 0.149, rating=250),
        Branch(8, 2, 0, 0.0625, 0, rating=250),
        Branch(8, 9, 0.032, 0.161, 0.306, rating=250),
        Branch(9, 4, 0.01, 0.085, 0.176, rating=250),
    ],
    [
        Generator(1, (150, 5, 0.11), (10, 250), (-300, 300)),
        Generator(2, (600, 1.2, 0.085), (10, 300), (-300, 300)),
        Generator(3, (335, 1, 0.1225), (10, 270), (-300, 300)),
    ],
    {5: (90, 30), 7: (100, 35), 9: (125, 50)},
    (0.9, 1.1),
    {},
)

FIVE = Grid(
    5,
    [
        Branch(1, 2, 0.00281, 0.0281, 0.00712, rating=400),
        Branch(1, 4, 0.00304, 0.0304, 0.00658),
        Branch(1, 5, 0.00064, 0.0064, 0.03126),
        Branch(2, 3, 0.00108, 0.0108, 0.01852),
        Branch(3, 4, 0.00297, 0.0297, 0.00674),
        Branch(4, 5, 0.00297, 0.0297, 0.00674, rating=240),
    ],
    [
        Generator(1, (0, 14, 0), (0, 40), (-30, 30)),
        Generator(1, (0, 15, 0), (0, 170), (-127.5, 127.5)),
        Generator(3, (0, 30, 0), (0, 520), (-390, 390)),
        Generator(4, (0, 40, 0), (0, 200), (-150, 150)),
        Generator(5, (0, 10, 0), (0, 600), (-450, 450)),
    ],
    {2: (300, 98.61), 3: (300, 98.61), 4: (400, 131.47)},
    (0.9, 1.1),
    {},
)

FOURTEEN = Grid(
    14,
    [
        Branch(1, 2, 0.01938, 0.05917, 0.0528),
        Branch(1, 5, 0.05403, 0.22304, 0.0492),
        Branch(2, 3, 0.04699, 0.19797, 0.0438),
        Branch(2, 4, 0.05811, 0.17632, 0.034),
        Branch(2, 5, 0.05695, 0.17388, 0.0346),
        Branch(3, 4, 0.06701, 0.17103, 0.0128),
        Branch(4, 5, 0.01335, 0.04211),
        Branch(4, 7, 0, 0.20912, ratio=0.978),
        Branch(4, 9, 0, 0.55618, ratio=0.969),
        Branch(5, 6, 0, 0.25202, ratio=0.932),
        Branch(6, 11, 0.09498, 0.1989),
        Branch(6, 12, 0.12291, 0.25581),
        Branch(6, 13, 0.06615, 0.13027),
        Branch(7, 8, 0, 0.17615),
        Branch(7, 9, 0, 0.11001),
        Branch(9, 10, 0.03181, 0.0845),
        Branch(9, 14, 0.12711, 0.27038),
        Branch(10, 11, 0.08205, 0.19207),
        Branch(12, 13, 0.22092, 0.19988),
        Branch(13, 14, 0.17093, 0.34802),
    ],
    [
        Generator(1, (0, 20, 0.0430292599), (0, 332.4), (0, 10)),
        Generator(2, (0, 20, 0.25), (0, 140), (-40, 50)),
        Generator(3, (0, 40, 0.01), (0, 100), (0, 40)),
        Generator(6, (0, 40, 0.01), (0, 100), (-6, 24)),
        Generator(8, (0, 40, 0.01), (0, 100), (-6, 24)),
    ],
    {
        2: (21.7, 12.7),
        3: (94.2, 19),
        4: (47.8, -3.9),
        5: (7.6, 1.6),
        6: (11.2, 7.5),
        9: (29.5, 16.6),
        10: (9, 5.8),
        11: (3.5, 1.8),
        12: (6.1, 1.6),
        13: (13.5, 5.8),
        14: (14.9, 5),
    },
    (0.94, 1.06),
    {9: 19},
)

PROBLEMS = [
    power_flow("power, 5 buses", FIVE, 17551.891019),
    power_flow("power, 9 buses", NINE, 5296.6862042),
    power_flow("power, 14 buses", FOURTEEN, 8081.5247618),
]
