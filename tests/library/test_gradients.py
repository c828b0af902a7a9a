"""Solutions and gradients against closed forms: problems x solvers x batch sizes x dtypes."""

import dataclasses

import pytest
import torch

from declarative import ClosedForm, DeclarativeNode, NumericalWarning, Scipy, SolverError
from declarative.optimality import assess
from declarative.problem import Batch, Problem
from declarative.solution import RawSolution
from declarative.solvers.polish import polish
from tests.support.helpers import (
    DOUBLE,
    REGULAR,
    case,
    cases,
    gradients,
    half_square,
    normalise,
    relative,
    solved_cases,
    unit,
    up_to_sign,
)

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}


@pytest.mark.parametrize(("batch", "dtype"), [(3, torch.float64), (1, torch.float32)], ids=["3-float64", "1-float32"])
@pytest.mark.parametrize(("case", "solver"), solved_cases())
def test_solution_and_gradient_are_those_of_the_closed_form(case, solver, batch, dtype):
    xs = case.xs(batch, dtype)
    exact = case.xs(batch, DOUBLE)
    truth = case.truth(*exact)
    v = torch.randn_like(truth)
    y = case.node(solver)(*xs)
    assert y.dtype == dtype
    assert y.shape == truth.shape
    if case.sign_free:
        y = up_to_sign(y, truth.to(dtype))
    assert relative(y.detach().to(DOUBLE), truth.detach()) < TOLERANCE[dtype]
    found = gradients(y, xs, v)
    for x, grad, expected in zip(xs, found, gradients(truth, exact, v), strict=True):
        assert grad.dtype == dtype
        assert grad.shape == x.shape
        assert relative(grad.to(DOUBLE), expected) < TOLERANCE[dtype]


def test_in_dims_other_than_zero():
    node = DeclarativeNode(half_square, unit, solver=normalise, in_dims=1)
    x = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    y, truth = node(x), normalise(x.T)
    v = torch.randn_like(truth)
    assert relative(y, truth) < 1e-12
    assert relative(gradients(y, (x,), v)[0], gradients(truth, (x,), v)[0]) < 1e-12


@pytest.mark.parametrize("case", cases([c for c in REGULAR if c.equality or c.inequality]))
def test_another_constrained_method_of_scipy_agrees(case):
    xs = case.xs(2)
    truth = case.truth(*xs).detach()
    y = case.node(Scipy(method="trust-constr"))(*xs).detach()
    y = up_to_sign(y, truth) if case.sign_free else y
    assert relative(y, truth) < 1e-9


@pytest.mark.parametrize(
    "method",
    ["BFGS", "L-BFGS-B", "CG", "TNC", "Newton-CG", "trust-ncg", "trust-krylov", "trust-exact", "Nelder-Mead", "Powell"],
)
def test_unconstrained_scipy_methods_agree(method):
    problem = case("unconstrained")
    xs = problem.xs(2)
    y = problem.node(Scipy(method=method))(*xs)
    v = torch.randn_like(y)
    assert relative(y.detach(), xs[0].detach().log()) < 1e-9
    assert relative(gradients(y, xs, v)[0], v / xs[0].detach()) < 1e-9


def test_a_solver_that_stops_early_is_polished_and_the_gradient_is_right():
    problem = case("sphere")
    xs = problem.xs(4)
    truth = problem.truth(*xs)
    v = torch.randn_like(truth)
    rough = Scipy(method="SLSQP", tolerance=1e-3)
    y = problem.node(rough)(*xs)
    assert relative(y.detach(), truth.detach()) < 1e-12
    assert relative(gradients(y, xs, v)[0], gradients(truth, xs, v)[0]) < 1e-10
    unpolished = Scipy(method="SLSQP", tolerance=1e-3, polish=False)
    left = problem.node(unpolished, on_failure="mask")
    with pytest.warns(NumericalWarning, match="not_optimal"):
        assert relative(left(*xs).detach(), truth.detach()) > 1e-9


def test_polishing_finishes_an_approximate_formula():
    problem = case("simplex")
    xs = problem.xs(4)

    def rough(x):
        return problem.truth(x) + 1e-4 * torch.linspace(0, 1, 5, dtype=DOUBLE)

    with pytest.raises(SolverError, match="polish=True"):
        problem.node(rough)(*xs)
    y = problem.node(ClosedForm(rough, polish=True))(*xs)
    truth = problem.truth(*xs)
    v = torch.randn_like(truth)
    assert relative(y.detach(), truth.detach()) < 1e-12
    assert relative(gradients(y, xs, v)[0], gradients(truth, xs, v)[0]) < 1e-10


def test_a_formula_too_rough_to_be_polished_is_called_so():
    problem = case("simplex")
    rough = ClosedForm(lambda x: problem.truth(x) + torch.linspace(0, 1, 5, dtype=DOUBLE), polish=True)
    with pytest.raises(SolverError, match="too far off to be polished"):
        problem.node(rough)(*problem.xs(4))


def test_polishing_does_not_take_a_step_that_makes_it_worse():
    """Beside the curved bottom of a penalty that is nearly |u - x| a Newton step leads further away."""
    width, x = 1e-3, torch.ones(2, 1, dtype=DOUBLE)
    problem = Problem(lambda x, u: (1 + ((u - x) / width).square()).sqrt().sum())
    batch = Batch(problem, (x,), (0,), 2, torch.Size([1]), 0, 0)
    y = x + torch.tensor([[1.5 * width], [0.1 * width]], dtype=DOUBLE)
    polished = polish(batch, RawSolution.unsolved(y))
    assert polished.y[0] == y[0]
    assert abs(polished.y[1] - 1) < 1e-15
    assert torch.equal(polished.assessment.residual, assess(batch, polished.y).residual)


def test_polishing_mends_multipliers_where_the_constraints_alone_fix_u():
    problem = Problem(lambda x, u: x @ u, lambda _, u: torch.stack([u.square().sum() - 25, u.prod() - 12]))
    x, y = torch.randn(3, 2, dtype=DOUBLE), torch.tensor([[4.0, 3.0]], dtype=DOUBLE).expand(3, 2)
    raw = dataclasses.replace(RawSolution.unsolved(y), multipliers=torch.ones(3, 2, dtype=DOUBLE))
    found = polish(Batch(problem, (x,), (0,), 3, torch.Size([2]), 2, 0), raw).multipliers
    rows = torch.stack([2 * y, y.flip(-1)], 1)
    assert relative(found, torch.linalg.solve(rows.mT, x)) < 1e-12
