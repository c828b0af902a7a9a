"""The machine that runs a tape: registers for several problems side by side, and one loop over instructions.

An instruction reads up to three registers and writes one, for ``LANES`` problems at a time. Instructions of one kind
that follow each other are a *run*, whose kind is looked at once. A register is written once, so that runs need no order
within themselves.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...linear.machine import Floats, compiled

Registers = NDArray[np.int64]
LANES = 8  # problems side by side: two registers of the processor for each of the tape's

(
    ADD, SUB, MUL, DIV, NEG, MAXIMUM, MINIMUM, POW, ATAN2, WHERE,
    LT, LE, EQ, NOT, AND, OR, ISFINITE, ISNAN,
    ABS, SIGN, SQRT, EXP, EXPM1, LOG, LOG1P, SIN, COS, TAN, ASIN, ACOS, ATAN,
    SINH, COSH, TANH, ASINH, ACOSH, ATANH, ERF, FLOOR, CEIL,
) = range(40)  # fmt: skip


class Program(NamedTuple):
    """Instructions, and which registers are what."""

    kinds: Registers  # of each run
    ends: Registers  # its last instruction + 1
    a: Registers  # operands of each instruction
    b: Registers
    c: Registers
    first: int  # the register that the first instruction writes; the next one writes the next
    constants: Floats  # the first registers
    own: Registers  # which entries of a problem's own inputs are read, into the registers after the constants
    shared: Registers  # and of those that all problems share, after these
    outputs: Registers  # the register of each entry of a problem's outputs
    offsets: Registers  # of each output among them, and the end


def _maximum(a: float, b: float) -> float:
    return a if a >= b or a != a else b  # what is not a number stays it, on either side


def _minimum(a: float, b: float) -> float:
    return a if a <= b or a != a else b


def _sign(a: float) -> float:
    return (1.0 if a > 0 else 0.0) - (1.0 if a < 0 else 0.0)


maximum, minimum, sign = compiled(_maximum), compiled(_minimum), compiled(_sign)


def _machine(lanes: int) -> Callable[..., None]:
    """The loop for so many problems side by side, a number that the compiler knows."""

    def run(program: Program, own: Floats, shared: Floats, outputs: Floats) -> None:
        kinds, ends, A, B, C = program.kinds, program.ends, program.a, program.b, program.c
        count, fixed, read = len(own), len(program.constants), len(program.own)
        r = np.empty((program.first + len(A)) * lanes)
        for i in range(fixed):
            for j in range(lanes):
                r[i * lanes + j] = program.constants[i]
        for i in range(len(program.shared)):
            for j in range(lanes):
                r[(fixed + read + i) * lanes + j] = shared[program.shared[i]]
        for begin in range(0, count, lanes):
            for j in range(lanes):
                row = min(begin + j, count - 1)
                for i in range(read):
                    r[(fixed + i) * lanes + j] = own[row, program.own[i]]
            k = 0
            for n in range(len(kinds)):
                kind, end = kinds[n], ends[n]
                d = (program.first + k) * lanes
                if kind == ADD:
                    for i in range(k, end):
                        a, b = A[i] * lanes, B[i] * lanes
                        for j in range(lanes):
                            r[d + j] = r[a + j] + r[b + j]
                        d += lanes
                elif kind == MUL:
                    for i in range(k, end):
                        a, b = A[i] * lanes, B[i] * lanes
                        for j in range(lanes):
                            r[d + j] = r[a + j] * r[b + j]
                        d += lanes
                elif kind == SUB:
                    for i in range(k, end):
                        a, b = A[i] * lanes, B[i] * lanes
                        for j in range(lanes):
                            r[d + j] = r[a + j] - r[b + j]
                        d += lanes
                elif kind == NEG:
                    for i in range(k, end):
                        a = A[i] * lanes
                        for j in range(lanes):
                            r[d + j] = -r[a + j]
                        d += lanes
                elif kind == DIV:
                    for i in range(k, end):
                        a, b = A[i] * lanes, B[i] * lanes
                        for j in range(lanes):
                            r[d + j] = r[a + j] / r[b + j]
                        d += lanes
                elif kind == WHERE:
                    for i in range(k, end):
                        a, b, c = A[i] * lanes, B[i] * lanes, C[i] * lanes
                        for j in range(lanes):
                            r[d + j] = r[b + j] if r[a + j] != 0.0 else r[c + j]
                        d += lanes
                elif kind == SIN:
                    for i in range(k, end):
                        for j in range(lanes):
                            r[d + j] = math.sin(r[A[i] * lanes + j])
                        d += lanes
                elif kind == COS:
                    for i in range(k, end):
                        for j in range(lanes):
                            r[d + j] = math.cos(r[A[i] * lanes + j])
                        d += lanes
                elif kind == EXP:
                    for i in range(k, end):
                        for j in range(lanes):
                            r[d + j] = np.exp(r[A[i] * lanes + j])
                        d += lanes
                elif kind == LOG:
                    for i in range(k, end):
                        for j in range(lanes):
                            r[d + j] = np.log(r[A[i] * lanes + j])
                        d += lanes
                elif kind == SQRT:
                    for i in range(k, end):
                        for j in range(lanes):
                            r[d + j] = np.sqrt(r[A[i] * lanes + j])
                        d += lanes
                elif kind == ABS:
                    for i in range(k, end):
                        for j in range(lanes):
                            r[d + j] = abs(r[A[i] * lanes + j])
                        d += lanes
                elif kind == MAXIMUM:
                    for i in range(k, end):
                        a, b = A[i] * lanes, B[i] * lanes
                        for j in range(lanes):
                            r[d + j] = maximum(r[a + j], r[b + j])
                        d += lanes
                elif kind == LE:
                    for i in range(k, end):
                        a, b = A[i] * lanes, B[i] * lanes
                        for j in range(lanes):
                            r[d + j] = 1.0 if r[a + j] <= r[b + j] else 0.0
                        d += lanes
                elif kind == LT:
                    for i in range(k, end):
                        a, b = A[i] * lanes, B[i] * lanes
                        for j in range(lanes):
                            r[d + j] = 1.0 if r[a + j] < r[b + j] else 0.0
                        d += lanes
                elif kind <= OR:  # of two numbers, and rarer
                    for i in range(k, end):
                        a, b = A[i] * lanes, B[i] * lanes
                        for j in range(lanes):
                            r[d + j] = binary(kind, r[a + j], r[b + j])
                        d += lanes
                else:
                    for i in range(k, end):
                        for j in range(lanes):
                            r[d + j] = unary(kind, r[A[i] * lanes + j])
                        d += lanes
                k = end
            for j in range(min(lanes, count - begin)):
                for n in range(len(program.offsets) - 1):
                    first, last = program.offsets[n], program.offsets[n + 1]
                    place = first * count + (begin + j) * (last - first)
                    for i in range(first, last):
                        outputs[place + i - first] = r[program.outputs[i] * lanes + j]

    return compiled(run)  # type: ignore[no-any-return]


def _binary(kind: int, a: float, b: float) -> float:
    if kind == MINIMUM:
        return minimum(a, b)  # type: ignore[no-any-return]
    if kind == POW:
        return a**b  # type: ignore[no-any-return]
    if kind == ATAN2:
        return math.atan2(a, b)
    if kind == EQ:
        return 1.0 if a == b else 0.0
    if kind == NOT:
        return 1.0 if a == 0.0 else 0.0
    if kind == AND:
        return 1.0 if a != 0.0 and b != 0.0 else 0.0
    if kind == OR:
        return 1.0 if a != 0.0 or b != 0.0 else 0.0
    return math.nan


def _unary(kind: int, a: float) -> float:  # noqa: C901
    if kind == ISFINITE:
        return 1.0 if np.isfinite(a) else 0.0
    if kind == ISNAN:
        return 1.0 if a != a else 0.0
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


binary, unary = compiled(_binary), compiled(_unary)
alone, abreast = _machine(1), _machine(LANES)


def execute(program: Program, own: Floats, shared: Floats, outputs: Floats) -> Any:
    """Run a program.

    Args:
        program: what to do.
        own: each problem's inputs, (batch, entries).
        shared: those of all, (entries,).
        outputs: where to write: one output after the other, each (batch, entries), flat.
    """
    (alone if len(own) == 1 else abreast)(program, own, shared, outputs)
