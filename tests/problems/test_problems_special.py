"""What is particular to single layers: formulas, degenerate inputs, failures."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from declarative import NumericalWarning, SolverError, Status
from problems import (
    BallProjection,
    Eigenvectors,
    EntropicSimplex,
    EqualityQP,
    LeastSquares,
    QuadraticProgram,
    RobustPooling,
    RotationProjection,
    SimplexProjection,
    SphereProjection,
)

DOUBLE = torch.float64


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=DOUBLE)


# The sphere.


def test_sphere_rules_follow_their_formulas():
    x, v = randn(3, 4).requires_grad_(), randn(3, 4)
    length = torch.linalg.vector_norm(x.detach(), dim=-1, keepdim=True)
    y = x.detach() / length
    expected = {
        "exact": (v - y * (y * v).sum(-1, keepdim=True)) / length,
        "curvature": v / length,
        "unconstrained": v,
        "identity": v,
    }
    for rule, formula in expected.items():
        (grad,) = torch.autograd.grad((SphereProjection(gradient=rule)(x) * v).sum(), x)
        assert (grad - formula).abs().max() < 1e-14, rule


def test_centre_of_the_sphere_is_a_failure():
    x = torch.tensor([[0.0, 0.0], [3.0, 4.0]], requires_grad=True)
    with pytest.raises(SolverError, match="no nearest point") as caught:
        SphereProjection()(x)
    assert caught.value.solution.status == [Status.SINGULAR, Status.CONVERGED]
    with pytest.warns(NumericalWarning):
        y = SphereProjection(on_failure="mask")(x)
    (grad,) = torch.autograd.grad(y[:, 0].sum(), x)
    assert torch.equal(grad[0], torch.zeros(2))
    assert (grad[1] - torch.tensor([0.1280, -0.0960])).abs().max() < 1e-6


@pytest.mark.parametrize("size", [1e-200, 1e200])
def test_sphere_of_extreme_inputs(size: float):
    x = torch.tensor([[3.0, 4.0]], dtype=DOUBLE) * size
    assert (SphereProjection()(x) - torch.tensor([[0.6, 0.8]], dtype=DOUBLE)).abs().max() < 1e-15


# Eigenvectors.


def test_eigenvectors_are_those_of_torch():
    X = randn(3, 6, 6)
    expected = torch.linalg.eigh((X + X.mT) / 2)
    solution = Eigenvectors().solve(X)
    assert torch.equal(solution.y, expected.eigenvectors)
    assert (solution.multipliers + expected.eigenvalues).abs().max() < 1e-14
    assert torch.equal(Eigenvectors(2)(X), expected.eigenvectors[..., -2:])
    assert torch.equal(Eigenvectors(2, largest=False)(X), expected.eigenvectors[..., :2])


def test_eigenvector_gradient_is_that_of_torch_and_symmetric():
    X, v = randn(2, 5, 5).requires_grad_(), randn(2, 5, 5)
    (expected,) = torch.autograd.grad((torch.linalg.eigh((X + X.mT) / 2)[1] * v).sum(), X)
    for rule in ("exact", "curvature"):
        (grad,) = torch.autograd.grad((Eigenvectors(gradient=rule)(X) * v).sum(), X)
        assert (grad - expected).abs().max() < 1e-11
        assert (grad - grad.mT).abs().max() < 1e-14


def test_unconstrained_eigenvectors_use_the_pseudo_inverse():
    root, v = randn(2, 5, 3), randn(2, 5, 1)
    X = (root @ root.mT).requires_grad_()  # of rank 3
    y = Eigenvectors(1, gradient="unconstrained")(X)
    (grad,) = torch.autograd.grad((y * v).sum(), X)
    z = -torch.linalg.pinv(X.detach(), rtol=1e-10) @ v
    u = y.detach()
    assert (grad - (z @ u.mT + u @ z.mT) / 2).abs().max() < 1e-10


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
def test_repeated_eigenvalues_have_finite_gradients_and_a_warning(dtype: torch.dtype):
    basis = torch.linalg.qr(randn(4, 4))[0].to(dtype)
    repeated = basis @ torch.diag(torch.tensor([1.0, 2.0, 2.0, 5.0], dtype=dtype)) @ basis.mT
    X = torch.stack([repeated, torch.diag(torch.arange(4, dtype=dtype))]).requires_grad_()
    y = Eigenvectors()(X)
    with pytest.warns(NumericalWarning, match="1 problem.*repeated"):
        (grad,) = torch.autograd.grad((y * torch.randn_like(y)).sum(), X)
    assert grad.isfinite().all()
    assert grad.abs().max() < 100
    top = Eigenvectors(1)(X)  # a simple eigenvalue beside the repeated one: nothing to warn of
    assert torch.autograd.grad(top.sum(), X)[0].isfinite().all()


def test_eigenvectors_of_one_by_one_and_of_zero():
    X = torch.zeros(1, 1, 1, requires_grad=True)
    assert torch.autograd.grad(Eigenvectors()(X).sum(), X)[0] == 0
    zero = torch.zeros(1, 3, 3, requires_grad=True)
    with pytest.warns(NumericalWarning, match="repeated"):
        assert torch.equal(torch.autograd.grad(Eigenvectors()(zero).sum(), zero)[0], torch.zeros(1, 3, 3))


def test_eigenvectors_refuse():
    with pytest.raises(ValueError, match="square"):
        Eigenvectors()(torch.ones(2, 3, 4))
    with pytest.raises(ValueError, match="k is 4"):
        Eigenvectors(4)(torch.ones(2, 3, 3))
    with pytest.raises(ValueError, match="at least 1"):
        Eigenvectors(0)
    with pytest.raises(TypeError, match="k must be"):
        Eigenvectors(1.5)


@pytest.mark.parametrize("layer", [Eigenvectors(1, on_failure="mask"), SphereProjection(on_failure="mask")])
def test_a_batch_of_failures_only_has_no_gradient(layer: torch.nn.Module):
    x = torch.full((2, 3, 3) if isinstance(layer, Eigenvectors) else (2, 3), torch.nan, requires_grad=True)
    with pytest.warns(NumericalWarning):
        y = layer(x)
    assert (torch.autograd.grad(y.sum(), x)[0] == 0).all()


# Simplex and balls.


def test_softmax_is_softmax():
    x = randn(3, 5).requires_grad_()
    v = randn(3, 5)
    (expected,) = torch.autograd.grad(((x / 0.5).softmax(-1) * v).sum(), x)
    y = EntropicSimplex(0.5)(x)
    assert (y - (x / 0.5).softmax(-1)).abs().max() < 1e-15
    assert (torch.autograd.grad((y * v).sum(), x)[0] - expected).abs().max() < 1e-14


def test_softmax_that_underflows_is_differentiable():
    x = torch.tensor([[0.0, -3000.0, -1.0]], dtype=DOUBLE, requires_grad=True)
    (grad,) = torch.autograd.grad(EntropicSimplex()(x)[0, 0], x, create_graph=True)
    assert torch.autograd.grad(grad.square().sum(), x)[0].isfinite().all()
    assert abs(grad[0, 1]) < 1e-100


def test_simplex_projection_is_nearest_and_shift_invariant():
    x = 3 * randn(5, 6)
    y = SimplexProjection()(x)
    others = torch.rand(1000, 5, 6, dtype=DOUBLE) ** 4
    others = others / others.sum(-1, keepdim=True)
    assert ((others - x).square().sum(-1) >= (y - x).square().sum(-1)).all()
    assert (SimplexProjection()(x + 1e6) - y).abs().max() < 1e-9
    inside = x.softmax(-1)
    assert (SimplexProjection()(inside) - inside).abs().max() < 1e-15


def test_kinks_warn():
    for layer, x in (
        (SimplexProjection(), [[1.0, 0.0]]),
        (BallProjection(), [[0.6, 0.8]]),
        (BallProjection(norm=math.inf), [[1.0, 0.2]]),
    ):
        point = torch.tensor(x, dtype=DOUBLE, requires_grad=True)
        with pytest.warns(NumericalWarning, match="kink"):
            layer(point)


def test_ball_refuses():
    with pytest.raises(ValueError, match="norm"):
        BallProjection(norm=1)
    with pytest.raises(ValueError, match="radius"):
        BallProjection(0.0)


# Quadratic programs.


def program(batch: int, m: int, p: int, n: int) -> tuple[Tensor, ...]:
    root, inside, G, A = randn(batch, m, m), randn(batch, m, 1), randn(batch, n, m), randn(batch, p, m)
    h = (G @ inside).squeeze(-1) + torch.rand(batch, n, dtype=DOUBLE)
    return root @ root.mT / m, randn(batch, m), A, (A @ inside).squeeze(-1), G, h


@pytest.mark.parametrize("sizes", [(20, 8, 2, 12), (4, 25, 5, 40), (1, 60, 10, 90)])
def test_quadratic_program_satisfies_its_conditions(sizes: tuple[int, ...], either_way: str):  # noqa: ARG001
    Q, q, A, b, G, h = program(*sizes)
    solution = QuadraticProgram().solve(Q, q, A, b, G, h)
    u, y, z = solution.y, solution.multipliers, solution.inequality_multipliers
    product = torch.einsum
    dual = product("bij,bj->bi", Q, u) + q - product("bij,bi->bj", A, y) + product("bij,bi->bj", G, z)
    slack = h - product("bij,bj->bi", G, u)
    assert dual.abs().max() < 1e-10
    assert (product("bij,bj->bi", A, u) - b).abs().max() < 1e-10
    assert slack.min() > -1e-10
    assert z.min() >= 0
    assert (slack * z).abs().max() < 1e-10
    assert (z > 0).any()


def test_quadratic_program_with_a_singular_objective():
    """A linear program: the corner of a box."""
    G = torch.cat([torch.eye(3), -torch.eye(3)]).to(DOUBLE)
    q = torch.tensor([[1.0, -2.0, 0.5]], dtype=DOUBLE, requires_grad=True)
    y = QuadraticProgram()(torch.zeros(3, 3, dtype=DOUBLE), q, None, None, G, torch.ones(6, dtype=DOUBLE))
    assert (y - torch.tensor([[-1.0, 1.0, -1.0]], dtype=DOUBLE)).abs().max() < 1e-12
    assert torch.autograd.grad(y.sum(), q)[0].abs().max() < 1e-12


def test_units_do_not_matter():
    Q, q, A, b, G, h = program(10, 6, 1, 12)
    expected = QuadraticProgram().solve(Q, q, A, b, G, h)
    scaled = QuadraticProgram().solve(1e-6 * Q, 1e-6 * q, 1e4 * A, 1e4 * b, 1e-3 * G, 1e-3 * h)
    assert (scaled.y - expected.y).abs().max() < 1e-9
    factor = 1e-6 / 1e-3
    difference = scaled.inequality_multipliers / factor - expected.inequality_multipliers
    assert difference.abs().max() < 1e-9


def test_quadratic_program_without_constraints_and_with_equalities_alone():
    Q, q, A, b = (x[:2] for x in program(2, 4, 2, 1)[:4])
    Q = Q + torch.eye(4, dtype=DOUBLE)
    free = QuadraticProgram()(Q, q)
    assert (torch.einsum("bij,bj->bi", Q, free) + q).abs().max() < 1e-12
    assert (QuadraticProgram()(Q, q, A, b) - EqualityQP()(Q, q, A, b)).abs().max() < 1e-12


def test_quadratic_programs_that_fail():
    eye, ones, G = torch.eye(2), torch.ones(1, 2), torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    cases = {
        Status.INFEASIBLE: (eye, ones, None, None, G, -torch.ones(2)),
        Status.UNBOUNDED: (0 * eye, ones, None, None, G, torch.ones(2)),
        Status.NOT_OPTIMAL: (-eye, ones, None, None, G, torch.ones(2)),
    }
    for status, xs in cases.items():
        with pytest.raises(SolverError) as caught:
            QuadraticProgram()(*xs)
        assert caught.value.solution.status == [status]
    twice = torch.tensor([[1.0, 1.0], [1.0, 1.0]])
    with pytest.raises(SolverError) as caught:
        EqualityQP()(eye, ones, twice, torch.tensor([1.0, 2.0]))
    assert caught.value.solution.status == [Status.INFEASIBLE]


def test_redundant_equalities_warn_where_the_gradient_is_one_of_many():
    q = torch.ones(1, 2, dtype=DOUBLE, requires_grad=True)
    b = torch.ones(2, dtype=DOUBLE, requires_grad=True)
    A, eye = torch.ones(2, 2, dtype=DOUBLE), torch.eye(2, dtype=DOUBLE)
    with pytest.warns(NumericalWarning, match="singular"):
        torch.autograd.grad(EqualityQP()(eye, q, A, b)[0, 0], b)
    (grad,) = torch.autograd.grad(EqualityQP()(eye, q, A, b.detach())[0, 0], q)
    assert (grad - torch.tensor([[-0.5, 0.5]], dtype=DOUBLE)).abs().max() < 1e-12


def test_quadratic_programs_refuse():
    eye, q = torch.eye(2), torch.ones(1, 2)
    with pytest.raises(ValueError, match="G and h belong together"):
        QuadraticProgram()(eye, q, None, None, eye)
    with pytest.raises(ValueError, match="batch dimension"):
        QuadraticProgram()(eye, q[0])
    with pytest.raises(ValueError, match="m is 2"):
        EqualityQP()(eye, q, torch.ones(1, 3), torch.ones(1))
    with pytest.raises(TypeError, match="2 inputs"):
        EqualityQP()(eye, q)


# Least squares, pooling, rotations.


def test_least_squares_against_torch():
    A, b = randn(3, 7, 4), randn(3, 7)
    expected = torch.linalg.lstsq(A, b.unsqueeze(-1)).solution.squeeze(-1)
    assert (LeastSquares()(A, b) - expected).abs().max() < 1e-12
    weighted = LeastSquares()(A, b, torch.tensor([1.0, 1, 1, 1, 1, 0, 0], dtype=DOUBLE))
    assert (weighted - LeastSquares()(A[:, :5], b[:, :5])).abs().max() < 1e-11


def test_least_squares_of_deficient_rank():
    A = torch.ones(1, 3, 2, dtype=DOUBLE)
    b = torch.tensor([[1.0, 2.0, 3.0]], dtype=DOUBLE, requires_grad=True)
    y = LeastSquares()(A, b)
    assert (y - 1).abs().max() < 1e-12
    with pytest.warns(NumericalWarning, match="singular"):
        (grad,) = torch.autograd.grad(y.sum(), b)
    assert (grad - 1 / 3).abs().max() < 1e-12


def test_least_squares_refuses():
    A, b = torch.ones(2, 3, 2), torch.ones(2, 3)
    with pytest.raises(ValueError, match="negative"):
        LeastSquares()(A, b, -b)
    with pytest.raises(ValueError, match="p is 3 for the inputs before it"):
        LeastSquares()(A, torch.ones(2, 4))
    with pytest.raises(ValueError, match="ridge"):
        LeastSquares(-1.0)


@pytest.mark.parametrize("penalty", ["huber", "pseudo-huber", "welsch", "truncated"])
def test_pooling_finds_the_lowest_point_of_a_grid(penalty: str):
    x = torch.cat([randn(6, 8), randn(6, 3) + 8], -1)
    layer = RobustPooling(penalty, 1.3)
    solution = layer.solve(x)
    grid = torch.linspace(-5, 12, 2001, dtype=DOUBLE)
    objective = layer.spec.plan.problem.objective
    lowest = torch.stack([torch.stack([objective(row, u) for u in grid]).min() for row in x])
    assert (solution.objective <= lowest + 1e-12).all()
    assert (solution.objective >= lowest - 1e-2).all()


def test_pooling_without_a_point_in_reach():
    x = torch.tensor([[-9.0, 9.0]], dtype=DOUBLE, requires_grad=True)
    y = RobustPooling("huber")(x)
    with pytest.warns(NumericalWarning, match="singular"):
        (grad,) = torch.autograd.grad(y.sum(), x)
    assert (grad == 0).all()


def test_pooling_refuses():
    with pytest.raises(ValueError, match="penalty"):
        RobustPooling("cubic")
    with pytest.raises(ValueError, match="scale"):
        RobustPooling("huber", 0.0)


@pytest.mark.parametrize("d", [1, 2, 3, 4])
def test_rotations_are_rotations_and_nearest(d: int):
    X = randn(20, d, d)
    R = RotationProjection()(X)
    assert (R.mT @ R - torch.eye(d, dtype=DOUBLE)).abs().max() < 1e-13
    assert (torch.linalg.det(R) - 1).abs().max() < 1e-13
    others = torch.linalg.matrix_exp(0.3 * (lambda S: S - S.mT)(randn(200, 20, d, d))) @ R
    assert ((others - X).square().sum((-2, -1)) >= (R - X).square().sum((-2, -1)) - 1e-12).all()


def test_rotation_that_is_not_unique_warns():
    X = torch.diag(torch.tensor([1.0, 0.0, 0.0], dtype=DOUBLE)).unsqueeze(0).requires_grad_()
    R = RotationProjection()(X)
    with pytest.warns(NumericalWarning, match="singular"):
        assert torch.autograd.grad(R.sum(), X)[0].isfinite().all()


@pytest.mark.parametrize(
    "layer", [SphereProjection(), Eigenvectors(), SimplexProjection(), RotationProjection()], ids=repr
)
def test_one_input_is_one_input(layer: torch.nn.Module):
    x = torch.eye(3).unsqueeze(0) if layer.required == ("X",) else torch.ones(1, 3)
    with pytest.raises(TypeError, match="one input"):
        layer(x, x)


def test_layers_say_what_they_are():
    assert repr(SphereProjection(gradient="curvature")) == "SphereProjection(solver=Normalise, gradient=Curvature)"


@pytest.mark.parametrize("pull", [1e-3, 1e-5, 1e-6, 1e-7, 1e-9])
def test_a_constraint_that_hardly_pulls_is_still_active(pull: float, either_way: str):  # noqa: ARG001
    eye = torch.eye(3, dtype=DOUBLE)
    q = -torch.tensor([[1.5 - pull, 2.0, 1.9]], dtype=DOUBLE)
    bounds, limits = torch.cat([eye, -eye]), torch.tensor([1.0, 1.0, 1.0, 0.0, 0.0, 0.0], dtype=DOUBLE)
    total = torch.ones(1, 1, 3, dtype=DOUBLE), torch.full((1,), 0.9, dtype=DOUBLE)
    solution = QuadraticProgram().solve(eye, q, *total, bounds, limits)
    assert (solution.y - torch.tensor([[0.0, 0.5, 0.4]], dtype=DOUBLE)).abs().max() < 1e-12
    assert abs(solution.inequality_multipliers[0, 3] - pull) < 1e-12
