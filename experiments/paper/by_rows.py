"""One batch, differentiated by several gradient rules."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from declarative import Adaptive, Exact, Rule
from declarative.derivatives import Linearisation
from declarative.linear.contract import Pair

Part = tuple[slice, Rule]


class ByRows(Rule):
    """Differentiates each part of a batch by a rule of its own, after one forward pass for all.

    The exact gradient of every problem is computed too and left in ``exact``, for comparison: an instance serves one
    training run.
    """

    def __init__(self, parts: Sequence[Part]) -> None:
        self.parts = [part for part in merge(parts) if not isinstance(part[1], Exact)]
        self.exact = torch.empty(0)

    def solve(self, point: Linearisation, v: Tensor, w: Tensor) -> Pair:
        return Exact().solve(point, v, w)

    def pull(self, point: Linearisation, v: Tensor, w: Tensor, wanted: Sequence[int]) -> tuple[Tensor, ...]:
        (self.exact,) = Exact().pull(point, v, w, wanted)
        used = self.exact.clone()
        for rows, rule in self.parts:
            if isinstance(rule, Adaptive) and not (rule.uses_cheap or rule.returns):
                continue  # exact from here on, which is there already
            (used[rows],) = rule.pull(_take(point, rows), v[rows], w[rows], wanted)
        return (used,)


def merge(parts: Sequence[Part]) -> list[Part]:
    """Neighbours with the same rule become one part, which is differentiated at once."""
    merged: list[Part] = []
    for rows, rule in parts:
        if merged and merged[-1][1] is rule and merged[-1][0].stop == rows.start:
            merged[-1] = (slice(merged[-1][0].start, rows.stop), rule)
        else:
            merged.append((rows, rule))
    return merged


def _take(point: Linearisation, rows: slice) -> Linearisation:
    u = point.u[rows]
    return dataclasses.replace(
        point,
        batch=point.batch.replace([x[rows] for x in point.batch.xs], size=len(u)),
        u=u,
        multipliers=point.multipliers[rows],
        active=point.active[rows],
        extra=None if point.extra is None else point.extra[rows],
    )
