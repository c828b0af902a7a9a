"""What the factorisation of all KKT matrices of one pattern has in common: found once, before any value is known.

    K = [ H + diag(primal)   A'          ]
        [ A                 -diag(dual)  ]

is factored as P K P' = L D L' with a permutation P, a unit lower triangular L and D of blocks of size one and two.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from .entries import Entries, Integers
from .ordering import Flags, Order, least_depth, least_fill, match_constraints
from .pattern import Pattern

Preference = Literal["fill", "depth"]


@dataclass(frozen=True, eq=False)
class Symbolic:
    """The structure of L, and where each entry of K belongs in it.

    Entries of K are, one after the other: those of H, those of A, and the diagonal. A position counts in the order of
    elimination. The factor is stored as its diagonal, followed by the entries of L, column by column.
    """

    pattern: Pattern
    place: Integers  # the position of each unknown and each constraint, (m + k,)
    pair: Flags  # whether a position and the next one make a block of D, (m + k,)
    starts: Integers  # of the columns of L among its entries, (m + k + 1,)
    rows: Integers  # positions of the entries of L, column by column, ascending, (fill,)
    slots: Integers  # where each entry of K is stored in the factor, (entries of K,)
    partners: Integers  # the unknown that each constraint is paired with, -1 for none, (k,)
    levels: Integers | None  # where groups of columns that do not depend on each other begin and end

    @property
    def size(self) -> int:
        """m + k."""
        return len(self.place)

    @property
    def fill(self) -> int:
        """The number of entries of L."""
        return len(self.rows)

    @property
    def unpaired(self) -> Integers:
        """Constraints that no unknown is left for; equalities among them depend on others, whatever the values are."""
        return np.flatnonzero(self.partners < 0)

    @cached_property
    def work(self) -> int:
        """The number of multiplications of a factorisation."""
        lengths = np.diff(self.starts)
        return int((lengths * (lengths + 1) // 2).sum())

    @cached_property
    def columns(self) -> Integers:
        """Positions of the columns of the entries of L, (fill,)."""
        return np.repeat(np.arange(self.size), np.diff(self.starts))

    @cached_property
    def by_rows(self) -> tuple[Integers, Integers]:
        """The entries of L row by row: where each row starts, and the entries."""
        order = np.lexsort((self.columns, self.rows))
        return np.searchsorted(self.rows[order], np.arange(self.size + 1)), order

    @cached_property
    def coordinates(self) -> tuple[Integers, Integers]:
        """The positions of the row and the column of each entry of K."""
        hessian, jacobian = self.pattern.hessian, self.pattern.jacobian
        m, everything = hessian.shape[0], np.arange(self.size)
        return (
            self.place[np.concatenate([hessian.rows, m + jacobian.rows, everything])],
            self.place[np.concatenate([hessian.columns, jacobian.columns, everything])],
        )

    @cached_property
    def is_constraint(self) -> Flags:
        """Which positions are constraints, (m + k,)."""
        result = np.zeros(self.size, dtype=bool)
        result[self.place[self.pattern.hessian.shape[0] :]] = True
        return result


def analyse(
    pattern: Pattern, prefer: Preference = "fill", firm: Flags | None = None, strengths: NDArray[Any] | None = None
) -> Symbolic:
    """Order the unknowns and the constraints, and find the structure of the factor.

    Args:
        pattern: of H and A.
        prefer: few entries of the factor, for elimination one by one, or few levels, for elimination level by level.
        firm: which constraints, (k,), have nothing on the diagonal, as equalities do; all by default.
        strengths: the usual size of each entry of A, (nonzeros,): large ones make better pivots.
    """
    m, k = pattern.hessian.shape[0], pattern.jacobian.shape[0]
    partners = match_constraints(pattern, np.ones(k, dtype=bool) if firm is None else firm, strengths)
    node = np.concatenate([np.arange(m), partners])
    single = node < 0
    node[single] = m + np.arange(single.sum())
    sizes = np.bincount(node, minlength=0)
    graph = _graph(pattern, node, len(sizes))
    order = (least_fill if prefer == "fill" else least_depth)(graph, sizes)
    sizes = sizes[np.argsort(order.place)]  # by place
    first = np.cumsum(sizes) - sizes
    second = np.concatenate([np.zeros(m, dtype=np.int64), (partners >= 0).astype(np.int64)])
    place = first[order.place[node]] + second
    pair = np.zeros(m + k, dtype=bool)
    pair[first[sizes == 2]] = True
    columns, rows = _expanded(order, sizes, first)
    starts = np.searchsorted(columns, np.arange(m + k + 1))
    slots = _slots(pattern, place, columns, rows)
    ends = None if order.rounds is None else np.concatenate([[0], np.cumsum(order.rounds)])
    levels = None if ends is None else np.concatenate([first, [m + k]])[ends]
    return Symbolic(pattern, place, pair, starts, rows, slots, partners, levels)


def _graph(pattern: Pattern, node: Integers, count: int) -> Any:
    """Which nodes are connected."""
    hessian, jacobian = pattern.hessian, pattern.jacobian
    one = node[np.concatenate([hessian.rows, hessian.shape[0] + jacobian.rows])]
    other = node[np.concatenate([hessian.columns, jacobian.columns])]
    off = one != other
    ones = np.ones(2 * int(off.sum()), dtype=bool)
    ends = np.concatenate([one[off], other[off]]), np.concatenate([other[off], one[off]])
    return scipy.sparse.csr_matrix((ones, ends), (count, count))


def _expanded(order: Order, sizes: Integers, first: Integers) -> tuple[Integers, Integers]:
    """Columns and rows of L, from its blocks; the first column of a pair holds the entry that connects them too."""
    later: Entries = order.later
    pairs = first[sizes == 2]
    columns, rows = [pairs], [pairs + 1]
    for i in (0, 1):
        for j in (0, 1):
            there = (sizes[later.rows] > i) & (sizes[later.columns] > j)
            rows.append(first[later.rows[there]] + i)
            columns.append(first[later.columns[there]] + j)
    all_columns, all_rows = np.concatenate(columns), np.concatenate(rows)
    sort = np.lexsort((all_rows, all_columns))
    return all_columns[sort], all_rows[sort]


def _slots(pattern: Pattern, place: Integers, columns: Integers, rows: Integers) -> Integers:
    size = len(place)
    m = pattern.hessian.shape[0]
    one = place[np.concatenate([pattern.hessian.rows, m + pattern.jacobian.rows])]
    other = place[np.concatenate([pattern.hessian.columns, pattern.jacobian.columns])]
    wanted = np.minimum(one, other) * size + np.maximum(one, other)
    keys = columns * size + rows
    slots = size + np.searchsorted(keys, wanted)
    slots[one == other] = one[one == other]
    return np.concatenate([slots, place])
