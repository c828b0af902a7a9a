"""Writing a tape: arrays of registers in, instructions out, without those whose outcome is known.

A product with a constant zero is zero in a derivative, whatever the other factor is, also where that is not finite:
derivatives of a mapped function multiply by the zeros of identity matrices, and what is not finite shows elsewhere.
What a function states is ``literal``: there, zero times infinity is no number.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...kernels import kinds
from ...kernels.machine import Floats, Program, Registers, allocate

ZERO = 0  # the register that is always zero
LONGEST = 3_000_000  # instructions
NONE = np.empty(0, dtype=np.int64)

FOLDED: dict[int, Callable[..., NDArray[np.float64]]] = {  # how a result of constants is computed
    kinds.ADD: np.add,
    kinds.SUB: np.subtract,
    kinds.MUL: np.multiply,
    kinds.DIV: np.divide,
    kinds.NEG: np.negative,
    kinds.ABS: np.abs,
    kinds.SQRT: np.sqrt,
    kinds.EXP: np.exp,
    kinds.LOG: np.log,
    kinds.MAXIMUM: np.maximum,
    kinds.MINIMUM: np.minimum,
    kinds.POW: np.power,
}
COMMUTES = (kinds.ADD, kinds.MUL, kinds.EQ, kinds.AND, kinds.OR)


class NotLowered(Exception):  # noqa: N818
    """There is no tape for a function: an operation has no rule, or it would be too long."""


@dataclass(frozen=True)
class _Run:
    """Instructions of one kind; the first one writes the register ``first``, the next one the next."""

    kind: int
    first: int
    operands: tuple[Registers, ...]


_Kept = tuple[_Run, NDArray[np.bool_]]  # which of its instructions


class Writer:
    """Collects instructions."""

    def __init__(self) -> None:
        self._fixed = np.zeros(1024, dtype=bool)  # whether a register is a constant
        self._value = np.zeros(1024)  # and which
        self._count = 1
        self._fixed[ZERO] = True
        self._constants: dict[int, int] = {0: ZERO}  # registers by the bits of their values
        self._runs: list[_Run] = []
        self.length = 0  # instructions so far
        self.literal = False  # whether zero times what is not finite matters
        self.products = 0  # multiplications of matrices, which torch does faster
        self._written: dict[tuple[int, bytes], int] = {}  # runs by what they do

    # Registers.

    def fresh(self, count: int) -> Registers:
        """So many new ones."""
        first, self._count = self._count, self._count + count
        while self._count > len(self._fixed):
            self._fixed = np.concatenate([self._fixed, np.zeros_like(self._fixed)])
            self._value = np.concatenate([self._value, np.zeros_like(self._value)])
        return np.arange(first, self._count)

    def constants(self, values: Floats) -> Registers:
        """Those that hold these values."""
        shape = np.shape(values)
        every = np.ascontiguousarray(values, dtype=np.float64).reshape(-1).view(np.int64)
        result = np.full(len(every), ZERO)
        others = np.flatnonzero(every)  # derivatives are zeros for the most part
        bits, inverse = np.unique(every[others], return_inverse=True)
        found = np.empty(len(bits), dtype=np.int64)
        for i, (key, value) in enumerate(zip(bits.tolist(), bits.view(np.float64).tolist(), strict=True)):
            register = self._constants.get(key)
            if register is None:
                register = int(self.fresh(1)[0])
                self._fixed[register], self._value[register] = True, value
                self._constants[key] = register
            found[i] = register
        result[others] = found[inverse]
        return result.reshape(shape)

    def number(self, value: float) -> Registers:
        """The one that holds a number."""
        return self.constants(np.asarray(float(value)))

    def _is(self, registers: Registers, value: float) -> NDArray[np.bool_]:
        """Where they are constants of this value, zero and minus zero being one."""
        bits = [np.float64(sign * value).view(np.int64) for sign in ((1, -1) if value == 0 else (1,))]
        held = [self._constants[int(key)] for key in bits if int(key) in self._constants]
        found: NDArray[np.bool_] = np.logical_or.reduce([registers == one for one in held] or [registers < 0])
        return found

    # Instructions.

    def emit(self, kind: int, *operands: Registers) -> Registers:
        """The registers with the results, for operands that broadcast."""
        arrays = np.broadcast_arrays(*operands)
        shape = arrays[0].shape
        flat = [np.reshape(x, -1) for x in arrays]
        result = self._known(kind, *flat)
        pending = result < 0
        fixed = pending & np.logical_and.reduce([self._fixed[x] for x in flat])
        if kind in FOLDED and fixed.any():
            with np.errstate(all="ignore"):
                values = FOLDED[kind](*(self._value[x[fixed]] for x in flat))
            result[fixed] = self.constants(values)
            pending &= ~fixed
        if pending.any():
            result[pending] = self._append(kind, [x[pending] for x in flat])
        return result.reshape(shape)

    def _known(self, kind: int, a: Registers, *rest: Registers) -> Registers:
        """The registers that hold the results already, and -1 where none does."""
        result = np.full(len(a), -1)
        b = rest[0] if rest else a

        def settle(where: NDArray[np.bool_], registers: Registers | int) -> None:
            where = where & (result < 0)
            result[where] = registers[where] if isinstance(registers, np.ndarray) else registers

        if kind == kinds.MUL:
            if not self.literal:
                settle(self._is(a, 0.0) | self._is(b, 0.0), ZERO)
            settle(self._is(a, 1.0), b)
            settle(self._is(b, 1.0), a)
        elif kind == kinds.ADD:
            settle(self._is(a, 0.0), b)
            settle(self._is(b, 0.0), a)
        elif kind == kinds.SUB:
            settle(self._is(b, 0.0), a)
        elif kind == kinds.DIV:
            if not self.literal:
                settle(self._is(a, 0.0) & ~self._is(b, 0.0), ZERO)
            settle(self._is(b, 1.0), a)
        elif kind == kinds.WHERE:
            settle(self._fixed[a] & (self._value[a] != 0), b)
            settle(self._fixed[a] & (self._value[a] == 0), rest[1])
            settle(b == rest[1], b)
        return result

    def _append(self, kind: int, operands: list[Registers]) -> Registers:
        """Write instructions, each one once."""
        if kind in COMMUTES:
            operands = [np.minimum(*operands), np.maximum(*operands)]
        key = operands[0]
        for x in operands[1:]:
            key = np.unique(key, return_inverse=True)[1] * self._count + x
        _, chosen, inverse = np.unique(key, return_index=True, return_inverse=True)
        chosen_order = np.argsort(chosen)  # as they came
        place = np.empty_like(chosen_order)
        place[chosen_order] = np.arange(len(chosen))
        operands = [x[chosen[chosen_order]] for x in operands]
        name = (kind, b"|".join(x.tobytes() for x in operands))
        first = self._written.get(name)
        if first is None:
            self.length += len(chosen)
            if self.length > LONGEST:
                raise NotLowered(f"more than {LONGEST} instructions")
            first = int(self.fresh(len(chosen))[0])
            self._runs.append(_Run(kind, first, tuple(operands)))
            self._written[name] = first
        return first + place[inverse]

    def solve(self, inputs: Registers, count: int) -> Registers:
        """The registers with the solution of a system, of so many numbers."""
        name = (kinds.READ, inputs.tobytes())
        first = self._written.get(name)
        if first is None:
            first = int(self.fresh(count)[0])
            self._runs.append(_Run(kinds.READ, ZERO, (inputs,)))
            self._runs.append(_Run(kinds.SOLVED, first, (np.full(count, ZERO),)))
            self._written[name] = first
            self.length += len(inputs) + count
        return first + np.arange(count)

    # What is made of them.

    def reduce(self, kind: int, registers: Registers, axis: int, empty: float) -> Registers:
        """Combine all along an axis, two and two."""
        x = np.moveaxis(registers, axis, 0)
        if not len(x):
            return np.broadcast_to(self.number(empty), x.shape[1:])
        while len(x) > 1:
            half = len(x) // 2
            x = np.concatenate([self.emit(kind, x[:half], x[half : 2 * half]), x[2 * half :]])
        combined: Registers = np.asarray(x[0])
        return combined

    def gather_into(self, kind: int, base: Registers, targets: Registers, registers: Registers) -> Registers:
        """Combine registers, flat, with those of a flat base that they are sent to."""
        if kind == kinds.ADD:
            counts = np.flatnonzero(registers != ZERO)
            targets, registers = targets[counts], registers[counts]
        order = np.argsort(targets, kind="stable")
        target, value = targets[order], registers[order]
        while len(target) > 1:
            begins = np.concatenate([[True], target[1:] != target[:-1]])
            rank = np.arange(len(target)) - np.maximum.accumulate(np.where(begins, np.arange(len(target)), 0))
            pairs = np.flatnonzero((rank[:-1] % 2 == 0) & ~begins[1:])
            if not len(pairs):
                break
            value = value.copy()
            value[pairs] = self.emit(kind, value[pairs], value[pairs + 1])
            keep = rank % 2 == 0
            target, value = target[keep], value[keep]
        result = base.copy()
        result[target] = self.emit(kind, base[target], value)
        return result

    def finish(self, own: Registers, shared: Registers, outputs: list[Registers]) -> Program:
        """The program that computes the outputs from the inputs, without instructions that nobody needs."""
        wanted = np.concatenate([ZERO + np.zeros(1, dtype=np.int64), *(x.reshape(-1) for x in outputs)])
        needed = np.zeros(self._count, dtype=bool)
        needed[wanted] = True
        kept: list[_Kept] = []
        reads = False
        for run in reversed(self._runs):
            keep = needed[run.first : run.first + len(run.operands[0])]
            if run.kind == kinds.SOLVED:  # all of it, and what it reads
                reads = bool(keep.any())
                keep = np.full(len(keep), reads)
            elif run.kind == kinds.READ:
                keep = np.full(len(run.operands[0]), reads)
            if keep.any():
                kept.append((run, keep))
                for x in run.operands:
                    needed[x[keep]] = True
        kept.reverse()
        prologue, others = self._divided(kept, own)
        kept = [*prologue, *others]
        fixed = np.flatnonzero(needed & self._fixed[: self._count])
        read = [np.flatnonzero(needed[x]) for x in (own, shared)]
        written = [
            np.full(len(keep), -1) if run.kind == kinds.READ else run.first + np.flatnonzero(keep) for run, keep in kept
        ]
        operands = np.stack([np.concatenate([NONE, *_operand(kept, i)]) for i in range(3)], 1)
        results = np.concatenate([NONE, *written])
        given = np.concatenate([fixed, own[read[0]], shared[read[1]]])
        place = np.zeros(self._count, dtype=np.int64)
        place[given] = np.arange(len(given))
        last = np.full(self._count, -1)
        last[operands] = np.arange(len(results))[:, None]
        alike = results[: sum(int(keep.sum()) for _, keep in prologue)]
        read_later = alike[last[alike] >= len(alike)]
        last[given] = last[wanted] = last[read_later] = len(results)  # these stay
        count = allocate(operands, last, results, place, len(given))
        a, b, c = np.ascontiguousarray(place[operands].T)
        return Program(
            kinds=np.array([run.kind for run, _ in kept], dtype=np.int64),
            ends=np.cumsum([len(x) for x in written], dtype=np.int64),
            prologue=len(prologue),
            a=a,
            b=b,
            c=c,
            d=place[np.maximum(results, ZERO)],
            size=int(count),
            constants=self._value[fixed],
            own=read[0],
            shared=read[1],
            outputs=place[wanted[1:]],
            offsets=np.cumsum([0, *(x.size for x in outputs)], dtype=np.int64),
            own_width=len(own),
            shared_width=len(shared),
        )

    def _divided(self, kept: list[_Kept], own: Registers) -> tuple[list[_Kept], list[_Kept]]:
        """Instructions that depend on no problem's own inputs, and the others, which include all systems."""
        varies = np.zeros(self._count, dtype=bool)
        varies[own] = True
        prologue: list[_Kept] = []
        others: list[_Kept] = []
        for run, keep in kept:
            if run.kind in (kinds.READ, kinds.SOLVED):
                varies[run.first : run.first + len(keep)] |= run.kind == kinds.SOLVED
                others.append((run, keep))
                continue
            vary = np.logical_or.reduce([varies[x] for x in run.operands])
            varies[run.first : run.first + len(keep)] = vary
            prologue += [(run, keep & ~vary)] if (keep & ~vary).any() else []
            others += [(run, keep & vary)] if (keep & vary).any() else []
        return prologue, others


def _operand(kept: list[_Kept], i: int) -> list[Registers]:
    """One of the operands of all instructions; where there are fewer, the last one."""
    return [run.operands[min(i, len(run.operands) - 1)][keep] for run, keep in kept]
