"""What is affine or quadratic is proved to be so from its operations, and evaluated once in a search."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from declarative import DeclarativeNode, SolverError
from declarative.expansion import Constants, find_constants
from declarative.linear import DENSE
from declarative.linearity import is_affine, watched
from declarative.problem import Batch, Problem
from declarative.torchside import map_rows

DOUBLE = torch.float64
MATRIX = torch.tensor([[1.0, 2.0, 0.5], [0.0, -1.0, 3.0]], dtype=DOUBLE)


class Doubled(torch.autograd.Function):
    """A function whose graph does not tell what it does."""

    @staticmethod
    def forward(u):
        return u * u.detach().sign()

    @staticmethod
    def setup_context(ctx, inputs, output): ...

    @staticmethod
    def backward(_, grad):
        return grad

    @staticmethod
    def vmap(_, in_dims, u):
        return Doubled.apply(u), in_dims[0]


def without_gradient(u):
    with torch.no_grad():
        factor = u * 2
    return factor * u


def with_inner_gradient(u):
    return torch.func.grad(lambda u: u.pow(3).sum())(u).detach() * u


AFFINE = {
    "sum": lambda u: u.sum() - 1,
    "signs": lambda u: torch.cat([u - 1, -u, 1 - u, 2 * u / 3]),
    "matrix": lambda u: MATRIX @ u - 1,
    "rows": lambda u: torch.stack([MATRIX[0] @ u, u.dot(MATRIX[1]), (u * MATRIX[1]).sum()]),
    "parts": lambda u: u[1:] - u[:-1] + u[None, 0, ...] + u.flip(0)[:2],
    "shapes": lambda u: u.reshape(3, 1).expand(3, 2).mT.flatten().cumsum(0).unsqueeze(0).mean(0),
    "layer": lambda u: torch.nn.functional.linear(u, MATRIX),
    "constant": lambda u: u.new_ones(2) + 0 * u[:2],
    "unneeded": lambda u: MATRIX.exp().sum() * u,
    "einsum": lambda u: torch.einsum("ij,j->i", MATRIX, u),
}
NOT_AFFINE = {
    "square": lambda u: u.square().sum(),
    "product": lambda u: u * u.sum(),
    "quotient": lambda u: 1 / (1 + u.sum()),
    "ratio": lambda u: u / u.sum(),
    "quadratic form": lambda u: u[:2] @ MATRIX @ u,
    "exponential": lambda u: u.exp(),
    "absolute": lambda u: u.abs(),
    "where": lambda u: torch.where(u > 0, u, 2 * u),
    "mask": lambda u: (u > 0) * u,
    "mask as a number": lambda u: (u > 0).double() * u,
    "detached": lambda u: u.detach() * u,
    "sign": lambda u: u.sign() * u,
    "without gradient": without_gradient,
    "inner gradient": with_inner_gradient,
    "sorted": lambda u: u.sort().values,
    "largest": lambda u: u.amax(),
    "gathered": lambda u: u.gather(0, u.argsort()),
    "indexed": lambda u: u[u.argsort()],
    "whole numbers": lambda u: u.long() * u,
    "rounded": lambda u: u.round() + u,
    "clamped": lambda u: u.clamp(min=0.0),
    "relu": lambda u: u.relu(),
    "own function": lambda u: Doubled.apply(u),
    "norm": lambda u: u.norm(),
}


def proved(function) -> bool:
    u = torch.tensor([[0.3, -0.4, 0.5], [1.0, 2.0, -3.0]], dtype=DOUBLE, requires_grad=True)
    (value,), followed = watched(lambda: map_rows(lambda u: (function(u),), (0,), u))
    return followed and is_affine(value, u)


@pytest.mark.parametrize("name", AFFINE)
def test_what_is_affine_is_proved_to_be(name):
    assert proved(AFFINE[name])


@pytest.mark.parametrize("name", NOT_AFFINE)
def test_what_is_not_affine_is_not(name):
    """Also where a part depends on u in a way that autograd does not follow."""
    assert not proved(NOT_AFFINE[name])


def batch_of(objective, equality=None, size=4, seed=0) -> tuple[Batch, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(size, 3, dtype=DOUBLE, generator=generator)
    count = 0 if equality is None else equality(x[0], x[0]).numel()
    batch = Batch(Problem(objective, equality), (x,), (0,), size, torch.Size([3]), count, 0)
    return batch, torch.rand(size, 3, dtype=DOUBLE, generator=generator) + 0.5


def same(some, others):
    for one, two in zip(some, others, strict=True):
        assert torch.allclose(one, two, rtol=1e-13, atol=1e-13)


OBJECTIVES = {
    "quadratic": (lambda x, u: (u - x).square().sum() + u[0] * u[1], True),
    "form": (lambda x, u: u[:2] @ MATRIX @ u - x @ u, True),
    "linear": (lambda x, u: x @ u, True),
    "entropy": (lambda x, u: (u * u.log()).sum() - x @ u, False),
    "hinge": (lambda x, u: torch.where(u > x, u, 0.0).square().sum(), False),
}
CONSTRAINTS = {"none": None, "plane": lambda x, u: x @ u - 1, "matrix": lambda x, u: MATRIX @ u - x[:2]}


@pytest.mark.parametrize("constraint", CONSTRAINTS)
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_what_is_known_everywhere_is_what_is_found_there(objective, constraint):
    function, is_quadratic = OBJECTIVES[objective]
    batch, u = batch_of(function, CONSTRAINTS[constraint])
    knowing = batch.with_constants(u)
    assert knowing.constants is not None
    assert (knowing.constants.hessian is not None) == is_quadratic
    rows = torch.tensor([2, 0])
    for fresh, known, point in ((batch, knowing, u + 1), (batch.select(rows), knowing.select(rows), u[rows] * 3)):
        multipliers = torch.randn(len(point), batch.k, dtype=DOUBLE, generator=torch.Generator().manual_seed(1))
        for weights in (multipliers, None):
            same(*(vars(one.expand(point, weights)).values() for one in (fresh, known)))
            same(*(one.slopes(point, weights) for one in (fresh, known)))
        same(*(one.values(point) for one in (fresh, known)))


def test_curved_constraints_leave_nothing_known():
    """The Hessian of the Lagrangian has their multipliers in it."""
    batch, u = batch_of(lambda x, u: (u - x).square().sum(), lambda _, u: u.square().sum() - 1)
    assert find_constants(batch, u) is None


def test_what_is_known_does_not_outlive_the_inputs_that_it_is_of():
    batch, u = batch_of(OBJECTIVES["quadratic"][0], CONSTRAINTS["plane"])
    knowing = batch.with_constants(u)
    assert isinstance(knowing.constants, Constants)
    others = [
        knowing.replace([2 * knowing.xs[0]]),
        knowing.to(torch.float32),
        knowing.unshared().replace(knowing.xs),
        knowing.dense(),
    ]
    assert all(other.constants is None for other in others)
    assert dataclasses.replace(batch, layout=DENSE).with_constants(u).constants is not None


def test_a_derivative_that_is_not_finite_is_not_kept():
    batch, u = batch_of(lambda x, u: (u - x).square().sum(), lambda x, u: x[0] / 0 * u[0] - 1)
    assert find_constants(batch, u) is None


def test_constraints_that_are_affine_are_not_called_in_every_iteration():
    calls = {"objective": 0, "inequality": 0}

    def objective(x, u):
        calls["objective"] += 1
        return (u - x).square().sum()

    def inequality(x, u):
        calls["inequality"] += 1
        return torch.cat([u - x.abs().sum() / 9, -u])

    x = torch.tensor([[0.3, 2.0, -1.0], [3.0, 0.1, 0.2]], dtype=DOUBLE)
    node = DeclarativeNode(objective, inequality=inequality, solver="newton", start=3)
    solution = node.solve(x)
    assert int(solution.iterations.max()) >= 6
    assert calls["inequality"] <= 6  # the boundary, the proof and its origin, the verdict
    assert torch.allclose(solution.y, x.clamp(min=0.0).minimum(x.abs().sum(-1, keepdim=True) / 9), atol=1e-12)


FAR = {
    "tiny units": (1e-11, torch.tensor([0.1, -0.2, 0.3], dtype=DOUBLE)),
    "far away": (1.0, 1e12 * torch.tensor([1.0, 0.7, 1.3], dtype=DOUBLE)),
}


@pytest.mark.parametrize("name", FAR)
def test_a_start_far_away_takes_no_digits_from_a_search(name):
    unit, start = FAR[name]
    x = unit * torch.randn(32, 3, dtype=DOUBLE, generator=torch.Generator().manual_seed(0))
    options = {"equality": lambda _, u: u.sum() - unit, "inequality": lambda _, u: -u, "start": start}
    called, recorded = (
        DeclarativeNode(lambda x, u: (u - x).square().sum(), solver="newton", record=record, **options).solve(x)
        for record in (False, True)
    )
    assert int(called.iterations.max()) <= 2 * int(recorded.iterations.max())
    assert torch.allclose(called.y, recorded.y, rtol=1e-9, atol=1e-9 * unit)


def test_single_precision_has_no_digits_to_spare():
    """Where functions hold a matrix in single precision, all is done in it."""
    generator = torch.Generator().manual_seed(0)
    weights, x = torch.randn(6, 6, generator=generator) + 2 * torch.eye(6), torch.randn(64, 6, generator=generator)
    node = DeclarativeNode(
        lambda x, u: (weights @ u - x).square().sum(), lambda _, u: u.sum() - 1, lambda _, u: -u, start=6
    )
    assert node.solve(x).iterations.max() <= 30


def test_a_function_that_is_another_one_every_time_does_not_deceive_the_verdict():
    """Such functions have no solution; what a search takes for known of them must not be taken for one."""
    count = [0]

    def objective(x, u):
        count[0] += 1
        return (u - x - 100.0 * count[0]).square().sum()

    with pytest.raises(SolverError, match="iteration_limit"):
        DeclarativeNode(objective, solver="newton", start=3)(torch.zeros(1, 3, dtype=DOUBLE))


def test_an_operator_of_somebody_else_with_the_name_of_one_of_torch_proves_nothing():
    with torch.library._scoped_library("declarative_test", "FRAGMENT") as library:
        library.define("add(Tensor u) -> Tensor")
        library.impl("add", lambda u: (u > 0).to(u.dtype) * u, "CompositeImplicitAutograd")
        assert not proved(torch.ops.declarative_test.add)


@pytest.mark.parametrize("hidden", ["objective", "inequality"])
def test_what_is_wrongly_taken_for_constant_is_found_out(monkeypatch, hidden):
    """Should a function hide from the proof what it does, a search may fail; then it is repeated without."""
    monkeypatch.setattr("declarative.expansion.watched", lambda function, *arguments: (function(*arguments), True))
    far = torch.full((3,), 50.0, dtype=DOUBLE)
    x = torch.tensor([[1.0, 2.0, 7.0], [0.0, 5.0, -3.0]], dtype=DOUBLE)
    if hidden == "objective":
        node = DeclarativeNode(
            lambda x, u: (torch.where(u > x, 0.9, 1e-3) * (u - x + 1).square()).sum(), solver="newton", start=far
        )
        truth = x - 1
    else:
        node = DeclarativeNode(
            lambda x, u: (u - x).square().sum(),
            inequality=lambda _, u: (u > 0) * 3 * u + (u <= 0) * u - 1,
            solver="newton",
            start=-far,
        )
        truth = x.clamp(max=1 / 3)
    assert torch.allclose(node(x), truth, atol=1e-9)


@pytest.mark.parametrize("weights", [(1.0, 3.0), (3.0, 1.0)])
def test_a_kink_that_autograd_does_not_follow_is_solved_as_before(weights):
    """Two parabolas that meet at zero, the second derivative of which jumps."""
    low, high = weights
    node = DeclarativeNode(lambda x, u: (((u > 0) * (high - low) + low) * u.square() - x * u).sum(), start=3)
    x = torch.tensor([[2.0, -1.0, 0.5]], dtype=DOUBLE)
    truth = torch.where(x > 0, x / (2 * high), x / (2 * low))
    assert torch.allclose(node(x), truth, atol=1e-9)
