"""A, B, C, H and the multipliers against matrices derived by hand, and the sign convention."""

import torch

from declarative import DeclarativeNode
from tests.support.helpers import DOUBLE, PLANE, Q, case, relative


def test_sphere():
    problem = case("sphere")
    (x,) = problem.xs(3)
    d = problem.node("closed form").derivatives(x.detach())
    x = x.detach()
    norm = x.norm(dim=-1)
    eye = torch.eye(4, dtype=DOUBLE).expand(3, 4, 4)
    # f = ||u - x||^2 / 2 and h = (||u||^2 - 1) / 2: y - x = lambda y, so lambda = 1 - ||x|| and H = (1 - lambda) I
    assert relative(d.multipliers[:, 0], 1 - norm) < 1e-12
    assert relative(d.A[:, 0], x / norm[:, None]) < 1e-12
    assert relative(d.B, -eye) < 1e-12
    assert d.C.shape == (3, 1, 4)
    assert not d.C.any()
    assert relative(d.H, norm[:, None, None] * eye) < 1e-12
    assert relative(d.H_hat, eye) < 1e-12


def test_input_in_objective_and_constraint_both_nonlinear():
    """f = x u1^2 + u2^2 and h = u1 + x^2 u2 - 1, from the stationarity conditions by hand."""
    x = torch.tensor([[1.5], [0.7]], dtype=DOUBLE)

    def solution(x):
        return torch.cat([torch.ones_like(x), x**3], -1) / (1 + x**5)  # u = (t, x^3 t) with t (1 + x^5) = 1

    node = DeclarativeNode(
        lambda x, u: x[0] * u[0] ** 2 + u[1] ** 2, lambda x, u: u[0] + x[0] ** 2 * u[1] - 1, solver=solution
    )
    d = node.derivatives(x)
    (u1, u2), t = solution(x).T, x[:, 0]
    multiplier = 2 * t * u1
    one = torch.ones_like(t)
    assert relative(d.multipliers[:, 0], multiplier) < 1e-12
    assert relative(d.A[:, 0], torch.stack([one, t**2], -1)) < 1e-12
    assert relative(d.C[:, 0, 0], 2 * t * u2) < 1e-12
    assert relative(d.B[:, :, 0], torch.stack([2 * u1, -multiplier * 2 * t], -1)) < 1e-12
    assert relative(d.H, torch.diag_embed(torch.stack([2 * t, 2 * one], -1))) < 1e-12


def test_inputs_are_flattened_and_concatenated_in_order_and_shared_ones_are_per_problem():
    problem = case("two inputs")
    xs = problem.xs(3)
    d = problem.node("closed form").derivatives(*xs)
    y = problem.truth(*xs)
    assert d.B.shape == (3, 3, 6)
    assert d.C.shape == (3, 1, 6)
    assert not d.C[:, 0, :3].any()
    assert relative(d.C[:, 0, 3:], y) < 1e-12  # h = a'u - 1
    assert relative(d.A[:, 0], xs[1].expand(3, 3)) < 1e-12


def test_quadratic():
    problem = case("linear-equality")
    d = problem.node("closed form").derivatives(*problem.xs(2))
    assert relative(d.H, Q.expand(2, 4, 4)) < 1e-12
    assert relative(d.A[:, 0], PLANE.expand(2, 4)) < 1e-12


def test_inequalities_have_their_own_matrices():
    problem = case("ball")
    (x,) = problem.xs(2)
    d = problem.node("closed form").derivatives(x)
    assert d.A.shape == (2, 0, 3)
    assert d.active.tolist() == [[False], [True]]
    y = problem.truth(x).detach()
    assert relative(d.G[:, 0], 2 * y) < 1e-12
    # x - y = 2 mu y, so mu = (||x|| - 1) / 2 where active
    assert relative(d.inequality_multipliers[:, 0], torch.tensor([0.0, 0.75], dtype=DOUBLE)) < 1e-10
    assert relative(d.H[1], 2.5 * torch.eye(3, dtype=DOUBLE)) < 1e-10
