"""Projections onto the probability simplex: Euclidean (sparsemax) and entropic (softmax)."""

from __future__ import annotations

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


def sums_to_one(x: Tensor, u: Tensor) -> Tensor:  # noqa: ARG001
    """1' u - 1."""
    return u.sum() - 1


def not_negative(x: Tensor, u: Tensor) -> Tensor:  # noqa: ARG001
    """-u <= 0."""
    return -u


def free_energy(x: Tensor, u: Tensor, temperature: float) -> Tensor:
    """-x' u + temperature sum(u log u)."""
    return -(x * u).sum() + temperature * (u * u.log()).sum()


class SimplexProjection(Layer):
    """The nearest point of the probability simplex (sparsemax):

        minimise ||u - x||^2 / 2   subject to   1' u = 1 and u >= 0.

    The solution is max(x - t, 0) with the threshold t that makes it sum to one. Some entries are exactly zero; the
    gradient is that of the others, v minus its mean over them, and zero for the entries at zero.

    Shapes: x (batch, m) -> y (batch, m).

    Degenerate: an entry of x that equals the threshold is where the set of zeros changes. The solution has a kink
    there, and a one-sided derivative is taken, with a :class:`NumericalWarning`.

    Args:
        gradient: the rule by which it is differentiated.
        on_failure: as in :class:`DeclarativeNode`.

    Example:
        >>> import torch
        >>> from problems import SimplexProjection
        >>> x = torch.tensor([[0.5, 0.9, -1.0]], requires_grad=True)
        >>> y = SimplexProjection()(x)
        >>> y.detach()
        tensor([[0.3000, 0.7000, 0.0000]])
        >>> torch.autograd.grad(y[0, 0], x)[0]
        tensor([[ 0.5000, -0.5000,  0.0000]])
    """

    def __init__(self, *, gradient: str | Rule = "exact", on_failure: Literal["raise", "mask"] = "raise") -> None:
        super().__init__(
            squared_distance,
            sums_to_one,
            not_negative,
            solver=Threshold(),
            system=_simplex_system,
            pullback=_pullback,
            start=_uniform,
            gradient=gradient,
            on_failure=on_failure,
        )

    def prepare(self, *xs: Tensor) -> Inputs:
        return (only_input("x", xs, ("batch", "m")),)


class EntropicSimplex(Layer):
    """The point of the probability simplex that balances a score with the entropy (softmax):

        minimise -x' u + temperature sum(u log u)   subject to   1' u = 1.

    The solution is softmax(x / temperature), which is positive by itself. H = diag(temperature / y), so that the
    approximate rules give y v / temperature, and the exact one y (v - y' v) / temperature.

    Shapes: x (batch, m) -> y (batch, m).

    Degenerate: entries that underflow are kept at the smallest number whose square does not, as good as zero.

    Args:
        temperature: the weight of the entropy.
        gradient: the rule by which it is differentiated.
        on_failure: as in :class:`DeclarativeNode`.

    Example:
        >>> import torch
        >>> from problems import EntropicSimplex
        >>> EntropicSimplex()(torch.tensor([[0.0, 1.0]]))
        tensor([[0.2689, 0.7311]])
    """

    def __init__(
        self,
        temperature: float = 1.0,
        *,
        gradient: str | Rule = "exact",
        on_failure: Literal["raise", "mask"] = "raise",
    ) -> None:
        require_positive(temperature=temperature)
        super().__init__(
            partial(free_energy, temperature=temperature),
            sums_to_one,
            solver=Softmax(temperature),
            system=partial(_entropic_system, temperature=temperature),
            pullback=_pullback,
            start=_uniform,
            gradient=gradient,
            on_failure=on_failure,
        )

    def prepare(self, *xs: Tensor) -> Inputs:
        return (only_input("x", xs, ("batch", "m")),)


@dataclass(frozen=True)
class Threshold(Solver):
    """max(x - t, 0), the threshold t found by sorting."""

    def solve(self, batch: Batch, start: Tensor) -> RawSolution:
        x = batch.unshared().xs[0].to(start.dtype)
        x = x - x.amax(-1, keepdim=True)  # a shift does not move the solution, and large numbers lose digits
        ordered = x.sort(-1, descending=True).values
        count = torch.arange(1, x.shape[-1] + 1, dtype=x.dtype, device=x.device)
        thresholds = (ordered.cumsum(-1) - 1) / count
        support = (ordered > thresholds).sum(-1, keepdim=True)
        return RawSolution.unsolved((x - thresholds.gather(-1, support - 1)).clamp(min=0.0))

    def assess(self, batch: Batch, raw: RawSolution) -> Assessment:
        """The gradient u - x is the first multiplier where u > 0, and not less elsewhere."""
        gradient = raw.y - batch.unshared().xs[0].to(raw.y.dtype)
        free = raw.y > 0
        first = (torch.where(free, gradient, 0.0).sum(-1) / free.sum(-1)).unsqueeze(-1)
        slope = gradient.abs().amax(-1, keepdim=True).clamp(min=1.0)
        pull = torch.where(free, 0.0, first - gradient)  # not positive where a bound holds u at zero
        small = kink_tolerance(raw.y.dtype)
        weak = (raw.y <= small) & (pull.abs() <= small * slope)
        held = ~free & ~weak
        stationarity = (torch.where(free, gradient - first, pull.clamp(min=0.0)) / slope).abs().amax(-1)
        violation = (raw.y.sum(-1) - 1).abs()
        always = torch.ones_like(first, dtype=torch.bool)
        return Assessment(
            multipliers=torch.cat([first, torch.where(held, pull, 0.0)], -1),
            active=torch.cat([always, held], -1),
            weak=torch.cat([~always, weak], -1),
            stationarity=stationarity,
            violation=violation,
            residual=torch.maximum(stationarity, violation).nan_to_num(nan=torch.inf),
        )


@dataclass(frozen=True)
class Softmax(Solver):
    """softmax(x / temperature)."""

    temperature: float

    def solve(self, batch: Batch, start: Tensor) -> RawSolution:
        x = batch.unshared().xs[0].to(start.dtype) / self.temperature
        return RawSolution.unsolved(x.softmax(-1).clamp(min=torch.finfo(x.dtype).tiny ** 0.5))

    def assess(self, batch: Batch, raw: RawSolution) -> Assessment:
        """The gradient -x_i + temperature (log y_i + 1) is the same for all i: the multiplier."""
        x = batch.unshared().xs[0].to(raw.y.dtype)
        multiplier = self.temperature * (1 - torch.logsumexp(x / self.temperature, -1, keepdim=True))
        gradient = -x + self.temperature * (raw.y.log() + 1)
        slope = gradient.abs().amax(-1, keepdim=True).clamp(min=self.temperature)
        stationarity = (raw.y * (gradient - multiplier) / slope).abs().amax(-1)  # an entry that underflows counts as 0
        violation = (raw.y.sum(-1) - 1).abs()
        active = torch.ones_like(multiplier, dtype=torch.bool)
        residual = torch.maximum(stationarity, violation).nan_to_num(nan=torch.inf)
        return Assessment(multiplier, active, ~active, stationarity, violation, residual)


def _pullback(xs: Inputs, u: Tensor, multipliers: Tensor | None, z: Tensor, s: Tensor) -> Inputs:  # noqa: ARG001
    """B = -I, C = 0."""
    return (z,)


def _uniform(x: Tensor) -> Tensor:
    return torch.ones_like(x) / x.shape[-1]


def _entropic_system(point: Point, kind: Kind, temperature: float) -> System:
    inverse = point.u / temperature
    if kind != "full":
        return DiagonalSystem(inverse)
    return OneConstraintSystem(inverse, torch.ones_like(point.u), point.active)


def _simplex_system(point: Point, kind: Kind) -> System:
    if kind != "full":
        return DiagonalSystem(torch.ones_like(point.u))
    return SimplexSystem(torch.ones_like(point.u), point.active)


class SimplexSystem(System):
    """H = I with the constraints 1' u = 1 and -u <= 0, some of these active."""

    def __init__(self, ones: Tensor, active: Tensor) -> None:  # (batch, m), (batch, 1 + m)
        super().__init__(ones, active)
        self.ones = ones
        self.active = active

    def multiply(self, z: Tensor, s: Tensor) -> Pair:
        held = self.active[:, 1:].to(z.dtype)
        top = self.ones * z + s[:, :1] - held * s[:, 1:]
        return top, torch.cat([z.sum(-1, keepdim=True), -held * z - (1 - held) * s[:, 1:]], -1)

    def factorise(self) -> Solve:
        held = self.active[:, 1:]
        count = (~held).sum(-1, keepdim=True)

        def solve(r: Tensor, t: Tensor) -> Pair:
            fixed = 0.0 - torch.where(held, t[:, 1:], 0.0)
            free = torch.where(held, 0.0, r).sum(-1, keepdim=True)
            first = (free + fixed.sum(-1, keepdim=True) - t[:, :1]) / count
            z = torch.where(held, fixed, r - first)
            return z, torch.cat([first, torch.where(held, z + first - r, 0.0)], -1)

        return solve
