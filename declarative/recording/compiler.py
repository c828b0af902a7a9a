"""Recorded graphs as machine code: Inductor compiles them when they are recorded, and they are called directly.

Inductor keeps what it has compiled on disk, by graph and shape. Without a C++ compiler graphs are replayed.
"""

from __future__ import annotations

import logging
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, fx

from .trace import CAPTURED

WORTH = 100  # operations: a smaller graph is not worth the wait
NO_COMPILER = (
    "record='inductor' needs a C++ compiler, such as g++ (or CXX set to one), and there is none: the functions are "
    "recorded, but not compiled."
)


def compiled(module: fx.GraphModule, tensors: Sequence[Tensor]) -> Callable[..., Any] | None:
    """The graph as a function of the tensors, or None if it is to be replayed.

    Args:
        module: the graph. Tensors that it captures stay what they are: their values are read in every call.
        tensors: an example of its inputs.
    """
    count = sum(node.op == "call_function" for node in module.graph.nodes)
    if count < WORTH:
        return None
    if not has_compiler():
        warnings.warn(NO_COMPILER, RuntimeWarning, stacklevel=2)
        return None
    opened, captured = _with_captured_as_inputs(module)
    begin = time.monotonic()
    _show_progress(f"declarative: compiling {count} operations for inputs {[tuple(x.shape) for x in tensors[:3]]} ...")
    function = _compile(opened, [*tensors, *captured])
    _show_progress(f" {time.monotonic() - begin:.0f} s\n")
    return lambda *inputs: function(*inputs, *captured)


def has_compiler() -> bool:
    """Whether there is a C++ compiler."""
    from torch._inductor import cpp_builder
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        return bool(cpp_builder.get_cpp_compiler())
    except InvalidCxxCompiler:
        return False


def _compile(module: fx.GraphModule, tensors: Sequence[Tensor]) -> Callable[..., Any]:
    import torch._inductor

    quiet = logging.getLogger("torch._inductor")
    level = quiet.level
    quiet.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # of torch, about itself
            function: Callable[..., Any] = torch._inductor.compile(module, list(tensors))
    finally:
        quiet.setLevel(level)
    return function


def _with_captured_as_inputs(module: fx.GraphModule) -> tuple[fx.GraphModule, list[Tensor]]:
    """A copy of the graph with captured tensors as further inputs: a compiler takes attributes for constants."""
    graph = fx.Graph()
    copied: dict[fx.Node, fx.Node] = {}
    captured: list[Tensor] = []
    for node in module.graph.nodes:  # inputs come first
        if node.op == "placeholder":
            copied[node] = graph.node_copy(node)
    for node in module.graph.nodes:
        if node.op == "get_attr" and str(node.target).startswith(CAPTURED):
            copied[node] = graph.placeholder(str(node.target))
            captured.append(getattr(module, str(node.target)))
    for node in module.graph.nodes:
        if node not in copied:
            copied[node] = graph.node_copy(node, lambda used: copied[used])
    return fx.GraphModule(module, graph), captured


def _show_progress(words: str) -> None:
    """Progress, for somebody who waits."""
    sys.stderr.write(words)
    sys.stderr.flush()
