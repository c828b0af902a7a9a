"""Inputs of any size: derivatives relative to it, against closed forms, where differences of large numbers cancel."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import pytest
import torch
from torch import Tensor

from declarative import NumericalWarning, SolverError, Status
from problems import (
    BallProjection,
    Eigenvectors,
    EntropicSimplex,
    LeastSquares,
    RotationProjection,
    SimplexProjection,
    SphereProjection,
)

from ..support.problem_table import RULES

DOUBLE, SINGLE = torch.float64, torch.float32
SIZES = [*((DOUBLE, 10.0**k) for k in range(-30, 31, 5)), *((SINGLE, 10.0**k) for k in range(-15, 16, 3))]
each_size = pytest.mark.parametrize(("dtype", "size"), SIZES, ids=str)


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=DOUBLE)


def error(found: Tensor, expected: Tensor) -> float:
    """Relative to the largest entry of each problem."""
    difference = (found.double() - expected).abs().flatten(1).amax(-1)
    return (difference / expected.abs().flatten(1).amax(-1)).max().item()


def derivative(layer: torch.nn.Module, x: Tensor, v: Tensor) -> Tensor:
    x = x.clone().requires_grad_()
    return torch.autograd.grad(layer(x), x, v.to(x.dtype))[0]


@each_size
@pytest.mark.parametrize("rule", RULES)
def test_sphere(dtype: torch.dtype, size: float, rule: str):
    x, v = (size * randn(4, 3)).to(dtype), randn(4, 3).to(dtype).double()
    direction = (x.double() / size) / torch.linalg.vector_norm(x.double() / size, dim=-1, keepdim=True)
    length = torch.linalg.vector_norm(x.double() / size, dim=-1, keepdim=True) * size
    expected = {
        "exact": (v - direction * (direction * v).sum(-1, keepdim=True)) / length,
        "curvature": v / length,
        "unconstrained": v,
        "identity": v,
    }
    assert error(derivative(SphereProjection(gradient=rule), x, v), expected[rule]) < 200 * torch.finfo(dtype).eps
    assert error(SphereProjection()(x), direction) < 10 * torch.finfo(dtype).eps


@pytest.mark.parametrize(("dtype", "size"), [(DOUBLE, 1e-30), (DOUBLE, 1e30), (SINGLE, 1e-9), (SINGLE, 1e9)], ids=str)
def test_second_derivative_of_the_sphere(dtype: torch.dtype, size: float):
    unit, v, w = (randn(2, 3).to(dtype) for _ in range(3))

    def second(function: Callable[[Tensor], Tensor], x: Tensor, v: Tensor, w: Tensor) -> Tensor:
        x = x.clone().requires_grad_()
        (first,) = torch.autograd.grad(function(x), x, v, create_graph=True)
        return torch.autograd.grad(first, x, w)[0]

    expected = second(lambda x: x / x.square().sum(-1, keepdim=True).sqrt(), *(x.double() for x in (unit, v, w)))
    found = second(SphereProjection(), unit * size, v, w)
    assert error(found, expected / size / size) < 1e3 * torch.finfo(dtype).eps


@pytest.mark.parametrize(
    ("dtype", "size"), [(DOUBLE, 1e-300), (DOUBLE, 1e300), (SINGLE, 1e-37), (SINGLE, 1e37)], ids=str
)
def test_sphere_at_the_ends_of_the_numbers(dtype: torch.dtype, size: float):
    x = torch.tensor([[3.0, 4.0]], dtype=DOUBLE).mul(size / 4).to(dtype)
    expected = torch.tensor([[0.1280, -0.0960]], dtype=DOUBLE) / (size / 4)
    assert error(derivative(SphereProjection(), x, torch.tensor([[1.0, 0.0]])), expected) < 100 * torch.finfo(dtype).eps


@pytest.mark.parametrize("dtype", [DOUBLE, SINGLE])
def test_a_point_whose_inverse_overflows_is_the_centre(dtype: torch.dtype):
    x = torch.full((1, 3), torch.finfo(dtype).tiny / 64, dtype=dtype)
    with pytest.raises(SolverError) as caught:
        SphereProjection()(x)
    assert caught.value.solution.status == [Status.SINGULAR]


@each_size
@pytest.mark.parametrize("d", [2, 3])
def test_rotation(dtype: torch.dtype, size: float, d: int):
    unit, v = randn(6, d, d), randn(6, d, d).to(dtype)
    unit[:, 0] *= torch.linalg.det(unit).sign().unsqueeze(-1)  # so that the orthogonal factor is a rotation
    unit = unit.to(dtype).double()
    factors = unit.clone().requires_grad_()
    U, _, Vh = torch.linalg.svd(factors)
    (expected,) = torch.autograd.grad(U @ Vh, factors, v.double())
    found = derivative(RotationProjection(), (unit * size).to(dtype), v).double()
    assert error(found, expected / size) < 1e4 * torch.finfo(dtype).eps
    approximate = derivative(RotationProjection(gradient="curvature"), (unit * size).to(dtype), v)
    T = (U @ Vh).mT @ unit
    assert error(approximate, torch.linalg.solve(T, v.double().mT).mT.detach() / size) < 1e4 * torch.finfo(dtype).eps


@each_size
@pytest.mark.parametrize("norm", [2, float("inf")])
def test_ball_in_units_of_any_size(dtype: torch.dtype, size: float, norm: float):
    unit, v = 2 * randn(8, 3), randn(8, 3).to(dtype)
    x, radius = (unit * size).to(dtype), torch.tensor(size, dtype=dtype)
    point = unit.clone().requires_grad_()
    if norm == 2:
        reference = point / torch.linalg.vector_norm(point, dim=-1, keepdim=True).clamp(min=1.0)
    else:
        reference = point.clamp(-1.0, 1.0)
    (expected,) = torch.autograd.grad(reference, point, v.double())
    layer = BallProjection(radius, norm=norm)
    assert error(layer(x) / size, reference) < 100 * torch.finfo(dtype).eps
    found = derivative(layer, x, v).double()
    assert (found - expected).abs().max() < 200 * torch.finfo(dtype).eps * expected.abs().max()


@pytest.mark.parametrize(("dtype", "size"), [(SINGLE, 1e20), (SINGLE, 1e37), (DOUBLE, 1e200)], ids=str)
def test_a_point_far_outside_the_ball(dtype: torch.dtype, size: float):
    x = torch.tensor([[3.0, 4.0]], dtype=DOUBLE).mul(size / 4).to(dtype)
    assert error(BallProjection()(x), torch.tensor([[0.6, 0.8]], dtype=DOUBLE)) < 10 * torch.finfo(dtype).eps
    expected = torch.tensor([[0.1280, -0.0960]], dtype=DOUBLE) / (size / 4)
    assert error(derivative(BallProjection(), x, torch.tensor([[1.0, 0.0]])), expected) < 100 * torch.finfo(dtype).eps


@each_size
def test_entropic_simplex_and_eigenvectors_are_homogeneous(dtype: torch.dtype, size: float):
    """The same solution when x and the temperature, or the matrix, are scaled; the derivative is scaled back."""
    x, v, X, V = randn(4, 5), randn(4, 5), randn(3, 4, 4), randn(3, 4, 1)
    eps = torch.finfo(dtype).eps
    expected = derivative(EntropicSimplex(), x, v)
    assert error(derivative(EntropicSimplex(size), (x * size).to(dtype), v), expected / size) < 100 * eps
    X = X + X.mT + torch.diag(torch.tensor([0.0, 0.0, 0.0, 9.0], dtype=DOUBLE))
    sign = Eigenvectors(1)(X)[:, -1:].sign()
    found = Eigenvectors(1)((X * size).to(dtype))[:, -1:].sign().double()
    scaled = derivative(Eigenvectors(1), (X * size).to(dtype), V * found)
    assert error(scaled, derivative(Eigenvectors(1), X, V * sign) / size) < 1e3 * eps


@each_size
def test_simplex_of_large_and_of_small_scores(dtype: torch.dtype, size: float):
    x, v = (randn(4, 5) * size).to(dtype), randn(4, 5)
    y = SimplexProjection()(x)
    free = (y > 0).double()
    assert (y.sum(-1) - 1).abs().max() < 10 * torch.finfo(dtype).eps
    expected = free * (v - (free * v).sum(-1, keepdim=True) / free.sum(-1, keepdim=True))
    assert (derivative(SimplexProjection(), x, v) - expected).abs().max() < 20 * torch.finfo(dtype).eps


# Least squares: exact arithmetic is the truth.


def exactly(A: Tensor, b: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    """y and the gradients of v' y by A and b, from the normal equations in rational numbers."""
    a = [[Fraction(x) for x in row] for row in A.tolist()]
    right, weights = [Fraction(x) for x in b.tolist()], [Fraction(x) for x in v.tolist()]
    n, m = len(a), len(a[0])
    gram = [[sum(a[k][i] * a[k][j] for k in range(n)) for j in range(m)] for i in range(m)]
    y = eliminate(gram, [sum(a[k][i] * right[k] for k in range(n)) for i in range(m)])
    z = eliminate(gram, weights)
    of_b = [sum(a[k][i] * z[i] for i in range(m)) for k in range(n)]
    left = [right[k] - sum(a[k][i] * y[i] for i in range(m)) for k in range(n)]
    of_a = [[left[k] * z[i] - of_b[k] * y[i] for i in range(m)] for k in range(n)]
    return tuple(
        torch.tensor([x], dtype=DOUBLE)
        for x in ([*map(float, y)], [[*map(float, row)] for row in of_a], [*map(float, of_b)])
    )


def eliminate(matrix: list[list[Fraction]], right: list[Fraction]) -> list[Fraction]:
    rows = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    m = len(rows)
    for i in range(m):
        for j in range(m):
            if j != i:
                factor = rows[j][i] / rows[i][i]
                rows[j] = [x - factor * y for x, y in zip(rows[j], rows[i], strict=True)]
    return [rows[i][m] / rows[i][i] for i in range(m)]


def ill_conditioned(condition: float, n: int = 7, m: int = 3) -> Tensor:
    left, right = torch.linalg.qr(randn(n, m))[0], torch.linalg.qr(randn(m, m))[0]
    values = torch.logspace(0, -torch.log10(torch.tensor(condition)).item(), m, dtype=DOUBLE)
    return left @ torch.diag(values) @ right


@pytest.mark.parametrize("condition", [1e2, 1e5, 1e7])
@pytest.mark.parametrize("rule", ["exact", "unconstrained"])
def test_least_squares_loses_digits_with_the_condition_number_and_not_its_square(condition: float, rule: str):
    A, b, v = ill_conditioned(condition), randn(7), randn(3)
    y, of_A, of_b = exactly(A, b, v)
    leaves = A.unsqueeze(0).requires_grad_(), b.unsqueeze(0).requires_grad_()
    found = LeastSquares(gradient=rule)(*leaves)
    grads = torch.autograd.grad(found, leaves, v.unsqueeze(0))
    limit = 30 * condition * torch.finfo(DOUBLE).eps
    assert error(found, y) < limit
    assert error(grads[0], of_A) < limit
    assert error(grads[1], of_b) < limit


@pytest.mark.parametrize(("dtype", "condition"), [(DOUBLE, 1e9), (SINGLE, 1e5)], ids=str)
def test_least_squares_says_where_digits_are_lost(dtype: torch.dtype, condition: float):
    A = torch.stack([ill_conditioned(condition), ill_conditioned(10.0)]).to(dtype)
    b = randn(2, 7).to(dtype).requires_grad_()
    y = LeastSquares()(A, b)
    with pytest.warns(NumericalWarning, match="1 problem.*digits of the gradient are lost"):
        torch.autograd.grad(y.sum(), b)


def test_units_of_the_unknowns_of_least_squares_lose_no_digits():
    A, b, v = ill_conditioned(10.0), randn(7), randn(3)
    scaled = A * torch.tensor([2.0**-40, 1.0, 2.0**40], dtype=DOUBLE)
    _, _, of_b = exactly(scaled, b, v)
    leaf = b.unsqueeze(0).requires_grad_()
    (grad,) = torch.autograd.grad(LeastSquares()(scaled, leaf), leaf, v.unsqueeze(0))
    assert error(grad, of_b) < 1e-12
