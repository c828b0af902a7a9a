"""The machine that runs a tape: registers for several problems side by side, and one loop over instructions.

An instruction reads up to three registers and writes one, for ``LANES`` problems at a time. Instructions of one kind
that follow each other are a *run*, whose kind is looked at once. A register is used again as soon as nobody needs what
is in it, so that all of them stay close to the processor. A system of linear equations is two runs: one that reads its
entries, and one that writes its solution.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...linear.jit import Floats, address_of, allocating, by_address, compiled, inlined, inner, separate
from ...linear.simd import LANES, broadcast, store
from ...linear.sparse.kernel_arrays import Indices
from .kinds import READ, perform
from .systems import Solver, Systems, room_for, solve_in_registers

Registers = NDArray[np.int64]


class Program(NamedTuple):
    """Instructions, and which registers are what."""

    kinds: Registers  # of each run
    ends: Registers  # its last instruction + 1
    a: Registers  # operands of each instruction
    b: Registers
    c: Registers
    d: Registers  # the register that it writes
    size: int  # how many registers there are
    constants: Floats  # the first registers
    own: Registers  # which entries of a problem's own inputs are read, into the registers after the constants
    shared: Registers  # and of those that all problems share, after these
    outputs: Registers  # the register of each entry of a problem's outputs
    offsets: Registers  # of each output among them, and the end


def _allocate(operands: Registers, last: Registers, results: Registers, place: Registers, used: int) -> int:
    """Give a register to each result, one that nobody needs any more if there is such; how many there are then.

    Args:
        operands: of each instruction, in turn, numbered one after the other, (count, 3).
        last: the last instruction that reads what is numbered so.
        results: what each instruction writes; -1: nothing.
        place: the register of what is numbered so; known for what is no result.
        used: registers that are taken.
    """
    free = np.empty(len(results) + 1, dtype=np.int64)
    many = 0
    for i in range(len(results)):
        for j in range(3):
            x = operands[i, j]
            earlier = (j > 0 and operands[i, 0] == x) or (j > 1 and operands[i, 1] == x)
            if last[x] == i and not earlier:
                free[many] = place[x]
                many += 1
        if results[i] < 0:  # it writes nothing
            continue
        if many:
            many -= 1
            place[results[i]] = free[many]
        else:
            place[results[i]] = used
            used += 1
    return used


allocate = allocating(_allocate)


@inlined
def _load(program: Program, own: Floats, shared: Floats, begin: int, r: Floats, lanes: int) -> None:
    """The registers of inputs and constants; lanes to spare repeat the last problem."""
    fixed, read = len(program.constants), len(program.own)
    if begin == 0:  # those that are the same for all problems
        for i in range(fixed):
            store(r, i, broadcast(program.constants[i], lanes), lanes)
        for i in range(len(program.shared)):
            store(r, fixed + read + i, broadcast(shared[program.shared[i]], lanes), lanes)
    for j in range(lanes):
        row = min(begin + j, len(own) - 1)
        for i in range(read):
            r[(fixed + i) * lanes + j] = own[row, program.own[i]]


@inlined
def _store(program: Program, r: Floats, count: int, begin: int, outputs: Floats, lanes: int) -> None:
    """The outputs of these problems."""
    there = min(lanes, count - begin)
    for n in range(len(program.offsets) - 1):
        first, last = program.offsets[n], program.offsets[n + 1]
        place = first * count + begin * (last - first)
        for i in range(first, last):
            register = program.outputs[i] * lanes
            for j in range(there):
                outputs[place + j * (last - first) + i - first] = r[register + j]


@inlined
def _advance(
    program: Program,
    own: Floats,
    shared: Floats,
    outputs: Floats,
    r: Floats,
    begin: int,
    first: int,
    last: int,
    lanes: int,
) -> None:
    if first == 0:
        _load(program, own, shared, begin, r, lanes)
    perform(program, r, first, last, lanes)
    if last == len(program.kinds):
        _store(program, r, len(own), begin, outputs, lanes)


def _examples() -> tuple[Any, ...]:
    numbers, places = np.empty(0), np.empty(0, np.int64)
    program = Program(
        places, places, places, places, places, places, 0, numbers, places, places, places, places
    )  # fmt: skip
    return program, np.empty((0, 0)), numbers, numbers, numbers, 0, 0, 0


@separate(_examples)
def advance_alone(
    program: Program, own: Floats, shared: Floats, outputs: Floats, r: Floats, begin: int, first: int, last: int
) -> None:
    """Some of the runs for the problem ``begin``; before the first it is read, and after the last it is written."""
    _advance(program, own, shared, outputs, r, begin, first, last, 1)


@separate(_examples)
def advance_beside(
    program: Program, own: Floats, shared: Floats, outputs: Floats, r: Floats, begin: int, first: int, last: int
) -> None:
    """The same for problems side by side, from that one on; what all share is read for the first of them."""
    _advance(program, own, shared, outputs, r, begin, first, last, LANES)


advance = by_address(_examples)


@inner
def run_groups(program: Program, kernel: int, own: Floats, shared: Floats, outputs: Floats, r: Floats) -> None:
    """A program without systems, for problems alone or side by side, by the kernel for so many."""
    lanes = len(r) // max(program.size, 1)
    for begin in range(0, len(own), lanes):
        advance(kernel, (program, own, shared, outputs, r, begin, 0, len(program.kinds)))


@compiled
def run(program: Program, kernel: int, own: Floats, shared: Floats, outputs: Floats, r: Floats) -> None:
    """The same, called from Python."""
    run_groups(program, kernel, own, shared, outputs, r)


@compiled
def run_with_systems(
    program: Program,
    kernel: int,
    systems: Systems,
    solver: Solver,
    own: Floats,
    shared: Floats,
    outputs: Floats,
    r: Floats,
    numbers: Floats,
    where: Indices,
) -> None:
    """The same for a program that solves systems."""
    lanes, runs = len(r) // max(program.size, 1), len(program.kinds)
    for begin in range(0, len(own), lanes):
        first = 0
        while first <= runs:
            last = first
            while last < runs and program.kinds[last] != READ:
                last += 1
            advance(kernel, (program, own, shared, outputs, r, begin, first, last))
            if last < runs:
                begins = program.ends[last - 1] if last else 0
                middle, end = program.ends[last], program.ends[last + 1]
                reads, writes, count = program.a[begins:middle], program.d[middle:end], len(own) - begin
                solve_in_registers(solver.kernel, (systems, solver, numbers, where, r, reads, writes, lanes, count))
                last += 1
            first = last + 1


def registers_for(program: Program, lanes: int) -> Floats:
    """Those that one problem needs, or several side by side."""
    return np.empty(max(program.size, 1) * lanes)


def kernel_for(lanes: int) -> int:
    """Where the machine code for so many side by side is."""
    return address_of(advance_alone if lanes == 1 else advance_beside)


def execute(
    program: Program, systems: Systems | None, own: Floats, shared: Floats, outputs: Floats, lanes: int
) -> None:
    """Run a program.

    Args:
        program: what to do.
        systems: of linear equations, that it solves on the way.
        own: each problem's inputs, (batch, entries).
        shared: those of all, (entries,).
        outputs: where to write: one output after the other, each (batch, entries), flat.
        lanes: how many problems are worked on side by side: 1 or ``LANES``, which need not be as many.
    """
    r, kernel = registers_for(program, lanes), kernel_for(lanes)
    if systems is None:
        run(program, kernel, own, shared, outputs, r)
    else:
        solver, room = Solver.of(systems, lanes), room_for(systems, lanes)
        run_with_systems(program, kernel, systems, solver, own, shared, outputs, r, *room)
