"""Index sets: on which unknowns each entry of a tensor depends, and how they combine.

The sets of one tensor are the rows of a Boolean matrix with one row per entry and one column per unknown. A tensor
that depends on nothing has no matrix (None): its value is known, and so are its zeros.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse
import torch
from numpy.typing import NDArray
from torch import Tensor

Sets = Any  # a scipy.sparse.csr_matrix of Booleans, (entries, unknowns); SciPy has no types
Array = NDArray[Any]


class NoPattern(Exception):  # noqa: N818
    """There is no pattern that would be worth it, or none can be found; the message says why."""


@dataclass(frozen=True)
class Traced:
    """A value met on the way, and what its entries depend on."""

    value: Any  # a tensor, or what else an operation takes or returns
    sets: Sets | None = None

    @property
    def depends(self) -> Array:
        """Whether each entry depends on anything, (entries,)."""
        if self.sets is None:
            return np.zeros(self.value.numel(), dtype=bool)
        return sizes(self.sets) > 0

    @property
    def zero(self) -> Array:
        """Whether each entry is zero whatever the unknowns are, (entries,)."""
        value: Array = (self.value == 0).reshape(-1).cpu().numpy()
        return value if self.sets is None else value & ~self.depends


class Algebra:
    """Unions of index sets, with a bound on how many members they may have in all."""

    def __init__(self, unknowns: int, limit: int) -> None:
        self.unknowns = unknowns  # the last one stands for everything that varies and is not differentiated
        self.limit = limit

    def single(self, columns: Array) -> Sets:
        """One-element sets."""
        return self._matrix(columns, np.arange(len(columns) + 1))

    def varying(self, entries: Array) -> Sets:
        """Sets that say no more than that these entries (a mask) are not known."""
        return self._matrix(np.full(int(entries.sum()), self.unknowns - 1), np.concatenate([[0], np.cumsum(entries)]))

    def take(self, sets: Sets, entries: Array) -> Sets:
        """The sets of these entries, in this order."""
        self.afford(sizes(sets)[entries].sum())
        return sets[entries]

    def spread(self, count: int, parts: Sequence[tuple[Sets, Array, Array]]) -> Sets | None:
        """The sets of a result with ``count`` entries.

        Args:
            count: of entries of the result.
            parts: (sets, source, target): entry ``target[i]`` of the result depends on what ``source[i]`` depends on.
        """
        total = None
        for sets, source, target in parts:
            if len(source) == 0 or sets.nnz == 0:
                continue
            self.afford(sizes(sets)[source].sum())
            ones = np.ones(len(source), dtype=bool)
            reached = scipy.sparse.csr_matrix((ones, (target, source)), (count, sets.shape[0])) @ sets
            total = reached if total is None else total + reached
        return total

    def union(self, parts: Sequence[Sets | None]) -> Sets | None:
        """Entry by entry."""
        present = [part for part in parts if part is not None and part.nnz]
        if not present:
            return None
        total = present[0]
        for part in present[1:]:
            total = total + part
        return total

    def everything(self, count: int, parts: Sequence[Sets | None]) -> Sets | None:
        """Every one of ``count`` entries depends on all that any entry of the parts depends on."""
        present = [part for part in parts if part is not None and part.nnz]
        if not present:
            return None
        members = np.unique(np.concatenate([part.indices for part in present]))
        self.afford(count * len(members))
        return self._matrix(np.tile(members, count), np.arange(count + 1) * len(members))

    def afford(self, members: int) -> None:
        """Go no further if this many are too many."""
        if members > self.limit:
            raise NoPattern(f"the derivatives are not sparse: {int(members):,} entries are met on the way")

    def _matrix(self, columns: Array, starts: Array) -> Sets:
        ones = np.ones(len(columns), dtype=bool)
        return scipy.sparse.csr_matrix((ones, columns, starts), (len(starts) - 1, self.unknowns))


def sizes(sets: Sets) -> Array:
    """The number of members of each set."""
    lengths: Array = np.diff(sets.indptr)
    return lengths


def positions(shape: Sequence[int]) -> Tensor:
    """The entries of a tensor, numbered."""
    return torch.arange(math.prod(shape)).view(tuple(shape))


def flat(index: Tensor) -> Array:
    """An index tensor as a NumPy vector."""
    vector: Array = index.reshape(-1).numpy()
    return vector
