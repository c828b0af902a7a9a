"""From what a user passes to a batch with its dimension first: inputs and starting points."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .torchside import tracer, without_values

InDims = int | None | tuple[int | None, ...]
OneStart = int | Sequence[int] | Tensor | Callable[..., Tensor]
Start = OneStart | list[OneStart] | None

FLOATING = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Inputs:
    """The inputs of a call with the batch dimension first."""

    xs: tuple[Tensor, ...]
    in_dims: tuple[int | None, ...]  # 0, or None where the batch shares the input
    size: int
    batched: bool  # False: one problem, without a batch dimension
    dtype: torch.dtype  # of the output
    work: torch.dtype  # that it is computed in

    def with_weights(self, weights: Mapping[str, Tensor]) -> Inputs:
        """The same, and the tensors of modules, by name, as inputs that the batch shares.

        They take part in the precision that is worked in; the output has that of the inputs proper.
        """
        for name, x in weights.items():
            check_tensor(name, x)
        every = (*self.xs, *weights.values())
        check_devices(every, tuple(weights))
        floating = any(x.is_floating_point() for x in self.xs)
        dtype = self.dtype if floating else _common_dtype(every)
        work = _working_dtype(_common_dtype(every))
        xs = tuple(x.to(work) if x.is_floating_point() else x for x in every)
        return replace(self, xs=xs, in_dims=(*self.in_dims, *(None,) * len(weights)), dtype=dtype, work=work)


def arrange(xs: Sequence[Tensor], in_dims: InDims) -> Inputs:
    """Check the inputs of a call and bring their batch dimension to the front."""
    if not xs:
        raise ValueError("a node needs at least one input: node(x).")
    for i, x in enumerate(xs):
        check_tensor(f"input {i}", x)
    check_devices(xs)
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
        words = ", ".join(f"input {i}: {size}" for i, size in sizes.items())
        raise ValueError(f"the inputs have different batch sizes ({words}); in_dims says which dimension is the batch.")
    dtype = _common_dtype(xs)
    work = _working_dtype(dtype)
    moved = [x if dim is None else x.movedim(dim, 0) for x, dim in zip(xs, dims, strict=True)]
    return Inputs(
        xs=tuple(x.to(work) if x.is_floating_point() else x for x in moved),
        in_dims=tuple(None if dim is None else 0 for dim in dims),
        size=next(iter(sizes.values()), 1),
        batched=bool(sizes),
        dtype=dtype,
        work=work,
    )


def check_tensor(name: str, x: object) -> None:
    """Refuse what there is no arithmetic for.

    Raises:
        TypeError: it is not a tensor, or one of an unusual kind.
    """
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} must be a tensor, but is {type(x).__name__}: torch.as_tensor makes one of it.")
    if x.is_complex():
        raise TypeError(f"{name} is complex: pass its real and imaginary parts as two inputs.")
    if x.is_quantized:
        raise TypeError(f"{name} is quantised ({x.dtype}): pass x.dequantize().")
    if x.layout != torch.strided:
        raise TypeError(f"{name} is sparse ({x.layout}): pass x.to_dense().")
    if x.is_nested:
        raise TypeError(f"{name} is a nested tensor: pad its parts to one shape, or call the node for each.")
    if x.is_floating_point() and x.dtype not in FLOATING:
        raise TypeError(f"{name} is {x.dtype}, in which nothing can be computed: pass x.float().")


def check_devices(xs: Sequence[object], names: Sequence[str] = ()) -> None:
    """Refuse tensors from several devices; those after the inputs have names.

    Raises:
        ValueError: there are such.
    """
    labels = [*(f"input {i}" for i in range(len(xs) - len(names))), *names]
    places = {label: x.device for label, x in zip(labels, xs, strict=True) if isinstance(x, Tensor)}
    for label, place in places.items():
        first = next(iter(places))
        if place != places[first]:
            raise ValueError(
                f"all inputs must be on one device, but {first} is on {places[first]} and {label} on {place}."
            )


def check_incoming(v: object, shape: torch.Size) -> Tensor:
    """The incoming gradient of the solution, detached.

    Raises:
        TypeError: it is not a tensor, or of an unusual kind.
        ValueError: it has another shape, or no values.
    """
    check_tensor("v, the incoming gradient,", v)
    assert isinstance(v, Tensor)  # which was checked
    if v.shape != shape:
        raise ValueError(
            f"v is the gradient of the loss with respect to the solution and must have its shape {tuple(shape)}, but "
            f"has {tuple(v.shape)}: the inputs come first, v last."
        )
    refuse_without_values((v,))
    return v.detach()


def _common_dtype(xs: Sequence[Tensor]) -> torch.dtype:
    floating = [x.dtype for x in xs if x.is_floating_point()]
    dtype = floating[0] if floating else torch.get_default_dtype()
    for other in floating[1:]:
        dtype = torch.promote_types(dtype, other)
    return dtype


def _working_dtype(dtype: torch.dtype) -> torch.dtype:
    half = dtype in (torch.float16, torch.bfloat16)  # for which there is no linear algebra
    return torch.float32 if half else dtype


def refuse_without_values(xs: Sequence[object]) -> None:
    """A solver cannot do without values.

    Raises:
        ValueError: there are none.
    """
    if without_values(xs):
        raise ValueError(
            "an input has a shape but no values (it is on the meta device, or fake): only node(x) works on such "
            "tensors, and returns the shape of the solution. Move the inputs to a device that computes."
        )


def refuse_tracing(xs: Sequence[object]) -> None:
    """What a solver does depends on values: written down once, it would be wrong for the next ones.

    Raises:
        ValueError: operations are being written down and not carried out.
    """
    if (name := tracer(xs)) is not None:
        raise ValueError(
            f"{name} cannot take in a node, since what its solver does depends on the values of the inputs. Let it "
            "take the parts of the model before and after the node, and call the node between them; to keep the whole "
            "model, save its weights (torch.save(model.state_dict(), ...)); to make it faster, use torch.compile."
        )


def check_in_dims(in_dims: object) -> InDims:
    """Refuse what cannot say where the batch is.

    Raises:
        TypeError: it is neither an int nor None, nor a sequence of these.
    """
    if in_dims is None or _whole(in_dims):
        return in_dims  # type: ignore[return-value]
    if isinstance(in_dims, Sequence) and not isinstance(in_dims, str) and all(d is None or _whole(d) for d in in_dims):
        return tuple(in_dims)
    raise TypeError(f"in_dims must be an int or None, for all inputs or one for each, but is {in_dims!r}.")


def _whole(n: object) -> bool:
    return isinstance(n, int) and not isinstance(n, bool)


def check_start(start: Start) -> Start:
    """Refuse what cannot be a start before anything is solved; numbers become shapes."""
    if isinstance(start, list) and start and not all(isinstance(one, int) for one in start):
        return [_check_one_start(one) for one in start]
    return None if start is None else _check_one_start(start)  # type: ignore[arg-type]


def _check_one_start(start: OneStart) -> OneStart:
    if isinstance(start, Tensor):
        check_tensor("start", start)
        refuse_without_values((start,))
        if not start.numel():
            raise ValueError(f"start has shape {tuple(start.shape)}: u must have at least one entry.")
        return start
    if callable(start):
        return start
    shape: object = (start,) if isinstance(start, int) else start
    if isinstance(shape, Sequence) and not isinstance(shape, str) and all(_whole(n) and 0 <= n < 2**31 for n in shape):
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
        one = _irregular_point(start, dtype, device)
    elif isinstance(start, Tensor):
        one = start.detach().to(device=device, dtype=dtype)
    elif callable(start):
        return _called_start(start, xs, in_dims, size, dtype)
    else:
        raise ValueError("this solver needs a start.")
    return one.expand(size, *one.shape).clone()


def _irregular_point(shape: torch.Size, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A fixed point within half a unit of the origin.

    The origin itself would be a trap: it is a stationary point of many problems, and the gradient of ||u||^2 = 1
    vanishes there. So would be any other point of symmetry.
    """
    golden = 0.5 * (math.sqrt(5) - 1)
    steps = torch.arange(1, math.prod(shape) + 1, dtype=torch.float64, device=device)
    return ((steps * golden) % 1.0 - 0.5).view(shape).to(dtype)


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


def defined_start(candidates: Iterable[Tensor], defined: Callable[[Tensor], Tensor]) -> Tensor:  # (size, *shape)
    """For each problem the first of the candidates (size, *shape) where it is defined; where none is, the first of all.

    Example:
        >>> import torch
        >>> candidates = [torch.tensor([-1.0, 2.0, -1.0]), torch.tensor([1.0, 1.0, -2.0])]
        >>> defined_start(candidates, lambda u: u > 0)
        tensor([ 1.,  2., -1.])
    """
    remaining = iter(candidates)
    start = next(remaining)
    found = defined(start)
    for candidate in remaining:
        if found.all():
            break
        better = defined(candidate) & ~found
        start = torch.where(better.view(-1, *[1] * (start.dim() - 1)), candidate, start)
        found = found | better
    return start


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
