"""What the compiled kernels work on: arrays (entry, lane), with the problems of a group in the lanes, side by side.

One instruction then serves several problems, and there are so few in a group that its factors stay close to the
processor.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..jit import Floats, cut, inner
from .symbolic import Symbolic

Indices = NDArray[np.uint32]  # which cannot be negative: compiled code does not look
Bounds = NDArray[np.int32]  # between which loops run
Flags = NDArray[np.bool_]


class Plan(NamedTuple):
    """The arrays of a symbolic analysis."""

    place: Indices  # as in Symbolic
    slots: Indices
    first: Indices  # the position of each entry of K, its row
    second: Indices  # and its column
    pair: Flags
    is_constraint: Flags
    starts: Bounds
    rows: Indices
    columns: Bounds
    row_starts: Bounds
    by_row: Indices

    @classmethod
    def of(cls, symbolic: Symbolic) -> Plan:
        """In the types that the kernels expect."""
        row_starts, by_row = symbolic.by_rows
        first, second = symbolic.coordinates
        return cls(
            place=symbolic.place.astype(np.uint32),
            slots=symbolic.slots.astype(np.uint32),
            first=first.astype(np.uint32),
            second=second.astype(np.uint32),
            pair=symbolic.pair,
            is_constraint=symbolic.is_constraint,
            starts=symbolic.starts.astype(np.int32),
            rows=symbolic.rows.astype(np.uint32),
            columns=symbolic.columns.astype(np.int32),
            row_starts=row_starts.astype(np.int32),
            by_row=by_row.astype(np.uint32),
        )

    @classmethod
    def none(cls) -> Plan:
        """Of no entries."""
        none, bounds, never = np.empty(0, np.uint32), np.empty(0, np.int32), np.empty(0, bool)
        return cls(none, none, none, none, never, never, bounds, none, bounds, bounds, none)


class Factor(NamedTuple):
    """The factor of one group of problems; or of several, which come first then."""

    inverse: Floats  # the diagonal of D^-1, (size, lanes)
    coupling: Floats  # of its blocks, beside the diagonal, (size, lanes)
    lower: Floats  # L, (fill, lanes)
    counts: Floats  # pivots above and below zero, and those replaced by one above or below, (4, lanes)


class Work(NamedTuple):
    """Memory for what is needed on the way."""

    below: Floats  # W, (fill, lanes)
    made: Floats  # the size of what each pivot is made from, (size, lanes)
    where: Indices  # the entry of each row in the present column, (size,)


class Rows(NamedTuple):
    """Right-hand sides, solutions, and what is needed on the way; (size, lanes) unless said."""

    right: Floats
    x: Floats
    residual: Floats
    total: Floats
    trial: Floats
    most: Floats  # (2, lanes)


class Room(NamedTuple):
    """For one group of problems: their matrices, factors and solutions."""

    entries: Floats  # of K, (entries, lanes)
    factor: Factor
    work: Work
    rows: Rows
    error: Floats  # (lanes,)


def room_size(plan: Plan, lanes: int) -> int:
    """How many numbers that takes."""
    return lanes * (len(plan.slots) + 8 * len(plan.place) + 2 * len(plan.rows) + 7)


@inner
def room_in(plan: Plan, numbers: Floats, where: Indices, lanes: int) -> Room:
    """The room, in a buffer of so many numbers and another of the size of K."""
    size, fill = len(plan.place), len(plan.rows)
    entries, n = cut(numbers, 0, len(plan.slots), lanes)
    of_factor, n = cut(numbers, n, 2 * fill, lanes)
    counts, n = cut(numbers, n, 4, lanes)
    most, n = cut(numbers, n, 2, lanes)
    of_size, n = cut(numbers, n, 8 * size, lanes)
    x = of_size.reshape(8, size, lanes)
    return Room(
        entries,
        Factor(x[0], x[1], of_factor[:fill], counts),
        Work(of_factor[fill:], x[2], where),
        Rows(x[3], x[4], x[5], x[6], x[7], most),
        numbers[n : n + lanes],
    )
