"""Where an iterative solver starts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .inputs import Inputs, check_tensor, refuse_without_values
from .solution import Solution
from .torchside import flatten_tree
from .unknowns import Nesting, Unknowns, is_nested, is_shape, is_whole

Nested = dict[str, Any] | tuple[Any, ...]
OneStart = int | Sequence[int] | Tensor | Callable[..., Any] | Unknowns | dict[str, Any]
Start = OneStart | list[OneStart] | None


def check_start(start: Start) -> Start:
    """Refuse what cannot be a start before anything is solved; numbers become shapes, several unknowns a row."""
    if isinstance(start, list) and start and not is_shape(start):
        return [_check_one_start(one) for one in start]
    return None if start is None else _check_one_start(start)  # type: ignore[arg-type]


def _check_one_start(start: OneStart) -> OneStart:
    if callable(start) or isinstance(start, Unknowns):
        return start
    if is_nested(start):
        return _check_nested(start)
    checked = _check_part("start", start)
    if checked is None:
        raise TypeError(
            "start must be the shape of u (an int or ints), a tensor, a dict or a tuple of these for several unknowns, "
            "a function (*xs) -> u for one problem, or a list of tensors or functions to try, but is "
            f"{start!r}."
        )
    return checked


def _check_part(name: str, start: object) -> Tensor | torch.Size | None:
    """The start of one unknown; None if it can be none."""
    if isinstance(start, Tensor):
        check_tensor(name, start)
        refuse_without_values((start,))
        shape = start.shape
    elif is_shape(start):
        entries: Any = (start,) if is_whole(start) else start
        if not all(0 <= n < 2**31 for n in entries):
            return None
        shape = torch.Size(entries)
    else:
        return None
    if shape.numel() == 0:
        raise ValueError(f"{name} has shape {tuple(shape)}: u must have at least one entry.")
    return start if isinstance(start, Tensor) else shape


def _check_nested(start: object) -> Unknowns:
    parts, names, tree = flatten_tree(start, is_leaf=is_shape)
    if not parts:
        raise ValueError(f"start is {start!r}: there must be at least one unknown.")
    checked = []
    for part, name in zip(parts, names, strict=True):
        one = _check_part(f"start{name}", part)
        if one is None:
            raise TypeError(
                f"start{name} must be the shape of an unknown (an int or ints) or a tensor, but is {part!r}. A start "
                "that depends on the inputs is one function for all unknowns, start=lambda x: {...}."
            )
        checked.append(one)
    shapes = tuple(one.shape if isinstance(one, Tensor) else one for one in checked)
    nesting = Nesting(tree, names, shapes)
    return Unknowns(nesting, _row(nesting, checked))


def _row(nesting: Nesting, parts: Sequence[Tensor | torch.Size]) -> Tensor | torch.Size:
    """The start as a row; unknowns of which only the shape is given start where they would without the others."""
    if not any(isinstance(part, Tensor) for part in parts):
        return torch.Size([nesting.size])
    rows = [part if isinstance(part, Tensor) else _irregular_point(part) for part in parts]
    return torch.cat([row.detach().to(device="cpu", dtype=torch.float64).reshape(-1) for row in rows])


def warm_start(start: object, inputs: Inputs, nesting: Nesting | None) -> tuple[Tensor, ...]:
    """A start that was passed with the call: a point for each problem and, of a solution, its multipliers."""
    if isinstance(start, Solution):
        return _warm_point(start.y, inputs, nesting), *_warm_multipliers(start, inputs)
    return (_warm_point(start, inputs, nesting),)


def _warm_multipliers(start: Solution, inputs: Inputs) -> tuple[Tensor, ...]:  # (size, k), or nothing
    if start.rows is None:
        return ()
    rows = start.rows.detach() if inputs.batched else start.rows.detach().unsqueeze(0)
    usable = rows.dim() == 2 and len(rows) == inputs.size
    return (rows.to(device=inputs.xs[0].device, dtype=inputs.work).nan_to_num(0.0),) if usable else ()


def _warm_point(start: object, inputs: Inputs, nesting: Nesting | None) -> Tensor:  # (size, *shape)
    start = start if nesting is None else nesting.join(start, "start")
    if not isinstance(start, Tensor):
        raise TypeError(f"start must be a tensor like the node's output, but is {type(start).__name__}.")
    check_tensor("start", start)
    refuse_without_values((start,))
    start = start.detach() if inputs.batched else start.detach().unsqueeze(0)
    if start.dim() == 0 or start.shape[0] != inputs.size:
        raise ValueError(
            f"start must have one point for each of the {inputs.size} problems, like the node's output, but has shape "
            f"{tuple(start.shape)}."
        )
    return start.to(device=inputs.xs[0].device, dtype=inputs.work)


def initial_points(
    start: OneStart | None,
    xs: tuple[Tensor, ...],
    in_dims: tuple[int | None, ...],
    size: int,
    dtype: torch.dtype,
) -> Tensor:  # (size, *shape)
    """Where an iterative solver starts; for a shape, the first of the :func:`default_points`."""
    device = xs[0].device
    if isinstance(start, torch.Size):
        one = _irregular_point(start, device).to(dtype)
    elif isinstance(start, Tensor):
        one = start.detach().to(device=device, dtype=dtype)
    elif callable(start):
        return _called_start(start, xs, in_dims, size, dtype)
    else:
        raise ValueError("this solver needs a start.")
    return one.expand(size, *one.shape).clone()


def _irregular_point(shape: torch.Size, device: torch.device | None = None) -> Tensor:
    """A fixed point within half a unit of the origin.

    The origin itself would be a trap: it is a stationary point of many problems, and the gradient of ||u||^2 = 1
    vanishes there. So would be any other point of symmetry.
    """
    golden = 0.5 * (math.sqrt(5) - 1)
    steps = np.arange(1.0, math.prod(shape) + 1)
    return torch.from_numpy((steps * golden % 1.0 - 0.5).reshape(shape)).to(device)


def default_points(first: Tensor) -> Iterator[Tensor]:  # (size, *shape)
    """Where to start if nothing but the shape of u is known: ``first``, then places where logarithms are defined.

    Between 1/4 and 3/4; with a sum below 1; near 0; above 1; below 0. All are irregular like the first.
    """
    yield first
    yield 0.25 + first.abs()
    yield (1.0 + 0.2 * first) / (1.1 * first[:1].numel() + 1.0)
    yield 1e-3 * (1.0 + first)
    yield 2.0 + first
    yield -0.25 - first.abs()


def _called_start(
    start: Callable[..., Tensor],
    xs: tuple[Tensor, ...],
    in_dims: tuple[int | None, ...],
    size: int,
    dtype: torch.dtype,
) -> Tensor:
    plain = [x.detach() for x in xs]
    if not size:  # no problem to ask: the shape is that of a blank one
        blank = [x if dim is None else x.new_zeros(x.shape[1:]) for x, dim in zip(plain, in_dims, strict=True)]
        return start(*blank).to(dtype).unsqueeze(0)[:0]
    if all(dim is None for dim in in_dims):
        return start(*plain).detach().to(dtype).unsqueeze(0).clone()
    value: object = torch.vmap(start, in_dims=in_dims)(*plain)
    if not isinstance(value, Tensor):
        raise TypeError(f"start must return a tensor, but returned {type(value).__name__}.")
    return value.detach().to(dtype)
