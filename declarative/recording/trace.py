"""A function of tensors as a graph of torch operations, written down while it runs.

The operations are those that are left when ``torch.vmap`` and autodiff have done their work, so that replaying them
does not do it again. Tensors that the function captures are inputs of the graph: the graph refers to the tensors
themselves, and reads their values whenever it is replayed. Everything else that Python decides is frozen.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from ..torchside import is_fixed, is_stated

aten = torch.ops.aten

STATED = "stated"  # what a node of a graph is if a function of the user's has done it, and not a derivative
LARGEST_GRAPH = 20_000  # operations; more than that is a loop over the batch, written out
CAPTURED = "captured"  # attributes of a module with this beginning are the captured tensors


LOOKS_AT_VALUES = (
    "an operation of the functions looks at the values of a tensor while it is recorded, as F.one_hot does: compare "
    "instead, (i == torch.arange(n)).to(u), or look up entries by x[i], gather or index_select; or use record=False."
)


class RecordingError(ValueError):
    """A function cannot be recorded: it is no pure function of its arguments for given shapes, or is too long."""


@dataclass(frozen=True)
class Trace:
    """The operations of one run of a function.

    Attributes:
        graph: the operations; its placeholders are the tensors that were given.
        structure: how the outputs are nested.
        captured: the tensors that the function reached other than through its arguments, by attribute of the module.
        values: what each node of the graph was in that run.
    """

    graph: fx.Graph
    structure: pytree.TreeSpec
    captured: dict[str, Tensor]
    values: dict[fx.Node, Any]

    @cached_property
    def module(self) -> fx.GraphModule:
        """What replays the graph; to make it takes as long as to trace it."""
        module = fx.GraphModule(self.captured, self.graph, "Recorded")
        for name, x in self.captured.items():  # ordinary attributes are looked up faster
            delattr(module, name)
            vars(module)[name] = x
        return module

    @cached_property
    def reads_captured(self) -> bool:
        """Whether it reads captured tensors whose values may change: not those that a function makes from numbers."""
        captured = [(node, self.captured[str(node.target)]) for node in self.graph.find_nodes(op="get_attr")]
        return any(not (is_fixed(x) or is_literal(node, x)) for node, x in captured)

    @property
    def outputs(self) -> list[fx.Node]:
        """The nodes that are returned."""
        listed: Any = self.graph.output_node().args[0]
        return list(listed)

    @property
    def operations(self) -> int:
        """How many there are."""
        return sum(node.op == "call_function" for node in self.graph.nodes)

    @property
    def is_tuple(self) -> bool:
        """Whether the outputs are a tuple of tensors."""
        return self.structure.type is tuple and all(part.is_leaf() for part in self.structure.children())

    def same_as(self, other: Trace) -> bool:
        """Whether both runs did the same operations with the same numbers and the same captured tensors."""
        return _described(self) == _described(other)


def trace(function: Callable[..., Any], tensors: Sequence[Tensor | None]) -> Trace:
    """Run a function on the tensors and write its operations down.

    Args:
        function: of the tensors, without side effects.
        tensors: an example; None stays None.

    Raises:
        RecordingError: an operation depends on values in a way that a graph cannot express, or draws random numbers.

    Example:
        >>> import torch
        >>> x = torch.tensor([1.0, 2.0])
        >>> trace(lambda x: (x * x).sum(), [x]).module(x)[0]
        tensor(5.)
    """
    given = [x.detach() for x in tensors if x is not None]
    structure: list[pytree.TreeSpec] = []

    def flat_function(*present: Tensor) -> list[Tensor]:
        parts = iter(present)
        outputs, spec = pytree.tree_flatten(function(*(None if x is None else next(parts) for x in tensors)))
        structure[:] = [spec]
        return list(outputs)

    recorder = _Recorder(given)
    try:
        with torch.no_grad(), recorder:
            outputs = torch.func.functionalize(flat_function, remove="mutations")(*given)
    except RuntimeError as error:
        if not str(error).startswith("vmap:"):
            raise
        if ".item()" in str(error):
            raise RecordingError(LOOKS_AT_VALUES) from error
        raise RecordingError(
            "torch has no rule to map the derivatives of an operation of the functions, such as those of "
            f"nn.LayerNorm, which recording needs ({error}) Use record=False."
        ) from error
    return recorder.finish(outputs, structure[0])


class _Recorder(TorchDispatchMode):
    """Writes down the operations that pass through, in this thread alone."""

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.graph = fx.Graph()
        self.values: dict[fx.Node, Any] = {}
        self.captured: dict[str, Tensor] = {}
        self._nodes: dict[int, fx.Node] = {}
        self._alive: list[Tensor] = []  # an id is only good for as long as its object lives
        self._length = 0
        for i, x in enumerate(inputs):
            self._assign(x, self.graph.placeholder(f"input_{i}"))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in NOT_COMPUTED:
            return func(*args, **kwargs)
        _refuse(func, args)
        self._length += 1
        if self._length > LARGEST_GRAPH:
            raise RecordingError(f"the functions take more than {LARGEST_GRAPH} operations: use record=False.")
        arguments, options = pytree.tree_map_only(Tensor, self._node_of, (args, kwargs))
        result = func(*args, **kwargs)
        node = self.graph.call_function(func, tuple(arguments), options)
        node.meta[STATED] = is_stated()
        self.values[node] = result
        if isinstance(result, Tensor):
            self._assign(result, node)
        elif isinstance(result, tuple | list):
            for i, part in enumerate(result):
                if isinstance(part, Tensor):
                    self._assign(part, self.graph.call_function(operator.getitem, (node, i)))
        return result

    def finish(self, outputs: Sequence[Tensor], structure: pytree.TreeSpec) -> Trace:
        """The graph of what was written down."""
        self.graph.output([self._node_of(x) for x in outputs])
        return Trace(self.graph, structure, self.captured, self.values)

    def _assign(self, x: Tensor, node: fx.Node) -> None:
        self._alive.append(x)
        self._nodes[id(x)] = node
        self.values[node] = x

    def _node_of(self, x: Tensor) -> fx.Node:
        if id(x) not in self._nodes:
            if type(x) is not Tensor and not isinstance(x, torch.nn.Parameter | torch.nn.Buffer):
                raise RecordingError(f"a function captures a {type(x).__name__}: use record=False.")
            name = f"{CAPTURED}_{len(self.captured)}"
            self.captured[name] = x
            self._assign(x, self.graph.create_node("get_attr", name))
        return self._nodes[id(x)]


# Asked for by functions, but not computed.
NOT_COMPUTED = {
    torch.ops.prim.device.default,
    aten.is_nonzero.default if hasattr(aten, "is_nonzero") else None,
    aten.sym_size.default if hasattr(aten, "sym_size") else None,
}


def _refuse(func: Any, args: Sequence[Any]) -> None:
    """Refuse an operation whose outcome is a Python value or a shape that depends on values, or that is random.

    Raises:
        RecordingError: it is one.
    """
    tags = getattr(func, "tags", ())
    if torch.Tag.data_dependent_output in tags:
        raise RecordingError(
            "a function makes a Python number or a decision out of a tensor (.item(), float(x), if x > 0, x[i] with an "
            "i that all problems share): what was recorded would go on using it. Compute with tensors (torch.where, "
            "x.index_select(0, i.reshape(1))), or use record=False."
        )
    indexes = func is aten.index.Tensor  # which has the tag whatever it is indexed with
    masks = indexes and any(x is not None and x.dtype in (torch.bool, torch.uint8) for x in args[1])
    if masks or (torch.Tag.dynamic_output_shape in tags and not indexes):
        raise RecordingError(
            f"the shape of the result of {'u[mask]' if masks else func.overloadpacket} depends on values: what was "
            "recorded would go on using the first one. Use torch.where, or whole-number indices that are computed once "
            "outside; or record=False."
        )
    if torch.Tag.nondeterministic_seeded in tags:
        raise RecordingError(
            f"a function draws random numbers ({func.overloadpacket}): draw them outside and pass them as an input, or "
            "use record=False."
        )


def kind_of(x: Tensor) -> tuple[Any, ...]:
    """What a graph depends on of a tensor beside its values."""
    return x.shape, x.stride(), x.dtype, x.device


def comparable(argument: Any, places: Mapping[fx.Node, int] | None = None) -> Any:
    """An argument of an operation as something to compare: numbers by their bits, nodes by place or as they are."""
    if isinstance(argument, fx.Node):
        return argument if places is None else ("node", places[argument])
    if isinstance(argument, list | tuple):
        return tuple(comparable(part, places) for part in argument)
    if isinstance(argument, dict):
        return tuple((name, comparable(part, places)) for name, part in argument.items())
    return argument.hex() if isinstance(argument, float) else (type(argument), argument)


def _described(trace: Trace) -> list[Any]:
    """Every operation with its arguments, as something to compare."""
    places = {node: i for i, node in enumerate(trace.graph.nodes)}

    def captured(node: fx.Node) -> Any:
        x = trace.captured[str(node.target)]
        return (*kind_of(x), x.tolist() if is_literal(node, x) else x.data_ptr())

    return [
        (
            node.op,
            captured(node) if node.op == "get_attr" else node.target,
            comparable((node.args, node.kwargs), places),
        )
        for node in trace.graph.nodes
    ]


def is_literal(node: fx.Node, x: Tensor) -> bool:
    """Whether a captured tensor was made from numbers by a function itself: ``torch.tensor(2.0)``.

    ``torch.from_numpy`` looks like it, but its memory is that of an array, which may change.
    """
    return all(user.target in LITERALS for user in node.users) and x.untyped_storage().resizable()


LITERALS = (aten.lift_fresh.default, aten.lift_fresh_copy.default)  # of a tensor that a function has made from numbers
# On temporaries, whose former shape nobody uses again.
RESHAPED_IN_PLACE: dict[Any, Any] = {
    aten.squeeze_.default: aten.squeeze.default,
    aten.squeeze_.dim: aten.squeeze.dim,
    aten.squeeze_.dims: aten.squeeze.dims,
    aten.unsqueeze_.default: aten.unsqueeze.default,
    aten.transpose_.default: aten.transpose.int,
    aten.t_.default: aten.t.default,
}
SHAPE_ONLY = {  # operations that depend on nothing but the shape of their first argument
    *(aten.ones_like.default, aten.zeros_like.default, aten.full_like.default, aten.empty_like.default),
    *(aten.new_ones.default, aten.new_zeros.default, aten.new_full.default, aten.new_empty.default),
}
