"""Variables, objectives and constraints of very different sizes: the right answer, or a word about it."""

import warnings

import pytest
import torch

from declarative import DeclarativeNode, NumericalWarning, SolverError
from tests.support.helpers import DOUBLE, relative


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
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", NumericalWarning)
        try:
            y = node(x)
        except SolverError:  # loud, and so allowed
            return
        (g,) = torch.autograd.grad(y[0, 1], x)
    assert relative(y, torch.ones(1, 2, dtype=DOUBLE)) < 1e-6
    assert caught or relative(g, torch.tensor([[0.0, 1.0]], dtype=DOUBLE)) < 1e-5
