"""That a problem has no solution, proved as far as a few points can: a theorem of the alternative for convex problems.

With weights w, not negative for inequalities, phi = w'c is zero or less at every feasible point. If phi is convex, and
stationary where it is positive, it is positive everywhere: there is no feasible point, and no other solver finds one.
The weights are the violations themselves, which pull against each other where a solver has got stuck.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from ..factorisation import times
from ..irregular import irregular
from ..problem import Batch

REACH = 1e3  # times the size of u: no feasible point is nearer than this
CONVEX = 1e-8  # of the largest eigenvalue: one below minus that is negative


def proves_infeasible(batch: Batch, u: Tensor, start: Tensor) -> Tensor:  # (size, m) twice -> (size,)
    """Which problems are shown to be infeasible by the violations at u; convexity is tested there and at other points."""
    if not batch.k:
        return torch.zeros(batch.size, dtype=torch.bool, device=u.device)
    batch = dataclasses.replace(batch.in_double(), recording=None)
    work = next((x.dtype for x in batch.xs if x.is_floating_point()), u.dtype)
    u, start = u.to(work), start.to(work)
    length = torch.linalg.vector_norm(batch.jacobian(start), dim=-1)  # the units in which solvers weigh constraints
    values = batch.constraints(u)
    violated = torch.cat([values[:, : batch.p], values[:, batch.p :].clamp(min=0.0)], -1)
    weights = violated / torch.where(length > 0, length, 1.0).square()
    slope = torch.linalg.vector_norm(times(batch.jacobian(u).mT, weights), dim=-1)
    size = torch.linalg.vector_norm(u, dim=-1).clamp(min=1.0)
    proved = (weights * values).sum(-1) > REACH * slope * size
    flat = dataclasses.replace(batch, problem=dataclasses.replace(batch.problem, objective=_nothing))
    away = irregular(u) * size.unsqueeze(-1)
    for point in (u, start, u + away, u - 10 * away):
        proved = proved & _is_convex(-flat.hessian(point, weights))  # of the Lagrangian -w'c
    return proved


def _is_convex(hessian: Tensor) -> Tensor:
    finite = hessian.isfinite().all(-1).all(-1)
    values = torch.linalg.eigvalsh(torch.where(finite[:, None, None], hessian, 0.0))
    return finite & (values[:, 0] >= -CONVEX * values.abs().amax(-1))


def _nothing(*arguments: Tensor) -> Tensor:
    return 0.0 * arguments[-1].sum()
