"""Optimal power flow on five buses: the cheapest generation that meets the loads, by the alternating-current equations.

The unknowns are u = [voltages (5), angles of buses 1 to 4, active and reactive generation of three generators].
Reactive power costs nothing and has wide limits: it is seen only by the equations of its bus, whose multipliers are
zero.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from declarative import DeclarativeNode

BUSES = 5
LINES = {  # between two buses: resistance and reactance
    (0, 1): (0.02, 0.06),
    (0, 2): (0.08, 0.24),
    (1, 2): (0.06, 0.18),
    (1, 3): (0.05, 0.15),
    (2, 3): (0.01, 0.03),
    (3, 4): (0.08, 0.24),
    (1, 4): (0.04, 0.12),
}
GENERATORS = [0, 1, 3]
LOADED = [1, 2, 3, 4]  # x is the active load of these; 0.3 of it is reactive
COST = [0.3, 0.5, 0.2]  # of the square of the generation
PRICE = [2.0, 1.75, 2.2]  # of the generation


def admittances() -> Tensor:  # (2, BUSES, BUSES): conductances and susceptances
    matrix = torch.zeros(BUSES, BUSES, dtype=torch.complex128)
    for (i, j), (r, x) in LINES.items():
        y = 1 / complex(r, x)
        matrix[i, j] -= y
        matrix[j, i] -= y
        matrix[i, i] += y
        matrix[j, j] += y
    return torch.stack([matrix.real, matrix.imag])


ADMITTANCES = admittances()


def unpacked(u: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Voltages, angles, active and reactive generation."""
    angles = torch.cat([torch.zeros_like(u[:1]), u[BUSES : 2 * BUSES - 1]])
    active, reactive = u[2 * BUSES - 1 :].chunk(2)
    return u[:BUSES], angles, active, reactive


def cost(_: Tensor, u: Tensor) -> Tensor:
    active = unpacked(u)[2]
    return (torch.tensor(COST).to(u) * active.square() + torch.tensor(PRICE).to(u) * active).sum()


def balance(x: Tensor, u: Tensor) -> Tensor:  # (2 * BUSES,)
    """What is generated less what is used and what flows away, active and reactive, at every bus."""
    voltages, angles, active, reactive = unpacked(u)
    conductance, susceptance = ADMITTANCES.to(u)
    difference = angles.unsqueeze(-1) - angles
    products = voltages.unsqueeze(-1) * voltages
    out = (products * (conductance * difference.cos() + susceptance * difference.sin())).sum(-1)
    reactive_out = (products * (conductance * difference.sin() - susceptance * difference.cos())).sum(-1)
    at_generators = torch.eye(BUSES).to(u)[GENERATORS].T
    at_loads = torch.eye(BUSES).to(u)[LOADED].T
    return torch.cat(
        [at_generators @ active - at_loads @ x - out, at_generators @ reactive - 0.3 * at_loads @ x - reactive_out]
    )


def limits(_: Tensor, u: Tensor) -> Tensor:
    voltages, _, active, reactive = unpacked(u)
    return torch.cat([voltages - 1.06, 0.94 - voltages, active - 4.0, -active, reactive - 5.0, -5.0 - reactive])


def power_flow(**options: Any) -> DeclarativeNode:
    start = torch.cat([torch.ones(BUSES), torch.zeros(BUSES - 1), torch.full((3,), 0.5), torch.zeros(3)])
    return DeclarativeNode(cost, balance, limits, start=start, **options)


def loads(batch: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return 0.2 + 0.6 * torch.rand(batch, len(LOADED), generator=generator, dtype=torch.float64)
