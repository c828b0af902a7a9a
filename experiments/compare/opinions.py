"""Gradients by other ways than that of cvxpylayers: the node's own, finite differences, and the printed formula."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from declarative import DeclarativeNode
from problems import Layer

STEP = 1e-5  # of finite differences, relative to the largest entry of an input; small, so as not to meet a kink
STENCIL = ((1, 8 / 12), (-1, -8 / 12), (2, -1 / 12), (-2, 1 / 12))  # of fourth order


def gradients(node: DeclarativeNode, xs: Sequence[Tensor], v: Tensor) -> list[Tensor]:
    """By the node's own backward pass."""
    leaves = [x.detach().requires_grad_() for x in xs]
    return list(torch.autograd.grad(node(*leaves), leaves, v, materialize_grads=True))


def finite_differences(node: DeclarativeNode, xs: Sequence[Tensor], i: int, v: Tensor) -> Tensor:
    """The gradient of v'y to input i by differences of fourth order, all in one batch of problems."""
    x = xs[i].detach()
    batch, n = x.shape[0], x[0].numel()
    step = STEP * x.abs().max().item()
    moves = step * torch.eye(n, dtype=x.dtype).view(n, 1, *x.shape[1:])
    slope = torch.zeros(n, batch, dtype=x.dtype)
    for offset, weight in STENCIL:
        inputs = [other.detach().expand(n, *other.shape).flatten(0, 1) for other in xs]
        inputs[i] = (x + offset * moves).flatten(0, 1)
        with torch.no_grad():
            y = node(*inputs).view(n, batch, -1)
        slope += weight / step * (y * v.reshape(batch, -1)).sum(-1)
    return slope.mT.reshape(x.shape)


def formula_gradients(node: DeclarativeNode, xs: Sequence[Tensor], v: Tensor) -> list[Tensor]:
    """Proposition 2.1 as it is printed, with all its matrices, for one problem after another."""
    leaves = [x.detach().requires_grad_() for x in xs]
    completed = node.prepare(*leaves) if isinstance(node, Layer) else tuple(leaves)
    d = node.derivatives(*(x.detach() for x in leaves))
    flat = []
    for k in range(len(v)):
        A, C = (torch.cat([h[k], g[k][d.active[k]]]) for h, g in ((d.A, d.G), (d.C, d.G_X)))  # with active rows
        H_inverse, B = torch.linalg.inv(d.H[k]), d.B[k]
        Dy = H_inverse @ A.mT @ torch.linalg.inv(A @ H_inverse @ A.mT) @ (A @ H_inverse @ B - C) - H_inverse @ B
        flat.append(v[k].flatten() @ Dy)
    parts = torch.stack(flat).split([x[0].numel() for x in completed], -1)
    shaped = [part.view(x.shape) for part, x in zip(parts, completed, strict=True)]
    used = [(x, g) for x, g in zip(completed, shaped, strict=True) if x.requires_grad]
    return list(torch.autograd.grad([x for x, _ in used], leaves, [g for _, g in used]))
