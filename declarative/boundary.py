"""The boundary: the user's functions are called once and looked at before anything is computed with them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from .problem import Batch, Function, Problem
from .torchside import has_tangent, in_transform, is_mapped

IN_PLACE = "changes its input in place: work on a copy (x.clone()), or use the out-of-place operation."


def inspect(batch: Batch, u: Tensor) -> Batch:
    """Call each function once for the batch at u (size, *shape), check what it returns, and count the constraints.

    Returns:
        The batch with the constraints counted.

    Raises:
        ValueError, TypeError: a function returns the wrong thing, does not depend on u, or reaches a tensor that
            requires a gradient other than through its arguments.
    """
    counts = {"equality": 0, "inequality": 0}
    for name in ("objective", "equality", "inequality"):
        function = getattr(batch.problem, name)
        if function is None:
            continue
        value = _call(batch, name, function, u)
        shape = value.shape[1:]
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
    return dataclasses.replace(batch, p=counts["equality"], q=counts["inequality"])


def _call(batch: Batch, name: str, function: Function, u: Tensor) -> Tensor:
    xs = tuple(x.detach() for x in batch.xs)
    probe = u.detach().clone().requires_grad_()  # a leaf: whatever else requires a gradient was captured
    watched = (*xs, probe)
    before = [x._version for x in watched]
    with torch.enable_grad(), _explained(name, xs, batch):
        value: object = torch.vmap(_tensor_only(name, function), in_dims=(*batch.in_dims, 0))(*xs, probe)
    assert isinstance(value, Tensor)  # _tensor_only has refused anything else
    if [x._version for x in watched] != before:
        raise ValueError(f"{name} {IN_PLACE}")
    if not value.is_floating_point():
        raise TypeError(f"{name} must return a floating-point tensor, but returned {value.dtype}.")
    leaves = _ancestors(value)
    captured = [leaf for leaf in leaves if leaf is not probe]
    if captured or (in_transform() and value.requires_grad):
        raise ValueError(_captured_message(name, function, captured))
    if name == "objective" and not leaves and not in_transform():
        raise ValueError(
            "objective does not depend on u, its last argument, in a differentiable way: every point would be a "
            "solution. Check the order of the arguments (*xs, u), and for .detach() or .item()."
        )
    return value


def _tensor_only(name: str, function: Function) -> Function:
    def checked(*arguments: Tensor) -> Tensor:
        value = function(*arguments)
        if not isinstance(value, Tensor):
            raise TypeError(f"{name} must return a tensor, but returned {type(value).__name__}.")
        return value

    return checked


@contextmanager
def _explained(name: str, xs: Sequence[Tensor], batch: Batch) -> Iterator[None]:
    """Let the user's own exception through, with a note of what the function was called with."""
    try:
        yield
    except Exception as error:
        if isinstance(error, RuntimeError) and "leaf Variable" in str(error):  # u, which requires a gradient here
            raise ValueError(f"{name} {IN_PLACE}") from error
        one = [tuple(x.shape if dim is None else x.shape[1:]) for x, dim in zip(xs, batch.in_dims, strict=True)]
        inputs = ", ".join(f"{shape}" for shape in one)
        error.add_note(
            f"This happened in {name}(*xs, u), called under torch.vmap for one problem with inputs of shape {inputs} "
            f"and u of shape {tuple(batch.shape)}. Write it for one problem, in torch operations, without .item() or "
            "Python branches on values (torch.where does that)."
        )
        raise


def refuse_captured(problem: Problem, xs: Sequence[Tensor], in_dims: Sequence[int | None], u: Tensor) -> None:
    """Refuse a captured tensor of an active ``torch.func`` transform; the inputs here are plain, so it was captured."""
    for name in ("objective", "equality", "inequality"):
        function = getattr(problem, name)
        if function is None:
            continue
        with torch.enable_grad():
            value: Tensor = torch.vmap(function, in_dims=(*in_dims, 0))(*xs, u)
        if value.requires_grad or is_mapped(value) or has_tangent(value):
            raise ValueError(_captured_message(name, function, []))


def _ancestors(value: Tensor) -> list[Tensor]:
    """The leaf tensors that require a gradient from which ``value`` was computed."""
    leaves: list[Tensor] = []
    seen, todo = set(), [value.grad_fn]
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            leaves.append(node.variable)
        todo.extend(parent for parent, _ in node.next_functions)
    return leaves


def _captured_message(name: str, function: Function, captured: Sequence[Tensor]) -> str:
    names = _names(function, captured)
    told = f" ({', '.join(names)})" if names else ""
    new = names[0].split(".")[-1] if names else "w"
    return (
        f"{name} reaches a tensor that requires a gradient other than through its arguments{told}; that gradient would "
        f"be lost. Make it an argument of every function of the node, {name}(x, {new}, u), and pass it: node(x, {new}) "
        "with in_dims=(0, None). If it is a constant, .detach() it."
    )


def _names(function: Function, captured: Sequence[Tensor]) -> list[str]:
    """What the user calls the captured tensors, as far as the function's closure, globals and owner tell."""
    inner = function.func if hasattr(function, "func") else function  # functools.partial
    code = getattr(inner, "__code__", None)
    spaces: dict[str, object] = {}
    if code is not None:
        cells = getattr(inner, "__closure__", None) or ()
        for label, cell in zip(code.co_freevars, cells, strict=True):
            try:
                spaces[label] = cell.cell_contents
            except ValueError:  # a cell that is not filled yet
                continue
        space = getattr(inner, "__globals__", {})
        spaces |= {label: space[label] for label in code.co_names if label in space}
    owner = getattr(inner, "__self__", inner if isinstance(inner, nn.Module) else None)
    if owner is not None:
        spaces["self"] = owner
    found = []
    for label, value in spaces.items():
        members = dict(value.named_parameters()) if isinstance(value, nn.Module) else {"": value}
        for suffix, tensor in members.items():
            if any(tensor is leaf for leaf in captured):
                found.append(f"{label}.{suffix}" if suffix else label)
    return found
