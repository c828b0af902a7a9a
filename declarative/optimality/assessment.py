"""What the optimality conditions say about a batch of points."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .conditions import optimality_tolerance


@dataclass(frozen=True)
class Assessment:
    """What the optimality conditions say about a batch of points.

    Attributes:
        multipliers: stacked, zero where inactive, (batch, k).
        active: which constraints hold with equality; all equalities, (batch, k).
        weak: inequalities with neither slack nor multiplier, where the solution has a kink, (batch, k).
        stationarity, violation: of the conditions, relative to the terms that cancel in them, (batch,).
        residual: the estimated distance to a solution, relative; infinite where there is no minimum nearby, (batch,).
        step, multiplier_step: the Newton step to it, (batch, m) and (batch, k).
        jacobian: A at the points, for whoever needs it too, in the form of the batch.
        hessian: H at these points and multipliers, likewise: in the form of the batch or, if diagonal, its diagonal.
        bent: where a slope or a curvature jumps at a solution, if functions have corners, (batch,).
        level: where L is level to one side of such a solution, which is not the only one then, (batch,).
        flat: where curvature vanishes along some direction, (batch,); None: nowhere.
        unsteady: where derivatives at the point are not those of the solution, if that has been looked at, (batch,).
    """

    multipliers: Tensor
    active: Tensor
    weak: Tensor
    stationarity: Tensor
    violation: Tensor
    residual: Tensor
    step: Tensor | None = None
    multiplier_step: Tensor | None = None
    jacobian: Tensor | None = None
    hessian: Tensor | None = None
    bent: Tensor | None = None
    level: Tensor | None = None
    flat: Tensor | None = None
    unsteady: Tensor | None = None

    def solved(self, dtype: torch.dtype) -> Tensor:  # (batch,)
        """Which points are solutions, as far as this precision can tell."""
        return self.residual <= optimality_tolerance(dtype)

    def to(self, dtype: torch.dtype) -> Assessment:
        """The same in another precision."""
        return self._each(lambda x: x.to(dtype) if x.is_floating_point() else x)

    def take(self, rows: Tensor) -> Assessment:
        """The problems at these positions."""
        return self._each(lambda x: x[rows])

    def put(self, rows: Tensor, part: Assessment) -> Assessment:
        """The same with the problems at these indices replaced."""
        pairs = [(x, getattr(part, name)) for name, x in vars(self).items()]
        merged: list[Any] = [None if x is None or y is None else x.index_copy(0, rows, y) for x, y in pairs]
        return Assessment(*merged)

    def _each(self, function: Callable[[Tensor], Tensor]) -> Assessment:
        changed: list[Any] = [None if x is None else function(x) for x in vars(self).values()]
        return Assessment(*changed)
