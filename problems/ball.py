"""Projections onto balls."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from declarative import Rule, Solver
from declarative.derivatives import Point
from declarative.linear.contract import Pair, Solve, System
from declarative.optimality import Assessment, kink_tolerance
from declarative.problem import Batch
from declarative.solution import RawSolution
from declarative.structure import Kind

from .layer import Inputs, Layer, only_input, require_positive
from .sphere import squared_distance
from .systems import DiagonalSystem, OneConstraintSystem


def in_ball(x: Tensor, u: Tensor, radius: float) -> Tensor:  # noqa: ARG001
    """(||u||^2 - radius^2) / 2 <= 0."""
    return (u.square().sum() - radius**2) / 2


def in_box(x: Tensor, u: Tensor, radius: float) -> Tensor:  # noqa: ARG001
    """u <= radius and -u <= radius."""
    return torch.cat([u - radius, -u - radius])


class BallProjection(Layer):
    """The nearest point of a ball around the origin: minimise ||u - x||^2 / 2 subject to ||u|| <= radius.

    For the Euclidean ball, (||u||^2 - radius^2) / 2 <= 0: a point inside stays where it is and has gradient v; one
    outside is scaled to the radius, y = x radius / ||x||, and has the gradient of the sphere. For the maximum norm
    the ball is a box, and the projection clamps every entry.

    Shapes: x (batch, m) -> y (batch, m).

    Degenerate: a point exactly on the surface is at a kink; the one-sided derivative from inside is taken, with a
    :class:`NumericalWarning`.

    Args:
        radius: of the ball.
        norm: 2 or ``math.inf``.
        gradient: the rule by which it is differentiated.
        on_failure: as in :class:`DeclarativeNode`.

    Example:
        >>> import torch
        >>> from problems import BallProjection
        >>> BallProjection(radius=1.0)(torch.tensor([[3.0, 4.0], [0.1, 0.2]]))
        tensor([[0.6000, 0.8000],
                [0.1000, 0.2000]])
        >>> BallProjection(radius=1.0, norm=float("inf"))(torch.tensor([[3.0, 0.5]]))
        tensor([[1.0000, 0.5000]])
    """

    def __init__(
        self,
        radius: float = 1.0,
        *,
        norm: float = 2,
        gradient: str | Rule = "exact",
        on_failure: Literal["raise", "mask"] = "raise",
    ) -> None:
        require_positive(radius=radius)
        if not isinstance(norm, int | float) or norm not in (2, math.inf):
            raise ValueError(f"norm must be 2 or math.inf, but is {norm!r}.")
        round_one = norm == 2
        super().__init__(
            squared_distance,
            None,
            partial(in_ball if round_one else in_box, radius=radius),
            solver=Shrink(radius) if round_one else Clamp(radius),
            system=_ball_system if round_one else _box_system,
            pullback=_pullback,
            start=torch.zeros_like,
            gradient=gradient,
            on_failure=on_failure,
        )

    def prepare(self, *xs: Tensor) -> Inputs:
        return (only_input("x", xs, ("batch", "m")),)


@dataclass(frozen=True)
class Shrink(Solver):
    """x radius / max(||x||, radius)."""

    radius: float

    def solve(self, batch: Batch, start: Tensor) -> RawSolution:
        x = batch.unshared().xs[0].to(start.dtype)
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return RawSolution.unsolved(torch.where(length > self.radius, x * (self.radius / length), x))

    def assess(self, batch: Batch, raw: RawSolution) -> Assessment:
        """Outside, u - x = l u with l = 1 - ||x|| / radius, which is not positive."""
        x = batch.unshared().xs[0].to(raw.y.dtype)
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        multiplier = (1 - length / self.radius).clamp(max=0.0)
        small = kink_tolerance(raw.y.dtype)
        weak = (length / self.radius - 1).abs() <= small
        active = (multiplier < 0) & ~weak
        multiplier = torch.where(active, multiplier, 0.0)
        slope = (raw.y - x).abs().amax(-1).clamp(min=self.radius)
        stationarity = (raw.y - x - multiplier * raw.y).abs().amax(-1) / slope
        violation = (torch.linalg.vector_norm(raw.y, dim=-1) / self.radius - 1).clamp(min=0.0)
        residual = torch.maximum(stationarity, violation).nan_to_num(nan=torch.inf)
        return Assessment(multiplier, active, weak, stationarity, violation, residual)


@dataclass(frozen=True)
class Clamp(Solver):
    """Every entry clamped to [-radius, radius]."""

    radius: float

    def solve(self, batch: Batch, start: Tensor) -> RawSolution:
        x = batch.unshared().xs[0].to(start.dtype)
        return RawSolution.unsolved(x.clamp(-self.radius, self.radius))

    def assess(self, batch: Batch, raw: RawSolution) -> Assessment:
        """u - x is the multiplier of an upper bound, and minus it that of a lower bound; both are not positive."""
        x = batch.unshared().xs[0].to(raw.y.dtype)
        beyond = torch.cat([x - self.radius, -x - self.radius], -1)
        small = kink_tolerance(raw.y.dtype) * max(self.radius, 1.0)
        weak = beyond.abs() <= small
        active = (beyond > 0) & ~weak
        multipliers = torch.where(active, -beyond, 0.0)
        upper, lower = multipliers.chunk(2, -1)
        stationarity = (raw.y - x - upper + lower).abs().amax(-1) / beyond.abs().amax(-1).clamp(min=1.0)
        violation = (raw.y.abs().amax(-1) / self.radius - 1).clamp(min=0.0)
        residual = torch.maximum(stationarity, violation).nan_to_num(nan=torch.inf)
        return Assessment(multipliers, active, weak, stationarity, violation, residual)


def _pullback(xs: Inputs, u: Tensor, multipliers: Tensor | None, z: Tensor, s: Tensor) -> Inputs:  # noqa: ARG001
    """B = -I, C = 0."""
    return (z,)


def _ball_system(point: Point, kind: Kind) -> System:
    ones = torch.ones_like(point.u)
    if kind == "objective":
        return DiagonalSystem(ones)
    inverse = ones / (1 - point.multipliers)  # H = ||x|| / radius I outside
    return DiagonalSystem(inverse) if kind == "curvature" else OneConstraintSystem(inverse, point.u, point.active)


def _box_system(point: Point, kind: Kind) -> System:
    ones = torch.ones_like(point.u)
    return BoxSystem(ones, point.active) if kind == "full" else DiagonalSystem(ones)


class BoxSystem(System):
    """H = I with the constraints [u; -u] <= radius, some of them active: never both of one entry."""

    def __init__(self, ones: Tensor, active: Tensor) -> None:  # (batch, m), (batch, 2 m)
        super().__init__(ones, active)
        self.ones = ones
        self.active = active

    def multiply(self, z: Tensor, s: Tensor) -> Pair:
        mask = self.active.to(z.dtype)
        (upper, lower), (s_upper, s_lower) = mask.chunk(2, -1), s.chunk(2, -1)
        top = self.ones * z + upper * s_upper - lower * s_lower
        return top, torch.cat([upper * z, -lower * z], -1) - (1 - mask) * s

    def factorise(self) -> Solve:
        upper, lower = self.active.chunk(2, -1)

        def solve(r: Tensor, t: Tensor) -> Pair:
            t_upper, t_lower = t.chunk(2, -1)
            z = torch.where(upper, t_upper, torch.where(lower, -t_lower, r))
            s = torch.cat([torch.where(upper, r - z, 0.0), torch.where(lower, z - r, 0.0)], -1)
            return z, s

        return solve
