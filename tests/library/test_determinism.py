"""The same input gives the same bits, whatever happened before and wherever it runs."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor

from declarative import DeclarativeNode
from tests.support.helpers import case as node_case
from tests.support.helpers import gradients, half_square
from tests.support.problem_table import TABLE, Case

each_problem = pytest.mark.parametrize("case", TABLE, ids=lambda case: case.name)
NODES = [("sphere", "newton"), ("simplex", "newton"), ("ball", "scipy"), ("linear-equality", None), ("box", None)]
each_node = pytest.mark.parametrize(("name", "solver"), NODES)
THREADS = 1e-12  # relative: with another number of threads a sum is added up in another order
ALONE = 1e-10  # relative: a batch of one takes other paths through the linear algebra than a batch of many


def outcome(layer: DeclarativeNode, xs: tuple[Tensor, ...]) -> list[Tensor]:
    """Solutions, multipliers, gradients and second derivatives."""
    solution = layer.solve(*xs)
    first = torch.autograd.grad((solution.y + 0.3).pow(3).sum(), xs, create_graph=True)
    second = torch.autograd.grad(sum((g * g).sum() for g in first) + sum(0 * x.sum() for x in xs), xs)
    return [x.detach() for x in (solution.y, solution.multipliers, solution.objective, *first, *second)]


def same_bits(one: list[Tensor], other: list[Tensor]) -> bool:
    return len(one) == len(other) and all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def near(one: Tensor, other: Tensor, tolerance: float) -> bool:
    if not one.numel():
        return one.shape == other.shape
    return float((one - other).detach().abs().max()) <= tolerance * max(1.0, float(other.detach().abs().max()))


def unrelated() -> None:
    """Other calls, among them one that fails."""
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    y = DeclarativeNode(half_square, lambda _, u: u.sum() - 7, start=4)(x)
    y.sum().backward()
    with pytest.raises(ValueError, match="at least one input"):
        DeclarativeNode(half_square, start=4)()
    torch.randn(17)


@each_problem
def test_twice_after_unrelated_calls_and_in_another_thread(case: Case):
    first = outcome(case.layer, case.inputs())
    unrelated()
    torch.manual_seed(99)
    assert same_bits(outcome(case.layer, case.inputs()), first)
    with ThreadPoolExecutor(1) as pool:
        assert same_bits(pool.submit(outcome, case.layer, case.inputs()).result(), first)


@each_node
def test_a_node_twice_after_unrelated_calls_and_in_another_thread(name: str, solver: str | None):
    problem = node_case(name)
    first = outcome(problem.node(solver), problem.xs(4))
    unrelated()
    torch.manual_seed(99)
    assert same_bits(outcome(problem.node(solver), problem.xs(4)), first)
    with ThreadPoolExecutor(1) as pool:
        assert same_bits(pool.submit(outcome, problem.node(solver), problem.xs(4)).result(), first)


@pytest.fixture
def two_threads():
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(1)


@each_problem
def test_two_threads_of_torch(case: Case, two_threads: None):  # noqa: ARG001
    with_two = outcome(case.layer, case.inputs())
    assert same_bits(outcome(case.layer, case.inputs()), with_two)
    torch.set_num_threads(1)
    for one, other in zip(outcome(case.layer, case.inputs()), with_two, strict=True):
        assert near(one, other, THREADS)


@each_node
def test_gradients_of_a_batch_are_those_of_its_problems(name: str, solver: str | None):
    problem = node_case(name)
    xs = problem.xs(5)
    whole = problem.node(solver)(*xs)
    v = torch.linspace(-1, 2, whole.numel(), dtype=whole.dtype).view(whole.shape)
    together = gradients(whole, xs, v)
    for i in range(5):
        part = tuple(x.detach()[i : i + 1].requires_grad_() for x in xs)
        y = problem.node(solver)(*part)
        assert near(y, whole[i : i + 1], ALONE)
        for one, other in zip(gradients(y, part, v[i : i + 1]), together, strict=True):
            assert near(one, other[i : i + 1], ALONE)


@each_node
def test_the_order_of_the_batch_does_not_matter(name: str, solver: str | None):
    problem = node_case(name)
    xs = problem.xs(5)
    order = torch.tensor([3, 0, 4, 1, 2])
    y = problem.node(solver)(*xs)
    assert near(problem.node(solver)(*(x[order] for x in xs)), y[order], ALONE)
