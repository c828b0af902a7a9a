"""The process in which the memory of optimal transport is measured: its arguments are the size and the batch.

It prints the bytes by which forward and backward together rise above what is in use when the inputs are there.
"""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import torch

from problems import OptimalTransport

from ..shared.inputs import Draw


def rise(size: int, batch: int, gamma: float = 10.0) -> int:
    """The bytes that forward and backward take at most."""
    torch.set_num_threads(1)
    layer, draw = OptimalTransport(gamma), Draw(batch, torch.Generator().manual_seed(0))
    _both(layer, draw.uniform(3, 3).requires_grad_(), draw.normal(3, 3))  # loads what is loaded late
    M, v = draw.uniform(size, size).requires_grad_(), draw.normal(size, size)
    before = _status("VmRSS")
    _both(layer, M, v)
    return _status("VmHWM") - before


def _both(layer: OptimalTransport, M: torch.Tensor, v: torch.Tensor) -> None:
    torch.autograd.grad(layer(M), M, v)


def _status(name: str) -> int:
    """Bytes in use, or at most in use so far.

    Linux hands ``ru_maxrss`` on from the process that started this one: it is used only where there is no better.
    """
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    lines = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
    return int(lines[name].split()[0]) * 1024


if __name__ == "__main__":
    print(rise(int(sys.argv[1]), int(sys.argv[2])))
