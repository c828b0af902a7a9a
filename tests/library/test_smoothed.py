"""The smoothed gradient is that of the barrier problem's own minimiser, found by others, and goes to the exact one."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from scipy.linalg import null_space
from scipy.optimize import brentq, minimize, root
from torch import Tensor, nn

from declarative import DeclarativeNode, NumericalWarning, Smoothed
from declarative.gradients import gradient_rows
from problems import BallProjection, QuadraticProgram, SimplexProjection
from tests.support.helpers import DOUBLE, gradients, relative

BARRIERS = [1.0, 0.1, 1e-2, 1e-3]


def cheapest(barrier: float, **options) -> DeclarativeNode:
    """A linear program on the simplex."""
    options = {"start": 5, "gradient": Smoothed(barrier), **options}
    return DeclarativeNode(lambda c, u: c @ u, lambda _, u: u.sum() - 1, bounds=(0, None), **options)


def central_simplex(c: np.ndarray, barrier: float) -> np.ndarray:
    """u_i = barrier / (c_i - min(c) + t), with the t at which they sum to 1."""
    rest = c - c.min()
    t = brentq(lambda t: (barrier / (rest + t)).sum() - 1, 0.5 * barrier, len(c) * barrier + 1, xtol=1e-18, rtol=1e-15)
    return barrier / (rest + t)


def differences(function, x: np.ndarray, step: float = 1e-5) -> np.ndarray:  # (m, n)
    """The derivative, by central differences of fourth order."""
    columns = []
    for unit in np.eye(len(x)):
        near, far = (function(x + k * step * unit) - function(x - k * step * unit) for k in (1, 2))
        columns.append((8 * near - far) / (12 * step))
    return np.stack(columns, -1)


@pytest.mark.parametrize("barrier", BARRIERS)
def test_a_linear_program_has_the_gradient_of_its_central_point(barrier):
    c = torch.randn(3, 5, dtype=DOUBLE, requires_grad=True)
    y = cheapest(barrier)(c)
    v = torch.randn_like(y)
    (g,) = gradients(y, (c,), v)
    expected = [
        v[i].numpy() @ differences(lambda c: central_simplex(c, barrier), c[i].detach().numpy()) for i in range(3)
    ]
    assert relative(g, torch.tensor(np.array(expected))) < 1e-6
    assert torch.equal(y.detach().round(decimals=9), nn.functional.one_hot(c.argmin(-1), 5).double())


# A program with equalities, curved inequalities and bounds: min |u - a|^2 / 2 + exp(u_0),
# subject to a sum, |u|^2 <= b and -0.3 <= u <= 2.


def curved(barrier: float | None, **options) -> DeclarativeNode:
    return DeclarativeNode(
        lambda x, u: (u - x[:4]).square().sum() / 2 + u[0].exp(),
        lambda x, u: u.sum() - x[4],
        lambda x, u: u.square().sum() - x[5],
        bounds=(-0.3, 2.0),
        start=4,
        gradient="exact" if barrier is None else Smoothed(barrier),
        **options,
    )


def central_curved(x: np.ndarray, barrier: float) -> np.ndarray:
    """The barrier function's minimum by quasi-Newton steps, its slope's zero after that."""
    plane = null_space(np.ones((1, 4)))

    def place(w: np.ndarray) -> np.ndarray:
        return x[4] / 4 + plane @ w

    def height(w: np.ndarray) -> float:
        u = place(w)
        room = np.concatenate([[x[5] - u @ u], u + 0.3, 2 - u])
        if room.min() <= 0:
            return np.inf
        return ((u - x[:4]) ** 2).sum() / 2 + np.exp(u[0]) - barrier * np.log(room).sum()

    def slope(w: np.ndarray) -> np.ndarray:
        u = place(w)
        pull = 2 * u / (x[5] - u @ u) - 1 / (u + 0.3) + 1 / (2 - u)
        return plane.T @ (u - x[:4] + np.exp(u[0]) * np.eye(4)[0] + barrier * pull)

    near = minimize(height, np.zeros(3), method="Nelder-Mead", options={"xatol": 1e-7, "fatol": 1e-14}).x
    found = root(slope, near, options={"xtol": 1e-15}).x
    assert np.abs(slope(found)).max() < 1e-11
    assert height(found) <= height(near)
    return place(found)


def curved_inputs(count: int = 3) -> Tensor:
    a = torch.randn(count, 4, dtype=DOUBLE)
    return torch.cat([a, torch.full((count, 1), 0.4, dtype=DOUBLE), torch.full((count, 1), 0.3, dtype=DOUBLE)], -1)


@pytest.mark.parametrize("barrier", [0.3, 0.1, 1e-2])
def test_equalities_inequalities_and_bounds_together(barrier):
    x = curved_inputs().requires_grad_()
    y = curved(barrier)(x)
    v = torch.randn_like(y)
    (g,) = gradients(y, (x,), v)
    for i in range(len(x)):
        expected = v[i].numpy() @ differences(lambda x: central_curved(x, barrier), x[i].detach().numpy())
        assert relative(g[i], torch.tensor(expected)) < 1e-6
    assert torch.equal(y, curved(None)(x))


def test_the_bias_is_of_the_order_of_the_barrier():
    x = torch.tensor(
        [[1.0, -2.0, 0.5, 2.0, 0.4, 0.3], [0.3, 0.1, 0.2, -0.1, 0.4, 0.3]], dtype=DOUBLE, requires_grad=True
    )
    solution = curved(None).solve(x)
    assert (solution.inequality_multipliers[0] > 0.1).any()
    assert not solution.inequality_multipliers[1].any()  # one problem at constraints, one inside
    v = torch.randn(2, 4, dtype=DOUBLE)
    (exact,) = gradients(solution.y, (x,), v)
    bias = [float(relative(gradients(curved(b)(x), (x,), v)[0], exact)) for b in (1e-6, 1e-7, 1e-8)]
    assert bias[0] > 1e-5
    for larger, smaller in itertools.pairwise(bias):
        assert smaller == pytest.approx(larger / 10, rel=0.2)


def test_at_a_kink_it_is_in_the_middle():
    node = DeclarativeNode(
        lambda x, u: (u - x).square() / 2, inequality=lambda _, u: u, start=(), gradient=Smoothed(0.01)
    )
    x = torch.tensor([0.0, 3.0, -3.0], dtype=DOUBLE, requires_grad=True)  # just active, active, inactive
    (g,) = gradients(node(x), (x,), torch.ones(3, dtype=DOUBLE))  # 1 / (1 + y / s) with s y = 0.01, y - s = x
    y = (x + (x * x + 0.04).sqrt()) / 2
    assert torch.allclose(g, 1 / (1 + y * y / 0.01), rtol=1e-10)
    assert g[0] == pytest.approx(0.5)
    with pytest.warns(NumericalWarning, match=r"gradient=Smoothed\(barrier\)"):
        node.with_gradient("exact")(x)


def test_units_do_not_matter():
    """Those of u and of the constraints; the barrier has the units of the objective."""
    x = curved_inputs().requires_grad_()
    v = torch.randn(3, 4, dtype=DOUBLE)
    (expected,) = gradients(curved(0.1)(x), (x,), v)
    f, g, length = 1e-3, 1e4, torch.tensor([1.0, 100.0, 0.01, 1.0], dtype=DOUBLE)
    other = DeclarativeNode(
        lambda x, w: f * ((length * w - x[:4]).square().sum() / 2 + w[0].exp()),
        lambda x, w: 1e-5 * ((length * w).sum() - x[4]),
        lambda x, w: g * ((length * w).square().sum() - x[5]),
        bounds=(-0.3 / length, 2.0 / length),
        start=torch.full((4,), 0.1, dtype=DOUBLE) / length,
        gradient=Smoothed(0.1 * f),
    )
    (found,) = gradients(other(x) * length, (x,), v)
    assert relative(found, expected) < 1e-6


def test_constraints_that_are_far_away_do_not_matter():
    c = torch.randn(2, 5, dtype=DOUBLE, requires_grad=True)
    v = torch.randn(2, 5, dtype=DOUBLE)
    (expected,) = gradients(cheapest(0.01)(c), (c,), v)
    infinite = torch.tensor([torch.inf, 1e9, torch.inf, 1e9, 1e12], dtype=DOUBLE)
    node = DeclarativeNode(
        lambda c, u: c @ u,
        lambda _, u: u.sum() - 1,
        bounds=(0, lambda c: infinite + 0 * c),
        start=5,
        gradient=Smoothed(0.01),
    )
    (found,) = gradients(node(c), (c,), v)
    assert relative(found, expected) < 1e-6


def test_without_inequalities_it_is_the_exact_gradient():
    node = DeclarativeNode(lambda x, u: (u - x).square().sum(), lambda _, u: u.square().sum() - 1, start=3)
    x, v = torch.randn(2, 3, dtype=DOUBLE, requires_grad=True), torch.randn(2, 3, dtype=DOUBLE)
    found, exact = (gradients(node.with_gradient(rule)(x), (x,), v)[0] for rule in (Smoothed(1.0), "exact"))
    assert relative(found, exact) < 1e-12


def test_a_batch_is_its_problems_and_shared_inputs_get_the_sum():
    x = curved_inputs(3).requires_grad_()
    v = torch.randn(3, 4, dtype=DOUBLE)
    (whole,) = gradients(curved(0.1)(x), (x,), v)
    alone = [gradients(curved(0.1, in_dims=None)(x[i]), (x,), v[i])[0] for i in range(3)]
    assert relative(whole, sum(alone)) < 1e-9
    shared = cheapest(0.1, in_dims=None)(c := torch.randn(5, dtype=DOUBLE, requires_grad=True))
    node = DeclarativeNode(
        lambda x, c, u: c @ u + 0 * x,
        lambda *a: a[-1].sum() - 1,
        bounds=(0, None),
        start=5,
        in_dims=(0, None),
        gradient=Smoothed(0.1),
    )
    both = gradients(
        node(torch.zeros(2, dtype=DOUBLE), c), (c,), torch.ones(2, 1, dtype=DOUBLE) * v[0, 0] + torch.eye(5)[:2]
    )
    one = gradients(shared, (c,), 2 * v[0, 0] + torch.eye(5, dtype=DOUBLE)[:2].sum(0))
    assert relative(both[0], one[0]) < 1e-9


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_reports_see_the_gradient_that_a_backward_pass_takes(dtype):
    node = DeclarativeNode(
        lambda x, u: (x * u).sum() + (u - x).pow(4).sum() / 2,
        lambda x, u: u.sum() - x.square().sum(),
        bounds=(0, None),
        start=3,
        gradient=Smoothed(0.1),
    )
    x = torch.tensor([[1.0, 1.2, 3.0], [0.5, 2.0, 0.1]], dtype=dtype, requires_grad=True)
    v = torch.tensor([[1.0, 0.0, 0.0], [0.3, -1.0, 2.0]], dtype=dtype)
    (taken,) = torch.autograd.grad(node(x), x, v)
    seen = gradient_rows(node.gradient, node.at(x.detach()), v, [0])
    assert seen.dtype == dtype
    assert relative(seen, taken) < 100 * torch.finfo(dtype).eps


def test_single_precision_in_and_out():
    x = curved_inputs()
    v = torch.randn(3, 4)
    (expected,) = gradients(curved(0.01)(wide := x.clone().requires_grad_()), (wide,), v.double())
    narrow = x.float().requires_grad_()
    y = curved(0.01)(narrow)
    (g,) = gradients(y, (narrow,), v)
    assert y.dtype == g.dtype == torch.float32
    assert relative(g.double(), expected) < 1e-5


def test_torch_func_and_many_cotangents():
    node, x = curved(0.1), curved_inputs(2)
    v = torch.randn(2, 4, dtype=DOUBLE)
    (expected,) = gradients(node(leaf := x.clone().requires_grad_()), (leaf,), v)
    assert relative(torch.func.grad(lambda x: (node(x) * v).sum())(x), expected) < 1e-9
    one = curved(0.1, in_dims=None)
    mapped = torch.vmap(torch.func.grad(lambda x, v: one(x) @ v))(x, v)
    assert relative(mapped, expected) < 1e-9
    reverse, forward = (transform(one)(x[0]) for transform in (torch.func.jacrev, torch.func.jacfwd))
    assert relative(forward, reverse) < 1e-9
    assert relative(v[0] @ reverse, expected[0]) < 1e-9
    many = torch.autograd.functional.jacobian(one, x[0], vectorize=True)
    assert relative(many, reverse) < 1e-9


def test_second_derivatives_are_those_of_the_smoothed_gradient():
    node = curved(0.1)
    x = curved_inputs(1).requires_grad_()
    v = torch.randn(1, 4, dtype=DOUBLE)

    def gradient(x: Tensor, v: Tensor) -> Tensor:
        return torch.autograd.grad((node(x) * v).sum(), x, create_graph=True)[0]

    assert torch.autograd.gradcheck(gradient, (x, v.requires_grad_()), eps=1e-5, atol=1e-5, fast_mode=True)
    hessian = torch.func.hessian(lambda x: curved(0.1, in_dims=None)(x) @ v[0].detach())(x[0].detach())
    assert relative(hessian, hessian.mT) < 1e-8
    step = 1e-4 * torch.randn_like(x)
    change = (gradient(x + step, v) - gradient(x - step, v)) / 2
    assert relative(hessian @ step[0].detach(), change[0].detach()) < 1e-4


def test_third_derivatives_too():
    node = cheapest(0.5, start=2, in_dims=None)

    def value(c: Tensor) -> Tensor:
        return node(torch.stack([c, torch.zeros_like(c)]))[0]

    c = torch.tensor(0.7, dtype=DOUBLE)
    third = torch.func.grad(torch.func.grad(torch.func.grad(value)))(c)
    second = torch.func.grad(torch.func.grad(value))
    assert third == pytest.approx(float((second(c + 1e-4) - second(c - 1e-4)) / 2e-4), rel=1e-5)


def chain(structure: str, length: int = 40) -> DeclarativeNode:
    return DeclarativeNode(
        lambda x, u: (u - x).square().sum() / 2,
        lambda _, u: u[:1],
        lambda _, u: torch.cat([u[1:] - u[:-1] - 0.1, u[:-1] - u[1:] - 0.1]),
        start=length,
        structure=structure,
        gradient=Smoothed(1e-2),
    )


def test_sparse_problems():
    x = torch.randn(2, 40, dtype=DOUBLE).cumsum(-1).requires_grad_()
    v = torch.randn(2, 40, dtype=DOUBLE)
    dense, sparse = (gradients(chain(structure)(x), (x,), v)[0] for structure in ("dense", "sparse"))
    assert relative(sparse, dense) < 1e-8
    mapped = torch.vmap(torch.func.grad(lambda x, v: (chain("sparse")(x[None])[0] * v).sum()))(x.detach(), v)
    assert relative(mapped, dense) < 1e-8


def test_masked_problems_get_no_gradient():
    x = curved_inputs(3)
    x[1, 4] = 100.0  # a sum that the ball does not allow
    x.requires_grad_()
    v = torch.randn(3, 4, dtype=DOUBLE)
    with pytest.warns(NumericalWarning, match="1 of 3 problems"):
        y = curved(0.1, on_failure="mask")(x)
    (g,) = gradients(y, (x,), v)
    (good,) = gradients(curved(0.1)(x[[0, 2]]), (x,), v[[0, 2]])
    assert not g[1].any()
    assert relative(g, good) < 1e-9


@pytest.mark.parametrize("options", [{"record": True}, {"solver": "scipy"}])
def test_recorded_and_by_another_solver(options):
    x = curved_inputs(2).requires_grad_()
    v = torch.randn(2, 4, dtype=DOUBLE)
    found, expected = (gradients(curved(0.1, **more)(x), (x,), v)[0] for more in (options, {}))
    assert relative(found, expected) < 1e-8


def test_several_unknowns_and_a_module():
    class Cost(nn.Module):
        def __init__(self):
            super().__init__()
            self.price = nn.Parameter(torch.tensor([1.0, 1.5, 3.0], dtype=DOUBLE))

        def forward(self, _, u):
            return self.price @ u["share"]

    def one(barrier):
        return DeclarativeNode(
            Cost(),
            lambda x, u: {"all": u["share"].sum() - x},
            bounds=({"share": 0.0}, None),
            start={"share": 3},
            gradient=Smoothed(barrier),
        )

    node = one(0.1)
    node(torch.ones(1, dtype=DOUBLE))["share"][0, 0].backward()
    expected = differences(lambda c: central_simplex(c, 0.1), np.array([1.0, 1.5, 3.0]))[0]
    assert relative(node.objective.price.grad, torch.tensor(expected)) < 1e-6


def test_multipliers_have_a_smoothed_gradient_too():
    x = torch.tensor([0.2, 1.0], dtype=DOUBLE, requires_grad=True)
    node = DeclarativeNode(
        lambda x, u: (u - x).square() / 2, inequality=lambda _, u: u, start=(), gradient=Smoothed(0.3)
    )
    (g,) = torch.autograd.grad(node.solve(x).inequality_multipliers.sum(), x)  # y - s = x with s y = 0.3
    y = (x + (x * x + 1.2).sqrt()) / 2
    assert torch.allclose(g, y / (y + 0.3 / y), rtol=1e-10)


def test_a_ready_made_layer():
    generator = torch.Generator().manual_seed(3)
    q = torch.randn(2, 3, dtype=DOUBLE, generator=generator).requires_grad_()
    Q, G, h = torch.eye(3, dtype=DOUBLE).repeat(2, 1, 1), -torch.eye(3, dtype=DOUBLE).repeat(2, 1, 1), torch.zeros(2, 3)
    A, b = torch.ones(2, 1, 3, dtype=DOUBLE), torch.ones(2, 1, dtype=DOUBLE)
    node = DeclarativeNode(
        lambda q, u: u.square().sum() / 2 + q @ u, lambda _, u: u.sum() - 1, lambda _, u: -u, start=3
    )
    v = torch.randn(2, 3, dtype=DOUBLE)
    (g,) = gradients(QuadraticProgram(gradient=Smoothed(0.1))(Q, q, A, b, G, h.double()), (q,), v)
    (expected,) = gradients(node.with_gradient(Smoothed(0.1))(q), (q,), v)
    assert relative(g, expected) < 1e-9


def test_where_there_is_no_central_point_the_exact_gradient_is_taken_and_told():
    """Two inequalities that leave a single point: no slack can be positive."""
    node = DeclarativeNode(
        lambda x, u: (u - x).square().sum(), inequality=lambda _, u: torch.stack([u[0], -u[0]]), start=2
    )
    x = torch.tensor([[0.5, 2.0]], dtype=DOUBLE, requires_grad=True)
    y = node.with_gradient(Smoothed(0.1))(x)
    with pytest.warns(NumericalWarning, match="no point with a barrier of 0.1 was found.*exact gradient"):
        (g,) = gradients(y, (x,), torch.ones(1, 2, dtype=DOUBLE))
    assert torch.allclose(g, torch.tensor([[0.0, 1.0]], dtype=DOUBLE), atol=1e-6)


@pytest.mark.parametrize("barrier", [0, -1.0, float("nan"), float("inf"), "0.1", None, True, torch.tensor(0.1)])
def test_a_barrier_that_is_none(barrier):
    with pytest.raises(ValueError, match="barrier must be a positive number, in units of the objective"):
        Smoothed(barrier)


def test_a_problem_with_several_minima_stays_at_its_own():
    """Minima of a concave function at different corners: the path must not lead from one to another."""
    node = DeclarativeNode(
        lambda x, u: -(u - 0.1 * x).square().sum() / 2,
        inequality=lambda x, u: torch.cat([u - 1 - 0.1 * x, -1 - 0.2 * x - u]),
        start=lambda x: 0.7 * torch.sign(x),
    )
    x = torch.randn(20, 3, dtype=DOUBLE, requires_grad=True)
    y = node(x)
    assert len({tuple(row) for row in y.sign().tolist()}) > 3
    v = torch.randn_like(y)
    exact, smoothed = (gradients(node.with_gradient(rule)(x), (x,), v)[0] for rule in ("exact", Smoothed(1e-4)))
    assert relative(smoothed, exact) < 1e-3


def test_where_some_central_points_are_missing_the_others_are_unharmed():
    """The second problem has no room inside; its gradient is the exact one, also in a second differentiation."""
    node = DeclarativeNode(
        lambda x, u: (u - x[:2]).square().sum() / 2,
        inequality=lambda x, u: torch.stack([u[0] - x[2], -u[0] - x[2]]),
        start=2,
        gradient=Smoothed(0.1),
    )
    x = torch.tensor([[0.5, 2.0, 1.0], [0.5, 2.0, 0.0]], dtype=DOUBLE, requires_grad=True)
    y = node(x)
    with pytest.warns(NumericalWarning, match="1 problem.* of the batch: no point with a barrier"):
        (g,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    (good,) = gradients(node(x[:1]), (x,), torch.ones(1, 2, dtype=DOUBLE))
    assert torch.allclose(g[0], good[0])
    assert torch.allclose(g[1, :2], torch.tensor([0.0, 1.0], dtype=DOUBLE), atol=1e-6)
    with pytest.warns(NumericalWarning, match="no point with a barrier"):
        (second,) = torch.autograd.grad(g[0, 0], x)
    assert second.isfinite().all()
    assert second[0].abs().max() > 1e-3


@pytest.mark.parametrize("layer", [SimplexProjection, BallProjection])
def test_layers_with_a_formula_are_smoothed_like_their_twins(layer):
    x = 2 * torch.randn(3, 4, dtype=DOUBLE)
    x.requires_grad_()
    v = torch.randn(3, 4, dtype=DOUBLE)
    made = layer(gradient=Smoothed(0.05))
    fast, slow = (gradients(one(x), (x,), v)[0] for one in (made, made.generic().with_gradient(Smoothed(0.05))))
    assert relative(fast, slow) < 1e-8
