"""Solvers that know their problem: a solution by formula, a structured linear system, the last step backwards."""

from __future__ import annotations

import abc
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from declarative import Solver
from declarative.linear import Pair, System
from declarative.optimality import Assessment
from declarative.problem import Batch, flat
from declarative.solution import RawSolution
from declarative.structure import Kind, Point

from .inputs import Inputs, ScalarParameter

Multipliers = tuple[Tensor, Tensor | None, Tensor | None]  # and which are active and weak, (batch, k): all and none


@dataclass(frozen=True)
class StructuredSolver(Solver):
    """Abstract: solves one particular problem, and knows the structure of its derivatives.

    Attributes:
        scalar: the scalar parameter of the layer, if it has one.
        pullback: (xs, u, multipliers, z, s) -> -(B' z + C' s), for the batch; None: by a reverse pass.
    """

    scalar: ScalarParameter | None = field(default=None, kw_only=True)

    needs_start = False
    pullback: ClassVar[Callable[..., Inputs] | None] = None

    @abc.abstractmethod
    def system(self, point: Point, kind: Kind) -> System:
        """The linear system of a gradient rule."""

    def arguments(self, batch: Batch, like: Tensor) -> Inputs:
        """The inputs of all problems in the precision of a tensor; a scalar parameter comes last, as a column."""
        xs = tuple([x.to(like.dtype) for x in batch.unshared().xs])
        return xs if self.scalar is None else self.scalar.columns(xs)


class Formula(StructuredSolver):
    """Abstract: a solution by formula, with a verdict of its own, all for the batch.

    The methods take the ``arguments``; all but the first one also the solutions, (batch, m), and the byproduct, if the
    formula returns one and there was anything to solve.
    """

    @abc.abstractmethod
    def solution(self, *xs: Any) -> Tensor | Pair:
        """The solutions, batch first; or these and a byproduct, (batch, ...)."""

    @abc.abstractmethod
    def conditions(self, *arguments: Any) -> Pair:
        """Stationarity and violation, relative, (batch,)."""

    def multipliers(self, *arguments: Any) -> Multipliers:
        """Those of the constraints; by default there are none."""
        return arguments[-1][:, :0], None, None

    def solve(self, batch: Batch, start: Tensor) -> RawSolution:
        y, *byproduct = self._solved(self.arguments(batch, start))
        raw = RawSolution.unsolved(y)
        return replace(raw, byproduct=byproduct[0]) if byproduct else raw

    def assess(self, batch: Batch, raw: RawSolution) -> Assessment:
        known = () if raw.byproduct is None else (raw.byproduct,)
        arguments = *self.arguments(batch, raw.y), raw.y, *known
        multipliers, active, weak = self.multipliers(*arguments)
        return assessment(multipliers, *self.conditions(*arguments), active, weak)

    def solve_plainly(self, batch: Batch, start: Tensor) -> Pair:
        arguments = self.arguments(batch, start)
        solved = self._solved(arguments)
        return solved[0], torch.maximum(*self.conditions(*arguments, *solved))

    def _solved(self, xs: Inputs) -> Inputs:
        """The solutions as rows and, if there is one, the byproduct."""
        found = self.solution(*xs)
        return (flat(found[0]), found[1]) if isinstance(found, tuple) else (flat(found),)


def assessment(
    multipliers: Tensor,  # (batch, k)
    stationarity: Tensor,  # (batch,)
    violation: Tensor,  # (batch,)
    active: Tensor | None = None,  # (batch, k); all by default
    weak: Tensor | None = None,  # (batch, k); none by default
) -> Assessment:
    """What a layer's own solver says about its solutions; the residual is the larger of the two."""
    active = torch.ones_like(multipliers, dtype=torch.bool) if active is None else active
    weak = torch.zeros_like(active) if weak is None else weak
    residual = torch.maximum(stationarity, violation).nan_to_num(nan=torch.inf)
    return Assessment(multipliers, active, weak, stationarity, violation, residual)
