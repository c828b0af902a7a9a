"""The compiled factorisation of a batch, in groups of problems that lie side by side.

A call into compiled code costs as much as the work of one problem: there is one call for all groups.
"""

from __future__ import annotations

import itertools
import weakref
from collections import deque
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..jit import Floats, compiled, inner
from ..simd import LANES
from .elimination import arrange, factorise
from .kernel_arrays import Factor, Plan, Rows, Work
from .ldl import GOAL, BatchFactor
from .substitution import Kernels, load_right, solve, store_solution
from .symbolic import Symbolic


@dataclass(frozen=True, eq=False)
class NumbaFactor(BatchFactor):
    """The factors of a batch, in groups of problems."""

    plan: Plan
    memory: Memory
    batch: int
    entries: Floats  # of K, (groups, entries, lanes)
    factors: Factor  # of all groups, one after the other

    def counts(self) -> Tensor:
        return torch.from_numpy(self.factors.counts).transpose(1, 2).flatten(0, 1)[: self.batch].to(torch.int64)

    def solve(self, right: Tensor) -> tuple[Tensor, Tensor]:
        size = right.shape[1]
        groups, _, lanes = self.entries.shape
        buffer, (*rows, error) = self.memory.cut(lanes, *[size] * 5, 2, 1)
        found, errors = torch.empty_like(right), np.zeros((groups, lanes))
        kernels = Kernels.of(lanes)
        arrays = Rows(*rows), right.numpy(), found.numpy(), error[0], errors
        _solve_all(self.plan, kernels, self.entries, self.factors, *arrays)
        self.memory.give_back(buffer)
        return found, torch.from_numpy(errors).flatten()[: self.batch]


class Memory:
    """Buffers that are used again: fresh memory costs more than the factorisation."""

    def __init__(self) -> None:
        self._free: deque[Floats] = deque(maxlen=3)

    def cut(self, lanes: int, *counts: int) -> tuple[Floats, list[Floats]]:
        """A buffer, and the matrices (count, lanes) that it is cut into."""
        total = sum(counts) * lanes
        try:
            buffer = self._free.pop()
        except IndexError:
            buffer = np.empty(total)
        if len(buffer) < total:
            buffer = np.empty(total)
        table, ends = buffer[:total].reshape(-1, lanes), itertools.accumulate(counts)
        return buffer, [table[end - count : end] for count, end in zip(counts, ends, strict=True)]

    def give_back(self, buffer: Floats) -> None:
        """For use by others."""
        self._free.append(buffer)


def factorise_batch(symbolic: Symbolic, plan: Plan, memory: Memory, parts: tuple[Tensor, ...]) -> NumbaFactor:
    """Factor K, from the values (batch, ...) of H, A and its diagonal, all in double precision on the CPU."""
    batch = len(parts[0])
    lanes = 1 if batch == 1 else LANES
    groups = max(-(-batch // lanes), 1)
    size, fill, count = symbolic.size, symbolic.fill, len(symbolic.slots)
    of_all = [groups * rows for rows in (count, size, size, fill, 4)]
    buffer, (below, made, *pieces) = memory.cut(lanes, fill, size, *of_all)
    work = Work(below, made, np.empty(size, np.uint32))
    entries, *factor = (piece.reshape(groups, -1, lanes) for piece in pieces)
    factors = Factor(*factor)
    kernels, arrays = Kernels.of(lanes), tuple(part.contiguous().numpy() for part in parts)
    _factorise_all(plan, kernels, arrays, entries, factors, work)
    result = NumbaFactor(plan, memory, batch, entries, factors)
    weakref.finalize(result, memory.give_back, buffer).atexit = False
    return result


@inner
def _group(factors: Factor, group: int) -> Factor:
    return Factor(factors.inverse[group], factors.coupling[group], factors.lower[group], factors.counts[group])


@compiled
def _factorise_all(
    plan: Plan,
    kernels: Kernels,
    parts: tuple[Floats, ...],  # of K: the values of H, A and the two diagonals, batch first
    entries: Floats,
    factors: Factor,
    work: Work,
) -> None:
    for group in range(len(entries)):
        begin = 0
        for part in parts:
            arrange(part, group, begin, entries[group])
            begin += part.shape[1]
        factorise(kernels.factorise, (plan, entries[group], _group(factors, group), work))


@compiled
def _solve_all(
    plan: Plan,
    kernels: Kernels,
    entries: Floats,
    factors: Factor,
    rows: Rows,
    right: Floats,
    found: Floats,
    error: Floats,
    errors: Floats,
) -> None:
    """For each of the right-hand sides (batch, size, count); errors are the largest of these, (groups, lanes)."""
    for group in range(len(entries)):
        factor = _group(factors, group)
        for i in range(right.shape[2]):
            load_right(right, i, plan.place, group, rows.right)
            solve(kernels.solve, (plan, entries[group], factor, rows, error, GOAL))
            store_solution(rows.x, plan.place, group, i, found)
            for b in range(len(error)):
                errors[group, b] = max(errors[group, b], error[b])
