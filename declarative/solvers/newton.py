"""A batched Newton method: the whole batch at once, in torch, each problem with its own steps and its own end.

Equalities are handled by Newton's method on the optimality conditions (SQP), inequalities by a primal-dual interior
point: g(u) + s = 0 with slacks s > 0 and s_i y_i = barrier -> 0. With L = f + y' c the step solves

    [ H + d I   A'    G'   ] [du  ]     [ D_U L           ]
    [ A         0     0    ] [dy_h] = - [ h               ]
    [ G         0    -S/Y  ] [dy_g]     [ g + barrier / y ]

where d >= 0 is the least regularisation that makes the Hessian positive definite on the directions that the equalities
leave free, so that the method looks for minima. A step is accepted if it reduces an exact penalty function, after a
second-order correction where that helps.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor

from ..arguments import require_counts, require_flags, require_tolerances
from ..linear.dense import times
from ..linear.directions import irregular
from ..optimality import estimate_multipliers, gradient_scale, largest, scaled_direction
from ..problem import Batch, Expansion
from ..solution import RawSolution, Status
from .base import Solver
from .compaction import compacted
from .newton_step import Factor, Kept, Model, Rows, Step, factorise, scale_of
from .polish import polish

RUNNING = -1
ARMIJO = 1e-4  # the fraction of the predicted decrease that a step must achieve
BACKTRACKS = 25
BOUNDARY = 0.995  # the fraction of the way to s = 0 that a step may go
FAR = 1e10  # in scaled units: an objective below -FAR or a point beyond FAR is unbounded
NUDGES = 3  # how often a problem may be pushed off a saddle point or a point where the constraints' rank drops
NEAR = 1e-6  # a problem whose next step is shorter than this, relative to u, is solved
PATIENCE = 20  # iterations without less violation, after which feasibility alone is sought
ROUGH = 1e-3  # a violation from which a damped step is better than a long one
FAILURES = 8  # how many steps in a row may be refused


@dataclass(frozen=True)
class Newton(Solver):
    """A batched Newton method for smooth problems, convex or not, with equalities and inequalities.

    Args:
        max_iterations: for each problem.
        stationarity_tolerance: on the scaled gradient of the Lagrangian; by default eps^0.6 of the precision worked in
            (4e-10 in double), as for the other two. What passes is then polished to the last digits.
        feasibility_tolerance: on the scaled constraints.
        complementarity_tolerance: on the products of slacks and multipliers.
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

    max_iterations: int = 200
    stationarity_tolerance: float | None = None
    feasibility_tolerance: float | None = None
    complementarity_tolerance: float | None = None
    keep_dtype: bool = False
    polish: bool = True

    def __post_init__(self) -> None:
        require_counts(max_iterations=self.max_iterations)
        names = ("stationarity_tolerance", "feasibility_tolerance", "complementarity_tolerance")
        require_tolerances(**{name: getattr(self, name) for name in names})
        require_flags(keep_dtype=self.keep_dtype, polish=self.polish)

    def solve(self, batch: Batch, start: Tensor) -> RawSolution:
        """Solve the batch, in double precision unless told otherwise."""
        inner = batch if self.keep_dtype else batch.in_double()
        raw = self._solve(inner, start if inner is batch else start.to(torch.float64))
        if self.polish:
            raw = polish(inner, raw, raw.factor)
        return raw.to(start.dtype)

    def _solve(self, batch: Batch, start: Tensor) -> RawSolution:
        whole, here = _scale(batch, start)
        problem, state = whole, _first_state(whole, start, here)
        done = _Done(state, torch.arange(batch.size, device=start.device))
        for iteration in range(self.max_iterations + 1):
            model = problem.model(state)
            finite = model.finite()
            tame = _tame(model, finite)
            factor = factorise(tame, state.delta, state.failures > 0, state.curved)
            state = _lower_barrier(state, model)
            factor, step = _within_reach(factor, tame, state)
            state = self._judge(problem, state, model, finite, factor, step, iteration)
            if done.end(state.code != RUNNING, state, factor):
                break
            keep = done.compact()
            if keep is not None:
                state, problem = state.take(keep), problem.take(keep)
                model, factor, step = model.take(keep), factor.take(keep), step.take(keep)
            before, state = state, _advance(problem, state, model, factor, step, done.running)
            short = _short(state.u - before.u, state.u)
            if not batch.q and (not iteration or short):
                # If that was the last step, its factorisation shows it: no other Hessian is needed to find out.
                model = problem.model(state, model.hessian)
                step = factor.solve(model, state.barrier, model.residual())
                now = self._judge(problem, state, model, model.finite(), factor, step, iteration + 1)
                ended = now.code == Status.CONVERGED
                if not short and ended.any():
                    ended = ended & problem.has_hessian(state, model.hessian)
                if done.end(ended, now, factor):
                    break
        return RawSolution(
            y=done.state.u,
            multipliers=-done.state.y * whole.rows.row_scale / whole.rows.objective_scale.unsqueeze(-1),
            codes=done.state.code,
            iterations=done.state.iterations,
            messages=("Newton",) * batch.size,
            factor=_keep(batch, done.factor, whole.rows),
        )

    def _judge(
        self,
        problem: _Scaled,
        state: _State,
        model: Model,
        finite: Tensor,
        factor: Factor,
        step: Step,
        iteration: int,
    ) -> _State:
        """End the problems that are solved or hopeless; push those off that sit at a saddle point."""
        default = torch.finfo(state.u.dtype).eps ** 0.6
        violation = model.violation()
        feasible = violation <= (self.feasibility_tolerance or default)
        # On a badly scaled problem a small gradient says little: the next step must be short too, or be refused.
        near = step.u.abs().amax(-1) <= NEAR * state.u.abs().amax(-1).clamp(min=1.0)
        solved = (
            feasible
            & (near | (state.failures > 1))
            & (model.stationarity() <= (self.stationarity_tolerance or default))
            & (model.complementarity() <= (self.complementarity_tolerance or default))
        )
        stuck = ~feasible & model.violation_is_stationary()
        lost = ((solved & factor.indefinite()) | stuck) & (state.nudges < NUDGES)
        code = torch.full_like(state.code, RUNNING)
        code[state.failures > FAILURES] = Status.STALLED
        code[(state.failures > FAILURES) & (violation > ROUGH)] = Status.INFEASIBLE  # no step reduces it
        far = state.u.abs().amax(-1) > FAR * problem.rows.reach
        code[far | (feasible & (model.objective < -FAR))] = Status.UNBOUNDED
        code[stuck] = Status.INFEASIBLE
        code[solved] = Status.CONVERGED
        code[lost] = RUNNING
        code[~finite] = Status.NOT_FINITE
        if iteration == self.max_iterations:
            code[code == RUNNING] = Status.ITERATION_LIMIT
        pushed = lost & (code == RUNNING)
        progress = feasible | (violation < 0.9 * state.least)
        return dataclasses.replace(
            state,
            code=code,
            iterations=torch.full_like(state.iterations, iteration),
            delta=factor.delta,
            curved=factor.weight > 0,
            least=torch.minimum(state.least, violation),
            stagnation=torch.where(progress, 0, state.stagnation + 1),
            nudges=state.nudges + pushed,
            pushed=pushed,
        )


@dataclass(frozen=True)
class _State(Rows):
    """Where each problem is."""

    u: Tensor  # (batch, m)
    s: Tensor  # (batch, q)
    y: Tensor  # (batch, k)
    barrier: Tensor  # (batch,) and so are the others
    penalty: Tensor
    delta: Tensor
    radius: Tensor  # the longest step that is trusted
    failures: Tensor
    least: Tensor  # the smallest violation so far
    stagnation: Tensor  # iterations since it has fallen
    nudges: Tensor
    pushed: Tensor
    curved: Tensor  # whether the Hessian needs the constraints to be positive definite
    code: Tensor
    iterations: Tensor


class _Done:
    """The problems that have ended, and which ones the loop is still working on."""

    def __init__(self, state: _State, rows: Tensor) -> None:
        self.state = state
        self.factor: Factor | None = None  # the last one of each problem
        self.rows = rows  # the places in the batch of those in the loop
        self.running = torch.ones_like(rows, dtype=torch.bool)

    def end(self, ended: Tensor, state: _State, factor: Factor) -> bool:
        """Keep the results of those that have ended; whether that is all."""
        ended = self.running & ended
        if ended.all() and len(ended) == len(self.state.code):
            self.state, self.factor = state, factor  # all at once
            return True
        if ended.any():
            rows = self.rows[ended]
            self.state = self.state.put(rows, state.take(ended))
            self.factor = factor if self.factor is None else self.factor.put(rows, factor.take(ended))
            self.running = self.running & ~ended
        return not self.running.any()

    def compact(self) -> Tensor | None:
        """The positions to go on with, if they have become few."""
        keep = compacted(self.running)
        if keep is not None:
            self.rows, self.running = self.rows[keep], self.running[keep]
        return keep


@dataclass(frozen=True)
class _Scales(Rows):
    objective_scale: Tensor  # (batch,)
    row_scale: Tensor  # (batch, k)
    reach: Tensor  # the size of u at the start, at least 1, (batch,)


@dataclass(frozen=True)
class _Scaled:
    """The problems in units in which gradients at the start have size 1."""

    batch: Batch
    rows: _Scales

    def take(self, rows: Tensor) -> _Scaled:
        return _Scaled(self.batch.select(rows), self.rows.take(rows))

    def values(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """f and c."""
        objective, values = self.batch.values(u)
        return objective * self.rows.objective_scale, values * self.rows.row_scale

    def has_hessian(self, state: _State, hessian: Tensor) -> Tensor:  # (batch,)
        """Whether this is still the Hessian after a long step: the problem is quadratic, and a minimum stays one."""
        scale = self.rows.objective_scale.unsqueeze(-1)
        direction = irregular(state.u)
        stacked = -state.y * self.rows.row_scale / scale
        now = self.batch.curvatures(state.u, stacked, direction.unsqueeze(1))[:, 0] * scale
        then = times(hessian, direction)
        return (now - then).abs().amax(-1) <= 1e-10 * torch.maximum(now.abs(), then.abs()).amax(-1)

    def model(self, state: _State, hessian: Tensor | None = None) -> Model:
        """The model at a point, with its own Hessian or one that is given."""
        scale, row_scale = self.rows.objective_scale, self.rows.row_scale
        stacked = -state.y * row_scale / scale.unsqueeze(-1)  # in the convention of the batch, L = f - stacked' c
        if hessian is None:
            here = self.batch.expand(state.u, stacked)
            objective, slope, values, jacobian = here.objective, here.gradient, here.values, here.jacobian
            hessian = here.curvature * scale[:, None, None]
        else:
            objective, slope, values, jacobian = self.batch.slopes(state.u, stacked)
        return Model(
            objective=objective * scale,
            gradient=(slope + times(jacobian.mT, stacked)) * scale.unsqueeze(-1),
            values=values * row_scale,
            jacobian=jacobian * row_scale.unsqueeze(-1),
            hessian=hessian,
            y=state.y,
            s=state.s,
        )


def _scale(batch: Batch, u: Tensor) -> tuple[_Scaled, Expansion]:
    here = batch.expand_along(u, scaled_direction(u))
    slope = gradient_scale(here.gradient, here.curvature).amax(-1)
    length = torch.linalg.vector_norm(here.jacobian, dim=-1)
    usable = (length > 1e-8) & length.isfinite()
    scales = _Scales(
        objective_scale=1 / slope,
        row_scale=torch.where(usable, 1 / torch.where(usable, length, 1.0), 1.0).clamp(max=1e8),
        reach=u.abs().amax(-1).clamp(min=1.0),
    )
    return _Scaled(batch, scales), here


def _first_state(problem: _Scaled, u: Tensor, here: Expansion) -> _State:
    batch = problem.batch
    values = here.values * problem.rows.row_scale
    none = u.new_zeros(batch.size)
    counts = torch.zeros(batch.size, dtype=torch.int64, device=u.device)
    barrier = none + 0.1
    s = torch.maximum(-values[:, batch.p :], torch.full_like(values[:, batch.p :], 0.1))
    y = torch.cat([torch.zeros_like(values[:, : batch.p]), barrier.unsqueeze(-1) / s], -1)
    state = _State(
        u=u,
        s=s.nan_to_num(1.0),
        y=y.nan_to_num(0.0),
        barrier=barrier,
        penalty=none + 1.0,
        delta=none.clone(),
        radius=10 * problem.rows.reach,
        failures=counts,
        least=none + torch.inf,
        stagnation=counts.clone(),
        nudges=counts.clone(),
        pushed=counts.bool(),
        curved=counts.bool(),
        code=counts + RUNNING,
        iterations=counts.clone(),
    )
    return dataclasses.replace(state, y=_estimated(problem, state, here)) if batch.p else state


def _estimated(problem: _Scaled, state: _State, here: Expansion) -> Tensor:
    """Least-squares multipliers of the equalities; zero where they are too large to be of use."""
    p, rows = problem.batch.p, problem.rows
    jacobian = here.jacobian * rows.row_scale.unsqueeze(-1)
    gradient = here.gradient * rows.objective_scale.unsqueeze(-1)
    gradient = gradient + times(jacobian[:, p:].mT, state.y[:, p:])
    guess = -estimate_multipliers(gradient, jacobian[:, :p])
    usable = guess.isfinite().all(-1, keepdim=True) & (guess.abs().amax(-1, keepdim=True) < 1e3)
    return torch.cat([torch.where(usable, guess, 0.0), state.y[:, p:]], -1)


def _keep(batch: Batch, factor: Factor | None, scales: _Scales) -> Kept | None:
    """The last factorisations, for the backward pass, if they are those of the optimality conditions as they stand."""
    if factor is None or batch.q or bool(factor.delta.any()) or bool(factor.damping.any()):
        return None
    return Kept(factor.whole, factor.half, factor.small, factor.weight, scales.objective_scale, scales.row_scale)


def _short(step: Tensor, u: Tensor) -> bool:
    """Whether the steps of most problems are so short that the next ones may be nothing."""
    short = step.abs().amax(-1) <= 1e-4 * u.abs().amax(-1).clamp(min=1.0)
    return bool(short.double().mean() > 0.5)


def _tame(model: Model, finite: Tensor) -> Model:
    """The model with problems that are not finite blanked out: they end in this iteration, and must not stop others."""
    if finite.all():
        return model
    blank = {name: torch.zeros_like(x) for name, x in vars(model).items()}
    return model.where(finite, Model(**{**blank, "s": torch.ones_like(model.s)}))


def _lower_barrier(state: _State, model: Model) -> _State:
    """Lower the barrier of each problem that has solved its present one well enough; the penalty starts anew."""
    if not state.s.shape[-1]:
        return state
    barrier, least = state.barrier, torch.finfo(state.u.dtype).eps ** 0.75
    rest = torch.maximum(model.stationarity(), largest(model.residual().abs()))
    for _ in range(4):
        solved = torch.maximum(rest, model.complementarity(barrier)) <= 10 * barrier
        barrier = torch.where(solved, torch.minimum(0.2 * barrier, barrier**1.5).clamp(min=least), barrier)
    penalty = torch.where(barrier < state.barrier, 1.0, state.penalty)
    return dataclasses.replace(state, barrier=barrier, penalty=penalty)


def _within_reach(factor: Factor, model: Model, state: _State) -> tuple[Factor, Step]:
    """The step; where nearly dependent constraints make it too long, one that meets them less fully."""
    step = factor.solve(model, state.barrier, model.residual())
    if not model.p:
        return factor, step
    for damping in (1e-4, 1e-2, 1.0):
        long = (step.u.abs().amax(-1) > state.radius) & (model.violation() > ROUGH)
        if not long.any():
            break
        factor = factor.damped(torch.where(long, damping, 0.0)).where(long, factor)
        step = factor.solve(model, state.barrier, model.residual()).where(long, step)
    return factor, step


def _advance(problem: _Scaled, state: _State, model: Model, factor: Factor, step: Step, running: Tensor) -> _State:
    """Take a step in each problem: Newton's where it makes progress, else a push or a step towards feasibility."""
    reach = state.radius / step.u.abs().amax(-1).clamp(min=1e-300)
    longest = torch.minimum(_room(state.s, step.s), reach)
    decrease, penalty = _predict(state, model, factor, step)
    merit = _merit(state.barrier, penalty, state.s, model.objective, model.residual())
    slack = 10 * torch.finfo(merit.dtype).eps * merit.abs()

    def try_step(step: Step, length: Tensor) -> tuple[_State, Tensor, Tensor]:
        moved = _move(state, step, length)
        objective, values = problem.values(moved.u)
        residual = torch.cat([values[:, : model.p], values[:, model.p :] + moved.s], -1)
        new = _merit(state.barrier, penalty, moved.s, objective, residual)
        good = (new <= merit + slack + ARMIJO * length * decrease) & new.isfinite()
        return moved, good | ~running, residual

    length = longest
    result, accepted, residual = try_step(step, length)
    if model.y.shape[-1] and not accepted.all():
        corrected = factor.solve(
            model, state.barrier, length.unsqueeze(-1) * model.residual() + residual.nan_to_num(0.0)
        )
        second, good, _ = try_step(corrected, torch.minimum(_room(state.s, corrected.s), reach))
        result = result.where(accepted | ~good, second)
        accepted = accepted | good
    for _ in range(BACKTRACKS):
        if accepted.all():
            break
        length = torch.where(accepted, length, 0.5 * length)
        shorter, good, _ = try_step(step, length)
        result = result.where(accepted | ~good, shorter)
        accepted = accepted | good
    went = (result.u - state.u).abs().amax(-1)
    whole = accepted & (length == longest)
    radius = torch.where(whole, torch.maximum(state.radius, 4 * went), torch.maximum(2 * went, 1e-3 * state.radius))
    failures = torch.where(accepted, 0, state.failures + 1)
    result = dataclasses.replace(result, penalty=penalty, failures=failures, radius=radius)
    accepted = accepted & (state.stagnation < PATIENCE)
    if not accepted.all():
        result = result.where(accepted, _restore(problem, state, model))
    if state.pushed.any():
        result = _push(problem, state).where(state.pushed, result)
    return result


def _predict(state: _State, model: Model, factor: Factor, step: Step) -> tuple[Tensor, Tensor]:
    """The slope of the penalty function along the step, with a penalty large enough to make it a descent."""
    residual, change = model.residual(), times(model.jacobian, step.u)
    change = torch.cat([change[:, : model.p], change[:, model.p :] + step.s], -1)
    total, left = residual.abs().sum(-1), (residual + change).abs().sum(-1)
    gain = (total - left).clamp(min=0.0)
    slope = (model.gradient * step.u).sum(-1) - state.barrier * (step.s / state.s).sum(-1)
    curved = (step.u * times(model.hessian, step.u)).sum(-1) + factor.delta * step.u.square().sum(-1)
    curved = curved + (step.s.square() * model.y[:, model.p :] / state.s).sum(-1)
    needed = (slope + 0.5 * curved.clamp(min=0.0)) / (0.7 * gain.clamp(min=1e-300))
    worth = gain > 1e-14
    # A penalty far above the multipliers makes the steps creep along curved constraints, so it may fall again.
    enough = torch.maximum(torch.where(worth, 1.5 * needed, 0.0), largest((model.y + step.y).abs()))
    penalty = torch.maximum(enough, 0.3 * state.penalty).clamp(min=1e-6, max=1e12)
    return (slope - penalty * gain).clamp(max=0.0), penalty


def _merit(barrier: Tensor, penalty: Tensor, s: Tensor, objective: Tensor, residual: Tensor) -> Tensor:
    return objective - barrier * s.log().sum(-1) + penalty * residual.abs().sum(-1)


def _room(s: Tensor, ds: Tensor) -> Tensor:
    """The longest step that keeps s positive."""
    if not s.shape[-1]:
        return s.new_ones(s.shape[0])
    return torch.where(ds < 0, -BOUNDARY * s / torch.where(ds < 0, ds, 1.0), 1.0).amin(-1).clamp(max=1.0)


def _move(state: _State, step: Step, length: Tensor) -> _State:
    q = state.s.shape[-1]
    p = state.y.shape[-1] - q
    s = state.s + length.unsqueeze(-1) * step.s
    y_h = state.y[:, :p] + length.unsqueeze(-1) * step.y[:, :p]
    y_g = state.y[:, p:] + _room(state.y[:, p:], step.y[:, p:]).unsqueeze(-1) * step.y[:, p:]
    if q:  # keep s y within sight of the barrier, so that no pair is lost
        centre = state.barrier.unsqueeze(-1) / s
        y_g = torch.maximum(torch.minimum(y_g, 1e10 * centre), 1e-10 * centre)
    return dataclasses.replace(state, u=state.u + length.unsqueeze(-1) * step.u, s=s, y=torch.cat([y_h, y_g], -1))


def _restore(problem: _Scaled, state: _State, model: Model) -> _State:
    """No step reduces the penalty function: take a damped Gauss-Newton step towards feasibility, and start afresh.

    Where the point is feasible already, more regularisation is all that is changed.
    """
    wrong = model.violated()
    rows = model.jacobian * (wrong != 0).unsqueeze(-1)
    normal = rows.mT @ rows
    size = torch.diagonal(normal, dim1=-2, dim2=-1).amax(-1).clamp(min=1e-12)
    eye = torch.eye(normal.shape[-1], dtype=normal.dtype, device=normal.device)
    right = -times(rows.mT, wrong)
    best, total = state.u, wrong.square().sum(-1)
    for damping in (1e-8, 1e-4, 1e-2, 1.0, 100.0):
        factor, _ = torch.linalg.cholesky_ex(normal + damping * size[:, None, None] * eye)
        moved = state.u + torch.cholesky_solve(right.unsqueeze(-1), factor).squeeze(-1)
        values = problem.values(moved)[1]
        violated = torch.cat([values[:, : model.p], values[:, model.p :].clamp(min=0.0)], -1).square().sum(-1)
        better = violated < 0.99 * total
        best = torch.where(better.unsqueeze(-1), moved, best)
        total = torch.where(better, violated, total)
    return _afresh(problem, dataclasses.replace(state, u=best, failures=state.failures + 1), model)


def _push(problem: _Scaled, state: _State) -> _State:
    """Off a saddle point, or a point where the constraints have no gradient: a small irregular step."""
    size = 1e-2 * 10.0 ** (state.nudges - 1).to(state.u.dtype) * state.u.abs().amax(-1).clamp(min=1.0)
    return _afresh(problem, dataclasses.replace(state, u=state.u + size.unsqueeze(-1) * irregular(state.u)), None)


def _afresh(problem: _Scaled, state: _State, model: Model | None) -> _State:
    """Slacks, multipliers, barrier and penalty for a point that no step led to."""
    p = problem.batch.p
    here = problem.batch.expand_along(state.u, state.u)
    values = here.values * problem.rows.row_scale
    s = torch.maximum(-values[:, p:], torch.sqrt(state.barrier).unsqueeze(-1).clamp(max=0.1).expand_as(state.s))
    y = torch.cat([state.y[:, :p], state.barrier.unsqueeze(-1) / s], -1)
    delta = state.delta if model is None else torch.maximum(8 * state.delta, 1e-4 * scale_of(model))
    new = dataclasses.replace(state, s=s, y=y, penalty=torch.ones_like(state.penalty), delta=delta)
    return dataclasses.replace(new, y=_estimated(problem, new, here)) if p else new
