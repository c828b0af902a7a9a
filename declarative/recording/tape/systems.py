"""The systems of linear equations that a tape solves on the way, their entries in its registers."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...linear.dense_kernel import room_in as dense_room
from ...linear.dense_kernel import room_size as dense_size
from ...linear.dense_kernel import solve_active, solve_one_active
from ...linear.jit import Floats, address_of, by_address, separate
from ...linear.sparse.elimination import factorise
from ...linear.sparse.kernel_arrays import Indices, Plan
from ...linear.sparse.kernel_arrays import room_in as sparse_room
from ...linear.sparse.kernel_arrays import room_size as sparse_size
from ...linear.sparse.ldl import GOAL, LOST
from ...linear.sparse.substitution import Kernels, solve

Registers = NDArray[np.int64]


class Systems(NamedTuple):
    """What the systems of one program have in common."""

    plan: Plan  # of sparse ones; without entries, if they are dense
    m: int
    k: int

    @classmethod
    def dense(cls, m: int, k: int) -> Systems:
        """Of this size."""
        return cls(Plan.none(), m, k)


class Solver(NamedTuple):
    """Where the machine code is that solves them."""

    kernel: int  # for systems in registers, dense or sparse
    sparse: Kernels
    dense: int  # for one of them

    @classmethod
    def of(cls, systems: Systems, lanes: int) -> Solver:
        """For one problem or several; zero: for what these do not need."""
        if len(systems.plan.place):
            return cls(address_of(solve_sparse), Kernels.of(lanes), 0)
        return cls(address_of(solve_dense), Kernels.none(), address_of(solve_one_active))


def room_for(systems: Systems | None, lanes: int) -> tuple[Floats, Indices]:
    """Buffers for that."""
    if systems is None:
        return np.empty(0), np.empty(0, np.uint32)
    size = len(systems.plan.place)
    numbers = sparse_size(systems.plan, lanes) if size else dense_size(systems.m, systems.k)
    return np.empty(numbers), np.empty(size, np.uint32)


def _examples() -> tuple[Any, ...]:
    numbers, places = np.empty(0), np.empty(0, np.int64)
    solver = Solver(0, Kernels.none(), 0)
    return Systems.dense(0, 0), solver, numbers, np.empty(0, np.uint32), numbers, places, places, 0, 0


solve_in_registers = by_address(_examples)


@separate(_examples)
def solve_sparse(
    systems: Systems,
    solver: Solver,
    numbers: Floats,
    where: Indices,
    r: Floats,
    reads: Registers,
    writes: Registers,
    lanes: int,
    _: int,
) -> None:
    """Reads the entries of the matrix and the right-hand side; writes the solution and what the layout says of it."""
    plan, kernels = systems.plan, solver.sparse
    room = sparse_room(plan, numbers, where, lanes)
    entries, sides, size, count = room.entries, room.rows, len(plan.place), len(plan.slots)
    for e in range(count):
        for b in range(lanes):
            entries[e, b] = r[reads[e] * lanes + b]
    for i in range(size):
        for b in range(lanes):
            sides.right[plan.place[i], b] = r[reads[count + i] * lanes + b]
    factorise(kernels.factorise, (plan, entries, room.factor, room.work))
    solve(kernels.solve, (plan, entries, room.factor, sides, room.error, GOAL))
    unknowns, regular = 0, True
    for i in range(size):
        unknowns += 0 if plan.is_constraint[i] else 1
        for b in range(lanes):
            r[writes[i] * lanes + b] = sides.x[plan.place[i], b]
    for b in range(lanes):
        above = room.factor.counts[0, b] + room.factor.counts[2, b]
        r[writes[size] * lanes + b] = 1.0 if above == unknowns else 0.0
        r[writes[size + 1] * lanes + b] = room.error[b]
        regular = regular and room.factor.counts[0, b] + room.factor.counts[1, b] == size
        r[writes[size + 2] * lanes + b] = 1.0
    if not regular:  # pivots had to be replaced: is there a solution for a right-hand side without a pattern too?
        for i in range(size):
            for b in range(lanes):
                sides.right[i, b] = 0.5 + (0.6180339887 * (i + 1)) % 1.0
        solve(kernels.solve, (plan, entries, room.factor, sides, room.error, GOAL))
        for b in range(lanes):
            alike = room.factor.counts[0, b] + room.factor.counts[1, b] == size
            r[writes[size + 2] * lanes + b] = 1.0 if alike or room.error[b] <= LOST else 0.0


@separate(_examples)
def solve_dense(
    systems: Systems,
    solver: Solver,
    numbers: Floats,
    _: Indices,
    r: Floats,
    reads: Registers,
    writes: Registers,
    lanes: int,
    count: int,
) -> None:
    """Reads H, A, what is active, and the right-hand side; writes the solution and whether it is to be trusted.

    Of the problems in the lanes there are only so many.
    """
    m, k = systems.m, systems.k
    room = dense_room(numbers, m, k)
    for b in range(min(lanes, count)):
        i = 0
        for x in (room.hessian, room.jacobian):
            for row in range(x.shape[0]):
                for column in range(x.shape[1]):
                    x[row, column] = r[reads[i] * lanes + b]
                    i += 1
        for y in (room.active, room.z, room.s):
            for entry in range(len(y)):
                y[entry] = r[reads[i] * lanes + b]
                i += 1
        solve_active(solver.dense, (room,))
        for a in range(m):
            r[writes[a] * lanes + b] = room.z[a]
        for a in range(k):
            r[writes[m + a] * lanes + b] = room.s[a]
        r[writes[m + k] * lanes + b] = room.trusted[0]


def same(one: Systems | None, other: Systems) -> bool:
    """Whether a program that solves the one can solve the other too."""
    return one is None or ((one.m, one.k) == (other.m, other.k) and _same_plan(one.plan, other.plan))


def _same_plan(one: Any, other: Any) -> bool:
    return one is other or (not len(one.place) and not len(other.place))
