"""From what a user passes to a batch with its dimension first: inputs and starting points."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

InDims = int | None | tuple[int | None, ...]
OneStart = int | Sequence[int] | Tensor | Callable[..., Tensor]
Start = OneStart | list[OneStart] | None


@dataclass(frozen=True)
class Inputs:
    """The inputs of a call with the batch dimension first."""

    xs: tuple[Tensor, ...]
    in_dims: tuple[int | None, ...]  # 0, or None where the batch shares the input
    size: int
    batched: bool  # False: one problem, without a batch dimension
    dtype: torch.dtype  # of the output
    work: torch.dtype  # that it is computed in


def arrange(xs: Sequence[Tensor], in_dims: InDims) -> Inputs:
    """Check the inputs of a call and bring their batch dimension to the front."""
    _check_tensors(xs)
    dims = in_dims if isinstance(in_dims, tuple) else (in_dims,) * len(xs)
    if len(dims) != len(xs):
        raise ValueError(f"in_dims has {len(dims)} entries, but the node was called with {len(xs)} inputs.")
    sizes = {}
    for i, (x, dim) in enumerate(zip(xs, dims, strict=True)):
        if dim is None:
            continue
        if not -x.dim() <= dim < x.dim():
            raise ValueError(
                f"input {i} has shape {tuple(x.shape)}, but in_dims says that its dimension {dim} is the batch: add a "
                "batch dimension (x.unsqueeze(0)), or pass in_dims=None if the batch shares this input."
            )
        sizes[i] = x.shape[dim]
    if len(set(sizes.values())) > 1:
        told = ", ".join(f"input {i}: {size}" for i, size in sizes.items())
        raise ValueError(f"the inputs have different batch sizes ({told}); in_dims says which dimension is the batch.")
    dtype = _common_dtype(xs)
    half = dtype in (torch.float16, torch.bfloat16)  # for which there is no linear algebra
    moved = [x if dim is None else x.movedim(dim, 0) for x, dim in zip(xs, dims, strict=True)]
    return Inputs(
        xs=tuple(x.float() if half and x.is_floating_point() else x for x in moved),
        in_dims=tuple(None if dim is None else 0 for dim in dims),
        size=next(iter(sizes.values()), 1),
        batched=bool(sizes),
        dtype=dtype,
        work=torch.float32 if half else dtype,
    )


def _check_tensors(xs: Sequence[Tensor]) -> None:
    if not xs:
        raise ValueError("a node needs at least one input: node(x).")
    for i, x in enumerate(xs):
        if not isinstance(x, Tensor):
            raise TypeError(f"input {i} must be a tensor, but is {type(x).__name__}: torch.as_tensor makes one of it.")
        if x.is_complex():
            raise TypeError(f"input {i} is complex: pass its real and imaginary parts as two inputs.")
        if x.layout != torch.strided:
            raise TypeError(f"input {i} is sparse ({x.layout}): pass x.to_dense().")
        if x.device != xs[0].device:
            raise ValueError(
                f"all inputs must be on one device, but input 0 is on {xs[0].device} and input {i} on {x.device}."
            )


def _common_dtype(xs: Sequence[Tensor]) -> torch.dtype:
    floating = [x.dtype for x in xs if x.is_floating_point()]
    dtype = floating[0] if floating else torch.get_default_dtype()
    for other in floating[1:]:
        dtype = torch.promote_types(dtype, other)
    return dtype


@contextlib.contextmanager
def ordinary_mode(xs: tuple[Tensor, ...]) -> Iterator[tuple[Tensor, ...]]:
    """Leave inference mode and autocast: derivatives are needed inside a solver, and all of their digits."""
    tensors = [x for x in xs if isinstance(x, Tensor)]
    device = tensors[0].device.type if tensors else "cpu"
    grad = torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
    with torch.inference_mode(False), torch.set_grad_enabled(grad), torch.autocast(device, enabled=False):
        yield tuple(x.clone() if isinstance(x, Tensor) and x.is_inference() else x for x in xs)


@contextlib.contextmanager
def without_saved_tensor_hooks() -> Iterator[None]:
    """Suspend the hooks of checkpointing and offloading, which ``torch.func`` does not work with.

    They have nothing to do inside a solver: of what happens there, nothing is saved for a backward pass.
    """
    engine, hooks = torch._C._autograd, []
    while (hook := engine._top_saved_tensors_default_hooks(True)) is not None:
        hooks.append(hook)
        engine._pop_saved_tensors_default_hooks()
    try:
        yield
    finally:
        for hook in reversed(hooks):
            engine._push_saved_tensors_default_hooks(*hook)


def check_start(start: Start) -> Start:
    """Refuse what cannot be a start before anything is solved; numbers become shapes."""
    if isinstance(start, list) and start and not all(isinstance(one, int) for one in start):
        return [_check_one_start(one) for one in start]
    return None if start is None else _check_one_start(start)  # type: ignore[arg-type]


def _check_one_start(start: OneStart) -> OneStart:
    if callable(start) or isinstance(start, Tensor):
        return start
    shape: object = (start,) if isinstance(start, int) else start
    if isinstance(shape, Sequence) and not isinstance(shape, str) and all(isinstance(n, int) and n >= 0 for n in shape):
        if math.prod(shape) == 0:
            raise ValueError(f"start has shape {tuple(shape)}: u must have at least one entry.")
        return torch.Size(shape)
    raise TypeError(
        "start must be the shape of u (an int or ints), a tensor, a function (*xs) -> u for one problem, or a list of "
        f"tensors or functions to try, but is {start!r}."
    )


def warm_start(start: Tensor, inputs: Inputs) -> Tensor:  # (size, *shape)
    """A start that was passed with the call: a point for each problem, such as the last solution."""
    if not isinstance(start, Tensor):
        raise TypeError(f"start must be a tensor like the node's output, but is {type(start).__name__}.")
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
    """Where an iterative solver starts.

    A shape gives a fixed, irregular point within half a unit of the origin. The origin itself would be a trap: it is a
    stationary point of many problems, and the gradient of ||u||^2 = 1 vanishes there.
    """
    device = xs[0].device
    if isinstance(start, torch.Size):
        golden = 0.5 * (math.sqrt(5) - 1)
        steps = torch.arange(1, math.prod(start) + 1, dtype=torch.float64, device=device)
        one = ((steps * golden) % 1.0 - 0.5).view(start).to(dtype)
    elif isinstance(start, Tensor):
        one = start.detach().to(device=device, dtype=dtype)
    elif callable(start):
        return _called_start(start, xs, in_dims, size, dtype)
    else:
        raise ValueError("this solver needs a start.")
    return one.expand(size, *one.shape).clone()


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
    return value.detach().to(dtype).clone()
