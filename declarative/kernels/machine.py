"""The machine that runs tapes: a program of instructions on registers, for problems side by side.

An instruction reads up to three registers and writes one, for several problems at a time. Instructions of one kind that
follow each other are a *run*, whose kind is looked at once; those that depend on no problem come first, and are carried
out once. A system of linear equations is two runs: one that reads its entries, and one that writes its solution.
``src/tape.hpp`` carries it out.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .library import Handle, array_address, call, indices, threads
from .plan import Plan

Floats = NDArray[np.float64]
Registers = NDArray[np.int64]


class Program(NamedTuple):
    """Instructions, and which registers are what."""

    kinds: Registers  # of each run
    ends: Registers  # its last instruction + 1
    prologue: int  # how many of these, the first ones, depend on no problem
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
    own_width: int  # how many inputs a problem has
    shared_width: int  # and how many all of them share


class Systems(NamedTuple):
    """What the systems of linear equations have in common that a program solves on the way."""

    plan: Plan | None  # of sparse ones
    m: int
    k: int

    @classmethod
    def dense(cls, m: int, k: int) -> Systems:
        """Of this size."""
        return cls(None, m, k)


def same(one: Systems | None, other: Systems) -> bool:
    """Whether a program that solves the one can solve the other too."""
    return one is None or ((one.m, one.k) == (other.m, other.k) and one.plan is other.plan)


class Machine:
    """A program that the core has checked, ready to be run.

    Raises:
        CoreError: it would read or write where nothing is.
    """

    def __init__(self, program: Program, systems: Systems | None = None) -> None:
        self.systems = systems  # whose plan the core reads
        constants = np.ascontiguousarray(program.constants, dtype=np.float64)
        given = program._asdict().items()
        whole: Any = {name: indices(x) for name, x in given if isinstance(x, np.ndarray) and name != "constants"}
        x = program._replace(**whole)
        if not len(x.kinds) == len(x.ends) or not len(x.a) == len(x.b) == len(x.c) == len(x.d):
            raise ValueError("the arrays of a program are of different lengths")
        plan = 0 if systems is None or systems.plan is None else systems.plan.address
        dense = (0, 0, 0) if systems is None else (1, systems.m, systems.k)
        parts: list[Any] = [array_address(x.kinds), array_address(x.ends), len(x.kinds), x.prologue]
        parts += [*(array_address(part) for part in (x.a, x.b, x.c, x.d)), len(x.a), x.size]
        parts += [array_address(constants), len(constants), array_address(x.own), len(x.own), x.own_width]
        parts += [array_address(x.shared), len(x.shared), x.shared_width]
        for part in (x.outputs, x.offsets):
            parts += [array_address(part), len(part)]
        self._handle = Handle("tape", *parts, *dense, plan)
        self.address = self._handle.address
        self.width = int(program.offsets[-1])  # of the outputs of a problem

    def run(self, own: Tensor, shared: Tensor, lanes: int) -> Tensor:
        """The outputs of a batch, one after the other, each (batch, entries), flat.

        Args:
            own: each problem's inputs, (batch, entries).
            shared: those of all, (entries,).
            lanes: how many problems are worked on side by side: 1 or ``beside()``, which need not be as many.
        """
        count = len(own)
        outputs = torch.empty(count * self.width, dtype=torch.float64, device="cpu")
        inputs = own.data_ptr(), own.numel(), shared.data_ptr(), shared.numel()
        call("tape_run", self.address, *inputs, count, outputs.data_ptr(), outputs.numel(), lanes, threads())
        return outputs


def allocate(operands: Registers, last: Registers, results: Registers, place: Registers, used: int) -> int:
    """Give a register to each result, one that nobody needs any more if there is such; how many there are then.

    Args:
        operands: of each instruction, in turn, numbered one after the other, (count, 3).
        last: the last instruction that reads what is numbered so.
        results: what each instruction writes; -1: nothing.
        place: the register of what is numbered so; known for what is no result.
        used: registers that are taken.
    """
    size = np.empty(1, dtype=np.int64)
    given = indices(operands), indices(last), indices(results), place
    call("registers_allocate", *map(array_address, given), len(results), len(place), used, array_address(size))
    return int(size[0])
