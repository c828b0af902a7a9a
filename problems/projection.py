"""What the projections have in common: the distance to x, its derivatives, and lengths of any size."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from declarative.linear import DiagonalHessianSystem, System
from declarative.problem import Function
from declarative.structure import Kind, Point

from .formula import Formula
from .inputs import Inputs
from .layer import Layer
from .systems import IdentitySystem, OneConstraintSystem, largest_or_one


def squared_distance(x: Tensor, *rest: Tensor) -> Tensor:
    """||u - x||^2 / 2, where u is the last argument."""
    return (rest[-1] - x).square().sum() / 2


def origin(x: Tensor, *rest: Tensor) -> Tensor:  # noqa: ARG001
    """Where a general solver starts."""
    return torch.zeros_like(x)


class Projection(Layer):
    """Abstract: the nearest point to x: by default, minimise ||u - x||^2 / 2 subject to the constraints."""

    pure = True
    required = ("x",)

    def __init__(self, *constraints: Function | None, objective: Function = squared_distance, **options: Any) -> None:
        super().__init__(objective, *constraints, **{"start": origin} | options)


class ProjectionFormula(Formula):
    """Abstract: the formulas of a projection, whose objective has the term -x' u."""

    linear_system: ClassVar[type[IdentitySystem] | None] = None  # that of constraints that are all linear

    def system(self, point: Point, kind: Kind) -> System:
        """H_hat = I, which is H too if the constraints are linear."""
        if kind == "objective" or (kind == "curvature" and self.linear_system):
            return DiagonalHessianSystem(torch.ones_like(point.u))
        return self.linear_system(point.active) if self.linear_system else self.curved_system(point, kind)

    def curved_system(self, point: Point, kind: Kind) -> System:
        """The one with the curvature of the constraints and, for the kind ``full``, their rows."""
        raise NotImplementedError

    def pullback(self, xs: Inputs, u: Tensor, multipliers: Tensor | None, z: Tensor, s: Tensor) -> Inputs:  # noqa: ARG002
        """B = -I, C = 0 for x. A copy: with the rule ``identity``, z is the caller's own cotangent."""
        return z.reshape(xs[0].shape).clone(), *(self.pull_scalar(value, u, z, s) for value in xs[1:])

    def pull_scalar(self, value: Tensor, u: Tensor, z: Tensor, s: Tensor) -> Tensor:
        """-(B' z + C' s) for the scalar parameter, (batch,)."""
        raise NotImplementedError


def polar(x: Tensor) -> tuple[Tensor, Tensor]:  # (batch, m) -> (batch, m), (batch, 1)
    """x / ||x|| and ||x||, neither of which overflows or underflows on the way; both are zero where x is."""
    size = largest_or_one(x).unsqueeze(-1)
    scaled = x / size
    length = torch.linalg.vector_norm(scaled, dim=-1, keepdim=True)
    return scaled / torch.where(length > 0, length, 1.0), size * length


def radial_system(point: Point, kind: Kind, inverse: Tensor) -> System:  # (batch, 1)
    """That of a projection onto a sphere: H = (1 - l) I, whose inverse is given with all its digits.

    Near the centre of the sphere 1 - l cancels; its derivative, for which it is taken, does not.
    """
    hessian, inverse = (1 - point.multipliers).expand_as(point.u), inverse.detach().expand_as(point.u)
    active = point.active if kind == "full" else torch.zeros_like(point.active)
    return OneConstraintSystem(hessian, inverse, point.u, active)
