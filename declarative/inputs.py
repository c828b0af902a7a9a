"""From what a user passes to a batch with its dimension first."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .arguments import is_integer
from .torchside import in_nested_forward_mode, tracer, without_values

InDims = int | None | tuple[int | None, ...]

REMEMBERED = 1024  # forms of inputs, the latest, whose arrangement is not worked out again
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
    passed: int  # how many inputs the user has passed; those after them are tensors of modules

    def with_weights(self, weights: Mapping[str, Tensor]) -> Inputs:
        """The same, and the tensors of modules, by name, as inputs that the batch shares.

        They take part in the precision that is worked in; the output has that of the inputs proper.
        """
        for name, x in weights.items():
            check_tensor(name, x)
        every = (*self.xs, *weights.values())
        check_devices([x.device for x in every], tuple(weights))
        common = _common_dtype([x.dtype for x in every], torch.get_default_dtype())
        floating = any(x.is_floating_point() for x in self.xs)
        dtype, work = self.dtype if floating else common, _working_dtype(common)
        xs = tuple(x.to(work) if x.is_floating_point() else x for x in every)
        return replace(self, xs=xs, in_dims=(*self.in_dims, *(None,) * len(weights)), dtype=dtype, work=work)


def first_problem(xs: Sequence[Tensor], in_dims: Sequence[int | None]) -> list[Tensor]:
    """The inputs of the first problem; of a blank one if there is none."""
    pairs = zip(xs, in_dims, strict=True)
    return [x if dim is None else x[0] if len(x) else x.new_zeros(x.shape[1:]) for x, dim in pairs]


def shapes_of_one(xs: Sequence[Tensor], in_dims: Sequence[int | None]) -> tuple[torch.Size, ...]:
    """The shapes of the inputs of one problem."""
    return tuple([x.shape if dim is None else x.shape[1:] for x, dim in zip(xs, in_dims, strict=False)])


Form = tuple[torch.Size, torch.dtype, torch.device]  # of an input: all but its values


@dataclass(frozen=True)
class _Arrangement:
    """What follows from the forms of the inputs alone."""

    in_dims: tuple[int | None, ...]
    moves: tuple[int | None, ...] | None  # None: the batch comes first already
    size: int
    batched: bool
    dtype: torch.dtype
    work: torch.dtype
    converts: bool  # whether the precision that is worked in is another one


def arrange(xs: Sequence[Tensor], in_dims: InDims) -> Inputs:
    """Check the inputs of a call and bring their batch dimension to the front."""
    if not xs:
        raise ValueError("a node needs at least one input: node(x).")
    for i, x in enumerate(xs):
        check_tensor(f"input {i}", x)
    forms = tuple([(x.shape, x.dtype, x.device) for x in xs])
    found = _arrangement(forms, in_dims, torch.get_default_dtype())
    xs = tuple(xs)
    if found.moves is not None:
        xs = tuple(x.movedim(dim, 0) if dim else x for x, dim in zip(xs, found.moves, strict=True))
    if found.converts:
        xs = tuple(x.to(found.work) if x.is_floating_point() else x for x in xs)
    return Inputs(xs, found.in_dims, found.size, found.batched, found.dtype, found.work, len(xs))


@functools.lru_cache(maxsize=REMEMBERED)
def _arrangement(forms: tuple[Form, ...], in_dims: InDims, default: torch.dtype) -> _Arrangement:
    """The arrangement of inputs of these forms, which is worked out once.

    Raises:
        ValueError: they do not fit together.
    """
    check_devices([place for _, _, place in forms])
    dims = in_dims if isinstance(in_dims, tuple) else (in_dims,) * len(forms)
    if len(dims) != len(forms):
        raise ValueError(f"in_dims has {len(dims)} entries, but the node was called with {len(forms)} inputs.")
    sizes = {}
    for i, ((shape, _, _), dim) in enumerate(zip(forms, dims, strict=True)):
        if dim is None:
            continue
        if not -len(shape) <= dim < len(shape):
            raise ValueError(
                f"input {i} has shape {tuple(shape)}, but in_dims says that its dimension {dim} is the batch: add a "
                "batch dimension (x.unsqueeze(0)), or pass in_dims=None if the batch shares this input."
            )
        sizes[i] = shape[dim]
    if len(set(sizes.values())) > 1:
        words = ", ".join(f"input {i}: {size}" for i, size in sizes.items())
        raise ValueError(f"the inputs have different batch sizes ({words}); in_dims says which dimension is the batch.")
    dtypes = [dtype for _, dtype, _ in forms]
    dtype = _common_dtype(dtypes, default)
    work = _working_dtype(dtype)
    return _Arrangement(
        in_dims=tuple(None if dim is None else 0 for dim in dims),
        moves=dims if any(dims) else None,
        size=next(iter(sizes.values()), 1),
        batched=bool(sizes),
        dtype=dtype,
        work=work,
        converts=any(dtype.is_floating_point and dtype != work for dtype in dtypes),
    )


def check_tensor(name: str, x: object) -> Tensor:
    """The same, if there is arithmetic for it.

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
    return x


def check_devices(places: Sequence[torch.device | None], names: Sequence[str] = ()) -> None:
    """Refuse tensors from several devices; those after the inputs have names, and None is no tensor.

    Raises:
        ValueError: there are such.
    """
    labels = [*(f"input {i}" for i in range(len(places) - len(names))), *names]
    known = {label: place for label, place in zip(labels, places, strict=True) if place is not None}
    for label, place in known.items():
        first = next(iter(known))
        if place != known[first]:
            raise ValueError(
                f"all inputs must be on one device, but {first} is on {known[first]} and {label} on {place}."
            )


def check_incoming(v: object, shape: torch.Size) -> Tensor:
    """The incoming gradient of the solution, detached.

    Raises:
        TypeError: it is not a tensor, or of an unusual kind.
        ValueError: it has another shape, or no values.
    """
    v = check_tensor("v, the incoming gradient,", v)
    if v.shape != shape:
        raise ValueError(
            f"v is the gradient of the loss with respect to the solution and must have its shape {tuple(shape)}, but "
            f"has {tuple(v.shape)}: the inputs come first, v last."
        )
    refuse_without_values((v,))
    return v.detach()


def _common_dtype(dtypes: Sequence[torch.dtype], default: torch.dtype) -> torch.dtype:
    floating = [dtype for dtype in dtypes if dtype.is_floating_point]
    dtype = floating[0] if floating else default
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


def refuse_nested_forward_mode() -> None:
    """Torch would return zero for the second derivative, without a word.

    Raises:
        ValueError: forward mode is to be differentiated by forward mode.
    """
    if in_nested_forward_mode():
        raise ValueError(
            "torch takes a node for constant where forward mode is differentiated by forward mode (jvp of jvp, jacfwd "
            "of jacfwd): take reverse mode for one of the two, such as torch.func.jacfwd(torch.func.jacrev(f))."
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
    if in_dims is None or is_integer(in_dims):
        return in_dims  # type: ignore[return-value]
    several = isinstance(in_dims, Sequence) and not isinstance(in_dims, str)
    if several and all(dim is None or is_integer(dim) for dim in in_dims):  # type: ignore[attr-defined]
        return tuple(in_dims)  # type: ignore[arg-type]
    raise TypeError(f"in_dims must be an int or None, for all inputs or one for each, but is {in_dims!r}.")
