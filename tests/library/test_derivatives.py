"""A, B, C, H and the multipliers against matrices derived by hand, and the sign convention."""

import torch

from declarative import DeclarativeNode
from declarative.problem import Batch, Problem
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


def test_first_derivatives_are_numbers_where_second_ones_are_infinite():
    """f = u2^2 and h = u1^1.5 + u2 at u1 = 0, where A = [0, 1] and H is infinite."""
    x, u = torch.ones(2, 1, dtype=DOUBLE), torch.tensor([[0.0, 3.0], [4.0, 3.0]], dtype=DOUBLE)
    problem = Problem(lambda x, u: u[1] ** 2, lambda x, u: x[0] * u[0] ** 1.5 + u[1])  # noqa: ARG005
    batch = Batch(problem, (x,), (0,), 2, torch.Size([2]), 1, 0)
    found = batch.expand(u, -torch.ones(2, 1, dtype=DOUBLE))
    assert relative(found.jacobian[:, 0], torch.tensor([[0.0, 1.0], [3.0, 1.0]], dtype=DOUBLE)) < 1e-12
    assert relative(found.gradient, torch.tensor([[0.0, 7.0], [3.0, 7.0]], dtype=DOUBLE)) < 1e-12
    assert not found.curvature[0].isfinite().all()
    assert relative(found.curvature[1], torch.diag(torch.tensor([0.375, 2.0], dtype=DOUBLE))) < 1e-12


# node.at: the problems at their solutions


def test_at_is_the_problem_at_its_solution():
    problem = case("sphere")
    x = problem.xs(3)[0].detach()
    point, norm = problem.node("closed form").at(x), x.norm(dim=-1)
    assert relative(point.u, x / norm[:, None]) < 1e-12
    assert relative(point.multipliers[:, 0], 1 - norm) < 1e-12
    assert point.active.all()
    v = torch.randn(3, 4, dtype=DOUBLE, generator=torch.Generator().manual_seed(0))
    z, _ = point.system("full").solve(v, torch.zeros(3, 1, dtype=DOUBLE))
    y = point.u  # H = ||x|| I and A = y': z is v / ||x|| without its part along y
    assert relative(z, (v - (v * y).sum(-1, keepdim=True) * y) / norm[:, None]) < 1e-12


def test_at_starts_where_it_is_told_and_is_flat_and_batched():
    double_well = DeclarativeNode(lambda x, u: (u.square() - x).square().sum(), start=(1, 1), in_dims=None)
    x, y = torch.tensor(4.0, dtype=DOUBLE), torch.tensor([[-1.5]], dtype=DOUBLE)
    assert relative(double_well.at(x, start=y).u, torch.tensor([[-2.0]], dtype=DOUBLE)) < 1e-9
    assert relative(double_well.at(x, start=-y).u, torch.tensor([[2.0]], dtype=DOUBLE)) < 1e-9


def test_prepare_completes_inputs_for_everything_a_node_can_do():
    class Doubled(DeclarativeNode):
        def prepare(self, x):
            return (2 * x,)

    node = Doubled(lambda x, u: (u - x).square().sum(), start=3)
    x = torch.tensor([[1.0, -2.0, 0.5]], dtype=DOUBLE, requires_grad=True)
    for y in (node(x), node.solve(x).y, node.at(x).u, node.with_plan(on_failure="mask")(x)):
        assert relative(y, 2 * x.detach()) < 1e-9
    (grad,) = torch.autograd.grad(node(x).sum(), x)
    assert relative(grad, torch.full_like(x, 2.0)) < 1e-9
    assert node.structure(x).unknowns == 3
    assert node(x.detach().to("meta")).shape == (1, 3)


def test_a_changed_plan_leaves_the_node_as_it_was():
    node = DeclarativeNode(lambda x, u: (u - x).square().sum(), start=3)
    masked = node.with_plan(on_failure="mask")
    assert (node.spec.plan.on_failure, masked.spec.plan.on_failure) == ("raise", "mask")
    assert masked.spec.plan.problem is node.spec.plan.problem
    assert masked.gradient is node.gradient


def test_rows_that_are_found_alone_are_the_same(monkeypatch):
    """Where inputs are large; by formula: f = u'Qu / 2 + sum u^3, h = A u + (b'u)^2."""
    monkeypatch.setattr("declarative.expansion.AT_ONCE", 0)
    monkeypatch.setattr("declarative.expansion.ALONE", 0)
    generator = torch.Generator().manual_seed(0)
    Q, A, b, u, lam = (
        torch.randn(3, *s, dtype=DOUBLE, generator=generator) for s in ((4, 4), (2, 4), (4,), (4,), (2,))
    )

    def objective(Q, A, b, u):  # noqa: ARG001
        return u @ Q @ u / 2 + u.pow(3).sum()

    def equality(Q, A, b, u):  # noqa: ARG001
        return A @ u + (b @ u).square()

    problem = Problem(objective, equality)
    here = Batch(problem, (Q, A, b), (0, 0, 0), 3, u.shape[1:], 2, 0).expand(u, lam)
    bent = 2 * b.unsqueeze(-1) * b.unsqueeze(-2)
    H = (Q + Q.mT) / 2 + torch.diag_embed(6 * u) - lam.sum(-1)[:, None, None] * bent
    assert relative(here.jacobian, A + 2 * ((b * u).sum(-1, keepdim=True) * b).unsqueeze(-2)) < 1e-12
    assert relative(here.curvature, H) < 1e-12
