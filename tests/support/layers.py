"""Ready-made layers, and nodes by every solver, with inputs: what holds for any layer is tested for all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from declarative import DeclarativeNode
from tests.support.helpers import case as known_problem
from tests.support.helpers import half_square, normalise, unit
from tests.support.problem_table import TABLE, Case

SOLVERS = {"newton": "newton", "scipy": "scipy", "closed form": normalise}
SOLVED_BY: dict[str, Sequence[str | None]] = {
    "sphere": ("closed form", "newton", "scipy"),
    "simplex": ("closed form", "newton"),
    "ball": ("closed form", "scipy"),
    "eigenvector": ("closed form",),
    "two inputs": ("closed form", "scipy"),
    "linear-equality": (None,),  # the default solver
    "box": (None,),
    "u a matrix": ("closed form",),
    "u a scalar": ("closed form",),
}


def node_case(name: str, solver: str | None) -> Case:
    problem = known_problem(name)
    return Case(f"{name}, {solver or 'default'}", problem.node(solver), lambda generator: problem.inputs(3, generator))


NODES = [node_case(name, solver) for name, solvers in SOLVED_BY.items() for solver in solvers]
LAYERS = [*TABLE, *NODES]
each_ready_made = pytest.mark.parametrize("case", TABLE, ids=lambda case: case.name)
each_layer = pytest.mark.parametrize("case", LAYERS, ids=lambda case: case.name)
each_solver = pytest.mark.parametrize("solver", SOLVERS.values(), ids=SOLVERS)


def itself(x: Tensor) -> Tensor:
    return x


def sphere(solver: str | Callable[..., Tensor] = normalise) -> DeclarativeNode:
    return DeclarativeNode(half_square, unit, solver=solver, start=itself)


def loss(y: Tensor) -> Tensor:
    return ((y + 0.3) ** 3).sum()


def some_of(xs: Sequence[Tensor], size: int, rows: slice | Tensor) -> tuple[Tensor, ...]:
    """The inputs of these problems of a batch; what the batch shares stays."""
    return tuple((x.detach()[rows] if x.dim() > 1 and len(x) == size else x.detach()).requires_grad_() for x in xs)


def near(one: Tensor, other: Tensor, tolerance: float) -> bool:
    """Relative to the largest entry, and absolute below 1; tensors without entries are."""
    return one.shape == other.shape and (
        not one.numel()
        or float((one - other).detach().abs().max()) <= tolerance * max(1.0, float(other.detach().abs().max()))
    )


def same_bits(some: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(some, others, strict=True))
