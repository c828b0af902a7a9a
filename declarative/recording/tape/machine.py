"""The machine that runs a tape: registers for several problems side by side, and one loop over instructions.

An instruction reads up to three registers and writes one, for ``LANES`` problems at a time. Instructions of one kind
that follow each other are a *run*, whose kind is looked at once. A register is used again as soon as nobody needs what
is in it, so that all of them stay close to the processor. A system of linear equations is two runs: one that reads its
entries, and one that writes its solution.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...linear.machine import Floats, allocating, compiled, inner, woven
from ...linear.sparse.lanes import Indices
from ...linear.vector import LANES, broad, load, store
from .systems import Systems, memory_in, room_for, solve_in_registers

Registers = NDArray[np.int64]

(
    ADD, SUB, MUL, DIV, NEG, MAXIMUM, MINIMUM, POW, ATAN2, WHERE,
    LT, LE, EQ, NOT, AND, OR, ISFINITE, ISNAN,
    ABS, SIGN, SQRT, EXP, EXPM1, LOG, LOG1P, SIN, COS, TAN, ASIN, ACOS, ATAN,
    SINH, COSH, TANH, ASINH, ACOSH, ATANH, ERF, FLOOR, CEIL, READ, SOLVED,
) = range(42)  # fmt: skip


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


def _maximum(a: float, b: float) -> float:
    return a if (a > b) | (a != a) else b  # what is not a number stays it, on either side


def _minimum(a: float, b: float) -> float:
    return a if (a < b) | (a != a) else b


def _sign(a: float) -> float:
    return (1.0 if a > 0 else 0.0) - (1.0 if a < 0 else 0.0)


maximum, minimum, sign = inner(_maximum), inner(_minimum), inner(_sign)


def _binary(kind: int, a: float, b: float) -> float:
    return a**b if kind == POW else math.atan2(a, b)


def _unary(kind: int, a: float) -> float:
    if kind == ISFINITE:
        return 1.0 if np.isfinite(a) else 0.0
    if kind == SIGN:
        return sign(a)  # type: ignore[no-any-return]
    if kind == EXPM1:
        return np.expm1(a)  # type: ignore[no-any-return]
    if kind == LOG1P:
        return np.log1p(a)  # type: ignore[no-any-return]
    if kind == TAN:
        return np.tan(a)  # type: ignore[no-any-return]
    if kind == ASIN:
        return np.arcsin(a)  # type: ignore[no-any-return]
    if kind == ACOS:
        return np.arccos(a)  # type: ignore[no-any-return]
    if kind == ATAN:
        return np.arctan(a)  # type: ignore[no-any-return]
    if kind == SINH:
        return np.sinh(a)  # type: ignore[no-any-return]
    if kind == COSH:
        return np.cosh(a)  # type: ignore[no-any-return]
    if kind == TANH:
        return np.tanh(a)  # type: ignore[no-any-return]
    if kind == ASINH:
        return np.arcsinh(a)  # type: ignore[no-any-return]
    if kind == ACOSH:
        return np.arccosh(a)  # type: ignore[no-any-return]
    if kind == ATANH:
        return np.arctanh(a)  # type: ignore[no-any-return]
    if kind == ERF:
        return math.erf(a)
    if kind == FLOOR:
        return np.floor(a)  # type: ignore[no-any-return]
    if kind == CEIL:
        return np.ceil(a)  # type: ignore[no-any-return]
    return math.nan


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
binary, unary = inner(_binary), inner(_unary)


@woven
def _perform(program: Program, r: Floats, first: int, last: int, lanes: int) -> None:
    """Carry out some of the runs."""
    kinds, ends, A, B, C, D = program.kinds, program.ends, program.a, program.b, program.c, program.d
    k = ends[first - 1] if first else 0
    for n in range(first, last):
        kind, end = kinds[n], ends[n]
        if kind == ADD:
            for i in range(k, end):
                store(r, D[i], load(r, A[i], lanes) + load(r, B[i], lanes), lanes)
        elif kind == MUL:
            for i in range(k, end):
                store(r, D[i], load(r, A[i], lanes) * load(r, B[i], lanes), lanes)
        elif kind == SUB:
            for i in range(k, end):
                store(r, D[i], load(r, A[i], lanes) - load(r, B[i], lanes), lanes)
        elif kind == NEG:
            for i in range(k, end):
                a, d = A[i] * lanes, D[i] * lanes
                for j in range(lanes):
                    r[d + j] = -r[a + j]
        elif kind == DIV:
            for i in range(k, end):
                store(r, D[i], load(r, A[i], lanes) / load(r, B[i], lanes), lanes)
        elif kind == WHERE:
            for i in range(k, end):
                a, b, c, d = A[i] * lanes, B[i] * lanes, C[i] * lanes, D[i] * lanes
                for j in range(lanes):
                    r[d + j] = r[b + j] if r[a + j] != 0.0 else r[c + j]
        elif kind == SIN:
            for i in range(k, end):
                a, d = A[i] * lanes, D[i] * lanes
                for j in range(lanes):
                    r[d + j] = math.sin(r[a + j])
        elif kind == COS:
            for i in range(k, end):
                a, d = A[i] * lanes, D[i] * lanes
                for j in range(lanes):
                    r[d + j] = math.cos(r[a + j])
        elif kind == EXP:
            for i in range(k, end):
                a, d = A[i] * lanes, D[i] * lanes
                for j in range(lanes):
                    r[d + j] = np.exp(r[a + j])
        elif kind == LOG:
            for i in range(k, end):
                a, d = A[i] * lanes, D[i] * lanes
                for j in range(lanes):
                    r[d + j] = np.log(r[a + j])
        elif kind == SQRT:
            for i in range(k, end):
                a, d = A[i] * lanes, D[i] * lanes
                for j in range(lanes):
                    r[d + j] = np.sqrt(r[a + j])
        elif kind == ABS:
            for i in range(k, end):
                a, d = A[i] * lanes, D[i] * lanes
                for j in range(lanes):
                    r[d + j] = abs(r[a + j])
        elif kind == MAXIMUM:
            for i in range(k, end):
                a, b, d = A[i] * lanes, B[i] * lanes, D[i] * lanes
                for j in range(lanes):
                    r[d + j] = maximum(r[a + j], r[b + j])
        elif kind == LE:
            for i in range(k, end):
                a, b, d = A[i] * lanes, B[i] * lanes, D[i] * lanes
                for j in range(lanes):
                    r[d + j] = 1.0 if r[a + j] <= r[b + j] else 0.0
        elif kind == LT:
            for i in range(k, end):
                a, b, d = A[i] * lanes, B[i] * lanes, D[i] * lanes
                for j in range(lanes):
                    r[d + j] = 1.0 if r[a + j] < r[b + j] else 0.0
        elif kind == MINIMUM:
            for i in range(k, end):
                a, b, d = A[i] * lanes, B[i] * lanes, D[i] * lanes
                for j in range(lanes):
                    r[d + j] = minimum(r[a + j], r[b + j])
        elif kind == EQ:
            for i in range(k, end):
                a, b, d = A[i] * lanes, B[i] * lanes, D[i] * lanes
                for j in range(lanes):
                    r[d + j] = 1.0 if r[a + j] == r[b + j] else 0.0
        elif kind == AND:
            for i in range(k, end):
                a, b, d = A[i] * lanes, B[i] * lanes, D[i] * lanes
                for j in range(lanes):
                    r[d + j] = 1.0 if (r[a + j] != 0.0) & (r[b + j] != 0.0) else 0.0
        elif kind == OR:
            for i in range(k, end):
                a, b, d = A[i] * lanes, B[i] * lanes, D[i] * lanes
                for j in range(lanes):
                    r[d + j] = 1.0 if (r[a + j] != 0.0) | (r[b + j] != 0.0) else 0.0
        elif kind == NOT:
            for i in range(k, end):
                a, d = A[i] * lanes, D[i] * lanes
                for j in range(lanes):
                    r[d + j] = 1.0 if r[a + j] == 0.0 else 0.0
        elif kind == ISNAN:
            for i in range(k, end):
                a, d = A[i] * lanes, D[i] * lanes
                for j in range(lanes):
                    r[d + j] = 1.0 if r[a + j] != r[a + j] else 0.0
        elif kind in (POW, ATAN2):
            for i in range(k, end):
                a, b, d = A[i] * lanes, B[i] * lanes, D[i] * lanes
                for j in range(lanes):
                    r[d + j] = binary(kind, r[a + j], r[b + j])
        else:
            for i in range(k, end):
                a, d = A[i] * lanes, D[i] * lanes
                for j in range(lanes):
                    r[d + j] = unary(kind, r[a + j])
        k = end


@woven
def _load(program: Program, own: Floats, shared: Floats, begin: int, r: Floats, lanes: int) -> None:
    """The registers of inputs and constants; lanes to spare repeat the last problem."""
    fixed, read = len(program.constants), len(program.own)
    if begin == 0:  # those that are the same for all problems
        for i in range(fixed):
            store(r, i, broad(program.constants[i], lanes), lanes)
        for i in range(len(program.shared)):
            store(r, fixed + read + i, broad(shared[program.shared[i]], lanes), lanes)
    for j in range(lanes):
        row = min(begin + j, len(own) - 1)
        for i in range(read):
            r[(fixed + i) * lanes + j] = own[row, program.own[i]]


@woven
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


@inner
def perform(program: Program, r: Floats, first: int, last: int, lanes: int) -> None:
    """Some of the runs."""
    if lanes == 1:  # which the compiler then knows
        _perform(program, r, first, last, 1)
    else:
        _perform(program, r, first, last, LANES)


@inner
def load_group(program: Program, own: Floats, shared: Floats, begin: int, r: Floats, lanes: int) -> None:
    """What the problems from ``begin`` on read; what all share is read for the first of them."""
    if lanes == 1:
        _load(program, own, shared, begin, r, 1)
    else:
        _load(program, own, shared, begin, r, LANES)


@inner
def store_group(program: Program, r: Floats, count: int, begin: int, outputs: Floats, lanes: int) -> None:
    """And what they write."""
    if lanes == 1:
        _store(program, r, count, begin, outputs, 1)
    else:
        _store(program, r, count, begin, outputs, LANES)


@compiled
def run(program: Program, own: Floats, shared: Floats, outputs: Floats, r: Floats) -> None:
    """A program without systems, for problems alone or side by side."""
    first, lanes = np.int64(0), len(r) // max(program.size, 1)
    for begin in range(0, len(own), lanes):
        load_group(program, own, shared, begin, r, lanes)
        perform(program, r, first, len(program.kinds), lanes)
        store_group(program, r, len(own), begin, outputs, lanes)


@compiled
def run_with_systems(
    program: Program,
    systems: Systems,
    own: Floats,
    shared: Floats,
    outputs: Floats,
    r: Floats,
    numbers: Floats,
    where: Indices,
) -> None:
    """The same for a program that solves systems."""
    lanes = len(r) // max(program.size, 1)
    memory = memory_in(systems, numbers, where, lanes)
    for begin in range(0, len(own), lanes):
        load_group(program, own, shared, begin, r, lanes)
        first = np.int64(0)
        while first < len(program.kinds):
            last = first
            while last < len(program.kinds) and program.kinds[last] != READ:
                last += 1
            perform(program, r, first, last, lanes)
            first = last
            if last < len(program.kinds):
                begins = program.ends[last - 1] if last else 0
                middle, end = program.ends[last], program.ends[last + 1]
                reads, writes = program.a[begins:middle], program.d[middle:end]
                solve_in_registers(systems, memory, r, reads, writes, lanes, len(own) - begin)
                first += 2
        store_group(program, r, len(own), begin, outputs, lanes)


def registers_for(program: Program, count: int) -> Floats:
    """Those that so many problems need."""
    return np.empty(max(program.size, 1) * (1 if count == 1 else LANES))


def execute(program: Program, systems: Systems | None, own: Floats, shared: Floats, outputs: Floats) -> None:
    """Run a program.

    Args:
        program: what to do.
        systems: of linear equations, that it solves on the way.
        own: each problem's inputs, (batch, entries).
        shared: those of all, (entries,).
        outputs: where to write: one output after the other, each (batch, entries), flat.
    """
    r = registers_for(program, len(own))
    if systems is None:
        run(program, own, shared, outputs, r)
    else:
        run_with_systems(program, systems, own, shared, outputs, r, *room_for(systems, 1 if len(own) == 1 else LANES))
