"""Smaller graphs: what autodiff of a mapped function writes, without what does not depend on the inputs.

Autodiff of a mapped function multiplies by ones and by identity matrices, and repeats itself. None of that depends on
the inputs, so it is removed once:

- what depends on no input is computed once (constants), and what is computed twice is computed once;
- products with one and with multiples of the identity matrix are dropped;
- a result that nobody else needs is overwritten by the next one.

Outputs own their memory: none is an input, a captured tensor, a constant, or a part of another output.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx

from ..torchside import overwrites
from .replay import call_directly
from .trace import RESHAPED_IN_PLACE, SHAPE_ONLY, RecordingError, comparable, is_literal

aten = torch.ops.aten

CONSTANT = "constant"  # attributes of a module with this beginning are what is computed once
IN_PLACE: dict[Any, Any] = {
    aten.mul.Tensor: aten.mul_.Tensor,
    aten.mul.Scalar: aten.mul_.Scalar,
    aten.add.Tensor: aten.add_.Tensor,
    aten.sub.Tensor: aten.sub_.Tensor,
    aten.div.Tensor: aten.div_.Tensor,
    aten.neg.default: aten.neg_.default,
}
FRESH = (*IN_PLACE, *IN_PLACE.values(), aten.bmm.default, aten.mm.default, aten.pow.Tensor_Scalar, aten.exp.default)
VIEWS = (aten.view.default, aten._unsafe_view.default, aten.expand.default, aten.permute.default)


def simplify(module: fx.GraphModule, inputs: Sequence[Tensor]) -> list[Tensor]:
    """Rewrite the graph of a module in place; returns the constants that it holds from then on.

    Args:
        module: the graph.
        inputs: an example of them, for shapes and constants.
    """
    _Simplifier(module, inputs).run()
    return [x for name, x in vars(module).items() if name.startswith(CONSTANT)]


class _Simplifier:
    """Rewrites the graph of a module in place, with the values of an example at hand for shapes and constants."""

    def __init__(self, module: fx.GraphModule, inputs: Sequence[Tensor]) -> None:
        self.module = module
        self.graph = module.graph
        self.values: dict[fx.Node, Any] = {}
        self.constant: set[fx.Node] = set()
        self.seen: dict[Any, fx.Node] = {}
        self.inputs = iter(inputs)
        self.count = 0

    def run(self) -> None:
        """All of it."""
        for node in list(self.graph.nodes):
            if node.op == "placeholder":
                self.values[node] = next(self.inputs)
            elif node.op == "get_attr":
                self._capture(node)
            elif node.op == "call_function":
                self._call(node)
        self._copy_what_is_shared()
        self.graph.eliminate_dead_code()
        for node in list(self.graph.nodes):
            self._overwrite(node)
        self._forget_unused()
        call_directly(self.graph, self.values)
        self.graph.lint()
        self.module.recompile()

    def _capture(self, node: fx.Node) -> None:
        """A captured tensor, whose value is read in every call; one that was made from numbers is a constant."""
        self.values[node] = getattr(self.module, str(node.target))
        if is_literal(node, self.values[node]):
            self.constant.add(node)

    def _call(self, node: fx.Node) -> None:
        arguments, options = fx.node.map_arg((_args(node), node.kwargs), lambda n: self.values[n])
        target: Any = RESHAPED_IN_PLACE.get(node.target, node.target)
        node.target = target
        if overwrites(target):
            raise RecordingError(f"{target} changes a tensor in place: use record=False.")
        try:
            value = self._stacked(node) if target is aten.mm.default else None
            value = target(*arguments, **options) if value is None else value
        except RuntimeError:
            if node.target not in (aten.view.default, aten._unsafe_view.default):
                raise
            node.target = aten.reshape.default  # what it looks at has other strides now
            value = node.target(*arguments, **options)
        self.values[node] = value
        if self._fold(node, value):
            return None
        for rewrite in (self._without_factor, self._without_power, self._without_view, self._without_identity):
            if (other := rewrite(node)) is not None:
                return self._replace(node, other)
        return self._reuse(node)

    def _reuse(self, node: fx.Node) -> None:
        """One node for what is computed twice."""
        key = (node.target, comparable((node.args, node.kwargs)))
        try:
            first = self.seen.setdefault(key, node)
        except TypeError:  # an argument that cannot be compared
            return
        if first is not node:
            self._replace(node, first)

    def _replace(self, node: fx.Node, other: fx.Node) -> None:
        node.replace_all_uses_with(other)
        self.graph.erase_node(node)

    def _fold(self, node: fx.Node, value: Any) -> bool:
        """Compute now what depends on no input; the likes of ones_like depend on a shape only."""
        fixed = all(n in self.constant for n in node.all_input_nodes) or node.target in SHAPE_ONLY
        if not fixed or (isinstance(value, Tensor) and value.is_meta):  # left over from removing mutations
            return False
        if not isinstance(value, Tensor):  # several outputs, to be folded one by one
            self.constant.add(node)
            return False
        self._replace(node, self._constant(value, node))
        return True

    def _constant(self, value: Tensor, before: fx.Node) -> fx.Node:
        name = f"{CONSTANT}{self.count}"
        self.count += 1
        value = _compressed(value)
        vars(self.module)[name] = value  # an ordinary attribute: buffers are looked up in a roundabout way
        with self.graph.inserting_before(before):
            node = self.graph.create_node("get_attr", name)
        self.values[node] = value
        self.constant.add(node)
        return node

    def _add(self, before: fx.Node, target: Any, *arguments: Any) -> fx.Node:
        with self.graph.inserting_before(before):
            node = self.graph.call_function(target, arguments)
        values = fx.node.map_arg(arguments, lambda n: self.values[n])
        self.values[node] = target(*values)
        return node

    def _expanded(self, node: fx.Node, like: fx.Node) -> fx.Node:
        shape = list(self.values[like].shape)
        return node if list(self.values[node].shape) == shape else self._add(like, aten.expand.default, node, shape)

    def _overwrite(self, node: fx.Node) -> None:
        """Write into an operand that is a fresh result and has no other use."""
        if node.target not in IN_PLACE:
            return
        value = self.values[node]
        swap = node.target in (aten.mul.Tensor, aten.add.Tensor) and not node.kwargs
        for place in (0, 1) if swap else (0,):
            x = _args(node)[place]
            if not isinstance(x, fx.Node) or x.target not in FRESH or len(x.users) > 1:
                continue
            old = self.values[x]
            if old.shape == value.shape and old.dtype == value.dtype:
                node.args = (x, _args(node)[1 - place], *_args(node)[2:]) if len(_args(node)) > 1 else (x,)
                node.target = IN_PLACE[node.target]
                return

    def _copy_what_is_shared(self) -> None:
        """Copy what the caller must not get: an input, a captured tensor, a constant, or a part of another output."""
        output = self.graph.output_node()
        taken = {_memory(self.values[node]) for node in self.graph.nodes if node.op in ("placeholder", "get_attr")}

        def owned(node: fx.Node) -> fx.Node:
            value = self.values[node]
            spread = 0 in value.stride() and value.numel() > 1
            if _memory(value) in taken or node in self.constant or spread:
                return self._add(output, contiguous_copy, node)
            taken.add(_memory(value))
            return node

        output.args = ([owned(node) for node in _args(output)[0]],)

    def _forget_unused(self) -> None:
        used = {node.target for node in self.graph.nodes if node.op == "get_attr"}
        for name in [name for name in vars(self.module) if name.startswith(CONSTANT) and name not in used]:
            delattr(self.module, name)

    # Rewrites: each returns the node to use instead, or None.

    def _without_factor(self, node: fx.Node) -> Any:
        """x * 1 and x / 1."""
        if node.target not in (aten.mul.Tensor, aten.mul.Scalar, aten.div.Tensor):
            return None
        for place in (0, 1) if node.target is aten.mul.Tensor else (0,):
            x, factor = _args(node)[place], _args(node)[1 - place]
            if isinstance(x, fx.Node) and self._is_one(factor) and self.values[x].dtype == self.values[node].dtype:
                return self._expanded(x, node)
        return None

    def _without_power(self, node: fx.Node) -> Any:
        """x ** 1 and x ** 0."""
        if node.target is not aten.pow.Tensor_Scalar:
            return None
        value, (x, exponent) = self.values[node], _args(node)
        if exponent == 0:
            return self._constant(torch.ones_like(value[(0,) * value.dim()]).expand_as(value), node)
        return x if exponent == 1 and value.dtype == self.values[x].dtype else None

    def _without_view(self, node: fx.Node) -> Any:
        """What looks at all of x as it is."""
        if node.target not in VIEWS:
            return None
        value, x = self.values[node], self.values[_args(node)[0]]
        return _args(node)[0] if x.shape == value.shape and x.stride() == value.stride() else None

    def _is_one(self, argument: Any) -> bool:
        if isinstance(argument, fx.Node):
            return argument in self.constant and bool((self.values[argument] == 1).all())
        return bool(argument == 1)

    def _multiple_of_identity(self, node: fx.Node) -> float | None:
        x = self.values[node]
        if node not in self.constant or x.shape[-1] != x.shape[-2] or not x.numel():
            return None
        multiple = float(x[(0,) * x.dim()])
        eye = torch.eye(x.shape[-1], dtype=x.dtype, device=x.device)
        return multiple if bool((x == multiple * eye).all()) else None

    def _without_identity(self, node: fx.Node) -> fx.Node | None:
        """(c I) @ X and X @ (c I)."""
        if node.target not in (aten.mm.default, aten.bmm.default):
            return None
        for place in (0, 1):
            multiple = self._multiple_of_identity(_args(node)[place])
            if multiple is not None:
                other = _args(node)[1 - place]
                return other if multiple == 1 else self._add(node, aten.mul.Scalar, other, multiple)
        return None

    def _stacked(self, node: fx.Node) -> Tensor | None:
        """A constant stack of (c I) times a constant: exactly, for a matrix product may round each copy differently."""
        left, right = (self.values[argument] for argument in _args(node))
        m = left.shape[1]
        if any(argument not in self.constant for argument in _args(node)) or not m or left.shape[0] % m:
            return None
        blocks = left.view(-1, m, m) if left.is_contiguous() else left.reshape(-1, m, m)
        multiple = float(left[0, 0])
        if not bool((blocks == multiple * torch.eye(m, dtype=left.dtype, device=left.device)).all()):
            return None
        copies: Tensor = (multiple * right).repeat(len(blocks), 1)
        return copies


def contiguous_copy(x: Tensor) -> Tensor:
    """A copy in memory of its own, each entry once."""
    return x.clone(memory_format=torch.contiguous_format)


def _memory(x: Tensor) -> int:
    return x.untyped_storage().data_ptr()


def _compressed(value: Tensor) -> Tensor:
    """The same values with one copy of what repeats itself along a dimension."""
    whole = value.shape
    for dim, size in enumerate(whole):
        first = value.narrow(dim, 0, 1) if size > 1 else value
        if size > 1 and bool((value == first).all()):
            value = first
    return contiguous_copy(value).expand(whole)  # of the rest nothing is kept


def _args(node: fx.Node) -> tuple[Any, ...]:
    return node.args
