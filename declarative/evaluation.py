"""How functions of a batch are evaluated where they are not simply called: what a batch asks, and who answers."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple, Protocol

from torch import Tensor


class Request(NamedTuple):
    """A function of tensors that is to be evaluated.

    Attributes:
        key: tells it from other functions.
        function: of the tensors.
        tensors: its arguments; None stays None.
        functions: those of the user that it is made of, and an example of their arguments for a batch of one.
        compared: how many outputs, the first ones, a recording has to reproduce to nearly all digits; None for all.
            Those after them follow from systems of equations, which rounding errors may make anything of.
        batched: which tensors have a row for each problem, if every problem is by itself; else None.
    """

    key: Hashable
    function: Callable[..., Any]
    tensors: tuple[Tensor | None, ...]
    functions: Callable[[], tuple[Callable[..., Any], Sequence[Tensor]]]
    compared: int | None = None
    batched: tuple[bool | None, ...] | None = None


class Tape(Protocol):
    """A function of one problem as a program of scalar instructions (``recording/tape``)."""

    machine: Any  # of the core, which runs it

    def inputs(self, tensors: Sequence[Tensor | None], count: int) -> tuple[Any, Any]:
        """What each of so many problems reads, and what all read."""

    def begin_of(self, argument: int) -> int:
        """Where a tensor begins in what each problem reads; -1 if it is not read."""


class Evaluator(Protocol):
    """How functions of tensors are evaluated where they are not simply called."""

    compiling: bool  # whether each new shape takes long

    def run(self, request: Request) -> Any:
        """The function of the tensors."""

    def tape(self, request: Request) -> Tape | None:
        """The function as a tape, if it can and should be evaluated by one."""
