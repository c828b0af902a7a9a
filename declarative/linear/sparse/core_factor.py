"""The factorisation of a batch by the compiled core, in groups of problems that lie side by side."""

from __future__ import annotations

import weakref
from collections import deque
from dataclasses import dataclass

import torch
from torch import Tensor

from ...kernels.library import as_buffer, lanes_for
from ...kernels.plan import Plan
from .ldl import BatchFactor


@dataclass(frozen=True, eq=False)
class CoreFactor(BatchFactor):
    """The factors of a batch, in a buffer of the core."""

    plan: Plan
    lanes: int
    numbers: Tensor  # the entries of K and the factor of each group
    pivots: Tensor  # (batch, 4)

    def counts(self) -> Tensor:
        return self.pivots

    def solve(self, right: Tensor) -> tuple[Tensor, Tensor]:
        return self.plan.solve(as_buffer(right), self.lanes, self.numbers)


class Memory:
    """Buffers that are used again: fresh memory costs more than the factorisation."""

    def __init__(self) -> None:
        self._free: deque[Tensor] = deque(maxlen=3)

    def take(self, count: int) -> Tensor:
        """A buffer of at least so many numbers."""
        try:
            buffer = self._free.pop()
        except IndexError:
            buffer = torch.empty(0, dtype=torch.float64, device="cpu")
        return buffer if len(buffer) >= count else torch.empty(count, dtype=torch.float64, device="cpu")

    def give_back(self, buffer: Tensor) -> None:
        """For use by others."""
        self._free.append(buffer)


def factorise_batch(plan: Plan, memory: Memory, parts: tuple[Tensor, ...]) -> CoreFactor:
    """Factor K, from the values (batch, ...) of H, A and its diagonal, all in double precision on the CPU."""
    batch = len(parts[0])
    lanes = lanes_for(batch)
    numbers = memory.take(plan.room(batch, lanes))
    result = CoreFactor(plan, lanes, numbers, plan.factorise([as_buffer(part) for part in parts], lanes, numbers))
    weakref.finalize(result, memory.give_back, numbers).atexit = False
    return result
