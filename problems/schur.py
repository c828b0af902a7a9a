"""The Schur complement of optimal transport: [diag(P 1) P; P' diag(P' 1)] for a plan P, never formed as a whole."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from declarative import NumericalWarning

from .layer import thin_product

Pair = tuple[Tensor, Tensor]

DIRECT = 256  # up to this size the Schur complement is factorised, above it is solved by conjugate gradients
STEPS = 100  # of conjugate gradients; a problem that needs more is factorised after all


def times(matrix: Tensor, vector: Tensor) -> Tensor:
    """A batch of matrix-vector products."""
    return thin_product(matrix, vector.unsqueeze(-1)).squeeze(-1)


def or_one(x: Tensor) -> Tensor:
    """What is positive, and 1 elsewhere: to divide by."""
    return torch.where(x > 0, x, 1.0)


def solve_schur(plan: Tensor, b: Tensor, d: Tensor, *, warn: bool = True) -> Pair:
    """(s, t) with [diag(P 1) P; P' diag(P' 1)] [s; t] = [b; d] for sum(b) = sum(d), and t = 0 in its last entry.

    The matrix is singular along [1; -1]: a shift between the two kinds of potentials, which the last entry of t fixes.
    The larger side is eliminated, and the remaining side scaled so that its diagonal is 1.
    """
    if plan.shape[-2] < plan.shape[-1]:
        t, s = _eliminate(plan.mT, d, b, warn)
    else:
        s, t = _eliminate(plan, b, d, warn)
    shift = t[:, -1:]
    return s + shift, t - shift


def _eliminate(plan: Tensor, b: Tensor, d: Tensor, warn: bool) -> Pair:  # plan: (batch, m, n) with m >= n
    rows, columns = plan.sum(-1), plan.sum(-2)
    root = columns.sqrt()
    null = root / torch.linalg.vector_norm(root, dim=-1, keepdim=True)

    def scaled_product(x: Tensor) -> Tensor:
        """(I - W' W + q q') x, W = diag(P 1)^-1/2 P diag(P' 1)^-1/2, where q spans the null space of I - W' W."""
        inner = times(plan.mT, times(plan, x / root) / rows) / root
        return x - inner + null * (null * x).sum(-1, keepdim=True)

    right = (d - times(plan.mT, b / rows)) / root
    right = right - null * (null * right).sum(-1, keepdim=True)
    y = torch.zeros_like(right)
    left = torch.ones_like(right[:, 0], dtype=torch.bool)
    if plan.shape[-1] > DIRECT:
        y, left = _conjugate_gradients(scaled_product, right)
    if left.any():
        y[left] = _factorised(plan[left], rows[left], root[left], null[left], right[left], warn)
    t = y / root
    return (b - times(plan, t)) / rows, t


def _conjugate_gradients(product: Callable[[Tensor], Tensor], right: Tensor) -> tuple[Tensor, Tensor]:
    """The solution, and which problems have not converged."""
    tolerance = 16 * torch.finfo(right.dtype).eps * torch.linalg.vector_norm(right, dim=-1)
    x, residual = torch.zeros_like(right), right
    direction, square = right, right.square().sum(-1)
    for _ in range(STEPS):
        if (square.sqrt() <= tolerance).all():
            break
        image = product(direction)
        step = (square / or_one((direction * image).sum(-1))).unsqueeze(-1)
        x = x + step * direction
        residual = residual - step * image
        new = residual.square().sum(-1)
        direction = residual + (new / or_one(square)).unsqueeze(-1) * direction
        square = new
    return x, ~(square.sqrt() <= tolerance)


def _factorised(plan: Tensor, rows: Tensor, root: Tensor, null: Tensor, right: Tensor, warn: bool) -> Tensor:
    """By Cholesky, or the least-norm solution where the plan falls apart into blocks that exchange no mass."""
    half = plan / rows.sqrt().unsqueeze(-1) / root.unsqueeze(-2)
    eye = torch.eye(plan.shape[-1], dtype=plan.dtype, device=plan.device)
    matrix = eye - half.mT @ half + null.unsqueeze(-1) * null.unsqueeze(-2)
    factor, info = torch.linalg.cholesky_ex(matrix)
    pivots = torch.diagonal(factor, dim1=-2, dim2=-1).amin(-1)
    good = (info == 0) & (pivots.square() > 16 * torch.finfo(plan.dtype).eps)
    factor = torch.where(good[:, None, None], factor, eye)
    y = torch.cholesky_solve(right.unsqueeze(-1), factor)
    y = y + torch.cholesky_solve(right.unsqueeze(-1) - matrix @ y, factor)
    if not good.all():
        values, vectors = torch.linalg.eigh(matrix[~good])
        smallest = 16 * plan.shape[-1] * torch.finfo(plan.dtype).eps
        regular = values > smallest
        inverse = 1 / values.clamp(min=smallest)  # a step of Newton's method needs these directions
        if warn:
            inverse = torch.where(regular, inverse, 0.0)
        y[~good] = vectors @ (inverse.unsqueeze(-1) * (vectors.mT @ right[~good].unsqueeze(-1)))
        if warn:
            warnings.warn(
                f"{int((~good).sum())} problem(s) of the batch: the transport plan falls apart into blocks that "
                "exchange no mass, and the system is singular; the least-norm solution was used. A smaller gamma "
                "keeps the blocks together.",
                NumericalWarning,
                stacklevel=2,
            )
    return y.squeeze(-1)
