"""The Schur complement of optimal transport: [diag(P 1) P; P' diag(P' 1)] for a plan P, never formed as a whole."""

from __future__ import annotations

import torch
from torch import Tensor

from declarative.linear import Pair, times, warn_of

DIRECT = 128  # up to this size the Schur complement is factorised, above it is solved by conjugate gradients
STEPS = 100  # of conjugate gradients; a problem that needs more is factorised after all
SHARE = 6  # one step takes as long as a factorisation of size n does, times this number, divided by n


def solve_schur(plan: Tensor, b: Tensor, d: Tensor, *, warn: bool = True) -> Pair:
    """(s, t) with [diag(P 1) P; P' diag(P' 1)] [s; t] = [b; d] for sum(b) = sum(d), and t = 0 in its last entry.

    The matrix is singular along [1; -1]: a shift between the two kinds of potentials, which the last entry of t fixes.
    The larger side is eliminated.
    """
    if plan.shape[-2] < plan.shape[-1]:
        t, s = _eliminate(plan.mT, d, b, warn)
    else:
        s, t = _eliminate(plan, b, d, warn)
    shift = t[:, -1:]
    return s + shift, t - shift


def _eliminate(plan: Tensor, b: Tensor, d: Tensor, warn: bool) -> Pair:  # plan: (batch, m, n) with m >= n
    """By the equation (diag(P' 1) - P' diag(P 1)^-1 P) t = d - P' diag(P 1)^-1 b."""
    rows, columns = plan.sum(-1), plan.sum(-2)
    right = d - times(plan.mT, b / rows)
    right = right - columns * (right.sum(-1, keepdim=True) / columns.sum(-1, keepdim=True))  # into the range
    if plan.shape[-1] <= DIRECT:
        t = _factorised(plan, rows, columns, right, warn)
    else:
        t, rest = _conjugate_gradients(plan, rows, columns, right, min(STEPS, 1 + plan.shape[-1] // SHARE))
        if rest.any():
            t[rest] = _factorised(plan[rest], rows[rest], columns[rest], right[rest], warn)
    return (b - times(plan, t)) / rows, t


def _conjugate_gradients(plan: Tensor, rows: Tensor, columns: Tensor, right: Tensor, steps: int) -> Pair:
    """The solution, preconditioned by the diagonal P' 1, and which problems have not converged.

    Vectors are rows here, (batch, 1, n). A product with the matrix is two passes over the plan.
    """
    rows, columns, residual = (x.unsqueeze(-2) for x in (rows, columns, right))
    transposed, least = plan.mT, torch.finfo(plan.dtype).tiny
    x, direction = torch.zeros_like(residual), residual / columns
    square = (residual * direction).sum(-1, keepdim=True)
    goal = (16 * torch.finfo(plan.dtype).eps) ** 2 * square
    half_way = (goal * square).sqrt()
    for step in range(steps):
        if (square <= goal).all() or (2 * step > steps and not (square <= half_way).any()):
            break  # done, or hopeless: not even half of the digits in half of the steps
        image = torch.baddbmm(columns * direction, torch.bmm(direction, transposed).div_(rows), plan, alpha=-1)
        length = square / (direction * image).sum(-1, keepdim=True).clamp_(min=least)
        x = torch.addcmul(x, length, direction)
        residual = torch.addcmul(residual, length, image, value=-1)
        scaled, before = residual / columns, square
        square = (residual * scaled).sum(-1, keepdim=True)
        direction = torch.addcmul(scaled, square / before.clamp(min=least), direction)
    return x.squeeze(-2), ~(square <= goal).flatten()


def _factorised(plan: Tensor, rows: Tensor, columns: Tensor, right: Tensor, warn: bool) -> Tensor:
    """By Cholesky, or the least-norm solution where the plan falls apart into blocks that exchange no mass.

    The matrix is scaled to I - W' W + q q', W = diag(P 1)^-1/2 P diag(P' 1)^-1/2, where q spans the null space of
    I - W' W.
    """
    root = columns.sqrt()
    null = root / torch.linalg.vector_norm(root, dim=-1, keepdim=True)
    right = right / root
    half = (plan / rows.sqrt().unsqueeze(-1)).div_(root.unsqueeze(-2))
    eye = torch.eye(plan.shape[-1], dtype=plan.dtype, device=plan.device)
    matrix = torch.addcmul(eye, null.unsqueeze(-1), null.unsqueeze(-2)).baddbmm_(half.mT, half, alpha=-1)
    factor, info = torch.linalg.cholesky_ex(matrix)
    pivots = torch.diagonal(factor, dim1=-2, dim2=-1).amin(-1)
    good = (info == 0) & (pivots > 4 * torch.finfo(plan.dtype).eps ** 0.5)
    regular = bool(good.all())
    factor = factor if regular else torch.where(good[:, None, None], factor, eye)
    column = right.unsqueeze(-1)
    y = torch.cholesky_solve(column, factor)
    y = y + torch.cholesky_solve(torch.baddbmm(column, matrix, y, alpha=-1), factor)
    if not regular:
        singular = matrix[~good]
        finite = (
            singular.isfinite().all(-1).all(-1)[:, None, None]
        )  # what is not has no solution, which the node will say
        values, vectors = torch.linalg.eigh(torch.where(finite, singular, 0.0))
        smallest = 16 * plan.shape[-1] * torch.finfo(plan.dtype).eps
        inverse = 1 / values.clamp(min=smallest)  # a step of Newton's method needs these directions
        if warn:
            inverse = torch.where(values > smallest, inverse, 0.0)
        y[~good] = vectors @ (inverse.unsqueeze(-1) * (vectors.mT @ right[~good].unsqueeze(-1)))
        if warn:
            why = "the transport plan falls apart into blocks that exchange no mass, and the system is singular"
            warn_of(~good, why, "the least-norm solution was used. A smaller gamma keeps the blocks together")
    return y.squeeze(-1) / root
