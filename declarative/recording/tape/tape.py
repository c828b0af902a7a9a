"""A tape: the program of a function of one problem, its inputs read from tensors and its outputs made into tensors."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ...kernels.library import lanes_for
from ...kernels.machine import Floats, Machine, Program, Systems
from ..trace import Trace

PER_OPERATION = 8_000  # multiplications that torch does faster take as long as one of its operations takes to call


class Tape:
    """The program of a function of one problem, for batches of any size.

    Args:
        program: what to do.
        systems: of linear equations, that it solves on the way.
        traced: the function.
        own: which of its arguments, each problem having its own, the program reads, and how many entries they have.
        shared: which of those that all problems share.
        captured: tensors that are read anew in every call.
        frozen: captured tensors whose values the program depends on.
        products: how many of the instructions are those of matrix products.
    """

    def __init__(
        self,
        program: Program,
        systems: Systems | None,
        traced: Trace,
        own: dict[int, int],
        shared: Sequence[int],
        captured: Sequence[Tensor],
        frozen: Sequence[Tensor],
        products: int,
    ) -> None:
        self.machine = Machine(program, systems)
        self._most = PER_OPERATION * traced.operations / products if products else math.inf  # problems worth a tape
        ends = np.cumsum([0, *own.values()]).tolist()
        self._width, self._columns = ends[-1], dict(zip(own, itertools.pairwise(ends), strict=True))
        self._shared, self._captured = tuple(shared), tuple(captured)
        self._shapes_of_captured = [(x.shape, x.dtype) for x in captured]
        self._frozen = [(x, x.clone()) for x in frozen]
        values = [traced.values[node] for node in traced.outputs]
        parts = itertools.pairwise(program.offsets.tolist())
        self._parts = [
            (tuple(x.shape[1:]), *part, x.dtype is torch.bool) for x, part in zip(values, parts, strict=True)
        ]
        self._structure, self._is_tuple = traced.structure, traced.is_tuple

    def is_worth_it(self, count: int) -> bool:
        """Whether the operations of torch would take longer for so many problems: but for products of matrices."""
        return max(count, 4) <= self._most

    def is_current(self) -> bool:
        """Whether the captured tensors still have the shapes that were recorded, and whole numbers their values."""
        return [(x.shape, x.dtype) for x in self._captured] == self._shapes_of_captured and all(
            torch.equal(x, value) for x, value in self._frozen
        )

    def __call__(self, tensors: Sequence[Tensor | None], count: int, lanes: int | None = None) -> Any:
        """The outputs of so many problems, one alone or several side by side."""
        flat = self.machine.run(*self.inputs(tensors, count), lanes or lanes_for(count))
        found = Outputs(flat.numpy(), count, self._parts)
        return found if self._is_tuple else pytree.tree_unflatten(list(found), self._structure)

    def inputs(self, tensors: Sequence[Tensor | None], count: int) -> tuple[Tensor, Tensor]:
        """What each problem reads, and what all read."""
        own = torch.empty((count, self._width), dtype=torch.float64, device="cpu")
        array = own.numpy()
        for i, (begin, end) in self._columns.items():
            array[:, begin:end] = _array(tensors[i]).reshape(count, end - begin)
        shared = [_array(x).reshape(-1) for x in (*(tensors[i] for i in self._shared), *self._captured)]
        return own, torch.from_numpy(np.concatenate(shared, dtype=np.float64) if shared else np.empty(0))

    def begin_of(self, argument: int) -> int:
        """Where a tensor begins in what each problem reads; -1 if it is not read."""
        return self._columns[argument][0] if argument in self._columns else -1


class Outputs(Sequence[Tensor]):
    """What a tape has written: tensors with memory of their own, each made when it is asked for."""

    def __init__(self, flat: Floats, count: int, parts: Sequence[tuple[tuple[int, ...], int, int, bool]]) -> None:
        self._flat, self._count, self._parts = flat, count, parts

    def __len__(self) -> int:
        return len(self._parts)

    def __iter__(self) -> Iterator[Tensor]:
        return (self[i] for i in range(len(self._parts)))

    def __getitem__(self, place: Any) -> Any:
        shape, begin, end, truth = self._parts[place]
        x = self._flat[begin * self._count : end * self._count].reshape(self._count, *shape)
        return torch.from_numpy(x != 0 if truth else x.copy())


def _array(x: Tensor | None) -> Any:
    assert x is not None
    return x.numpy(force=True)  # also of what torch knows to be zero
