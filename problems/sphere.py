"""The nearest point on a sphere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from declarative import Rule, Solver, Status
from declarative.derivatives import Point
from declarative.linear.contract import System
from declarative.optimality import Assessment
from declarative.problem import Batch
from declarative.solution import RawSolution
from declarative.structure import Kind

from .layer import Inputs, Layer, only_input
from .systems import DiagonalSystem, OneConstraintSystem


def squared_distance(x: Tensor, u: Tensor) -> Tensor:
    """||u - x||^2 / 2."""
    return (u - x).square().sum() / 2


def on_unit_sphere(x: Tensor, u: Tensor) -> Tensor:  # noqa: ARG001
    """(||u||^2 - 1) / 2."""
    return (u.square().sum() - 1) / 2


class SphereProjection(Layer):
    """The nearest point of the unit sphere: minimise ||u - x||^2 / 2 subject to (||u||^2 - 1) / 2 = 0.

    The solution is y = x / ||x||, its multiplier 1 - ||x||, and the Hessian of the Lagrangian ||x|| I. So the gradients
    of the rules for a cotangent v are

        exact (v - y y' v) / ||x||,   curvature v / ||x||,   unconstrained v,   identity v.

    Shapes: x (batch, m) -> y (batch, m).

    Degenerate: at x = 0 every point of the sphere is nearest. Such a problem gets ``Status.SINGULAR``, which raises a
    :class:`SolverError` or, with ``on_failure="mask"``, has no gradient.

    Args:
        gradient: the rule by which it is differentiated.
        on_failure: as in :class:`DeclarativeNode`.

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

    def __init__(self, *, gradient: str | Rule = "exact", on_failure: Literal["raise", "mask"] = "raise") -> None:
        super().__init__(
            squared_distance,
            on_unit_sphere,
            solver=Normalise(),
            system=_system,
            pullback=_pullback,
            start=_nearby,
            gradient=gradient,
            on_failure=on_failure,
        )

    def prepare(self, *xs: Tensor) -> tuple[Tensor, ...]:
        return (only_input("x", xs, ("batch", "m")),)


@dataclass(frozen=True)
class Normalise(Solver):
    """y = x / ||x||, computed so that it neither overflows nor underflows."""

    def solve(self, batch: Batch, start: Tensor) -> RawSolution:
        x = batch.unshared().xs[0].to(start.dtype)
        size = x.abs().amax(-1, keepdim=True)
        centre = size == 0
        scaled = x / torch.where(centre, 1.0, size)
        length = torch.linalg.vector_norm(scaled, dim=-1, keepdim=True)
        y = torch.where(centre, 0.0, scaled / torch.where(centre, 1.0, length))
        codes = torch.where(centre.squeeze(-1), int(Status.SINGULAR), int(Status.CONVERGED))
        messages = tuple("x = 0 has no nearest point" if code else "" for code in codes.tolist())
        return RawSolution(y, 1 - size * length, codes, torch.zeros_like(codes), messages)

    def assess(self, batch: Batch, raw: RawSolution) -> Assessment | None:
        if raw.multipliers is None:
            return None
        x = batch.unshared().xs[0].to(raw.y.dtype)
        length = 1 - raw.multipliers
        stationarity = ((length * raw.y - x) / torch.where(length > 0, length, 1.0)).abs().amax(-1)
        violation = (torch.linalg.vector_norm(raw.y, dim=-1) - 1).abs()
        residual = torch.where(raw.codes == Status.CONVERGED, torch.maximum(stationarity, violation), torch.inf)
        active = torch.ones_like(raw.multipliers, dtype=torch.bool)
        return Assessment(raw.multipliers, active, ~active, stationarity, violation, residual)


def _system(point: Point, kind: Kind) -> System:
    if kind == "objective":
        return DiagonalSystem(torch.ones_like(point.u))
    inverse = (1 / (1 - point.multipliers)).expand(point.u.shape)  # H = ||x|| I
    return DiagonalSystem(inverse) if kind == "curvature" else OneConstraintSystem(inverse, point.u, point.active)


def _pullback(xs: Inputs, u: Tensor, multipliers: Tensor | None, z: Tensor, s: Tensor) -> Inputs:  # noqa: ARG001
    """B = -I, C = 0."""
    return (z,)


def _nearby(x: Tensor) -> Tensor:
    """For a general solver: a direction somewhat off that of x."""
    return torch.nn.functional.normalize(x + 0.1 * x.abs().amax() * torch.ones_like(x).cumsum(0).cos(), dim=0)
