"""One batch, differentiated by several gradient rules."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from declarative import Adaptive, Exact, Rule
from declarative.linear import Pair
from declarative.structure import Point


class ByRows(Rule):
    """Differentiates each part of a batch by a rule of its own, after one forward pass for all.

    The exact gradient of every problem is computed too and left in ``exact``, for comparison: an instance serves one
    training run. Neighbours with the same rule are differentiated at once.
    """

    def __init__(self, rules: Sequence[Rule], size: int) -> None:  # of each part: its rule; how many problems
        self.parts: list[tuple[slice, Rule]] = []
        self.exact = torch.empty(0)
        start = 0
        for _, same in itertools.groupby(rules, id):
            rule, *others = same
            rows = slice(start, start + size * (1 + len(others)))
            start = rows.stop
            if not isinstance(rule, Exact):
                self.parts.append((rows, rule))

    def solve(self, point: Point, v: Tensor, w: Tensor) -> Pair:
        return Exact().solve(point, v, w)

    def pull(self, point: Point, v: Tensor, w: Tensor, wanted: Sequence[int]) -> tuple[Tensor, ...]:
        (self.exact,) = Exact().pull(point, v, w, wanted)
        used = self.exact.clone()
        for rows, rule in self.parts:
            if isinstance(rule, Adaptive) and not (rule.uses_cheap or rule.returns):
                continue  # exact from here on, which is there already
            (used[rows],) = rule.pull(_take(point, rows), v[rows], w[rows], wanted)
        return (used,)


def _take(point: Point, rows: slice) -> Point:
    u = point.u[rows]
    return dataclasses.replace(
        point,
        batch=point.batch.replace([x[rows] for x in point.batch.xs], size=len(u)),
        u=u,
        multipliers=point.multipliers[rows],
        active=point.active[rows],
        byproduct=None if point.byproduct is None else point.byproduct[rows],
        factors=None,
        jacobian=None if point.jacobian is None else point.jacobian[rows],
    )
