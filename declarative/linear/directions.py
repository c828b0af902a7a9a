"""A direction that no problem has a pattern in common with."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor


def irregular(u: Tensor, frequency: float = 0.7) -> Tensor:
    """A fixed direction with entries up to 1, like u in shape; another one for another frequency."""
    make = _direction.__wrapped__ if torch._C._len_torch_dispatch_stack() else _direction  # no fake tensor is kept
    return make(u.shape[-1], u.dtype, u.device, frequency).expand_as(u)


@lru_cache(maxsize=32)
def _direction(size: int, dtype: torch.dtype, device: torch.device, frequency: float) -> Tensor:
    steps = torch.arange(1, size + 1, dtype=dtype, device=device)
    return torch.cos(frequency * steps.square())
