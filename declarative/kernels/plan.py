"""Sparse KKT matrices of one pattern in the core: their analysis, as data that is checked once, factors, solutions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .library import Handle, array_address, call, indices, size, threads

Integers = NDArray[np.integer[Any]]
Flags = NDArray[np.bool_]


class Plan:
    """The arrays of a symbolic analysis, as ``symbolic.py`` explains them.

    Args:
        place: the position of each unknown and each constraint, (size,).
        slots: where each entry of K is stored in the factor, (entries,).
        first: the position of each entry of K, its row, (entries,).
        second: and its column.
        pair: whether a position and the next one make a block of D, (size,).
        is_constraint: which positions are constraints, (size,).
        starts: of the columns of L among its entries, (size + 1,).
        rows: positions of the entries of L, (fill,).
        columns: positions of their columns, (fill,).
        row_starts: where each row starts in ``by_row``, (size + 1,).
        by_row: the entries of L row by row, (fill,).

    Raises:
        CoreError: a factorisation would read or write where nothing is.
    """

    def __init__(
        self,
        place: Integers,
        slots: Integers,
        first: Integers,
        second: Integers,
        pair: Flags,
        is_constraint: Flags,
        starts: Integers,
        rows: Integers,
        columns: Integers,
        row_starts: Integers,
        by_row: Integers,
    ) -> None:
        self._arrays = place, slots, first, second, pair, is_constraint, starts, rows, columns, row_starts, by_row
        self.size, self.entries, self.fill = len(place), len(slots), len(rows)
        lengths = [self.size] * 1 + [self.entries] * 3 + [self.size] * 2
        lengths += [self.size + 1, self.fill, self.fill, self.size + 1, self.fill]
        if [len(x) for x in self._arrays] != lengths:
            raise ValueError("the arrays of a plan are of different lengths")
        x = [np.ascontiguousarray(one) if one.dtype == np.bool_ else indices(one) for one in self._arrays]
        at = [array_address(one) for one in x]
        counted = (at[0], self.size, *at[1:4], self.entries, *at[4:9], self.fill, *at[9:])
        self._handle = Handle("plan", *counted)
        self.address = self._handle.address

    def __reduce__(self) -> tuple[Any, ...]:
        return Plan, self._arrays

    def room(self, batch: int, lanes: int) -> int:
        """How many numbers the factors of a batch take."""
        return size("sparse_size", self.address, batch, lanes)

    def factorise(self, parts: Sequence[Tensor], lanes: int, numbers: Tensor) -> Tensor:
        """Factor K into a buffer, from the values (batch, ...) of H, A and its two diagonals.

        Returns:
            How many pivots are above and below zero, and how many were replaced by one above or below, (batch, 4).
        """
        batch = len(parts[0])
        counts = torch.empty(batch, 4, dtype=torch.int64, device="cpu")
        given = [x for part in parts for x in (part.data_ptr(), part.shape[1])]
        place = numbers.data_ptr(), numbers.numel(), counts.data_ptr(), threads()
        call("sparse_factorise", self.address, batch, lanes, *given, *place)
        return counts

    def solve(self, right: Tensor, lanes: int, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """K^-1 right, (batch, size, count), by the factors in a buffer, and the largest relative residual, (batch,)."""
        batch, _, count = right.shape
        found, errors = torch.empty_like(right), right.new_empty(batch)
        sides = right.data_ptr(), count, found.data_ptr(), errors.data_ptr()
        call("sparse_solve", self.address, batch, lanes, numbers.data_ptr(), numbers.numel(), *sides, threads())
        return found, errors
