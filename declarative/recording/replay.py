"""How a graph is run: by torch's own functions, which cost less to call than the operations behind them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx

aten = torch.ops.aten

# Operations whose function takes the same arguments in the same order.
SAME = """
    abs add amax amin baddbmm bitwise_and bitwise_not bitwise_or bmm cat ceil clamp cos cosh cumsum
    diagonal diag_embed div eq exp floor gather ge gt index_add index_select isfinite le log log1p
    logical_and logical_not logical_or lt maximum mean minimum mm mul ne neg permute pow prod reciprocal
    rsqrt rsub scatter_reduce select sigmoid sign sin sinh sqrt square squeeze stack sub sum tan tanh
    transpose unbind unsqueeze where
"""
METHODS = "add_ div_ expand mul_ neg_ sub_ view"


def call_directly(graph: fx.Graph, values: Mapping[fx.Node, Any]) -> None:
    """Replace the operations of a graph by functions that do the same, where there are such.

    Args:
        graph: what to change.
        values: of its nodes, for an example.
    """
    for node in graph.nodes:
        target: Any = node.target
        if target is aten.slice.Tensor:
            _narrow(node, values)
        elif isinstance(target, torch._ops.OpOverload) and target.namespace == "aten":
            node.target = FUNCTIONS.get(target.overloadpacket.__name__, target)


def _narrow(node: fx.Node, values: Mapping[fx.Node, Any]) -> None:
    """x[..., start:end] along one dimension."""
    given: list[Any] = [*node.args]
    x, dim, start, end, step = given + [None, 0, None, None, 1][len(given) :]
    begin, stop, _ = slice(start, end).indices(values[x].shape[dim])
    if step == 1 and not node.kwargs:
        node.target, node.args = torch.narrow, (x, dim, begin, max(stop - begin, 0))


FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: getattr(torch, name) for name in SAME.split()},
    **{name: getattr(torch.Tensor, name) for name in METHODS.split()},
}
