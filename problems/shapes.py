"""The inputs of the ready-made layers: what their dimensions are called, and one place that checks them."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from declarative.inputs import check_tensor

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
    given = {name: x for name, x in zip(names, xs, strict=False) if x is not None or name in required}
    tensors = {name: _floating(name, x) for name, x in given.items()}
    sizes: dict[str, int] = {}
    for name, x in tensors.items():
        _measure(name, x, sizes, empty)
    if "batch" not in sizes:
        raise ValueError(
            f"{names[0]} must have shape {_written(names[0])}, or another input a batch dimension, but none has: "
            f"{names[0]}.unsqueeze(0) makes a batch of one."
        )
    whole = {name: _with_batch(x, len(DIMENSIONS[name]), sizes["batch"]) for name, x in tensors.items()}
    return [whole.get(name) for name in names]


def _with_batch(x: Tensor, dims: int, size: int) -> Tensor:
    own = x.shape[x.dim() - dims + 1 :]
    return x if x.shape == (size, *own) else x.expand(size, *own)


def _floating(name: str, x: object) -> Tensor:
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} must be a tensor of shape {_written(name)}, but is {type(x).__name__}.")
    check_tensor(name, x)
    if not x.is_floating_point():
        raise TypeError(
            f"{name} must be a floating-point tensor, but is {x.dtype}: use {name}.to(torch.get_default_dtype())."
        )
    return x


def _measure(name: str, x: Tensor, sizes: dict[str, int], empty: str) -> None:
    """Compare the shape of an input with the sizes that are known, and add its own to them."""
    dims = DIMENSIONS[name]
    message = f"{name} must have shape {_written(name)}, but has shape {tuple(x.shape)}"
    if x.dim() not in (len(dims), len(dims) - 1):
        raise ValueError(f"{message}.")
    own: dict[str, int] = {}
    for dim, size in zip(dims[len(dims) - x.dim() :], x.shape, strict=True):
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
