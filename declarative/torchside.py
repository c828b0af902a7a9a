"""Is a transform of ``torch.func`` at work, and what is behind its wrappers?"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from torch._C._functorch import (
    get_unwrapped,
    is_batchedtensor,
    is_functorch_wrapped_tensor,
    maybe_current_level,
    maybe_get_bdim,
)

MAPPED = torch._C._dispatch_key_parse("Batched")


@contextmanager
def slow_is_fine() -> Iterator[None]:
    """Without vmap's warnings of operations that it has no fast rule for, which the user cannot do much about."""
    enable: Callable[[bool], None] = torch._C._functorch._set_vmap_fallback_warning_enabled  # type: ignore[attr-defined]
    enable(False)
    try:
        yield
    finally:
        enable(True)


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


def is_mapped(x: Tensor) -> bool:
    """Whether ``torch.vmap`` maps over a tensor."""
    mapped: bool = is_batchedtensor(x)
    return mapped


def value_is_hidden(x: Tensor) -> bool:
    """Whether no decision can depend on a tensor: inside ``torch.func``, or mapped over by ``is_grads_batched``."""
    if maybe_current_level() is not None:
        return True
    mapped: bool = torch._C._dispatch_keys(x).has(MAPPED)
    return mapped


def plain(x: Tensor) -> Tensor:
    """The value behind the wrappers of ``torch.func``; of a mapped tensor, its first entry."""
    while is_functorch_wrapped_tensor(x):
        mapped, dim = is_batchedtensor(x), maybe_get_bdim(x)
        x = get_unwrapped(x)
        x = x.select(dim, 0) if mapped else x
    return torch.autograd.forward_ad.unpack_dual(x).primal.detach() if has_tangent(x) else x.detach()


def in_dispatch_mode() -> bool:
    """Whether somebody listens to the operations: a fake mode, a tracer, a recording."""
    return bool(torch._C._len_torch_dispatch_stack())


def own_memory(x: Tensor, others: Sequence[Tensor]) -> Tensor:
    """The tensor itself, or a copy if it shares memory with another one or several of its entries share theirs."""
    memory = x.untyped_storage()
    whole = x.is_contiguous() and memory.nbytes() == x.numel() * x.element_size() and not x._is_view()
    if whole and all(other.untyped_storage().data_ptr() != memory.data_ptr() for other in others):
        return x
    return x.clone(memory_format=torch.contiguous_format)
