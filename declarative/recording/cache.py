"""Derivatives recorded once and replayed: what ``torch.func`` works out in Python is the same in every call.

A recording is a graph of torch operations for given shapes. Python around them (attributes, numbers, branches) is baked
into it, so a recording may only be replayed while the user's functions still do what they did. That is not guessed: in
every call each function is run once, for one problem, and its operations are compared one by one with those that the
recording was made from - numbers and captured tensors by value. If anything differs, the call starts anew without a
recording. Functions that capture nothing but numbers need not be run for that. A graph has its own copy of what was
captured, so that nothing which changes after the comparison is mixed in.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ..fingerprint import fingerprint
from ..problem import Batch
from ..torchside import transformed
from .passes import Graph, Unrecordable, record

AFTER = 32  # evaluations: a recording costs about as much as a hundred, and most shapes of a script are seen few times
SIGNATURES = 4  # of a node's functions: they change only with what they capture
GRAPHS = 64  # of one signature: shapes, dtypes and kinds of derivatives
SMALL = 256  # captured tensors up to this many entries are compared one by one, larger ones by a checksum


@dataclass
class Recording:
    """The graphs of one set of functions, by what they compute and for which shapes; the least used go first."""

    owner: Recordings
    copies: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)  # of captured tensors, kept alive, by id
    dense: bool = False  # whether the Hessian has been found not to be diagonal
    inspected: dict[Hashable, tuple[int, int]] = field(default_factory=dict)  # shapes that passed: (p, q)
    graphs: OrderedDict[Hashable, Graph | int | None] = field(default_factory=OrderedDict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self, key: Hashable, function: Callable[..., Any], tensors: Sequence[Tensor | None]) -> Any:
        """The function of the tensors: replayed if that is possible here, and recorded if it is worth it."""
        if not _replayable(tensors):
            return function(*tensors)
        key = (key, *(None if x is None else (x.shape, x.stride(), x.dtype, x.device) for x in tensors))
        with self.lock:
            graph = self.graphs.pop(key, 0)
            if isinstance(graph, int):
                graph = self._recorded(function, tensors) if graph >= self.owner.after else graph + 1
            self.graphs[key] = graph
            if len(self.graphs) > GRAPHS:
                self.graphs.popitem(last=False)
        return graph(tensors) if isinstance(graph, Graph) else function(*tensors)

    def _recorded(self, function: Callable[..., Any], tensors: Sequence[Tensor | None]) -> Graph | None:
        try:
            return record(function, tensors, self._copy)
        except Unrecordable:
            return None

    def _copy(self, captured: Tensor) -> Tensor:
        """One copy of a captured tensor for all graphs."""
        if id(captured) not in self.copies:
            self.copies[id(captured)] = (captured, captured.detach().clone())
        return self.copies[id(captured)][1]

    def remember(self, shapes: Hashable, counts: tuple[int, int]) -> None:
        """That the functions have passed inspection for these shapes."""
        with self.lock:
            if len(self.inspected) >= GRAPHS:
                self.inspected.clear()
            self.inspected[shapes] = counts


def _replayable(tensors: Sequence[Tensor | None]) -> bool:
    """Whether these are plain tensors that nobody differentiates: a graph knows no derivatives of its own."""
    if transformed() or torch._C._len_torch_dispatch_stack():
        return False
    given = [x for x in tensors if x is not None]
    if torch.is_grad_enabled() and any(x.requires_grad for x in given):
        return False
    return all(type(x) is Tensor or type(x) is torch.nn.Parameter for x in given)


class Recordings:
    """The recordings of a node, one for each thing that its functions have been seen to do.

    A cache, not a state: copies and pickles of a node start with an empty one.
    """

    def __init__(self, after: float = AFTER) -> None:
        self.after = after
        self._known: OrderedDict[Hashable, Recording] = OrderedDict()
        self._lock = threading.Lock()

    def has_seen(self, shapes: Hashable) -> bool:
        """Whether functions of this node have passed inspection for these shapes."""
        with self._lock:
            return any(shapes in recording.inspected for recording in self._known.values())

    def find(self, batch: Batch, u: Tensor) -> Recording | None:  # u: (size, m)
        """The recording for what the functions do at present, found by running them on the first problem."""
        if self.after == math.inf or transformed() or torch._C._len_torch_dispatch_stack():
            return None
        try:
            signature = _identify(batch, u)
        except Unrecordable:
            return None
        with self._lock:
            recording = self._known.pop(signature, None)
            if recording is None:
                recording = Recording(self)
            self._known[signature] = recording
            if len(self._known) > SIGNATURES:
                self._known.popitem(last=False)
        return recording

    def __deepcopy__(self, memo: object) -> Recordings:
        return Recordings(self.after)

    def __reduce__(self) -> tuple[type[Recordings], tuple[float]]:
        return Recordings, (self.after,)


def _identify(batch: Batch, u: Tensor) -> Hashable:
    """What the functions do."""
    problem = batch.problem
    if None not in batch.in_dims:  # a value that all problems share could decide what a function does
        seen = fingerprint((problem.objective, problem.equality, problem.inequality))
        if seen is not None:
            return seen
    xs = [x if dim is None else x[0] for x, dim in zip(batch.xs, batch.in_dims, strict=True)]
    return _signature(batch, [x.detach() for x in xs], u.detach()[0])


def _signature(batch: Batch, xs: list[Tensor], u: Tensor) -> Hashable:
    """Every operation of the functions on one problem, in order, with its arguments."""
    listener = _Listener([*xs, u])
    with torch.enable_grad(), listener:  # so that a function's own no_grad shows
        results = batch._values(u, *xs)
    entries = (*listener.entries, *(listener.told(x) for x in results))
    try:
        hash(entries)
    except TypeError as error:
        raise Unrecordable("an operation has an argument that cannot be compared") from error
    return entries


class _Listener(TorchDispatchMode):
    """Writes down the operations that pass through."""

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.entries: list[Hashable] = []
        self._places: dict[int, int] = {id(x): place for place, x in enumerate(inputs)}
        self._alive = list(inputs)  # an id is only good for as long as its object lives

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        told = (func, self.told(args), self.told(kwargs or {}), torch.is_grad_enabled())
        result = func(*args, **(kwargs or {}))
        self.entries.append(told)
        for x in result if isinstance(result, tuple | list) else (result,):
            if isinstance(x, Tensor):
                self._places[id(x)] = len(self._alive)
                self._alive.append(x)
        return result

    def told(self, value: Any) -> Hashable:
        """An argument as something to compare."""
        if isinstance(value, Tensor):
            return self._told_tensor(value)
        if isinstance(value, list | tuple):
            return tuple(self.told(part) for part in value)
        if isinstance(value, dict):
            return tuple((name, self.told(part)) for name, part in value.items())
        if isinstance(value, float):
            return value.hex()  # tells -0.0 from 0.0
        return (type(value), value)

    def _told_tensor(self, x: Tensor) -> Hashable:
        place = self._places.get(id(x))
        if place is not None:
            return ("place", place)
        if type(x) is not Tensor and type(x) is not torch.nn.Parameter:
            raise Unrecordable(f"a captured tensor is a {type(x).__name__}")
        self._alive.append(x)
        about = (x.dtype, x.shape, x.stride(), x.device, x.requires_grad)
        if x.numel() <= SMALL and x.device.type == "cpu" and not x.is_complex():
            return ("value", *about, self.told(x.tolist()))
        return ("tensor", *about, _checksum(x))


def _checksum(x: Tensor) -> int:
    """A number that changes with any entry of a tensor and with their order: versions do not tell all changes."""
    if x.is_complex() or x.is_quantized or x.layout != torch.strided:
        raise Unrecordable(f"a captured tensor is {x.dtype}, {x.layout}")
    whole = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.int8}[x.element_size()]
    bits = x.detach().contiguous().view(whole).flatten().to(torch.int64)
    weights = (
        torch.arange(1, 2 * len(bits), 2, dtype=torch.int64, device=x.device) * 0x9E3779B97F4A7C1
    )  # odd, and spread
    return int(((bits ^ (bits >> 29)) * weights).sum())
