"""Solutions by formula, with what their author says about them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from declarative import Solver
from declarative.linear import Pair
from declarative.optimality import Assessment
from declarative.problem import Batch, flat
from declarative.solution import RawSolution

from .settings import Setting

Multipliers = tuple[Tensor, Tensor | None, Tensor | None]  # and which are active and weak, (batch, k): all and none


def no_multipliers(*arguments: Tensor) -> Multipliers:
    """Those of a problem without constraints."""
    return arguments[-1][:, :0], None, None


@dataclass(frozen=True)
class Formula(Solver):
    """A solution by formula, with a verdict of its own, all for the batch.

    Attributes:
        solution: from the inputs, and the setting as a column if there is one, to the solutions, batch first.
        conditions: the same with the solutions as the last argument: stationarity and violation, relative, (batch,).
        multipliers: likewise.
        setting: of the layer.
    """

    solution: Callable[..., Tensor]
    conditions: Callable[..., Pair]
    multipliers: Callable[..., Multipliers] = no_multipliers
    setting: Setting | None = None

    needs_start = False

    def solve(self, batch: Batch, start: Tensor) -> RawSolution:
        return RawSolution.unsolved(flat(self.solution(*self._arguments(batch, start))))

    def assess(self, batch: Batch, raw: RawSolution) -> Assessment:
        arguments = *self._arguments(batch, raw.y), raw.y
        multipliers, active, weak = self.multipliers(*arguments)
        return judged(multipliers, *self.conditions(*arguments), active, weak)

    def solve_plainly(self, batch: Batch, start: Tensor) -> Pair:
        arguments = self._arguments(batch, start)
        y = flat(self.solution(*arguments))
        return y, torch.maximum(*self.conditions(*arguments, y))

    def _arguments(self, batch: Batch, like: Tensor) -> tuple[Tensor, ...]:
        xs = batch.unshared().xs
        if self.setting is None:
            return tuple([x.to(like.dtype) for x in xs])
        others, value = self.setting.columns(xs, like)
        return *others, value


def judged(
    multipliers: Tensor,  # (batch, k)
    stationarity: Tensor,  # (batch,)
    violation: Tensor,  # (batch,)
    active: Tensor | None = None,  # (batch, k); all by default
    weak: Tensor | None = None,  # (batch, k); none by default
) -> Assessment:
    """What a layer's own solver says about its solutions; the residual is the larger of the two."""
    every = torch.ones_like(multipliers, dtype=torch.bool)
    residual = torch.maximum(stationarity, violation).nan_to_num(nan=torch.inf)
    return Assessment(
        multipliers,
        every if active is None else active,
        ~every if weak is None else weak,
        stationarity,
        violation,
        residual,
    )
