"""A call depends on its inputs alone: not on other calls, threads, or the other problems of a batch; nor do copies."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from declarative import DeclarativeNode
from tests.support.helpers import gradients, half_square, in_threads, normalise, unit
from tests.support.layers import LAYERS, each_layer, near, node_case, same_bits, some_of
from tests.support.problem_table import Case

THREADS = 1e-12  # relative: with another number of threads a sum is added up in another order
BY_SCIPY = [node_case(name, "scipy") for name in ("simplex", "u a matrix", "u a scalar")]
ALONE = 1e-11  # relative: a batch of one takes other paths through the linear algebra than a batch of many


def outcome(layer: DeclarativeNode, xs: Sequence[Tensor]) -> list[Tensor]:
    """Solutions, multipliers, gradients and second derivatives."""
    solution = layer.solve(*xs)
    first = torch.autograd.grad((solution.y + 0.3).pow(3).sum(), xs, create_graph=True)
    second = torch.autograd.grad(sum((g * g).sum() for g in first) + sum(0 * x.sum() for x in xs), xs)
    return [x.detach() for x in (solution.y, solution.multipliers, solution.objective, *first, *second)]


def unrelated() -> None:
    """Other calls, among them one that fails."""
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    DeclarativeNode(half_square, lambda _, u: u.sum() - 7, start=4)(x).sum().backward()
    with pytest.raises(ValueError, match="at least one input"):
        DeclarativeNode(half_square, start=4)()
    torch.manual_seed(99)


@each_layer
def test_the_same_bits_after_unrelated_calls_and_in_several_threads(case: Case):
    inputs = [case.inputs(seed=seed) for seed in (3, 4)]
    inputs.append(some_of(inputs[0], len(case.layer(*inputs[0])), slice(1)))  # a batch of another size
    expected = [outcome(case.layer, xs) for xs in inputs]
    unrelated()
    assert same_bits(outcome(case.layer, inputs[0]), expected[0])
    threaded = in_threads(lambda xs: outcome(case.layer, xs), [*inputs, inputs[0]])
    for found, truth in zip(threaded, [*expected, expected[0]], strict=True):
        assert same_bits(found, truth)


@each_layer
def test_two_calls_in_one_loss(case: Case):
    one, two = case.inputs(), case.inputs(seed=4)
    first, second = case.layer(*one), case.layer(*two)
    v, w = torch.randn_like(first), torch.randn_like(second)
    together = torch.autograd.grad((v * first).sum() + (w * second).sum(), (*one, *two))
    alone = (*gradients(case.layer(*one), one, v), *gradients(case.layer(*two), two, w))
    assert same_bits(together, alone)


@pytest.fixture
def two_threads():
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(1)


@each_layer
def test_two_threads_of_torch(case: Case, two_threads: None):  # noqa: ARG001
    with_two = outcome(case.layer, case.inputs())
    assert same_bits(outcome(case.layer, case.inputs()), with_two)
    torch.set_num_threads(1)
    for one, other in zip(outcome(case.layer, case.inputs()), with_two, strict=True):
        assert near(one, other, THREADS)


@each_layer
def test_a_batch_gives_what_its_problems_give_one_by_one_and_in_another_order(case: Case):
    xs = case.inputs()
    whole = case.layer(*xs)
    size, v = len(whole), torch.randn_like(whole)
    shared = [not (x.dim() > 1 and len(x) == size) for x in xs]
    parts = [torch.tensor([i]) for i in range(size)] + [torch.arange(size).flip(0)]
    together, sums = gradients(whole, xs, v), [torch.zeros_like(x) for x in xs]
    for rows in parts:
        part = some_of(xs, size, rows)
        y = case.layer(*part)
        assert near(y, whole[rows], ALONE)
        for i, g in enumerate(gradients(y, part, v[rows])):
            if shared[i]:
                sums[i] += g
            else:
                assert near(g, together[i][rows], ALONE)
    for i in range(len(xs)):  # what is shared has the sum of their gradients, once by one and once together
        assert not shared[i] or near(sums[i], 2 * together[i], ALONE)


@pytest.mark.parametrize("case", [*LAYERS, *BY_SCIPY], ids=lambda case: case.name)
def test_an_empty_batch_gives_an_empty_result_and_zero_gradients(case: Case):
    xs = case.inputs()
    whole = case.layer(*xs)
    empty = some_of(xs, len(whole), slice(0))
    y = case.layer(*empty)
    assert y.shape == (0, *whole.shape[1:])
    for x, g in zip(empty, torch.autograd.grad(y.sum(), empty), strict=True):
        assert g.shape == x.shape
        assert not g.any()
    assert case.layer.derivatives(*empty).H.shape == (0, *case.layer.derivatives(*xs).H.shape[1:])
    assert torch.vmap(case.layer)(*(torch.stack([x, x]) for x in empty)).shape == (2, *y.shape)


def test_pickle_deepcopy_and_save():
    node = DeclarativeNode(half_square, unit, solver=normalise, gradient="curvature")
    x = torch.randn(2, 3)
    for other in (pickle.loads(pickle.dumps(node)), copy.deepcopy(node)):
        assert torch.equal(other(x), node(x))
        assert type(other.gradient).__name__ == "Curvature"
    model, buffer = nn.Sequential(nn.Linear(3, 3), node), io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    assert torch.equal(torch.load(buffer, weights_only=False)(x), model(x))
