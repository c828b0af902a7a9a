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
