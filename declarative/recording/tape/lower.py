"""From the trace of a function of one problem to its tape."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree

from ...linear.dense_kernel import LARGEST
from ...linear.jit import Floats
from ...linear.simd import LANES
from ...linear.sparse.layout import analysis_of
from ...torchside import is_fixed
from ..trace import LITERALS, RESHAPED_IN_PLACE, STATED, Trace, trace
from . import machine
from .machine import Program, Registers, execute
from .rules import MOVES, RULES, Entries, Operands, as_truth, entries
from .systems import Systems, same
from .writer import NotLowered, Writer

aten = torch.ops.aten
PER_OPERATION = 8_000  # multiplications that torch does faster take as long as one of its operations takes to call
DEPTH = 3  # of operations that are made of others


class Tape:
    """The program of a function of one problem, for batches of any size."""

    def __init__(
        self,
        program: Program,
        own: Sequence[int],
        sizes: Sequence[int],
        shared: Sequence[int],
        captured: Sequence[Tensor],
        frozen: Sequence[Tensor],
        traced: Trace,
        products: int,
        systems: Systems | None,
    ) -> None:
        self.program, self.systems = program, systems
        operations = len([node for node in traced.graph.nodes if node.op == "call_function"])
        self._most = PER_OPERATION * operations / products if products else math.inf  # problems that it is worth it for
        self._shared, self._captured = tuple(shared), tuple(captured)
        self._own, self._width = _places(own, sizes), sum(sizes)
        self._shapes_of_captured = [(x.shape, x.dtype) for x in captured]
        self._frozen = [(x, x.clone()) for x in frozen]
        ends = program.offsets.tolist()
        self._parts = [
            (tuple(x.shape[1:]), *ends[i : i + 2], x.dtype is torch.bool) for i, x in enumerate(_outputs(traced))
        ]
        self.structure = traced.structure
        self._tuple = traced.structure.type is tuple and all(part.is_leaf() for part in traced.structure.children())

    @property
    def length(self) -> int:
        """Instructions."""
        return len(self.program.a)

    def is_worth_it(self, count: int) -> bool:
        """Whether the operations of torch would take longer for so many problems: but for products of matrices."""
        return max(count, 4) <= self._most

    def for_one(self, tensors: Sequence[Tensor | None], alone: bool) -> Any:
        """The outputs of one problem, by the kernel for one alone, or for several."""
        return pytree.tree_unflatten(list(self._run(tensors, 1, alone)), self.structure)

    def is_current(self) -> bool:
        """Whether the captured tensors still have the shapes that were recorded, and whole numbers their values."""
        return [(x.shape, x.dtype) for x in self._captured] == self._shapes_of_captured and all(
            torch.equal(x, value) for x, value in self._frozen
        )

    def __call__(self, tensors: Sequence[Tensor | None], count: int) -> Any:
        """The outputs of so many problems."""
        found = self._run(tensors, count, count == 1)
        return found if self._tuple else pytree.tree_unflatten(list(found), self.structure)

    def _run(self, tensors: Sequence[Tensor | None], count: int, alone: bool) -> Outputs:
        flat = np.empty(count * self._parts[-1][2] if self._parts else 0)
        execute(self.program, self.systems, *self.inputs(tensors, count), flat, 1 if alone else LANES)
        return Outputs(flat, count, self._parts)

    def inputs(self, tensors: Sequence[Tensor | None], count: int) -> tuple[Floats, Floats]:
        """What each problem reads, and what all read."""
        own = np.empty((count, self._width))
        for i, (begin, end) in self._own.items():
            own[:, begin:end] = _array(tensors[i]).reshape(count, end - begin)
        shared = [_array(x).reshape(-1) for x in (*(tensors[i] for i in self._shared), *self._captured)]
        return own, np.concatenate(shared, dtype=np.float64) if shared else np.empty(0)

    def begin_of(self, argument: int) -> int:
        """Where a tensor begins in what each problem reads; -1 if it is not read."""
        return self._own[argument][0] if argument in self._own else -1


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


def _places(arguments: Sequence[int], sizes: Sequence[int]) -> dict[int, tuple[int, int]]:
    """Where each argument is in what a problem reads."""
    ends = np.cumsum([0, *sizes]).tolist()
    return dict(zip(arguments, itertools.pairwise(ends), strict=True))


def _array(x: Tensor | None) -> Any:
    assert x is not None
    return x.numpy(force=True)  # also of what torch knows to be zero


def _outputs(traced: Trace) -> list[Tensor]:
    (output,) = [node for node in traced.graph.nodes if node.op == "output"]
    listed: Any = output.args[0]
    return [traced.values[node] for node in listed]


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
    given = dict(zip(lowering.placeholders, places, strict=True))
    used = [node for node in lowering.placeholders if node.users]
    inputs = [node for node in used if own[given[node]]]
    common = [node for node in used if not own[given[node]]]
    registers = [lowering.read(node) for node in (*inputs, *common, *lowering.captured)]
    lowering.run()
    if any(x.dtype not in (torch.float64, torch.bool) for x in _outputs(traced)):
        raise NotLowered("an output of whole numbers")
    split = len(inputs)
    program = writer.finish(_flat(registers[:split]), _flat(registers[split:]), lowering.outputs())
    captured = [traced.captured[str(node.target)] for node in lowering.captured]
    return Tape(
        program,
        [given[x] for x in inputs],
        [x.size for x in registers[:split]],
        [given[x] for x in common],
        captured,
        lowering.frozen,
        traced,
        writer.products,
        lowering.systems,
    )


def _flat(parts: Sequence[Registers]) -> Registers:
    return np.concatenate([np.empty(0, dtype=np.int64), *(x.reshape(-1) for x in parts)])


class _Lowering:
    """Goes through a graph; what does not depend on inputs stays a tensor."""

    def __init__(self, writer: Writer, traced: Trace, depth: int = 0, stated: bool = False) -> None:
        self.writer, self.traced, self.depth, self.stated = writer, traced, depth, stated
        self.operands = Operands(writer)
        self.known: dict[fx.Node, Any] = {}
        graph = traced.graph
        graph.eliminate_dead_code()
        self.placeholders = [node for node in graph.nodes if node.op == "placeholder"]
        self.captured: list[fx.Node] = []
        self.systems: Systems | None = None  # that are solved on the way
        self.frozen: list[Tensor] = []  # captured tensors whose values the tape depends on: the places of entries
        for node in graph.nodes:
            if node.op == "get_attr":
                self._capture(node, traced.captured[str(node.target)])

    def _capture(self, node: fx.Node, x: Tensor) -> None:
        constant = is_fixed(x) or all(user.target in LITERALS for user in node.users)
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
        for node in self.traced.graph.nodes:
            if node.op == "call_function":
                self.writer.literal = self.stated or node.meta.get(STATED, False)
                self.known[node] = self._call(node)

    def outputs(self) -> list[Registers]:
        (output,) = [node for node in self.traced.graph.nodes if node.op == "output"]
        listed: Any = output.args[0]
        return [self.operands.of(self.known[node]) for node in listed]

    def _call(self, node: fx.Node) -> Any:
        if node.target is operator.getitem:
            listed: Any = self.known[node.args[0]]  # type: ignore[index]
            return listed[node.args[1]]
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda used: self.known[used])
        value = self.traced.values[node]
        if not any(isinstance(x, Entries) for x in pytree.tree_leaves((args, kwargs), is_leaf=_is_entries)):
            return value
        target = RESHAPED_IN_PLACE.get(node.target, node.target)
        if target in SOLVES:
            return self._solved(SOLVES[target], args)
        name = _name(target)
        if name in SHAPE_ONLY:
            return value
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
        first = True

        def numbers(x: Any) -> Any:
            nonlocal first
            is_index, first = name in INDEXED and not first, False
            if isinstance(x, Entries):
                if is_index:
                    raise NotLowered("an index that depends on the inputs")
                return x.registers
            if isinstance(x, Tensor) and not is_index:
                return torch.from_numpy(self.operands.of(x))
            return x

        if name == "constant_pad_nd" and (len(args) > 2 and args[2] != 0):
            raise NotLowered("padding with something else than zero")
        moved_args, moved_kwargs = pytree.tree_map(numbers, (args, kwargs), is_leaf=_is_entries)
        if name in ("view", "_unsafe_view"):
            result: Any = moved_args[0].reshape(moved_args[1])
        elif name == "clone" or name in ("lift_fresh", "lift_fresh_copy", "alias", "detach", "contiguous"):
            result = moved_args[0]
        else:
            try:
                result = target(*moved_args, **moved_kwargs)
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
        own, _ = pytree.tree_flatten((args, kwargs), is_leaf=_is_entries)
        places = [i for i, x in enumerate(own) if isinstance(x, Entries)]

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
            inner.known[placeholder] = own[i]
        inner.run()
        (output,) = [one for one in traced.graph.nodes if one.op == "output"]
        listed: Any = output.args[0]
        return pytree.tree_unflatten([inner.known[one] for one in listed], traced.structure)


def _sparse(
    o: Operands, hessian: Any, jacobian: Any, primal: Any, dual: Any, r: Any, t: Any, analysis: int
) -> tuple[Systems, list[Registers], list[int]]:
    kkt = analysis_of(analysis)
    if kkt.kernel == "torch":
        raise NotLowered("a factorisation that is not compiled")
    parts = [o.of(x) for x in (hessian, jacobian, primal)]
    minus = o.writer.emit(machine.NEG, o.of(dual))
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


def _is_entries(x: Any) -> bool:
    return isinstance(x, Entries)


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
SHAPE_ONLY = {
    "ones_like", "zeros_like", "full_like", "empty_like", "new_zeros", "new_ones", "new_full", "new_empty",
    "zeros", "ones", "full", "empty", "scalar_tensor",
}  # fmt: skip
