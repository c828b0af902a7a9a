"""The boundary: the user's functions are called once and looked at before anything is computed with them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from .bounds import Bounds
from .functions import UserFunction, as_written, count_weights, functions_of, has_objective, nesting_of
from .inputs import Inputs
from .operations import Ancestry
from .problem import Batch, Function, Problem, flat
from .remedies import (
    BUFFERS,
    IN_PLACE,
    NO_WAY_TO_U,
    batched_start_message,
    captured_message,
    corners_message,
    equations_message,
    explain,
    steps_message,
)
from .solution import Status
from .starts import Start, one_problem
from .torchside import has_tangent, in_transform, is_mapped, versions
from .unknowns import Nesting

GIVEN_UP = (Status.ITERATION_LIMIT, Status.STALLED, Status.NOT_OPTIMAL)


def inspect(batch: Batch, u: Tensor, gradients: bool = True) -> Batch:
    """Call each function once for the batch at u (size, *shape), check what it returns, and count the constraints.

    Args:
        batch: the problems, with the constraints not counted yet.
        u: where to call the functions.
        gradients: whether gradients are recorded around the node's call. If not, captured tensors are constants.

    Returns:
        The batch with the constraints counted.

    Raises:
        ValueError, TypeError: a function returns the wrong thing, does not depend on u, or reaches a tensor that
            requires a gradient other than through its arguments.
    """
    counts = {"equality": 0, "inequality": 0}
    for name, function in functions_of(batch.problem).items():
        shape = _call(batch, name, function, u, gradients).shape[1:]
        if name == "objective" and len(shape):
            raise ValueError(
                f"objective must return a scalar for one problem, but returned shape {tuple(shape)}: sum it."
            )
        if len(shape) > 1:
            raise ValueError(
                f"{name} must return a vector or a scalar for one problem, but returned shape {tuple(shape)}: "
                "flatten it."
            )
        if name != "objective":
            counts[name] = math.prod(shape)
    if not has_objective(batch.problem.objective) and counts["equality"] != batch.m:
        raise ValueError(equations_message(counts["equality"], batch.m))
    if gradients and batch.problem.bounds is not None:
        _refuse_captured_bounds(batch, batch.problem.bounds, u)
    return dataclasses.replace(batch, p=counts["equality"], q=counts["inequality"] + batch.bounds)


def _refuse_captured_bounds(batch: Batch, bounds: Bounds, u: Tensor) -> None:
    """A bound that is a function must get what it depends on as arguments, or gradients would be lost."""
    xs = [x.detach() if dim is None else x[0].detach() for x, dim in zip(batch.xs, batch.in_dims, strict=True)]
    with torch.enable_grad():
        rows = bounds.rows(xs, flat(u)[0].detach(), batch.shape)
    if rows.requires_grad:
        raise ValueError(
            "a bound reaches a tensor that requires a gradient other than through its arguments, and that gradient "
            "would be lost: pass the tensor to the node as an input."
        )


def _call(batch: Batch, name: str, function: Function, u: Tensor, gradients: bool) -> Tensor:
    value, probe = _at_probe(batch, name, function, u)
    if not value.is_floating_point():
        raise TypeError(f"{name} must return a floating-point tensor, but returned {value.dtype}.")
    ancestry = Ancestry(value)
    captured = [leaf for leaf in ancestry.leaves if leaf is not probe]
    if gradients and (captured or (in_transform() and value.requires_grad)):
        raise ValueError(captured_message(name, as_written(function), captured))
    if name == "objective" and len(captured) == len(ancestry.leaves) and not in_transform():
        raise ValueError(NO_WAY_TO_U)
    if steps := ancestry.only_steps(probe):
        raise ValueError(steps_message(name, steps))
    return value


def _at_probe(batch: Batch, name: str, function: Function, u: Tensor) -> tuple[Tensor, Tensor]:
    """The function for the batch at a copy of u, and this copy: whatever else requires a gradient was captured."""
    xs = tuple(x.detach() for x in batch.xs)
    probe = u.detach().clone().requires_grad_()
    watched = (*xs, probe)
    before = versions(watched)
    returned: list[object] = []

    def noted(*arguments: Tensor) -> Tensor:
        returned.append(function(*arguments))
        return returned[0] if isinstance(returned[0], Tensor) else arguments[-1]

    with torch.enable_grad(), _explained(batch, name, function, u.dtype):
        value: Tensor = torch.vmap(noted, in_dims=(*batch.in_dims, 0))(*watched)
    if not isinstance(returned[0], Tensor):
        several = "" if name == "objective" else ", or a dict or tuple of tensors"
        raise TypeError(f"{name} must return a tensor{several}, but returned {type(returned[0]).__name__}.")
    if versions(watched) != before:
        own = len(xs) - count_weights(function)
        buffers = versions(xs[own:]) != before[own:-1]
        raise ValueError(f"{name} {BUFFERS if buffers else IN_PLACE}")
    return value, probe


@contextmanager
def _explained(batch: Batch, name: str, function: Function, dtype: torch.dtype) -> Iterator[None]:
    """Let the user's own exception through, with a note of what the function was called with and what to do."""
    try:
        yield
    except Exception as error:
        if isinstance(error, RuntimeError) and "leaf Variable" in str(error):  # u, which requires a gradient here
            raise ValueError(f"{name} {IN_PLACE}") from error
        own = len(batch.xs) - count_weights(function)
        pairs = zip(batch.xs[:own], batch.in_dims, strict=False)
        shapes = [tuple(x.shape if dim is None else x.shape[1:]) for x, dim in pairs]
        unknown = nesting_of(function) or tuple(batch.shape)
        error.add_note(explain(error, name, as_written(function), [*shapes, unknown], dtype))
        raise


def corners(batch: Batch, u: Tensor) -> list[str]:  # u: (size, *shape)
    """The operations of the functions with corners or jumps in u, such as ``"abs in objective"``.

    Where a solution sits on a corner, slopes do not vanish at it and a Newton method does not get there.

    Example:
        >>> import torch
        >>> from declarative.problem import Batch, Problem
        >>> problem = Problem(lambda x, u: (u - x).abs().sum() + x.abs().sum(), inequality=lambda x, u: u.amax() - 1)
        >>> batch = Batch(problem, (torch.ones(2, 3),), (0,), 2, torch.Size([3]), 0, 1)
        >>> corners(batch, torch.zeros(2, 3))
        ['abs in objective', 'amax in inequality']
    """
    found = []
    for name, function in functions_of(batch.problem).items():
        value, probe = _at_probe(batch, name, function, u)
        found += [f"{corner} in {name}" for corner in Ancestry(value).corners(probe)]
    return found


def corner_hint(batch: Batch, u: Tensor, codes: Tensor) -> str:  # (size, *shape), (size,)
    """What to say of corners about problems that were given up on; empty if there is nothing to say."""
    given_up = any(bool((codes == status).any()) for status in GIVEN_UP)
    return corners_message(corners(batch, u)) if given_up else ""


def refuse_batched_start(problem: Problem, start: Start, inputs: Inputs) -> None:
    """A node's own start has u's shape, without a batch dimension; with one, u would broadcast with it and no one know.

    Refused is a tensor with one row for each problem, each of the shape that an input of one problem has, if the
    functions take such a row for u. (Scalar inputs go with any shape, and prove nothing.)

    Raises:
        ValueError: there is such a tensor.
    """
    for one in start if isinstance(start, list) else [start]:
        if isinstance(one, Tensor) and inputs.batched:
            _refuse_rows(problem, one, inputs)


def _refuse_rows(problem: Problem, start: Tensor, inputs: Inputs) -> None:
    nesting = nesting_of(problem.objective)
    parts = {"": start.shape} if nesting is None else dict(zip(nesting.names, nesting.shapes, strict=True))
    if not all(len(shape) and shape[0] == inputs.size for shape in parts.values()):
        return
    for name, shape in parts.items():
        own = zip(inputs.xs, inputs.in_dims, strict=True)
        alike = [i for i, (x, dim) in enumerate(own) if dim == 0 and x.shape[1:] == shape[1:]]
        if len(shape) > 1 and alike and _take_rows(problem, start, inputs):
            raise ValueError(batched_start_message(name, tuple(shape), alike[0]))


def _take_rows(problem: Problem, start: Tensor, inputs: Inputs) -> bool:
    """Whether the functions work for one problem with a row of the start, or a row of each of its parts, as u."""
    one, nesting = one_problem(inputs), nesting_of(problem.objective)
    row = start[0] if nesting is None else torch.cat([x[0].flatten() for x in nesting.parts(start)])
    u = row.detach().to(device=one[0].device, dtype=inputs.work)
    of_rows = None if nesting is None else nesting.of_rows()
    try:
        with torch.no_grad():
            values = {name: _with_nesting(f, of_rows)(*one, u) for name, f in functions_of(problem).items()}
    except Exception:  # the functions may raise anything
        return False
    return all(value.dim() <= (name != "objective") for name, value in values.items())


def _with_nesting(function: Function, nesting: Nesting | None) -> Function:
    return dataclasses.replace(function, nesting=nesting) if isinstance(function, UserFunction) else function


def is_defined(batch: Batch, u: Tensor) -> Tensor:  # (size, *shape) -> (size,)
    """For each problem, whether the functions and their first derivatives are finite at u.

    Of the constraints' derivatives a sum is looked at: what is not finite does not become so by adding. An inequality
    may be minus infinity, which means no bound.
    """
    rows, weights = flat(u), u.new_ones(batch.size, batch.k)
    objective, values = batch.values(rows)
    bounded = torch.cat([values[:, : batch.p], values[:, batch.p :].clamp(min=-1.0)], -1)
    return (objective + bounded.sum(-1) + batch.gradient(rows, weights).sum(-1)).isfinite()


def refuse_captured(problem: Problem, xs: Sequence[Tensor], in_dims: Sequence[int | None], u: Tensor) -> None:
    """Refuse a captured tensor of an active ``torch.func`` transform; the inputs here are plain, so it was captured."""
    for name, function in functions_of(problem).items():
        with torch.set_grad_enabled(torch.is_grad_enabled() or in_transform()):
            value: Tensor = torch.vmap(function, in_dims=(*in_dims, 0))(*xs, u)
        if value.requires_grad or is_mapped(value) or has_tangent(value):
            raise ValueError(captured_message(name, as_written(function), []))
