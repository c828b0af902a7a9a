"""Directions along which a convex quadratic program is flat: no curvature, and no active constraint in the way.

At a solution the objective has no slope along them. However small such a slope is, it leads as far away as the next
constraint, so that it counts unless it is a rounding error of the terms that it is summed up from; how large other
slopes are does not matter.
"""

from __future__ import annotations

import torch
from torch import Tensor

from declarative.linear import times

from .program import Iterate, Program, residuals

ROUNDING = 64  # units in the last place of the terms of a slope: below that, it is zero


def null_space(C: Tensor, eps: float) -> Tensor:  # (batch, k, m) -> (batch, m, m)
    """An orthonormal basis of {w: C w = 0} as columns; those beyond its dimension are zero."""
    square = torch.nn.functional.pad(C, (0, 0, 0, max(0, C.shape[2] - C.shape[1])))
    _, values, vectors = torch.linalg.svd(square.nan_to_num(0.0, 0.0, 0.0), full_matrices=False)  # a NaN fails all
    free = values <= 10 * max(C.shape[1:]) * eps * values[:, :1]
    basis: Tensor = vectors.mT * free.unsqueeze(-2)
    return basis


def fall(program: Program, point: Iterate, eps: float | None = None) -> Tensor:  # (batch, m)
    """The steepest way down along the flat directions of a point; zero where there is none.

    What is known of a program to ``eps`` only, by default the precision that it comes in, says so much less.
    """
    eps = torch.finfo(point.u.dtype).eps if eps is None else eps
    dual = residuals(program, point).dual
    noise = ROUNDING * eps * program.forces(point)
    way = torch.zeros_like(dual)
    rows = (dual.abs() > noise).any(-1).nonzero().flatten()
    if len(rows):
        part, at = program.select(rows), point.select(rows)
        active = torch.cat([torch.ones_like(at.y), (at.l > at.w).to(at.u.dtype)], -1)
        inside = null_space(torch.cat([_along(part, eps), part.rows * active.unsqueeze(-1)], -2), eps)
        slope = times(inside.mT, dual[rows])
        clear = slope.abs() > times(inside.abs().mT, noise[rows])
        way[rows] = -times(inside, torch.where(clear, slope, 0.0))
    return way


def _along(program: Program, eps: float) -> Tensor:  # (batch, m, m)
    """Q between directions that keep A u: it need not be convex along others."""
    if not program.b.shape[-1]:
        return program.Q
    free = null_space(program.A, eps)
    free = free @ free.mT
    return free @ program.Q @ free


def next_constraint(program: Program, point: Iterate, way: Tensor) -> tuple[Tensor, Tensor]:
    """The inequality that is met first on the way from a point, (batch, n), and whether there is any, (batch,)."""
    rate = times(program.G, way)
    rounding = torch.finfo(way.dtype).eps ** 0.75 * torch.linalg.vector_norm(way, dim=-1, keepdim=True)
    ahead = (rate > rounding) & ~(point.l > point.w)
    if not rate.shape[-1]:
        return ahead, ahead.any(-1)
    steps = torch.where(ahead, point.w / torch.where(ahead, rate, 1.0), torch.inf)
    first = torch.zeros_like(ahead).scatter(-1, steps.argmin(-1, keepdim=True), True)
    return first & ahead, ahead.any(-1)
