"""The compiled factorisation of a batch, in groups of problems that lie side by side."""

from __future__ import annotations

import weakref
from collections import deque
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..machine import Floats
from .elimination import factorise, load
from .lanes import Factor, Plan, Rows, Work
from .substitution import load_right, solve, store
from .symbolic import Symbolic

LANES = 32  # problems of a group at most: more would not fit into the processor's memory


@dataclass(frozen=True, eq=False)
class Groups:
    """The factors of a batch."""

    plan: Plan
    memory: Memory
    batch: int
    entries: list[Floats]  # of K, for each group, (entries, lanes)
    factors: list[Factor]

    def counts(self) -> Tensor:  # (batch, 4)
        """How many pivots are above and below zero, and how many were replaced by one above or below."""
        return torch.from_numpy(np.concatenate([factor.counts for factor in self.factors], 1)).T[: self.batch]

    def solve(self, right: Tensor) -> tuple[Tensor, Tensor]:  # (batch, size, count)
        """K^-1 right, corrected until its relative residual is small or does not fall any more, and that residual."""
        size, count = right.shape[1:]
        lanes = self.entries[0].shape[1]
        buffer = self.memory.take(5 * size * lanes)
        rows = Rows(*buffer[: 5 * size * lanes].reshape(5, size, lanes))
        found, errors = torch.empty_like(right), np.empty((len(self.entries), count, lanes))
        given, results = right.numpy(), found.numpy()
        for group, (entries, factor) in enumerate(zip(self.entries, self.factors, strict=True)):
            for i in range(count):
                load_right(given, i, self.plan.place, group, rows.right)
                solve(self.plan, entries, factor, rows, errors[group, i])
                store(rows.x, self.plan.place, group, i, results)
        self.memory.give_back(buffer)
        return found, torch.from_numpy(errors).amax(1).flatten()[: self.batch]


class Memory:
    """Buffers that are used again: fresh memory costs more than the factorisation."""

    def __init__(self) -> None:
        self._free: deque[Floats] = deque(maxlen=3)

    def take(self, count: int) -> Floats:
        """A buffer for this many numbers."""
        try:
            buffer = self._free.pop()
        except IndexError:
            buffer = np.empty(0)
        return buffer if len(buffer) >= count else np.empty(count)

    def give_back(self, buffer: Floats) -> None:
        """For use by others."""
        self._free.append(buffer)


def factorise_groups(symbolic: Symbolic, plan: Plan, memory: Memory, parts: tuple[Tensor, ...]) -> Groups:
    """Factor K, from the values (batch, ...) of H, A and its diagonal, all in double precision on the CPU."""
    batch = len(parts[0])
    groups = max(-(-batch // LANES), 1)
    lanes = -(-batch // groups)
    size, fill, count = symbolic.size, symbolic.fill, len(symbolic.slots)
    buffer = memory.take(lanes * (groups * (count + 2 * size + fill) + fill + size))
    cut = _Cut(buffer, lanes)
    work = Work(cut(fill), cut(size), np.empty(size, np.int32))
    result = Groups(plan, memory, batch, [], [])
    weakref.finalize(result, memory.give_back, buffer).atexit = False
    for group in range(groups):
        entries, begin = cut(count), 0
        for part in parts:
            load(part.contiguous().numpy(), group, begin, entries)
            begin += part.shape[1]
        factor = Factor(cut(size), cut(size), cut(fill), np.empty((4, lanes), np.int64))
        factorise(plan, entries, factor, work)
        result.entries.append(entries)
        result.factors.append(factor)
    return result


class _Cut:
    """Pieces of a buffer, one after the other."""

    def __init__(self, buffer: Floats, lanes: int) -> None:
        self.buffer, self.lanes, self.used = buffer, lanes, 0

    def __call__(self, count: int) -> Floats:  # (count, lanes)
        begin, self.used = self.used, self.used + count * self.lanes
        return self.buffer[begin : self.used].reshape(count, self.lanes)
