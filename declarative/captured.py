"""Tensors that functions reach other than through their arguments must not change between the two passes of a call.

The backward pass evaluates derivatives of the functions at the solution. If a tensor that they capture has been changed
in place by then, these are derivatives of another problem than the one that was solved. PyTorch refuses that for the
tensors that it has saved itself; so do nodes.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from .functions import as_written, functions_of
from .problem import Problem
from .torchside import versions

CHANGED = (
    "a tensor that the functions of a node capture was changed in place between its forward and its backward pass, so "
    "that this would be the gradient of another problem than the one that was solved. Change it after backward(), or "
    "pass it as an input, with in_dims=None if the batch shares it."
)


@dataclass(frozen=True)
class Captured:
    """What functions capture, as far as they tell, and how often each tensor had been changed in place by then."""

    tensors: tuple[Tensor, ...]
    versions: tuple[int, ...]

    @classmethod
    def by(cls, problem: Problem) -> Captured:
        """What the functions of a problem capture now.

        Example:
            >>> import torch
            >>> from declarative.problem import Problem
            >>> weight = torch.ones(2)
            >>> found = Captured.by(Problem(lambda x, u: (weight * (u - x)).sum()))
            >>> found.refuse_changes()
            >>> weight.mul_(2).sum()
            tensor(4.)
            >>> found.refuse_changes()
            Traceback (most recent call last):
            RuntimeError: a tensor that the functions of a node capture was changed in place between its forward ...
        """
        functions = functions_of(problem).values()
        reached = (value for function in functions for value in _reached(as_written(function)))
        tensors = tuple(
            x for value in reached for x in _tensors(value) if x.is_floating_point() and not x.is_inference()
        )
        return cls(tensors, tuple(versions(tensors)))

    def refuse_changes(self) -> None:
        """Raise if a tensor has been changed since.

        Raises:
            RuntimeError: one has.
        """
        if tuple(versions(self.tensors)) != self.versions:
            raise RuntimeError(CHANGED)


def _tensors(value: object) -> Iterable[Tensor]:
    if isinstance(value, Tensor):
        return (value,)
    return (*value.parameters(), *value.buffers()) if isinstance(value, nn.Module) else ()


def _reached(function: Any) -> Iterator[object]:
    """What a function can reach other than through its arguments: by what it is bound to, closes over or names."""
    if isinstance(function, functools.partial):
        yield from (*function.args, *function.keywords.values())
        function = function.func
    yield from vars(owner).values() if hasattr(owner := getattr(function, "__self__", None), "__dict__") else ()
    code = getattr(function, "__code__", None)
    if code is None:
        return
    yield from (function.__globals__[name] for name in code.co_names if name in function.__globals__)
    yield from (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not filled yet
            continue
