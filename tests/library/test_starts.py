"""Where a solver starts: fixed, per problem, warm, or several places at once."""

import pytest
import torch

from declarative import DeclarativeNode
from tests.support.helpers import DOUBLE, relative


def wells(x, u):
    """Two minima, near -1 and 1; the sign of x says which one is deeper."""
    return ((u.square() - 1).square() + 0.3 * x * u).sum()


def test_several_starts_keep_the_best():
    x = torch.tensor([[1.0], [-1.0]], dtype=DOUBLE)
    right = DeclarativeNode(wells, start=torch.tensor([1.0]))(x)
    assert (right > 0).all()
    both = DeclarativeNode(wells, start=[torch.tensor([-1.0]), lambda x: torch.ones_like(x)])
    y = both(x.requires_grad_())
    assert (y[0] < 0).all()
    assert (y[1] > 0).all()
    assert torch.autograd.gradcheck(both, x)


def test_a_warm_start_saves_iterations_and_changes_nothing_else():
    x = torch.randn(4, 5, dtype=DOUBLE, requires_grad=True)
    node = DeclarativeNode(
        lambda x, u: (u - x).pow(4).sum() + u.exp().sum(), lambda _, u: u.square().sum() - 1, start=torch.ones(5)
    )
    cold = node.solve(x)
    moved = (x + 1e-4 * torch.randn_like(x)).detach().requires_grad_()
    again, warm = node.solve(moved), node.solve(moved, start=cold.y)
    assert relative(warm.y, again.y) < 1e-9
    assert warm.iterations.double().mean() < 0.6 * again.iterations.double().mean()
    v = torch.randn_like(warm.y)
    (g,) = torch.autograd.grad(node(moved, start=cold.y), moved, v)
    (expected,) = torch.autograd.grad(node(moved), moved, v)
    assert relative(g, expected) < 1e-8


def test_a_warm_start_under_vmap_and_for_one_problem():
    node = DeclarativeNode(lambda x, u: (u - x).square().sum(), lambda _, u: u.sum() - 1, start=3)
    x = torch.randn(2, 4, 3, dtype=DOUBLE)
    truth = x - (x.sum(-1, keepdim=True) - 1) / 3
    y = torch.vmap(lambda x, start: node(x, start=start))(x, truth + 0.1)
    assert relative(y, truth) < 1e-12
    one = DeclarativeNode(lambda x, u: (u - x).square().sum(), lambda _, u: u.sum() - 1, start=3, in_dims=None)
    assert relative(one(x[0, 0], start=truth[0, 0]), truth[0, 0]) < 1e-12


def test_wrong_warm_starts():
    node = DeclarativeNode(lambda x, u: (u - x).square().sum(), start=3)
    with pytest.raises(ValueError, match="one point for each of the 2 problems"):
        node(torch.zeros(2, 3), start=torch.zeros(3))
    with pytest.raises(TypeError, match="start must be a tensor"):
        node(torch.zeros(2, 3), start=3)
