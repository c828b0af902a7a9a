"""Any layer in the modes of PyTorch: gradients off, autocast, saved tensors, defaults, precisions, memory layouts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from declarative import check, compare
from tests.support.helpers import gradients, normalise, relative
from tests.support.layers import SOLVERS, each_layer, loss, near, same_bits, some_of, sphere
from tests.support.problem_table import Case


def weights(y: Tensor) -> Tensor:
    return torch.linspace(-1, 2, y.numel(), dtype=y.dtype).view(y.shape)


# Without gradients, and what is saved


@each_layer
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients_the_solution_is_the_same_and_nothing_is_saved(case: Case, mode):
    saved: list[Tensor] = []
    xs = case.inputs()
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x) or x, lambda x: x), mode():
        y, again = case.layer(*xs), case.layer(*(x + 0 for x in xs))  # the latter are made in this mode
    assert y.grad_fn is None
    assert not saved
    assert same_bits((y, again), [case.layer(*xs).detach()] * 2)


def on_the_cpu(layer: Callable[..., Tensor], *xs: Tensor) -> Tensor:
    with torch.autograd.graph.save_on_cpu():
        return layer(*xs)


SAVING = {
    "checkpoint": lambda layer, *xs: checkpoint(layer, *xs, use_reentrant=False),
    "reentrant checkpoint": lambda layer, *xs: checkpoint(layer, *xs, use_reentrant=True),
    "save_on_cpu": on_the_cpu,
}


@each_layer
@pytest.mark.parametrize("way", SAVING.values(), ids=SAVING)
def test_how_tensors_are_saved_changes_no_gradient(case: Case, way):
    found, expected = case.inputs(), case.inputs()
    loss(way(case.layer, *found)).backward()
    loss(case.layer(*expected)).backward()
    assert same_bits([x.grad for x in found], [x.grad for x in expected])


@each_layer
def test_autocast_costs_no_digits(case: Case):
    """In neither pass, or in the backward pass alone."""
    xs = case.inputs(torch.float32)
    plain = case.layer(*xs)
    v = torch.ones_like(plain)
    expected = torch.autograd.grad(plain, xs, v, retain_graph=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = case.layer(*xs)
        found, backward = gradients(y, xs, v), gradients(plain, xs, v)
    assert same_bits((y, *found, *backward), (plain, *expected, *expected))


def test_an_output_changed_in_place_is_found_out():
    """The solution is needed in the backward pass, as that of ``exp`` is: never a silent wrong gradient."""
    for solver in SOLVERS.values():
        x = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
        y = sphere(solver)(x)
        y[:, 0] = 0.0
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()


# Default device and default dtype


def everything(case: Case, xs: Sequence[Tensor]) -> list[Tensor]:
    """A forward pass, two backward passes, and all that is known of the solutions."""
    solution = case.layer.solve(*xs)
    first = torch.autograd.grad(loss(solution.y), xs, create_graph=True)
    second = torch.autograd.grad(sum((g * g).sum() for g in first) + sum(0 * x.sum() for x in xs), xs)
    d = case.layer.derivatives(*xs)
    return [solution.y, solution.multipliers, solution.objective, *first, *second, d.A, d.B, d.C, d.H]


@contextmanager
def default(of: torch.device | torch.dtype) -> Iterator[None]:
    """A tensor that is made without a device ends up without values on "meta"; one without a dtype has this one."""
    if isinstance(of, torch.device):
        with of:
            yield
        return
    before = torch.get_default_dtype()
    torch.set_default_dtype(of)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


DEFAULTS = {torch.float64: [torch.device("meta")], torch.float32: [torch.float64, torch.float16]}


@each_layer
@pytest.mark.parametrize("dtype", DEFAULTS, ids=str)
def test_defaults_do_not_matter(case: Case, dtype: torch.dtype):
    xs = case.inputs(dtype)
    expected = everything(case, xs)
    for of in DEFAULTS[dtype]:
        with default(of):
            found = everything(case, xs)
        assert {(one.device.type, one.dtype) for one in found} == {("cpu", dtype)}
        assert same_bits(found, expected)


REPORTS = {
    "compare": lambda x: compare(sphere(), normalise, x, seconds=0).agrees(),
    "check": lambda x: check(sphere(), x).passed,
    "descent": lambda x: sphere().descent(x, x)["identity"].verdict,
}


@pytest.mark.parametrize("report", REPORTS.values(), ids=REPORTS)
def test_reports_do_not_use_the_default_device(report):
    x = torch.randn(2, 3, dtype=torch.float64)
    with torch.device("meta"):
        assert report(x)


# Precision and memory


@each_layer
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_gradients_in_half_precision_are_those_of_single_precision_rounded(case: Case, dtype: torch.dtype):
    xs = tuple(x.detach().to(dtype).requires_grad_() for x in case.inputs())
    xs = xs[:1] if case.name.startswith("transport") else xs  # whose marginals are too coarse
    same = tuple(x.detach().float().requires_grad_() for x in xs)
    y, expected = case.layer(*xs), case.layer(*same)
    assert torch.equal(y, expected.to(dtype))
    v = weights(expected).to(dtype)
    for one, other in zip(gradients(y, xs, v), gradients(expected, same, v.float()), strict=True):
        assert one.dtype == dtype
        assert near(one.float(), other, torch.finfo(dtype).eps)  # a shared input's may be added up in half precision


def every_second(x: Tensor) -> Tensor:
    wide = x.new_full((*x.shape, 2), torch.nan)
    wide[..., 0] = x
    return wide[..., 0]


LAYOUTS = {
    "transposed in memory": lambda x: x.mT.contiguous().mT if x.dim() > 1 else x,
    "every second": every_second,
    "offset": lambda x: torch.cat([x.new_full((5,), torch.nan), x.flatten()])[5:].view(x.shape),
}


@each_layer
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_any_memory_layout_of_any_layer(case: Case, layout):
    xs = case.inputs()
    odd = tuple(layout(x.detach()).requires_grad_() for x in xs)
    y, expected = case.layer(*odd), case.layer(*xs)
    assert relative(y, expected) < 1e-12
    for one, other in zip(gradients(y, odd, weights(y)), gradients(expected, xs, weights(y)), strict=True):
        assert near(one, other, 1e-11)


@each_layer
def test_one_problem_expanded_to_a_batch_collects_its_gradients(case: Case):
    """Strides of zero: the same memory for every problem of the batch."""
    xs = case.inputs()
    ones = some_of(xs, len(case.layer(*xs)), slice(1))
    spread = [one if one.shape == x.shape else one.expand(3, *x.shape[1:]) for one, x in zip(ones, xs, strict=True)]
    y, alone = case.layer(*spread), case.layer(*ones)
    assert relative(y, alone.expand_as(y)) < 1e-12
    for many, one in zip(
        gradients(y, ones, torch.ones_like(y)), gradients(alone, ones, torch.ones_like(alone)), strict=True
    ):
        assert near(many, 3 * one, 1e-10)
