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

from ...linear.machine import Floats, compiled, inner, woven
from .systems import Systems, memory_for, solve_in_registers

Registers = NDArray[np.int64]
LANES = 8  # problems side by side: two registers of the processor for each of the tape's

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


allocate = compiled(_allocate)
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
                a, b, d = A[i] * lanes, B[i] * lanes, D[i] * lanes
                for j in range(lanes):
                    r[d + j] = r[a + j] + r[b + j]
        elif kind == MUL:
            for i in range(k, end):
                a, b, d = A[i] * lanes, B[i] * lanes, D[i] * lanes
                for j in range(lanes):
                    r[d + j] = r[a + j] * r[b + j]
        elif kind == SUB:
            for i in range(k, end):
                a, b, d = A[i] * lanes, B[i] * lanes, D[i] * lanes
                for j in range(lanes):
                    r[d + j] = r[a + j] - r[b + j]
        elif kind == NEG:
            for i in range(k, end):
                a, d = A[i] * lanes, D[i] * lanes
                for j in range(lanes):
                    r[d + j] = -r[a + j]
        elif kind == DIV:
            for i in range(k, end):
                a, b, d = A[i] * lanes, B[i] * lanes, D[i] * lanes
                for j in range(lanes):
                    r[d + j] = r[a + j] / r[b + j]
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
def _load_all(program: Program, shared: Floats, r: Floats, lanes: int) -> None:
    """The registers that are the same for all problems."""
    fixed, read = len(program.constants), len(program.own)
    for i in range(fixed):
        for j in range(lanes):
            r[i * lanes + j] = program.constants[i]
    for i in range(len(program.shared)):
        for j in range(lanes):
            r[(fixed + read + i) * lanes + j] = shared[program.shared[i]]


@woven
def _load(program: Program, own: Floats, begin: int, r: Floats, lanes: int) -> None:
    """Those of the problems from ``begin`` on; lanes to spare repeat the last problem."""
    fixed = len(program.constants)
    for j in range(lanes):
        row = min(begin + j, len(own) - 1)
        for i in range(len(program.own)):
            r[(fixed + i) * lanes + j] = own[row, program.own[i]]


@woven
def _store(program: Program, r: Floats, count: int, begin: int, outputs: Floats, lanes: int) -> None:
    """The outputs of these problems."""
    for j in range(min(lanes, count - begin)):
        for n in range(len(program.offsets) - 1):
            first, last = program.offsets[n], program.offsets[n + 1]
            place = first * count + (begin + j) * (last - first)
            for i in range(first, last):
                outputs[place + i - first] = r[program.outputs[i] * lanes + j]


@woven
def _run(program: Program, own: Floats, shared: Floats, outputs: Floats, lanes: int) -> None:
    """For so many problems side by side, a number that the compiler knows."""
    r = np.empty(program.size * lanes)
    _load_all(program, shared, r, lanes)
    for begin in range(0, len(own), lanes):
        _load(program, own, begin, r, lanes)
        if lanes == 1:
            perform_alone(program, r, 0, len(program.kinds))
        else:
            perform_abreast(program, r, 0, len(program.kinds))
        _store(program, r, len(own), begin, outputs, lanes)


@woven
def _run_with_systems(
    program: Program, systems: Systems, own: Floats, shared: Floats, outputs: Floats, lanes: int
) -> None:
    """The same for a program that solves systems."""
    r, memory = np.empty(program.size * lanes), memory_for(systems, np.int64(lanes))
    _load_all(program, shared, r, lanes)
    for begin in range(0, len(own), lanes):
        _load(program, own, begin, r, lanes)
        first = 0
        while first < len(program.kinds):
            last = first
            while last < len(program.kinds) and program.kinds[last] != READ:
                last += 1
            if lanes == 1:
                perform_alone(program, r, first, last)
            else:
                perform_abreast(program, r, first, last)
            first = last
            if last < len(program.kinds):
                begins = program.ends[last - 1] if last else 0
                middle, end = program.ends[last], program.ends[last + 1]
                reads, writes = program.a[begins:middle], program.d[middle:end]
                solve_in_registers(systems, memory, r, reads, writes, len(own) - begin)
                first += 2
        _store(program, r, len(own), begin, outputs, lanes)


@inner
def perform_alone(program: Program, r: Floats, first: int, last: int) -> None:
    """Some of the runs, for one problem."""
    _perform(program, r, first, last, 1)


@inner
def perform_abreast(program: Program, r: Floats, first: int, last: int) -> None:
    """Some of the runs, for several problems."""
    _perform(program, r, first, last, LANES)


@compiled
def alone(program: Program, own: Floats, shared: Floats, outputs: Floats) -> None:
    """A program without systems, for one problem."""
    _run(program, own, shared, outputs, 1)


@compiled
def abreast(program: Program, own: Floats, shared: Floats, outputs: Floats) -> None:
    """A program without systems, for several problems."""
    _run(program, own, shared, outputs, LANES)


@compiled
def alone_with_systems(program: Program, systems: Systems, own: Floats, shared: Floats, outputs: Floats) -> None:
    """A program with systems, for one problem."""
    _run_with_systems(program, systems, own, shared, outputs, 1)


@compiled
def abreast_with_systems(program: Program, systems: Systems, own: Floats, shared: Floats, outputs: Floats) -> None:
    """A program with systems, for several problems."""
    _run_with_systems(program, systems, own, shared, outputs, LANES)


def execute(program: Program, systems: Systems | None, own: Floats, shared: Floats, outputs: Floats) -> None:
    """Run a program.

    Args:
        program: what to do.
        systems: of linear equations, that it solves on the way.
        own: each problem's inputs, (batch, entries).
        shared: those of all, (entries,).
        outputs: where to write: one output after the other, each (batch, entries), flat.
    """
    if systems is None:
        (alone if len(own) == 1 else abreast)(program, own, shared, outputs)
    else:
        (alone_with_systems if len(own) == 1 else abreast_with_systems)(program, systems, own, shared, outputs)
