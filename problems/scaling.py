"""Some of Sinkhorn's iterations u = r / K v, v = c / K' u, for a batch: by the compiled core, or by torch.

Each step may be longer than Sinkhorn's by an excess w: u (r / u K v)^(1 + w), to first order.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from declarative.kernels.library import as_buffer, available, call, threads

LOOPS = {torch.float64: "sinkhorn_iterate_double", torch.float32: "sinkhorn_iterate_float"}


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
    if kernel.device.type != "cpu" or kernel.dtype not in LOOPS or not available():
        return _by_tensors(kernel, r, c, u, v, excess, tolerance, steps)
    (batch, m, n), dtype = kernel.shape, kernel.dtype
    u, v = (x.clone(memory_format=torch.contiguous_format) for x in (u, v))  # for they are overwritten
    error, middle = u.new_empty(batch), u.new_empty(batch)
    count = torch.empty(batch, dtype=torch.int64, device=u.device)
    given = [as_buffer(x, dtype) for x in (kernel, r, c, u, v, excess)]
    addresses = [x.data_ptr() for x in (*given, error, middle, count)]
    call(LOOPS[dtype], *addresses, tolerance, steps, batch, m, n, threads())
    return Scaled(u, v, error, middle, count)


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
