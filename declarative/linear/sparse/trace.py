"""A function as a graph of torch operations, and the index sets that are followed through it."""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import scipy.sparse
import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from ...torchside import is_operation, overwrites, without_vmap_warnings
from .index_sets import Algebra, NoPattern, Sets, Traced
from .operation import Call
from .rules import looks_at_entries, propagate

TRACING = threading.Lock()  # make_fx is for one thread at a time


def follow(
    function: Callable[..., Tensor],
    u: Tensor,  # (m,)
    multipliers: Tensor,  # (k,)
    xs: Sequence[Tensor],
    limit: int,
) -> tuple[Sets, tuple[str, ...]]:
    """On which of (u, multipliers) the entries of ``function(u, multipliers, *xs)`` depend.

    Returns:
        A Boolean matrix (entries, m + k + 1), of which the last column has no meaning, and the names of operations that
        were taken as dense.
    """
    inputs = (u, multipliers, *xs)
    width = len(u) + len(multipliers) + 1
    follower = _Follower(_traced(function, inputs), Algebra(width, limit))
    result = follower.run(inputs)
    sets = scipy.sparse.csr_matrix((result.value.numel(), width), dtype=bool) if result.sets is None else result.sets
    return sets, tuple(sorted(follower.without_rule))


def _traced(function: Callable[..., Tensor], inputs: Sequence[Tensor]) -> fx.GraphModule:
    """The graph of the function, in which nothing is overwritten."""
    module = _graph(function, inputs)
    if any(
        overwrites(node.target) for node in module.graph.nodes
    ):  # a second time, for what removes it does not know functions with derivatives of their own
        module = _graph(torch.func.functionalize(function, remove="mutations"), inputs)
    module.graph.eliminate_dead_code()
    return module


def _graph(function: Callable[..., Tensor], inputs: Sequence[Tensor]) -> fx.GraphModule:
    try:
        with TRACING, torch.no_grad(), without_vmap_warnings():
            return make_fx(function)(*(x.detach() for x in inputs))
    except Exception as error:  # whatever tracing does not support
        raise NoPattern(f"the functions cannot be traced: {error}") from error


class _Follower:
    """Goes through a graph, operation by operation; what is not needed any more is forgotten."""

    def __init__(self, module: fx.GraphModule, algebra: Algebra) -> None:
        self.module = module
        self.algebra = algebra
        self.without_rule: set[str] = set()
        self._nodes = list(module.graph.nodes)
        self._reaching = _reaching(self._nodes)
        self._known: dict[fx.Node, Traced] = {}

    def run(self, inputs: Sequence[Tensor]) -> Traced:
        """The result of the graph."""
        sources = iter(self._sources(inputs))
        last_use = {used: node for node in self._nodes for used in node.all_input_nodes}
        *operations, output = self._nodes
        for node in operations:
            if node.op == "placeholder":
                self._known[node] = next(sources)
            elif node.op == "get_attr":
                self._known[node] = self._captured(getattr(self.module, node.target))
            else:
                self._known[node] = self._called(node)
            for used in node.all_input_nodes:
                if last_use[used] is node:
                    del self._known[used]
        return self._known[output.args[0]]

    def _sources(self, inputs: Sequence[Tensor]) -> list[Traced]:
        """u and the multipliers, whose entries are followed, and the inputs, of which nothing is known."""
        u, multipliers, *xs = inputs
        m, k = len(u), len(multipliers)
        followed = [(u, np.arange(m)), (multipliers, np.arange(m, m + k))]
        return [Traced(x, self.algebra.single(columns)) for x, columns in followed] + [self._varying(x) for x in xs]

    def _varying(self, x: Tensor) -> Traced:
        return Traced(x, self.algebra.varying(np.ones(x.numel(), dtype=bool)))

    def _captured(self, value: Any) -> Traced:
        """What a function captures is known, unless it is there to be learnt."""
        return self._varying(value) if isinstance(value, Tensor) and value.requires_grad else Traced(value)

    def _called(self, node: fx.Node) -> Traced:
        target: Any = node.target
        args, kwargs = _mapped((node.args, node.kwargs), lambda used: self._known[used])
        if target is operator.getitem:
            several, index = args
            return Traced(several.value[index], several.sets[index])
        if not is_operation(target):
            raise NoPattern(f"the functions cannot be traced: {target}")
        values = _mapped((node.args, node.kwargs), lambda used: self._known[used].value)
        with torch.no_grad():
            result = target(*values[0], **values[1])
        if result is None:
            return Traced(None)
        if not isinstance(result, Tensor | tuple | list):
            raise NoPattern(f"the functions depend on a value: {target}")
        call = Call(target, args, kwargs, result, self.algebra)
        sets: list[Sets | None] = [None] * len(call.results)
        if node in self._reaching and looks_at_entries(target):
            sets = propagate(call, self.without_rule)
        return Traced(result, sets[0]) if isinstance(result, Tensor) else Traced(tuple(result), tuple(sets))


def _mapped(arguments: Any, value: Callable[[fx.Node], Any]) -> Any:
    """The arguments with values in place of nodes."""
    substitute: Any = fx.node.map_arg
    return substitute(arguments, value)


def _reaching(nodes: Sequence[fx.Node]) -> set[fx.Node]:
    """The nodes whose entries reach the output; of some only the shape does."""
    reaching = {nodes[-1]}
    for node in reversed(nodes):
        if node in reaching and (node.op != "call_function" or looks_at_entries(node.target)):
            reaching.update(node.all_input_nodes)
    return reaching
