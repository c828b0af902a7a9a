"""Going on with fewer problems, but only in few sizes."""

from __future__ import annotations

import torch
from torch import Tensor


def compacted(running: Tensor) -> Tensor | None:
    """The positions to go on with when at most half of the problems are left: those, and some that have ended.

    A batch shrinks by halves only, so that few shapes occur, and what was recorded for a shape can be used again.
    """
    left, now = int(running.sum()), len(running)
    new = now
    while new > 1 and left <= (new + 1) // 2:
        new = (new + 1) // 2
    return None if new == now else torch.argsort(~running, stable=True)[:new]
