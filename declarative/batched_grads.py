"""Gradients for many cotangents at once: ``torch.autograd.grad(..., is_grads_batched=True)``.

torch maps such a backward pass by an older mechanism than ``torch.vmap``, which knows neither the vmap rules of an
``autograd.Function`` nor many operations. Here the cotangents are handed from the one to the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from .torchside import in_transform, value_is_hidden

Grads = tuple[Tensor | None, ...]


def mapped(cotangents: Sequence[Tensor | None]) -> bool:
    """Whether a backward pass, one that is not itself recorded, is for many cotangents at once."""
    if torch.is_grad_enabled() or in_transform():
        return False
    return any(v is not None and value_is_hidden(v) for v in cotangents)


def map_over(function: Callable[..., Grads], cotangents: Sequence[Tensor | None]) -> Grads:
    """The function of cotangents, by ``torch.vmap``."""
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
