"""Bounds on the unknowns: the same as inequalities, kept by every iterate, and differentiable in the inputs."""

import math

import pytest
import torch

from declarative import DeclarativeNode, Newton
from tests.support.helpers import DOUBLE, relative

INFINITY = math.inf


def nearest(x, u):
    return (u - x).square().sum()


def inputs(seed=0, *shape):
    return torch.randn(*(shape or (4, 5)), generator=torch.Generator().manual_seed(seed), dtype=DOUBLE).requires_grad_()


@pytest.mark.parametrize("solver", ["newton", "scipy", None])
def test_a_box_is_a_clamp(solver):
    x = inputs()
    node = DeclarativeNode(nearest, bounds=(-0.5, 0.5), solver=solver, start=5)
    solution = node.solve(x)
    assert relative(solution.y, x.clamp(-0.5, 0.5)) < 1e-12
    assert solution.y.abs().max() <= 0.5
    (grad,) = torch.autograd.grad(solution.y.sum(), x)
    assert torch.equal(grad, (x.abs() < 0.5).to(DOUBLE))
    assert relative(solution.lower_multipliers, 2 * (-0.5 - x).clamp(min=0)) < 1e-9
    assert relative(solution.upper_multipliers, 2 * (x - 0.5).clamp(min=0)) < 1e-9
    assert solution.inequality_multipliers.shape == (4, 0)


def coupled(x, u):
    return (u - x).square().sum() + (u[1:] * u[:-1]).sum() * 0.3 + u.pow(4).sum()


def total(_, u):
    return u.sum() - 0.5


@pytest.mark.parametrize("structure", ["dense", "sparse"])
@pytest.mark.parametrize("record", [False, True])
def test_bounds_equal_the_same_as_inequalities(structure, record):
    low, high = torch.tensor([-1, -INFINITY, 0, -0.2, -INFINITY], dtype=DOUBLE), 0.4
    held = [0, 2, 3]

    def rows(_, u):
        return torch.cat([u[1].reshape(1) * u[2] - 1, low[held] - u[held], u - high])

    x, y = inputs(), []
    bounded = DeclarativeNode(
        coupled, total, lambda _, u: u[1] * u[2] - 1, bounds=(low, high), start=5, structure=structure, record=record
    )
    general = DeclarativeNode(coupled, total, rows, start=5, structure="dense")
    for _ in range(2):
        one, other = bounded.solve(x), general.solve(x)
        assert relative(one.y, other.y) < 1e-9
        assert one.inequality_multipliers.shape == (4, 1)
        pulled = torch.cat([one.inequality_multipliers, one.lower_multipliers[:, held], one.upper_multipliers], -1)
        assert relative(pulled, other.inequality_multipliers) < 1e-7
        assert (one.lower_multipliers[:, [1, 4]] == 0).all()
        y.append([torch.autograd.grad(s.y.pow(3).sum(), x)[0] for s in (one, other)])
    assert relative(*y[-1]) < 1e-8


def test_bounds_that_depend_on_inputs_are_differentiable():
    node = DeclarativeNode(
        lambda x, _, u: coupled(x, u),
        bounds=(None, lambda x, w: w + 0.1 * x.square().mean()),
        start=5,
        in_dims=(0, None),
    )
    w = torch.tensor([1.0, -0.6, -0.8, -0.2, 0.1], dtype=DOUBLE, requires_grad=True)
    x = inputs(1)[:1].detach().requires_grad_()
    assert node.solve(x, w).upper_multipliers.gt(1e-3).any()
    assert torch.autograd.gradcheck(node, (x, w))
    assert torch.autograd.gradgradcheck(node, (x, w), fast_mode=True)
    assert torch.autograd.gradcheck(lambda x, w: node.solve(x, w).upper_multipliers, (x, w), fast_mode=True)


def test_several_unknowns_have_bounds_by_name():
    node = DeclarativeNode(
        lambda x, u: (u["a"] - x).square().sum() + u["t"].square(),
        lambda _, u: u["a"].sum() - u["t"],
        bounds=({"a": 0.0, "t": None}, {"a": torch.full((5,), 0.6, dtype=DOUBLE), "t": 1.0}),
        start={"a": 5, "t": ()},
    )
    solution = node.solve(inputs(2))
    assert solution.y["a"].min() >= 0
    assert solution.y["a"].max() <= 0.6
    assert solution.lower_multipliers["a"].shape == (4, 5)
    assert (solution.lower_multipliers["t"] == 0).all()


def unwrapped(u):
    """The values of all problems, which the functions see one at a time."""
    while torch._C._functorch.is_functorch_wrapped_tensor(u):
        u = torch._C._functorch.get_unwrapped(u)
    return u.detach().clone()


def test_iterates_stay_inside():
    seen = []

    def objective(x, u):
        seen.append(unwrapped(u))
        return (x * u).sum() - u.log().sum()

    node = DeclarativeNode(objective, bounds=(0.0, 3.0), solver=Newton(), start=torch.full((3,), -2.0))
    x = inputs(3, 2, 3).abs()
    y = node(x.detach())
    assert relative(y, (1 / x).clamp(max=3.0)) < 1e-8
    outside = [bool((u <= 0).any()) for u in seen]
    assert sum(outside) == outside[0]  # but for the first look, at the start as it was given
    assert len(outside) > 5


def test_an_infinite_bound_is_none():
    x = inputs(4)
    node = DeclarativeNode(nearest, bounds=(-INFINITY, torch.full((5,), INFINITY)), start=5)
    solution = node.solve(x)
    assert solution.lower_multipliers is None
    assert relative(solution.y, x) < 1e-14


@pytest.mark.parametrize(
    ("bounds", "error", "words"),
    [
        ((1, 0), ValueError, "exceeds"),
        (1.0, TypeError, "pair"),
        ((1, 2, 3), TypeError, "pair"),
        ((torch.ones(3), None), ValueError, r"shape \(3,\).*\(5,\)"),
        (("low", None), TypeError, "number"),
        ((True, None), TypeError, "number"),
        ((math.nan, None), ValueError, "NaN"),
        ((INFINITY, None), ValueError, "no number satisfies"),
        ((torch.zeros(5, requires_grad=True), None), ValueError, "input"),
        ((lambda x: x[:2], None), ValueError, r"shape \(2,\)"),
        (({"a": 1.0}, None), TypeError, "number"),
    ],
)
def test_bad_bounds_are_refused(bounds, error, words):
    with pytest.raises(error, match=words):
        DeclarativeNode(nearest, bounds=bounds, start=5)(inputs())


def test_a_captured_parameter_in_a_bound_is_refused():
    w = torch.zeros(5, dtype=DOUBLE, requires_grad=True)
    node = DeclarativeNode(nearest, bounds=(lambda _: w, None), start=5)
    with pytest.raises(ValueError, match="other than through its arguments"):
        node(inputs())


@pytest.mark.parametrize("record", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_tensor_that_is_a_bound_is_read_anew(dtype, record):
    upper = torch.tensor([0.5, torch.inf], dtype=dtype)
    node = DeclarativeNode(lambda x, u: (u - x).square().sum(), bounds=(-1.0, upper), start=2, record=record)
    x = torch.ones(3, 2, dtype=torch.float64)
    for value in (0.5, 0.25, 0.75):
        upper[0] = value
        for point in (x, x[:1]):
            assert (node(point) - torch.tensor([value, 1.0])).abs().max() < 1e-8
    upper[1] = 2.0
    with pytest.raises(ValueError, match="a bound has become finite, or infinite"):
        node(x)


@pytest.mark.parametrize("record", [False, True])
def test_a_tensor_that_is_a_bound_of_several_unknowns_is_read_anew(record):
    upper = torch.tensor([0.5, torch.inf], dtype=DOUBLE)
    for bound in (lambda: {"a": upper, "b": None}, lambda: {"a": upper.unbind()[0], "b": upper.unbind()[1]}):
        upper[0] = 0.5
        start = {"a": 2, "b": ()} if bound()["b"] is None else {"a": (), "b": ()}
        node = DeclarativeNode(
            lambda x, u: (u["a"] - x).square().sum() + (u["b"] - 1).square(),
            bounds=(None, bound()),
            start=start,
            record=record,
        )
        x = torch.ones(3, dtype=DOUBLE)
        for value in (0.5, 0.25):
            upper[0] = value
            assert (node(x)["a"].reshape(3, -1)[:, 0] - value).abs().max() < 1e-8
