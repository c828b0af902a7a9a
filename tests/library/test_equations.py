"""A node without an objective solves equations; its gradient is that of the implicit function theorem."""

import pytest
import torch
from torch import nn

from declarative import Adaptive, DeclarativeNode, SolverError, check
from tests.support.helpers import DOUBLE, relative


def cubic(x, u):
    return u.pow(3) + u - x


@pytest.fixture
def x():
    return torch.tensor([[2.0, 3.0], [5.0, 0.7], [-1.0, 0.1]], dtype=DOUBLE, requires_grad=True)


@pytest.mark.parametrize("solver", [None, "newton", "scipy"])
@pytest.mark.parametrize("record", [False, True])
def test_roots_and_their_gradient(x, solver, record):
    node = DeclarativeNode(None, cubic, solver=solver, start=2, record=record)
    for _ in range(2):
        y = node(x)
        assert relative(cubic(x, y), torch.zeros_like(x)) < 1e-9
        (g,) = torch.autograd.grad(y.sin().sum(), x)
        assert relative(g, y.cos() / (3 * y.square() + 1)) < 1e-9


def test_derivatives_of_both_orders_forward_and_reverse(x):
    node = DeclarativeNode(
        None, lambda x, u: torch.stack([u[0].exp() + u[1] - x[0], u[1].pow(3) - u[0] - x[1]]), start=2
    )
    x = x[2:]
    assert torch.autograd.gradcheck(node, x, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(node, x, fast_mode=True)
    assert check(node, x).passed


def test_a_fixed_point_of_a_network():
    class Cell(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.outer = nn.Linear(4, 4, dtype=DOUBLE), nn.Linear(3, 4, dtype=DOUBLE)
            with torch.no_grad():
                self.inner.weight.mul_(0.5)

        def step(self, x, u):
            return torch.tanh(self.inner(u) + self.outer(x))

        def forward(self, x, u):
            return u - self.step(x, u)

    torch.manual_seed(0)
    cell, x = Cell(), torch.randn(5, 3, dtype=DOUBLE)
    node = DeclarativeNode(None, cell, start=4)
    assert set(node.state_dict()) == {f"equality.{name}" for name in cell.state_dict()}
    u = torch.zeros(5, 4, dtype=DOUBLE)
    for _ in range(80):  # the truth, by iteration, with a gradient through all of the steps
        u = cell.step(x, u)
    assert relative(node(x), u) < 1e-9
    weights = list(cell.parameters())
    found, truth = (torch.autograd.grad(y.pow(2).sum(), weights) for y in (node(x), u))
    for one, other in zip(found, truth, strict=True):
        assert relative(one, other) < 1e-8


def test_named_unknowns(x):
    node = DeclarativeNode(
        None, lambda x, z: {"a": z["a"].exp() - x.square(), "b": z["b"] - z["a"].sum()}, start={"a": 2, "b": ()}
    )
    y = node(x)
    assert relative(y["b"], x.square().log().sum(-1)) < 1e-9
    (g,) = torch.autograd.grad(y["b"].sum(), x)
    assert relative(g, 2 / x) < 1e-9
    assert node.solve(x).multipliers["a"].shape == (3, 2)
    assert "objective" not in node.extra_repr()


def test_no_root_is_a_failure(x):
    with pytest.raises(SolverError, match="infeasible"):
        DeclarativeNode(None, lambda x, u: u.square() + 1 + x.square(), start=2)(x)


@pytest.mark.parametrize(
    ("equality", "told"),
    [
        (lambda _, u: u.sum() - 1, r"equality returns 1 value\(s\) for 2 unknown\(s\).*chooses among their solutions"),
        (lambda x, u: torch.cat([u, u - x]), r"equality returns 4 value\(s\) for 2 unknown\(s\).*of their squares"),
    ],
)
@pytest.mark.parametrize("record", [False, True])
def test_another_number_of_equations_is_refused(x, equality, told, record):
    node = DeclarativeNode(None, equality, start=2, record=record)
    for _ in range(2):
        with pytest.raises(ValueError, match=told):
            node(x)


def test_without_an_objective_there_are_equations_alone():
    with pytest.raises(ValueError, match="solves equations, equality"):
        DeclarativeNode(None, start=2)
    with pytest.raises(ValueError, match="no room for inequalities"):
        DeclarativeNode(None, cubic, lambda _, u: -u, start=2)
    with pytest.raises(ValueError, match="no room for inequalities and bounds"):
        DeclarativeNode(None, cubic, bounds=(0, None), start=2)
    for rule in ("unconstrained", "curvature", "identity", Adaptive()):
        with pytest.raises(ValueError, match="only the exact gradient"):
            DeclarativeNode(None, cubic, start=2, gradient=rule)
        with pytest.raises(ValueError, match="only the exact gradient"):
            DeclarativeNode(None, cubic, start=2).with_gradient(rule)
