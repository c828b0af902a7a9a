"""Solve forward, differentiate the solution backward: the one ``autograd.Function`` of the nodes.

With R(x, u, l) = [D_U L; c] = 0 at a solution, and only the active constraints counted,

    [H A'; A 0] [dy; -dl] = -[B dx; C dx],

which is forward mode; its transpose is reverse mode. The multipliers are outputs like y, so that they can be
differentiated too and a second differentiation finds its way through them.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .forward import Call, Plan, Workspace, solve, solve_plainly
from .gradients import Rule
from .inputs import Inputs
from .linear import by_rows, full_precision
from .problem import Batch, flat
from .solution import Solution
from .solvers import ClosedForm
from .structure import Point, SystemBuilder
from .torchside import are_mapped, fold, map_over, own_memory, value_is_hidden
from .user.messages import CHANGED


@dataclass(frozen=True)
class Spec:
    """The configuration of a node: how it is solved, and how it is differentiated."""

    plan: Plan
    rule: Rule
    system: SystemBuilder | None  # builds a structured linear system instead of the general ones

    def point(
        self, call: Call, xs: tuple[Tensor, ...], solution: Solution, workspace: Workspace | None = None
    ) -> Point:
        """The problems at their solutions."""
        return Point(
            batch=call.batch(xs, solution),
            u=flat(solution.y),
            multipliers=solution.stacked(),
            active=solution.active,
            builder=self.system,
            byproduct=solution.byproduct,
            structure=self.plan.structure,
            factors=None if workspace is None else workspace.factors,
            jacobian=None if workspace is None else workspace.jacobian,
            hessian=None if workspace is None else workspace.hessian,
        )


class Implicit(torch.autograd.Function):
    """x -> the tensors of a :class:`Solution` and a :class:`Workspace`, differentiable in y and both multipliers."""

    @staticmethod
    def forward(spec: Spec, call: Call, *tensors: Tensor) -> tuple[Any, ...]:  # noqa: ARG004
        solution, workspace = solve(call, *call.split(tensors))
        return *solution.tensors(), workspace

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        ctx.spec, ctx.call, *tensors = inputs
        *outputs, ctx.workspace = output
        xs, *_ = ctx.call.split(tensors)
        ctx.count = len(xs)
        ctx.mark_non_differentiable(*outputs[3 if ctx.spec.rule.differentiates_multipliers else 1 :])
        ctx.set_materialize_grads(False)  # for what cannot have a gradient, zeros would be made in vain
        ctx.save_for_backward(*xs, *outputs)
        ctx.save_for_forward(*xs, *outputs)

    @staticmethod
    def backward(ctx: Any, *given: Tensor | None) -> tuple[Tensor | None, ...]:
        given = given[:3]
        if are_mapped(given):
            return map_over(lambda *rows: Implicit._backward(ctx, *rows), given)
        return Implicit._backward(ctx, *given)

    @staticmethod
    def _backward(ctx: Any, *given: Tensor | None) -> tuple[Tensor | None, ...]:
        call, xs, solution = _saved(ctx)
        v, w = _cotangents(given, solution)
        wanted = [i for i, x in enumerate(xs) if ctx.needs_input_grad[2 + i] and x.is_floating_point()]
        constant = (None,) * call.warm
        if not call.size or not wanted:
            return None, None, *(torch.zeros_like(x) if i in wanted else None for i, x in enumerate(xs)), *constant
        plain = not torch.is_grad_enabled() and not (value_is_hidden(v) or value_is_hidden(w))
        masks = call.plan.on_failure == "mask"
        good = solution.converged if masks else solution.codes
        masked = masks and not (plain and bool(good.all()))
        if masked:
            xs, solution = without_failures(call, xs, solution)
            v, w = (torch.where(good.unsqueeze(-1), row, 0.0) for row in (v, w))
        point = ctx.spec.point(call, xs, solution, ctx.workspace if plain else None)
        with full_precision(v):
            found = ctx.spec.rule.pull(point, v, w, wanted)
        if masked:  # in their place stand others, whose gradient may be NaN
            found = tuple(
                torch.where(good.any() if call.in_dims[i] is None else by_rows(good, grad), grad, 0.0)
                for i, grad in zip(wanted, found, strict=True)
            )
        grads: list[Tensor | None] = [None] * ctx.count
        taken: list[Tensor] = [x for x in (*xs, *given) if x is not None]
        for i, grad in zip(wanted, found, strict=True):
            grads[i] = own_memory(grad, taken) if plain else grad
            taken.append(grad)
        return None, None, *grads, *constant

    @staticmethod
    def jvp(ctx: Any, _spec: None, _call: None, *tangents: Tensor | None) -> tuple[Tensor | None, ...]:
        call, xs, solution = _saved(ctx)
        moving = {i: dx for i, dx in enumerate(tangents[: ctx.count]) if dx is not None and xs[i].is_floating_point()}
        p, nothing = solution.multipliers.shape[-1], (None,) * 6
        if not call.size or not moving:
            return torch.zeros_like(solution.y), *(torch.zeros_like(x) for x in solution.tensors()[1:3]), *nothing
        good = solution.converged.unsqueeze(-1)
        if call.plan.on_failure == "mask":
            xs, solution = without_failures(call, xs, solution)
        with full_precision(solution.y):
            z, s = ctx.spec.rule.push(ctx.spec.point(call, xs, solution), list(moving.values()), list(moving))
        z, s = torch.where(good, z, 0.0), torch.where(good, s, 0.0)
        dual = (-s[:, :p], s[:, p:]) if ctx.spec.rule.differentiates_multipliers else (None, None)
        return z.reshape(solution.y.shape), *dual, *nothing

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], spec: Spec, call: Call, *tensors: Tensor
    ) -> tuple[tuple[Any, ...], Any]:
        """Fold the mapped dimension into the batch; a closed form sees its inputs only as it was written for them."""
        count, mapped = info.batch_size, in_dims[2:]
        batch_dims = (*call.in_dims, *(0,) * call.warm)
        shared = [batch is None and dim is not None for batch, dim in zip(batch_dims, mapped, strict=True)]
        if isinstance(call.plan.solver, ClosedForm) and any(shared):
            pairs = list(zip(tensors, mapped, strict=True))
            rows = [[x if dim is None else x.select(dim, i) for x, dim in pairs] for i in range(count)]
            parts = [apply(spec, call, *row) for row in rows]
            stacked = (torch.stack(column) for column in zip(*(part[:-1] for part in parts), strict=True))
            messages = tuple(message for part in parts for message in part[-1].messages)
            # What one of the calls has left belongs to that call alone.
            taken = tuple(one for part in parts for one in part[-1].fingerprints)
            return (*stacked, Workspace(messages=messages, fingerprints=taken)), (*(0,) * (len(parts[0]) - 1), None)
        folded, dims = fold(tensors, mapped, batch_dims, count, call.size)
        size = call.size
        call = dataclasses.replace(call, in_dims=tuple(dims[: len(call.in_dims)]), size=count * size)
        *out, workspace = apply(spec, call, *folded)
        return (*(x.unflatten(0, (count, size)) for x in out), workspace), (*(0,) * len(out), None)


# PyTorch asks for it in every call, and working it out takes longer than some of the rest.
Implicit.forward.__signature__ = inspect.signature(Implicit.forward)  # type: ignore[attr-defined]


def apply(spec: Spec, call: Call, *tensors: Tensor) -> tuple[Any, ...]:
    """The Function, with a type."""
    result: tuple[Any, ...] = Implicit.apply(spec, call, *tensors)  # type: ignore[no-untyped-call]
    return result


@dataclass(frozen=True)
class Evaluation:
    """The inputs of a call, what was done with them, and the solutions: flat, and batch first.

    Attributes:
        spec: the configuration of the node.
        inputs: those of the call, and the tensors of modules.
        call: how they were solved.
        solution: the solutions, differentiable like those of the node.
    """

    spec: Spec
    inputs: Inputs
    call: Call
    solution: Solution

    @property
    def batch(self) -> Batch:
        """The problems."""
        return self.call.batch(self.inputs.xs, self.solution)

    def point(self) -> Point:
        """The problems at their solutions."""
        return self.spec.point(self.call, self.inputs.xs, self.solution)

    def without_failures(self) -> Evaluation:
        """The same with a copy of a solved problem in the place of each failed one; there must be a solved one."""
        if bool(self.solution.converged.all()):
            return self
        xs, solution = without_failures(self.call, self.inputs.xs, self.solution)
        return dataclasses.replace(self, inputs=dataclasses.replace(self.inputs, xs=xs), solution=solution)

    def detached(self) -> Evaluation:
        """The same with inputs and solutions that nothing is differentiated through."""
        xs = tuple(x.detach() for x in self.inputs.xs)
        solution = dataclasses.replace(self.solution, y=self.solution.y.detach())
        return dataclasses.replace(self, inputs=dataclasses.replace(self.inputs, xs=xs), solution=solution)

    def objective(self) -> Tensor:  # (size,)
        """f at the solutions, differentiable; that of a masked problem is a constant."""
        if not self.inputs.size:
            return self.solution.residual
        if self.call.plan.on_failure == "raise":
            return self._objective()
        return torch.where(self.solution.converged, self.without_failures()._objective(), self.detached()._objective())

    def _objective(self) -> Tensor:
        return self.batch.objective(flat(self.solution.y))


def evaluate(spec: Spec, call: Call, inputs: Inputs, warm: Sequence[Tensor] = ()) -> Evaluation:
    """Carry out a call; ``warm`` says where to start."""
    if not call.differentiable:
        with torch.no_grad():
            solution, _ = solve(call, *call.split((*inputs.xs, *warm)))
        return Evaluation(spec, inputs, call, solution)
    *tensors, workspace = apply(spec, call, *inputs.xs, *warm)
    solution = dataclasses.replace(Solution(*tensors), messages=workspace.messages)
    return Evaluation(spec, inputs, call, solution)


def find_points(spec: Spec, call: Call, inputs: Inputs, warm: Sequence[Tensor] = ()) -> Tensor:  # (size, *shape)
    """Carry out a call of which nothing but the solutions is asked."""
    y = solve_plainly(call, inputs.xs)
    return evaluate(spec, call, inputs, warm).solution.y if y is None else y


def _saved(ctx: Any) -> tuple[Call, tuple[Tensor, ...], Solution]:
    """What is kept for a pass that differentiates.

    The derivatives are evaluated at the solution, and would be those of another problem than the one that was solved if
    tensors that the functions capture had changed. PyTorch refuses that for what it has saved itself; so do nodes.
    """
    tensors = ctx.saved_tensors
    if not all(one.is_current() for one in ctx.workspace.fingerprints):
        raise RuntimeError(CHANGED)
    return ctx.call, tuple(tensors[: ctx.count]), Solution(*tensors[ctx.count :])


def _cotangents(given: Sequence[Tensor | None], solution: Solution) -> tuple[Tensor, Tensor]:
    """Those of y, and of both kinds of multipliers in the library's own convention; zero for what a loss leaves out."""
    of_y, of_equalities, of_inequalities = given
    v = flat(torch.zeros_like(solution.y) if of_y is None else of_y)
    if of_equalities is None and of_inequalities is None:
        return v, v.new_zeros(*solution.active.shape)
    rows = (solution.multipliers, solution.inequality_multipliers)
    a, b = (torch.zeros_like(x) if w is None else w for x, w in zip(rows, given[1:], strict=True))
    return v, torch.cat([-a, b], -1)


def without_failures(call: Call, xs: tuple[Tensor, ...], solution: Solution) -> tuple[tuple[Tensor, ...], Solution]:
    """Put a copy of a solved problem in the place of each failed one, so that no NaN of theirs can spread."""
    good = solution.converged
    place = torch.arange(call.size, device=good.device)
    rows = torch.where(good, place, good.to(torch.int8).argmax())
    safe = tuple(x if dim is None else x[rows] for x, dim in zip(xs, call.in_dims, strict=True))
    return safe, solution.take(rows)
