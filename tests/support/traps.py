"""Points that look like solutions, and are none: each with the solution, as a torch function of the inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from declarative import DeclarativeNode
from tests.support.helpers import DOUBLE

Function = Callable[..., Tensor]


@dataclass(frozen=True)
class Trap:
    name: str
    objective: Function
    truth: Callable[[Tensor], Tensor]  # of the batch, as is the next
    trap: Callable[[Tensor], Tensor]
    x: Tensor
    equality: Function | None = None
    inequality: Function | None = None
    way_out: bool = True  # whether the default solver finds the solution from there

    def node(self, solver: Any, **options: Any) -> DeclarativeNode:
        start = None if callable(solver) else lambda x: self.trap(x.unsqueeze(0))[0]
        return DeclarativeNode(
            self.objective,
            self.equality,
            self.inequality,
            solver=solver,
            start=start,
            on_failure="mask",
            **options,
        )

    def __str__(self) -> str:
        return self.name


STIFFNESS = 2e11  # of a bar of unit length and section: steel, in newtons per square metre
LIMIT = 1e-11  # on the sum of the elongations, in metres


def lightest_bars(loads: Tensor) -> Tensor:
    """Sections a and elongations e: minimise sum a subject to STIFFNESS a e = load and sum e <= LIMIT."""
    sections = loads.sqrt() * loads.sqrt().sum(-1, keepdim=True) / (STIFFNESS * LIMIT)
    return torch.cat([sections, loads / (STIFFNESS * sections)], -1)


def exchanged_bars(loads: Tensor) -> Tensor:
    """The right sections, and the right sum of elongations, but not those that the loads ask for."""
    sections, elongations = lightest_bars(loads).chunk(2, -1)
    return torch.cat([sections, elongations.flip(-1)], -1)


COSINES = [0.6, 1.0, -0.8]  # of the angles between three bars and the load that they carry


def elongations(load: Tensor) -> Tensor:
    """Minimise the energy STIFFNESS sum e^2 / 2 subject to STIFFNESS sum e cos = load: in proportion to the cosines."""
    cosines = torch.tensor(COSINES).to(load)
    return load.unsqueeze(-1) * cosines / (STIFFNESS * cosines.square().sum())


def vertex(x: Tensor) -> Tensor:
    point = torch.full_like(x, 1e-10)
    point[..., 0] = 1 - 2e-10
    return point


ROWS = torch.tensor([[1.0, 2.0, 0.5], [0.7, 0.4, 1.2]], dtype=DOUBLE)
TRAPS = [
    Trap(
        "a barrier, next to it",
        lambda x, u: -u.log() - x * (1 - u).log(),
        lambda x: 1 / (1 + x),
        lambda x: torch.full_like(x, 1e-10),
        ROWS[0],
    ),
    Trap(
        "the simplex, near a vertex",
        lambda x, u: -(x * u.log()).sum(),
        lambda x: x / x.sum(-1, keepdim=True),
        vertex,
        ROWS,
        lambda _, u: u.sum() - 1,
        lambda _, u: -u,
    ),
    Trap(
        "an infinite curvature at a bound",
        lambda x, u: u.clamp(min=0) ** 1.5 / 1.5 - x * u,
        lambda x: x.square(),
        torch.zeros_like,
        ROWS[0],
        inequality=lambda _, u: -u,
        way_out=False,  # the first step would need the curvature
    ),
    Trap(
        "a truss with unknowns of 1e-11",
        lambda _, u: STIFFNESS * u.square().sum() / 2,
        elongations,
        lambda x: 0.32 * elongations(x),  # two thirds of the load hang in the air
        ROWS[0],
        lambda x, u: STIFFNESS * (torch.tensor(COSINES).to(u) * u).sum() - x,
    ),
    Trap(
        "bars of 1 and unknowns of 1e-11",
        lambda x, u: u[: len(x)].sum(),
        lightest_bars,
        exchanged_bars,
        ROWS,
        lambda x, u: STIFFNESS * u[: len(x)] * u[len(x) :] - x,
        lambda x, u: u[len(x) :].sum() / LIMIT - 1,
        way_out=False,  # not convex
    ),
    Trap(
        "a fit with an unknown of 1.5e-14",
        lambda x, u: 2.6e4 * (u / 1.5e-14 - x).square(),
        lambda x: 1.5e-14 * x,
        torch.zeros_like,
        ROWS[0],
    ),
]
