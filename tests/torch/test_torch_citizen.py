"""Nodes and ready-made layers under the transforms and modes of PyTorch; what other files test is not tested here."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vmap
from torch.utils.checkpoint import checkpoint

from tests.support.citizen import SOLVERS, each_problem, each_solver, loss, near, sphere
from tests.support.helpers import gradients, normalise, relative
from tests.support.problem_table import Case

# torch.func


@each_solver
def test_transforms_of_a_node(solver):
    node = sphere(solver)
    x, dx = torch.randn(2, 2, 3, dtype=torch.float64)
    for transform in (jacrev, jacfwd, lambda f: hessian(lambda x: loss(f(x))), lambda f: grad(lambda x: loss(f(x)))):
        assert relative(transform(node)(x), transform(normalise)(x)) < 1e-8
    for mine, truth in zip(jvp(node, (x,), (dx,)), jvp(normalise, (x,), (dx,)), strict=True):
        assert relative(mine, truth) < 1e-9


@each_solver
def test_nested_transforms_of_a_node(solver):
    node = sphere(solver)
    x = torch.randn(2, 2, 2, 3, dtype=torch.float64)

    def slope(f):
        return vmap(vmap(grad(lambda x: loss(f(x)))))

    def curvature(f):
        return vmap(hessian(lambda x: loss(f(x))))

    assert relative(slope(node)(x), slope(normalise)(x)) < 1e-9
    assert relative(curvature(node)(x[0]), curvature(normalise)(x[0])) < 1e-8
    assert (
        relative(grad(lambda x: vmap(node)(x).pow(3).sum())(x[0]), grad(lambda x: normalise(x).pow(3).sum())(x[0]))
        < 1e-9
    )


@each_problem
def test_forward_over_reverse_is_reverse_over_reverse(case: Case):
    xs = tuple(x.detach() for x in case.inputs())

    def value(*xs):
        return loss(case.layer(*xs))

    once = grad(value)
    tangents = tuple(torch.linspace(-1, 1, x.numel(), dtype=x.dtype).sin().view(x.shape) for x in xs)
    _, forward = jvp(lambda x: once(x, *xs[1:]), (xs[0],), (tangents[0],))
    backward = grad(lambda x: (once(x, *xs[1:]) * tangents[0]).sum())(xs[0])  # the Hessian is symmetric
    assert near(forward, backward, 1e-8)


def test_functional_call_of_a_model():
    model = nn.Sequential(nn.Linear(3, 3), sphere("newton")).double()
    x = torch.randn(4, 3, dtype=torch.float64)
    parameters = dict(model.named_parameters())
    found = grad(lambda p: loss(functional_call(model, p, (x,))))(parameters)
    expected = torch.autograd.grad(loss(model(x)), list(model.parameters()))
    for one, other in zip(found.values(), expected, strict=True):
        assert relative(one, other) < 1e-12


def test_a_gradient_for_each_problem_of_the_batch():
    model = nn.Sequential(nn.Linear(3, 3), sphere("newton")).double()
    x = torch.randn(4, 3, dtype=torch.float64)
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    each = vmap(grad(lambda p, x: loss(functional_call(model, p, (x[None],)))), in_dims=(None, 0))(parameters, x)
    for i in range(4):
        model.zero_grad()
        loss(model(x[i : i + 1])).backward()
        for name, p in model.named_parameters():
            assert relative(each[name][i], p.grad) < 1e-10


# Without gradients, and what is saved


@each_problem
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_nothing_is_saved_without_gradients(case: Case, mode):
    saved: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x) or x, lambda x: x), mode():
        y = case.layer(*case.inputs())
    assert y.grad_fn is None
    assert not saved


@each_problem
def test_checkpointing_changes_nothing(case: Case):
    xs = case.inputs()
    plain = gradients(case.layer(*xs), xs, torch.ones_like(case.layer(*xs)))
    again = checkpoint(case.layer, *xs, use_reentrant=False)
    for one, other in zip(gradients(again, xs, torch.ones_like(again)), plain, strict=True):
        assert torch.equal(one, other)


@each_problem
def test_autocast_changes_nothing(case: Case):
    xs = case.inputs(torch.float32)
    plain = case.layer(*xs)
    expected = gradients(plain, xs, torch.ones_like(plain))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = case.layer(*xs)
        found = gradients(y, xs, torch.ones_like(y))
    assert torch.equal(y, plain)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


@each_problem
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_gradients_in_half_precision_are_those_of_single_precision_rounded(case: Case, dtype: torch.dtype):
    xs = tuple(x.detach().to(dtype).requires_grad_() for x in case.inputs())
    xs = xs[:1] if case.name.startswith("transport") else xs  # whose marginals are too coarse
    same = tuple(x.detach().float().requires_grad_() for x in xs)
    y, expected = case.layer(*xs), case.layer(*same)
    assert torch.equal(y, expected.to(dtype))
    v = torch.linspace(-1, 2, y.numel()).view(y.shape).to(dtype)
    for one, other in zip(gradients(y, xs, v), gradients(expected, same, v.float()), strict=True):
        assert near(one.float(), other, torch.finfo(dtype).eps)  # a shared input's may be added up in half precision


# Memory


@each_problem
@pytest.mark.parametrize("layout", ["transposed in memory", "every second", "offset"])
def test_any_memory_layout_of_any_layer(case: Case, layout: str):
    xs = tuple(x.detach() for x in case.inputs())

    def laid_out(x: Tensor) -> Tensor:
        if layout == "transposed in memory":
            return x.mT.contiguous().mT if x.dim() > 1 else x
        if layout == "offset":
            return torch.cat([x.new_full((5,), torch.nan), x.flatten()])[5:].view(x.shape)
        wide = x.new_full((*x.shape, 2), torch.nan)
        wide[..., 0] = x
        return wide[..., 0]

    odd = tuple(laid_out(x).requires_grad_() for x in xs)
    xs = tuple(x.requires_grad_() for x in xs)
    y, expected = case.layer(*odd), case.layer(*xs)
    assert relative(y, expected) < 1e-12
    v = torch.linspace(-1, 2, y.numel(), dtype=y.dtype).view(y.shape)
    for one, other in zip(gradients(y, odd, v), gradients(expected, xs, v), strict=True):
        assert near(one, other, 1e-11)


@each_problem
def test_one_problem_expanded_to_a_batch_collects_its_gradients(case: Case):
    """Strides of zero: the same memory for every problem of the batch."""
    xs = case.inputs()
    size = len(case.layer(*xs))
    ones = [(x.detach()[:1] if x.dim() > 1 and len(x) == size else x.detach()).clone().requires_grad_() for x in xs]
    spread = [
        x.expand(3, *x.shape[1:]) if one.dim() > 1 and len(one) == size else x for x, one in zip(ones, xs, strict=True)
    ]
    y, alone = case.layer(*spread), case.layer(*ones)
    assert relative(y, alone.expand_as(y)) < 1e-12
    for many, one in zip(
        gradients(y, tuple(ones), torch.ones_like(y)),
        gradients(alone, tuple(ones), torch.ones_like(alone)),
        strict=True,
    ):
        assert near(many, 3 * one, 1e-10)


def test_an_output_changed_in_place_is_found_out():
    """The solution is needed in the backward pass, as that of ``exp`` is: never a silent wrong gradient."""
    for solver in SOLVERS.values():
        x = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
        y = sphere(solver)(x)
        y[:, 0] = 0.0
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()
