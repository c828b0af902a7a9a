"""The problems of the table, measured in other units: the same status, the same solution, the same gradient."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from declarative import DeclarativeNode, SolverError
from tests.support.helpers import DOUBLE, REGULAR, case, gradients, relative, up_to_sign
from tests.support.rescaled import CONSTANTS, EACH_ITS_OWN, ONE_AT_A_TIME, TOGETHER, RescaledCase
from tests.support.verdicts import ACCURACY, listening

# Of these y and -y are both solutions, and which one is found may depend on the units.
EVEN = [case("eigenvector").name, case("nonlinear constraint").name]


# Unknowns that differ by a factor of 1e16 from each other: a solver may give up on some of these, and says so.
FAR_APART = {change.name for change in (*EACH_ITS_OWN, *TOGETHER, *CONSTANTS) if "in turn" in change.name} | {
    "everything down"
}


def in_all_units(
    rescaled: RescaledCase, solver: Any, dtype: torch.dtype, may_give_up: frozenset[str] = frozenset()
) -> None:
    """Solved in all units, with the same solution and gradient, and without a word; or refused, where it may be."""
    xs, units = rescaled.inputs(dtype)
    with listening() as words:
        solution = rescaled.node(solver, on_failure="mask").solve(*xs, *units.tensors())
        u, truth = units.to_u(solution.y), rescaled.case.truth(*xs)
        u = up_to_sign(u, truth) if rescaled.case.name in EVEN else u
        v = torch.randn(truth.shape, dtype=dtype) * solution.converged.view(-1, *(1,) * (truth.dim() - 1))
        found, expected = gradients(u, xs, v), gradients(truth, xs, v)
    refused = (~solution.converged).nonzero().flatten()
    assert set(rescaled.names(refused)) <= may_give_up
    wrong = (u - truth).detach().abs().reshape(len(u), -1).amax(-1) > ACCURACY[dtype] * truth.abs().max()
    assert not rescaled.names((wrong & solution.converged).nonzero().flatten())
    assert not words or len(refused)
    assert max(map(relative, found, expected)) < ACCURACY[dtype]


CHANGES = {
    "each": [*ONE_AT_A_TIME, *EACH_ITS_OWN],
    "together": TOGETHER,
    "constants": CONSTANTS,
}


@pytest.mark.parametrize("problem", REGULAR, ids=str)
@pytest.mark.parametrize("changes", CHANGES)
def test_a_formula_is_believed_in_all_units(problem, changes):
    simplex = problem is case("simplex")
    may_give_up = frozenset(FAR_APART if simplex else ())
    in_all_units(RescaledCase(problem, tuple(CHANGES[changes])), "closed form", DOUBLE, may_give_up)


@pytest.mark.parametrize("problem", REGULAR, ids=str)
def test_a_formula_is_believed_in_all_units_in_single_precision(problem):
    in_all_units(RescaledCase(problem, tuple(ONE_AT_A_TIME)), "closed form", torch.float32)


# Each problem in half of them.
HALVES = [[*ONE_AT_A_TIME, *CONSTANTS], [*EACH_ITS_OWN, *TOGETHER]]


@pytest.mark.parametrize(("problem", "changes"), list(zip(REGULAR, HALVES * len(REGULAR), strict=False)))
def test_the_default_solver_in_all_units(problem, changes):
    in_all_units(RescaledCase(problem, tuple(changes), problems=1), None, DOUBLE, frozenset(FAR_APART))


@pytest.mark.parametrize("problem", REGULAR, ids=str)
def test_the_default_solver_in_all_units_in_single_precision(problem):
    in_all_units(RescaledCase(problem, tuple(ONE_AT_A_TIME), problems=1), None, torch.float32)


# Variables, objectives and constraints of very different sizes


@pytest.mark.parametrize(("large", "x"), [(1e3, 1e-6), (1e4, 1e-5), (1e5, 1e-4), (1e6, 1e-3)])
def test_a_large_variable_does_not_make_another_ones_constraint_active(large, x):
    node = DeclarativeNode(
        lambda x, u: (u[0] / large - 1) ** 2 + (u[1] - x[0]) ** 2, inequality=lambda _, u: -u[1], start=2
    )
    x = torch.tensor([[x]], dtype=DOUBLE, requires_grad=True)
    y = node(x)
    (g,) = torch.autograd.grad(y[:, 1].sum(), x)
    assert relative(y[:, 1], x.detach()[:, 0]) < 1e-6
    assert abs(g.item() - 1) < 1e-6


def test_a_large_variable_does_not_hide_a_violated_constraint():
    def formula(x):
        return torch.stack([torch.full_like(x[:, 0], 1e7), x[:, 0] ** 3 + 0.01], -1)

    node = DeclarativeNode(
        lambda x, u: (u[0] - 1e7) ** 2 + 0 * x.sum() + 0 * u[1], lambda x, u: u[1] - x[0] ** 3, solver=formula
    )
    with pytest.raises(SolverError, match="not_optimal"):
        node(torch.ones(1, 1, dtype=DOUBLE))


@pytest.mark.parametrize("factor", [1e6, 1e8, 1e10, 1e12, 1e13])
def test_a_steep_objective_does_not_hide_a_slope(factor):
    node = DeclarativeNode(
        lambda x, u: factor * (u[0] - x[0]) ** 2 + u[1] ** 2 / 2, inequality=lambda x, u: x[1] - u[1], start=2
    )
    x = torch.tensor([[1.0, 1.0]], dtype=DOUBLE, requires_grad=True)
    y = node(x)  # a warning would be an error
    (g,) = torch.autograd.grad(y[0, 1], x)
    assert relative(y, torch.ones(1, 2, dtype=DOUBLE)) < 1e-6
    assert relative(g, torch.tensor([[0.0, 1.0]], dtype=DOUBLE)) < 1e-5


# Solutions that are small beside the way to them from the default start, which is of size one


def quartic(x, dtype):
    """The minimum of (t - x)^2 + t^4, and its derivative, by Newton's method for one unknown in its natural unit."""
    z = x.to(dtype).double()
    t = z.clone()
    for _ in range(60):
        t = t - (2 * (t - z) + 4 * t**3) / (2 + 12 * t**2)
    return t, 2 / (2 + 12 * t**2)


# The smallest may be refused.
SMALL = [1e-16, 1e-14, 1e-12, 1e-8, 1e-4, 1.0, 1e12]


@pytest.mark.parametrize("record", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
@pytest.mark.parametrize("unit", SMALL)
def test_an_unfinished_point_is_not_excused_by_the_way_there(unit, dtype, record):
    def objective(x, u):
        return ((u - x) / unit).square().sum() + (u / unit).pow(4).sum()

    natural = torch.tensor([[0.5, 1.0, 2.0], [-1.0, 0.1, 3.0]], dtype=dtype)
    x = (natural * unit).requires_grad_()
    solution = DeclarativeNode(objective, start=3, record=record, on_failure="mask").solve(x)
    (g,) = torch.autograd.grad(solution.y.sum(), x)
    y, slope = quartic(natural, dtype)
    assert solution.converged.all() or unit < 1e-12
    solved = solution.converged
    assert relative((solution.y.detach().double() / unit)[solved], y[solved]) < ACCURACY[dtype]
    assert relative(g.double()[solved], slope[solved]) < ACCURACY[dtype]


@pytest.mark.filterwarnings("ignore")  # of what is refused
@pytest.mark.parametrize("record", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
@pytest.mark.parametrize("unit", SMALL)
def test_a_constraint_is_not_dropped_for_being_small_beside_the_way_there(unit, dtype, record):
    weights = torch.tensor([1.0, 10.0, 100.0], dtype=DOUBLE)
    generator = torch.Generator().manual_seed(0)
    natural = torch.randn(16, 3, dtype=DOUBLE, generator=generator)
    natural = (natural / natural.norm(dim=-1, keepdim=True) / 2).to(dtype)  # inside of the ball: y = max(x, 0)
    natural[0], natural[1] = torch.tensor([-0.3, -0.01, -0.2]), torch.tensor([0.4, -0.009, -0.2])

    node = DeclarativeNode(
        lambda x, u: (((u - x) / unit).square() * weights.to(u)).sum(),
        inequality=lambda _, u: torch.cat([-u, (u.square().sum() / unit - unit).reshape(1)]),
        start=3,
        record=record,
        on_failure="mask",
    )
    x = (natural * unit).requires_grad_()
    solution = node.solve(x)
    (g,) = torch.autograd.grad(solution.y.sum(), x)
    solved = solution.converged
    assert solved.all() or not 1e-10 < unit < 1e10
    error = (solution.y.detach() / unit - natural.clamp(min=0.0)).abs()[solved]
    assert not (error > ACCURACY[dtype]).any()
    assert not ((g - (natural > 0).to(dtype)).abs()[solved] > ACCURACY[dtype]).any()
    if solved.any():
        slopes = (2 * weights * (-natural).clamp(min=0.0).double() / unit)[solved]
        assert relative(solution.inequality_multipliers.double()[solved, :3], slopes) < ACCURACY[dtype]


@pytest.mark.filterwarnings("ignore")  # of what is refused
@pytest.mark.parametrize("record", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
def test_a_violation_is_not_excused_by_the_way_there(dtype, record):
    weights = torch.tensor([1.0, 10.0, 100.0], dtype=DOUBLE)
    natural = torch.tensor(
        [[1.1829916513086596, 0.10495613074974239, 0.9352869474487411], [2.0, 1.0, 0.5]], dtype=DOUBLE
    )
    low, high = torch.zeros(2, 1, dtype=DOUBLE), torch.full((2, 1), 1e4, dtype=DOUBLE)
    for _ in range(100):  # onto the ball, by bisection for the multiplier
        middle = (low + high) / 2
        y = weights * natural / (weights + middle)
        outside = y.square().sum(-1, keepdim=True) > 1
        low, high = torch.where(outside, middle, low), torch.where(outside, high, middle)
    for unit in SMALL:
        node = DeclarativeNode(
            lambda x, u, unit=unit: (((u - x) / unit).square() * weights.to(u)).sum(),
            inequality=lambda _, u, unit=unit: torch.cat([-u, (((u / unit).square().sum() - 1) * unit).reshape(1)]),
            start=3,
            record=record,
            on_failure="mask",
        )
        solution = node.solve((natural * unit).to(dtype))
        error = (solution.y.double() / unit - y).abs()[solution.converged]
        assert not (error > ACCURACY[dtype]).any()


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
@pytest.mark.parametrize("power", [2, 4, 6])
def test_zero_is_found_to_be_a_solution_wherever_it_comes_from(power, dtype):
    shift = torch.tensor([0.3, 1.0, 7.0], dtype=DOUBLE)  # of terms that cancel where they are not seen
    for start in (1e-3, 1.0, 1e3):
        node = DeclarativeNode(lambda x, u: (x * u).pow(power).sum(), start=torch.full((3,), start, dtype=dtype))
        assert (node(torch.ones(2, 3, dtype=dtype)).abs() < 1e-2 * start).all()
    matrix = torch.randn(5, 3, dtype=DOUBLE, generator=torch.Generator().manual_seed(0))
    node = DeclarativeNode(
        lambda x, u: (matrix.to(u) @ (u + shift.to(u)) - matrix.to(u) @ (x * shift.to(u))).square().sum(), start=3
    )
    assert (node(torch.ones(2, 3, dtype=dtype)).abs() < 1e-5).all()
