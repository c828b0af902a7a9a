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

NAMES = ("objective", "equality", "inequality")


@dataclass(frozen=True)
class UserFunction:
    """A function of ``(*xs, *weights, u)``, from what the user has written.

    Attributes:
        name: ``objective``, ``equality`` or ``inequality``.
        written: the user's function of ``(*xs, u)``.
        nesting: how the user's unknowns are nested, if there are several; u is then flat.
        weights: the modules of this call, if this is a function with parameters, or others of the node are.
        squares: whether it returns residuals, and the objective is half the sum of their squares.
        returned: how the constraints were nested that the user's function has returned, by the shapes of its arguments.
            A cache: what is recorded is called but once.
    """

    name: str
    written: Callable[..., Any]
    nesting: Nesting | None = None
    weights: Weights | None = None
    squares: bool = False
    returned: dict[Hashable, Nesting] = field(default_factory=dict, compare=False, repr=False)

    def __call__(self, *arguments: Tensor) -> Any:
        if self.squares:
            return self.residuals(*arguments).square().sum() / 2
        value = self._value(*arguments)
        if self.name == "objective":
            return value
        *xs, u = arguments
        return self._flat((*(x.shape for x in xs[: len(xs) - count_weights(self)]), u.shape), value, u)

    def residuals(self, *arguments: Tensor) -> Tensor:
        """What the user's function returns, as one vector."""
        value = self._value(*arguments)
        parts, _, _ = flatten_tree(value)
        if not parts or not all(isinstance(part, Tensor) and part.is_floating_point() for part in parts):
            raise TypeError(
                "residuals must return a floating-point tensor, or a dict or tuple of such, but returned "
                f"{getattr(value, 'dtype', type(value).__name__)}."
            )
        return torch.cat([part.reshape(-1) for part in parts])

    def linearised(self, *arguments: Tensor) -> Tensor:
        """Half the sum of squares of r + J (u - here), with r and J as they are here: its Hessian is J'J.

        Value and slope are those of the objective. J times a vector is the transpose of J' times one, transposed.
        """
        *xs, u = arguments
        here = u.detach()
        result: Any = torch.func.vjp(lambda w: self.residuals(*xs, w), here)
        values, pull = result
        push = torch.func.vjp(lambda row: pull(row)[0], torch.zeros_like(values))[1]
        half: Tensor = (values + push(u - here)[0]).square().sum() / 2
        return half

    def _value(self, *arguments: Tensor) -> Any:
        *xs, u = arguments
        own = len(xs) - count_weights(self)
        return self._call(xs[:own], xs[own:], u if self.nesting is None else self.nesting.split(u))

    def _flat(self, shapes: tuple[torch.Size, ...], value: Any, u: Tensor) -> Any:
        """Constraints as one vector, in the order in which they first came for arguments of these shapes."""
        if isinstance(value, Tensor) or not (is_nested(value) or isinstance(value, list)):
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


def functions_of(problem: Any) -> dict[str, Any]:
    """The functions of a problem by name, those that there are."""
    return {name: function for name in NAMES if (function := getattr(problem, name)) is not None}


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
