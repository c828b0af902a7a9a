"""Projections onto balls."""

from __future__ import annotations

import math
from typing import Unpack

import torch
from torch import Tensor

from declarative.linear import Pair, Solve, System
from declarative.optimality import kink_tolerance
from declarative.structure import Kind, Point

from .formula import Multipliers
from .inputs import Number, ScalarParameter
from .layer import Options
from .projection import Projection, ProjectionFormula, polar, radial_system
from .systems import IdentitySystem


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

    def constrained_system(self, point: Point, kind: Kind) -> System:
        return radial_system(point, kind, 1 / (1 - point.multipliers))

    def pull_scalar(self, value: Tensor, u: Tensor, z: Tensor, s: Tensor) -> Tensor:  # noqa: ARG002
        """C = -radius."""
        return value * s.squeeze(-1)


class Clamp(ProjectionFormula):
    """x between -radius and radius."""

    linear = True

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

    def constrained_system(self, point: Point, kind: Kind) -> System:  # noqa: ARG002
        return BoxSystem(point.active)

    def pull_scalar(self, value: Tensor, u: Tensor, z: Tensor, s: Tensor) -> Tensor:  # noqa: ARG002
        """C = -1 in every row."""
        return s.sum(-1)


def _multipliers(excess: Tensor, small: Number) -> Multipliers:
    """Minus what x is beyond a constraint; at a kink the constraint does not count."""
    weak = excess.abs() <= small
    active = (excess > 0) & ~weak
    return torch.where(active, -excess, 0.0), active, weak


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
