"""The wall: what torch has no public name for - transforms, tracers, tensors without values, hooks - is asked for here.

Beside ``recording`` it is the only place for names of torch that begin with an underscore.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch._C._functorch import (
    _add_batch_dim,
    _remove_batch_dim,
    _vmap_decrement_nesting,
    _vmap_increment_nesting,
    get_unwrapped,
    is_batchedtensor,
    is_functorch_wrapped_tensor,
    maybe_current_level,
    maybe_get_bdim,
)
from torch._functorch.predispatch import lazy_load_decompositions
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch._subclasses.fake_tensor import is_fake
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.utils import _pytree as pytree

Grads = tuple[Tensor | None, ...]
Found = TypeVar("Found")

PLAIN = (Tensor, torch.nn.Parameter)
weight_norm = torch._weight_norm  # what both weight norms of torch.nn.utils call
MAPPED = torch._C._dispatch_key_parse("Batched")


def in_grad_mode(function: Callable[..., Found], *arguments: Any) -> Found:
    """What a function that differentiates returns, computed where gradients are enabled, and detached if they are not.

    With gradients disabled, ``torch.func.vjp`` runs backward formulas that reuse an LU factor (those of ``solve``,
    ``det``, ``slogdet`` and ``logdet``) and, under ``torch.vmap``, take it for that of the transposed matrix: their
    results are wrong.
    """
    if torch.is_grad_enabled():
        return function(*arguments)
    if transformed():  # a tangent would be lost by detaching
        with torch.enable_grad():
            return function(*arguments)
    with torch.enable_grad():
        result = function(*pytree.tree_map_only(Tensor, Tensor.detach, arguments))
    detached: Found = pytree.tree_map_only(Tensor, Tensor.detach, result)
    return detached


@contextmanager
def without_vmap_warnings() -> Iterator[None]:
    """Without vmap's warnings of operations that it has no fast rule for, which the user cannot do much about."""
    enable: Callable[[bool], None] = torch._C._functorch._set_vmap_fallback_warning_enabled  # type: ignore[attr-defined]
    enable(False)
    try:
        yield
    finally:
        enable(True)


def map_rows(function: Callable[..., Any], in_dims: Sequence[int | None], *arguments: Any) -> tuple[Tensor, ...]:
    """``torch.vmap`` of a function that returns a tuple of tensors, over dimension 0 of some arguments.

    Without what ``torch.vmap`` does for trees of arguments and results, which takes longer than a small function.
    """
    lazy_load_decompositions()
    size = next(len(x) for x, dim in zip(arguments, in_dims, strict=True) if dim is not None)
    level = _vmap_increment_nesting(size, "error")
    try:
        mapped = (x if dim is None else _add_batch_dim(x, 0, level) for x, dim in zip(arguments, in_dims, strict=True))
        return tuple(_remove_batch_dim(y, level, size, 0) for y in function(*mapped))
    finally:
        _vmap_decrement_nesting()


def has_tangent(x: Tensor) -> bool:
    """Whether forward mode is tracking a tensor."""
    return (
        torch.autograd.forward_ad._current_level >= 0 and torch.autograd.forward_ad.unpack_dual(x).tangent is not None
    )


def in_transform() -> bool:
    """Whether a ``torch.func`` transform is active."""
    return maybe_current_level() is not None


def transformed() -> bool:
    """Whether a ``torch.func`` transform or forward mode is active."""
    return in_transform() or torch.autograd.forward_ad._current_level >= 0


def in_nested_forward_mode() -> bool:
    """Whether forward mode is differentiated by forward mode, which an ``autograd.Function`` takes for constant."""
    stack = torch._C._functorch.get_interpreter_stack() or ()
    return sum(level.key() == torch._C._functorch.TransformType.Jvp for level in stack) > 1


def outside_transforms() -> AbstractContextManager[Any]:
    """Leave the ``torch.func`` transforms that are active: what is computed there from plain tensors is plain."""
    return temporarily_clear_interpreter_stack() if in_transform() else nullcontext()


def is_mapped(x: Tensor) -> bool:
    """Whether ``torch.vmap`` maps over a tensor."""
    return bool(is_batchedtensor(x))


def value_is_hidden(x: Tensor) -> bool:
    """Whether no decision can depend on a tensor: inside ``torch.func``, or mapped over by ``is_grads_batched``."""
    return in_transform() or bool(torch._C._dispatch_keys(x).has(MAPPED))


def plain(x: Tensor) -> Tensor:
    """The value behind the wrappers of ``torch.func``; of a mapped tensor, its first entry."""
    while is_functorch_wrapped_tensor(x):
        mapped, dim = is_batchedtensor(x), maybe_get_bdim(x)
        x = get_unwrapped(x)
        x = x.select(dim, 0) if mapped else x
    return torch.autograd.forward_ad.unpack_dual(x).primal.detach() if has_tangent(x) else x.detach()


def requires_gradient(x: Tensor) -> bool:
    """Whether autograd follows a tensor, one behind the wrappers of ``torch.func`` too."""
    while is_functorch_wrapped_tensor(x):
        x = get_unwrapped(x)
    return x.requires_grad


def fold(
    tensors: Sequence[Tensor],
    mapped: Sequence[int | None],  # by vmap: the dimension of each, if any
    own: Sequence[int | None],  # 0, or None where the batch shares it
    count: int,
    size: int,
) -> tuple[list[Tensor], list[int | None]]:
    """Tensors of ``count`` batches of ``size`` problems as those of one, and which of them that one still shares."""
    folded: list[Tensor] = []
    dims: list[int | None] = []
    for x, dim, lead in zip(tensors, mapped, own, strict=True):
        x = x if dim is None else x.movedim(dim, 0)
        if dim is None and lead is not None:
            x = x.unsqueeze(0).expand(count, *x.shape)
        elif dim is not None and lead is None:
            x = x.unsqueeze(1).expand(count, size, *x.shape[1:])
        keep = dim is None and lead is None
        folded.append(x if keep else x.reshape(count * size, *x.shape[2:]))
        dims.append(None if keep else 0)
    return folded, dims


def in_dispatch_mode() -> bool:
    """Whether somebody listens to the operations: a fake mode, a tracer, a recording."""
    return bool(torch._C._len_torch_dispatch_stack())


def is_plain(tensors: Sequence[Tensor | None]) -> bool:
    """Whether nobody transforms, traces or differentiates what is computed from these tensors."""
    if transformed() or in_dispatch_mode() or torch.is_inference_mode_enabled():
        return False
    return not (torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors))


def own_memory(x: Tensor, others: Sequence[Tensor]) -> Tensor:
    """The tensor itself, or a copy if it shares memory with another one or several of its entries share theirs."""
    memory = x.untyped_storage()
    whole = x.is_contiguous() and memory.nbytes() == x.numel() * x.element_size() and not x._is_view()
    if whole and all(other.untyped_storage().data_ptr() != memory.data_ptr() for other in others):
        return x
    return x.clone(memory_format=torch.contiguous_format)


_STATED: ContextVar[bool] = ContextVar("stated", default=False)


def as_stated(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function of the user's: what it computes is meant as it is written, a product with zero included."""
    before = _STATED.set(True)
    try:
        return function(*arguments)
    finally:
        _STATED.reset(before)


def is_stated() -> bool:
    """Whether a function of the user's is being called, and not a derivative of it."""
    return _STATED.get()


def fixed(x: Tensor) -> Tensor:
    """A tensor of the library's own that never changes: a recording may compute with its values once and for all."""
    x.declarative_fixed = True  # type: ignore[attr-defined]
    return x


def is_fixed(x: Tensor) -> bool:
    """Whether it is one."""
    return getattr(x, "declarative_fixed", False)


def versions(xs: Sequence[Tensor]) -> list[int]:
    """How often each tensor has been changed in place."""
    return [x._version for x in xs]


def rounding_mode(node: torch.autograd.graph.Node) -> str | None:
    """How a division in an autograd graph rounds, if it does."""
    mode: str | None = getattr(node, "_saved_rounding_mode", None)
    return mode


def saved_exponent(node: torch.autograd.graph.Node) -> Any:
    """Of a power in an autograd graph."""
    return getattr(node, "_saved_exponent", None)


def is_operation(target: Any) -> bool:
    """Whether the target of a node in a graph is one of torch's operations."""
    return isinstance(target, torch._ops.OpOverload)


def overwrites(target: Any) -> bool:
    """Whether an operation changes one of its arguments."""
    return isinstance(target, torch._ops.OpOverload) and target._schema.is_mutable


def defaults_of(operation: Any) -> dict[str, Any]:
    """The arguments of an operation by name, in order, with their defaults, or None."""
    return {argument.name: argument.default_value for argument in operation._schema.arguments}


# Gradients for many cotangents at once: ``torch.autograd.grad(..., is_grads_batched=True)``. torch maps such a
# backward pass by an older mechanism than ``torch.vmap``, which knows neither the vmap rules of an
# ``autograd.Function`` nor many operations. Here the cotangents are handed from the one to the other.


def are_mapped(cotangents: Sequence[Tensor | None]) -> bool:
    """Whether a backward pass, one that is not itself recorded, is for many cotangents at once."""
    if torch.is_grad_enabled() or in_transform():
        return False
    return any(v is not None and value_is_hidden(v) for v in cotangents)


def map_over(function: Callable[..., Grads], cotangents: Sequence[Tensor | None]) -> Grads:
    """The function of mapped cotangents, by ``torch.vmap``."""
    level = torch._C._vmapmode_increment_nesting() - 1  # the only way to ask for it
    torch._C._vmapmode_decrement_nesting()
    many = [v is not None and value_is_hidden(v) for v in cotangents]
    plain = [torch._remove_batch_dim(v, level, 1, 0) if v is not None and value_is_hidden(v) else v for v in cotangents]
    places: list[int] = []
    count: list[int] = []

    def present(*rows: Tensor | None) -> tuple[Tensor, ...]:
        grads = function(*rows)
        places[:] = [i for i, grad in enumerate(grads) if grad is not None]
        count[:] = [len(grads)]
        return tuple(grad for grad in grads if grad is not None)

    found = torch.vmap(present, in_dims=tuple(0 if one else None for one in many))(*plain)
    by_place = dict(zip(places, found, strict=True))
    return tuple(torch._add_batch_dim(by_place[i], 0, level) if i in by_place else None for i in range(count[0]))


# torch.compile


def as_one_step(function: Callable[..., Any], reason: str) -> Callable[..., Any]:
    """The function as one that ``torch.compile`` carries out and does not look into, for this ``reason``.

    This is ``torch.compiler.disable``, called when it is needed: it imports the compiler, which takes longer than all
    of this library does, and until somebody else has imported it there is nothing to be kept from.
    """
    disabled: Callable[..., Any] | None = None

    def one_step(*arguments: Any, **options: Any) -> Any:
        nonlocal disabled
        if "torch._dynamo" not in sys.modules:
            return function(*arguments, **options)
        if disabled is None:
            disabled = torch.compiler.disable(function, reason=reason)
        return disabled(*arguments, **options)

    # What the compiler looks for where a function calls this one, and where it meets the frame.
    one_step._torchdynamo_disable = True  # type: ignore[attr-defined]
    one_step._torchdynamo_disable_msg = reason  # type: ignore[attr-defined]
    frames = torch._C._dynamo.eval_frame
    skip = frames._FrameExecStrategy(frames._FrameAction.SKIP, frames._FrameAction.DEFAULT)
    frames.set_code_exec_strategy(one_step.__code__, skip)
    return functools.wraps(function)(one_step)


# Tensors without values, and tracers, which write down operations instead of carrying them out


def without_values(xs: Sequence[object]) -> bool:
    """Whether a tensor has a shape but no values: on the meta device, or in ``FakeTensorMode``."""
    wrapped = in_transform()  # then what is behind a tensor counts too
    return any(isinstance(x, Tensor) and (x.is_meta or ((wrapped or type(x) not in PLAIN) and is_fake(x))) for x in xs)


def tracer(xs: Sequence[object]) -> str | None:
    """What is writing down the operations on these tensors instead of carrying them out, if anything is."""
    if any(isinstance(x, torch.fx.Proxy) for x in xs):
        return "torch.fx.symbolic_trace"
    if torch.compiler.is_exporting():
        return "torch.export"
    if torch.jit.is_tracing():  # type: ignore[attr-defined, no-untyped-call]
        return "torch.jit.trace"
    return None if get_proxy_mode() is None else "make_fx"


def parametrizations_are_cached() -> bool:
    """Whether ``torch.nn.utils.parametrize.cached`` is active, which knows modules by their addresses alone."""
    return bool(torch.nn.utils.parametrize._cache_enabled)


# Nested dictionaries, tuples and lists


def flatten_tree(value: object, is_leaf: Callable[[Any], bool] | None = None) -> tuple[list[Any], tuple[str, ...], Any]:
    """The parts of a nested value, how each is reached (such as ``['x'][0]``), and their numbers, nested likewise."""
    found, tree = pytree.tree_flatten_with_path(value, is_leaf)
    numbers = pytree.tree_unflatten(range(len(found)), tree)
    return [part for _, part in found], tuple(pytree.keystr(path) for path, _ in found), numbers


def match_tree(value: object, numbers: object) -> list[Any]:
    """The parts of a value that is nested like these numbers; the entries of a dictionary may come in any order.

    Raises:
        ValueError: it is nested in another way.
    """
    return pytree.tree_flatten(numbers)[1].flatten_up_to(value)


def build_tree(parts: Sequence[Any], numbers: object) -> Any:
    """The parts, nested like their numbers."""
    return pytree.tree_map(lambda i: parts[i], numbers)


def map_tensors(function: Callable[[Tensor], Any], value: object) -> Any:
    """A nested value with every tensor replaced."""
    return pytree.tree_map_only(Tensor, function, value)


# Modes


def _autocasts(device: str) -> bool:
    return torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)


def ordinary_mode(xs: tuple[Tensor, ...]) -> AbstractContextManager[tuple[Tensor, ...]]:
    """Leave inference mode and autocast: derivatives are needed inside a solver, and all of their digits."""
    tensors = [x for x in xs if isinstance(x, Tensor)]
    device = tensors[0].device.type if tensors else "cpu"
    unusual = torch.is_inference_mode_enabled() or _autocasts(device) or any(x.is_inference() for x in tensors)
    return _ordinary_mode(xs, device) if unusual else nullcontext(xs)


@contextmanager
def _ordinary_mode(xs: tuple[Tensor, ...], device: str) -> Iterator[tuple[Tensor, ...]]:
    grad = torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
    known = torch.amp.is_autocast_available(device)  # the meta device, for one, has none
    digits = torch.autocast(device, enabled=False) if known else nullcontext()
    with torch.inference_mode(False), torch.set_grad_enabled(grad), digits:
        yield tuple(x.clone() if isinstance(x, Tensor) and x.is_inference() else x for x in xs)


def without_saved_tensor_hooks() -> AbstractContextManager[None]:
    """Suspend the hooks of checkpointing and offloading, which ``torch.func`` does not work with.

    They have nothing to do inside a solver: of what happens there, nothing is saved for a backward pass.
    """
    some = torch._C._autograd._top_saved_tensors_default_hooks(True) is not None
    return _without_saved_tensor_hooks() if some else nullcontext()


@contextmanager
def _without_saved_tensor_hooks() -> Iterator[None]:
    engine, hooks = torch._C._autograd, []
    while (hook := engine._top_saved_tensors_default_hooks(True)) is not None:
        hooks.append(hook)
        engine._pop_saved_tensors_default_hooks()
    try:
        yield
    finally:
        for hook in reversed(hooks):
            engine._push_saved_tensors_default_hooks(*hook)
