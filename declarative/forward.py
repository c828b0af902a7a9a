"""The forward pass on plain tensors, without gradients: starts -> solver -> verdict -> report."""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .boundary import corner_hint, inspect, refuse_captured
from .errors import NumericalWarning
from .fingerprint import Fingerprint
from .inputs import InDims
from .linear import DENSE, by_rows
from .optimality import (
    Assessment,
    asks_for_a_look,
    assess,
    is_unsteady,
    optimality_tolerance,
    slopes_to_the_sides,
)
from .problem import Batch, Problem, flat
from .recording import Recordings, Size, Sizes
from .solution import RawSolution, Solution, SolverError, Status, describe_failures
from .solvers import ClosedForm, Solver, proves_infeasible, proves_unbounded
from .structure import Layouts, Structure, holds
from .torchside import own_memory, plain, without_saved_tensor_hooks
from .user.bounds import PUSH, WARM_PUSH
from .user.messages import on_corner_message, unsteady_message
from .user.starts import Start, default_points, initial_points


@dataclass(frozen=True)
class Plan:
    """How a node solves its problem."""

    problem: Problem
    solver: Solver
    start: Start
    in_dims: InDims
    on_failure: str
    structure: Structure
    recordings: Recordings | None  # None: the functions are called
    layouts: Layouts | None  # None: derivatives are dense
    sizes: Sizes | None = None  # None: the functions may change, and are looked at in every call


@dataclass(frozen=True)
class Call:
    """One call of a node: how its inputs are arranged."""

    plan: Plan
    in_dims: tuple[int | None, ...]
    size: int
    work: torch.dtype
    differentiable: bool
    warm: int = 0  # how many tensors after the inputs say where to start: a point (size, *shape), multipliers (size, k)
    gradients: bool = True  # whether gradients are recorded around the call: that of a captured tensor would be lost
    kinks: bool = True  # whether a derivative would be one-sided at a kink, which is reported
    passed: int | None = None  # how many inputs the user has passed; those after them are tensors of modules
    pure: bool = False  # whether the functions depend on their arguments alone

    def split(self, tensors: Sequence[Tensor]) -> tuple[tuple[Tensor, ...], *tuple[Tensor | None, ...]]:
        """The inputs, and the start, if one was passed: a point and multipliers."""
        count = len(tensors) - self.warm
        rest = (*tensors[count:], None, None)[:2]
        return tuple(tensors[:count]), *rest

    def problem(self, shape: torch.Size, device: torch.device) -> Problem:
        """The problem, with bounds for u of this shape."""
        problem = self.plan.problem
        if problem.bounds is None:
            return problem
        return dataclasses.replace(problem, bounds=problem.bounds.resolved(shape, device))

    def batch(self, xs: tuple[Tensor, ...], solution: Solution) -> Batch:
        """The problems of this call, whose sizes a solution gives."""
        p, q = solution.multipliers.shape[-1], solution.inequality_multipliers.shape[-1]
        shape = solution.y.shape[1:]
        problem = self.problem(shape, xs[0].device)
        batch = Batch(problem, xs, self.in_dims, self.size, shape, p, q, self.plan.recordings)
        layout = batch.layout if self.plan.layouts is None else self.plan.layouts.known(batch)
        return batch if layout is batch.layout else dataclasses.replace(batch, layout=layout)


@dataclass(frozen=True)
class Workspace:
    """What the forward pass has computed anyway, for a backward pass that is not itself differentiated."""

    factors: object | None = None  # of a structured system, which knows what they are
    jacobian: Tensor | None = None  # A at the solutions, in the form of the batch
    hessian: Tensor | None = None  # H, likewise, or its diagonal
    messages: tuple[str, ...] = ()
    fingerprints: tuple[Fingerprint, ...] = ()  # of the functions as they were, unless they cannot change


def solve(
    call: Call, xs: tuple[Tensor, ...], start: Tensor | None = None, guess: Tensor | None = None
) -> tuple[Solution, Workspace]:
    """Solve the batch, and check what the solver says against the optimality conditions."""
    xs = tuple([x.detach() for x in xs])  # the derivatives that a solver asks for are those in u alone
    with without_saved_tensor_hooks():
        known = _known_size(call, xs)
        starts = _candidates(call, xs, start, known)
        if not call.size:
            return _empty(starts[0]), Workspace()
        batch = _inspected(call, xs, starts[0], known)
        if guess is not None and guess.shape[-1] == batch.k:  # else they are multipliers of other constraints
            batch = dataclasses.replace(batch, guess=guess)
        if batch.problem.bounds is not None and call.plan.solver.needs_start:
            push = PUSH if batch.guess is None else WARM_PUSH
            starts = [batch.problem.bounds.inside(xs, call.in_dims, one, push) for one in starts]
        starts = _defined(call, batch, starts, start)
        if known is None and start is None and not _uses_start(call.plan.solver):
            starts = [torch.zeros_like(one) for one in starts]  # as in every later call of this shape
        if call.plan.layouts is not None:
            layout = call.plan.layouts.find(batch, flat(starts[0]), call.plan.structure)
            batch = batch if layout is batch.layout else dataclasses.replace(batch, layout=layout)
        finite = _finite(call, xs)
        raw, own, found = _solve_and_assess(call.plan, batch, starts, finite)
        if batch.layout is not DENSE and not _pattern_holds(batch, raw, found):
            batch = _densely(call.plan, batch)
            raw, own, found = _solve_and_assess(call.plan, batch, starts, finite)
        if own is None:
            found = with_steadiness(batch, raw, found, call.plan, call.differentiable)
        codes, failed = _judge(batch, raw, found, finite, flat(starts[0]), explain=own is None)
        if batch.problem.bounds is not None:
            within = batch.problem.bounds.clamp(xs, call.in_dims, raw.y.view(starts[0].shape))
            raw = dataclasses.replace(raw, y=torch.where((codes == 0).unsqueeze(-1), flat(within), raw.y))
        solution = _solution(batch, raw, found, codes, starts[0].shape, (*xs, *starts))
        _report(call, batch, solution, found, failed)
        taken = (Fingerprint.take(batch, flat(solution.y)),) if _may_change(call) else ()
    if failed or not call.differentiable:
        return solution, Workspace(messages=raw.messages, fingerprints=taken)
    if own is not None:
        return solution, Workspace(factors=raw.factors, messages=raw.messages, fingerprints=taken)
    return solution, Workspace(raw.factors, found.jacobian, found.hessian, raw.messages, taken)


def _may_change(call: Call) -> bool:
    """Whether the functions may be others in a backward pass than they are now."""
    recordings = call.plan.recordings
    return call.differentiable and not call.pure and (recordings is None or recordings.may_change())


def solve_plainly(call: Call, xs: tuple[Tensor, ...]) -> Tensor | None:  # (size, *shape)
    """The solutions of a call of which nothing else is asked, if its solver has a short way and all went well."""
    known = _known_size(call, xs)
    if known is None or call.differentiable or call.warm or not call.size or call.plan.solver.needs_start:
        return None
    with torch.no_grad(), without_saved_tensor_hooks():
        start = _candidates(call, xs, None, known)[0]
        found = call.plan.solver.solve_plainly(_inspected(call, xs, start, known), flat(start))
        if found is None or _finite(call, xs) is not None:
            return None
        y, residual = found
        solved = bool((residual <= optimality_tolerance(start.dtype)).all())
        return own_memory(y.reshape(start.shape), xs) if solved else None


def outlined(call: Call, xs: tuple[Tensor, ...]) -> tuple[Batch, Tensor]:
    """The problems of a call before they are solved, and a point of each, (size, m)."""
    with torch.no_grad(), without_saved_tensor_hooks():
        first = _candidates(call, xs, None)[0]
        return _inspected(call, xs, first), flat(first)


def _solve_and_assess(
    plan: Plan, batch: Batch, starts: list[Tensor], finite: Tensor | None
) -> tuple[RawSolution, Assessment | None, Assessment]:
    """What the solver found, what it says of that itself, and the verdict."""
    raw = _solve_from_all(plan, batch, [flat(one) for one in starts], finite)
    own = plan.solver.assess(batch, raw)
    found = own or raw.assessment or assess_in_double(batch, raw, plan, flat(starts[0]))
    return raw, own, with_corners(batch, raw, found, plan) if batch.corners else found


def with_steadiness(batch: Batch, raw: RawSolution, found: Assessment, plan: Plan, differentiable: bool) -> Assessment:
    """The verdict, with a second look at solutions whose derivatives may not be what they are at the point."""
    asked = torch.zeros_like(raw.codes, dtype=torch.bool) if found.flat is None else found.flat
    if differentiable:
        asked = asked | asks_for_a_look(raw.y, found.step, raw.iterations)
    if found.step is None or not bool(asked.any()):
        return found
    rows = (asked & found.solved(raw.y.dtype)).nonzero().flatten()
    if not len(rows):
        return found
    dtype, part = raw.y.dtype, batch.without_constants().select(rows)
    double, wide = part.in_double(dtype)
    u, multipliers, step = (x[rows].to(wide) for x in (raw.y, found.multipliers, found.step))
    seen = is_unsteady(double, u, multipliers, found.active[rows], step, dtype, plan.structure)
    return dataclasses.replace(found, unsteady=torch.zeros_like(asked).index_put((rows,), seen))


def _pattern_holds(batch: Batch, raw: RawSolution, found: Assessment) -> bool:
    """Whether the pattern that was found for these shapes is that of the functions as they are now."""
    rows = (found.residual < torch.inf).nonzero().flatten()
    if not len(rows):
        return True
    known = None
    if found.hessian is not None and found.jacobian is not None:
        known = found.hessian[rows], found.jacobian[rows]
    return holds(batch.select(rows), raw.y[rows], found.multipliers[rows], known)


def _densely(plan: Plan, batch: Batch) -> Batch:
    """The batch with all entries of its derivatives, from now on."""
    assert plan.layouts is not None
    plan.layouts.forget(batch)
    warnings.warn(
        "the functions depend on unknowns that they did not depend on before, such as by a captured tensor that was "
        "zero: the sparse pattern does not hold any more, and derivatives are dense from now on. A new node finds the "
        "new pattern.",
        NumericalWarning,
        stacklevel=2,
    )
    return batch.dense()


def assess_in_double(batch: Batch, raw: RawSolution, plan: Plan, start: Tensor) -> Assessment:
    """The verdict on points of any precision: differences that single precision cannot see must not decide it."""
    dtype = raw.y.dtype
    double, wide = batch.in_double(dtype)
    travel = (raw.y - start).to(wide) if plan.solver.needs_start else None
    return assess(
        double,
        raw.y.to(wide),
        None if raw.multipliers is None else raw.multipliers.to(wide),
        dtype=dtype,
        travel=travel,
        structure=plan.structure,
        minimum=not plan.solver.stationary,
    ).to(dtype)


def with_corners(batch: Batch, raw: RawSolution, found: Assessment, plan: Plan) -> Assessment:
    """The verdict, with a look to the sides of solutions: where functions have corners, slopes at a point may lie."""
    rows = found.solved(raw.y.dtype).nonzero().flatten()
    if not len(rows):
        return found
    dtype, part = raw.y.dtype, batch.without_constants().select(rows)
    double, wide = part.in_double(dtype)
    held = (found.active | found.weak)[rows]
    seen = slopes_to_the_sides(
        double, raw.y[rows].to(wide), found.multipliers[rows].to(wide), held, dtype, plan.structure
    )
    bent, falls, level = (torch.zeros_like(raw.codes, dtype=torch.bool).index_put((rows,), one) for one in seen)
    if not plan.solver.stationary:
        found = dataclasses.replace(found, residual=torch.where(falls, torch.inf, found.residual))
    return dataclasses.replace(found, bent=bent & ~falls, level=level & ~falls)


def refuse_captured_in_transform(call: Call, xs: tuple[Tensor, ...]) -> None:
    """Under a ``torch.func`` transform a captured tensor shows only out here, where the transform is active."""
    values = tuple(plain(x) for x in xs)
    refuse_captured(call.plan.problem, values, call.in_dims, _candidates(call, values, None)[0])


def _kind(call: Call, xs: tuple[Tensor, ...]) -> Hashable:
    """What the size of a problem depends on, if its functions are pure."""
    return call.gradients, call.in_dims, *((x.shape, x.dtype) for x in xs)


def _known_size(call: Call, xs: tuple[Tensor, ...]) -> Size | None:
    """The size of the problems, if their functions are pure and have been looked at for such inputs."""
    sizes, recordings = call.plan.sizes, call.plan.recordings
    if sizes is None or (recordings is not None and recordings.captures_gradients()):
        return None
    return sizes.get(_kind(call, xs))


def _inspected(call: Call, xs: tuple[Tensor, ...], first: Tensor, known: Size | None = None) -> Batch:
    """The batch, once its functions have been looked at; those that are pure are looked at once per shape."""
    shape = first.shape[1:]
    problem = call.problem(shape, first.device)
    if known is None or known.shape != shape:
        blank = Batch(problem, xs, call.in_dims, call.size, shape, 0, 0, call.plan.recordings)
        p, proper, corners = inspect(blank, first, call.gradients)
        known = Size(shape, p, proper + blank.bounds, corners)
        if call.plan.sizes is not None:
            call.plan.sizes.put(_kind(call, xs), known)
    batch = Batch(problem, xs, call.in_dims, call.size, shape, known.p, known.q, call.plan.recordings)
    return dataclasses.replace(batch, corners=known.corners) if known.corners else batch


def _candidates(
    call: Call, xs: tuple[Tensor, ...], start: Tensor | None, known: Size | None = None
) -> list[Tensor]:  # of (size, *shape)
    """Where the solver starts, once or several times, or, for a closed form, the solution."""
    solver = call.plan.solver
    if isinstance(solver, ClosedForm):
        return [solver.points(xs, call.in_dims, call.size, call.work)]
    if start is not None:
        return [_matching(call, xs, start)]
    if known is not None and not _uses_start(solver):
        return [torch.zeros(call.size, *known.shape, dtype=call.work, device=xs[0].device)]
    starts = call.plan.start if isinstance(call.plan.start, list) else [call.plan.start]
    return [initial_points(one, xs, call.in_dims, call.size, call.work) for one in starts]


def _uses_start(solver: Solver) -> bool:
    """Whether it matters where a solver starts; the start of a closed form is its solution."""
    return solver.needs_start or isinstance(solver, ClosedForm)


def _defined(call: Call, batch: Batch, starts: list[Tensor], given: Tensor | None) -> list[Tensor]:
    """The starts, moved to where the functions are defined if nothing but the shape of u was given."""
    if isinstance(call.plan.solver, ClosedForm) or given is not None:
        return starts
    given_starts = call.plan.start if isinstance(call.plan.start, list) else [call.plan.start]
    return [
        defined_start(batch, default_points(first)) if isinstance(one, torch.Size) else first
        for one, first in zip(given_starts, starts, strict=True)
    ]


def defined_start(batch: Batch, candidates: Iterator[Tensor]) -> Tensor:  # (size, *shape)
    """For each problem the first of the candidates (size, *shape) where it is defined; where none is, the first of all.

    Example:
        >>> import torch
        >>> from declarative.problem import Batch, Problem
        >>> batch = Batch(Problem(lambda x, u: x * u.log()), (torch.ones(3),), (0,), 3, torch.Size([]), 0, 0)
        >>> defined_start(batch, iter([torch.tensor([-1.0, 2.0, -1.0]), torch.tensor([1.0, 1.0, -2.0])]))
        tensor([ 1.,  2., -1.])
    """
    start = next(candidates)
    found = batch.is_defined(flat(start))
    while not bool(found.all()) and (candidate := next(candidates, None)) is not None:
        better = batch.is_defined(flat(candidate)) & ~found
        start = torch.where(by_rows(better, start), candidate, start)
        found = found | better
    return start


def _matching(call: Call, xs: tuple[Tensor, ...], start: Tensor) -> Tensor:
    """A start of another shape would make another problem, by broadcasting."""
    own = call.plan.start[0] if isinstance(call.plan.start, list) else call.plan.start
    if isinstance(own, torch.Size | Tensor):
        shape = torch.Size([call.size, *(own if isinstance(own, torch.Size) else own.shape)])
    else:
        shape = initial_points(own, xs, call.in_dims, call.size, call.work).shape
    if start.shape != shape:
        raise ValueError(f"start must have shape {tuple(shape)}, like the node's output, but has {tuple(start.shape)}.")
    return start


def _finite(call: Call, xs: tuple[Tensor, ...]) -> Tensor | None:  # (size,)
    """Which problems have finite inputs; None: all of them, as nearly always."""
    finite: Tensor | None = None
    for x, dim in zip(xs[: call.passed], call.in_dims, strict=False):
        if x.is_floating_point() and not math.isfinite(x.sum().item()):  # where a sum overflows, all are looked at
            rows = x.isfinite().all().expand(call.size) if dim is None else x.isfinite().reshape(call.size, -1).all(-1)
            finite = rows if finite is None else finite & rows
    return None if finite is None or bool(finite.all()) else finite


def _solve_from_all(plan: Plan, batch: Batch, starts: list[Tensor], finite: Tensor | None) -> RawSolution:
    """Solve from every start, as one larger batch, and keep the best solution of each problem."""
    count = len(starts)
    if count == 1:
        return _solve_rows(plan.solver, batch, starts[0], finite)
    place = torch.arange(batch.size, device=starts[0].device)
    every = batch.select(place.repeat(count))
    raw = _solve_rows(plan.solver, every, torch.cat(starts), None if finite is None else finite.repeat(count))
    found = raw.assessment or assess_in_double(every, raw, plan, torch.cat(starts))
    found = with_corners(every, raw, found, plan) if batch.corners else found
    solved = found.solved(raw.y.dtype)
    rank = torch.where(solved, every.objective(raw.y), torch.inf).nan_to_num(torch.inf).view(count, batch.size)
    return raw.take(rank.argmin(0) * batch.size + place)


def _solve_rows(solver: Solver, batch: Batch, first: Tensor, finite: Tensor | None) -> RawSolution:
    """Solve the problems whose inputs are finite; the others keep their start."""
    if finite is None:
        return _solved_by(solver, batch, first)
    raw = RawSolution.unsolved(first)
    if not finite.any():
        return raw
    rows = finite.nonzero().flatten()
    part = _solved_by(solver, batch.select(rows), first[rows])
    blank = [None if x is None else x.new_zeros(batch.size, *x.shape[1:]) for x in (part.multipliers, part.byproduct)]
    return dataclasses.replace(raw, multipliers=blank[0], byproduct=blank[1]).put(rows, part)


def _solved_by(solver: Solver, batch: Batch, first: Tensor) -> RawSolution:
    """What the solver returns, in the precision that is worked in, by which it is then judged."""
    raw: object = solver.solve(batch, first)
    if not isinstance(raw, RawSolution):
        raise TypeError(
            f"a solver must return a RawSolution, but {type(solver).__name__} returned {type(raw).__name__}."
        )
    raw.check(batch.size, batch.m, batch.k)
    return raw.to(first.dtype)


def _judge(
    batch: Batch, raw: RawSolution, found: Assessment, finite: Tensor | None, start: Tensor, explain: bool
) -> tuple[Tensor, bool]:  # (size,)
    """The status of each problem, and whether any failed: the verdict decides what is solved, evidence what cannot be.

    ``explain`` looks for such evidence; a solver that judges its own solutions brings its own.
    """
    solved = found.solved(raw.y.dtype)
    if finite is None and bool(solved.all()):  # as nearly always
        return torch.zeros_like(raw.codes), False
    finite = torch.ones_like(solved) if finite is None else finite
    solved = solved & finite
    codes = torch.where(raw.codes == Status.CONVERGED, int(Status.NOT_OPTIMAL), raw.codes)
    if explain:
        claims = (codes == Status.INFEASIBLE) | (codes == Status.UNBOUNDED)
        codes = torch.where(claims, int(Status.STALLED), codes)
        rows = (~solved & finite & raw.y.isfinite().all(-1)).nonzero().flatten()
        part, u, first = batch.select(rows), raw.y[rows], start[rows]
        for status, proved in ((Status.UNBOUNDED, proves_unbounded), (Status.INFEASIBLE, proves_infeasible)):
            codes[rows[proved(part, u, first)]] = int(status)
    codes = torch.where(solved, int(Status.CONVERGED), codes)
    nowhere = ~raw.y.isfinite().all(-1) & (codes != Status.UNBOUNDED)
    lost = ~finite | nowhere | (~batch.is_defined(raw.y) & (codes == Status.NOT_OPTIMAL))
    codes = torch.where(lost, int(Status.NOT_FINITE), codes)
    return codes, bool(codes.any())


def _solution(
    batch: Batch, raw: RawSolution, found: Assessment, codes: Tensor, shape: torch.Size, others: Sequence[Tensor]
) -> Solution:
    multipliers = found.multipliers
    below = torch.rsub(multipliers[:, batch.p :], 0.0) if batch.q else multipliers.new_zeros(batch.size, 0)
    return Solution(
        y=own_memory(raw.y if raw.y.shape == shape else raw.y.reshape(shape), others),
        multipliers=(multipliers[:, : batch.p] if batch.q else multipliers).clone(),
        inequality_multipliers=below,  # no negative zeros among them
        active=found.active.clone(),
        codes=codes,
        iterations=raw.iterations,
        residual=found.residual,
        byproduct=raw.y.new_zeros(batch.size, 0) if raw.byproduct is None else raw.byproduct,
        messages=raw.messages,
    )


def _empty(first: Tensor) -> Solution:
    none = first.new_zeros(0, 0)
    count = torch.zeros(0, dtype=torch.int64, device=first.device)
    return Solution(first, none, none.clone(), none.bool(), count, count.clone(), first.new_zeros(0), none.clone())


def _report(call: Call, batch: Batch, solution: Solution, found: Assessment, failed: bool) -> None:
    """Raise or warn for the problems that failed, and warn of kinks and corners where a derivative will be taken."""
    if failed:
        solution = dataclasses.replace(solution, objective=batch.objective(flat(solution.y)))
        hint = corner_hint(batch, solution.y, solution.codes)
        if call.plan.on_failure == "raise":
            raise SolverError(solution, hint)
        which = solution.codes.nonzero().flatten().tolist()
        warnings.warn(describe_failures(solution, which, hint), NumericalWarning, stacklevel=2)
    if call.differentiable and found.bent is not None and found.level is not None:
        bent, level = (int((seen & solution.converged).sum()) for seen in (found.bent, found.level))
        if bent:
            message = on_corner_message(bent, level, call.size, batch.corners)
            warnings.warn(message, NumericalWarning, stacklevel=2)
    if found.unsteady is not None and (unsteady := int((found.unsteady & solution.converged).sum())):
        warnings.warn(unsteady_message(unsteady, call.size), NumericalWarning, stacklevel=2)
    if not batch.q or not call.differentiable or not call.kinks:
        return
    kinks = int((found.weak.any(-1) & solution.converged).sum())
    if kinks:
        warnings.warn(
            f"{kinks} of {call.size} problems have a constraint that is just active, with a zero multiplier: the "
            "solution has a kink there, and the one-sided derivative without that constraint was taken. "
            "gradient=Smoothed(barrier) differentiates across it.",
            NumericalWarning,
            stacklevel=2,
        )
