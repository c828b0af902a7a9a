"""The iterations of the Newton method for a batch: which problems are running, and what became of the others.

Nearly always an iteration is :func:`iterate_once`, or that of the compiled kernels, which decides nothing by values;
what does not go as hoped is left to the safeguards.
"""

from __future__ import annotations

import dataclasses
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...problem import Batch
from ...solution import RawSolution, Status
from ..compaction import compacted
from .compiled.arrays import Progress
from .compiled.batch import CompiledBatch, usable
from .iteration import iterate_once
from .parameters import Tolerances
from .safeguards import ESCAPES, FAILURES, History, Safeguards
from .state import DERIVATIVES, LOWERED, MOVED, Model, Rows, Scales, State, model_at

RUNNING = -1
FAR = 1e10  # times its size at the start: a point beyond that is running away
LOOK, LONG_LOOK = 8, 32  # iterations after which it is seen whether a problem is running away; those without Python


@dataclass(frozen=True)
class _Ended(Rows):
    """The results of problems that have ended."""

    u: Tensor
    y: Tensor
    code: Tensor
    iterations: Tensor
    may_be_saddle: Tensor  # a direction of H may be flat, or H was shifted


class NewtonLoop:
    """The problems that are still running, and the results of those that have ended."""

    def __init__(
        self, batch: Batch, scales: Scales, state: State, model: Model, tolerances: Tolerances, limit: int, sure: bool
    ) -> None:
        self.limit, self.tolerances = min(limit, sys.maxsize), tolerances
        self.whole, self.batch, self.scales, self.state = batch, batch, scales, state
        self.model = model
        self.all_scales = scales
        none = torch.zeros(batch.size, dtype=torch.int64, device=state.u.device)
        never = torch.zeros_like(none, dtype=torch.bool)
        self.history = History(none, none, never, never, none)
        self.rows = torch.arange(batch.size, device=state.u.device)
        self.running = torch.ones_like(never)
        self.ended = _Ended(state.u, state.y, torch.full_like(none, RUNNING), none, never)
        self.sure = sure  # that what has ended is no saddle point; otherwise the verdict tells
        self.failed = False  # whether a step was refused of late
        self.iterations = none  # of each problem
        self.turn = 0
        self.compiled: CompiledBatch | None = None
        if usable(state.u):
            self._compile()

    def advance(self) -> bool:
        """One iteration, or several; whether that was all."""
        if self.compiled is not None:
            return (self._advance_once if self.compiled.functions is None else self._advance_many)(self.compiled)
        trial, there, state, flags = self._iterate()
        solved, factored, accepted, _ = flags.unbind(-1)
        proceeding = factored & accepted & ~solved & ~self.history.restoring
        self.turn += 1
        if self.turn % LOOK and self._below_limit() and bool((proceeding | ~self.running).all()):  # as nearly always
            self.state, self.model = trial, there
            self.iterations = self.iterations + 1
            self._forget_failures(proceeding)
            return False
        return self._look(trial, there, state, flags)

    def _advance_many(self, compiled: CompiledBatch) -> bool:
        """Iterations without Python."""
        most, progress = max(min(LONG_LOOK, self.limit - int(self.iterations.max()) + 1), 1), self._progress()
        compiled.iterate_many(most, self.sure, progress)
        before, self.iterations = self.iterations, torch.from_numpy(progress.iterations)
        may_be_saddle = progress.flags[3] | progress.shifted
        if self.batch is self.whole and progress.finished.all():  # as nearly always
            none = np.zeros_like(progress.iterations)
            found = (progress.u, progress.y, none, progress.iterations, may_be_saddle)
            self.ended = _Ended(*map(torch.from_numpy, found))
            return True
        self.history = dataclasses.replace(self.history, shifted=torch.from_numpy(progress.shifted))
        self._forget_failures(self.iterations > before)
        if progress.finished.any():
            codes = torch.zeros_like(self.iterations)
            self._keep(progress.finished, progress.u, progress.y, codes, may_be_saddle)
            if not bool(self.running.any()):
                return True
        return self._look_closely(compiled, progress.flags)

    def _advance_once(self, compiled: CompiledBatch) -> bool:
        """An iteration whose functions are called."""
        flags = compiled.iterate(self.stepping)
        solved, factored, accepted, flat = flags
        self.turn += 1
        running = self.running.numpy()
        shifted = self.history.shifted.numpy() | (compiled.problems.current.shift > 0)
        may_be_saddle = flat | shifted
        over = running & solved & factored & ~(may_be_saddle & self.sure)
        over = over & compiled.finite() if over.any() else over
        proceeding = ~running | over | (factored & accepted & ~solved & self.stepping)
        if proceeding.all() and self._below_limit() and not self._is_due(compiled):  # as nearly always
            if over.any():
                self._keep(over, *compiled.ends(accepted), torch.zeros_like(self.iterations), may_be_saddle)
                if not bool(self.running.any()):
                    return True
            compiled.accept()
            self.iterations = self.iterations + 1
            if shifted.any() or bool(self.history.shifted.any()):
                self.history = dataclasses.replace(self.history, shifted=torch.from_numpy(shifted))
            self._forget_failures(self.running)
            return False
        return self._look_closely(compiled, flags)

    def _look_closely(self, compiled: CompiledBatch, flags: Any) -> bool:
        """:meth:`_look` at what the kernels have come to."""
        self.model = compiled.model()
        if self._look(*compiled.tensors(), torch.from_numpy(flags).T):
            return True
        self._compile()
        return False

    def _is_due(self, compiled: CompiledBatch) -> bool:
        """Whether it is time to see which problems are running away, and to go on with fewer: and there are such."""
        if self.turn % LOOK:
            return False
        return compacted(self.running) is not None or bool((compiled.is_beyond(FAR) & self.running.numpy()).any())

    def _keep(self, ended: Any, u: Any, y: Any, code: Tensor, may_be_saddle: Any) -> None:
        """The results of the problems that have ended: arrays, or tensors."""
        given = (ended, u, y, may_be_saddle)  # as_tensor would move arrays to the default device
        which, u, y, may_be_saddle = (x if isinstance(x, Tensor) else torch.from_numpy(x) for x in given)
        new = _Ended(u, y, code, self.iterations, may_be_saddle).take(which)
        self.ended = self.ended.put(self.rows[which], new)
        self.running = self.running & ~which

    def _below_limit(self) -> bool:
        return int(self.iterations.max()) < self.limit

    def _progress(self) -> Progress:
        running, shifted, escapes, iterations = (
            x.numpy().copy() for x in (self.running, self.history.shifted, self.history.escapes, self.iterations)
        )
        n, finished, unquestioned = len(running), np.zeros_like(running), escapes >= ESCAPES
        found = np.empty((n, self.batch.m)), np.empty((n, self.batch.k)), np.zeros((4, n), dtype=bool)
        return Progress(running, self.stepping, shifted, unquestioned, finished, iterations, *found)

    def _compile(self) -> None:
        self.compiled = CompiledBatch(self.batch, self.scales, self.model, self.state, self.tolerances)
        self.stepping = ~(self.history.restoring & self.running).numpy()

    def _forget_failures(self, proceeding: Tensor) -> None:
        if self.failed:
            failures = torch.where(proceeding, 0, self.history.failures)
            self.history = dataclasses.replace(self.history, failures=failures)
            self.failed = bool(failures.any())

    def _look(self, trial: State, there: Model, state: State, flags: Tensor) -> bool:
        """See what has ended, and go on from the trial points, or from what the safeguards find."""
        solved, factored, accepted, flat = flags.unbind(-1)
        proceeding = factored & accepted & ~solved & ~self.history.restoring
        model = self.model
        may_be_saddle = flat | self.history.shifted
        suspected = solved & (self.history.escapes < ESCAPES) & (~factored | (may_be_saddle & self.sure))
        saddle = Safeguards(self.batch, self.scales, self.tolerances).saddle(model, state, suspected)
        last = (solved & accepted).unsqueeze(-1)  # the step is known, and shorter than can be asked for
        u, y = torch.where(last, trial.u, state.u), torch.where(last, trial.y, state.y)
        if self._end(u, y, model.finite(), solved, saddle, may_be_saddle):
            return True
        if bool((proceeding | ~self.running).all()):
            self.state, self.model = trial, there
        else:
            self._safeguard(model, state, proceeding, trial, there)
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
            model = Model.of(parts, u, state.s, state.y, batch.layout)
            trial, there, state, flags = iterate_once(batch, scales, model, state, tolerances)
            changed = [getattr(trial, name) for name in MOVED] + [getattr(state, name) for name in LOWERED]
            return *changed, *(getattr(there, name) for name in DERIVATIVES), flags

        rows = [*vars(self.state).values(), *vars(self.scales).values(), *(getattr(self.model, x) for x in DERIVATIVES)]
        found = iter(self.batch.evaluate(("newton", tolerances), iteration, *rows))
        trial = dataclasses.replace(self.state, **{name: next(found) for name in MOVED})
        here = dataclasses.replace(self.state, **{name: next(found) for name in LOWERED})
        trial = dataclasses.replace(trial, barrier=here.barrier)
        *derivatives, flags = found
        return trial, Model.of(derivatives, trial.u, trial.s, trial.y, self.batch.layout), here, flags

    def _end(self, u: Tensor, y: Tensor, finite: Tensor, solved: Tensor, saddle: Tensor, may_be_saddle: Tensor) -> bool:
        """Keep the results of the problems that are solved or hopeless; whether that is all."""
        far = (u - self.scales.start).abs() > FAR * (1 + self.scales.start.abs())
        code = torch.where(self.history.failures > FAILURES, int(Status.STALLED), RUNNING)
        code = torch.where(far.any(-1) & ~solved, int(Status.UNBOUNDED), code)
        code = torch.where(solved & ~saddle, int(Status.CONVERGED), code)
        code = torch.where(finite, code, int(Status.NOT_FINITE))
        code = torch.where((code == RUNNING) & (self.iterations >= self.limit), int(Status.ITERATION_LIMIT), code)
        ended = self.running & (code != RUNNING)
        if bool(ended.any()):
            self._keep(ended, u, y, code, may_be_saddle)
        return not bool(self.running.any())

    def _compact(self) -> None:
        """Go on with fewer problems once they have become few; where a new shape would be compiled, never."""
        if self.batch.evaluator is not None and self.batch.evaluator.compiling and not self._any_size_is_fine():
            return
        keep = compacted(self.running)
        if keep is not None:
            self.batch, self.scales, self.state = self.batch.select(keep), self.scales.take(keep), self.state.take(keep)
            self.model = self.model.take(keep)
            self.history, self.rows, self.running = self.history.take(keep), self.rows[keep], self.running[keep]
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

    def _safeguard(self, model: Model, state: State, proceeding: Tensor, trial: State, there: Model) -> None:
        """Go on from the trial points where these are as hoped, and elsewhere from what the safeguards find."""
        wanted = self.running & ~proceeding
        rows = (wanted if self._any_size_is_fine() else torch.ones_like(wanted)).nonzero().flatten()
        part = Safeguards(self.batch.select(rows), self.scales.take(rows), self.tolerances)
        found, history = part.step(model.take(rows), state.take(rows), self.history.take(rows), wanted[rows])
        found = trial.take(rows).where(proceeding[rows], found)
        self.state = trial.put(rows, found)
        self.model = there.put(rows, model_at(part.batch, part.scales, found.u, found.s, found.y))
        history = self.history.put(rows, history)
        failures, shifted = torch.where(proceeding, 0, history.failures), history.shifted & ~proceeding
        self.history = dataclasses.replace(history, failures=failures, shifted=shifted)

    def _any_size_is_fine(self) -> bool:
        """Whether functions are called, or run by tapes: a graph would be recorded for each number of problems."""
        return self.batch.evaluator is None or (self.compiled is not None and self.compiled.functions is not None)
