"""The inputs of the ready-made layers: one table of their dimensions, and scalar parameters such as a radius."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from declarative.inputs import REMEMBERED, check_devices, check_tensor
from declarative.problem import Function
from declarative.torchside import in_transform, without_values

Number = float | Tensor
Inputs = tuple[Tensor, ...]

# Within a call the same name is the same size. The batch may be 1 or missing: then all problems share the input.
DIMENSIONS: dict[str, tuple[str, ...]] = {
    "x": ("batch", "m"),
    "X": ("batch", "m", "m"),
    "M": ("batch", "m", "n"),
    "r": ("batch", "m"),
    "c": ("batch", "n"),
    "P": ("batch", "m", "m"),
    "Q": ("batch", "m", "m"),
    "q": ("batch", "m"),
    "A": ("batch", "p", "m"),
    "b": ("batch", "p"),
    "w": ("batch", "p"),
    "G": ("batch", "n", "m"),
    "h": ("batch", "n"),
    "gamma": ("batch",),
    "radius": ("batch",),
    "ridge": ("batch",),
    "scale": ("batch",),
    "temperature": ("batch",),
}


def arrange(
    owner: str,
    required: Sequence[str],
    optional: Sequence[str],
    xs: Sequence[object],
    empty: str = "",
    last: Tensor | None = None,
) -> list[Tensor | None]:
    """All the inputs of a call with the whole batch, and None for what was left out.

    Args:
        owner: whose inputs they are, for the messages.
        required: the names of the first inputs.
        optional: the names of those that may follow, or be None.
        xs: what the caller passed.
        empty: the dimensions that may have no entries.
        last: the last input, if it is left out.

    Raises:
        TypeError: the number of inputs is wrong, or one is not a floating-point tensor.
        ValueError: the shapes are not those of the table, or do not fit together.
    """
    names = (*required, *optional)
    if not len(required) <= len(xs) <= len(names):
        wanted = f"one input, {names[0]}" if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
        raise TypeError(f"{owner} takes {wanted}, but was called with {len(xs)} inputs.")
    xs = [*xs, *(None,) * (len(names) - len(xs))]
    if xs[-1] is None:
        xs[-1] = last
    tensors = [
        None if x is None and name in optional else _floating(name, x) for name, x in zip(names, xs, strict=True)
    ]
    shapes = _whole(names, tuple([None if x is None else (x.shape, x.device) for x in tensors]), empty)
    pairs = zip(tensors, shapes, strict=True)
    return [x if x is None or shape is None else x.expand(shape) for x, shape in pairs]


@functools.lru_cache(maxsize=REMEMBERED)
def _whole(
    names: tuple[str, ...], forms: tuple[tuple[torch.Size, torch.device] | None, ...], empty: str
) -> tuple[tuple[int, ...] | None, ...]:
    """The shapes with the whole batch, and None where an input has it already or was left out; worked out once."""
    check_devices([None if form is None else form[1] for form in forms])
    given = {name: form[0] for name, form in zip(names, forms, strict=True) if form is not None}
    sizes: dict[str, int] = {}
    for name, shape in given.items():
        _measure(name, shape, sizes, empty)
    if "batch" not in sizes:
        raise ValueError(
            f"{names[0]} must have shape {_written(names[0])}, or another input a batch dimension, but none has: "
            f"{names[0]}.unsqueeze(0) makes a batch of one."
        )
    whole = {name: (sizes["batch"], *shape[len(shape) - len(DIMENSIONS[name]) + 1 :]) for name, shape in given.items()}
    return tuple([None if whole.get(name) == given.get(name) else whole[name] for name in names])


def _floating(name: str, x: object) -> Tensor:
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} must be a tensor of shape {_written(name)}, but is {type(x).__name__}.")
    check_tensor(name, x)
    if not x.is_floating_point():
        raise TypeError(
            f"{name} must be a floating-point tensor, but is {x.dtype}: use {name}.to(torch.get_default_dtype())."
        )
    return x


def _measure(name: str, shape: torch.Size, sizes: dict[str, int], empty: str) -> None:
    """Compare the shape of an input with the sizes that are known, and add its own to them."""
    dims = DIMENSIONS[name]
    message = f"{name} must have shape {_written(name)}, but has shape {tuple(shape)}"
    if len(shape) not in (len(dims), len(dims) - 1):
        raise ValueError(f"{message}.")
    own: dict[str, int] = {}
    for dim, size in zip(dims[len(dims) - len(shape) :], shape, strict=True):
        if own.setdefault(dim, size) != size:
            raise ValueError(f"{message}: it must be square.")
        if not size and dim not in ("batch", *empty):
            raise ValueError(f"{message}: {dim} must be at least 1.")
        if dim == "batch" and 1 in (size, sizes.get(dim, 1)):
            sizes[dim] = sizes.get(dim, 1) if size == 1 else size
        elif sizes.setdefault(dim, size) != size:
            raise ValueError(f"{message}: {dim} is {sizes[dim]} for the inputs before it.")


def _written(name: str) -> str:
    return f"({', '.join(DIMENSIONS[name])}{',' * (len(DIMENSIONS[name]) == 1)})"


@dataclass(frozen=True, eq=False)
class ScalarParameter:
    """A number that a layer is made with, unless it is the last input of a call, one for each problem.

    Attributes:
        name: what it is called.
        value: with which the layer was made: a number, or a tensor that is passed with every call.
        may_vanish: whether it may be zero.
    """

    name: str
    value: Number
    may_vanish: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.value, Tensor):
            return
        if not isinstance(self.value, int | float):
            raise TypeError(f"{self.name} must be a number or a tensor, but is {type(self.value).__name__}.")
        if not 0 <= self.value < float("inf") or not (self.value or self.may_vanish):
            raise ValueError(f"{self.name} must be {self._range} and finite, but is {self.value}.")

    @property
    def _range(self) -> str:
        return "not negative" if self.may_vanish else "positive"

    def check(self, x: Tensor) -> None:
        """Refuse a tensor with an entry that it must not have; a NaN is left to the status of its problem."""
        if visible(x) and bool(((x < 0) if self.may_vanish else (x <= 0)).any()):
            raise ValueError(f"{self.name} must be {self._range}, but has an entry of {x.min().item():g}.")

    def split(self, xs: Sequence[Any], dims: int = 1) -> tuple[tuple[Any, ...], Any]:
        """The other inputs, and the parameter: the last input if it alone has so few dimensions, or the number."""
        return (tuple(xs[:-1]), xs[-1]) if xs[-1].dim() == dims else (tuple(xs), self.value)

    def columns(self, xs: Sequence[Tensor]) -> Inputs:
        """The other inputs, and the parameter as a column, (batch, 1)."""
        others, value = self.split(xs)
        if not isinstance(value, Tensor):
            return *others, xs[0].new_full((len(xs[0]), 1), float(value))
        self.check(value)
        return *others, value.unsqueeze(-1)


@dataclass(frozen=True, eq=False)
class Bound:
    """A function of (*others, parameter, u) of one problem as one of (*xs, u)."""

    function: Function
    scalar: ScalarParameter

    def __call__(self, *arguments: Tensor) -> Tensor:
        others, value = self.scalar.split(arguments[:-1], dims=0)
        return self.function(*others, value, arguments[-1])


def visible(*xs: Tensor) -> bool:
    """Whether a decision can depend on the values of these tensors: outside of ``torch.func``, and there are values."""
    return not in_transform() and not without_values(xs)


def require_positive(**values: float) -> None:
    """Refuse parameters that are not finite positive numbers."""
    for name, value in values.items():
        if not isinstance(value, int | float):
            raise TypeError(f"{name} must be a number, but is {type(value).__name__}.")
        if not 0 < value < float("inf"):
            raise ValueError(f"{name} must be positive and finite, but is {value}.")


def require_count(**values: int) -> None:
    """Refuse what is not a positive whole number that a computer could count to."""
    for name, value in values.items():
        if not isinstance(value, int) or not 1 <= value < 2**31:
            raise ValueError(f"{name} must be a positive int, but is {value!r}.")
