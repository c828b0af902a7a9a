"""From what a user states to what a call computes: functions of tensors that return one tensor, of one flat unknown."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from .bounds import Bounds
from .forward import Call, Plan
from .functions import (
    NAMES,
    UserFunction,
    captured_by,
    functions_of,
    has_objective,
    nesting_of,
    no_objective,
    owner_of,
    refuse_cycle,
    refuse_unusual,
    take_weights,
)
from .gradients import Exact, Rule, as_rule
from .inputs import Inputs
from .problem import Function, Problem
from .remedies import batched_start_message
from .solution import Solution
from .solvers import SOLVERS, Chain, ClosedForm, Solver
from .starts import OneStart, Start, initial_points
from .torchside import plain, transformed
from .unknowns import Nesting, Unknowns, is_nested


def make_problem(
    *functions: Callable[..., Any] | None, bounds: object = None, residuals: Callable[..., Any] | None = None
) -> Problem:
    """The problem of an objective, equalities, inequalities and bounds; without an objective, of equations.

    Residuals take the place of the objective.

    Raises:
        TypeError: one of them cannot be called.
        ValueError: without an objective there are no equalities, or there are inequalities; there are two objectives.
    """
    if residuals is not None:
        if functions[0] is not None:
            raise ValueError(
                "there is an objective and there are residuals, half the sum of whose squares is an objective: give "
                "one of them, or add the two in the objective."
            )
        functions = (residuals, *functions[1:])
    names = NAMES if residuals is None else ("residuals", *NAMES[1:])
    for name, function in zip(names, functions, strict=True):
        if not callable(function) and function is not None:
            raise TypeError(f"{name} must be a function of (*xs, u), but is {type(function).__name__}.")
        refuse_unusual(name, function)
    objective, equality, inequality = functions
    if objective is None and equality is None:
        raise ValueError(
            "objective is None: a node without an objective solves equations, equality(*xs, u) = 0, or fits "
            "residuals=lambda x, u: ..., half the sum of whose squares it minimises."
        )
    if objective is None and (inequality is not None or bounds is not None):
        raise ValueError(
            "objective is None: a node without an objective solves as many equations as there are unknowns, which "
            "leaves no room for inequalities and bounds. Give an objective that chooses among the points that satisfy "
            "them."
        )
    given = (no_objective if objective is None else objective, equality, inequality)
    first, second, third = (_written(name, function) for name, function in zip(NAMES, given, strict=True))
    if residuals is not None:
        first = dataclasses.replace(first, squares=True)  # type: ignore[type-var]
    return Problem(first, second, third, Bounds.of(bounds))  # type: ignore[arg-type]


def _written(name: str, function: Callable[..., Any] | None) -> UserFunction | None:
    return function if function is None or isinstance(function, UserFunction) else UserFunction(name, function)


def as_solver(solver: str | Solver | Callable[..., Any] | None) -> Solver:
    """The solver of this name, the solver itself, or a function as a closed form.

    Raises:
        ValueError, TypeError: it is none of these.
    """
    if solver is None:
        return Chain()
    if isinstance(solver, Solver):
        return solver
    if isinstance(solver, str):
        if solver not in SOLVERS:
            raise ValueError(
                f"solver must be one of {', '.join(map(repr, SOLVERS))}, a Solver, or a function (*xs) -> y, but is "
                f"{solver!r}."
            )
        named: Solver = SOLVERS[solver]()
        return named
    if callable(solver):
        return ClosedForm(solver)
    raise TypeError(f"solver must be a name, a Solver or a function (*xs) -> y, but is {type(solver).__name__}.")


def rule_for(problem: Problem, gradient: str | Rule) -> Rule:
    """The gradient rule of this name, or the rule itself.

    Raises:
        ValueError: it approximates, where there are equations alone and nothing would be left.
    """
    rule = as_rule(gradient)
    if not has_objective(problem.objective) and not isinstance(rule, Exact):
        raise ValueError(
            f"gradient is {type(rule).__name__}, but without an objective there is only the exact gradient: what the "
            "approximations keep is the curvature of the objective."
        )
    return rule


def owners(problem: Problem, contained: Mapping[str, nn.Module | None]) -> dict[str, nn.Module]:
    """The modules that functions belong to, by the names of the functions; those that the node contains first."""
    found = {name: owner_of(function.written) for name, function in functions_of(problem).items()}
    inside = {name: module for name, module in contained.items() if module is not None}
    return {name: inside.get(name, owner) for name, owner in found.items() if owner is not None}


def bind(plan: Plan, inputs: Inputs, node: nn.Module) -> tuple[Inputs, Plan]:
    """The inputs of a call of a node, those of modules included, and the plan in terms of them and a flat unknown."""
    belonging = owners(plan.problem, vars(node)["_modules"])
    if not belonging and _has_one_unknown(plan):
        return inputs, plan
    nesting, start = _find_nesting(plan.start, inputs)
    if not belonging and nesting is None:
        return inputs, plan
    refuse_cycle(node, belonging)
    weights, tensors = take_weights(belonging)
    functions = functions_of(plan.problem)
    bound = {name: dataclasses.replace(f, nesting=nesting, weights=weights) for name, f in functions.items()}
    recordings = None if plan.recordings is None else plan.recordings.in_mode(weights.modes())
    bounds = plan.problem.bounds
    bounds = None if bounds is None else bounds.bound(nesting, len(inputs.xs))
    plan = dataclasses.replace(
        plan,
        problem=dataclasses.replace(plan.problem, **bound, bounds=bounds),
        start=_flat_starts(start, len(inputs.xs), nesting),
        solver=_flat_solver(plan.solver, len(inputs.xs), nesting),
        recordings=recordings,
        sizes=None if recordings is None else recordings.sizes,
    )
    return inputs.with_weights(tensors), plan


def make_call(plan: Plan, inputs: Inputs, warm: int = 0, kinks: bool = True) -> Call:
    """The call of a plan that is bound to these inputs, with what its functions capture if it may be differentiated."""
    gradients = torch.is_grad_enabled() or transformed()
    differentiable = transformed() or (gradients and any(x.requires_grad for x in inputs.xs))
    pure = plan.sizes is not None and plan.sizes.one_unknown  # then functions depend on their arguments alone
    return Call(
        plan,
        inputs.in_dims,
        inputs.size,
        inputs.work,
        differentiable,
        warm=warm,
        gradients=gradients,
        kinks=kinks,
        own=inputs.own,
        captured=captured_by(plan.problem) if differentiable and not pure else (),
    )


def _has_one_unknown(plan: Plan) -> bool:
    """Whether no start has to be asked how the unknowns are nested."""
    if plan.sizes is not None and plan.sizes.one_unknown:
        return True
    starts = plan.start if isinstance(plan.start, list) else [plan.start]
    return not any(callable(one) or isinstance(one, Unknowns) for one in starts)


def _find_nesting(start: Start, inputs: Inputs) -> tuple[Nesting | None, Start]:
    """How the unknowns are nested, and the start with one flat unknown. A function of the inputs is asked once.

    Raises:
        ValueError: several starts are for different unknowns.
    """
    starts = start if isinstance(start, list) else [start]
    nestings = [_nesting_of(one, inputs) for one in starts]
    first = nestings[0]
    if any(nesting != first and not (nesting and nesting.fits(first)) for nesting in nestings):
        shown = " and ".join(str(nesting or "one unknown") for nesting in nestings)
        raise ValueError(f"the starts to try must be for the same unknowns, but are for {shown}.")
    if first is None:
        return None, start
    rows = [_ordered(one, first) if isinstance(one, Unknowns) else one for one in starts]
    return first, rows if isinstance(start, list) else rows[0]  # type: ignore[return-value]


def _ordered(start: Unknowns, nesting: Nesting) -> Tensor | torch.Size:
    return nesting.join(start.nesting.split(start.row)) if isinstance(start.row, Tensor) else start.row


def _nesting_of(start: OneStart | None, inputs: Inputs) -> Nesting | None:
    if isinstance(start, Unknowns):
        return start.nesting
    if not callable(start):
        return None
    with torch.no_grad():
        value = start(*_one_problem(inputs))
    return Nesting.of(value, "start") if is_nested(value) else None


def _one_problem(inputs: Inputs) -> list[Tensor]:
    """The inputs of the first problem, as plain tensors; of a blank one if there is none."""
    pairs = [(plain(x), dim) for x, dim in zip(inputs.xs, inputs.in_dims, strict=True)]
    return [x if dim is None else x[0] if inputs.size else x.new_zeros(x.shape[1:]) for x, dim in pairs]


@dataclass(frozen=True)
class _Flat:
    """A user's function of the inputs proper, called with those of modules too; what it returns becomes a row."""

    function: Callable[..., Any]
    own: int
    nesting: Nesting | None
    what: str

    def __call__(self, *xs: Tensor) -> Any:
        value = self.function(*xs[: self.own])
        return value if self.nesting is None else self.nesting.join(value, f"what {self.what} returns")


def _flat_solver(solver: Solver, own: int, nesting: Nesting | None) -> Solver:
    if isinstance(solver, ClosedForm):
        return dataclasses.replace(solver, function=_Flat(solver.function, own, nesting, "the closed form"))
    return solver


def _flat_starts(start: Start, own: int, nesting: Nesting | None) -> Start:
    if isinstance(start, list):
        return [_Flat(one, own, nesting, "start") if callable(one) else one for one in start]
    return _Flat(start, own, nesting, "start") if callable(start) else start


def refuse_batched_start(problem: Problem, start: Start, inputs: Inputs) -> None:
    """A node's own start has u's shape, without a batch dimension; with one, u would broadcast with it and no one know.

    Refused is a tensor with one row for each problem, each of the shape that an input of one problem has, if the
    functions take such a row for u. (Scalar inputs go with any shape, and prove nothing.)

    Raises:
        ValueError: there is such a tensor.
    """
    for one in start if isinstance(start, list) else [start]:
        if isinstance(one, Tensor) and inputs.batched:
            _refuse_rows(problem, one, inputs)


def _refuse_rows(problem: Problem, start: Tensor, inputs: Inputs) -> None:
    nesting = nesting_of(problem.objective)
    parts = {"": start.shape} if nesting is None else dict(zip(nesting.names, nesting.shapes, strict=True))
    if not all(len(shape) and shape[0] == inputs.size for shape in parts.values()):
        return
    for name, shape in parts.items():
        own = zip(inputs.xs, inputs.in_dims, strict=True)
        alike = [i for i, (x, dim) in enumerate(own) if dim == 0 and x.shape[1:] == shape[1:]]
        if len(shape) > 1 and alike and _take_rows(problem, start, inputs):
            raise ValueError(batched_start_message(name, tuple(shape), alike[0]))


def _take_rows(problem: Problem, start: Tensor, inputs: Inputs) -> bool:
    """Whether the functions work for one problem with a row of the start, or a row of each of its parts, as u."""
    one, nesting = _one_problem(inputs), nesting_of(problem.objective)
    row = start[0] if nesting is None else torch.cat([x[0].flatten() for x in nesting.parts(start)])
    u = row.detach().to(device=one[0].device, dtype=inputs.work)
    of_rows = None if nesting is None else nesting.of_rows()
    try:
        with torch.no_grad():
            values = {name: _with_nesting(f, of_rows)(*one, u) for name, f in functions_of(problem).items()}
    except Exception:  # the functions may raise anything
        return False
    return all(value.dim() <= (name != "objective") for name, value in values.items())


def _with_nesting(function: Function, nesting: Nesting | None) -> Function:
    return dataclasses.replace(function, nesting=nesting) if isinstance(function, UserFunction) else function


def nest_point(plan: Plan, y: Tensor) -> Any:
    """Solutions of a plan that a call is bound to, as the user has nested the unknowns."""
    nesting = nesting_of(plan.problem.objective)
    return y if nesting is None else nesting.split(y)


def nest(call: Call, xs: Sequence[Tensor], solution: Solution) -> Solution:  # xs: of the call, arranged
    """A solution of a call with the unknowns, and what belongs to constraints, as the user has nested them."""
    pairs = zip(xs[: call.own], call.in_dims, strict=False)
    shapes = (*(x.shape if dim is None else x.shape[1:] for x, dim in pairs), solution.y.shape[1:])
    functions = functions_of(call.plan.problem)
    fields = {"objective": "y", "equality": "multipliers", "inequality": "inequality_multipliers"}
    solution, nested = _with_multipliers_of_bounds(call, solution)
    for name, function in functions.items():
        nesting = function.nesting if name == "objective" else function.nesting_returned(shapes)
        if nesting is not None and (call.size or name == "objective"):  # of no problems, nobody knows the constraints
            nested[fields[name]] = nesting.split(getattr(solution, fields[name]))
    return dataclasses.replace(solution, **nested)


def _with_multipliers_of_bounds(call: Call, solution: Solution) -> tuple[Solution, dict[str, Any]]:
    """The solution with the multipliers of inequalities proper, and those of bounds, in the shape of u or nested."""
    y, rows = solution.y, solution.inequality_multipliers
    bounds = call.problem(y.shape[1:], y.device).bounds
    if bounds is None or not call.size:
        return solution, {}
    m = y[0].numel()
    proper = rows.shape[-1] - bounds.count(m)
    pair = bounds.multipliers(rows[:, proper:], m)
    shaped = (nest_point(call.plan, one.view(y.shape)) for one in pair)
    names = ("lower_multipliers", "upper_multipliers")
    return dataclasses.replace(solution, inequality_multipliers=rows[:, :proper]), dict(zip(names, shaped, strict=True))


def outline(plan: Plan, inputs: Inputs, node: nn.Module) -> Any:
    """The output of a node for inputs that have no values: its shape, and the way that gradients take."""
    inputs, plan = bind(plan, inputs, node)
    y = torch.empty_like(_shape_only(plan, inputs))
    for x in inputs.xs:
        y = y + 0 * x.sum() if x.is_floating_point() else y
    y = y.to(inputs.dtype)
    return nest_point(plan, y if inputs.batched else y[0])


def _shape_only(plan: Plan, inputs: Inputs) -> Tensor:
    """Something of the shape of the solutions, found without values."""
    start = plan.start[0] if isinstance(plan.start, list) else plan.start
    if start is not None:
        return initial_points(start, inputs.xs, inputs.in_dims, inputs.size, inputs.work)
    try:
        y: Tensor = cast(ClosedForm, plan.solver).function(*inputs.xs)
    except Exception as error:
        raise ValueError(
            "the closed form cannot be evaluated on inputs without values (on the meta device, or fake); tell the node "
            "the shape of u with start=."
        ) from error
    return y if inputs.batched else y.unsqueeze(0)
