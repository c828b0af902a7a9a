"""The user's functions as the library calls them: plain functions of tensors that return one tensor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from .modules import Weights, unbound


@dataclass(frozen=True)
class UserFunction:
    """A function of ``(*xs, *weights, u)``, from what the user has written.

    Attributes:
        name: ``objective``, ``equality`` or ``inequality``.
        written: the user's function of ``(*xs, u)``.
        weights: the modules of this call, if it is a function with parameters, or others of the node are.
    """

    name: str
    written: Callable[..., Any]
    weights: Weights | None = None

    def __call__(self, *arguments: Tensor) -> Any:
        *xs, u = arguments
        if self.weights is None:
            return self.written(*xs, u)
        own = len(xs) - len(self.weights.keys)
        if self.name not in self.weights.owners:
            return self.written(*xs[:own], u)
        return self.weights.call(self.name, unbound(self.written), xs[own:], (*xs[:own], u))


def as_written(function: Callable[..., Any]) -> Callable[..., Any]:
    """What the user has written, of which the function is made."""
    return function.written if isinstance(function, UserFunction) else function


def count_weights(function: Callable[..., Any]) -> int:
    """How many tensors of modules a function takes after the user's inputs."""
    weights = function.weights if isinstance(function, UserFunction) else None
    return 0 if weights is None else len(weights.keys)
