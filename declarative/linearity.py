"""Whether a value is affine in u, so that its derivative is the same at every point: a proof from the operations.

A value is affine if every operation on the way from u to it is linear in what depends on u, and nothing else of it
depends on u. The way is the graph that autograd keeps. What autograd does not track - a comparison, an index, a copy
that is detached - comes from operations that are not on a short list; where there is one, nothing is concluded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import Node
from torch.overrides import TorchFunctionMode

from .torchside import PLAIN, requires_gradient, saved_exponent

# Functions of torch by which a value may be computed such that its graph says what it depends on (whether they are
# linear is the graph's business), and those that ask for nothing but shapes and types.
TRACKED_NAMES = {
    "add", "sub", "rsub", "mul", "div", "true_divide", "divide", "multiply", "subtract", "neg", "negative",
    "positive", "square", "pow", "matmul", "mm", "mv", "bmm", "dot", "inner", "vdot", "outer", "einsum", "linear",
    "sum", "mean", "trace", "cumsum", "diff", "cat", "concat", "concatenate", "stack", "hstack", "vstack", "reshape",
    "view", "view_as", "flatten", "unflatten", "ravel", "squeeze", "unsqueeze", "transpose", "swapaxes", "t",
    "permute", "movedim", "expand", "expand_as", "broadcast_to", "repeat", "tile", "diagonal", "diag", "unbind",
    "split", "chunk", "narrow", "select", "flip", "roll", "clone", "contiguous", "to", "double", "float", "type_as",
    "__rsub__", "__radd__", "__rmul__", "__getitem__",
}  # fmt: skip
QUERY_NAMES = {
    "dim", "ndimension", "size", "numel", "__len__", "is_floating_point", "new_zeros", "new_ones", "new_full",
    "zeros_like", "ones_like",
}  # fmt: skip
ATTRIBUTES = ("shape", "dtype", "device", "ndim", "T", "mT", "requires_grad")
OWNERS = (torch, Tensor, Tensor.__base__, torch.nn.functional)  # others have functions of these names, too
TRACKED, QUERIES = (
    {getattr(owner, name) for owner in OWNERS for name in names if hasattr(owner, name)}
    for names in (TRACKED_NAMES, QUERY_NAMES)
)

# Nodes of the graph that are linear in all that they get (a number at the end of their names is that of the overload);
# that scale it by a number; and that are linear in each of two factors, and where these stand.
LINEAR = {
    "Add", "Sub", "Rsub", "Neg", "Sum", "Mean", "Trace", "Cumsum", "Cat", "Stack", "View", "ReshapeAlias",
    "UnsafeView", "Squeeze", "Unsqueeze", "Transpose", "T", "Permute", "Expand", "Repeat", "Diagonal", "DiagEmbed",
    "Unbind", "Split", "SplitWithSizes", "Slice", "Select", "Narrow", "Flip", "Roll", "Clone", "Alias",
    "SelectBackward", "SliceBackward", "DiagonalBackward",
}  # fmt: skip
SCALED = ("MulBackward1", "DivBackward1")  # by a number
FACTORS = {
    **{f"{name}Backward0": (0, 1) for name in ("Mul", "Mm", "Mv", "Bmm", "Dot")},
    **{f"{name}Backward0": (1, 2) for name in ("Addmm", "Addmv", "Baddbmm")},
}


def watched(function: Callable[..., Any], *arguments: Any) -> tuple[Any, bool]:
    """What a function returns, and whether autograd tracks all that it does with what requires a gradient."""
    with _Watch() as watch:
        result = function(*arguments)
    return result, watch.tracked


class _Watch(TorchFunctionMode):
    """Looks at the operations on tensors that require a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.tracked = True

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if self.tracked and any(requires_gradient(x) for x in _tensors((*args, *kwargs.values()))):
            self.tracked = all(kind in PLAIN for kind in types) and _is_tracked(func, args, result)
        return result


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _is_tracked(func: Any, args: Any, result: Any) -> bool:
    if getattr(func, "__name__", "") == "__get__":
        name = getattr(func.__self__, "__name__", "")
        return name in ATTRIBUTES and getattr(Tensor, name) is func.__self__
    if func is Tensor.__getitem__:
        index = args[1] if isinstance(args[1], tuple) else (args[1],)
        if not all(one is None or one is ... or isinstance(one, int | slice) for one in index):
            return False
    return func in QUERIES or (func in TRACKED and all(requires_gradient(x) for x in _tensors((result,))))


def is_affine(y: Tensor, u: Tensor) -> bool:
    """Whether each operation in the graph of a value is linear in what it gets from the others, and all begin at u.

    Example:
        >>> import torch
        >>> u = torch.ones(2, requires_grad=True)
        >>> is_affine(3 * u.sum() - 1, u), is_affine(u.square().sum(), u), is_affine(u * u.sum(), u)
        (True, False, False)
    """
    todo: list[Node | None] = [y.grad_fn]
    seen: set[Node] = set()
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        before = [parent for parent, _ in node.next_functions]
        if not (_is_linear(node, before) or getattr(node, "variable", None) is u):
            return False
        todo += before
    return True


def _is_linear(node: Node, before: list[Node | None]) -> bool:
    name = node.name().rpartition("::")[2]
    if name in SCALED or name.rstrip("0123456789").removesuffix("Backward") in LINEAR:
        return True
    if name in FACTORS:
        return any(before[place] is None for place in FACTORS[name])
    if name == "DivBackward0":
        return before[1] is None
    return name == "PowBackward0" and saved_exponent(node) == 1
