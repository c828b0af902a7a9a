"""Sequences of handwritten digits: images, splits, the target of a soft permutation, and how an order is judged.

Digits repeat within a sequence. No order among equal digits is right or wrong: an order is judged by the digits that
one reads off in it, and the target gives equal digits equal shares of the ranks that they occupy together.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample

from ..sampling import load_bundled

SPLIT = {"train": 1000, "validation": 297, "test": 500}  # of 1797 images
TURN, SLANT, ZOOM, SHIFT = 0.2, 0.15, 0.1, 0.12  # at most: radians, and shares of the size and of half the width


@dataclass(frozen=True)
class Digits:
    """Images (count, 8, 8) with values from 0 to 1, and what they show (count,)."""

    images: Tensor
    labels: Tensor


def load_digits() -> Digits:
    """Scikit-learn's digits."""
    data = load_bundled("digits")
    return Digits(torch.tensor(data.images / 16, dtype=torch.float32), torch.tensor(data.target))


def vary(images: Tensor, generator: torch.Generator) -> Tensor:  # (count, 1, 8, 8), and returned alike
    """The same images as another hand might have put them: turned, slanted, larger or smaller, and shifted a little."""
    most = torch.tensor([TURN, SLANT, ZOOM, SHIFT, SHIFT])
    turn, slant, zoom, across, down = (most * (2 * torch.rand(len(images), 5, generator=generator) - 1)).unbind(-1)
    cos, sin = (1 + zoom) * turn.cos(), (1 + zoom) * turn.sin()
    maps = torch.stack([cos, slant - sin, across, sin, cos, down], -1).view(-1, 2, 3)
    grid = affine_grid(maps, list(images.shape), align_corners=False)
    return grid_sample(images, grid, align_corners=False)


def target_plan(labels: Tensor) -> Tensor:  # (batch, n) -> (batch, n, n)
    """Which item belongs to which rank: rows and columns sum to 1/n, equal digits share their ranks."""
    same = (labels.unsqueeze(-1) == labels.sort(-1).values.unsqueeze(-2)).to(torch.get_default_dtype())
    return same / same.sum(-1, keepdim=True) / labels.shape[-1]


def right_places(scores: Tensor, labels: Tensor) -> Tensor:  # (batch, n) -> bool (batch, n)
    """Whether the digit at each place of the order by score is the one that belongs there."""
    return labels.gather(-1, scores.argsort(dim=-1, stable=True)) == labels.sort(-1).values


def accuracies(scores: Tensor, labels: Tensor) -> tuple[float, float]:
    """The share of the sequences that are wholly in order, and the share of the places that are right."""
    right = right_places(scores, labels)
    return right.all(-1).double().mean().item(), right.double().mean().item()
