"""Solve forward, differentiate the solution backward: the one ``autograd.Function`` of the nodes.

With R(x, u, l) = [D_U L; c] = 0 at a solution, and only the active constraints counted,

    [H A'; A 0] [dy; -dl] = -[B dx; C dx],

which is forward mode; its transpose is reverse mode. The multipliers are outputs like y, so that they can be
differentiated too and a second differentiation finds its way through them.
"""

from __future__ import annotations

import dataclasses
import inspect as inspect_module
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .boundary import inspect, refuse_captured
from .derivatives import Hessian, Linearisation, SystemBuilder
from .errors import NumericalWarning, SolverError, describe_failures
from .gradients import Rule
from .inputs import InDims, Start, initial_points
from .linear.contract import full_precision
from .linear.systems import Prepared
from .optimality import Assessment, assess, optimality_tolerance
from .problem import Batch, Problem, flat
from .recording.cache import Recording, Recordings
from .remedies import IN_PLACE
from .solution import RawSolution, Solution, Status
from .solvers import ClosedForm, Solver
from .torchside import are_mapped, map_over, plain, value_is_hidden, without_saved_tensor_hooks


@dataclass(frozen=True)
class Spec:
    """The configuration of a node."""

    problem: Problem
    solver: Solver
    rule: Rule
    start: Start
    in_dims: InDims
    on_failure: str
    system: SystemBuilder | None
    hessian: Hessian
    recordings: Recordings


@dataclass(frozen=True)
class Left:
    """What the forward pass has computed anyway, for a backward pass that is not itself differentiated."""

    factor: Prepared | None
    jacobian: Tensor | None  # A at the solutions, (size, k, m)


@dataclass(frozen=True)
class Call:
    """One call of a node, and what its solver said about each problem."""

    spec: Spec
    in_dims: tuple[int | None, ...]
    size: int
    work: torch.dtype
    differentiable: bool
    warm: bool = False  # whether the last tensor passed is where to start, (size, *shape), and not an input
    messages: list[str] = field(default_factory=list)
    left: list[Left] = field(default_factory=list)  # at most one: what the forward pass leaves for the backward pass
    recording: list[Recording] = field(default_factory=list)  # at most one: of the functions as they were at this call
    gradients: bool = True  # whether gradients are recorded around the call: that of a captured tensor would be lost

    def split(self, tensors: Sequence[Tensor]) -> tuple[tuple[Tensor, ...], Tensor | None]:
        """The inputs, and the start if one was passed."""
        return (tuple(tensors[:-1]), tensors[-1]) if self.warm else (tuple(tensors), None)

    def batch(self, xs: tuple[Tensor, ...], solved: Solved) -> Batch:
        """The problems of this call, once a solution has told their sizes."""
        p, q = solved.multipliers.shape[-1], solved.inequality_multipliers.shape[-1]
        recording = self.recording[0] if self.recording else None
        return Batch(self.spec.problem, xs, self.in_dims, self.size, solved.y.shape[1:], p, q, recording)

    def linearise(self, xs: tuple[Tensor, ...], solved: Solved) -> Linearisation:
        """The problems at their solutions."""
        batch, builder = self.batch(xs, solved), self.spec.system
        u, hessian = flat(solved.y), self.spec.hessian
        return Linearisation(batch, u, solved.stacked(), solved.active, builder, solved.extra, hessian=hessian)


@dataclass(frozen=True)
class Solved:
    """The outputs of the Function, in this order."""

    y: Tensor  # (size, *shape)
    multipliers: Tensor  # (size, p)
    inequality_multipliers: Tensor  # (size, q)
    active: Tensor  # (size, p + q)
    codes: Tensor  # (size,)
    iterations: Tensor  # (size,)
    residual: Tensor  # (size,)
    extra: Tensor  # (size, ...), empty for most solvers

    def stacked(self) -> Tensor:
        """The multipliers in the library's own convention, L = f - multipliers' c."""
        return torch.cat([self.multipliers, -self.inequality_multipliers], -1)

    def tensors(self) -> tuple[Tensor, ...]:
        """The fields, in order."""
        return tuple(getattr(self, entry.name) for entry in dataclasses.fields(self))


class Implicit(torch.autograd.Function):
    """x -> :class:`Solved`, differentiable in y and in both kinds of multipliers."""

    @staticmethod
    def forward(call: Call, *tensors: Tensor) -> tuple[Tensor, ...]:
        with without_saved_tensor_hooks():
            return solve_plain(call, *call.split(tensors)).tensors()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        call, *tensors = inputs
        xs, _ = call.split(tensors)
        ctx.call = call
        ctx.count = len(xs)
        ctx.mark_non_differentiable(*output[3 if call.spec.rule.differentiates_multipliers else 1 :])
        ctx.set_materialize_grads(False)  # for what cannot have a gradient, zeros would be made in vain
        ctx.save_for_backward(*xs, *output)
        ctx.save_for_forward(*xs, *output)

    @staticmethod
    def backward(ctx: Any, *given: Tensor | None) -> tuple[Tensor | None, ...]:
        if are_mapped(given):
            return map_over(lambda *rows: Implicit._backward(ctx, *rows), given)
        return Implicit._backward(ctx, *given)

    @staticmethod
    def _backward(ctx: Any, *given: Tensor | None) -> tuple[Tensor | None, ...]:
        call, xs, solved = _saved(ctx)
        v, w = _cotangents(given, solved)
        wanted = [i for i, x in enumerate(xs) if ctx.needs_input_grad[1 + i] and x.is_floating_point()]
        unmoved = (None,) * call.warm
        if not call.size or not wanted:
            return None, *(torch.zeros_like(x) if i in wanted else None for i, x in enumerate(xs)), *unmoved
        good = solved.codes == Status.CONVERGED
        masked = call.spec.on_failure == "mask"
        if masked:
            xs, solved = _without_failures(call, xs, solved, good)
            v, w = (torch.where(good.unsqueeze(-1), row, 0.0) for row in (v, w))
        point = call.linearise(xs, solved)
        if call.left and not torch.is_grad_enabled() and not (value_is_hidden(v) or value_is_hidden(w)):
            point = dataclasses.replace(point, factor=call.left[0].factor, jacobian=call.left[0].jacobian)
        with full_precision(v):
            found = call.spec.rule.pull(point, v, w, wanted)
        if masked:
            found = tuple(torch.where(good.any(), grad, 0.0) for grad in found)
        grads: list[Tensor | None] = [None] * ctx.count
        for i, grad in zip(wanted, found, strict=True):
            grads[i] = grad
        return None, *grads, *unmoved

    @staticmethod
    def jvp(ctx: Any, _: None, *tangents: Tensor | None) -> tuple[Tensor | None, ...]:
        call, xs, solved = _saved(ctx)
        tangents = tangents[: ctx.count]
        moving = {i: dx for i, dx in enumerate(tangents) if dx is not None and xs[i].is_floating_point()}
        p, nothing = solved.multipliers.shape[-1], (None,) * 5
        if not call.size or not moving:
            return torch.zeros_like(solved.y), *(torch.zeros_like(x) for x in solved.tensors()[1:3]), *nothing
        good = (solved.codes == Status.CONVERGED).unsqueeze(-1)
        if call.spec.on_failure == "mask":
            xs, solved = _without_failures(call, xs, solved, good.squeeze(-1))
        with full_precision(solved.y):
            z, s = call.spec.rule.push(call.linearise(xs, solved), list(moving.values()), list(moving))
        z, s = torch.where(good, z, 0.0), torch.where(good, s, 0.0)
        dual = (-s[:, :p], s[:, p:]) if call.spec.rule.differentiates_multipliers else (None, None)
        return z.reshape(solved.y.shape), *dual, *nothing

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], call: Call, *tensors: Tensor) -> tuple[tuple[Tensor, ...], Any]:
        """Fold the mapped dimension into the batch; a closed form sees its inputs only as it was written for them."""
        count, mapped = info.batch_size, in_dims[1:]
        own_dims = (*call.in_dims, 0) if call.warm else call.in_dims
        moved = [x if dim is None else x.movedim(dim, 0) for x, dim in zip(tensors, mapped, strict=True)]
        shared = [own is None and dim is not None for own, dim in zip(own_dims, mapped, strict=True)]
        if isinstance(call.spec.solver, ClosedForm) and any(shared):
            one = [
                apply(call, *(x if dim is None else x[i] for x, dim in zip(moved, mapped, strict=True)))
                for i in range(count)
            ]
            return tuple(torch.stack(column) for column in zip(*one, strict=True)), (0,) * len(one[0])
        folded, dims = [], []
        for x, own, dim in zip(moved, own_dims, mapped, strict=True):
            if dim is None and own is not None:
                x = x.unsqueeze(0).expand(count, *x.shape)
            elif dim is not None and own is None:
                x = x.unsqueeze(1).expand(count, call.size, *x.shape[1:])
            keep = dim is None and own is None
            folded.append(x if keep else x.reshape(count * call.size, *x.shape[2:]))
            dims.append(None if keep else 0)
        size = call.size
        call = dataclasses.replace(call, in_dims=tuple(dims[: len(call.in_dims)]), size=count * size)
        out = apply(call, *folded)
        return tuple(x.unflatten(0, (count, size)) for x in out), (0,) * len(out)


# PyTorch asks for it in every call, and working it out takes longer than some of the rest.
Implicit.forward.__signature__ = inspect_module.signature(Implicit.forward)  # type: ignore[attr-defined]


def _cotangents(given: Sequence[Tensor | None], solved: Solved) -> tuple[Tensor, Tensor]:
    """Those of y, and of both kinds of multipliers in the library's own convention; zero for what a loss leaves out."""
    of_y, of_equalities, of_inequalities = given[:3]
    v = flat(torch.zeros_like(solved.y) if of_y is None else of_y)
    if of_equalities is None and of_inequalities is None:
        return v, v.new_zeros(*solved.active.shape)
    rows = (solved.multipliers, solved.inequality_multipliers)
    a, b = (torch.zeros_like(x) if w is None else w for x, w in zip(rows, given[1:3], strict=True))
    return v, torch.cat([-a, b], -1)


def apply(call: Call, *tensors: Tensor) -> tuple[Tensor, ...]:
    """The Function, with a type."""
    result: tuple[Tensor, ...] = Implicit.apply(call, *tensors)  # type: ignore[no-untyped-call]
    return result


def _saved(ctx: Any) -> tuple[Call, tuple[Tensor, ...], Solved]:
    tensors = ctx.saved_tensors
    return ctx.call, tuple(tensors[: ctx.count]), Solved(*tensors[ctx.count :])


def _without_failures(
    call: Call, xs: tuple[Tensor, ...], solved: Solved, good: Tensor
) -> tuple[tuple[Tensor, ...], Solved]:
    """Put a copy of a solved problem in the place of each failed one, so that no NaN of theirs can spread."""
    place = torch.arange(call.size, device=good.device)
    rows = torch.where(good, place, good.to(torch.int8).argmax())
    safe = tuple(x if dim is None else x[rows] for x, dim in zip(xs, call.in_dims, strict=True))
    return safe, Solved(*(x[rows] for x in solved.tensors()))


def objective_of(call: Call, xs: tuple[Tensor, ...], solved: Solved) -> Tensor:  # (size,)
    """f at the solutions, differentiable; that of a masked problem is a constant."""
    if call.spec.on_failure == "raise":
        return call.batch(xs, solved).objective(flat(solved.y))
    good = solved.codes == Status.CONVERGED
    plain = Solved(*(x.detach() for x in solved.tensors()))
    constant = call.batch(tuple(x.detach() for x in xs), plain).objective(flat(plain.y))
    safe_xs, safe = _without_failures(call, xs, solved, good)
    return torch.where(good, call.batch(safe_xs, safe).objective(flat(safe.y)), constant)


# Solving: on plain tensors, without gradients.


def solve_plain(call: Call, xs: tuple[Tensor, ...], start: Tensor | None = None) -> Solved:
    """Solve the batch, and check what the solver says against the optimality conditions."""
    starts = _candidates(call, xs, start)
    first = starts[0]
    if not call.size:
        return _nothing(first)
    batch = _inspected(call, xs, first)
    finite = torch.stack([_finite_rows(x, dim, call.size) for x, dim in zip(xs, call.in_dims, strict=True)]).all(0)
    raw = _solve_from_all(call.spec.solver, batch, [flat(one) for one in starts], finite)
    own = call.spec.solver.assess(batch, raw)
    found = own or raw.assessment or assess(batch, raw.y, raw.multipliers)
    codes = _judge(batch, raw, found, finite, explain=own is None)
    call.messages[:] = raw.messages
    multipliers = found.multipliers
    if bool(codes.any()):
        multipliers = torch.where((codes == Status.CONVERGED).unsqueeze(-1), multipliers, 0.0)
    elif call.differentiable:
        call.left[:] = [Left(raw.factor, None if own is not None else found.jacobian)]
    solved = Solved(
        y=_own(raw.y, first.shape, (*xs, *starts)),
        multipliers=multipliers[:, : batch.p].clone(),
        inequality_multipliers=0.0 - multipliers[:, batch.p :],  # and no negative zeros
        active=found.active.clone(),
        codes=codes,
        iterations=raw.iterations,
        residual=found.residual,
        extra=first.new_zeros(call.size, 0) if raw.extra is None else raw.extra,
    )
    _report(call, batch, solved, found)
    return solved


def _inspected(call: Call, xs: tuple[Tensor, ...], first: Tensor) -> Batch:
    """The batch, once its functions have been looked at; what has been looked at before need not be again."""
    batch = Batch(call.spec.problem, xs, call.in_dims, call.size, first.shape[1:], 0, 0)
    shapes = (call.gradients, call.in_dims, first.shape, *((x.shape, x.dtype) for x in xs))
    recordings = call.spec.recordings
    looked = None if recordings.has_seen(shapes) else inspect(batch, first, call.gradients)
    recording = recordings.find(batch, flat(first))
    counts = None if recording is None else recording.inspected.get(shapes)
    if counts is None:
        batch, custom = inspect(batch, first, call.gradients) if looked is None else looked
        counts = batch.p, batch.q
        if custom:  # its derivative is Python, and could change without a trace
            recording = None
        elif recording is not None:
            recording.remember(shapes, counts)
    call.recording[:] = [] if recording is None else [recording]
    return dataclasses.replace(batch, p=counts[0], q=counts[1], recording=recording)


def refuse_captured_in_transform(call: Call, xs: tuple[Tensor, ...]) -> None:
    """Under a ``torch.func`` transform a captured tensor shows only out here, where the transform is active."""
    values = tuple(plain(x) for x in xs)
    refuse_captured(call.spec.problem, values, call.in_dims, _candidates(call, values, None)[0])


def _candidates(call: Call, xs: tuple[Tensor, ...], start: Tensor | None) -> list[Tensor]:  # of (size, *shape)
    """Where the solver starts, once or several times, or, for a closed form, the solution."""
    solver = call.spec.solver
    if isinstance(solver, ClosedForm):
        return [_formula(call, solver, xs)]
    if start is not None:
        return [_matching(call, xs, start)]
    starts = call.spec.start if isinstance(call.spec.start, list) else [call.spec.start]
    return [initial_points(one, xs, call.in_dims, call.size, call.work) for one in starts]


def _matching(call: Call, xs: tuple[Tensor, ...], start: Tensor) -> Tensor:
    """A start of another shape would make another problem, by broadcasting."""
    own = call.spec.start[0] if isinstance(call.spec.start, list) else call.spec.start
    shape = initial_points(own, xs, call.in_dims, call.size, call.work).shape
    if start.shape != shape:
        raise ValueError(f"start must have shape {tuple(shape)}, like the node's output, but has {tuple(start.shape)}.")
    return start


def _formula(call: Call, solver: ClosedForm, xs: tuple[Tensor, ...]) -> Tensor:
    before = [x._version for x in xs]
    y: object = solver.function(*xs)
    if [x._version for x in xs] != before:
        raise ValueError(f"the closed form {IN_PLACE}")
    if not isinstance(y, Tensor):
        raise TypeError(f"the closed form must return a tensor, but returned {type(y).__name__}.")
    if all(dim is None for dim in call.in_dims):
        y = y.unsqueeze(0)
    if y.dim() == 0 or y.shape[0] != call.size:
        raise ValueError(
            f"the closed form must return one solution per problem, shape ({call.size}, ...), but returned "
            f"{tuple(y.shape)}."
        )
    if not y.is_floating_point():
        raise TypeError(f"the closed form must return a floating-point tensor, but returned {y.dtype}.")
    if 0 in y.shape[1:]:
        raise ValueError(f"the closed form returned shape {tuple(y.shape)}: u must have at least one entry.")
    return y.to(call.work, copy=True)  # a formula may return one of its inputs


def _own(y: Tensor, shape: torch.Size, others: Sequence[Tensor]) -> Tensor:
    """The tensor in its shape, sharing no memory with others: outputs that are views confuse forward mode."""
    memory = y.untyped_storage()
    whole = y.is_contiguous() and memory.nbytes() == y.numel() * y.element_size()
    if not whole or any(x.untyped_storage().data_ptr() == memory.data_ptr() for x in others):
        return y.reshape(shape).clone()
    unshared: Tensor = torch.ops.aten._unsafe_view(y, shape)
    return unshared


def _nothing(first: Tensor) -> Solved:
    none = first.new_zeros(0, 0)
    count = torch.zeros(0, dtype=torch.int64, device=first.device)
    return Solved(first, none, none.clone(), none.bool(), count, count.clone(), first.new_zeros(0), none.clone())


def _finite_rows(x: Tensor, dim: int | None, size: int) -> Tensor:
    if not x.is_floating_point() or bool(
        x.sum().isfinite()
    ):  # one pass; a sum can overflow, and then all are looked at
        return torch.ones(size, dtype=torch.bool, device=x.device)
    if dim is None:
        return x.isfinite().all().expand(size)
    return x.isfinite().reshape(size, -1).all(-1)


def _solve_from_all(solver: Solver, batch: Batch, starts: list[Tensor], finite: Tensor) -> RawSolution:
    """Solve from every start, as one larger batch, and keep the best solution of each problem."""
    count = len(starts)
    if count == 1:
        return _solve_rows(solver, batch, starts[0], finite)
    place = torch.arange(batch.size, device=finite.device)
    every = batch.select(place.repeat(count))
    raw = _solve_rows(solver, every, torch.cat(starts), finite.repeat(count))
    objective = every.objective(raw.y)
    solved = assess(every, raw.y, raw.multipliers).residual <= optimality_tolerance(raw.y.dtype)
    rank = torch.where(solved, objective, torch.inf).nan_to_num(torch.inf).view(count, batch.size)
    return raw.take(rank.argmin(0) * batch.size + place)


def _solve_rows(solver: Solver, batch: Batch, first: Tensor, finite: Tensor) -> RawSolution:
    """Solve the problems whose inputs are finite; the others keep their start."""
    if finite.all():
        return _asked(solver, batch, first)
    raw = RawSolution.unsolved(first)
    if not finite.any():
        return raw
    rows = finite.nonzero().flatten()
    part = _asked(solver, batch.select(rows), first[rows])
    blank = [None if x is None else x.new_zeros(batch.size, *x.shape[1:]) for x in (part.multipliers, part.extra)]
    return dataclasses.replace(raw, multipliers=blank[0], extra=blank[1]).put(rows, part)


def _asked(solver: Solver, batch: Batch, first: Tensor) -> RawSolution:
    """What the solver returns, in the precision that is worked in, by which it is then judged."""
    raw: object = solver.solve(batch, first)
    if not isinstance(raw, RawSolution):
        raise TypeError(
            f"a solver must return a RawSolution, but {type(solver).__name__} returned {type(raw).__name__}."
        )
    raw.check(batch.size, batch.m, batch.k)
    return raw.to(first.dtype)


def _judge(batch: Batch, raw: RawSolution, found: Assessment, finite: Tensor, explain: bool) -> Tensor:
    """The status of each problem: the optimality conditions decide, the solver's word only explains a failure.

    ``explain`` looks for infeasibility too, for which it forms the dense Jacobian.
    """
    tolerance = optimality_tolerance(raw.y.dtype)
    solved = found.residual <= tolerance
    if bool((solved & finite & (raw.codes != Status.UNBOUNDED)).all()):
        return torch.zeros_like(raw.codes)  # as nearly always
    codes = torch.where(raw.codes == Status.CONVERGED, int(Status.NOT_OPTIMAL), raw.codes)
    if explain and batch.k and not solved.all():
        values = batch.constraints(raw.y)
        values = torch.cat([values[:, : batch.p], values[:, batch.p :].clamp(min=0.0)], -1)
        jacobian = batch.jacobian(raw.y)
        slope = (jacobian.mT @ values.unsqueeze(-1)).squeeze(-1).abs().amax(-1)
        size = (jacobian.mT.abs() @ values.abs().unsqueeze(-1)).squeeze(-1).abs().amax(-1)
        # Stationary: the violations pull against each other, or a step as long as u itself would hardly reduce them.
        flat_there = slope * raw.y.abs().amax(-1).clamp(min=1.0) <= 1e-2 * values.square().sum(-1)
        stuck = (found.violation > tolerance) & ((slope <= 1e-4 * size) | flat_there) & (codes != Status.UNBOUNDED)
        codes = torch.where(stuck, int(Status.INFEASIBLE), codes)
    codes = torch.where(solved & (codes != Status.UNBOUNDED), int(Status.CONVERGED), codes)
    nowhere = ~raw.y.isfinite().all(-1) & (codes != Status.UNBOUNDED)
    lost = ~finite | nowhere | (found.residual.isinf() & (codes == Status.NOT_OPTIMAL))
    return torch.where(lost, int(Status.NOT_FINITE), codes)


def _report(call: Call, batch: Batch, solved: Solved, found: Assessment) -> None:
    """Raise or warn for the problems that failed, and warn of kinks where a derivative will be taken."""
    failed = solved.codes.nonzero().flatten().tolist()
    if failed:
        solution = as_solution(solved, batch.objective(flat(solved.y)), tuple(call.messages))
        if call.spec.on_failure == "raise":
            raise SolverError(solution)
        warnings.warn(describe_failures(solution, failed), NumericalWarning, stacklevel=2)
    if not batch.q or not call.differentiable:
        return
    kinks = int((found.weak.any(-1) & (solved.codes == Status.CONVERGED)).sum())
    if kinks:
        warnings.warn(
            f"{kinks} of {call.size} problems have a constraint that is just active, with a zero multiplier: the "
            "solution has a kink there, and the one-sided derivative without that constraint was taken.",
            NumericalWarning,
            stacklevel=2,
        )


def as_solution(solved: Solved, objective: Tensor, messages: tuple[str, ...]) -> Solution:
    """The public face of :class:`Solved`."""
    return Solution(
        y=solved.y,
        multipliers=solved.multipliers,
        inequality_multipliers=solved.inequality_multipliers,
        objective=objective,
        converged=solved.codes == Status.CONVERGED,
        iterations=solved.iterations,
        residual=solved.residual,
        codes=solved.codes,
        messages=messages,
    )
