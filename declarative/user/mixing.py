"""Tensors that broadcast against the unknown where that is hardly meant: a lost batch dimension, a shape mistaken."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

ELEMENTWISE = {
    getattr(owner, name)
    for name in ("add", "sub", "rsub", "mul", "div", "pow", "maximum", "minimum", "atan2")
    for owner in (torch, Tensor)
    if hasattr(owner, name)
} | {
    getattr(Tensor, f"__{side}{name}__")
    for name in ("add", "sub", "mul", "truediv", "pow")
    for side in ("", "r")
    if hasattr(Tensor, f"__{side}{name}__")
}


class Mixing(TorchFunctionMode):
    """Watches the first operations of a function: those between the unknown itself and another tensor as it is.

    Args:
        name: of the function.
        shapes: of the inputs as they were passed, batch first.
        size: the number of problems.
    """

    def __init__(self, name: str, shapes: Sequence[torch.Size | None], size: int) -> None:
        super().__init__()
        self.name, self.shapes, self.size = name, shapes, size
        self.inputs: dict[int, int] = {}  # numbers of the inputs, by identity
        self.u: Tensor | None = None
        self.found: str | None = None

    def begin(self, arguments: Sequence[Tensor]) -> None:
        """Take note of the arguments of the function."""
        self.inputs = {id(x): i for i, x in enumerate(arguments[: len(self.shapes)])}
        self.u = arguments[-1]

    def tell(self) -> None:
        """Warn of what was found."""
        if self.found is not None:
            warnings.warn(f"{self.name}: {self.found}", UserWarning, stacklevel=2)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in ELEMENTWISE and self.found is None and self.u is not None:
            other = [x for x in args[:2] if isinstance(x, Tensor) and x is not self.u]
            if len(args) > 1 and len(other) == 1 and any(x is self.u for x in args[:2]):
                self.found = self._look(self.u.shape, other[0])
        return func(*args, **(kwargs or {}))

    def _look(self, u: torch.Size, other: Tensor) -> str | None:
        """What is odd about an operation between u and another tensor, entry by entry."""
        i = self.inputs.get(id(other))
        passed = None if i is None else self.shapes[i]
        if passed is not None and not other.dim() and passed == u:
            return (
                f"input {i} of shape {tuple(passed)} is read as a batch of {self.size} scalars, each of which "
                f"broadcasts against u of shape {tuple(u)}. If it is one problem, pass x.unsqueeze(0), or say "
                "in_dims=None."
            )
        if i is None and other.shape == (self.size, *u):
            return (
                f"a tensor of shape {tuple(other.shape)} that the function captures broadcasts against u of shape "
                f"{tuple(u)} in every one of the {self.size} problems. If it has a row for each problem, pass it to "
                "the node as an input."
            )
        if not (other.numel() > 1 and u.numel() > 1 and other.shape != u):
            return None
        try:
            both = torch.broadcast_shapes(u, other.shape)
        except RuntimeError:  # which the operation will say
            return None
        if both.numel() <= max(u.numel(), other.numel()):
            return None
        which = "a tensor" if i is None else f"input {i}"
        return (
            f"u of shape {tuple(u)} and {which} of shape {tuple(other.shape)} for one problem broadcast to "
            f"{tuple(both)}. If each entry belongs to one of the other, give them one shape, such as by "
            f"start={tuple(other.shape)}; if not, say so by unsqueeze."
        )
