"""Every ready-made layer against its own generic twin, finite differences, and the contract of a node."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from declarative import NumericalWarning, SolverError, Status
from problems.inputs import DIMENSIONS

from ..support.problem_table import RULES, TABLE, Case
from .with_settings import WITH_SETTINGS

DTYPES = (torch.float64, torch.float32)
each_problem = pytest.mark.parametrize("case", [*TABLE, *WITH_SETTINGS], ids=lambda case: case.name)
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def weights(x: Tensor) -> Tensor:
    """A cotangent without symmetry."""
    return torch.linspace(-1, 2, x.numel(), dtype=x.dtype).cos().view(x.shape) + 0.3


def part(case: Case, xs: Sequence[Tensor], rows: slice) -> list[Tensor]:
    """The inputs of some of the problems; what all of them share stays as it is."""
    names = (*case.layer.required, *case.layer.optional)
    return [x[rows] if x.dim() == len(DIMENSIONS[name]) else x for name, x in zip(names, xs, strict=False)]


def assert_same(one: Tensor, other: Tensor, dtype: torch.dtype) -> None:
    tolerance = 1e-9 if dtype == torch.float64 else 1e-3
    assert one.dtype == other.dtype == dtype
    assert one.shape == other.shape
    if one.numel():
        assert (one - other).abs().max() <= tolerance * max(1.0, other.abs().max().item())


@each_problem
def test_gradient_against_finite_differences(case: Case):
    assert torch.autograd.gradcheck(
        case.layer, case.inputs(), fast_mode=True
    )  # forward mode is compared with reverse mode below


@each_problem
def test_second_order_against_finite_differences(case: Case):
    assert torch.autograd.gradgradcheck(case.layer, case.inputs(), fast_mode=True)


@each_problem
@each_dtype
def test_solution_is_that_of_the_generic_twin(case: Case, dtype: torch.dtype):
    xs = case.inputs(dtype)
    fast, slow = case.layer.solve(*xs), case.layer.generic().solve(*xs)
    assert fast.converged.all()
    for name in ("y", "multipliers", "inequality_multipliers", "objective"):
        assert_same(getattr(fast, name), getattr(slow, name), dtype)


@each_problem
@pytest.mark.parametrize(
    ("rule", "dtype"),
    [pytest.param(rule, dtype, id=f"{rule}-{dtype}") for rule in RULES for dtype in DTYPES[: 1 + (rule == "exact")]],
)
def test_gradients_are_those_of_the_generic_twin(case: Case, dtype: torch.dtype, rule: str):
    xs = case.inputs(dtype)
    first, second = [], []
    for layer in (case.layer.with_gradient(rule), case.layer.generic().with_gradient(rule)):
        y = layer(*xs)
        grads = torch.autograd.grad((y * weights(y)).sum(), xs, create_graph=True)
        first.append(grads)
        loss = sum((grad * weights(grad)).sum() for grad in grads) + sum(0 * x.sum() for x in xs)
        second.append(torch.autograd.grad(loss, xs))
    for pair in (first, second):
        for fast, slow in zip(*pair, strict=True):
            assert_same(fast, slow, dtype)


@each_problem
def test_transforms(case: Case):
    xs = tuple(x.detach() for x in case.inputs())
    pulled = torch.func.jacrev(case.layer)(*xs)
    pushed = torch.func.jacfwd(case.layer)(*xs)
    assert_same(pulled, pushed, torch.float64)
    moved = tuple(1.01 * x for x in xs) if case.name.startswith("eigen") else xs
    both = torch.vmap(case.layer)(*(torch.stack(pair) for pair in zip(xs, moved, strict=True)))
    assert_same(both, torch.stack([case.layer(*xs), case.layer(*moved)]), torch.float64)


@each_problem
def test_copies_compute_the_same(case: Case):
    xs = case.inputs()
    expected = case.layer(*xs)
    for layer in (copy.deepcopy(case.layer), pickle.loads(pickle.dumps(case.layer))):
        assert torch.equal(layer(*xs), expected)


@each_problem
def test_each_problem_alone_is_the_same(case: Case):
    xs = case.inputs()
    together = case.layer(*xs)
    size = len(together)
    for i in range(size):
        alone = case.layer(*part(case, xs, slice(i, i + 1)))
        assert_same(alone, together[i : i + 1], torch.float64)


@each_problem
def test_no_problems(case: Case):
    xs = case.inputs()
    y = case.layer(*part(case, xs, slice(0)))
    assert y.shape[0] == 0
    grads = torch.autograd.grad(y.sum(), xs)
    assert all((grad == 0).all() for grad in grads)


@each_problem
def test_not_a_number_is_a_status(case: Case):
    xs = [x.detach().clone() for x in case.inputs()]
    xs[0][1] = torch.nan
    with pytest.raises(SolverError) as caught:
        case.layer(*xs)
    assert caught.value.indices == [1]
    assert caught.value.solution.status[1] == Status.NOT_FINITE

    masked = case.layer.with_plan(on_failure="mask")
    xs[0].requires_grad_()
    with pytest.warns(NumericalWarning, match="not_finite"):
        y = masked(*xs)
    (grad,) = torch.autograd.grad((y * weights(y))[0].sum(), xs[0])
    good = [x.detach() for x in part(case, xs, slice(1))]
    good[0].requires_grad_()
    alone = case.layer(*good)
    (expected,) = torch.autograd.grad((alone * weights(y)[:1]).sum(), good[0])
    assert_same(grad[:1], expected, torch.float64)
    assert (grad[1] == 0).all()


@each_problem
def test_bad_inputs(case: Case):
    xs = [x.detach() for x in case.inputs()]
    with pytest.raises(TypeError):
        case.layer("nothing", *xs[1:])
    with pytest.raises(TypeError, match="floating"):
        case.layer(xs[0].long(), *xs[1:])
    with pytest.raises(ValueError, match="shape"):
        case.layer(xs[0].unsqueeze(0).unsqueeze(0), *xs[1:])
    with pytest.raises(ValueError, match="gradient must be"):
        case.layer.with_gradient("nonsense")


@each_problem
def test_half_precision_comes_back(case: Case):
    xs = [x.detach().to(torch.bfloat16) for x in case.inputs()]
    if case.name.startswith("transport") and len(xs) >= 3:
        with pytest.raises(TypeError, match="too coarse"):
            case.layer(*xs)
        xs = xs[:1]
    assert case.layer(*xs).dtype == torch.bfloat16


@each_problem
def test_descent_report_has_every_rule(case: Case):
    xs = case.inputs()
    y = case.layer(*xs).detach()
    report = case.layer.descent(*xs, weights(y))
    assert report["unconstrained"].cosine.shape == (len(y),)
