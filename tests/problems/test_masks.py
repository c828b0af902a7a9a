"""Scores of -inf and marginals of zero: what is left out is zero, with zero gradient, and the rest does not notice."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from declarative import NumericalWarning, SolverError, Status
from problems import EntropicSimplex, OptimalTransport, SimplexProjection

from ..support.problem_table import RULES

DOUBLE, SINGLE = torch.float64, torch.float32
LAYERS = {"simplex": SimplexProjection(), "entropic": EntropicSimplex(0.7), "hot": EntropicSimplex(300.0)}
KEPT = torch.tensor([0, 2, 3, 6])
each_layer = pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS)
each_rule = pytest.mark.parametrize("rule", RULES)
each_dtype = pytest.mark.parametrize("dtype", [DOUBLE, SINGLE], ids=str)


def masked(x: Tensor) -> Tensor:
    """The scores, and -inf beside them."""
    return torch.full((*x.shape[:-1], 7), -torch.inf, dtype=x.dtype).index_copy(-1, KEPT, x)


def close(one: Tensor, other: Tensor, dtype: torch.dtype = DOUBLE) -> bool:
    return bool((one - other).abs().max() <= 50 * torch.finfo(dtype).eps * max(1.0, other.abs().max().item()))


@each_layer
@each_rule
@each_dtype
@pytest.mark.parametrize(("size", "shift"), [(1.0, 0.0), (1.0, 1e3), (1e-6, -5.0), (1e6, 0.0)])
def test_a_mask_leaves_entries_out(layer: torch.nn.Module, rule: str, dtype: torch.dtype, size: float, shift: float):
    layer = layer.with_gradient(rule)
    few = (size * torch.randn(3, 4, dtype=dtype) + shift).requires_grad_()
    many = masked(few.detach()).requires_grad_()
    v = torch.randn(3, 7, dtype=dtype)
    expected, y = layer(few), layer(many)
    assert close(y[:, KEPT], expected, dtype)
    assert (y[many == -torch.inf] == 0).all()
    assert layer.solve(many).converged.all()
    assert torch.equal(layer.solve(many).y, y)
    (of_few,), (of_many,) = torch.autograd.grad(expected, few, v[:, KEPT]), torch.autograd.grad(y, many, v)
    assert close(of_many[:, KEPT], of_few, dtype)
    assert (of_many[many == -torch.inf] == 0).all()


@each_layer
def test_higher_derivatives_and_transforms_of_a_mask(layer: torch.nn.Module):
    few = torch.randn(2, 4, dtype=DOUBLE)
    many, v, w = masked(few), torch.randn(2, 7, dtype=DOUBLE), torch.randn(2, 7, dtype=DOUBLE)

    def second(x: Tensor, v: Tensor, w: Tensor) -> Tensor:
        x = x.clone().requires_grad_()
        (first,) = torch.autograd.grad(layer(x), x, v, create_graph=True)
        return torch.autograd.grad((first * w).sum() + 0 * x[:, 0].sum(), x)[0]

    found = second(many, v, w)
    assert close(found[:, KEPT], second(few, v[:, KEPT], w[:, KEPT]))
    assert (found[many == -torch.inf] == 0).all()
    pulled, pushed = torch.func.jacrev(layer)(many), torch.func.jacfwd(layer)(many)
    assert close(pulled, pushed)
    assert close(pulled[:, KEPT][..., KEPT], torch.func.jacrev(layer)(few))
    both = torch.vmap(layer)(torch.stack([many, masked(2 * few)]))
    assert torch.equal(both, torch.stack([layer(many), layer(masked(2 * few))]))


@each_layer
def test_a_mask_of_everything_is_a_failure(layer: torch.nn.Module):
    x = torch.randn(3, 4, dtype=DOUBLE)
    x[1] = -torch.inf
    with pytest.raises(SolverError) as caught:
        layer(x)
    assert caught.value.solution.status == [Status.CONVERGED, Status.NOT_FINITE, Status.CONVERGED]
    lenient = type(layer)(on_failure="mask")
    x.requires_grad_()
    with pytest.warns(NumericalWarning, match="not_finite"):
        y = lenient(x)
    (grad,) = torch.autograd.grad(y[:, 0].sum(), x)
    assert (grad[1] == 0).all()
    assert (grad[0] != 0).any()


@each_layer
@pytest.mark.parametrize("value", [torch.inf, torch.nan])
def test_other_infinities_are_still_refused(layer: torch.nn.Module, value: float):
    with pytest.raises(SolverError, match="not_finite"):
        layer(torch.tensor([[0.0, value, -torch.inf]], dtype=DOUBLE))


def test_the_gradient_of_the_temperature_does_not_notice_a_mask():
    few = torch.randn(3, 4, dtype=DOUBLE)
    one, other = (torch.tensor([0.5, 1.0, 40.0], dtype=DOUBLE, requires_grad=True) for _ in range(2))
    v = torch.randn(3, 7, dtype=DOUBLE)
    (expected,) = torch.autograd.grad(EntropicSimplex()(few, one), one, v[:, KEPT])
    (found,) = torch.autograd.grad(EntropicSimplex()(masked(few), other), other, v)
    assert close(found, expected)


# Optimal transport: padding.


def padded(M: Tensor, r: Tensor, c: Tensor, filling: float) -> list[Tensor]:
    """Two rows and a column more, with zero marginals."""
    whole = torch.nn.functional.pad(M, (0, 1, 1, 1), value=filling)
    return [whole, torch.nn.functional.pad(r, (1, 1)), torch.nn.functional.pad(c, (0, 1))]


def marginal(*shape: int) -> Tensor:
    x = torch.rand(*shape, dtype=DOUBLE) + 0.3
    return x / x.sum(-1, keepdim=True)


@each_rule
@each_dtype
@pytest.mark.parametrize("gamma", [1.0, 20.0, 300.0])
@pytest.mark.parametrize("filling", [0.0, 1e3, torch.nan])
def test_zero_marginals_are_padding(rule: str, dtype: torch.dtype, gamma: float, filling: float):
    xs = [x.to(dtype) for x in (torch.rand(3, 5, 4, dtype=DOUBLE), marginal(3, 5), marginal(4))]
    few, many = ([x.requires_grad_() for x in group] for group in (xs, padded(*(x.clone() for x in xs), filling)))
    many = [x.detach().requires_grad_() for x in many]
    layer = OptimalTransport(gamma, gradient=rule)
    expected, plan = layer(*few), layer(*many)
    v = torch.randn(3, 7, 5, dtype=dtype)
    inner = (slice(None), slice(1, -1), slice(0, -1))
    tolerance = 1e-9 if dtype == DOUBLE else 3e-3  # both are solved to rounding, and gamma multiplies it
    assert (plan[inner] - expected).abs().max() < tolerance * expected.max()
    assert plan.sum((-2, -1)).sub(1).abs().max() < tolerance
    outer = torch.ones(3, 7, 5, dtype=torch.bool)
    outer[inner] = False
    assert (plan[outer] == 0).all()
    of_few, of_many = torch.autograd.grad(expected, few, v[inner]), torch.autograd.grad(plan, many, v)
    for found, wanted, part in zip(of_many, of_few, (inner, inner[:2], inner[2:]), strict=True):
        left_out = torch.ones_like(found, dtype=torch.bool)
        left_out[part] = False
        assert (found[left_out] == 0).all()
        assert (found[part] - wanted).abs().max() <= tolerance * max(1.0, wanted.abs().max().item())


def test_padding_under_transforms_and_twice():
    xs = [torch.rand(2, 3, 4, dtype=DOUBLE), marginal(2, 3), marginal(2, 4)]
    layer, many = OptimalTransport(3.0), padded(*xs, 0.0)
    together = torch.vmap(layer)(*(x.unsqueeze(0) for x in many))[0]
    assert (together - layer(*many)).abs().max() < 1e-14
    pulled, pushed = torch.func.jacrev(layer)(*many), torch.func.jacfwd(layer)(*many)
    assert close(pulled, pushed)

    def second(M: Tensor, v: Tensor, r: Tensor, c: Tensor) -> Tensor:
        M = M.clone().requires_grad_()
        (first,) = torch.autograd.grad(layer(M, r, c), M, v, create_graph=True)
        return torch.autograd.grad(first.square().sum(), M)[0]

    v = torch.randn(2, 5, 5, dtype=DOUBLE)
    inner = (slice(None), slice(1, -1), slice(0, -1))
    expected = second(xs[0], v[inner], *xs[1:])
    assert close(second(many[0], v, *many[1:])[inner], expected)


def test_one_padded_marginal_and_the_other_by_default():
    M = torch.rand(2, 3, 4, dtype=DOUBLE)
    r = torch.tensor([0.4, 0.6, 0.0], dtype=DOUBLE)
    plan = OptimalTransport(2.0)(M, r)
    assert (plan[:, :2] - OptimalTransport(2.0)(M[:, :2], r[:2])).abs().max() < 1e-14
    assert (plan[:, 2] == 0).all()


@pytest.mark.parametrize("shape", [(1, 3), (3,), (4, 3)])
def test_marginals_of_a_batch_of_one_are_shared(shape: tuple[int, ...]):
    M, v = torch.rand(4, 3, 2, dtype=DOUBLE), torch.randn(4, 3, 2, dtype=DOUBLE)
    r = torch.tensor([0.2, 0.3, 0.5], dtype=DOUBLE).expand(shape).clone().requires_grad_()
    each = r.detach().expand(4, 3).clone().requires_grad_()
    (found,) = torch.autograd.grad(OptimalTransport()(M, r), r, v)
    (own,) = torch.autograd.grad(OptimalTransport()(M, each), each, v)
    assert close(found, own.sum_to_size(shape) if len(shape) == 2 else own.sum(0))
