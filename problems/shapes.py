"""The inputs of the ready-made layers: what their dimensions are called, and one place that checks them."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from declarative.inputs import REMEMBERED, check_devices, check_tensor

# Within a call the same name is the same size. The batch may be 1 or missing: then all problems share the input.
DIMENSIONS: dict[str, tuple[str, ...]] = {
    "x": ("batch", "m"),
    "X": ("batch", "m", "m"),
    "M": ("batch", "m", "n"),
    "r": ("batch", "m"),
    "c": ("batch", "n"),
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
    owner: str, required: Sequence[str], optional: Sequence[str], xs: Sequence[object], empty: str = ""
) -> list[Tensor | None]:
    """All the inputs of a call with the whole batch, and None for what was left out.

    Args:
        owner: whose inputs they are, for the messages.
        required: the names of the first inputs.
        optional: the names of those that may follow, or be None.
        xs: what the caller passed.
        empty: the dimensions that may have no entries.

    Raises:
        TypeError: the number of inputs is wrong, or one is not a floating-point tensor.
        ValueError: the shapes are not those of the table, or do not fit together.
    """
    names = (*required, *optional)
    if not len(required) <= len(xs) <= len(names):
        wanted = f"one input, {names[0]}" if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
        raise TypeError(f"{owner} takes {wanted}, but was called with {len(xs)} inputs.")
    tensors = [
        None if x is None and name not in required else _floating(name, x) for name, x in zip(names, xs, strict=False)
    ]
    shapes = _whole(names, tuple([None if x is None else (x.shape, x.device) for x in tensors]), empty)
    missing = (None,) * (len(names) - len(tensors))
    pairs = zip(tensors, shapes, strict=True)
    return [*(x if x is None or shape is None else x.expand(shape) for x, shape in pairs), *missing]


@functools.lru_cache(maxsize=REMEMBERED)
def _whole(
    names: tuple[str, ...], forms: tuple[tuple[torch.Size, torch.device] | None, ...], empty: str
) -> tuple[tuple[int, ...] | None, ...]:
    """The shapes with the whole batch, and None where an input has it already or was left out; worked out once."""
    check_devices([None if form is None else form[1] for form in forms])
    given = {name: form[0] for name, form in zip(names, forms, strict=False) if form is not None}
    sizes: dict[str, int] = {}
    for name, shape in given.items():
        _measure(name, shape, sizes, empty)
    if "batch" not in sizes:
        raise ValueError(
            f"{names[0]} must have shape {_written(names[0])}, or another input a batch dimension, but none has: "
            f"{names[0]}.unsqueeze(0) makes a batch of one."
        )
    whole = {name: (sizes["batch"], *shape[len(shape) - len(DIMENSIONS[name]) + 1 :]) for name, shape in given.items()}
    return tuple([None if whole.get(name) == given.get(name) else whole[name] for name in names[: len(forms)]])


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
