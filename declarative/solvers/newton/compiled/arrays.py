"""The arrays that the core works on, a row for each problem, in one buffer; as ``newton_problems.hpp`` has them."""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ....kernels.library import Handle, array_address, indices, size
from ..parameters import FILTER, Tolerances

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Counts = NDArray[np.int64]


class Shape:
    """What all problems of a batch have in common.

    Args:
        m: the number of unknowns.
        k: of constraints.
        p: of equalities, which come first.
        rows: of the entries of A that are stored.
        columns: likewise.
        diagonal: where that of H is among its entries, -1 if an entry is not stored, (m,).
        hessian: how many entries of H are stored.
    """

    def __init__(self, m: int, k: int, p: int, rows: Counts, columns: Counts, diagonal: Counts, hessian: int) -> None:
        self.m, self.k, self.p, self.jacobian, self.hessian = m, k, p, len(rows), hessian
        given = indices(rows), indices(columns), indices(diagonal)
        if len(given[1]) != len(rows) or len(given[2]) != m:
            raise ValueError("the arrays of a shape are of different lengths")
        at = [array_address(x) for x in given]
        self._handle = Handle("shape", m, k, p, *at[:2], len(rows), at[2], hessian)
        self.address = self._handle.address


class Iterate(NamedTuple):
    """Points, the models there, and what a step changes besides: see ``state.py``."""

    objective: Floats  # (batch,)
    gradient: Floats  # (batch, m)
    values: Floats  # (batch, k)
    jacobian: Floats  # (batch, entries)
    hessian: Floats  # (batch, entries)
    u: Floats  # (batch, m)
    s: Floats  # (batch, q)
    y: Floats  # (batch, k)
    shift: Floats  # (batch,)
    filter: Floats  # (batch, FILTER, 2)
    stored: Counts  # (batch,)


class Fixed(NamedTuple):
    """What a step does not change of a problem: the rest of its state, and its scales."""

    barrier: Floats  # (batch,)
    weight: Floats  # (batch,)
    theta_max: Floats  # (batch,)
    last_barrier: Floats  # (batch, 0) or (batch, 1)
    start: Floats  # (batch, m)
    scale: Floats  # of the objective, (batch,)
    rows: Floats  # of the constraints, (batch, k)


class System(NamedTuple):
    """The linear system of the step, [H + diag(primal), A'; A, -diag(dual)] [z; s] = [r; t], and its solution."""

    primal: Floats  # (batch, m)
    dual: Floats  # (batch, k)
    r: Floats  # (batch, m)
    t: Floats  # (batch, k)
    z: Floats  # (batch, m)
    s: Floats  # (batch, k)
    pivot: Floats  # the least one of H along the constraints, relatively; positive if H is definite there, (batch,)
    factored: Flags  # whether the matrix is as it should be, (batch,)


class Outcome(NamedTuple):
    """What is known of a step besides where it leads."""

    multipliers: Floats  # at the trial point, in the convention of the batch, (batch, k)
    length: Floats  # of the step, (batch,)
    slope: Floats  # of the objective and its barrier along the step, (batch,)
    optimal: Flags  # whether the current point fulfils the optimality conditions, (batch,)
    solved: Flags  # and the step from there is short, (batch,)
    accepted: Flags  # whether it is progress, (batch,)


class Progress(NamedTuple):
    """How each problem fares in iterations without Python."""

    running: Flags
    stepping: Flags  # whether it takes Newton steps, and not some towards feasibility
    shifted: Flags  # whether its last factors were shifted: a solution may be a saddle point
    unquestioned: Flags  # whether it is not asked any more if a solution is a saddle point
    finished: Flags  # whether it was solved here
    iterations: Counts
    u: Floats  # its solution, (batch, m)
    y: Floats  # and multipliers, (batch, k)
    flags: Flags  # of the last iteration: solved, factored, accepted, flat, (4, batch)


class CoreBatch(ctypes.Structure):
    """A batch as the core is told of it."""

    _fields_ = (
        ("shape", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("count", "last", "width", "swapped", "length")),
        *((name, ctypes.c_void_p) for name in ("numbers", "counts", "flags")),
        *((name, ctypes.c_double) for name in Tolerances._fields),
    )


class Problems:
    """Problems side by side, with all that an iteration makes of them: arrays in the order in which they are declared.

    Args:
        shape: what they have in common.
        count: how many there are.
        last: whether they have a last barrier: 0 or 1.
        width: how many inputs their functions have.
        tolerances: when they are solved.
    """

    def __init__(self, shape: Shape, count: int, last: int, width: int, tolerances: Tolerances) -> None:
        self.shape, self.last, self.width, self.tolerances = shape, last, width, tolerances
        length = count * size("newton_size", shape.address, last, width)
        numbers = torch.empty(length, dtype=torch.float64, device="cpu")
        counts = torch.zeros((2, count), dtype=torch.int64, device="cpu")
        flags = torch.zeros((4, count), dtype=torch.bool, device="cpu")
        self._buffers = numbers, counts, flags
        places = shape.address, count, last, width, 0, length, *(x.data_ptr() for x in self._buffers)
        self.core = CoreBatch(*places, *tolerances)
        self.address = ctypes.addressof(self.core)
        cut, (stored, flag) = _Cutter(numbers.numpy(), count), (x.numpy() for x in self._buffers[1:])
        m, k, q, a, h = shape.m, shape.k, shape.k - shape.p, shape.jacobian, shape.hessian
        of_iterate = (None, m, k, a, h, m, q, k, None, 2 * FILTER)

        def iterate(i: int) -> Iterate:
            *parts, pairs = cut(*of_iterate)
            return Iterate._make([*parts, pairs.reshape(count, FILTER, 2), stored[i]])

        self.current, self.trial = iterate(0), iterate(1)
        self.fixed = Fixed(*cut(None, None, None, last, m, None, k))
        self.system = System._make([*cut(m, k, m, k, m, k, None), flag[0]])
        self.outcome = Outcome(*cut(k, None, None), *flag[1:])
        self.inputs = cut.rows(width)

    def __len__(self) -> int:
        return len(self.inputs)

    def swap(self) -> None:
        """What was the trial point is the current one."""
        self.current, self.trial = self.trial, self.current
        self.core.swapped = 1 - self.core.swapped

    def take(self, rows: Any) -> Problems:
        """The problems at these places, in a buffer of their own."""
        part = Problems(self.shape, len(rows), self.last, self.width, self.tolerances)
        for to, x in zip(part._arrays, self._arrays, strict=True):
            to[:] = x[rows]
        return part

    def put(self, rows: Any, part: Problems) -> None:
        """Where these problems have come to."""
        for to, x in zip((*self.trial, *self.outcome), (*part.trial, *part.outcome), strict=True):
            to[rows] = x

    @property
    def _arrays(self) -> tuple[Any, ...]:
        return *self.current, *self.trial, *self.fixed, *self.system, *self.outcome, self.inputs


class _Cutter:
    """Cuts a buffer into arrays, one after the other: of so many numbers for each problem, or (None) a single one."""

    def __init__(self, numbers: Floats, count: int) -> None:
        self.numbers, self.count, self.begin = numbers, count, 0

    def __call__(self, *widths: int | None) -> list[Any]:
        return [self.rows(1).reshape(-1) if width is None else self.rows(width) for width in widths]

    def rows(self, width: int) -> Floats:
        begin, self.begin = self.begin, self.begin + self.count * width
        return self.numbers[begin : self.begin].reshape(self.count, width)
