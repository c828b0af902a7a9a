"""What the projections have in common: the distance to x, its derivatives, and lengths of any size."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from declarative.linear import DiagonalHessianSystem, System
from declarative.problem import Function
from declarative.structure import Kind, Point

from .layer import Inputs, Layer
from .systems import OneConstraintSystem, largest_or_one


class Projection(Layer):
    """The nearest point to x: minimise ||u - x||^2 / 2 subject to the constraints."""

    pure = True
    required = ("x",)

    def __init__(self, *constraints: Function | None, **parts: Any) -> None:
        super().__init__(squared_distance, *constraints, **{"pullback": pull_identity, "start": origin} | parts)


def squared_distance(x: Tensor, *rest: Tensor) -> Tensor:
    """||u - x||^2 / 2, where u is the last argument."""
    return (rest[-1] - x).square().sum() / 2


def pull_identity(xs: Inputs, u: Tensor, multipliers: Tensor | None, z: Tensor, s: Tensor) -> Inputs:  # noqa: ARG001
    """B = -I, C = 0. A copy: with the rule ``identity``, z is the caller's own cotangent."""
    return (z.reshape(xs[0].shape).clone(),)


def origin(x: Tensor, *rest: Tensor) -> Tensor:  # noqa: ARG001
    """Where a general solver starts."""
    return torch.zeros_like(x)


def polar(x: Tensor) -> tuple[Tensor, Tensor]:  # (batch, m) -> (batch, m), (batch, 1)
    """x / ||x|| and ||x||, neither of which overflows or underflows on the way; both are zero where x is."""
    size = largest_or_one(x).unsqueeze(-1)
    scaled = x / size
    length = torch.linalg.vector_norm(scaled, dim=-1, keepdim=True)
    return scaled / torch.where(length > 0, length, 1.0), size * length


def plain_polar(x: Tensor) -> tuple[Tensor, Tensor]:  # (batch, m) -> (batch, m), (batch, 1)
    """The same of tensors that nobody differentiates, which can be asked whether anything overflows or underflows."""
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    least, most = torch.aminmax(length)
    limit = torch.finfo(x.dtype).tiny ** 0.4  # squares that underflow are lost beside its square
    return (x / length, length) if least.item() > limit and most.item() < 1 / limit else polar(x)


def radial_system(point: Point, kind: Kind, inverse: Tensor) -> System:  # (batch, 1)
    """The systems of a projection onto a sphere: H = (1 - l) I, whose inverse is given with all its digits.

    Near the centre of the sphere 1 - l cancels; its derivative, for which it is taken, does not.
    """
    ones = torch.ones_like(point.u)
    if kind == "objective":
        return DiagonalHessianSystem(ones)
    hessian, inverse = (1 - point.multipliers) * ones, inverse.detach() * ones
    active = point.active if kind == "full" else torch.zeros_like(point.active)
    return OneConstraintSystem(hessian, inverse, point.u, active)
