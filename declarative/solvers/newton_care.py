"""The careful way of the Newton method: what is done for problems of which a step was not as hoped.

The Hessian is regularised, or a saddle point left, or the step corrected and shortened until it makes progress; where
none does, feasibility is restored by damped Gauss-Newton steps.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..conditions import largest
from ..linear import DenseLayout, KktSolution, Layout, StepMatrix, or_one
from ..linear.directions import irregular
from ..linear.spectrum_kernel import NOTHING
from ..problem import Batch
from .native import FAINT
from .newton_start import afresh
from .newton_step import (
    BACKTRACKS,
    FIRST_SHIFT,
    MORE_SHIFT,
    REACH,
    STRAY,
    TINY_SHIFT,
    Model,
    Rows,
    Scales,
    State,
    Step,
    Tolerances,
    acceptable,
    least_curvature,
    merit,
    model_at,
    moved,
    newton_step,
    remembered,
    residual_of,
    room,
    turned,
    values_at,
    widened,
)

NUDGES = 4  # how often a problem may be moved off a saddle point
PUSHES, PUSH = 3, 1e-2  # how often, and how far, off a point where violations balance: it may be a saddle point of them
PROBES = (1.0, -1.0, 0.1, -0.1, 1e-2, -1e-2, 1e-3, -1e-3)  # of the size of u: how far to look along a direction
CURVED = 1e-12  # curvature below minus this, relative to the Hessian's diagonal, is negative
CANCELLED = 1e-8  # of the forces that balance: what curvature has to be more than
LEFT_BARRIER = 1e-3  # at least, once a saddle point has been left
CLOSE, CLOSE_ENOUGH = 1e3, 8  # tolerances within which it is close; how often without a good step is enough
FAILURES = 6  # how many steps in a row may be refused
HOPELESS_SHIFT = 1e8  # with that much, steps are too short to lead anywhere
TRIES = 40  # of ever larger regularisation
WILD = 10.0  # times what they were: multipliers after a damped step that mean nothing
DAMPINGS = (1e-10, 1e-7, 1e-4, 1e-2, 1.0)  # of the step towards equalities that depend on each other


@dataclass(frozen=True)
class Record(Rows):
    """How each problem has fared."""

    failures: Tensor  # steps in a row that were refused
    nudges: Tensor
    goal: Tensor  # the violation that is to be reached before Newton steps are taken again; infinite where they are
    shifted: Tensor  # whether the last factors needed a regularisation
    close: Tensor  # how often it has been close to a solution, without a good step from there


@dataclass(frozen=True)
class Care:
    """A batch of problems that need it."""

    batch: Batch
    scales: Scales
    tolerances: Tolerances  # of feasibility, stationarity, complementarity

    def step(self, model: Model, state: State, record: Record, wanted: Tensor) -> tuple[State, Record]:
        """One iteration of the problems for which it is wanted: regularised, searched for, or towards feasibility."""
        restoring = wanted & ~record.goal.isinf()
        stepping = wanted & ~restoring
        model = _finite_model(model)
        convex, state, damping = _regularised(model, state, stepping, REACH * self._reach(state))
        damped = damping > 0
        record = dataclasses.replace(record, shifted=(state.shift > 0) & stepping)
        saddle = self.saddle(
            model, state, stepping & self._is_stationary(model) & (state.shift > 0) & (record.nudges < NUDGES)
        )
        result, accepted = self._search(convex, state, damping, stepping & ~saddle)
        wild = damped & accepted & (largest(result.y.abs()) > WILD * largest(state.y.abs()).clamp(min=1.0))
        if bool(wild.any()):  # equalities that contradict each other, slightly, say nothing about the multipliers
            result = afresh(self.batch, self.scales, result, result.u, result.s).where(wild, result)
        if bool(saddle.any()):
            result = self._leave_saddle(model, state).where(saddle, result)
            record = dataclasses.replace(record, nudges=record.nudges + saddle)
        refused = stepping & ~saddle & ~accepted
        creeping = refused | (stepping & (state.shift > HOPELESS_SHIFT))
        failures = torch.where(creeping, record.failures + 1, torch.where(stepping, 0, record.failures))
        theta = model.residual.abs().sum(-1)
        small = 10 * self.tolerances[0]
        lost = refused & (largest(model.violated.abs()) > small)
        goal = torch.where(lost, theta, record.goal)
        before = merit(model.objective, model.residual, model.s, result.barrier)
        result = remembered(result, before, lost)
        # Where the point is feasible and no step is accepted, a larger regularisation makes another one.
        more = torch.where(state.shift > 0, MORE_SHIFT * state.shift, FIRST_SHIFT)
        result = dataclasses.replace(result, shift=torch.where(refused & ~lost, more, result.shift))
        record = dataclasses.replace(record, failures=failures, goal=goal)
        restoring = restoring | lost
        if bool(restoring.any()):
            result, record = self._restore(model, result, record, restoring)
        return self._content(model, state, result, record, stepping & (damped | refused))

    def _content(
        self, model: Model, before: State, state: State, record: Record, in_vain: Tensor
    ) -> tuple[State, Record]:
        """Problems that have been close to a solution often enough, without a good step, stay there."""
        close = in_vain & self._is_stationary(model, CLOSE)
        record = dataclasses.replace(record, close=record.close + close)
        content = close & (record.close > CLOSE_ENOUGH)
        failures = torch.where(content, FAILURES + 1, record.failures)
        return before.where(content, state), dataclasses.replace(record, failures=failures)

    def saddle(self, model: Model, state: State, suspected: Tensor) -> Tensor:
        """Which of the suspected points curve down somewhere, or fall along the direction that curves least."""
        if not bool(suspected.any()):
            return suspected
        model = _finite_model(model)
        curvature, direction = least_curvature(model)
        here = self._height(model, state.u)
        rounding = 100 * torch.finfo(here.dtype).eps * (model.objective.abs() + here.abs())
        falls = self._lowest_along(model, state, direction)[1] < here - rounding
        # Beside the forces that balance, curvature may be what is left of terms that cancel, multipliers being inexact.
        unit = direction / or_one(largest(direction.abs())).unsqueeze(-1) * self._reach(state).unsqueeze(-1)
        forces = model.layout.jacobian.multiply_transposed(model.jacobian.abs(), model.y.abs())
        bend = (unit * model.layout.hessian.multiply(model.hessian, unit)).sum(-1)
        clear = (curvature < -CURVED) & (bend < -CANCELLED * (forces * unit.abs()).sum(-1))
        return suspected & (clear | (falls & (curvature < FAINT)))

    def _height(self, model: Model, u: Tensor) -> Tensor:  # (batch,)
        """The objective with violations weighted more than their multipliers: it is least at minima."""
        objective, values = values_at(self.batch, self.scales, u)
        missed = torch.cat([values[:, : model.p].abs(), values[:, model.p :].clamp(min=0.0)], -1)
        height = objective + torch.maximum(10 * missed, 2 * model.y.abs() * missed).sum(-1)
        inside = (values[:, model.p :] <= 10 * self.tolerances[0]).all(-1)
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

    def _is_stationary(self, model: Model, factor: float = 10.0) -> Tensor:
        feasible = largest(model.violated.abs()) <= self.tolerances[0] * factor
        return feasible & (model.stationarity <= self.tolerances[1] * factor) & (model.gap <= 1e-6)

    def _search(self, model: Model, state: State, damping: Tensor, wanted: Tensor) -> tuple[State, Tensor]:
        """Newton's step, corrected or shortened until it makes progress; where none does, the state as it was."""
        step, _ = newton_step(model, state.shift, state.weight, state.barrier, model.residual, damping)
        length = room(state.s, step.s, state.barrier)
        before = merit(model.objective, model.residual, model.s, state.barrier)
        result, accepted = state, ~wanted

        def attempt(step: Step, length: Tensor) -> tuple[State, Tensor, Tensor, Tensor]:
            trial = moved(state, step, length)
            objective, values = values_at(self.batch, self.scales, trial.u)
            residual = residual_of(values, trial.s)  # of the step alone, which a correction can make up for
            trial = widened(trial, values)
            after = merit(objective, residual_of(values, trial.s), trial.s, state.barrier)
            good, by_objective = acceptable(state, model, before, step, length, *after)
            return remembered(trial, before, good & ~by_objective), good, residual, objective.isfinite()

        trial, good, residual, defined = attempt(step, length)
        result = trial.where(good & ~accepted, result)
        accepted = accepted | good
        if model.y.shape[-1] and bool((defined & ~accepted).any()):
            total = length.unsqueeze(-1) * model.residual + residual.nan_to_num(0.0, 0.0, 0.0)
            corrected, _ = newton_step(model, state.shift, state.weight, state.barrier, total, damping)
            trial, good, *_ = attempt(corrected, room(state.s, corrected.s, state.barrier))
            good = good & defined  # where the objective was not, to correct the constraints does not help
            result = trial.where(good & ~accepted, result)
            accepted = accepted | good
        for _ in range(BACKTRACKS):
            if bool(accepted.all()):
                break
            length = torch.where(accepted, length, 0.5 * length)
            trial, good, *_ = attempt(step, length)
            result = trial.where(good & ~accepted, result)
            accepted = accepted | good
        return result, accepted

    def _leave_saddle(self, model: Model, state: State) -> State:
        """A step along the least curvature that the constraints leave free, to the side that is lower."""
        best, _ = self._lowest_along(model, state, least_curvature(model)[1])
        # Multipliers and slacks belong to the saddle point: far from the end, the barrier is to keep away from corners.
        barrier = state.barrier.clamp(min=LEFT_BARRIER)
        fresh = torch.full_like(state.filter, torch.inf)
        state = dataclasses.replace(state, barrier=barrier, filter=fresh, stored=torch.zeros_like(state.stored))
        return afresh(self.batch, self.scales, state, best)

    def _restore(self, model: Model, state: State, record: Record, restoring: Tensor) -> tuple[State, Record]:
        """A damped Gauss-Newton step towards feasibility; Newton's method goes on once there is enough of it."""
        wrong = model.violated
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
        pushed = stuck & (record.nudges < PUSHES)
        if bool(pushed.any()):
            push = PUSH * 10.0 ** record.nudges.to(best.dtype).unsqueeze(-1) * irregular(best, 0.8)
            place = best + push * self._reach(state).unsqueeze(-1)
            pushed = pushed & model_at(self.batch, self.scales, place, state.s, state.y).finite()
            best = torch.where(pushed.unsqueeze(-1), place, best)
        enough = restoring & ((least.sqrt() <= 0.5 * total.sqrt()) | (least <= self.tolerances[0] ** 2)) | pushed
        failures = torch.where(stuck & ~pushed, FAILURES + 1, torch.where(restoring, 0, record.failures))
        goal = torch.where(enough, torch.inf, record.goal)
        fresh = afresh(self.batch, self.scales, state, torch.where(restoring.unsqueeze(-1), best, state.u)).where(
            restoring, state
        )
        return fresh, dataclasses.replace(record, failures=failures, goal=goal, nudges=record.nudges + pushed)

    def _less_violated(self, place: Tensor, best: Tensor, least: Tensor) -> tuple[Tensor, Tensor]:
        """The best point so far and its violation, or another place where it is less."""
        objective, values = values_at(self.batch, self.scales, place)
        p = self.batch.p
        missed = torch.cat([values[:, :p], values[:, p:].clamp(min=0.0)], -1).square().sum(-1)
        better = (missed < least) & objective.isfinite()
        return torch.where(better.unsqueeze(-1), place, best), torch.where(better, missed, least)


def _finite_model(model: Model) -> Model:
    """The model with problems that are not finite blanked out: they have ended, and must not stop others."""
    finite = model.finite()
    if bool(finite.all()):
        return model
    blank: dict[str, Any] = {name: torch.zeros_like(x) for name, x in model.tensors().items()}
    ones = {"s": torch.ones_like(model.s), "y": torch.ones_like(model.y)}
    return model.where(finite, dataclasses.replace(model, **{**blank, **ones}))


def _regularised(model: Model, state: State, wanted: Tensor, reach: Tensor) -> tuple[Model, State, Tensor]:
    """The model and its least regularisation with which a step leads to a minimum, and the damping of equalities."""
    shift, weight = state.shift, state.weight
    damping = torch.zeros_like(shift)
    unit = _weight_unit(model)

    def look() -> KktSolution:
        return newton_step(model, shift, weight, state.barrier, model.residual, damping)[1]

    found, dense = look(), isinstance(model.layout, DenseLayout)
    if bool((wanted & ~found.convex).any()):
        # Where all curvature along the constraints is positive, a larger weight is all that is missing.
        curvature = least_curvature(model, rough=True)[0]
        down = wanted & ~found.convex & (curvature <= NOTHING)
        # Far from feasible, second derivatives say little about where to go: a shift makes all of the step shorter.
        astray = down & ((largest(model.violated.abs()) > STRAY) | (not dense))
        needed = torch.where(astray, -2 * curvature, 0.0).clamp(min=TINY_SHIFT)
        shift = torch.where(down, torch.maximum(shift, needed), shift)
        model = turned(model, state.barrier, reach, down & ~astray)
        found = look()
    for attempt in range(TRIES):
        bad = wanted & ~found.convex
        if not bool(bad.any()):
            break
        if attempt < 2 and model.p and model.layout.weights_help:  # a larger weight may be all that is missing
            weight = torch.where(bad, torch.where(weight == 0, unit, torch.maximum(weight, 1e4 * unit)), weight)
        else:
            shift = torch.where(bad, (MORE_SHIFT * shift).clamp(min=TINY_SHIFT if dense else FIRST_SHIFT), shift)
        found = look()
    for least in DAMPINGS:
        dependent = wanted & ~found.independent
        if not bool(dependent.any()):
            break
        damping = torch.where(dependent, least, damping)
        found = look()
    return model, dataclasses.replace(state, shift=shift, weight=weight), damping


def _weight_unit(model: Model) -> Tensor:  # (batch,)
    """A weight of A'A that is worth as much as H."""
    size = largest(model.hessian.abs().flatten(1)).clamp(min=1e-8)
    if not model.p:
        return torch.zeros_like(size)
    equality = (torch.arange(model.y.shape[-1], device=size.device) < model.p).to(size.dtype).expand_as(model.y)
    return size / model.layout.jacobian.multiply_transposed(model.jacobian.square(), equality).amax(-1).clamp(min=1e-8)


def _least_violation(
    layout: Layout, hessian: Tensor, rows: Tensor, wrong: Tensor, damping: Tensor
) -> Tensor:  # (batch, m)
    """The step du with the least |A du + wrong|^2 + du' diag(damping) du."""
    ones, none = torch.ones_like(wrong), torch.zeros_like(damping[:, 0])
    matrix = StepMatrix(torch.zeros_like(hessian), rows, damping, ones, 0, none)
    return layout.solve_kkt(matrix, (torch.zeros_like(damping), -wrong)).z
