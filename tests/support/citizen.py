"""What the files about PyTorch share: the solvers, a node with a closed form, and a way to compare."""

from __future__ import annotations

import pytest
from torch import Tensor

from declarative import DeclarativeNode
from tests.support.helpers import half_square, normalise
from tests.support.problem_table import TABLE

each_problem = pytest.mark.parametrize("case", TABLE, ids=lambda case: case.name)
SOLVERS = {"newton": "newton", "scipy": "scipy", "closed form": normalise}
each_solver = pytest.mark.parametrize("solver", SOLVERS.values(), ids=SOLVERS)


def unit(_, u):
    return u.square().sum() - 1


def itself(x):
    return x


def sphere(solver=normalise) -> DeclarativeNode:
    return DeclarativeNode(half_square, unit, solver=solver, start=itself)


def loss(y: Tensor) -> Tensor:
    return ((y + 0.3) ** 3).sum()


def near(one: Tensor, other: Tensor, tolerance: float) -> bool:
    """Relative to the largest entry, and absolute below 1; tensors without entries are."""
    return one.shape == other.shape and (
        not one.numel() or float((one - other).abs().max()) <= tolerance * max(1.0, float(other.abs().max()))
    )
