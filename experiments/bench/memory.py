"""A process in which memory is measured: its arguments are what of, ``transport`` or ``pendulum``, and the size.

It prints the bytes by which forward and backward together rise above what is in use when the inputs are there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch

from problems import OptimalTransport

from ..shared.inputs import Draw
from ..shared.memory import peak, reset_peak
from ..shared.trajectories import PENDULUM, flat

Work = Callable[[], object]


def transport(size: int, gamma: float = 10.0) -> Work:
    """Of a cost matrix."""
    layer, draw = OptimalTransport(gamma), Draw(1, torch.Generator().manual_seed(0))
    M, v = draw.uniform(size, size).requires_grad_(), draw.normal(size, size)
    return lambda: torch.autograd.grad(layer(M), M, v)


def pendulum(size: int) -> Work:
    """Over so many steps."""
    layer, initial = PENDULUM.layer(size, structure="sparse"), PENDULUM.initial(1).requires_grad_()
    return lambda: torch.autograd.grad(flat(layer(initial)).sum(), initial)


KINDS = {"transport": transport, "pendulum": pendulum}


def rise(kind: str, size: int) -> int:
    """The bytes that forward and backward take at most."""
    torch.set_num_threads(1)
    KINDS[kind](3)()  # loads what is loaded late
    work = KINDS[kind](size)
    before = reset_peak()
    work()
    return peak() - before


if __name__ == "__main__":
    print(rise(sys.argv[1], int(sys.argv[2])))
