"""Where an iterative solver starts."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..arguments import is_integer
from ..inputs import Inputs, check_tensor, first_problem, refuse_without_values
from ..torchside import flatten_tree, plain
from .functions import functions_of, nesting_of
from .messages import batched_start_message
from .unknowns import Nesting, Unknowns, is_nested, is_shape

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
        entries: Any = (start,) if is_integer(start) else start
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


def describe_start(start: Start) -> str:
    """The shape of u, as far as a start tells, or who does."""
    one = start[0] if isinstance(start, list) else start
    if isinstance(one, Unknowns):
        return str(one.nesting)
    if isinstance(one, Tensor | torch.Size):
        return str(tuple(one.shape if isinstance(one, Tensor) else one))
    return f"as {'the closed form' if one is None else 'start'} returns it"


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
    xs = tuple(x.detach() for x in xs)
    if not size:  # no problem to ask: the shape is that of a blank one
        return start(*first_problem(xs, in_dims)).to(dtype).unsqueeze(0)[:0]
    if all(dim is None for dim in in_dims):
        return start(*xs).detach().to(dtype).unsqueeze(0).clone()
    value: object = torch.vmap(start, in_dims=in_dims)(*xs)
    if not isinstance(value, Tensor):
        raise TypeError(f"start must return a tensor, but returned {type(value).__name__}.")
    return value.detach().to(dtype)


def find_nesting(start: Start, inputs: Inputs) -> tuple[Nesting | None, Start]:
    """How the unknowns are nested, and the start with one flat unknown. A function of the inputs is asked once.

    Raises:
        ValueError: several starts are for different unknowns.
    """
    starts = start if isinstance(start, list) else [start]
    nestings = [_nesting_of_start(one, inputs) for one in starts]
    first = nestings[0]
    if any(nesting != first and not (nesting and nesting.fits(first)) for nesting in nestings):
        shown = " and ".join(str(nesting or "one unknown") for nesting in nestings)
        raise ValueError(f"the starts to try must be for the same unknowns, but are for {shown}.")
    if first is None:
        return None, start
    rows = [_in_order_of(first, one) if isinstance(one, Unknowns) else one for one in starts]
    return first, rows if isinstance(start, list) else rows[0]  # type: ignore[return-value]


def _in_order_of(nesting: Nesting, start: Unknowns) -> Tensor | torch.Size:
    if not isinstance(start.row, Tensor) or start.nesting == nesting:
        return start.row
    return nesting.join(start.nesting.split(start.row))


def _nesting_of_start(start: OneStart | None, inputs: Inputs) -> Nesting | None:
    if isinstance(start, Unknowns):
        return start.nesting
    if not callable(start):
        return None
    with torch.no_grad():
        value = start(*_plain_first_problem(inputs))
    return Nesting.of(value, "start") if is_nested(value) else None


def _plain_first_problem(inputs: Inputs) -> list[Tensor]:
    return first_problem([plain(x) for x in inputs.xs], inputs.in_dims)


def refuse_batched_start(problem: Any, start: Tensor, inputs: Inputs) -> None:
    """A node's own start has u's shape, without a batch dimension; with one, u would broadcast with it and no one know.

    Refused is a tensor with one row for each problem, each of the shape that an input of one problem has, if the
    functions take such a row for u. (Scalar inputs go with any shape, and prove nothing.)

    Raises:
        ValueError: there is such a tensor.
    """
    nesting = nesting_of(problem.objective)
    parts = {"": start.shape} if nesting is None else dict(zip(nesting.names, nesting.shapes, strict=True))
    if not all(len(shape) and shape[0] == inputs.size for shape in parts.values()):
        return
    for name, shape in parts.items():
        pairs = zip(inputs.xs, inputs.in_dims, strict=True)
        alike = [i for i, (x, dim) in enumerate(pairs) if dim == 0 and x.shape[1:] == shape[1:]]
        if len(shape) > 1 and alike and _accept_rows(problem, start, inputs):
            raise ValueError(batched_start_message(name, tuple(shape), alike[0]))


def _accept_rows(problem: Any, start: Tensor, inputs: Inputs) -> bool:
    """Whether the functions work for one problem with a row of the start, or a row of each of its parts, as u."""
    one, nesting = _plain_first_problem(inputs), nesting_of(problem.objective)
    row = start[0] if nesting is None else torch.cat([x[0].flatten() for x in nesting.parts(start)])
    u = row.detach().to(device=one[0].device, dtype=inputs.work)
    of_rows = None if nesting is None else nesting.of_rows()
    functions = {name: dataclasses.replace(f, nesting=of_rows) for name, f in functions_of(problem).items()}
    try:
        with torch.no_grad():
            objective = functions["objective"](*one, u)
            constraints = [function.value(*one, u) for name, function in functions.items() if name != "objective"]
    except Exception:  # the functions may raise anything
        return False
    return objective.dim() == 0 and all(not isinstance(one, Tensor) or one.dim() <= 1 for one in constraints)
