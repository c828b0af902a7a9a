"""From what a user states to what a call computes: functions of tensors that return one tensor, of one flat unknown."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from .forward import Plan
from .functions import UserFunction
from .inputs import Inputs, Start, arrange
from .modules import owner_of, refuse_cycle, refuse_unusual, take_weights
from .problem import Problem
from .solvers import SOLVERS, Chain, ClosedForm, Solver

NAMES = ("objective", "equality", "inequality")


def make_problem(*functions: Callable[..., Any] | None) -> Problem:
    """The problem of an objective, equalities and inequalities.

    Raises:
        TypeError: one of them cannot be called.
    """
    for name, function in zip(NAMES, functions, strict=True):
        if not callable(function) and (function is not None or name == "objective"):
            raise TypeError(f"{name} must be a function of (*xs, u), but is {type(function).__name__}.")
        refuse_unusual(name, function)
    return Problem(*(_written(name, function) for name, function in zip(NAMES, functions, strict=True)))  # type: ignore[arg-type]


def _written(name: str, function: Callable[..., Any] | None) -> UserFunction | None:
    return function if function is None or isinstance(function, UserFunction) else UserFunction(name, function)


def functions_of(problem: Problem) -> dict[str, UserFunction]:
    """The user's functions by name."""
    return {name: function for name in NAMES if (function := getattr(problem, name)) is not None}


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


def owners(problem: Problem, contained: Mapping[str, nn.Module | None]) -> dict[str, nn.Module]:
    """The modules that functions belong to, by the names of the functions; those that the node contains first."""
    found = {name: owner_of(function.written) for name, function in functions_of(problem).items()}
    return {name: contained.get(name) or owner for name, owner in found.items() if owner is not None}


def bind(plan: Plan, xs: Sequence[Tensor], node: nn.Module) -> tuple[Inputs, Plan]:
    """The inputs of a call of a node, those of modules included, and the plan as functions of them."""
    inputs, belonging = arrange(xs, plan.in_dims), owners(plan.problem, vars(node)["_modules"])
    if not belonging:
        return inputs, plan
    refuse_cycle(node, belonging)
    weights, tensors = take_weights(belonging)
    functions = functions_of(plan.problem)
    bound = {name: dataclasses.replace(function, weights=weights) for name, function in functions.items()}
    own, recordings = len(inputs.xs), plan.recordings
    plan = dataclasses.replace(
        plan,
        problem=dataclasses.replace(plan.problem, **bound),
        start=_of_own_starts(plan.start, own),
        solver=_of_own(plan.solver, own),
        recordings=None if recordings is None else recordings.in_mode(weights.modes()),
    )
    return inputs.with_weights(tensors), plan


@dataclass(frozen=True)
class _OfOwn:
    """A function of the inputs that the user has passed, called with all of them."""

    function: Callable[..., Any]
    own: int

    def __call__(self, *xs: Tensor) -> Any:
        return self.function(*xs[: self.own])


def _of_own(solver: Solver, own: int) -> Solver:
    if isinstance(solver, ClosedForm):
        return dataclasses.replace(solver, function=_OfOwn(solver.function, own))
    return solver


def _of_own_starts(start: Start, own: int) -> Start:
    if isinstance(start, list):
        return [_OfOwn(one, own) if callable(one) else one for one in start]
    return _OfOwn(start, own) if callable(start) else start
