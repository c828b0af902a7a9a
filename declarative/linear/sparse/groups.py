"""The compiled factorisation of a batch, in groups of problems that lie side by side."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .kernels import Factor, Floats, Plan, Work, factorise, load, solve
from .pivots import CORRECTIONS, GOAL
from .symbolic import Symbolic

LANES = 32  # problems of a group at most: more would not fit into the processor's memory


@dataclass(frozen=True, eq=False)
class Groups:
    """The factors of a batch."""

    plan: Plan
    place: Tensor  # of each unknown and each constraint in the order of elimination, (size,)
    batch: int
    entries: Floats  # of K, (groups, entries, lanes)
    factors: list[Factor]

    def inertia(self) -> Tensor:  # (batch, 3)
        """The number of pivots above, below and at zero."""
        return torch.from_numpy(np.concatenate([factor.inertia for factor in self.factors], 1)).T[: self.batch]

    def solve(self, right: Tensor) -> tuple[Tensor, Tensor]:  # (batch, size, count)
        """K^-1 right, corrected until its relative residual is small or does not fall any more, and that residual."""
        groups, _, lanes = self.entries.shape
        size, count = right.shape[1:]
        ordered = right.new_zeros(groups * lanes, count, size)
        ordered[: self.batch, :, self.place] = right.mT
        ordered = ordered.view(groups, lanes, count, size).permute(0, 2, 3, 1).contiguous()
        x, error = torch.empty_like(ordered), right.new_empty(groups, count, lanes)
        for group, factor in enumerate(self.factors):
            for i in range(count):
                pair = ordered[group, i].numpy(), x[group, i].numpy()
                solve(self.plan, self.entries[group], factor, *pair, error[group, i].numpy(), GOAL, CORRECTIONS)
        found = x.permute(0, 3, 2, 1).reshape(groups * lanes, size, count)[: self.batch]
        return found.index_select(1, self.place), error.amax(1).flatten()[: self.batch]


def factorise_groups(symbolic: Symbolic, plan: Plan, parts: tuple[Tensor, ...]) -> Groups:
    """Factor K, from the values (batch, ...) of H, A and its diagonal, all in double precision on the CPU."""
    batch = len(parts[0])
    groups = max(-(-batch // LANES), 1)
    lanes = -(-batch // groups)
    size, fill = symbolic.size, symbolic.fill
    entries = np.empty((groups, len(symbolic.slots), lanes))
    work = Work(
        below=np.empty((fill, lanes)),
        made=np.empty((size, lanes)),
        across=np.empty(lanes),
        scale=np.empty((size, lanes)),
        where=np.empty(size, np.int32),
    )
    factors = []
    for group in range(groups):
        begin = 0
        for part in parts:
            load(part.contiguous().numpy(), group, begin, entries[group])
            begin += part.shape[1]
        factor = Factor(
            inverse=np.empty((size, lanes)),
            coupling=np.empty((size, lanes)),
            lower=np.empty((fill, lanes)),
            inertia=np.empty((3, lanes), np.int64),
        )
        factorise(plan, entries[group], factor, work)
        factors.append(factor)
    return Groups(plan, torch.from_numpy(symbolic.place), batch, entries, factors)
