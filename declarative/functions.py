"""The user's functions as the library calls them: of tensors, to one tensor; several unknowns are one flat row."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .modules import Weights, unbound
from .torchside import flatten_tree
from .unknowns import Nesting, is_nested


@dataclass(frozen=True)
class UserFunction:
    """A function of ``(*xs, *weights, u)``, from what the user has written.

    Attributes:
        name: ``objective``, ``equality`` or ``inequality``.
        written: the user's function of ``(*xs, u)``.
        nesting: how the user's unknowns are nested, if there are several; u is then flat.
        weights: the modules of this call, if this is a function with parameters, or others of the node are.
        returned: how the constraints were nested that the user's function has returned, by the shapes of its arguments.
            A cache: what is recorded is called but once.
    """

    name: str
    written: Callable[..., Any]
    nesting: Nesting | None = None
    weights: Weights | None = None
    returned: dict[Hashable, Nesting] = field(default_factory=dict, compare=False, repr=False)

    def __call__(self, *arguments: Tensor) -> Any:
        *xs, u = arguments
        own = len(xs) - count_weights(self)
        value = self._call(xs[:own], xs[own:], u if self.nesting is None else self.nesting.split(u))
        if self.name == "objective":
            return value
        return self._flat((*(x.shape for x in xs[:own]), u.shape), value, u)

    def _flat(self, shapes: tuple[torch.Size, ...], value: Any, u: Tensor) -> Any:
        """Constraints as one vector, in the order in which they first came for arguments of these shapes."""
        if not (is_nested(value) or isinstance(value, list)):
            self.returned.pop(shapes, None)
            return value
        now, before = Nesting.of(value, self.name), self.returned.get(shapes)
        nesting = self.returned[shapes] = before if before is not None and before.fits(now) else now
        return nesting.join(value) if nesting.shapes else u.new_zeros(0)

    def _call(self, xs: Sequence[Tensor], weights: Sequence[Tensor], u: Any) -> Any:
        if self.weights is None or self.name not in self.weights.owners:
            return self.written(*xs, u)
        return self.weights.call(self.name, unbound(self.written), weights, (*xs, u))

    def nesting_returned(self, shapes: Sequence[torch.Size]) -> Nesting | None:
        """How the constraints are nested for arguments of these shapes; None: they are one vector."""
        return self.returned.get(tuple(shapes))


def no_objective(*arguments: Any) -> Tensor:
    """The objective of a node that solves equations: zero, whatever the unknowns are."""
    parts, _, _ = flatten_tree(arguments[-1])
    return 0.0 * torch.stack([part.sum() for part in parts]).sum()


def has_objective(function: Callable[..., Any]) -> bool:
    """Whether an objective is one that was given."""
    return as_written(function) is not no_objective


def as_written(function: Callable[..., Any]) -> Callable[..., Any]:
    """What the user has written, of which the function is made."""
    return function.written if isinstance(function, UserFunction) else function


def nesting_of(function: Callable[..., Any]) -> Nesting | None:
    """How the unknowns of a function are nested, if there are several."""
    return function.nesting if isinstance(function, UserFunction) else None


def count_weights(function: Callable[..., Any]) -> int:
    """How many tensors of modules a function takes after the user's inputs."""
    weights = function.weights if isinstance(function, UserFunction) else None
    return 0 if weights is None else len(weights.keys)
