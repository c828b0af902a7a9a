"""A radius, a temperature, a weight: a number, or a tensor with a gradient, given to the constructor or to a call."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from declarative import SolverError, Status
from problems import BallProjection, EntropicSimplex, Layer, LeastSquares, OptimalTransport, RobustPooling

DOUBLE = torch.float64
MAKERS: dict[str, tuple[Callable[..., Layer], tuple[Tensor | None, ...]]] = {
    "gamma": (OptimalTransport, (torch.rand(3, 4, 2, dtype=DOUBLE), None, None)),
    "radius": (BallProjection, (4 * torch.rand(3, 5, dtype=DOUBLE),)),
    "temperature": (EntropicSimplex, (torch.rand(3, 5, dtype=DOUBLE),)),
    "ridge": (LeastSquares, (torch.rand(3, 4, 2, dtype=DOUBLE), torch.rand(3, 4, dtype=DOUBLE), None)),
    "scale": (RobustPooling, (4 * torch.rand(3, 6, dtype=DOUBLE),)),
}
each_setting = pytest.mark.parametrize("name", MAKERS)


@each_setting
def test_a_number_and_all_kinds_of_tensors_agree(name: str):
    make, xs = MAKERS[name]
    expected = make(**{name: 1.5})(*xs)
    number = torch.tensor(1.5, dtype=DOUBLE)
    for value in (number, number.expand(1), number.expand(3), number.float()):
        assert torch.equal(make()(*xs, value), expected)
        assert torch.equal(make(**{name: value})(*xs), expected)
        assert torch.equal(make(**{name: value}).generic()(*xs), make().generic()(*xs, value))
    assert not torch.equal(make(**{name: number})(*xs, 2 * number), expected)  # the call has the last word


@each_setting
def test_each_problem_has_its_own(name: str):
    make, xs = MAKERS[name]
    values = torch.tensor([0.7, 1.1, 1.9], dtype=DOUBLE)
    together = make()(*xs, values)
    for i, value in enumerate(values.tolist()):
        alone = make(**{name: value})(*(x if x is None else x[i : i + 1] for x in xs))
        assert (alone[0] - together[i]).abs().max() < 1e-13


@each_setting
def test_a_shared_one_collects_the_gradient_of_the_batch(name: str):
    make, xs = MAKERS[name]
    one, each = (
        torch.tensor(1.5, dtype=DOUBLE, requires_grad=True),
        torch.full((3,), 1.5, dtype=DOUBLE).requires_grad_(),
    )
    y = make()(*xs, one)
    v = torch.randn_like(y)
    (shared,), (own,) = torch.autograd.grad(y, one, v), torch.autograd.grad(make()(*xs, each), each, v)
    assert abs(shared - own.sum()) < 1e-13
    assert abs(own).min() > 1e-6


@each_setting
def test_a_parameter_is_learned(name: str):
    make, xs = MAKERS[name]
    goal = make(**{name: 2.0})(*xs)
    layer = make(**{name: nn.Parameter(torch.tensor(1.0, dtype=DOUBLE))})
    ((called, parameter),) = layer.named_parameters()
    assert called == name
    optimizer = torch.optim.LBFGS(layer.parameters(), tolerance_grad=1e-14, tolerance_change=0.0, max_iter=60)

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = 1e2 * (layer(*xs) - goal).square().sum()
        value.backward()
        return value

    optimizer.step(loss)
    assert abs(parameter.item() - 2) < 1e-4


@each_setting
def test_a_tensor_moves_with_the_layer_and_is_no_state(name: str):
    make, xs = MAKERS[name]
    layer = make(**{name: torch.tensor(1.5, dtype=DOUBLE)})
    assert not layer.state_dict()
    assert getattr(layer.to(torch.float32), name).dtype == torch.float32
    assert layer(*(x if x is None else x.float() for x in xs)).dtype == torch.float32
    assert (
        make(**{name: torch.tensor(1.5, dtype=DOUBLE)})(*(x if x is None else x.float() for x in xs)).dtype
        == torch.float32
    )


@each_setting
def test_only_a_tensor_is_an_input_of_the_problem(name: str):
    make, xs = MAKERS[name]
    given = tuple(x for x in xs if x is not None)
    layer = make(**{name: 1.5})
    count = layer.derivatives(*given).B.shape[-1]
    value = torch.full((3,), 1.5, dtype=DOUBLE)
    assert make()(*xs, value).shape == layer(*given).shape
    assert make().derivatives(*xs, value).B.shape[-1] == count + 1


@each_setting
def test_values_that_no_problem_can_have(name: str):
    make, xs = MAKERS[name]
    for value in (-1.0, float("inf"), float("nan")) + ((0.0,) if name != "ridge" else ()):
        with pytest.raises(ValueError, match=name):
            make(**{name: value})
    for value in (None, "large", [1.0]):
        with pytest.raises(TypeError, match=name):
            make(**{name: value})
    bad = torch.tensor([1.0, -0.5, 1.0], dtype=DOUBLE)
    with pytest.raises(ValueError, match=rf"{name} must .* -0.5"):
        make()(*xs, bad)
    with pytest.raises(ValueError, match=rf"{name} must .* -0.5"):
        torch.vmap(lambda value: make()(*xs, value))(bad.unsqueeze(0))
    with pytest.raises(SolverError) as caught:
        make()(*xs, torch.tensor([1.0, float("nan"), 1.0], dtype=DOUBLE))
    assert caught.value.solution.status == [Status.CONVERGED, Status.NOT_FINITE, Status.CONVERGED]
    with pytest.raises(ValueError, match=rf"{name} must have shape \(batch,\)"):
        make()(*xs, torch.ones(3, 1, dtype=DOUBLE))


def test_a_ridge_of_zero_is_none():
    A, b = torch.randn(2, 5, 3, dtype=DOUBLE), torch.randn(2, 5, dtype=DOUBLE)
    zero = torch.zeros(2, dtype=DOUBLE, requires_grad=True)
    y = LeastSquares()(A, b, None, zero)
    assert (y - LeastSquares()(A, b)).abs().max() < 1e-14
    (grad,) = torch.autograd.grad(y.sum(), zero)
    step = 1e-5
    with torch.no_grad():
        difference = (LeastSquares(step)(A, b) - y).sum(-1) / step
    assert (grad - difference).abs().max() < 1e-3 * grad.abs().max()
