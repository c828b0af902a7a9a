"""A recorded function: a graph of torch operations, compared with the function itself and ready to be replayed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ..linear.directions import irregular
from .compiler import compiled
from .passes import simplify
from .trace import RecordingError, Trace, kind_of, trace

CLOSELY, ROUGHLY = 0.75, 0.4  # of the digits are the same: of what is computed, of what follows from a system
MEMORY = 1 << 28  # bytes that the constants of a graph may take


class Graph:
    """A recorded function, replayed operation by operation, or by another function that does the same."""

    def __init__(self, traced: Trace, forward: Callable[..., Any] | None = None) -> None:
        self._forward = forward or traced.module.forward
        self._structure, self._is_tuple = traced.structure, traced.is_tuple
        used = {node.target for node in traced.graph.nodes if node.op == "get_attr"}
        self._captured = [(x, kind_of(x)) for name, x in traced.captured.items() if name in used]

    def is_current(self) -> bool:
        """Whether the captured tensors still have the shapes and dtypes that were recorded."""
        return all(kind_of(x) == kind for x, kind in self._captured)

    def __call__(self, tensors: Sequence[Tensor | None]) -> Any:
        with torch.no_grad():
            outputs = self._forward(*(x for x in tensors if x is not None))
        return tuple(outputs) if self._is_tuple else pytree.tree_unflatten(outputs, self._structure)


def record(
    function: Callable[..., Any],
    tensors: Sequence[Tensor | None],
    compiling: bool = False,
    compared: int | None = None,
) -> Graph:
    """The graph of a function for tensors like these, as machine code if it is worth ``compiling``.

    It is compared with the function itself: all outputs, or as many as rounding errors cannot make anything of.

    Raises:
        RecordingError: the function cannot be expressed as a graph.
    """
    traced = trace(function, tensors)
    given = [x.detach() for x in tensors if x is not None]
    constants = simplify(traced.module, given)
    if sum(x.untyped_storage().nbytes() for x in constants) > MEMORY:
        raise RecordingError("the constants of the graph take too much memory: use record=False.")
    graph = Graph(traced)
    nearby, called = _nearby(function, tensors)
    if not _all_same(called, graph(nearby), compared):
        raise RecordingError(
            "what was recorded does not reproduce the functions at another point: is there a branch, or a Python "
            "number that is computed from a tensor? Use record=False."
        )
    machine_code = compiled(traced.module, given) if compiling else None
    if machine_code is None:
        return graph
    faster = Graph(traced, machine_code)
    return faster if _all_same(called, faster(nearby), compared) else graph  # a compiler may have faults


def reproduces(
    replay: Callable[[Sequence[Tensor | None]], Any],
    function: Callable[..., Any],
    tensors: Sequence[Tensor | None],
    compared: int | None = None,
) -> bool:
    """Whether a replay does what a function does, near these tensors; after so many outputs, to half of the digits."""
    nearby, called = _nearby(function, tensors)
    replayed = replay(nearby)
    return _all_same(called, replayed, compared) and _all_same(called, replayed, None, ROUGHLY)


def _nearby(function: Callable[..., Any], tensors: Sequence[Tensor | None]) -> tuple[list[Tensor | None], Any]:
    """Other tensors, and the function of them: at a solution only rounding errors could be compared."""
    nearby = [None if x is None else _moved(x) for x in tensors]
    with torch.no_grad():
        return nearby, function(*nearby)


def _all_same(called: Any, replayed: Any, compared: int | None, digits: float = CLOSELY) -> bool:
    pairs = list(zip(pytree.tree_leaves(called), pytree.tree_leaves(replayed), strict=True))
    return all(_same(x, y, digits) for x, y in pairs[:compared])


def _moved(x: Tensor) -> Tensor:
    """A tensor like x with entries that differ a little, in no regular way."""
    if not x.is_floating_point() or 0 in x.stride():  # entries that share their memory
        return x
    moved = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device)
    noise = irregular(x.reshape(-1)).reshape(x.shape)
    return moved.copy_(x.detach() + 0.01 * (1 + x.detach().abs()) * noise)


def _same(x: Tensor, y: Tensor, digits: float) -> bool:
    if x.shape != y.shape or x.dtype != y.dtype:
        return False
    if not x.is_floating_point():  # the outcome of a comparison, which rounding errors may decide
        return True
    tolerance = torch.finfo(x.dtype).eps ** digits
    scale = x.abs().nan_to_num(0.0, 0.0, 0.0).amax() if x.numel() else 0.0
    return torch.allclose(x, y, rtol=tolerance, atol=float(tolerance * scale), equal_nan=True)
