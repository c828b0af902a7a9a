"""What only a small fault of a layer would change."""

from __future__ import annotations

import math

import pytest
import torch

from declarative import NumericalWarning
from problems import (
    BallProjection,
    EntropicSimplex,
    QuadraticProgram,
    RobustPooling,
    SimplexProjection,
    SphereProjection,
)
from tests.support.helpers import DOUBLE, relative


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=DOUBLE)


def test_the_simplex_projection_of_large_scores_keeps_its_digits():
    x = (16 * randn(50, 6)).round() / 64  # exact, as are the sums with 2^30
    assert relative(SimplexProjection()(x + 2.0**30), SimplexProjection()(x)) < 1e-15


def test_the_temperature_has_a_gradient():
    x, v = 2 * randn(3, 4), randn(3, 4)
    t = torch.tensor([0.5, 1.0, 2.0], dtype=DOUBLE, requires_grad=True)
    (truth,) = torch.autograd.grad(((x / t.unsqueeze(-1)).softmax(-1) * v).sum(), t)
    (found,) = torch.autograd.grad((EntropicSimplex()(x, t) * v).sum(), t)
    assert relative(found, truth) < 1e-12


@pytest.mark.parametrize("norm", [2, math.inf])
def test_the_radius_has_a_gradient(norm: float):
    x, v = torch.tensor([[3.0, -4.0], [-0.3, 5.0], [0.1, 0.2]], dtype=DOUBLE), randn(3, 2)
    radius = torch.tensor([1.5, 2.0, 0.7], dtype=DOUBLE, requires_grad=True)
    r = radius.unsqueeze(-1)
    truth = x * (r / x.norm(dim=-1, keepdim=True)).clamp(max=1.0) if norm == 2 else torch.minimum(r, x.abs()) * x.sign()
    (expected,) = torch.autograd.grad((truth * v).sum(), radius, retain_graph=True)
    layer = BallProjection(norm=norm)
    (found,) = torch.autograd.grad((layer(x, radius) * v).sum(), radius)
    assert relative(found, expected) < 1e-12
    (one_by_one,) = torch.autograd.grad((truth * torch.ones_like(v)).sum(), radius)
    pushed = torch.func.jvp(lambda radius: layer(x, radius), (radius.detach(),), (torch.ones_like(radius),))[1]
    assert relative(pushed.sum(-1), one_by_one) < 1e-12


def test_the_multiplier_of_the_simplex_has_a_gradient():
    """It is t of x - t, minus the mean excess of the support."""
    x = randn(4, 5).requires_grad_()
    layer = SimplexProjection()
    found, expected = (
        torch.autograd.grad(one.solve(x).multipliers.pow(2).sum(), x)[0] for one in (layer, layer.generic())
    )
    assert relative(found, expected) < 1e-12


def test_a_program_at_a_kink_has_the_gradient_without_the_constraint():
    """The first unknown would reach its bound by itself, up to rounding errors."""
    q = -torch.tensor([[1 + 1e-14, 2.0]], dtype=DOUBLE)
    eye = torch.eye(2, dtype=DOUBLE)
    with pytest.warns(NumericalWarning, match="kink"):
        y = QuadraticProgram()(eye, q.requires_grad_(), None, None, eye[:1], torch.ones(1, dtype=DOUBLE))
    assert torch.equal(torch.autograd.grad(y.sum(), q)[0], -torch.ones_like(q))


def test_a_recorded_gradient_is_not_the_cotangent():
    x, v = randn(3, 4).requires_grad_(), randn(3, 4)
    y = SphereProjection(gradient="identity")(x)
    (recorded,) = torch.autograd.grad(y, x, v, create_graph=True)
    assert recorded.untyped_storage().data_ptr() != v.untyped_storage().data_ptr()


@pytest.mark.parametrize("scale", [1e-20, 1e-3, 0.05, 0.3, 1.0, 30.0])
def test_truncated_pooling_is_at_the_global_minimum(scale: float):
    """Which is the mean of some points that are neighbours, as the best of all such means."""
    x = randn(40, 7)
    x[:, 5] = x[:, 2] + scale * (1.0 + torch.rand(40, dtype=DOUBLE))  # neither is within the scale of the other
    x[:20, 6] = x[:20, 4]
    ordered = x.sort(-1).values
    means = [ordered[:, i:j].mean(-1) for i in range(7) for j in range(i + 1, 8)]

    def height(u: torch.Tensor) -> torch.Tensor:
        return ((u.unsqueeze(-1) - x).square().clamp(max=scale**2) / 2).sum(-1)

    best = torch.stack([height(u) for u in means]).amin(0)
    assert (height(RobustPooling("truncated", scale)(x)) <= best * (1 + 1e-9)).all()


@pytest.mark.filterwarnings("ignore:.*Hessian is singular:declarative.NumericalWarning")
@pytest.mark.parametrize("size", [1e-3, 1.0, 1e3, 1e6])
def test_huber_pooling_of_points_far_apart_is_in_the_middle(size: float):
    """Of the two median points, less the scale on either side: everything in between is a solution."""
    x = size * randn(60, 6)
    ordered = x.sort(-1).values
    scale = 0.3 * (ordered[:, 3] - ordered[:, 2])
    solution = RobustPooling("huber").solve(x, scale)
    assert solution.converged.all()
    assert relative(solution.y, (ordered[:, 2] + ordered[:, 3]) / 2) < 1e-12
    x.requires_grad_()
    with pytest.warns(NumericalWarning):
        (grad,) = torch.autograd.grad(RobustPooling("huber")(x, scale).sum(), x)
    assert not grad.any()
