"""Directions without a pattern, to look at a matrix or a function along."""

from __future__ import annotations

import os
from functools import lru_cache

import torch
from torch import Tensor

from ..torchside import in_dispatch_mode

_generator = torch.Generator().manual_seed(int.from_bytes(os.urandom(7), "little"))


def irregular(u: Tensor, frequency: float = 0.7) -> Tensor:
    """A fixed direction with entries up to 1, like u in shape; another one for another frequency."""
    make = _direction.__wrapped__ if in_dispatch_mode() else _direction  # no fake tensor is kept
    return make(u.shape[-1], u.dtype, u.device, frequency).expand_as(u)


@lru_cache(maxsize=32)
def _direction(size: int, dtype: torch.dtype, device: torch.device, frequency: float) -> Tensor:
    steps = torch.arange(1, size + 1, dtype=dtype, device=device)
    return torch.cos(frequency * steps.square())


def random_directions(count: int, like: Tensor) -> Tensor:  # (count, m)
    """Directions that nobody can construct a problem against; other ones every time.

    For a test that is passed for certain by what it should pass, whatever the directions are.
    """
    return torch.randn(count, like.shape[-1], generator=_generator, dtype=torch.float64).to(like)
