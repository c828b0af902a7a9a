"""The nearest point on a sphere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Unpack

import torch
from torch import Tensor

from declarative import Solver, Status
from declarative.linear import Pair, System
from declarative.optimality import Assessment
from declarative.problem import Batch
from declarative.solution import RawSolution
from declarative.structure import Kind, Point

from .formula import judged
from .layer import Options
from .projection import Projection, plain_polar, polar, radial_system


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
        super().__init__(on_unit_sphere, solver=Normalise(), system=_system, start=_nearby, **options)


@dataclass(frozen=True)
class Normalise(Solver):
    """y = x / ||x||."""

    needs_start = False

    def solve(self, batch: Batch, start: Tensor) -> RawSolution:
        y, length = plain_polar(batch.unshared().xs[0].to(start.dtype))
        codes = torch.zeros(len(y), dtype=torch.int64, device=y.device)
        messages = ("",) * len(y)
        if not length.min().item() >= torch.finfo(y.dtype).tiny:
            centre = (length < torch.finfo(y.dtype).tiny).squeeze(-1)
            codes = torch.where(centre, int(Status.SINGULAR), codes)
            messages = tuple("x = 0 has no nearest point" if code else "" for code in codes.tolist())
        return RawSolution(y, 1 - length, codes, torch.zeros_like(codes), messages, byproduct=length)

    def assess(self, batch: Batch, raw: RawSolution) -> Assessment:
        x = batch.unshared().xs[0].to(raw.y.dtype)
        length = _length(x, raw.byproduct)
        stationarity, violation = _conditions(x, length, raw.y)
        if any(raw.messages):
            stationarity = torch.where(raw.codes == Status.CONVERGED, stationarity, torch.inf)
        return judged(1 - length, stationarity, violation)

    def solve_plainly(self, batch: Batch, start: Tensor) -> Pair | None:
        x = batch.unshared().xs[0].to(start.dtype)
        y, length = plain_polar(x)
        regular = length.min().item() >= torch.finfo(y.dtype).tiny
        return (y, torch.maximum(*_conditions(x, length, y))) if regular else None


def _conditions(x: Tensor, length: Tensor, u: Tensor) -> Pair:
    """u - x = (1 - ||x||) u, relative to ||x||, and ||u|| = 1."""
    violation = (torch.linalg.vector_norm(u, dim=-1) - 1).abs()
    return torch.addcdiv(u, x, length, value=-1).abs().amax(-1), violation


def _length(x: Tensor, left: Tensor | None) -> Tensor:  # (batch, 1)
    """||x||, which the solver has left, unless there was nothing to solve."""
    return polar(x)[1] if left is None or not left.shape[-1] else left


def _system(point: Point, kind: Kind) -> System:
    x = point.batch.unshared().xs[0].to(point.u.dtype)
    return radial_system(point, kind, 1 / _length(x, point.byproduct))


def _nearby(x: Tensor) -> Tensor:
    """For a general solver: a direction somewhat off that of x."""
    return torch.nn.functional.normalize(x + 0.1 * x.abs().amax() * torch.ones_like(x).cumsum(0).cos(), dim=0)
