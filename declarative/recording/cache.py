"""Recordings are kept with the node that made them, one graph for each kind of derivative and each shape.

``record=True`` is the user's promise that the functions are pure: for given shapes they do the same operations every
time. They are traced in the first call of a shape, twice, and the two traces must be the same. After that they are not
called again: captured tensors are read anew in every call, numbers and branches are frozen. A kind of derivative that
is needed later is traced later, and only if the functions still do what was recorded, so that forward and backward of
a call never mix two versions of a function.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..evaluation import Request
from ..kernels.library import available, lanes_for
from ..torchside import PLAIN, in_dispatch_mode, transformed
from .graph import Graph, record, reproduces
from .sizes import Sizes, bounded
from .tape import NotLowered, Tape, lowered
from .trace import RecordingError, Trace, kind_of, trace

DIFFERENT = (
    "the functions do not do the same operations every time (a counter, a number that has changed, another captured "
    "tensor): what is recorded must be a pure function of its arguments. Pass what changes as an input, or use "
    "record=False."
)
CHANGED = (
    "the functions have changed since they were recorded, so that their derivatives would not fit: numbers, branches "
    "and names are frozen by record=True. Pass what changes as an input, make a new node, or use record=False."
)


class Recordings:
    """The graphs of a node: a cache, not a state. Copies and pickles of a node start with an empty one.

    With ``compiling``, graphs are compiled when they are recorded; what a tape can do is not one.

    Threads may record the same graph twice, which costs time only: nothing is locked, so that a process may fork.
    """

    def __init__(self, compiling: bool = False) -> None:
        self.compiling = compiling
        self._functions: dict[Hashable, Trace] = {}  # what the user's functions did, by shapes of a batch of one
        self._graphs: dict[Hashable, Graph] = {}
        self._tapes: dict[Hashable, Tape | None] = {}  # for a batch of any size; None where there can be none
        self.sizes = Sizes()
        self._modes: dict[Hashable, Recordings] = {}

    def in_mode(self, mode: Hashable) -> Recordings:
        """The graphs of another mode of the functions, such as that of a module in training."""
        return self._modes.setdefault(mode, Recordings(self.compiling))

    def run(self, request: Request) -> Any:
        """The function, replayed; recorded first if this is the first time. Called where it must be."""
        tensors = request.tensors
        if not _replayable(tensors):
            return request.function(*tensors)
        tape = self._tape(request)
        if tape is not None:
            return tape(tensors, _count(request))
        key = (request.key, *(None if x is None else kind_of(x) for x in tensors))
        graph = self._graphs.get(key)
        if graph is None or not graph.is_current():
            self._check(*request.functions())
            graph = record(request.function, tensors, self.compiling, request.compared)
            bounded(self._graphs)[key] = graph
        return graph(tensors)

    def tape(self, request: Request) -> Tape | None:
        """The function as a tape, if that is how it would be replayed."""
        return self._tape(request) if _replayable(request.tensors) else None

    def _tape(self, request: Request) -> Tape | None:
        """The function of one problem as a tape, if there can be one and so many problems are worth it."""
        if request.batched is None:
            return None
        pairs = zip(request.tensors, request.batched, strict=True)
        shapes = [None if x is None else (x.shape[1:] if has else x.shape, has, x.dtype, x.is_cpu) for x, has in pairs]
        key = (request.key, *shapes)
        tape = self._tapes.get(key)
        if tape is None and (key in self._tapes or not _is_for_tapes(request.tensors)):
            return None
        if tape is None or not tape.is_current():
            tape = bounded(self._tapes)[key] = self._lowered(request, request.batched)
        return tape if tape is not None and tape.is_worth_it(_count(request)) else None

    def _lowered(self, request: Request, batched: Sequence[bool | None]) -> Tape | None:
        self._check(*request.functions())
        one = [x[:1] if x is not None and has else x for x, has in zip(request.tensors, batched, strict=True)]
        try:
            tape = lowered(trace(request.function, one), batched)
        except NotLowered:
            return None
        lanes = lanes_for(_count(request))  # as it will be run

        def replay(tensors: Sequence[Tensor | None]) -> Any:
            found = tape(tensors, 1, lanes)
            return tuple(found) if isinstance(found, Sequence) else found

        return tape if reproduces(replay, request.function, one, request.compared) else None

    def _check(self, function: Callable[..., Any], example: Sequence[Tensor]) -> None:
        """Compare what the user's functions do with what they did when they were first traced.

        Raises:
            RecordingError: they have changed, or are different every time.
        """
        key = tuple((x.shape, x.dtype, x.device) for x in example)
        now = trace(function, example)
        first = self._functions.get(key)
        if not now.same_as(first or trace(function, example)):
            raise RecordingError(DIFFERENT if first is None else CHANGED)
        if first is None:
            bounded(self._functions)[key] = now

    def may_change(self) -> bool:
        """Whether what was recorded reads tensors that are none of its arguments; all else is frozen."""
        return not self._functions or any(traced.reads_captured for traced in self._functions.values())

    def captures_gradients(self) -> bool:
        """Whether a captured tensor has come to need a gradient, which would be lost."""
        return any(x.requires_grad for traced in self._functions.values() for x in traced.captured.values())

    def __deepcopy__(self, memo: object) -> Recordings:
        return Recordings(self.compiling)

    def __reduce__(self) -> tuple[type[Recordings], tuple[bool]]:
        return Recordings, (self.compiling,)


def _replayable(tensors: Sequence[Tensor | None]) -> bool:
    """Whether these are plain tensors that nobody differentiates: a graph knows no derivatives of its own."""
    if transformed() or in_dispatch_mode():
        return False
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors):
        return False
    return all(x is None or type(x) in PLAIN for x in tensors)


def _count(request: Request) -> int:
    """The number of problems."""
    assert request.batched is not None
    return next(x.shape[0] for x, has in zip(request.tensors, request.batched, strict=True) if has and x is not None)


def _is_for_tapes(tensors: Sequence[Tensor | None]) -> bool:
    """Whether there is a machine for these: in double precision, on the CPU."""
    kinds = (torch.float64, torch.bool)
    return all(x is None or (x.dtype in kinds and x.device.type == "cpu") for x in tensors) and available()
