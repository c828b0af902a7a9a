"""The iterations of the Newton method for a batch: which problems are running, and what became of the others.

Nearly always an iteration is :func:`iterate_once`, or that of the compiled kernels, which decides nothing by values;
what does not go as hoped goes the careful way.
"""

from __future__ import annotations

import dataclasses
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..conditions import largest
from ..problem import Batch
from ..solution import RawSolution, Status
from .compaction import compacted
from .native import FAINT, Fates, Native, usable
from .newton_care import FAILURES, NUDGES, Care, Record
from .newton_step import (
    LEAST_SHIFT,
    LESS_SHIFT,
    LOWERED,
    MODEL,
    Model,
    Rows,
    Scales,
    State,
    Tolerances,
    acceptable,
    ended,
    lowered_barrier,
    merit,
    model_at,
    moved,
    nearness,
    newton_step,
    remembered,
    room,
    widened,
)

RUNNING = -1
FAR = 1e10  # times its size at the start: a point beyond that is running away
LOOK, LONG_LOOK = 8, 32  # iterations after which it is seen whether a problem is running away; those without Python
NEAR = 1e-6  # a problem whose next step is shorter than this, relative to u, is solved
CHANGED = ("u", "s", "y", "shift", "filter", "stored")  # what a step changes in a state


def iterate_once(
    batch: Batch, scales: Scales, model: Model, state: State, tolerances: Tolerances
) -> tuple[State, Model, State, Tensor]:
    """An iteration as it should be: where the step leads, the model there, the state that it is from, and flags.

    The flags are: solved, factored, accepted, faint (a direction of H may be flat).
    """
    state = lowered_barrier(state, model, torch.finfo(state.u.dtype).eps ** 0.75, tolerances[2])
    step, found = newton_step(model, state.shift, state.weight, state.barrier, model.residual)
    length = room(state.s, step.s, state.barrier)
    trial = moved(state, step, length)
    there = model_at(batch, scales, trial.u, trial.s, trial.y)
    trial = widened(trial, there.values)
    there = dataclasses.replace(there, s=trial.s)
    before = merit(model.objective, model.residual, model.s, state.barrier)
    after = merit(there.objective, there.residual, trial.s, state.barrier)
    good, by_objective = acceptable(state, model, before, step, length, *after)
    trial = remembered(trial, before, good & ~by_objective)
    shift = trial.shift * trial.shift.clamp(max=LESS_SHIFT)
    trial = dataclasses.replace(trial, shift=torch.where(shift >= LEAST_SHIFT, shift, 0.0))
    solved = (
        (largest(model.violated.abs()) <= tolerances[0])
        & (model.stationarity <= tolerances[1])
        & ended(model, state, tolerances[2])
        & (nearness(model, step, scales.start) <= NEAR)
    )
    flags = torch.stack([solved, found.convex & found.independent, good, ~(found.room > FAINT)], -1)
    return trial, there, state, flags


@dataclass(frozen=True)
class _Ended(Rows):
    """The results of problems that have ended."""

    u: Tensor
    y: Tensor
    code: Tensor
    iterations: Tensor
    vague: Tensor  # whether they may be saddle points: a direction of H may be flat


class Search:
    """The problems that are still running, and the results of those that have ended."""

    def __init__(
        self, batch: Batch, scales: Scales, state: State, model: Model, tolerances: Tolerances, limit: int, sure: bool
    ) -> None:
        self.limit, self.tolerances = min(limit, sys.maxsize), tolerances
        self.limits = (*tolerances, torch.finfo(state.u.dtype).eps ** 0.75, NEAR)
        self.whole, self.batch, self.scales, self.state = batch, batch, scales, state
        self.model = model
        self.all_scales = scales
        none = torch.zeros(batch.size, dtype=torch.int64, device=state.u.device)
        forever = torch.full_like(state.barrier, torch.inf)
        never = torch.zeros_like(none, dtype=torch.bool)
        self.record = Record(none, none, forever, never, none)
        self.rows = torch.arange(batch.size, device=state.u.device)
        self.running = torch.ones_like(never)
        self.ended = _Ended(state.u, state.y, torch.full_like(none, RUNNING), none, never)
        self.sure = sure  # that what has ended is no saddle point; otherwise the verdict tells
        self.failed = False  # whether a step was refused of late
        self.iterations = none  # of each problem
        self.turn = 0
        self.native: Native | None = None
        if usable(state.u):
            self._go_native()

    def advance(self) -> bool:
        """One iteration, or several; whether that was all."""
        if self.native is not None:
            return self._advance_natively(self.native)
        trial, there, state, flags = self._iterate()
        solved, factored, accepted, _ = flags.unbind(-1)
        hoped = factored & accepted & ~solved & self.record.goal.isinf()
        self.turn += 1
        if self.turn % LOOK and self._below_limit() and bool((hoped | ~self.running).all()):  # as nearly always
            self.state, self.model = trial, there
            self.iterations = self.iterations + 1
            self._forget_failures(hoped)
            return False
        return self._look(trial, there, state, flags)

    def _advance_natively(self, native: Native) -> bool:
        if native.functions is None:
            return self._advance_once(native)
        most, fates = max(min(LONG_LOOK, self.limit - int(self.iterations.max()) + 1), 1), self._fates()
        flags = native.iterate_on(self.limits, most, self.sure, fates)
        before, self.iterations = self.iterations, torch.from_numpy(fates.iterations)
        if self.batch is self.whole and fates.finished.all():  # as nearly always
            found = (fates.u, fates.y, np.zeros_like(fates.iterations), fates.iterations, flags[3] | fates.doubtful)
            self.ended = _Ended(*map(torch.from_numpy, found))
            return True
        self.record = dataclasses.replace(self.record, shifted=torch.from_numpy(fates.doubtful))
        self._forget_failures(self.iterations > before)
        finished = torch.from_numpy(fates.finished)
        if bool(finished.any()):
            self._keep(finished, fates.u, fates.y, torch.zeros_like(self.iterations), flags[3] | fates.doubtful)
            if not bool(self.running.any()):
                return True
        return self._look_closely(native, flags)

    def _advance_once(self, native: Native) -> bool:
        flags = native.iterate(self.limits, self.hopeful)
        solved, factored, accepted, faint = flags
        self.turn += 1
        running = self.running.numpy()
        shifted = self.record.shifted.numpy() | (native.here.shift > 0)
        doubtful = faint | shifted
        over = running & solved & factored & ~(doubtful & self.sure)
        over = over & native.finite() if over.any() else over
        hoped = ~running | over | (factored & accepted & ~solved & self.hopeful)
        if hoped.all() and self._below_limit() and not self._is_due(native):  # as nearly always
            if over.any():
                self._keep(over, *native.ends(accepted), torch.zeros_like(self.iterations), doubtful)
                if not bool(self.running.any()):
                    return True
            native.go_on()
            self.iterations = self.iterations + 1
            if shifted.any() or bool(self.record.shifted.any()):
                self.record = dataclasses.replace(self.record, shifted=torch.from_numpy(shifted))
            self._forget_failures(self.running)
            return False
        return self._look_closely(native, flags)

    def _look_closely(self, native: Native, flags: Any) -> bool:
        """:meth:`_look` at what the kernels have come to."""
        self.model = native.model()
        if self._look(*native.tensors(), torch.from_numpy(flags).T):
            return True
        self._go_native()
        return False

    def _is_due(self, native: Native) -> bool:
        """Whether it is time to see which problems are running away, and to go on with fewer: and there are such."""
        if self.turn % LOOK:
            return False
        return compacted(self.running) is not None or bool((native.is_beyond(FAR) & self.running.numpy()).any())

    def _keep(self, ended: Any, u: Any, y: Any, code: Tensor, vague: Any) -> None:
        """The results of the problems that have ended: arrays, or tensors."""
        which, u, y, vague = (x if isinstance(x, Tensor) else torch.from_numpy(x) for x in (ended, u, y, vague))
        new = _Ended(u, y, code, self.iterations, vague).take(which)
        self.ended = self.ended.put(self.rows[which], new)
        self.running = self.running & ~which

    def _below_limit(self) -> bool:
        return int(self.iterations.max()) < self.limit

    def _fates(self) -> Fates:
        running, shifted, nudges, iterations = (
            x.numpy().copy() for x in (self.running, self.record.shifted, self.record.nudges, self.iterations)
        )
        n, finished = len(running), np.zeros_like(running)
        places = np.empty((n, self.batch.m)), np.empty((n, self.batch.k))
        return Fates(running, self.hopeful, shifted, nudges >= NUDGES, finished, iterations, *places)

    def _go_native(self) -> None:
        self.native = Native(self.batch, self.scales, self.model, self.state)
        running, goal = self.running.numpy(), self.record.goal.numpy()
        self.hopeful = np.isinf(goal) | ~running

    def _forget_failures(self, hoped: Tensor) -> None:
        if self.failed:
            failures = torch.where(hoped, 0, self.record.failures)
            self.record = dataclasses.replace(self.record, failures=failures)
            self.failed = bool(failures.any())

    def _look(self, trial: State, there: Model, state: State, flags: Tensor) -> bool:
        """See what has ended, and go on from the trial points or, with what did not go as hoped, the careful way."""
        solved, factored, accepted, faint = flags.unbind(-1)
        hoped = factored & accepted & ~solved & self.record.goal.isinf()
        model = self.model
        suspected = solved & (self.record.nudges < NUDGES) & (~factored | ((self.record.shifted | faint) & self.sure))
        saddle = self._care().saddle(model, state, suspected)
        last = (solved & accepted).unsqueeze(-1)  # the step is known, and shorter than can be asked for
        u, y = torch.where(last, trial.u, state.u), torch.where(last, trial.y, state.y)
        if self._end(u, y, model.finite(), solved, saddle, faint | self.record.shifted):
            return True
        if bool((hoped | ~self.running).all()):
            self.state, self.model = trial, there
        else:
            self._take_care(model, state, hoped, trial, there)
            self.failed = True
        self.iterations = self.iterations + 1
        self._compact()
        return False

    def _iterate(self) -> tuple[State, Model, State, Tensor]:
        """:func:`iterate_once`, called or replayed."""
        if self.batch.evaluator is None:
            return iterate_once(self.batch, self.scales, self.model, self.state, self.tolerances)
        tolerances, names = self.tolerances, (tuple(vars(self.state)), tuple(vars(self.scales)))

        def iteration(batch: Batch, u: Tensor, *rows: Tensor) -> tuple[Tensor, ...]:
            parts = iter((u, *rows))
            state = State(**{name: next(parts) for name in names[0]})
            scales = Scales(**{name: next(parts) for name in names[1]})
            model = Model(**{name: next(parts) for name in MODEL}, u=u, y=state.y, s=state.s, layout=batch.layout)
            trial, there, state, flags = iterate_once(batch, scales, model, state, tolerances)
            changed = [getattr(trial, name) for name in CHANGED] + [getattr(state, name) for name in LOWERED]
            return *changed, *(getattr(there, name) for name in MODEL), flags

        rows = [*vars(self.state).values(), *vars(self.scales).values(), *(getattr(self.model, x) for x in MODEL)]
        found = iter(self.batch.evaluate(("newton", tolerances), iteration, *rows))
        trial = dataclasses.replace(self.state, **{name: next(found) for name in CHANGED})
        here = dataclasses.replace(self.state, **{name: next(found) for name in LOWERED})
        trial = dataclasses.replace(trial, barrier=here.barrier)
        there = Model(
            **{name: next(found) for name in MODEL}, u=trial.u, y=trial.y, s=trial.s, layout=self.batch.layout
        )
        return trial, there, here, next(found)

    def _end(self, u: Tensor, y: Tensor, finite: Tensor, solved: Tensor, saddle: Tensor, vague: Tensor) -> bool:
        """Keep the results of the problems that are solved or hopeless; whether that is all."""
        far = (u - self.scales.start).abs() > FAR * (1 + self.scales.start.abs())
        code = torch.where(self.record.failures > FAILURES, int(Status.STALLED), RUNNING)
        code = torch.where(far.any(-1) & ~solved, int(Status.UNBOUNDED), code)
        code = torch.where(solved & ~saddle, int(Status.CONVERGED), code)
        code = torch.where(finite, code, int(Status.NOT_FINITE))
        code = torch.where((code == RUNNING) & (self.iterations >= self.limit), int(Status.ITERATION_LIMIT), code)
        ended = self.running & (code != RUNNING)
        if bool(ended.any()):
            self._keep(ended, u, y, code, vague)
        return not bool(self.running.any())

    def _compact(self) -> None:
        """Go on with fewer problems once they have become few; where a new shape would be compiled, never."""
        if self.batch.evaluator is not None and self.batch.evaluator.compiling and not self._any_size_is_fine():
            return
        keep = compacted(self.running)
        if keep is not None:
            self.batch, self.scales, self.state = self.batch.select(keep), self.scales.take(keep), self.state.take(keep)
            self.model = self.model.take(keep)
            self.record, self.rows, self.running = self.record.take(keep), self.rows[keep], self.running[keep]
            self.iterations = self.iterations[keep]

    def result(self) -> RawSolution:
        """What the node gets."""
        ended, scales = self.ended, self.all_scales
        return RawSolution(
            y=ended.u,
            multipliers=-ended.y * scales.rows / scales.objective.unsqueeze(-1),
            codes=ended.code,
            iterations=ended.iterations,
            messages=("Newton",) * self.whole.size,
        )

    def _care(self) -> Care:
        return Care(self.batch, self.scales, self.tolerances)

    def _take_care(self, model: Model, state: State, hoped: Tensor, trial: State, there: Model) -> None:
        """Go on from the trial points where these are as hoped, and elsewhere from what more care finds."""
        wanted = self.running & ~hoped
        rows = wanted.nonzero().flatten()
        if 2 * len(rows) > len(self.rows) or not self._any_size_is_fine():
            careful, record = self._care().step(model, state, self.record, wanted)
            self.state = trial.where(hoped, careful)
            self.record = dataclasses.replace(record, failures=torch.where(hoped, 0, record.failures))
            self.model = model_at(self.batch, self.scales, self.state.u, self.state.s, self.state.y)
            return
        part = Care(self.batch.select(rows), self.scales.take(rows), self.tolerances)
        careful, record = part.step(model.take(rows), state.take(rows), self.record.take(rows), wanted[rows])
        found = model_at(part.batch, part.scales, careful.u, careful.s, careful.y)
        self.state, self.model = trial.put(rows, careful), there.put(rows, found)
        failures, shifted = torch.where(hoped, 0, self.record.failures), self.record.shifted & ~hoped
        self.record = dataclasses.replace(self.record, failures=failures, shifted=shifted).put(rows, record)

    def _any_size_is_fine(self) -> bool:
        """Whether functions are called, or run by tapes: a graph would be recorded for each number of problems."""
        return self.batch.evaluator is None or (self.native is not None and self.native.functions is not None)
