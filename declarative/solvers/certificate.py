"""That a problem has no solution, proved as far as a few points can.

Infeasible, by a theorem of the alternative for convex problems:
With weights w, not negative for inequalities, phi = w'c is zero or less at every feasible point. If phi is convex, and
stationary where it is positive, it is positive everywhere: there is no feasible point, and no other solver finds one.
The weights are the violations themselves, but for rounding errors: where their sum of squares is least, they pull
against each other.

Unbounded, by a ray: from the start through a point far away the objective falls by no less from one power of ten to the
next, and the constraints stay satisfied.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from ..linear import DENSE, or_one, times
from ..linear.directions import irregular
from ..problem import Batch

LARGE = 1000  # unknowns and constraints of sparse problems, of which a dense matrix is not to be formed
REACH = 1e3  # times the size of u: no feasible point is nearer than this
CONVEX = 1e-8  # of the largest eigenvalue: one below minus that is negative
BALANCED = 1e-3  # of the weights: a change by more is not one of rounding errors
POINTS = 24  # at which phi must be convex
DISTANCES = (0.0, 0.3, -1.0, 3.0, -10.0)  # of these points from u, in sizes of u
STEPS = 15  # of Newton's method, from where a solver got stuck
LENGTHS = (1.0, 0.5, 0.1, 0.01)  # of a step; the best is taken


DECADES = 6  # that the objective has to go on falling over
RAY_FEASIBLE = 1e-6  # violations along a ray, relative to what is summed up in a constraint
AWAY = 1e3  # sizes of the start: a ray is looked at from points that are further away than this


def proves_unbounded(batch: Batch, u: Tensor, start: Tensor) -> Tensor:  # (size, m) twice -> (size,)
    """Which problems fall for ever from the start through u; asked only where u has run far away."""
    away = u - start
    if not batch.size:
        return torch.zeros(0, dtype=torch.bool, device=u.device)
    proved = (away.abs().amax(-1) > AWAY * (1 + start.abs().amax(-1))) & away.isfinite().all(-1)
    if not bool(proved.any()):
        return proved
    lengths = [10.0**decade for decade in range(-1, DECADES)]
    points = [start + length * torch.where(proved.unsqueeze(-1), away, 0.0) for length in lengths]
    heights = torch.stack([batch.objective(point) for point in points]).double()
    drops = heights[:-1] - heights[1:]
    falls = (drops > 0) & (drops >= 0.5 * torch.cat([drops[:1], drops[:-1]]))
    falls = falls | (heights[1:] == -torch.inf)
    proved = proved & falls.all(0)
    for point in points[1:] if batch.k else []:
        values, jacobian = batch.constraints(point), batch.jacobian(point)
        missed = torch.cat([values[:, : batch.p].abs(), values[:, batch.p :].clamp(min=0.0)], -1)
        reach = batch.layout.jacobian.multiply(jacobian.abs(), point.abs())
        proved = proved & (missed <= RAY_FEASIBLE * (reach + 1e-300)).all(-1)
    return proved


def proves_infeasible(batch: Batch, u: Tensor, start: Tensor) -> Tensor:  # (size, m) twice -> (size,)
    """Which problems are shown to be infeasible, from u or from the start; phi is tested at several points."""
    if not batch.k or not batch.size or (batch.layout is not DENSE and batch.m + batch.k > LARGE):
        return torch.zeros(batch.size, dtype=torch.bool, device=u.device)
    batch, work = batch.dense().in_double(u.dtype)
    violation = _Violation.of(batch, start.to(work))
    proved = violation.proves(u.to(work))
    if not bool(proved.all()):  # a solver may have run away from where it can be seen
        proved = proved | violation.proves(start.to(work))
    return proved


@dataclasses.dataclass(frozen=True)
class _Violation:
    """The sum of the squares of the violations, in units in which constraints have slope 1 at the start."""

    batch: Batch
    length: Tensor  # (size, k)

    @classmethod
    def of(cls, batch: Batch, start: Tensor) -> _Violation:
        problem = dataclasses.replace(batch.problem, objective=_zero)  # so that L = -w'c
        return cls(
            dataclasses.replace(batch, problem=problem, evaluator=None),
            or_one(torch.linalg.vector_norm(batch.jacobian(start), dim=-1)),
        )

    def proves(self, u: Tensor) -> Tensor:  # (size,)
        """Whether w'c is positive, stationary and convex where the violation is least, near u."""
        u, batch = self.least(u), self.batch
        weights = self.balanced(u)
        slope = torch.linalg.vector_norm(times(batch.jacobian(u).mT, weights), dim=-1)
        phi = (weights * batch.constraints(u)).sum(-1)
        size = torch.linalg.vector_norm(u, dim=-1).clamp(min=1.0)
        proved: Tensor = phi > REACH * slope * size
        for i in range(POINTS):
            if not proved.any():
                break
            away = DISTANCES[i % len(DISTANCES)] * size.unsqueeze(-1) * irregular(u, 0.7 + 0.3 * i)
            proved = proved & _is_convex(self.curvature(u + away, weights))
        return proved

    def weights(self, u: Tensor) -> Tensor:  # (size, k)
        values, p = self.batch.constraints(u), self.batch.p
        return torch.cat([values[:, :p], values[:, p:].clamp(min=0.0)], -1) / self.length.square()

    def balanced(self, u: Tensor) -> Tensor:  # (size, k)
        """The weights, changed by what rounding errors have left of the slope, if it is they that have left it."""
        weights, jacobian, values = self.weights(u), self.batch.jacobian(u), self.batch.constraints(u)
        rows = torch.where(weights.ne(0).unsqueeze(-1), jacobian, 0.0).nan_to_num(0.0, 0.0, 0.0)
        changed = weights - times(torch.linalg.pinv(rows).mT, times(jacobian.mT, weights))
        changed = torch.cat([changed[:, : self.batch.p], changed[:, self.batch.p :].clamp(min=0.0)], -1)
        few = (changed - weights).abs().amax(-1) <= BALANCED * weights.abs().amax(-1)
        noise = torch.finfo(values.dtype).eps * (times(jacobian.abs(), u.abs()) + values.abs())
        clear = (changed * values).sum(-1) > REACH * (changed.abs() * noise).sum(-1)
        return torch.where((few & clear).unsqueeze(-1), changed, weights)

    def total(self, u: Tensor) -> Tensor:  # (size,)
        return (self.weights(u) * self.length).square().sum(-1).nan_to_num(torch.inf)

    def slope(self, u: Tensor) -> Tensor:  # (size, m)
        return times(self.batch.jacobian(u).mT, self.weights(u))

    def curvature(self, u: Tensor, weights: Tensor) -> Tensor:  # of w'c, (size, m, m)
        return -self.batch.hessian(u, weights)

    def least(self, u: Tensor) -> Tensor:
        """Newton's method from u; a problem stays where it is if that does not help it."""
        for _ in range(STEPS):
            weights = self.weights(u)
            rows = torch.where(weights.ne(0).unsqueeze(-1), self.batch.jacobian(u) / self.length.unsqueeze(-1), 0.0)
            hessian = (self.curvature(u, weights) + rows.mT @ rows).nan_to_num(0.0, 0.0, 0.0)
            damping = 1e-10 * or_one(hessian.abs().amax((-2, -1)))[:, None, None]
            eye = torch.eye(u.shape[-1], dtype=u.dtype, device=u.device)
            step = torch.linalg.solve_ex(hessian + damping * eye, -self.slope(u))[0].nan_to_num(0.0, 0.0, 0.0)
            places = torch.stack([u, *(u + length * step for length in LENGTHS)])
            best = torch.stack([self.total(place) for place in places]).argmin(0)
            if not best.any():
                break
            u = places[best, torch.arange(len(u), device=u.device)]
        return u


def _is_convex(hessian: Tensor) -> Tensor:
    finite = hessian.isfinite().all(-1).all(-1)
    values = torch.linalg.eigvalsh(torch.where(finite[:, None, None], hessian, 0.0))
    convex: Tensor = finite & (values[:, 0] >= -CONVEX * values.abs().amax(-1))
    return convex


def _zero(*arguments: Tensor) -> Tensor:
    return 0.0 * arguments[-1].sum()
