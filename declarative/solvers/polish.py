"""Newton steps on the optimality conditions, from a point that is nearly a solution.

The accuracy of a solution bounds the accuracy of its gradient, so a solver that stops early is finished here: the
verdict on a point is a Newton step, which is taken for as long as the points get better.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from ..optimality import Assessment, Moved, assess, estimate_multipliers, optimality_tolerance, quick_verdict
from ..problem import Batch
from ..solution import RawSolution, Status
from ..structure import Structure
from .compaction import compacted

STEPS = 60  # quadratic convergence needs a handful, a degenerate minimum more; each problem stops by itself
EXACT = 64  # rounding errors: a distance of this many units in the last place is not worth a step
QUICK_STEPS = 2  # are enough where a solver has done its work
SMALL = 128  # unknowns: up to there all entries of H are evaluated, whatever its structure may be
ROUGH = (1e-6, 1e-4, 1e-2)  # slacks, relative to u, below which a constraint may be active
QUICK = 0.1  # of the slopes is what a step leaves at most if Newton's method converges as it should
CLOSE = 1e-2  # further from a solution than this, a Newton step is a gamble and the solver's point is kept


def polish(
    batch: Batch,
    raw: RawSolution,
    start: Tensor | None = None,
    dtype: torch.dtype | None = None,
    minimum: bool = True,
    counts: bool = False,
) -> RawSolution:
    """Improve every problem for as long as its distance to a solution falls.

    The active constraints are chosen anew in each step by comparing multipliers with slacks (a primal-dual active-set,
    or semismooth Newton, method), so that a wrong guess mends itself.

    Args:
        batch: the problems.
        raw: points near solutions, in the precision of the batch.
        start: where the solver came from, (batch, m).
        dtype: the precision that the solutions are wanted in, for the verdict; by default that of the points.
        minimum: whether a saddle point is no solution.
        counts: whether the steps count as iterations.
    """
    travel = None if start is None else raw.y - start.to(raw.y.dtype)
    done, raw = _quickly(batch, raw, travel, dtype or raw.y.dtype, counts)
    return raw if done else _carefully(batch, raw, travel, dtype, minimum, counts)


def _quickly(
    batch: Batch, raw: RawSolution, travel: Tensor | None, dtype: torch.dtype, counts: bool
) -> tuple[bool, RawSolution]:
    """As it should be: a step or two, and there is nothing left to improve, nor to be asked; whether that is so."""
    u, multipliers = raw.y, raw.multipliers
    if multipliers is None:
        return False, raw
    structure: Structure = "dense" if batch.m <= SMALL else "auto"
    move = _crossed_over if batch.q else None
    steps: Tensor | int = 0
    longest: Tensor | None = None
    for _ in range(QUICK_STEPS + 1):
        seen = quick_verdict(batch, u, multipliers, dtype, travel, structure, move)
        if seen is None:
            return False, raw
        if move is not None:
            u, multipliers, steps, move = seen["u"], seen["given"], steps + seen["moved"], None
        conclusive = seen.conclusive
        if bool(conclusive.all()):
            best = seen.assessment()
            return True, _polished(raw, u, best, steps if counts else 0)
        if not bool((conclusive | (seen["trusted"] & (seen["distance"] < torch.inf))).all()):
            return False, raw
        step = seen["step"]
        length, close = step.abs().amax(-1), CLOSE * _way(raw.y, travel).amax(-1)
        if not bool((conclusive | (length <= (close if longest is None else longest))).all()):
            near = bool((length <= close).all())  # as good as rounding errors let it be; elsewhere it is a gamble
            return False, dataclasses.replace(raw, y=u, multipliers=multipliers) if near else raw
        ahead = ~conclusive.unsqueeze(-1)
        u, multipliers = u + ahead * step, seen["multipliers"] - ahead * seen["change"]
        steps, longest = steps + ~conclusive, QUICK * length
    return False, dataclasses.replace(raw, y=u, multipliers=multipliers)


def _way(u: Tensor, travel: Tensor | None) -> Tensor:  # (batch, m)
    """What u is made of: its size, or that of the way there."""
    return u.abs() if travel is None else torch.maximum(u.abs(), travel.abs())


def _crossed_over(batch: Batch, u: Tensor, given: Tensor, travel: Tensor | None) -> Moved:
    """From a point near the boundary, where a barrier ends, onto it: a Newton step with the constraints that push.

    It is the step that a first verdict would lead to, for a fraction of its price; the verdict on where it leads is
    what decides.
    """
    way = _way(u, travel)
    here, form = batch.expand(u, given), batch.layout.jacobian
    length, reach = form.row_lengths(here.jacobian), way.amax(-1, keepdim=True)
    gradient = here.gradient + form.multiply_transposed(here.jacobian, given)
    bend = batch.layout.hessian.diagonal(here.curvature).abs()
    force = (gradient.abs() + reach * bend).amax(-1, keepdim=True)
    pushes = -given * length.square() * reach > -here.values * force
    active = pushes | (torch.arange(batch.k, device=u.device) < batch.p)
    held = torch.where(active, given, 0.0)
    left = gradient - form.multiply_transposed(here.jacobian, held)
    gap = torch.where(active, here.values, 0.0)
    step, change, trusted = batch.layout.solve_active(here.curvature, here.jacobian, active, (-left, -gap))
    near = trusted & (step.abs().amax(-1) <= CLOSE * way.amax(-1))
    near = near & (active.sum(-1) <= batch.m) & (u + step).isfinite().all(-1)
    chosen = near.unsqueeze(-1)
    return torch.where(chosen, u + step, u), torch.where(chosen, held - change, given), near


def _carefully(
    batch: Batch,
    raw: RawSolution,
    travel: Tensor | None,
    dtype: torch.dtype | None,
    minimum: bool,
    counts: bool,
) -> RawSolution:
    """Step by step, each problem for as long as its distance to a solution falls."""
    u = raw.y
    best = assess(batch, u, raw.multipliers, dtype=dtype, travel=travel, minimum=minimum)
    if raw.multipliers is None and batch.q:  # at a rough point it is not clear which constraints are active
        for near in ROUGH:
            new = assess(batch, u, estimate_multipliers(batch, u, near), dtype=dtype, travel=travel, minimum=minimum)
            better = _length(new, u) < _length(best, u)
            best = best.put(better.nonzero().flatten(), new.take(better))
    exact, loose = EXACT * torch.finfo(u.dtype).eps, optimality_tolerance(u.dtype)
    close = _length(best, _way(u, travel)) < CLOSE
    improving = close & ((best.residual > exact) | (best.stationarity > loose))
    steps = torch.zeros_like(raw.iterations)
    for _ in range(STEPS):
        if not bool(improving.any()):
            break
        steps = steps + improving
        rows = compacted(improving)
        rows = torch.arange(batch.size, device=u.device) if rows is None else rows
        part = batch if len(rows) == batch.size else batch.select(rows)
        here = best.take(rows)
        assert here.step is not None  # which the verdict has made
        assert here.multiplier_step is not None
        moved = u[rows] + torch.where(here.step.isfinite().all(-1, keepdim=True), here.step, 0.0)
        way = None if travel is None else travel[rows]
        new = assess(part, moved, here.multipliers + here.multiplier_step, dtype=dtype, travel=way, minimum=minimum)
        nearer = _length(new, u[rows]) < 0.9 * _length(here, u[rows])  # at a solution of size zero nothing is relative
        # Where constraints alone fix u, multipliers may be wrong at a point that is exact.
        balanced = (here.stationarity > loose) & (new.stationarity < here.stationarity / 2) & (new.residual <= exact)
        # Where solutions are not alone, curvature along them is as small as slopes are: it says little about distances.
        unsolved = (here.residual > optimality_tolerance(dtype or u.dtype)) & (new.residual < torch.inf)
        quick = unsolved & (torch.maximum(new.stationarity, new.violation) < QUICK * here.stationarity)
        nearer = (nearer & (new.residual < torch.inf)) | balanced | quick
        better = improving[rows] & ((new.residual < here.residual) | nearer)
        accepted = rows[better]
        u = u.index_copy(0, accepted, moved[better])
        best = best.put(accepted, new.take(better))
        improving = torch.zeros_like(improving).index_fill(0, accepted, True)
        improving = improving & ((best.residual > exact) | (best.stationarity > loose))
    doubtful = (best.residual > optimality_tolerance(dtype or u.dtype)) & (raw.codes == Status.CONVERGED)
    codes = torch.where(doubtful, int(Status.NOT_OPTIMAL), raw.codes)
    return dataclasses.replace(_polished(raw, u, best, steps if counts else 0), codes=codes)


def _polished(raw: RawSolution, u: Tensor, found: Assessment, steps: Tensor | int) -> RawSolution:
    """The points that it ends at, after so many more iterations."""
    multipliers, iterations = found.multipliers, raw.iterations + steps
    return dataclasses.replace(raw, y=u, multipliers=multipliers, iterations=iterations, assessment=found)


def _length(found: Assessment, u: Tensor) -> Tensor:  # (batch,)
    """The length of the Newton step relative to u, or to the way there, as a whole; a saddle point may be near too."""
    assert found.step is not None  # which the verdict has made
    size = u.abs().amax(-1)
    return found.step.abs().amax(-1) / torch.where(size > 0, size, 1.0)
