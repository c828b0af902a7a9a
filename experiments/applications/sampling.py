"""Bundled data, and who serves for what in them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def load_bundled(name: str, **options: Any) -> Any:
    """A data set that comes with scikit-learn, without a download.

    Raises:
        ValueError: scikit-learn is not installed.
    """
    try:
        from sklearn import datasets
    except ImportError as missing:
        raise ValueError(
            "the data come with scikit-learn, which is not installed: pip install '.[experiments]' brings it."
        ) from missing
    return getattr(datasets, f"load_{name}")(**options)


def split(sizes: Mapping[str, int], seed: int) -> dict[str, Tensor]:
    """Parts of these sizes of everything there is; nothing serves twice."""
    order = torch.randperm(sum(sizes.values()), generator=torch.Generator().manual_seed(seed))
    return dict(zip(sizes, order.split(list(sizes.values())), strict=True))


def draw_groups(pool: Tensor, count: int, size: int, generator: torch.Generator) -> Tensor:  # (count, size)
    """Groups of different members of the pool."""
    return pool[torch.rand(count, len(pool), generator=generator).topk(size).indices]
