"""Where a sparse matrix may have entries; their values come as one tensor (batch, nonzeros) for a batch of matrices."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...torchside import fixed
from ..forms import Form, SymmetricForm

Integers = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Entries(Form):
    """Positions in a matrix, in the order of its rows, each at most once.

    Example:
        >>> import torch
        >>> from declarative.linear.sparse import Entries
        >>> entries = Entries.of(torch.tensor([[True, False], [True, True]]))
        >>> entries.dense(torch.tensor([[1.0, 2.0, 3.0]]))
        tensor([[[1., 0.],
                 [2., 3.]]])
    """

    rows: Integers  # (nonzeros,)
    columns: Integers  # (nonzeros,)
    shape: tuple[int, int]

    @classmethod
    def of(cls, matrix: Any) -> Entries:
        """The entries of a matrix that are not zero: a torch, NumPy or SciPy array, or one of torch's sparse tensors.

        An entry that a sparse array stores counts even if its value is zero.
        """
        if isinstance(matrix, Tensor):
            if matrix.layout != torch.strided:
                rows, columns = matrix.detach().cpu().to_sparse_coo().coalesce().indices().numpy()
                return cls._sorted((np.ones(len(rows), dtype=bool), (rows, columns)), matrix.shape)
            matrix = matrix.detach().cpu().numpy()
        if scipy.sparse.issparse(matrix):
            return cls._sorted(matrix, matrix.shape)
        array = np.asarray(matrix)
        if array.ndim != 2:
            raise ValueError(f"a pattern is a matrix, but this one has {array.ndim} dimensions")
        rows, columns = np.nonzero(array)
        return cls(rows, columns, (array.shape[0], array.shape[1]))

    @classmethod
    def _sorted(cls, matrix: Any, shape: Any) -> Entries:
        sparse = scipy.sparse.csr_matrix(matrix, tuple(shape), copy=True)
        sparse.sum_duplicates()  # sorts too
        rows = np.repeat(np.arange(sparse.shape[0]), np.diff(sparse.indptr))
        return cls(rows, sparse.indices.astype(np.int64), sparse.shape)

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def csr(self) -> Any:
        """The pattern as a SciPy matrix of ones."""
        ones = np.ones(len(self), dtype=bool)
        return scipy.sparse.csr_matrix((ones, (self.rows, self.columns)), self.shape)

    @cached_property
    def _index(self) -> tuple[Tensor, Tensor]:
        return fixed(torch.from_numpy(self.rows)), fixed(torch.from_numpy(self.columns))

    def prepare(self) -> None:
        """Make the tensors of the index now: made while something is recorded, they would belong to that recording."""
        for one in (self, self.flipped):
            one.index(torch.device("cpu"))

    def index(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Rows and columns as tensors."""
        rows, columns = self._index
        return rows.to(device), columns.to(device)

    def of_rows(self, vectors: Tensor) -> Tensor:  # (batch, rows) -> (batch, nonzeros)
        """What belongs to the row of each entry."""
        return _picked(vectors, self.index(vectors.device)[0])

    def of_columns(self, vectors: Tensor) -> Tensor:  # (batch, columns) -> (batch, nonzeros)
        """What belongs to the column of each entry."""
        return _picked(vectors, self.index(vectors.device)[1])

    def take(self, which: Any) -> Entries:
        """Some of them."""
        return Entries(self.rows[which], self.columns[which], self.shape)

    def lower(self) -> Entries:
        """Those on and below the diagonal."""
        return self.take(self.rows >= self.columns)

    def dense(self, values: Tensor) -> Tensor:  # (batch, nonzeros) -> (batch, *shape)
        """The matrices, zeros included."""
        rows, columns = self.index(values.device)
        flat = values.new_zeros(len(values), self.shape[0] * self.shape[1])
        return flat.index_add(1, rows * self.shape[1] + columns, values).view(len(values), *self.shape)

    def multiply(self, values: Tensor, vectors: Tensor) -> Tensor:  # (batch, nonzeros), (batch, columns)
        """The matrices times vectors, differentiable in both; (batch, rows)."""
        return self._summed(0, values * self.of_columns(vectors))

    def scale_rows(self, values: Tensor, factors: Tensor) -> Tensor:
        return values * self.of_rows(factors)

    def scale_columns(self, values: Tensor, factors: Tensor) -> Tensor:
        return values * self.of_columns(factors)

    def diagonal(self, values: Tensor) -> Tensor:
        entries, which = self.on_diagonal
        if len(entries) == self.shape[0]:  # in order, each once
            return _picked(values, which)
        return entries._summed(0, _picked(values, which))

    def largest_effect(self, values: Tensor, sizes: Tensor) -> Tensor:
        rows, _ = self.index(values.device)
        share = torch.where(values == 0, 0.0, values.abs() / self.of_columns(sizes))
        result = values.new_zeros(len(values), self.shape[0])
        return result.scatter_reduce(1, rows.expand_as(share), share, "amax")

    def least_change(self, values: Tensor, sizes: Tensor) -> Tensor:
        _, columns = self.index(values.device)
        change = (self.of_rows(sizes) / values.abs()).nan_to_num(torch.inf)
        result = values.new_full((len(values), self.shape[1]), torch.inf)
        return result.scatter_reduce(1, columns.expand_as(change), change, "amin")

    def row_lengths(self, values: Tensor) -> Tensor:
        rows, _ = self.index(values.device)
        return torch.sqrt(values.new_zeros(len(values), self.shape[0]).index_add(1, rows, values.square()))

    @cached_property
    def on_diagonal(self) -> tuple[Entries, Tensor]:
        """The entries on the diagonal, and which these are."""
        which = np.flatnonzero(self.rows == self.columns)
        return self.take(which), fixed(torch.from_numpy(which))

    @cached_property
    def flipped(self) -> Entries:
        """The same values as entries of the transposed matrix; not in its order."""
        return Entries(self.columns, self.rows, (self.shape[1], self.shape[0]))

    def transposed(self) -> Entries:
        """Those of the transposed matrix, in its own order (see :meth:`turned` for the values)."""
        order = self.turned
        return Entries(self.columns[order], self.rows[order], (self.shape[1], self.shape[0]))

    @cached_property
    def turned(self) -> Integers:
        """``values[:, turned]`` are the values of the transposed matrix."""
        return np.lexsort((self.rows, self.columns)).astype(np.int64)

    def multiply_transposed(self, values: Tensor, vectors: Tensor) -> Tensor:  # (batch, nonzeros), (batch, rows)
        """The transposed matrices times vectors; (batch, columns)."""
        return self._summed(1, values * self.of_rows(vectors))

    def _summed(self, dim: int, values: Tensor) -> Tensor:
        """The sum of the values of each row, or of each column."""
        result = values.new_zeros(len(values), self.shape[dim])
        return result.index_add(1, self.index(values.device)[dim], values)


def _picked(values: Tensor, which: Tensor) -> Tensor:  # (batch, entries), (count,) -> (batch, count)
    """Some entries; ``index_select`` takes three times as long."""
    return values.gather(1, which.to(values.device).expand(len(values), -1))


@dataclass(frozen=True, eq=False)
class LowerTriangle(SymmetricForm):
    """A symmetric matrix, by the entries on and below its diagonal."""

    entries: Entries

    @cached_property
    def above(self) -> tuple[Entries, Tensor]:
        """The mirror images of the entries below the diagonal, and which these are."""
        which = np.flatnonzero(self.entries.rows != self.entries.columns)
        return self.entries.take(which).flipped, fixed(torch.from_numpy(which))

    def prepare(self) -> None:
        """As that of its entries."""
        for part in (self.entries, self.above[0], self.entries.on_diagonal[0]):
            part.prepare()

    def multiply(self, values: Tensor, vectors: Tensor) -> Tensor:
        entries, which = self.above
        found = self.entries.multiply(values, vectors)
        return found + entries.multiply(_picked(values, which), vectors) if len(entries) else found

    def dense(self, values: Tensor) -> Tensor:  # (batch, nonzeros) -> (batch, m, m)
        """The matrices, zeros included."""
        entries, which = self.above
        return self.entries.dense(values) + entries.dense(_picked(values, which))

    def diagonal(self, values: Tensor) -> Tensor:
        return self.entries.diagonal(values)

    def least_change(self, values: Tensor, sizes: Tensor) -> Tensor:
        entries = self.entries
        return torch.minimum(entries.least_change(values, sizes), entries.flipped.least_change(values, sizes))
