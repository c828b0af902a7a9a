"""What is done for problems of which a step was not as hoped.

The Hessian is regularised, or a saddle point left, or the step corrected and shortened until it makes progress; where
none does, feasibility is restored by damped Gauss-Newton steps.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor

from ...linear import Layout, StepMatrix, or_one
from ...linear.directions import irregular
from ...optimality import largest
from ...problem import Batch
from .filter import augment_filter, judge, merit
from .iteration import length_to_boundary, moved, newton_step
from .parameters import BACKTRACKS, COMPLEMENTARY, FIRST_SHIFT, FLAT, MORE_SHIFT, REACH, STATIONARY, Tolerances
from .regularisation import least_curvature, regularised, with_finite_rows
from .start import restarted
from .state import Model, Rows, Scales, State, Step, model_at, residual_of, values_at, violation_of

ESCAPES = 4  # how often a problem may be moved off a saddle point
PUSHES, PUSH = 3, 1e-2  # how often, and how far, off a point where violations balance: it may be a saddle point of them
PROBES = (1.0, -1.0, 0.1, -0.1, 1e-2, -1e-2, 1e-3, -1e-3)  # of the size of u: how far to look along a direction
CURVED = 1e-12  # curvature below minus this, relative to the Hessian's diagonal, is negative
CANCELLED = 1e-8  # of the forces that balance: what curvature has to be more than
ESCAPE_BARRIER = 1e-3  # at least, once a saddle point has been left
CLOSE, CLOSE_ENOUGH = 1e3, 8  # tolerances within which it is close; how often without a good step is enough
FAILURES = 6  # how many steps in a row may be refused
HOPELESS_SHIFT = 1e8  # with that much, steps are too short to lead anywhere
WILD = 10.0  # times what they were: multipliers after a damped step that mean nothing


@dataclass(frozen=True)
class History(Rows):
    """How each problem has fared."""

    failures: Tensor  # steps in a row that were refused
    escapes: Tensor  # from saddle points, of the problem or of its violation
    restoring: Tensor  # whether feasibility has to be restored before Newton steps are taken again
    shifted: Tensor  # whether the last factors needed a regularisation
    close: Tensor  # how often it has been close to a solution, without a good step from there


@dataclass(frozen=True)
class Safeguards:
    """Those of a batch of problems."""

    batch: Batch
    scales: Scales
    tolerances: Tolerances

    def step(self, model: Model, state: State, history: History, wanted: Tensor) -> tuple[State, History]:
        """One iteration of the problems for which it is wanted: regularised, searched for, or towards feasibility."""
        restoring = wanted & history.restoring
        stepping = wanted & ~restoring
        model = with_finite_rows(model)
        convex, state, damping = regularised(model, state, stepping, REACH * self._reach(state))
        damped = damping > 0
        history = dataclasses.replace(history, shifted=(state.shift > 0) & stepping)
        saddle = self.saddle(
            model, state, stepping & self._is_stationary(model) & (state.shift > 0) & (history.escapes < ESCAPES)
        )
        result, accepted = self._search(convex, state, damping, stepping & ~saddle)
        wild = damped & accepted & (largest(result.y.abs()) > WILD * largest(state.y.abs()).clamp(min=1.0))
        if bool(wild.any()):  # equalities that contradict each other, slightly, say nothing about the multipliers
            result = restarted(self.batch, self.scales, result, result.u, result.s).where(wild, result)
        if bool(saddle.any()):
            result = self._escape_saddle(model, state).where(saddle, result)
            history = dataclasses.replace(history, escapes=history.escapes + saddle)
        refused = stepping & ~saddle & ~accepted
        creeping = refused | (stepping & (state.shift > HOPELESS_SHIFT))
        failures = torch.where(creeping, history.failures + 1, torch.where(stepping, 0, history.failures))
        lost = refused & (largest(model.violation.abs()) > STATIONARY * self.tolerances.feasibility)
        before = merit(model.objective, model.residual, model.s, result.barrier)
        result = augment_filter(result, before, lost)
        # Where the point is feasible and no step is accepted, a larger regularisation makes another one.
        more = torch.where(state.shift > 0, MORE_SHIFT * state.shift, FIRST_SHIFT)
        result = dataclasses.replace(result, shift=torch.where(refused & ~lost, more, result.shift))
        restoring = restoring | lost
        history = dataclasses.replace(history, failures=failures, restoring=history.restoring | lost)
        if bool(restoring.any()):
            result, history = self._restore(model, result, history, restoring)
        return self._give_up(model, state, result, history, stepping & (damped | refused))

    def _give_up(
        self, model: Model, before: State, state: State, history: History, in_vain: Tensor
    ) -> tuple[State, History]:
        """Problems that have been close to a solution often enough, without a good step, stay there."""
        close = in_vain & self._is_stationary(model, CLOSE)
        history = dataclasses.replace(history, close=history.close + close)
        content = close & (history.close > CLOSE_ENOUGH)
        failures = torch.where(content, FAILURES + 1, history.failures)
        return before.where(content, state), dataclasses.replace(history, failures=failures)

    def saddle(self, model: Model, state: State, suspected: Tensor) -> Tensor:
        """Which of the suspected points curve down somewhere, or fall along the direction that curves least."""
        if not bool(suspected.any()):
            return suspected
        model = with_finite_rows(model)
        curvature, direction = least_curvature(model)
        here = self._height(model, state.u)
        rounding = 100 * torch.finfo(here.dtype).eps * (model.objective.abs() + here.abs())
        falls = self._lowest_along(model, state, direction)[1] < here - rounding
        # Beside the forces that balance, curvature may be what is left of terms that cancel, multipliers being inexact.
        unit = direction / or_one(largest(direction.abs())).unsqueeze(-1) * self._reach(state).unsqueeze(-1)
        forces = model.layout.jacobian.multiply_transposed(model.jacobian.abs(), model.y.abs())
        bend = (unit * model.layout.hessian.multiply(model.hessian, unit)).sum(-1)
        clear = (curvature < -CURVED) & (bend < -CANCELLED * (forces * unit.abs()).sum(-1))
        return suspected & (clear | (falls & (curvature < FLAT)))

    def _height(self, model: Model, u: Tensor) -> Tensor:  # (batch,)
        """The objective with violations weighted more than their multipliers: it is least at minima."""
        objective, values = values_at(self.batch, self.scales, u)
        missed = violation_of(values, model.p).abs()
        height = objective + torch.maximum(10 * missed, 2 * model.y.abs() * missed).sum(-1)
        inside = (values[:, model.p :] <= STATIONARY * self.tolerances.feasibility).all(-1)
        return torch.where(inside & height.isfinite(), height, torch.inf)

    def _reach(self, state: State) -> Tensor:  # (batch,)
        """The size of u, or of the way that it has come."""
        return or_one(largest(torch.maximum(state.u.abs(), (state.u - self.scales.start).abs())))

    def _lowest_along(self, model: Model, state: State, direction: Tensor) -> tuple[Tensor, Tensor]:
        """The lowest of a few points to both sides along a direction, and its height."""
        unit = direction / or_one(largest(direction.abs())).unsqueeze(-1) * self._reach(state).unsqueeze(-1)
        unit = torch.where(direction.isfinite().all(-1, keepdim=True), unit, irregular(state.u))
        best, lowest = state.u + 1e-2 * unit, torch.full_like(state.barrier, torch.inf)
        for length in PROBES:
            place = state.u + length * unit
            height = self._height(model, place)
            lower = height < lowest
            best = torch.where(lower.unsqueeze(-1), place, best)
            lowest = torch.where(lower, height, lowest)
        return best, lowest

    def _is_stationary(self, model: Model, factor: float = STATIONARY) -> Tensor:
        feasible = largest(model.violation.abs()) <= self.tolerances.feasibility * factor
        return feasible & (model.stationarity <= self.tolerances.stationarity * factor) & (model.gap <= COMPLEMENTARY)

    def _search(self, model: Model, state: State, damping: Tensor, wanted: Tensor) -> tuple[State, Tensor]:
        """Newton's step, corrected or shortened until it makes progress; where none does, the state as it was."""
        step, _ = newton_step(model, state.shift, state.weight, state.barrier, model.residual, damping)
        length = length_to_boundary(state.s, step.s, state.barrier)
        before = merit(model.objective, model.residual, model.s, state.barrier)
        result, accepted = state, ~wanted

        def attempt(step: Step, length: Tensor, among: Tensor | bool = True) -> tuple[Tensor, Tensor]:
            """Take the step where it is progress; the residual that it leads to, and where the objective is defined."""
            nonlocal result, accepted
            trial = moved(state, step, length)
            objective, values = values_at(self.batch, self.scales, trial.u)
            judged, good = judge(state, model, before, step, length, trial, objective, values)
            good = good & among & ~accepted
            result, accepted = judged.where(good, result), accepted | good
            return residual_of(values, trial.s), objective.isfinite()

        residual, defined = attempt(step, length)  # with the slacks of the step alone, which can be corrected
        # Where the objective is undefined, to correct the constraints does not help.
        if model.y.shape[-1] and bool((defined & ~accepted).any()):
            total = length.unsqueeze(-1) * model.residual + residual.nan_to_num(0.0, 0.0, 0.0)
            corrected, _ = newton_step(model, state.shift, state.weight, state.barrier, total, damping)
            attempt(corrected, length_to_boundary(state.s, corrected.s, state.barrier), defined)
        for _ in range(BACKTRACKS):
            if bool(accepted.all()):
                break
            length = torch.where(accepted, length, 0.5 * length)
            attempt(step, length)
        return result, accepted

    def _escape_saddle(self, model: Model, state: State) -> State:
        """A step along the least curvature that the constraints leave free, to the side that is lower."""
        best, _ = self._lowest_along(model, state, least_curvature(model)[1])
        # Multipliers and slacks belong to the saddle point: far from the end, the barrier is to keep away from corners.
        barrier = state.barrier.clamp(min=ESCAPE_BARRIER)
        fresh = torch.full_like(state.filter, torch.inf)
        state = dataclasses.replace(state, barrier=barrier, filter=fresh, stored=torch.zeros_like(state.stored))
        return restarted(self.batch, self.scales, state, best)

    def _restore(self, model: Model, state: State, history: History, restoring: Tensor) -> tuple[State, History]:
        """A damped Gauss-Newton step towards feasibility; Newton's method goes on once there is enough of it."""
        wrong = model.violation
        form = model.layout.jacobian
        rows = form.scale_rows(model.jacobian, (wrong != 0).to(wrong.dtype))
        diagonal = form.multiply_transposed(rows.square(), torch.ones_like(wrong))
        unit = torch.maximum(diagonal, 1e-8 * diagonal.amax(-1, keepdim=True)).clamp(min=1e-12)
        total = wrong.square().sum(-1)
        best, least = state.u, total
        for damping in (1e-10, 1e-6, 1e-3, 0.1, 10.0, 1e3):
            place = state.u + _least_violation(model.layout, model.hessian, rows, wrong, damping * unit)
            best, least = self._less_violated(place, best, least)
        stuck = restoring & (least > (1 - 1e-6) * total)
        pushed = stuck & (history.escapes < PUSHES)
        if bool(pushed.any()):
            push = PUSH * 10.0 ** history.escapes.to(best.dtype).unsqueeze(-1) * irregular(best, 0.8)
            place = best + push * self._reach(state).unsqueeze(-1)
            pushed = pushed & model_at(self.batch, self.scales, place, state.s, state.y).finite()
            best = torch.where(pushed.unsqueeze(-1), place, best)
        enough = restoring & ((least.sqrt() <= 0.5 * total.sqrt()) | (least <= self.tolerances.feasibility**2)) | pushed
        failures = torch.where(stuck & ~pushed, FAILURES + 1, torch.where(restoring, 0, history.failures))
        fresh = restarted(self.batch, self.scales, state, torch.where(restoring.unsqueeze(-1), best, state.u)).where(
            restoring, state
        )
        return fresh, dataclasses.replace(
            history, failures=failures, restoring=history.restoring & ~enough, escapes=history.escapes + pushed
        )

    def _less_violated(self, place: Tensor, best: Tensor, least: Tensor) -> tuple[Tensor, Tensor]:
        """The best point so far and its violation, or another place where it is less."""
        objective, values = values_at(self.batch, self.scales, place)
        missed = violation_of(values, self.batch.p).square().sum(-1)
        better = (missed < least) & objective.isfinite()
        return torch.where(better.unsqueeze(-1), place, best), torch.where(better, missed, least)


def _least_violation(
    layout: Layout, hessian: Tensor, rows: Tensor, wrong: Tensor, damping: Tensor
) -> Tensor:  # (batch, m)
    """The step du with the least |A du + wrong|^2 + du' diag(damping) du."""
    ones, none = torch.ones_like(wrong), torch.zeros_like(damping[:, 0])
    matrix = StepMatrix(torch.zeros_like(hessian), rows, damping, ones, 0, none)
    return layout.solve_kkt(matrix, (torch.zeros_like(damping), -wrong)).z
