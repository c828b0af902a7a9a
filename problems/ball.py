"""Projections onto spheres, balls and boxes."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Unpack

import torch
from torch import Tensor

from declarative import Status
from declarative.linear import Pair, Solve, System
from declarative.optimality import kink_tolerance
from declarative.problem import Batch
from declarative.solution import RawSolution
from declarative.structure import Kind, Point

from .formula import Multipliers
from .inputs import Number, ScalarParameter
from .layer import Options
from .projection import Projection, ProjectionFormula, polar, radial_system
from .systems import IdentitySystem


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

    def curved_system(self, point: Point, kind: Kind) -> System:
        (x,) = self.arguments(point.batch, point.u)
        return radial_system(point, kind, 1 / (x * point.u).sum(-1, keepdim=True))  # ||x|| = x' y, to all digits


def _nearby(x: Tensor) -> Tensor:
    """For a general solver: a direction somewhat off that of x."""
    return torch.nn.functional.normalize(x + 0.1 * x.abs().amax() * torch.ones_like(x).cumsum(0).cos(), dim=0)


def in_ball(x: Tensor, radius: Number, u: Tensor) -> Tensor:  # noqa: ARG001
    """(||u||^2 - radius^2) / 2 <= 0."""
    return (u.square().sum() - radius**2) / 2


def in_box(x: Tensor, radius: Number, u: Tensor) -> Tensor:  # noqa: ARG001
    """u <= radius and -u <= radius."""
    return torch.cat([u - radius, -u - radius])


class BallProjection(Projection):
    """The nearest point of a ball around the origin: minimise ||u - x||^2 / 2 subject to ||u|| <= radius.

    For the Euclidean ball, (||u||^2 - radius^2) / 2 <= 0: a point inside stays where it is and has gradient v; one
    outside is scaled to the radius, y = x radius / ||x||, and has the gradient of the sphere. For the maximum norm
    the ball is a box, and the projection clamps every entry.

    Shapes: x (batch, m), radius () or (batch,) -> y (batch, m).

    Degenerate: a point exactly on the surface is at a kink; the one-sided derivative from inside is taken, with a
    :class:`NumericalWarning`.

    Args:
        radius: of the ball; a number, or a tensor (see :class:`Layer`).
        norm: 2 or ``math.inf``.
        **options: see :class:`Layer`.

    Example:
        >>> import torch
        >>> from problems import BallProjection
        >>> BallProjection(radius=1.0)(torch.tensor([[3.0, 4.0], [0.1, 0.2]]))
        tensor([[0.6000, 0.8000],
                [0.1000, 0.2000]])
        >>> BallProjection(norm=float("inf"))(torch.tensor([[3.0, 0.5]]), torch.tensor(2.0))  # with another radius
        tensor([[2.0000, 0.5000]])
    """

    optional = ("radius",)

    def __init__(self, radius: Number = 1.0, *, norm: float = 2, **options: Unpack[Options]) -> None:
        if not isinstance(norm, int | float) or norm not in (2, math.inf):
            raise ValueError(f"norm must be 2 or math.inf, but is {norm!r}.")
        self.norm = norm
        inside, formula = (in_ball, Shrink) if norm == 2 else (in_box, Clamp)
        super().__init__(None, inside, solver=formula(scalar=ScalarParameter("radius", radius)), **options)


class Shrink(ProjectionFormula):
    """x radius / ||x|| where x is outside of the ball."""

    def solution(self, x: Tensor, radius: Tensor) -> Tensor:
        direction, length = polar(x)
        return torch.where(length > radius, direction * radius, x)

    def conditions(self, x: Tensor, radius: Tensor, u: Tensor) -> Pair:
        """Outside, u - x = l u with l = 1 - ||x|| / radius."""
        factor = (polar(x)[1] / radius).clamp(min=1.0)
        size = torch.maximum((u - x).abs().amax(-1, keepdim=True), radius)
        stationarity = (u / size * factor - x / size).abs().amax(-1)
        return stationarity, (polar(u)[1] / radius - 1).clamp(min=0.0).squeeze(-1)

    def multipliers(self, x: Tensor, radius: Tensor, u: Tensor) -> Multipliers:
        return _multipliers(polar(x)[1] / radius - 1, kink_tolerance(u.dtype))

    def curved_system(self, point: Point, kind: Kind) -> System:
        return radial_system(point, kind, 1 / (1 - point.multipliers))

    def pull_scalar(self, value: Tensor, u: Tensor, z: Tensor, s: Tensor) -> Tensor:  # noqa: ARG002
        """C = -radius."""
        return value * s.squeeze(-1)


class BoxSystem(IdentitySystem):
    """H = I with the constraints [u; -u] <= radius, some of them active: never both of one entry."""

    def rows(self, eye: Tensor) -> Tensor:
        return torch.cat([eye, -eye])

    def factorise(self) -> Solve:
        upper, lower = self.active.chunk(2, -1)

        def solve(r: Tensor, t: Tensor) -> Pair:
            t_upper, t_lower = t.chunk(2, -1)
            z = torch.where(upper, t_upper, torch.where(lower, -t_lower, r))
            return z, torch.cat([torch.where(upper, r - z, 0.0), torch.where(lower, z - r, 0.0)], -1)

        return solve


class Clamp(ProjectionFormula):
    """x between -radius and radius."""

    linear_system = BoxSystem

    def solution(self, x: Tensor, radius: Tensor) -> Tensor:
        return x.clamp(-radius, radius)

    def conditions(self, x: Tensor, radius: Tensor, u: Tensor) -> Pair:
        """u - x is what x is beyond a bound."""
        beyond = x.abs() - radius
        size = torch.maximum(beyond.abs().amax(-1, keepdim=True), radius)
        stationarity = ((u - x + x.sign() * beyond.relu()) / size).abs().amax(-1)
        return stationarity, (u.abs() / radius - 1).amax(-1).relu()

    def multipliers(self, x: Tensor, radius: Tensor, u: Tensor) -> Multipliers:
        """u - x is the multiplier of an upper bound, and minus it that of a lower bound; both are not positive."""
        return _multipliers(torch.cat([x - radius, -x - radius], -1), kink_tolerance(u.dtype) * radius)

    def pull_scalar(self, value: Tensor, u: Tensor, z: Tensor, s: Tensor) -> Tensor:  # noqa: ARG002
        """C = -1 in every row."""
        return s.sum(-1)


def _multipliers(excess: Tensor, small: Number) -> Multipliers:
    """Minus what x is beyond a constraint; at a kink the constraint does not count."""
    weak = excess.abs() <= small
    active = (excess > 0) & ~weak
    return torch.where(active, -excess, 0.0), active, weak
