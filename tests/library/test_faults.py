"""Faults of the caller's functions and solvers: a word about it, and everything else stays as it was."""

from __future__ import annotations

import dataclasses
import time
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from declarative import DeclarativeNode, NumericalWarning, Solver, SolverError, Status
from declarative.problem import Batch
from declarative.solution import RawSolution
from tests.support.faults import AtCall, OwnError, X, each_solver, fail, nothing_changes
from tests.support.helpers import DOUBLE, half_square, normalise, relative, unit

OTHER = {torch.float32: torch.float64, torch.float64: torch.float32}


# Functions that raise


@pytest.mark.parametrize("n", [1, 2, 3, 4, 6, 9])
@pytest.mark.parametrize("which", ["objective", "equality", "inequality"])
@each_solver
def test_an_exception_of_the_callers_functions_comes_through(solver, which, n):
    functions = {"objective": half_square, "equality": unit, "inequality": lambda _, u: u - 5}
    bad = AtCall(functions[which], n, fail)
    node = DeclarativeNode(**{**functions, which: bad}, solver=solver, start=torch.ones(3))
    with nothing_changes(), pytest.raises(OwnError, match="the caller's own"):
        node(X)
    assert bad.calls == n


def test_an_exception_in_the_backward_pass_comes_through():
    bad = AtCall(half_square, 10**9, fail)
    x = X.clone().requires_grad_()
    y = DeclarativeNode(bad, unit, solver=normalise)(x)
    bad.n = 0
    with nothing_changes(), pytest.raises(OwnError):
        y.sum().backward()
    bad.n = 10**9
    y.sum().backward()  # the graph is still there
    assert x.grad is not None
    assert relative(x.grad, torch.autograd.grad(normalise(x).sum(), x)[0]) < 1e-9


@pytest.mark.parametrize("part", ["start", "solver"])
def test_an_exception_of_a_start_or_of_a_formula_comes_through(part):
    options = {"start": fail} if part == "start" else {"solver": fail}
    with nothing_changes(), pytest.raises(OwnError):
        DeclarativeNode(half_square, **options)(X)


# Functions without a value or without a derivative


@pytest.mark.parametrize("n", [2, 3, 5, 8])
@each_solver
def test_a_function_that_turns_to_nan_is_never_silent(solver, n):
    bad = AtCall(half_square, n, lambda value: value * torch.nan)
    node = DeclarativeNode(bad, unit, solver=solver, start=torch.ones(3))
    with nothing_changes(), pytest.raises(SolverError) as caught:
        node(X)
    assert all(status is not Status.CONVERGED for status in caught.value.solution.status)


@each_solver
def test_a_domain_that_ends_beside_the_solution(solver):
    """log is not defined for u <= 0, where an unlucky step goes; the solution is u = x."""
    node = DeclarativeNode(lambda x, u: (u - x * u.log()).sum(), solver=solver, start=torch.ones(2))
    x = torch.tensor([[1e-3, 4.0], [0.5, 30.0]], dtype=DOUBLE, requires_grad=True)
    if solver == "scipy":  # BFGS has no way back from where the logarithm ends, and must say so
        with pytest.raises(SolverError):
            node(x)
        return
    y = node(x)
    assert relative(y, x) < 1e-6
    (g,) = torch.autograd.grad(y.sum(), x)
    assert relative(g, torch.ones_like(x)) < 1e-6


@pytest.mark.parametrize("solver", ["newton", "scipy"])
def test_a_kink_of_the_objective_gets_a_status_or_the_solution(solver):
    """|u - x| has its minimum at a kink, where it is not stationary in the sense of derivatives."""
    node = DeclarativeNode(lambda x, u: (u - x).abs().sum(), solver=solver, start=torch.zeros(2), on_failure="mask")
    x = torch.tensor([[0.7, -0.3]], dtype=DOUBLE, requires_grad=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        solution = node.solve(x)
        (g,) = torch.autograd.grad(solution.y.sum(), x)
    if solution.converged.all():
        assert relative(solution.y, x) < 1e-6
    else:
        assert any(issubclass(w.category, NumericalWarning) for w in caught)
    assert g.isfinite().all()
    assert caught or relative(g, torch.ones_like(x)) < 1e-6  # its second derivative is zero: that must be said


# Functions with side effects


def test_a_function_that_prints_and_takes_its_time_is_left_alone(capsys):
    def slow(x, u):
        print("called")
        time.sleep(0.001)
        return half_square(x, u)

    with nothing_changes():
        y = DeclarativeNode(slow, unit, solver="newton", start=lambda x: x)(X)
    assert relative(y, normalise(X)) < 1e-12
    assert "called" in capsys.readouterr().out


@pytest.mark.parametrize("which", ["objective", "equality", "inequality"])
@each_solver
def test_a_function_that_changes_its_input_is_found_out(solver, which):
    def changing(x, u):
        x.add_(1.0)
        return (u - x).square().sum()

    x = X.clone()
    node = DeclarativeNode(**{"objective": half_square, which: changing}, solver=solver, start=3)
    with nothing_changes(), pytest.raises(ValueError, match=f"{which} changes its input in place"):
        node(x)


def test_a_function_that_changes_u_is_found_out():
    def changing(x, u):
        return (u.detach().mul_(2.0) - x).square().sum() + (u - x).square().sum()

    with pytest.raises(ValueError, match="in place"):
        DeclarativeNode(changing, solver="newton", start=3)(X)
    with pytest.raises(ValueError, match="objective changes its input in place"):
        DeclarativeNode(lambda x, u: (u.mul_(2.0) - x).square().sum(), solver="newton", start=3)(X)


def test_a_formula_that_changes_its_input_is_found_out():
    x = X.clone()
    with pytest.raises(ValueError, match="in place"):
        DeclarativeNode(half_square, unit, solver=lambda x: x.div_(x.norm(dim=-1, keepdim=True)))(x)


# Solvers that lie


class Liar(Solver):
    """Says that it has converged, whatever it returns."""

    def __init__(self, change: Callable[[Tensor], Tensor], multipliers: Tensor | None = None) -> None:
        self.change, self.multipliers = change, multipliers

    def solve(self, batch: Batch, start: Tensor) -> RawSolution:  # noqa: ARG002
        y = self.change(normalise(batch.xs[0]))
        zeros = torch.zeros(batch.size, dtype=torch.int64)
        return RawSolution(y, self.multipliers, zeros, zeros.clone(), ("",) * batch.size)


@pytest.mark.parametrize(
    ("change", "status"),
    [
        (lambda y: y * 1.001, Status.NOT_OPTIMAL),  # off the sphere
        (lambda y: normalise(y + 1e-4), Status.NOT_OPTIMAL),  # on it, but not nearest
        (lambda y: y * torch.nan, Status.NOT_FINITE),
        (torch.zeros_like, Status.NOT_OPTIMAL),  # where the violation is stationary, but not least
        (lambda y: y * torch.inf, Status.NOT_FINITE),
    ],
    ids=["infeasible", "not stationary", "nan", "zero", "infinite"],
)
def test_a_solver_that_lies_is_not_believed(change, status):
    node = DeclarativeNode(half_square, unit, solver=Liar(change), start=3, on_failure="mask")
    with nothing_changes(), pytest.warns(NumericalWarning, match="2 of 2 problems were not solved"):
        solution = node.solve(X)
    assert solution.status == [status] * 2


def test_multipliers_that_are_wrong_are_not_believed():
    node = DeclarativeNode(half_square, unit, solver=Liar(lambda y: y, torch.full((2, 1), 7.0, dtype=DOUBLE)), start=3)
    with pytest.raises(SolverError, match="not_optimal"):
        node(X)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_solver_of_another_precision_is_held_to_that_of_the_inputs(dtype):
    """Seven digits are a solution in single precision, and none in double."""
    node = DeclarativeNode(half_square, unit, solver=Liar(lambda y: y.float().double().to(OTHER[dtype])), start=3)
    if dtype == torch.float32:
        assert node(X.float()).dtype == torch.float32
    else:
        with pytest.raises((SolverError, TypeError, ValueError)):
            node(X)


@pytest.mark.parametrize("change", [lambda y: y[:1], lambda y: y[:, :2], lambda y: y[..., None]])
def test_a_solver_that_returns_another_shape_is_refused_in_words(change):
    with pytest.raises(ValueError, match="shape"):
        DeclarativeNode(half_square, unit, solver=Liar(change), start=3)(X)


class Sloppy(Solver):
    """Right, but for one of the things that it returns."""

    def __init__(self, **wrong: object) -> None:
        self.wrong = wrong

    def solve(self, batch: Batch, start: Tensor) -> RawSolution:  # noqa: ARG002
        return dataclasses.replace(RawSolution.unsolved(normalise(batch.xs[0])), **self.wrong)


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"multipliers": torch.zeros(2, 2)}, ValueError),
        ({"codes": torch.zeros(2, 1)}, ValueError),
        ({"iterations": torch.zeros(())}, ValueError),
        ({"messages": ("",)}, ValueError),
        ({"y": torch.zeros(2, 3, dtype=torch.int64)}, TypeError),
        ({"codes": [0, 0]}, TypeError),
    ],
    ids=lambda one: next(iter(one)) if isinstance(one, dict) else "",
)
def test_whatever_a_solver_returns_is_looked_at(wrong, error):
    with pytest.raises(error, match=f"a solver must return .*{next(iter(wrong))}"):
        DeclarativeNode(half_square, unit, solver=Sloppy(**wrong), start=3)(X)


def test_a_solver_that_returns_something_else_is_refused_in_words():
    class Tuple(Solver):
        def solve(self, batch: Batch, start: Tensor) -> RawSolution:
            return start, batch.size

    with pytest.raises(TypeError, match="must return a RawSolution, but Tuple returned tuple"):
        DeclarativeNode(half_square, unit, solver=Tuple(), start=3)(X)


class Holds(Solver):
    """Stays on a bound, and says that the bound pushes."""

    def solve(self, batch: Batch, start: Tensor) -> RawSolution:
        return dataclasses.replace(RawSolution.unsolved(start), multipliers=torch.full((batch.size, 1), -3.0).to(start))


def test_a_bound_that_should_let_go_holds_no_solution():
    node = DeclarativeNode(
        half_square, inequality=lambda _, u: u - 1, solver=Holds(), start=torch.ones(1), on_failure="mask"
    )
    with pytest.warns(NumericalWarning, match="not_optimal"):
        solution = node.solve(torch.tensor([[0.0], [4.0]], dtype=DOUBLE))
    assert solution.status == [Status.NOT_OPTIMAL, Status.CONVERGED]
