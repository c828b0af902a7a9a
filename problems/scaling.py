"""Some of Sinkhorn's iterations u = r / K v, v = c / K' u, for a batch: compiled by Numba where it is, or by torch.

Each step may be longer than Sinkhorn's by an excess w: u (r / u K v)^(1 + w), to first order.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from declarative.linear.jit import INSTALLED, allocating

Array = NDArray[np.floating]


class Scaled(NamedTuple):
    """What the iterations led to."""

    u: Tensor  # (batch, m)
    v: Tensor  # (batch, n)
    error: Tensor  # of the marginals, relative, (batch,)
    middle: Tensor  # the same half-way, (batch,)
    iterations: Tensor  # (batch,)


def iterate(
    kernel: Tensor,  # (batch, m, n)
    r: Tensor,  # (batch, m)
    c: Tensor,  # (batch, n)
    u: Tensor,
    v: Tensor,
    excess: Tensor,  # (batch,)
    tolerance: float,
    steps: int,
) -> Scaled:
    """So many iterations; what has converged stays as it is."""
    if not INSTALLED or kernel.device.type != "cpu":
        return _by_tensors(kernel, r, c, u, v, excess, tolerance, steps)
    u, v = (x.clone(memory_format=torch.contiguous_format) for x in (u, v))  # for they are overwritten
    error, middle = u.new_empty(len(u)), u.new_empty(len(u))
    count = torch.empty(len(u), dtype=torch.int64, device=u.device)
    tensors = kernel, r, c, u, v, excess, error, middle, count
    _iterate_all(*(x.contiguous().numpy() for x in tensors), tolerance, steps)
    return Scaled(u, v, error, middle, count)


@allocating
def _iterate_all(
    kernels: Array,
    r: Array,
    c: Array,
    u: Array,  # overwritten, as are error, middle and count
    v: Array,
    excess: Array,
    error: Array,
    middle: Array,
    count: NDArray[np.int64],
    tolerance: float,
    steps: int,
) -> None:
    for i in range(len(kernels)):
        error[i], middle[i], count[i] = _iterate(kernels[i], r[i], c[i], u[i], v[i], excess[i], tolerance, steps)


@allocating
def _iterate(
    kernel: Array, r: Array, c: Array, u: Array, v: Array, excess: float, tolerance: float, steps: int
) -> tuple[float, float, int]:
    """For one problem: the error at the end and half-way, and the number of iterations."""
    right_u, error, middle, count = r / np.dot(kernel, v), np.inf, np.inf, 0
    while count < steps and error > tolerance:
        u[:] = right_u + excess * right_u * (right_u / u - 1)
        right_v = c / np.dot(u, kernel)
        v[:] = right_v + excess * right_v * (right_v / v - 1)
        right_u = r / np.dot(kernel, v)
        error = np.abs(u / right_u - 1).max()
        if excess > 0:  # otherwise the columns have their sums
            error = max(error, np.abs(v / right_v - 1).max())
        if 2 * count < steps:
            middle = error
        count += 1
    return error, middle, count


def _by_tensors(
    kernel: Tensor, r: Tensor, c: Tensor, u: Tensor, v: Tensor, excess: Tensor, tolerance: float, steps: int
) -> Scaled:
    r, c, u, v = (x.unsqueeze(-2) for x in (r, c, u, v))  # as rows, which torch multiplies faster than columns
    transposed, longer, excess = kernel.mT, bool(excess.any()), excess[:, None, None]
    busy = torch.ones_like(r[..., :1], dtype=torch.bool)
    count, everybody = torch.zeros_like(busy, dtype=torch.int64), True
    right_u = r / torch.bmm(v, transposed)
    for step in range(steps):
        count += busy
        next_u = torch.addcmul(right_u, excess, right_u * (right_u / u - 1)) if longer else right_u
        right_v = c / torch.bmm(next_u, kernel)
        next_v = torch.addcmul(right_v, excess, right_v * (right_v / v - 1)) if longer else right_v
        if everybody:
            u, v = next_u, next_v
        else:
            u, v = torch.where(busy, next_u, u), torch.where(busy, next_v, v)
        right_u = r / torch.bmm(v, transposed)
        error = (u / right_u).sub_(1).abs_().amax(-1, keepdim=True)
        if longer:  # otherwise the columns have their sums
            error = torch.maximum(error, (next_v / right_v).sub_(1).abs_().amax(-1, keepdim=True))
        if 2 * step < steps:
            middle = error
        busy = error > tolerance
        running = int(busy.sum())
        everybody = running == len(busy)
        if not running:
            break
    return Scaled(u.squeeze(-2), v.squeeze(-2), error.flatten(), middle.flatten(), count.flatten())
