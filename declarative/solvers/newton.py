"""A batched Newton method: the whole batch at once, in torch, each problem with its own steps and its own end.

Equalities are handled by Newton's method on the optimality conditions (SQP), inequalities by a primal-dual interior
point: g(u) + s = 0 with slacks s > 0 and s_i y_i = barrier -> 0. With L = f + y' c the step solves

    [ H + d D   A'    G'   ] [du  ]     [ D_U L           ]
    [ A         0     0    ] [dy_h] = - [ h               ]
    [ G         0    -S/Y  ] [dy_g]     [ g + barrier / y ]

where d >= 0 is the least regularisation (D: the size of H's diagonal) that makes the Hessian positive definite on the
directions that the equalities leave free, so that the method looks for minima. A step is accepted if a filter of
(violation, objective) says that it makes progress, after a second-order correction where that helps; where no step
along the direction is accepted, feasibility is restored by a damped Gauss-Newton method first.

Nearly always an iteration is :func:`_iteration`, which decides nothing by values; what does not go as hoped goes the
careful way.
"""

from __future__ import annotations

import copy
import dataclasses
import sys
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import Tensor

from ..arguments import require_counts, require_flags, require_tolerances
from ..conditions import fitted_multipliers, largest
from ..linear import DenseLayout, KktSolution, Layout, or_one
from ..linear.directions import irregular
from ..linear.spectrum_kernel import NOTHING
from ..problem import Batch
from ..solution import RawSolution, Status
from .base import Solver
from .compaction import compacted
from .native import FAINT, Fates, Native, usable
from .newton_step import (
    BACKTRACKS,
    FILTER,
    FIRST_SHIFT,
    LEAST_SHIFT,
    LESS_SHIFT,
    MORE_SHIFT,
    REACH,
    STRAY,
    TINY_SHIFT,
    Model,
    Rows,
    Scales,
    State,
    Step,
    acceptable,
    ended,
    least_curvature,
    lowered_barrier,
    merit,
    model_at,
    moved,
    nearness,
    newton_step,
    remembered,
    residual_of,
    room,
    scaled_values,
    turned,
    values_at,
    widened,
)
from .polish import polish
from .resume import near, resumed

RUNNING = -1
FIRST_BARRIER, FIRST_SLACK = 0.1, 0.1  # in units in which gradients have size 1; the least slack to start with
FAR = 1e10  # times its size at the start: a point beyond that is running away
LOOK, LONG_LOOK = 8, 32  # iterations after which it is seen whether a problem is running away; those without Python
NUDGES = 4  # how often a problem may be moved off a saddle point
PUSHES, PUSH = 3, 1e-2  # how often, and how far, off a point where violations balance: it may be a saddle point of them
PROBES = (1.0, -1.0, 0.1, -0.1, 1e-2, -1e-2, 1e-3, -1e-3)  # of the size of u: how far to look along a direction
CURVED = 1e-12  # curvature below minus this, relative to the Hessian's diagonal, is negative
CANCELLED = 1e-8  # of the forces that balance: what curvature has to be more than
LEFT_BARRIER = 1e-3  # at least, once a saddle point has been left
ROUGH = 1e-6  # on the gradient, for a Hessian that is not exact, before polishing
NEAR = 1e-6  # a problem whose next step is shorter than this, relative to u, is solved
NEARBY = 0.1  # sizes of u, or of the way there: what is near a point
FINER, FINAL = 1e-3, 30  # of the tolerance, and iterations more, for what seemed solved but is not good enough
CLOSE, CLOSE_ENOUGH = 1e3, 8  # tolerances within which it is close; how often without a good step is enough
FAILURES = 6  # how many steps in a row may be refused
HOPELESS_SHIFT = 1e8  # with that much, steps are too short to lead anywhere
TRIES = 40  # of ever larger regularisation
CERTAIN = 4  # of what is first looked at does not follow from a system that may be singular
MODEL = ("objective", "gradient", "values", "jacobian", "hessian")  # what a model adds to a state
CHANGED = ("u", "s", "y", "shift", "filter", "stored")  # what a step changes in a state
LOWERED = ("barrier", "filter", "stored")  # and what a lower barrier does before
WILD = 10.0  # times what they were: multipliers after a damped step that mean nothing
DAMPINGS = (1e-10, 1e-7, 1e-4, 1e-2, 1.0)  # of the step towards equalities that depend on each other


@dataclass(frozen=True)
class Newton(Solver):
    """A batched Newton method for smooth problems, convex or not, with equalities and inequalities.

    Args:
        max_iterations: for each problem.
        stationarity_tolerance: on the scaled gradient of the Lagrangian; by default eps^0.6 of the precision worked in
            (4e-10 in double), as for the other two. What passes is then polished to the last digits.
        feasibility_tolerance: on the scaled constraints.
        complementarity_tolerance: on the products of slacks and multipliers.
        hessian: ``"exact"``, or ``"gauss-newton"`` for objectives that are stated by residuals: J'J, without the
            residuals' own curvature, on the way. Cheaper where they have many parts, never negative, and as fast where
            they become small. Polishing, the verdict and gradients use the exact one.
        keep_dtype: work in float32 for float32 inputs instead of in double precision: faster, and less robust.
        polish: finish each solution by Newton steps on the optimality conditions alone.

    Example:
        >>> import torch
        >>> from declarative import DeclarativeNode, Newton
        >>> node = DeclarativeNode(lambda x, u: (u - x).square().sum(), lambda x, u: u.prod() - 1,
        ...                        solver=Newton(), start=torch.ones(2))
        >>> node(torch.tensor([[1.0, 3.0], [2.0, 2.0]])).prod(-1)
        tensor([1.0000, 1.0000])
    """

    max_iterations: int = 300
    stationarity_tolerance: float | None = None
    feasibility_tolerance: float | None = None
    complementarity_tolerance: float | None = None
    keep_dtype: bool = False
    polish: bool = True
    hessian: Literal["exact", "gauss-newton"] = "exact"

    def __post_init__(self) -> None:
        if not isinstance(self.hessian, str) or self.hessian not in ("exact", "gauss-newton"):
            raise ValueError(f"hessian must be 'exact' or 'gauss-newton', but is {self.hessian!r}.")
        require_counts(max_iterations=self.max_iterations)
        names = ("stationarity_tolerance", "feasibility_tolerance", "complementarity_tolerance")
        require_tolerances(**{name: getattr(self, name) for name in names})
        require_flags(keep_dtype=self.keep_dtype, polish=self.polish)

    def solve(self, batch: Batch, start: Tensor) -> RawSolution:
        """Solve the batch, in double precision unless told otherwise."""
        inner = batch if self.keep_dtype else batch.in_double()
        first = start if inner is batch else start.to(torch.float64)
        if inner.guess is None:
            return self._finished(inner, first, start.dtype).to(start.dtype)
        raw = near(inner, first, start.dtype)
        rows = (raw.codes != Status.CONVERGED).nonzero().flatten()
        if len(rows):
            raw = raw.put(rows, self._finished(inner.select(rows), first[rows], start.dtype))
        return raw.to(start.dtype)

    def _finished(self, batch: Batch, start: Tensor, dtype: torch.dtype) -> RawSolution:
        if self.hessian == "exact":
            raw, vague = self._solve(batch, start, sure=not self.polish)
        else:
            raw, vague = self._roughly()._solve(batch.with_linear_residuals(), start, sure=not self.polish)
        if not self.polish:
            return raw
        raw = polish(batch, raw, start, dtype)
        if not bool(raw.codes.any()):  # all have converged, as nearly always
            return raw
        rows = ((raw.codes == Status.NOT_OPTIMAL) & vague).nonzero().flatten()
        if len(rows):  # they may be saddle points
            part, first = batch.select(rows), start[rows]
            raw = raw.put(rows, polish(part, self._solve(part, first, sure=True)[0], first, dtype))
        rows = (raw.codes == Status.NOT_OPTIMAL).nonzero().flatten()
        return self._finer(batch, raw, start, dtype, rows) if len(rows) else raw

    def _finer(self, batch: Batch, raw: RawSolution, start: Tensor, dtype: torch.dtype, rows: Tensor) -> RawSolution:
        """Go on a little with what seemed to be solved but is not good enough, and keep what then is."""
        part, first = batch.select(rows), start[rows]
        eps = torch.finfo(first.dtype).eps
        finer = dataclasses.replace(self, stationarity_tolerance=FINER * eps**0.6, max_iterations=FINAL)
        again = polish(part, finer._solve(part, raw.y[rows], sure=True)[0], first, dtype)
        assert again.assessment is not None
        size = torch.maximum(raw.y[rows].abs(), (raw.y[rows] - first).abs())
        stayed = ((again.y - raw.y[rows]).abs() <= NEARBY * size.amax(-1, keepdim=True)).all(-1)  # not running away
        good = stayed & again.assessment.solved(dtype)
        taken = again.take(good.nonzero().flatten())
        solved = torch.full_like(taken.codes, int(Status.CONVERGED))
        return raw.put(rows[good], dataclasses.replace(taken, codes=solved)) if len(solved) else raw

    def _roughly(self) -> Newton:
        """For steps of Gauss and Newton, which are not the best ones near the end: the exact ones finish."""
        given = self.stationarity_tolerance is not None or not self.polish
        return self if given else dataclasses.replace(self, stationarity_tolerance=ROUGH)

    def centre(self, batch: Batch, start: Tensor, barrier: float) -> RawSolution:
        """Minimise f - barrier * sum(log(-g)) subject to h = 0: where slack times multiplier is the barrier."""
        scales, state, model = _first_state(batch, start)
        last = barrier * scales.objective
        state = dataclasses.replace(state, barrier=torch.maximum(state.barrier, last), last=last.unsqueeze(-1))
        return self._run(batch, scales, state, model, sure=True)[0]

    def _solve(self, batch: Batch, start: Tensor, sure: bool) -> tuple[RawSolution, Tensor]:
        """Where the iterations end, and which of these points may be saddle points; none, if that is to be ``sure``."""
        batch = batch.expanded_everywhere(start)
        scales, state, model = _first_state(batch, start)
        if batch.guess is not None:
            state = resumed(batch, scales, state)
            model = model_at(batch, scales, state.u, state.s, state.y)
        return self._run(batch, scales, state, model, sure)

    def _run(self, batch: Batch, scales: Scales, state: State, model: Model, sure: bool) -> tuple[RawSolution, Tensor]:
        loop = _Loop(self, batch, scales, state, model, sure)
        while not loop.advance():
            pass
        return loop.result(), loop.ended.vague


def _iteration(
    batch: Batch, scales: Scales, model: Model, state: State, tolerances: tuple[float, float, float]
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
class _Record(Rows):
    """How each problem has fared."""

    failures: Tensor  # steps in a row that were refused
    nudges: Tensor
    goal: Tensor  # the violation that is to be reached before Newton steps are taken again; infinite where they are
    shifted: Tensor  # whether the last factors needed a regularisation
    close: Tensor  # how often it has been close to a solution, without a good step from there


@dataclass(frozen=True)
class _Ended(Rows):
    """The results of problems that have ended."""

    u: Tensor
    y: Tensor
    code: Tensor
    iterations: Tensor
    vague: Tensor  # whether they may be saddle points: a direction of H may be flat


class _Loop:
    """The problems that are still running, and the results of those that have ended."""

    def __init__(self, solver: Newton, batch: Batch, scales: Scales, state: State, model: Model, sure: bool) -> None:
        default = torch.finfo(state.u.dtype).eps ** 0.6
        self.limit = min(solver.max_iterations, sys.maxsize)
        given = (solver.feasibility_tolerance, solver.stationarity_tolerance, solver.complementarity_tolerance)
        self.tolerances = cast(tuple[float, float, float], tuple(default if one is None else one for one in given))
        self.limits = (*self.tolerances, torch.finfo(state.u.dtype).eps ** 0.75, NEAR)
        self.whole, self.batch, self.scales, self.state = batch, batch, scales, state
        self.model = model
        self.all_scales = scales
        none = torch.zeros(batch.size, dtype=torch.int64, device=state.u.device)
        forever = torch.full_like(state.barrier, torch.inf)
        never = torch.zeros_like(none, dtype=torch.bool)
        self.record = _Record(none, none, forever, never, none)
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
        self.model = native.model()
        if self._look(*native.tensors(), torch.from_numpy(flags).T):
            return True
        self._go_native()
        return False

    def _advance_once(self, native: Native) -> bool:
        flags = native.iterate(self.limits, self.hopeful)
        solved, factored, accepted, faint = flags
        self.turn += 1
        running = self.running.numpy()
        shifted = self.record.shifted.numpy() | (native.here.shift > 0)
        doubtful = faint | shifted
        certain = factored & ~(doubtful & self.sure) & native.finite()
        over = running & solved & certain
        hoped = ~running | over | (factored & accepted & ~solved & self.hopeful)
        if self.turn % LOOK and self._below_limit() and hoped.all():  # as nearly always
            if over.any():
                self._keep(over, *native.ends(accepted), torch.zeros_like(self.iterations), doubtful)
                if not bool(self.running.any()):
                    return True
            native.go_on()
            self.iterations = self.iterations + 1
            self.record = dataclasses.replace(self.record, shifted=torch.from_numpy(shifted))
            self._forget_failures(torch.ones_like(self.running))
            return False
        self.model = native.model()
        if self._look(*native.tensors(), torch.from_numpy(flags).T):
            return True
        self._go_native()
        return False

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
        saddle = self._saddle(model, state, suspected)
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
        """:func:`_iteration`, called or replayed."""
        if self.batch.evaluator is None:
            return _iteration(self.batch, self.scales, self.model, self.state, self.tolerances)
        tolerances, names = self.tolerances, (tuple(vars(self.state)), tuple(vars(self.scales)))

        def iteration(batch: Batch, u: Tensor, *rows: Tensor) -> tuple[Tensor, ...]:
            parts = iter((u, *rows))
            state = State(**{name: next(parts) for name in names[0]})
            scales = Scales(**{name: next(parts) for name in names[1]})
            model = Model(**{name: next(parts) for name in MODEL}, u=u, y=state.y, s=state.s, layout=batch.layout)
            trial, there, state, flags = _iteration(batch, scales, model, state, tolerances)
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
        if self.batch.evaluator is not None and self.batch.evaluator.compiling:
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

    # The careful way. Where things went as hoped it changes nothing.

    def _take_care(self, model: Model, state: State, hoped: Tensor, trial: State, there: Model) -> None:
        """Go on from the trial points where these are as hoped, and elsewhere from what more care finds."""
        rows = (self.running & ~hoped).nonzero().flatten()
        if 2 * len(rows) > len(self.rows) or not self._any_size_is_fine():
            careful, record = self._careful(model, state, hoped)
            self.state = trial.where(hoped, careful)
            self.record = dataclasses.replace(record, failures=torch.where(hoped, 0, record.failures))
            self.model = model_at(self.batch, self.scales, self.state.u, self.state.s, self.state.y)
            return
        part = copy.copy(self)
        part.batch, part.scales, part.record = self.batch.select(rows), self.scales.take(rows), self.record.take(rows)
        part.running, part.rows = self.running[rows], self.rows[rows]
        careful, record = part._careful(model.take(rows), state.take(rows), hoped[rows])
        found = model_at(part.batch, part.scales, careful.u, careful.s, careful.y)
        self.state, self.model = trial.put(rows, careful), there.put(rows, found)
        failures, shifted = torch.where(hoped, 0, self.record.failures), self.record.shifted & ~hoped
        self.record = dataclasses.replace(self.record, failures=failures, shifted=shifted).put(rows, record)

    def _any_size_is_fine(self) -> bool:
        """Whether functions are called, or run by tapes: a graph would be recorded for each number of problems."""
        return self.batch.evaluator is None or (self.native is not None and self.native.functions is not None)

    def _careful(self, model: Model, state: State, hoped: Tensor) -> tuple[State, _Record]:
        record = self.record
        wanted = self.running & ~hoped
        restoring = wanted & ~record.goal.isinf()
        stepping = wanted & ~restoring
        model = _finite_model(model)
        convex, state, damping = _regularised(model, state, stepping, REACH * self._reach(state))
        damped = damping > 0
        record = dataclasses.replace(record, shifted=(state.shift > 0) & stepping)
        saddle = self._saddle(
            model, state, stepping & self._is_stationary(model) & (state.shift > 0) & (record.nudges < NUDGES)
        )
        result, accepted = self._search(convex, state, damping, stepping & ~saddle)
        wild = damped & accepted & (largest(result.y.abs()) > WILD * largest(state.y.abs()).clamp(min=1.0))
        if bool(wild.any()):  # equalities that contradict each other, slightly, say nothing about the multipliers
            result = self._afresh(result, result.u, result.s).where(wild, result)
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
        self, model: Model, before: State, state: State, record: _Record, in_vain: Tensor
    ) -> tuple[State, _Record]:
        """Problems that have been close to a solution often enough, without a good step, stay there."""
        close = in_vain & self._is_stationary(model, CLOSE)
        record = dataclasses.replace(record, close=record.close + close)
        content = close & (record.close > CLOSE_ENOUGH)
        failures = torch.where(content, FAILURES + 1, record.failures)
        return before.where(content, state), dataclasses.replace(record, failures=failures)

    def _saddle(self, model: Model, state: State, suspected: Tensor) -> Tensor:
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
        return self._afresh(state, best)

    def _restore(self, model: Model, state: State, record: _Record, restoring: Tensor) -> tuple[State, _Record]:
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
        fresh = self._afresh(state, torch.where(restoring.unsqueeze(-1), best, state.u)).where(restoring, state)
        return fresh, dataclasses.replace(record, failures=failures, goal=goal, nudges=record.nudges + pushed)

    def _less_violated(self, place: Tensor, best: Tensor, least: Tensor) -> tuple[Tensor, Tensor]:
        """The best point so far and its violation, or another place where it is less."""
        objective, values = values_at(self.batch, self.scales, place)
        p = self.batch.p
        missed = torch.cat([values[:, :p], values[:, p:].clamp(min=0.0)], -1).square().sum(-1)
        better = (missed < least) & objective.isfinite()
        return torch.where(better.unsqueeze(-1), place, best), torch.where(better, missed, least)

    def _afresh(self, state: State, u: Tensor, slacks: Tensor | None = None) -> State:
        """Slacks (unless they are given) and multipliers for a point that no step led to."""
        p = self.batch.p
        _, gradient, values, jacobian = self.batch.slopes(u)
        values = scaled_values(values, self.scales)
        smallest = torch.sqrt(state.barrier).unsqueeze(-1).clamp(max=0.1).expand_as(state.s)
        if slacks is None:
            slacks = _exact_for_bounds(self.batch, values, torch.maximum(-values[:, p:], smallest))
        s = slacks
        y = torch.cat([state.y[:, :p], state.barrier.unsqueeze(-1) / s], -1)
        if p:
            gradient = gradient * self.scales.objective.unsqueeze(-1)
            jacobian = self.batch.layout.jacobian.scale_rows(jacobian, self.scales.rows)
            y = _estimated(self.batch.layout, y, p, gradient, jacobian)
        return dataclasses.replace(state, u=u, s=s, y=y, shift=torch.zeros_like(state.shift))


def _first_state(batch: Batch, u: Tensor) -> tuple[Scales, State, Model]:
    """Units in which gradients at the start have size 1; slacks, multipliers and barrier to start with; the model."""
    found = batch.evaluate("first look", _first_look, u, by_problem=True, compared=CERTAIN)
    objective, rows, most, s, y, *rest = found
    none = u.new_zeros(batch.size)
    counts = torch.zeros(batch.size, dtype=torch.int64, device=u.device)
    filter_, last = u.new_full((batch.size, FILTER, 2), torch.inf), u.new_zeros(batch.size, 0)
    barrier = u.new_full((batch.size,), FIRST_BARRIER)
    state = State(u, s, y, barrier, none, none.clone(), filter_, counts, most, last)
    model = Model(**dict(zip(MODEL, rest, strict=True)), u=u, y=y, s=s, layout=batch.layout)
    return Scales(objective, rows, u), state, model


def _first_look(batch: Batch, u: Tensor) -> tuple[Tensor, ...]:
    """The units of the objective and of the constraints; the largest theta, s, y and the model in these units."""
    here, layout, p = batch.expand(u), batch.layout, batch.p
    bend = layout.hessian.multiply(here.curvature.abs(), irregular(u).abs() * or_one(u.abs()))
    slope = torch.maximum(here.gradient.abs(), bend)
    length = layout.jacobian.row_lengths(here.jacobian)
    usable = (length > 1e-8) & length.isfinite()
    rows = torch.where(usable, 1 / torch.where(usable, length, 1.0), 1.0).clamp(max=1e8)
    scales = Scales(1 / or_one(largest(slope)), rows, u)
    values = scaled_values(here.values, scales)
    s = torch.maximum(-values[:, p:], torch.full_like(values[:, p:], FIRST_SLACK)).nan_to_num(1.0)
    s = _exact_for_bounds(batch, values, s)
    y = torch.cat([torch.zeros_like(values[:, :p]), FIRST_BARRIER / s], -1)
    theta = residual_of(values, s).abs().sum(-1).nan_to_num(1.0).clamp(min=1.0)
    if p:
        jacobian = layout.jacobian.scale_rows(here.jacobian, rows)
        y = _estimated(layout, y, p, here.gradient * scales.objective.unsqueeze(-1), jacobian)
    model = model_at(batch, scales, u, s, y)
    return scales.objective, rows, 1e4 * theta, s, y, *(getattr(model, name) for name in MODEL)


def _exact_for_bounds(batch: Batch, values: Tensor, s: Tensor) -> Tensor:  # (batch, q)
    """Slacks with those of bounds as they are, where u is inside: as bounds are linear, no step then leaves them."""
    if not batch.bounds:
        return s
    is_bound = torch.arange(batch.q, device=s.device) >= batch.q - batch.bounds
    room = -values[:, batch.p :]
    return torch.where(is_bound & (room > 0), room, s)


def _estimated(layout: Layout, y: Tensor, p: int, gradient: Tensor, jacobian: Tensor) -> Tensor:
    """Least-squares multipliers of the equalities, from scaled slopes; zero where they are too large to be of use."""
    equality = torch.arange(y.shape[-1], device=y.device) < p
    gradient = gradient + layout.jacobian.multiply_transposed(jacobian, torch.where(equality, 0.0, y))
    guess = -fitted_multipliers(layout, gradient, jacobian, equality.expand_as(y), quick=True)[:, :p]
    usable = guess.isfinite().all(-1, keepdim=True) & (largest(guess.abs()) < 1e3).unsqueeze(-1)
    return torch.cat([torch.where(usable, guess, 0.0), y[:, p:]], -1)


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
    return layout.solve_kkt(
        torch.zeros_like(hessian), rows, damping, ones, 0, (torch.zeros_like(damping), -wrong), none
    ).z
