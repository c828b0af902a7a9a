"""The nearest point on a sphere."""

from __future__ import annotations

from dataclasses import replace
from typing import Unpack

import torch
from torch import Tensor

from declarative import Status
from declarative.linear import Pair, System
from declarative.problem import Batch
from declarative.solution import RawSolution
from declarative.structure import Kind, Point

from .formula import Multipliers
from .layer import Options
from .projection import Projection, ProjectionFormula, polar, radial_system


def on_unit_sphere(x: Tensor, u: Tensor) -> Tensor:  # noqa: ARG001
    """(||u||^2 - 1) / 2."""
    return (u.square().sum() - 1) / 2


class SphereProjection(Projection):
    """The nearest point of the unit sphere: minimise ||u - x||^2 / 2 subject to (||u||^2 - 1) / 2 = 0.

    The solution is y = x / ||x||, its multiplier 1 - ||x||, and the Hessian of the Lagrangian ||x|| I. So the gradients
    of the rules for a cotangent v are

        exact (v - y y' v) / ||x||,   curvature v / ||x||,   unconstrained v,   identity v.

    Shapes: x (batch, m) -> y (batch, m).

    Degenerate: at x = 0 every point of the sphere is nearest. Such a problem, and one whose 1 / ||x|| overflows, gets
    ``Status.SINGULAR``, which raises a :class:`SolverError` or, with ``on_failure="mask"``, has no gradient.

    Example:
        >>> import torch
        >>> from problems import SphereProjection
        >>> x = torch.tensor([[3.0, 4.0]], requires_grad=True)
        >>> y = SphereProjection()(x)
        >>> y.detach()
        tensor([[0.6000, 0.8000]])
        >>> torch.autograd.grad(y[0, 0], x)[0]
        tensor([[ 0.1280, -0.0960]])
    """

    def __init__(self, **options: Unpack[Options]) -> None:
        super().__init__(on_unit_sphere, solver=Normalise(), start=_nearby, **options)


class Normalise(ProjectionFormula):
    """y = x / ||x||, and ||x||."""

    def solution(self, x: Tensor) -> Pair:
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        least, most = torch.aminmax(length)
        limit = torch.finfo(x.dtype).tiny ** 0.4  # squares that underflow are lost beside its square
        return (x / length, length) if least.item() > limit and most.item() < 1 / limit else polar(x)

    def conditions(self, x: Tensor, u: Tensor, *known: Tensor) -> Pair:
        """u - x = (1 - ||x||) u, relative to ||x||, and ||u|| = 1; not finite where 1 / ||x|| overflows."""
        (length,) = known or polar(x)[1:]
        length = torch.threshold(length, torch.finfo(x.dtype).tiny, 0.0)
        violation = (torch.linalg.vector_norm(u, dim=-1) - 1).abs()
        return torch.addcdiv(u, x, length, value=-1).abs().amax(-1), violation

    def multipliers(self, x: Tensor, u: Tensor, *known: Tensor) -> Multipliers:  # noqa: ARG002
        (length,) = known or polar(x)[1:]
        return 1 - length, None, None

    def solve(self, batch: Batch, start: Tensor) -> RawSolution:
        raw, tiny = super().solve(batch, start), torch.finfo(start.dtype).tiny
        assert raw.byproduct is not None
        if raw.byproduct.min().item() > tiny:
            return raw
        centre = (raw.byproduct <= tiny).squeeze(-1)
        messages = tuple("x = 0 has no nearest point" if one else "" for one in centre.tolist())
        return replace(raw, codes=torch.where(centre, int(Status.SINGULAR), raw.codes), messages=messages)

    def constrained_system(self, point: Point, kind: Kind) -> System:
        (x,) = self.arguments(point.batch, point.u)
        return radial_system(point, kind, 1 / (x * point.u).sum(-1, keepdim=True))  # ||x|| = x' y, to all digits


def _nearby(x: Tensor) -> Tensor:
    """For a general solver: a direction somewhat off that of x."""
    return torch.nn.functional.normalize(x + 0.1 * x.abs().amax() * torch.ones_like(x).cumsum(0).cos(), dim=0)
