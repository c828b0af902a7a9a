"""A node keeps nothing of a call: several calls in one loss, several threads, copies and pickles."""

import copy
import io
import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from declarative import DeclarativeNode
from tests.support.helpers import case, cases, gradients, half_square, normalise, relative


def unit(_, u):
    return u.square().sum() - 1


NODES = [case(name) for name in ("sphere", "simplex", "ball", "eigenvector", "two inputs")]


@pytest.mark.parametrize("solver", ["closed form", "scipy"])
@pytest.mark.parametrize("problem", cases(NODES))
def test_two_calls_in_one_loss(problem, solver):
    node = problem.node(solver)
    one, two = problem.xs(2, seed=1), problem.xs(3, seed=2)
    first, second = node(*one), node(*two)
    v, w = torch.randn_like(first), torch.randn_like(second)
    together = torch.autograd.grad((v * first).sum() + (w * second).sum(), (*one, *two))
    alone = (*gradients(node(*one), one, v), *gradients(node(*two), two, w))
    assert all(torch.equal(a, b) for a, b in zip(together, alone, strict=True))


@pytest.mark.parametrize("problem", cases(NODES))
def test_eight_threads(problem):
    node = problem.node("closed form")

    def work(seed):
        xs = problem.xs(2 + seed % 3, seed=seed)
        y = node(*xs)
        return gradients(y, xs, torch.ones_like(y))

    with ThreadPoolExecutor(8) as pool:
        threaded = list(pool.map(work, range(12)))
    for seed, found in enumerate(threaded):
        assert all(torch.equal(a, b) for a, b in zip(found, work(seed), strict=True))


def test_the_batch_gives_what_its_problems_give_one_by_one():
    for problem in NODES[:4]:
        xs = problem.xs(4)
        node = problem.node("scipy")
        whole = node(*xs)
        v = torch.randn_like(whole)
        parts = [gradients(node(*(x[i : i + 1] for x in xs)), xs, v[i : i + 1])[0] for i in range(4)]
        assert relative(gradients(whole, xs, v)[0], torch.stack(parts).sum(0)) < 1e-11


def test_pickle_deepcopy_and_save():
    node = DeclarativeNode(half_square, unit, solver=normalise, gradient="curvature")
    x = torch.randn(2, 3)
    for other in (pickle.loads(pickle.dumps(node)), copy.deepcopy(node)):
        assert torch.equal(other(x), node(x))
        assert type(other.gradient).__name__ == "Curvature"
    buffer = io.BytesIO()
    torch.save(nn.Sequential(nn.Linear(3, 3), node), buffer)
    buffer.seek(0)
    assert torch.load(buffer, weights_only=False)(x).shape == (2, 3)


def test_a_node_in_a_model_has_no_parameters_and_moves_along():
    model = nn.Sequential(nn.Linear(3, 3), DeclarativeNode(half_square, unit, solver=normalise)).double()
    assert sum(1 for _ in model.parameters()) == 2
    assert model(torch.randn(2, 3, dtype=torch.float64)).dtype == torch.float64


def test_float32_stays_float32_up_to_the_next_layer():
    model = nn.Sequential(DeclarativeNode(half_square, unit, solver="scipy", start=lambda x: x), nn.Linear(3, 1))
    model(torch.randn(2, 3, requires_grad=True)).sum().backward()


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("solver", [normalise, "scipy"])
def test_without_gradients(mode, solver):
    node = DeclarativeNode(half_square, unit, solver=solver, start=lambda x: x)
    x = torch.randn(2, 3, requires_grad=True)
    with mode():
        y = node(x)
        assert torch.allclose(node(2 * x.detach()), y, atol=1e-6)
    assert not y.requires_grad


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_in_and_out(dtype):
    node = DeclarativeNode(half_square, unit, solver=normalise)
    x = torch.randn(2, 3, dtype=dtype, requires_grad=True)
    y = node(x)
    assert y.dtype == dtype
    (g,) = torch.autograd.grad(y[:, 0].sum(), x)
    assert g.dtype == dtype
    assert torch.allclose(y.float(), normalise(x.float()), atol=1e-2)


def test_autocast_does_not_cost_digits():
    node = DeclarativeNode(half_square, lambda _, u: u @ torch.ones(3) - 1, solver="scipy", start=3)
    x = torch.randn(2, 3, requires_grad=True)
    plain = node(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(node(x), plain)


@pytest.mark.parametrize("layout", ["transposed", "expanded", "strided"])
def test_any_memory_layout(layout):
    node = DeclarativeNode(half_square, unit, solver="scipy", start=lambda x: x)
    base = torch.randn(4, 6, dtype=torch.float64)
    x = {"transposed": base.T, "expanded": base[:1].expand(5, 6), "strided": base[::2, ::3]}[layout]
    assert relative(node(x), normalise(x)) < 1e-12


def test_in_dims_other_than_zero():
    node = DeclarativeNode(half_square, unit, solver=normalise, in_dims=1)
    x = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    y = node(x)
    assert relative(y, normalise(x.T)) < 1e-12
    (g,) = torch.autograd.grad(y[:, 0].sum(), x)
    (expected,) = torch.autograd.grad(normalise(x.T)[:, 0].sum(), x)
    assert relative(g, expected) < 1e-12


def test_a_backward_pass_inside_autocast_does_not_cost_digits():
    root = torch.randn(2, 8, 8)
    matrix = root @ root.mT + 0.1 * torch.eye(8)
    node = DeclarativeNode(lambda Q, x, u: u @ (Q @ u) / 2 - x @ u, lambda Q, x, u: u.sum() - 1, start=8)  # noqa: ARG005
    x = torch.randn(2, 8, requires_grad=True)
    y = node(matrix, x)
    v = torch.randn(2, 8)
    (plain,) = torch.autograd.grad(y, x, v, retain_graph=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        (inside,) = torch.autograd.grad(y, x, v)
    assert torch.equal(plain, inside)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing(reentrant):
    node = DeclarativeNode(half_square, unit, start=lambda x: x)
    x = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    y = torch.utils.checkpoint.checkpoint(node, x, use_reentrant=reentrant)
    (g,) = torch.autograd.grad(y.pow(3).sum(), x) if not reentrant else (None,)
    if reentrant:
        y.pow(3).sum().backward()
        g = x.grad
    x = x.detach().requires_grad_()
    (expected,) = torch.autograd.grad(normalise(x).pow(3).sum(), x)
    assert relative(g, expected) < 1e-10


def test_saved_tensors_on_the_cpu():
    node = DeclarativeNode(half_square, unit, start=lambda x: x)
    x = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    with torch.autograd.graph.save_on_cpu():
        y = node(x)
    (g,) = torch.autograd.grad(y.sum(), x)
    (expected,) = torch.autograd.grad(normalise(x).sum(), x)
    assert relative(g, expected) < 1e-10


def test_in_a_compiled_model():
    torch._dynamo.reset()
    model = nn.Sequential(nn.Linear(3, 3), DeclarativeNode(half_square, unit, start=lambda x: x)).double()
    x = torch.randn(2, 3, dtype=torch.float64)
    compiled = torch.compile(model, backend="eager")
    assert relative(compiled(x), model(x)) < 1e-12
    compiled(x).pow(3).sum().backward()
    found = model[0].weight.grad.clone()
    model.zero_grad()
    model(x).pow(3).sum().backward()
    assert relative(found, model[0].weight.grad) < 1e-12
