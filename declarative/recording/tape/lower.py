"""From the trace of a function of one problem to its tape."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree

from ...kernels import kinds
from ...kernels.dense_systems import LARGEST
from ...kernels.machine import Registers, Systems, same
from ...linear.sparse.layout import analysis_of
from ...torchside import is_fixed
from ..trace import RESHAPED_IN_PLACE, SHAPE_ONLY, STATED, Trace, is_literal, trace
from .rules import MOVES, RULES, Entries, Operands, as_truth, entries
from .tape import Tape
from .writer import NotLowered, Writer

DEPTH = 3  # of operations that are made of others


def lowered(traced: Trace, own: Sequence[bool | None]) -> Tape:
    """The tape of a function that was traced for a batch of one problem.

    Args:
        traced: the function; all of its outputs have a batch dimension.
        own: for each of its arguments whether a problem has its own (with a batch dimension) or all share it; None for
            an argument that is None.

    Raises:
        NotLowered: an operation has no rule, or the tape would be too long.
    """
    writer = Writer()
    lowering = _Lowering(writer, traced)
    places = [i for i, kind in enumerate(own) if kind is not None]
    used = {i: node for i, node in zip(places, lowering.placeholders, strict=True) if node.users}
    read = {i: lowering.read(node) for i, node in used.items() if own[i]}
    shared = {i: lowering.read(node) for i, node in used.items() if not own[i]}
    captured = [lowering.read(node) for node in lowering.captured]
    lowering.run()
    if any(traced.values[node].dtype not in (torch.float64, torch.bool) for node in traced.outputs):
        raise NotLowered("an output of whole numbers")
    outputs = [lowering.operands.of(x) for x in lowering.outputs()]
    return Tape(
        writer.finish(_flat(read.values()), _flat([*shared.values(), *captured]), outputs),
        lowering.systems,
        traced,
        {i: x.size for i, x in read.items()},
        list(shared),
        [traced.captured[str(node.target)] for node in lowering.captured],
        lowering.frozen,
        writer.products,
    )


def _flat(parts: Iterable[Registers]) -> Registers:
    return np.concatenate([np.empty(0, dtype=np.int64), *(x.reshape(-1) for x in parts)])


class _Lowering:
    """Goes through a graph; what does not depend on inputs stays a tensor."""

    def __init__(self, writer: Writer, traced: Trace, depth: int = 0, stated: bool = False) -> None:
        self.writer, self.traced, self.depth, self.stated = writer, traced, depth, stated
        self.operands = Operands(writer)
        self.known: dict[fx.Node, Any] = {}
        self.captured: list[fx.Node] = []
        self.systems: Systems | None = None  # that are solved on the way
        self.frozen: list[Tensor] = []  # captured tensors whose values the tape depends on: the places of entries
        traced.graph.eliminate_dead_code()
        self.placeholders = list(traced.graph.find_nodes(op="placeholder"))
        for node in traced.graph.nodes:
            if node.op == "get_attr":
                self._capture(node, traced.captured[str(node.target)])

    def _capture(self, node: fx.Node, x: Tensor) -> None:
        constant = is_fixed(x) or is_literal(node, x)
        if constant or x.dtype is torch.int64:
            self.known[node] = x
            if not constant:
                self.frozen.append(x)
        else:
            self.captured.append(node)

    def read(self, node: fx.Node) -> Registers:
        """The registers of an input."""
        x = self.traced.values[node]
        if x.dtype not in (torch.float64, torch.bool):
            raise NotLowered(f"an input of type {x.dtype}")
        registers = self.writer.fresh(x.numel()).reshape(tuple(x.shape))
        self.known[node] = entries(registers)
        return registers

    def run(self) -> None:
        """Write the instructions."""
        for node in self.traced.graph.nodes:
            if node.op == "call_function":
                self.writer.literal = self.stated or node.meta.get(STATED, False)
                self.known[node] = self._call(node)

    def outputs(self) -> list[Any]:
        """What the outputs are: entries, or a tensor."""
        return [self.known[node] for node in self.traced.outputs]

    def _call(self, node: fx.Node) -> Any:
        if node.target is operator.getitem:
            listed: Any = self.known[node.args[0]]  # type: ignore[index]
            return listed[node.args[1]]
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda used: self.known[used])
        value = self.traced.values[node]
        if not _has_entries((args, kwargs)):
            return value
        target = RESHAPED_IN_PLACE.get(node.target, node.target)
        if target in SOLVES:
            return self._solved(SOLVES[target], args)
        if target in SHAPE_ONLY:
            return value
        name = _name(target)
        _require_double(value, name)
        if name == "_to_copy":
            return self._converted(node.args[0], args[0], value)
        if name in MOVES:
            return self._moved(name, target, args, kwargs)
        rule = RULES.get(name)
        if rule is None:
            return self._decomposed(node, args, kwargs)
        _require_no_conversion(kwargs, value, name)
        try:
            found = entries(rule(self.operands, *args, **_without_options(kwargs)))
        except (TypeError, RuntimeError, IndexError, ValueError) as error:
            raise NotLowered(f"{node.target}: {error}") from error
        if value.dtype is torch.bool and name not in TRUTHS:  # true and true is true, not two
            found = entries(as_truth(self.operands, found))
        if found.registers.numel() != value.numel():  # its shape may have been changed in place since
            raise NotLowered(f"{node.target} gives another shape")
        return found

    def _solved(self, read: Callable[..., tuple[Systems, list[Registers], list[int]]], args: Any) -> list[Entries]:
        """A system of linear equations."""
        systems, inputs, sizes = read(self.operands, *args)
        if not same(self.systems, systems):
            raise NotLowered("systems of two kinds")
        self.systems = self.systems or systems
        found = self.writer.solve(_flat(inputs), sum(sizes))
        solution, *rest = np.split(found, np.cumsum(sizes)[:-1])
        return [entries(x) for x in (solution.reshape(1, -1), *rest)]

    def _converted(self, node: Any, x: Any, value: Tensor) -> Entries:
        """Another type: truth values and whole numbers are numbers here."""
        if value.dtype is torch.bool:
            return entries(as_truth(self.operands, x))
        if value.dtype is not torch.float64 and self.traced.values[node].is_floating_point():
            raise NotLowered("a conversion that rounds")
        return entries(self.operands.of(x))

    def _moved(self, name: str, target: Any, args: Any, kwargs: Any) -> Any:
        """Carried out on the numbers of the registers; constants among the operands get registers too."""

        def numbers(x: Any) -> Any:
            if isinstance(x, Entries):
                return x.registers
            return torch.from_numpy(self.operands.of(x)) if isinstance(x, Tensor) else x

        if name == "constant_pad_nd" and (len(args) > 2 and args[2] != 0):
            raise NotLowered("padding with something else than zero")
        if name in INDEXED:
            if _has_entries((args[1:], kwargs)):
                raise NotLowered("an index that depends on the inputs")
            args = (numbers(args[0]), *args[1:])
        else:
            args, kwargs = pytree.tree_map(numbers, (args, kwargs))
        if name in ("view", "_unsafe_view"):
            result: Any = args[0].reshape(args[1])
        elif name in UNCHANGED:
            result = args[0]
        else:
            try:
                result = target(*args, **kwargs)
            except RuntimeError as error:
                raise NotLowered(f"{target}: {error}") from error
        return pytree.tree_map_only(Tensor, Entries, result)

    def _example(self, node: fx.Node) -> Any:
        """What a node was when it was traced, in the shape that it had then."""
        known, value = self.known[node], self.traced.values[node]
        return value.reshape(known.registers.shape) if isinstance(known, Entries) else value

    def _decomposed(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        """An operation without a rule, by what torch says it is made of."""
        function = _decomposition(node.target)
        if function is None or self.depth >= DEPTH:
            raise NotLowered(f"no rule for {node.target}")
        examples, spec = pytree.tree_flatten(fx.node.map_arg((node.args, node.kwargs), self._example))
        operands = pytree.tree_leaves((args, kwargs))
        places = [i for i, x in enumerate(operands) if isinstance(x, Entries)]

        def composed(*tensors: Tensor) -> Any:
            filled = list(examples)
            for i, x in zip(places, tensors, strict=True):
                filled[i] = x
            some, named = pytree.tree_unflatten(filled, spec)
            return function(*some, **named)

        try:
            traced = trace(composed, [examples[i] for i in places])
        except Exception as error:  # whatever a decomposition may raise: there is another way
            raise NotLowered(f"no rule for {node.target}") from error
        inner = _Lowering(self.writer, traced, self.depth + 1, self.writer.literal)
        for constant in inner.captured:  # an operand that depends on no input
            inner.known[constant] = traced.captured[str(constant.target)]
        for placeholder, i in zip(inner.placeholders, places, strict=True):
            inner.known[placeholder] = operands[i]
        inner.run()
        return pytree.tree_unflatten(inner.outputs(), traced.structure)


def _sparse(
    o: Operands, hessian: Any, jacobian: Any, primal: Any, dual: Any, r: Any, t: Any, analysis: int
) -> tuple[Systems, list[Registers], list[int]]:
    kkt = analysis_of(analysis)
    if kkt.kernel == "torch":
        raise NotLowered("a factorisation that is not compiled")
    parts = [o.of(x) for x in (hessian, jacobian, primal)]
    minus = o.writer.emit(kinds.NEG, o.of(dual))
    return Systems(kkt.plan, kkt.m, kkt.k), [*parts, minus, o.of(r), o.of(t)], [kkt.m + kkt.k, 1, 1, 1]


def _dense(o: Operands, *args: Any) -> tuple[Systems, list[Registers], list[int]]:
    parts = [o.of(x) for x in args]
    m, k = parts[3].size, parts[4].size
    if m > LARGEST:
        raise NotLowered("a dense system of this size")
    return Systems.dense(m, k), parts, [m + k, 1]


SOLVES = {
    torch.ops.declarative.solve_sparse_kkt.default: _sparse,
    torch.ops.declarative.solve_dense_active.default: _dense,
}


def _require_no_conversion(kwargs: Any, value: Any, name: str) -> None:
    """Whole numbers are counts of truth values here: there is no arithmetic of their bits, and nothing is rounded."""
    if kwargs.get("dtype") not in (None, torch.float64) or (
        name.startswith("bitwise") and value.dtype is not torch.bool
    ):
        raise NotLowered(f"{name} of whole numbers")


def _require_double(value: Any, name: str) -> None:
    for x in pytree.tree_leaves(value):
        if isinstance(x, Tensor) and x.dtype not in (torch.float64, torch.bool, torch.int64):
            raise NotLowered(f"{name} gives {x.dtype}")


def _has_entries(arguments: Any) -> bool:
    return any(isinstance(x, Entries) for x in pytree.tree_leaves(arguments))


def _name(target: Any) -> str:
    packet = getattr(target, "overloadpacket", None)
    if packet is None or target.namespace != "aten":
        raise NotLowered(f"no rule for {target}")
    return str(packet.__name__)


def _without_options(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {name: x for name, x in kwargs.items() if name not in ("memory_format", "layout", "device", "pin_memory")}


def _decomposition(target: Any) -> Callable[..., Any] | None:
    from torch._decomp import decomposition_table

    found: Callable[..., Any] | None = decomposition_table.get(target)
    return found


TRUTHS = {  # whose results are 0 or 1
    "lt", "le", "gt", "ge", "eq", "ne", "logical_and", "logical_or", "logical_xor", "logical_not", "bitwise_and",
    "bitwise_or", "bitwise_xor", "bitwise_not", "isfinite", "isnan", "isinf", "any", "all",
}  # fmt: skip
INDEXED = ("index", "index_select", "gather")
UNCHANGED = ("clone", "lift_fresh", "lift_fresh_copy", "alias", "detach", "contiguous")
