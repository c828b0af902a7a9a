"""Why a quadratic program has no solution: every verdict with evidence.

    minimise u' Q u / 2 + q' u   subject to   A u = b and G u <= h,   Q convex,

has a solution unless there is one of these:

    w = (y, l) with A' y + G' l = 0, l >= 0 and b' y + h' l < 0:   no point satisfies the constraints (Farkas)
    w with Q w = 0, A w = 0, G w <= 0 and q' w < 0:                the objective falls without limit along w

Both ask whether the projection w of -c onto a cone {w: C w = 0, F w <= 0} is zero, for c' w = -||w||^2. With rows of
length 1 the length of the first one is the least violation of the constraints that any point has.
"""

from __future__ import annotations

import torch
from torch import Tensor

from declarative import Status
from declarative.linear import times

from .flats import fall, next_constraint, null_space
from .interior import solve_program
from .program import Iterate, Program
from .systems import largest_or_one

ITERATIONS = 60  # of the interior-point method, to find evidence


def convex(Q: Tensor, dtype: torch.dtype) -> Tensor:  # (batch, m, m) -> (batch,)
    """Whether Q, in double precision, is positive semidefinite up to the rounding errors that it came with.

    A product R' R of this precision is off by rounding errors of sqrt(Q_ii Q_jj), whatever the units of u.
    """
    size = torch.diagonal(Q, dim1=-2, dim2=-1).abs() * torch.finfo(dtype).eps
    shift = 4 * Q.shape[-1] * (size + torch.finfo(Q.dtype).eps * largest_or_one(Q).unsqueeze(-1))
    return _definite(Q + torch.diag_embed(shift))


def convex_along(Q: Tensor, A: Tensor, dtype: torch.dtype) -> Tensor:  # (batch, m, m), (batch, p, m) -> (batch,)
    """The same for Q on the null space of A."""
    inside = null_space(A, torch.finfo(dtype).eps)
    reduced = inside.mT @ Q @ inside
    shift = 4 * Q.shape[-1] * torch.finfo(dtype).eps * largest_or_one(Q)
    return _definite(reduced + torch.diag_embed(shift.unsqueeze(-1).expand(reduced.shape[:-1])))


def _definite(matrix: Tensor) -> Tensor:
    definite: Tensor = torch.linalg.cholesky_ex(matrix).info == 0
    return definite


def reason(program: Program, point: Iterate, dtype: torch.dtype, otherwise: Status) -> Tensor:  # (batch,)
    """The status of programs without a solution, up to the rounding errors that they came with.

    Their rows have length 1, and they are convex on the null space of A at least. The points are where a solver ended.
    """
    eps = torch.finfo(dtype).eps
    program = program.to(torch.float64)
    codes = torch.full_like(program.q[:, 0], int(otherwise), dtype=torch.int64)
    rows = torch.stack([x.flatten(1).isfinite().all(-1) for x in program.tensors()]).all(0).nonzero().flatten()
    if not len(rows):
        return codes
    part, at = program.select(rows), Iterate(*(x.to(torch.float64) for x in point.select(rows).tensors()))
    way = fall(part, at, eps)
    falls = _falls(part, eps) | (way.any(-1) & ~next_constraint(part, at, way)[1])
    found = torch.where(falls, int(Status.UNBOUNDED), codes[rows])
    codes[rows] = torch.where(_contradicts(part, eps), int(Status.INFEASIBLE), found)
    return codes


def _contradicts(program: Program, eps: float) -> Tensor:
    """Whether there is a combination of the constraints that no point satisfies."""
    p, n = program.b.shape[-1], program.h.shape[-1]
    if not p + n:
        return torch.zeros_like(program.q[:, 0], dtype=torch.bool)
    signs = torch.diag_embed(-torch.ones_like(program.h))
    signs = torch.cat([signs.new_zeros(len(signs), n, p), signs], -1)
    return _reaches(program.rows.mT, program.level, signs, eps)


def _falls(program: Program, eps: float) -> Tensor:
    """Whether the objective falls without limit along a direction that the constraints allow."""
    Q, A = program.Q, program.A
    along = null_space(A, eps)
    along = along @ along.mT
    # The slope where A u = b: along a direction without curvature it is the same everywhere there.
    slope = program.q + times(Q, times(torch.linalg.pinv(A), program.b)) if A.shape[1] else program.q
    return _reaches(torch.cat([along @ Q @ along, A], -2), slope, program.G, eps)


def _reaches(C: Tensor, c: Tensor, F: Tensor, eps: float) -> Tensor:  # (batch,)
    """Whether the projection of -c onto {w: C w = 0, F w <= 0} is not zero."""
    inside, c = null_space(C, eps), c / largest_or_one(c).unsqueeze(-1)
    eye = torch.eye(c.shape[-1], dtype=c.dtype, device=c.device).expand_as(inside)
    cone, none = F @ inside, c[:, :0]
    size = torch.linalg.vector_norm(F, dim=-1, keepdim=True)
    cone = torch.where(cone.abs() > eps**0.75 * size, cone, 0.0)  # rounding is no direction
    program = Program(eye.clone(), times(inside.mT, c), cone[:, :0], none, cone, torch.zeros_like(cone[..., 0]))
    w = times(inside, solve_program(program.normalised().program, ITERATIONS)[0].u)
    size = torch.linalg.vector_norm(w, dim=-1)
    outside = times(F, w).clamp(min=0.0).amax(-1) if F.shape[-2] else torch.zeros_like(size)
    small = eps**0.5
    found: Tensor = (-(c * w).sum(-1) > small * size) & (size > small) & (outside <= small * size)
    return found
