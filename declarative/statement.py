"""From what a user states to what a call computes: functions of tensors that return one tensor, of one flat unknown."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from .forward import Call, Plan
from .gradients import Exact, Rule, as_rule
from .inputs import Inputs, check_tensor, refuse_without_values, shapes_of_one
from .problem import Problem
from .solution import Solution
from .solvers import SOLVERS, Chain, ClosedForm, Solver
from .torchside import transformed
from .user.bounds import Bounds
from .user.functions import (
    UserFunction,
    as_contained,
    functions_of,
    has_objective,
    nesting_of,
    no_objective,
    owner_of,
    refuse_cycle,
    refuse_unusual,
    take_weights,
)
from .user.starts import OneStart, Start, find_nesting, initial_points, refuse_batched_start
from .user.unknowns import Nesting, Unknowns


def make_problem(
    objective: Callable[..., Any] | None,
    equality: Callable[..., Any] | None,
    inequality: Callable[..., Any] | None,
    *,
    bounds: object = None,
    residuals: Callable[..., Any] | None = None,
) -> Problem:
    """The problem of an objective, equalities, inequalities and bounds; without an objective, of equations.

    Residuals take the place of the objective.

    Raises:
        TypeError: one of them cannot be called.
        ValueError: without an objective there are no equalities, or there are inequalities; there are two objectives.
    """
    if residuals is not None and objective is not None:
        raise ValueError(
            "there is an objective and there are residuals, half the sum of whose squares is an objective: give "
            "one of them, or add the two in the objective."
        )
    first = "objective" if residuals is None else "residuals"
    objective = objective if residuals is None else residuals
    for name, function in {first: objective, "equality": equality, "inequality": inequality}.items():
        if not callable(function) and function is not None:
            raise TypeError(f"{name} must be a function of (*xs, u), but is {type(function).__name__}.")
        refuse_unusual(name, function)
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
    stated = _user_function("objective", no_objective if objective is None else objective)
    if residuals is not None:
        stated = dataclasses.replace(stated, squares=True)
    constraints = {"equality": equality, "inequality": inequality}
    functions = {name: _user_function(name, function) for name, function in constraints.items() if function is not None}
    return Problem(stated, **functions, bounds=Bounds.of(bounds))


def _user_function(name: str, function: Callable[..., Any]) -> UserFunction:
    return function if isinstance(function, UserFunction) else UserFunction(name, function)


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


def owners(problem: Problem) -> dict[str, nn.Module]:
    """The modules that functions belong to, by the names of the functions."""
    found = {name: owner_of(function.written) for name, function in functions_of(problem).items()}
    return {name: owner for name, owner in found.items() if owner is not None}


def bind(plan: Plan, inputs: Inputs, node: nn.Module) -> tuple[Inputs, Plan]:
    """The inputs of a call of a node, those of modules included, and the plan in terms of them and a flat unknown."""
    belonging = as_contained(owners(plan.problem), vars(node)["_modules"])
    if not belonging and _has_one_unknown(plan):
        return inputs, plan
    nesting, start = find_nesting(plan.start, inputs)
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
        start=_flat_start(start, len(inputs.xs), nesting),
        solver=_flat_solver(plan.solver, len(inputs.xs), nesting),
        recordings=recordings,
        sizes=None if recordings is None else recordings.sizes,
    )
    return inputs.with_weights(tensors), plan


def refuse_batched_starts(plan: Plan, inputs: Inputs) -> None:
    """Refuse tensors among the starts of a plan that have one row for each problem."""
    for one in _starts(plan):
        if isinstance(one, Tensor) and inputs.batched:
            refuse_batched_start(plan.problem, one, inputs)


def make_call(plan: Plan, inputs: Inputs, warm: int = 0, kinks: bool = True) -> Call:
    """The call of a plan that is bound to these inputs."""
    gradients = torch.is_grad_enabled() or transformed()
    differentiable = transformed() or (gradients and any(x.requires_grad for x in inputs.xs))
    return Call(
        plan,
        inputs.in_dims,
        inputs.size,
        inputs.work,
        differentiable,
        warm=warm,
        gradients=gradients,
        kinks=kinks,
        passed=inputs.passed,
        pure=plan.sizes is not None and plan.sizes.one_unknown,
    )


def _starts(plan: Plan) -> Sequence[OneStart | None]:
    return plan.start if isinstance(plan.start, list) else [plan.start]


def _has_one_unknown(plan: Plan) -> bool:
    """Whether no start has to be asked how the unknowns are nested."""
    if plan.sizes is not None and plan.sizes.one_unknown:
        return True
    return not any(callable(one) or isinstance(one, Unknowns) for one in _starts(plan))


@dataclass(frozen=True)
class _FlatFunction:
    """A user's function of the inputs proper, called with those of modules too; what it returns becomes a row."""

    function: Callable[..., Any]
    passed: int
    nesting: Nesting | None
    what: str

    def __call__(self, *xs: Tensor) -> Any:
        value = self.function(*xs[: self.passed])
        return value if self.nesting is None else self.nesting.join(value, f"what {self.what} returns")


def _flat_solver(solver: Solver, passed: int, nesting: Nesting | None) -> Solver:
    if isinstance(solver, ClosedForm):
        return dataclasses.replace(solver, function=_FlatFunction(solver.function, passed, nesting, "the closed form"))
    return solver


def _flat_start(start: Start, passed: int, nesting: Nesting | None) -> Start:
    if isinstance(start, list):
        return [_flat_start(one, passed, nesting) for one in start]  # type: ignore[return-value]
    return _FlatFunction(start, passed, nesting, "start") if callable(start) else start


def warm_start(start: object, inputs: Inputs, nesting: Nesting | None) -> tuple[Tensor, ...]:
    """A start that was passed with the call: a point for each problem and, of a solution, its multipliers."""
    if isinstance(start, Solution):
        return _warm_point(start.y, inputs, nesting), *_warm_multipliers(start, inputs)
    return (_warm_point(start, inputs, nesting),)


def _warm_multipliers(start: Solution, inputs: Inputs) -> tuple[Tensor, ...]:  # (size, k), or nothing
    if start.rows is None:
        return ()
    rows = start.rows.detach() if inputs.batched else start.rows.detach().unsqueeze(0)
    usable = rows.dim() == 2 and len(rows) == inputs.size
    return (rows.to(device=inputs.xs[0].device, dtype=inputs.work).nan_to_num(0.0),) if usable else ()


def _warm_point(start: object, inputs: Inputs, nesting: Nesting | None) -> Tensor:  # (size, *shape)
    start = start if nesting is None else nesting.join(start, "start")
    if not isinstance(start, Tensor):
        raise TypeError(f"start must be a tensor like the node's output, but is {type(start).__name__}.")
    check_tensor("start", start)
    refuse_without_values((start,))
    start = start.detach() if inputs.batched else start.detach().unsqueeze(0)
    if start.dim() == 0 or start.shape[0] != inputs.size:
        raise ValueError(
            f"start must have one point for each of the {inputs.size} problems, like the node's output, but has shape "
            f"{tuple(start.shape)}."
        )
    return start.to(device=inputs.xs[0].device, dtype=inputs.work)


def nest_point(plan: Plan, y: Tensor) -> Any:
    """Solutions of a plan that a call is bound to, as the user has nested the unknowns."""
    nesting = nesting_of(plan.problem.objective)
    return y if nesting is None else nesting.split(y)


def nest(call: Call, xs: Sequence[Tensor], solution: Solution) -> Solution:  # xs: of the call, arranged
    """A solution of a call with the unknowns, and what belongs to constraints, as the user has nested them."""
    shapes = (*shapes_of_one(xs[: call.passed], call.in_dims), solution.y.shape[1:])
    functions = functions_of(call.plan.problem)
    fields = {"objective": "y", "equality": "multipliers", "inequality": "inequality_multipliers"}
    solution, nested = _with_multipliers_of_bounds(call, solution)
    for name, function in functions.items():
        nesting = function.nesting if name == "objective" else function.returned.get(shapes)
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
    start = _starts(plan)[0]
    if isinstance(start, Tensor | torch.Size):  # a start with values does not mix with inputs that have none
        shape = start.shape if isinstance(start, Tensor) else start
        return torch.empty(inputs.size, *shape, dtype=inputs.work, device=inputs.xs[0].device)
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
