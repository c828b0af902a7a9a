"""The numbers that a layer is made with, or takes as an input."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from declarative.problem import Function
from declarative.torchside import in_transform, without_values

Number = float | Tensor


@dataclass(frozen=True, eq=False)
class Setting:
    """A number that a layer is made with, unless it is the last input of a call, one for each problem.

    Attributes:
        name: what it is called.
        value: with which the layer was made: a number, or a tensor that is passed with every call.
        after: how many inputs there are without it.
        may_vanish: whether it may be zero.
    """

    name: str
    value: Number
    after: tuple[int, ...] = (1,)
    may_vanish: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.value, Tensor):
            return
        if not isinstance(self.value, int | float):
            raise TypeError(f"{self.name} must be a number or a tensor, but is {type(self.value).__name__}.")
        if not 0 <= self.value < float("inf") or not (self.value or self.may_vanish):
            raise ValueError(f"{self.name} must be {self._wanted} and finite, but is {self.value}.")

    @property
    def _wanted(self) -> str:
        return "not negative" if self.may_vanish else "positive"

    def check(self, x: Tensor) -> None:
        """Refuse a tensor with an entry that it must not have; a NaN is left to the status of its problem."""
        if visible(x) and bool(((x < 0) if self.may_vanish else (x <= 0)).any()):
            raise ValueError(f"{self.name} must be {self._wanted}, but has an entry of {x.min().item():g}.")

    def split(self, xs: Sequence[Any]) -> tuple[tuple[Any, ...], Any]:
        """The other inputs, and the setting: the number, or the last of the tensors."""
        return (tuple(xs), self.value) if len(xs) in self.after else (tuple(xs[:-1]), xs[-1])

    def columns(self, xs: Sequence[Tensor], like: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
        """The other inputs in the precision of a tensor, and the setting as a column, (batch, 1)."""
        others, value = self.split([x.to(like.dtype) for x in xs])
        if not isinstance(value, Tensor):
            return others, like.new_full((len(like), 1), float(value))
        self.check(value)
        return others, value.unsqueeze(-1)

    def bind(self, function: Function) -> Function:
        """A function of (*others, setting, u) as one of (*xs, u)."""
        return Bound(self, function)


@dataclass(frozen=True, eq=False)
class Bound:
    """A function of a problem with its setting."""

    setting: Setting
    function: Function

    def __call__(self, *arguments: Tensor) -> Tensor:
        others, value = self.setting.split(arguments[:-1])
        return self.function(*others, value, arguments[-1])


def visible(*xs: Tensor) -> bool:
    """Whether a decision can depend on the values of these tensors: outside of ``torch.func``, and there are values."""
    return not in_transform() and not without_values(xs)


def require_positive(**values: float) -> None:
    """Refuse parameters that are not finite positive numbers."""
    for name, value in values.items():
        if isinstance(value, Tensor) or not isinstance(value, int | float):
            raise TypeError(f"{name} must be a number, but is {type(value).__name__}.")
        if not 0 < value < float("inf"):
            raise ValueError(f"{name} must be positive and finite, but is {value}.")


def require_count(**values: int) -> None:
    """Refuse what is not a positive whole number that a computer could count to."""
    for name, value in values.items():
        if not isinstance(value, int) or not 1 <= value < 2**31:
            raise ValueError(f"{name} must be a positive int, but is {value!r}.")
