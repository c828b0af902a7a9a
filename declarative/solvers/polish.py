"""Newton steps on the optimality conditions, from a point that is nearly a solution.

The accuracy of a solution bounds the accuracy of its gradient, so a solver that stops early is finished here.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from ..linear.dense import Pair, factorise_dense
from ..linear.systems import Prepared
from ..optimality import Assessment, assess, constraint_scale, estimate_multipliers, optimality_tolerance
from ..problem import Batch
from ..solution import RawSolution, Status
from .compaction import compacted

STEPS = 20  # quadratic convergence needs a handful; each problem stops by itself
EXACT = 8  # rounding errors: a residual of this many units in the last place cannot be improved
CLOSE = 64  # and one of this many is not worth a step
NEAR = 1e-2  # further from a solution than this, a Newton step is a gamble and the solver's point is kept


def polish(batch: Batch, raw: RawSolution, factor: Prepared | None = None) -> RawSolution:
    """Improve every problem for as long as its residual falls; with a factorisation from nearby, if there is one.

    The active constraints are chosen anew in each step by comparing multipliers with slacks (a primal-dual active-set,
    or semismooth Newton, method), so that a wrong guess mends itself.
    """
    u, best = raw.y, _first_assessment(batch, raw.y, raw.multipliers)
    exact = EXACT * torch.finfo(u.dtype).eps
    if factor is not None:
        u, best = _improve(batch, u, best, exact, factor)
        exact = 1e3 * exact  # what it could not do to within three digits of the best, new factorisations shall
    u, best = _improve(batch, u, best, exact, None)
    doubtful = (best.residual > optimality_tolerance(u.dtype)) & (raw.codes == Status.CONVERGED)
    codes = torch.where(doubtful, int(Status.NOT_OPTIMAL), raw.codes)
    return dataclasses.replace(raw, y=u, multipliers=best.multipliers, codes=codes, assessment=best)


def _improve(
    batch: Batch, u: Tensor, best: Assessment, exact: float, factor: Prepared | None
) -> tuple[Tensor, Assessment]:
    improving = (best.residual < NEAR) & (best.residual > exact * CLOSE / EXACT)
    for _ in range(STEPS):
        if not improving.any():
            break
        rows = compacted(improving)
        if rows is None:
            rows, part, near = torch.arange(batch.size, device=u.device), batch, factor
        else:
            part, near = batch.select(rows), None if factor is None else factor.take(rows)
        step, change = _newton_step(part, u[rows], _rows(best, rows), near)
        moved = u[rows] + torch.where(step.isfinite().all(-1, keepdim=True), step, 0.0)
        new = assess(part, moved, best.multipliers[rows] + change)
        better = new.residual < best.residual[rows]
        accepted = rows[better]
        u = u.index_copy(0, accepted, moved[better])
        best = _merge(best, accepted, _rows(new, better))
        improving = torch.zeros_like(improving).index_fill(0, accepted, True) & (best.residual > exact)
    return u, best


def _first_assessment(batch: Batch, u: Tensor, multipliers: Tensor | None) -> Assessment:
    """At a rough point it is not clear which constraints are active: try several guesses, keep the best of each."""
    best = assess(batch, u, multipliers)
    if not batch.q or bool((best.residual <= optimality_tolerance(u.dtype)).all()):
        return best
    here = batch.expand_along(u, u)
    values, gradient, jacobian = here.values, here.gradient, here.jacobian
    reach = constraint_scale(jacobian, u)
    equality = torch.arange(batch.k, device=u.device) < batch.p
    tight = [equality | (values > -near * reach) for near in (1e-8, 1e-4, 1e-2)]
    for rows in tight:
        new = assess(batch, u, estimate_multipliers(gradient, jacobian, rows))
        better = new.residual < best.residual
        best = _merge(best, better.nonzero().flatten(), _rows(new, better))
    return best


def _newton_step(batch: Batch, u: Tensor, state: Assessment, near: Prepared | None) -> Pair:
    """(du, dl) from [H A'; A 0] [du; -dl] = -[D_U L; c], the active rows alone."""
    if near is not None:
        _, slope, values, _ = batch.slopes(u, state.multipliers)
        step, change = near.solve_system(-slope, -values)
        return step, -change
    here = batch.expand(u, state.multipliers)
    step, change = factorise_dense(here.curvature, here.jacobian, state.active, None)(-here.gradient, -here.values)
    return step, -change


def _rows(state: Assessment, rows: Tensor) -> Assessment:
    return Assessment(*(getattr(state, field.name)[rows] for field in dataclasses.fields(state)))


def _merge(state: Assessment, rows: Tensor, new: Assessment) -> Assessment:
    names = [field.name for field in dataclasses.fields(state)]
    return Assessment(*(getattr(state, name).index_copy(0, rows, getattr(new, name)) for name in names))
