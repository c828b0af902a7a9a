"""Conjugate gradients that stop early."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def conjugate_gradients(matrix: Callable[[Tensor], Tensor], right: Tensor, steps: int) -> Tensor:
    """Some steps towards the solutions of semidefinite systems, (batch, p); a problem that is solved stays there."""
    s, residual, direction = torch.zeros_like(right), right, right
    squared = right.square().sum(-1, keepdim=True)
    small = torch.finfo(right.dtype).eps ** 2 * squared
    for _ in range(steps):
        product = matrix(direction)
        curvature = (direction * product).sum(-1, keepdim=True)
        length = torch.where((squared > small) & (curvature > 0), squared / curvature, 0.0)
        s, residual = s + length * direction, residual - length * product
        before, squared = squared, residual.square().sum(-1, keepdim=True)
        direction = residual + torch.where(before > small, squared / before, 0.0) * direction
    return s
