"""Recorded derivatives: the same numbers as without, and never those of functions that have changed since."""

import copy
import pickle
import threading

import pytest
import torch
from torch import nn

from declarative import DeclarativeNode
from declarative.recording.cache import SIGNATURES, Graph
from tests.support.helpers import DOUBLE, REGULAR, RULES, gradients, relative


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)


def plane(x):  # the nearest point with sum 1
    return x - (x.sum(-1, keepdim=True) - 1) / x.shape[-1]


def graphs(node):
    """The graphs that a node has recorded."""
    known = node._spec.recordings._known.values()
    return [graph for recording in known for graph in recording.graphs.values() if isinstance(graph, Graph)]


EVERY = [(case, "closed form", "exact") for case in REGULAR]
FEW = [(case, "closed form", rule) for case in REGULAR[:3] for rule in RULES[1:]]
FEW += [(case, "newton", "exact") for case in REGULAR[::3]]


@pytest.mark.parametrize(("case", "solver", "rule"), EVERY + FEW, ids=str)
def test_the_same_numbers_as_without(case, solver, rule):
    results = []
    for record in (False, True):
        node, xs = case.node(solver, record=record, gradient=rule), case.xs(4)
        for _ in range(2):  # the second time everything is replayed
            y = node(*xs)
            found = gradients(y, xs, randn(*y.shape))
        results.append((y.detach(), *found))
    assert graphs(node)
    for without, recorded in zip(*results, strict=True):
        assert relative(recorded, without) < 1e-11


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_lower_precision(dtype):
    node = DeclarativeNode(lambda x, u: (u - x).square().sum(), lambda _, u: u.sum() - 1, start=3, record=True)
    x = randn(5, 3).to(dtype).requires_grad_()
    for _ in range(2):
        (grad,) = torch.autograd.grad(node(x)[:, 0].sum(), x)
    assert node(x).dtype == grad.dtype == dtype
    assert relative(grad.double(), torch.tensor([2.0, -1.0, -1.0]).double().expand(5, 3) / 3) < 1e-2


def spoiled(tensor):
    copied = tensor.clone()
    tensor.zero_()
    return copied


class Scaled(nn.Module):
    """A problem with everything that a recording could bake in."""

    def __init__(self):
        super().__init__()
        self.number = 1.0
        self.register_buffer("small", torch.ones(3, dtype=DOUBLE))
        self.large = torch.ones(400, 3, dtype=DOUBLE)
        self.settings = {"squared": True}
        self.frozen = False

    def objective(self, x, u):
        weight = self.number * self.small * self.large.mean(0)
        bent = u.pow(4).sum() if not self.settings["squared"] else u.square().sum()
        if self.frozen:
            with torch.no_grad():
                x = x * torch.ones_like(x)
        return (u - weight * x * 1.0).square().sum() + bent

    def equality(self, _, u):
        return u.sum() - self.number


def swap_first_rows(problem):
    problem.large.data[[0, 1]] = problem.large.data[[1, 0]]
    problem.large.data[0] = 5.0


CHANGES = {
    "a large tensor through .data": lambda p: p.large.data.mul_(3.0),
    "a large tensor, entries in another order": swap_first_rows,
    "a small tensor replaced by its copy, and the old one spoiled": lambda p: (
        setattr(p, "number", 2.0),
        setattr(p, "large", p.large.clone()),
        p.register_buffer("small", spoiled(p.small)),
    ),
    "a number": lambda p: setattr(p, "number", 2.0),
    "a small tensor in place": lambda p: p.small.mul_(3.0),
    "a small tensor replaced": lambda p: setattr(p, "small", torch.tensor([1.0, 2.0, 3.0], dtype=DOUBLE)),
    "a large tensor in place": lambda p: p.large.mul_(3.0),
    "a large tensor replaced": lambda p: setattr(p, "large", 2 * p.large),
    "a branch": lambda p: p.settings.update(squared=False),
    "a derivative that is switched off": lambda p: setattr(p, "frozen", True),
}


SOLVED = [("newton", change) for change in CHANGES] + [("scipy", "a number"), ("scipy", "a large tensor in place")]


@pytest.mark.parametrize(("solver", "change"), SOLVED)
def test_a_change_of_what_the_functions_capture_shows_at_once(solver, change):
    def answer(node):
        x = randn(4, 3).requires_grad_()
        solution = node.solve(x)
        return (solution.y.detach(), *torch.autograd.grad(solution.y.square().sum(), x))

    def node(record):
        return DeclarativeNode(problem.objective, problem.equality, solver=solver, start=3, record=record)

    problem = Scaled()
    recorded = node(True)
    for _ in range(2):
        before = answer(recorded)
    CHANGES[change](problem)
    after, truth = answer(recorded), answer(node(False))
    assert any(relative(now, then) > 1e-3 for now, then in zip(after, before, strict=True)) or problem.frozen
    for now, expected in zip(after, truth, strict=True):
        assert relative(now, expected) < 1e-9


def test_a_change_between_forward_and_backward_is_not_mixed_in():
    weights = torch.ones(300, 3, dtype=DOUBLE)
    node = DeclarativeNode(
        lambda x, u: ((u - x).square() * weights.mean(0)).sum(), solver=lambda x: x.clone(), record=True
    )
    x = randn(2, 3).requires_grad_()
    for _ in range(2):
        torch.autograd.grad(node(x).sum(), x)
    y = node(x)
    weights.mul_(5.0)  # neither half of the old gradient nor half of the new one: B and H scale alike
    (grad,) = torch.autograd.grad(y.sum(), x)
    assert relative(grad, torch.ones(2, 3, dtype=DOUBLE)) < 1e-12


def test_a_shared_input_may_decide_what_a_function_does():
    node = DeclarativeNode(
        lambda w, x, u: (u - x).square().sum() if w > 0 else (u + x).square().sum(),
        solver=lambda w, x: x.clone() if w > 0 else -x,
        in_dims=(None, 0),
        record=True,
    )
    x = randn(2, 3).requires_grad_()
    for _ in range(2):
        for sign in (1.0, -1.0):
            (grad,) = torch.autograd.grad(node(torch.tensor(sign, dtype=DOUBLE), x).sum(), x)
            assert relative(grad, torch.full((2, 3), sign, dtype=DOUBLE)) < 1e-12


SCALE = 1.0


def test_a_global_number():
    global SCALE
    node = DeclarativeNode(lambda x, u: (u - SCALE * x).square().sum(), start=3, record=True)
    x = randn(2, 3).requires_grad_()
    for value in (1.0, 1.0, 4.0):
        SCALE = value
        (grad,) = torch.autograd.grad(node(x).sum(), x)
        assert relative(grad, torch.full((2, 3), value, dtype=DOUBLE)) < 1e-12


def test_a_number_in_a_closure():
    scale = 1.0

    def objective(x, u):
        return (u - scale * x).square().sum()

    node = DeclarativeNode(objective, start=3, record=True)
    x = randn(2, 3).requires_grad_()
    for value in (1.0, 1.0, 4.0):
        scale = value
        (grad,) = torch.autograd.grad(node(x).sum(), x)
        assert relative(grad, torch.full((2, 3), value, dtype=DOUBLE)) < 1e-12


class Halved(torch.autograd.Function):
    """A derivative that no operation of the forward pass tells of."""

    factor = 1.0
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x * 1.0

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(_, grad):
        return grad * Halved.factor


def test_an_autograd_function_is_not_recorded():
    node = DeclarativeNode(lambda x, u: (u - Halved.apply(x)).square().sum(), solver=lambda x: x.clone(), record=True)
    x = randn(2, 3).requires_grad_()
    for factor in (1.0, 1.0, 3.0):
        Halved.factor = factor
        (grad,) = torch.autograd.grad(node(x).sum(), x)
        assert relative(grad, torch.full((2, 3), factor, dtype=DOUBLE)) < 1e-12
    assert not graphs(node)


def test_matrices_of_one_problem_each_are_not_copied_for_every_unit_vector():
    n, p, batch = 30, 5, 8
    root, normals = randn(batch, n, n), randn(batch, p, n, seed=1)
    xs = (root @ root.mT / n + torch.eye(n, dtype=DOUBLE), randn(batch, n, seed=2), normals, randn(batch, p, seed=3))
    xs = tuple(x.requires_grad_() for x in xs)
    node = DeclarativeNode(
        lambda Q, q, _A, _b, u: u @ Q @ u / 2 + q @ u,
        lambda _Q, _q, A, b, u: A @ u - b,
        solver="newton",
        start=n,
        record=True,
    )
    Q, q, A, b = xs
    zero = torch.zeros(batch, p, p, dtype=DOUBLE)
    matrix = torch.cat([torch.cat([(Q + Q.mT) / 2, A.mT], -1), torch.cat([A, zero], -1)], -2)
    truth = torch.linalg.solve(matrix, torch.cat([-q, b], -1).unsqueeze(-1))[:, :n, 0]
    v = randn(batch, n, seed=4)
    for _ in range(2):
        y = node(*xs)
        found = gradients(y, xs, v)
    assert relative(y.detach(), truth.detach()) < 1e-12
    for grad, expected in zip(found, gradients(truth, xs, v), strict=True):
        assert relative(grad, expected) < 1e-11
    operations = [step for graph in graphs(node) for step in graph._forward.__self__.graph.nodes]
    assert operations
    assert not [step for step in operations if "clone" in str(step.target) and step.args[0].op != "get_attr"]


def test_the_cache_is_bounded_and_belongs_to_the_node(monkeypatch):
    monkeypatch.setattr("declarative.recording.cache.GRAPHS", 5)
    scale = [1.0]
    node = DeclarativeNode(lambda x, u: (u - scale[0] * x).square().sum(), solver=lambda x: scale[0] * x, record=True)
    for i in range(2 * SIGNATURES):
        scale[0] = 1.0 + i
        node(randn(2, 3))
    recordings = node._spec.recordings
    assert len(recordings._known) <= SIGNATURES
    for batch in range(1, 12):
        node(randn(batch, 1))
    assert all(len(recording.graphs) <= 5 and len(recording.inspected) <= 5 for recording in recordings._known.values())
    assert not copy.deepcopy(node)._spec.recordings._known
    simple = DeclarativeNode(torch.nn.functional.mse_loss, solver=torch.clone, record=True)
    simple(randn(2, 3))
    assert not pickle.loads(pickle.dumps(simple))._spec.recordings._known


def test_by_default_only_what_is_seen_often_is_recorded():
    node = DeclarativeNode(lambda x, u: (u - x).square().sum(), lambda _, u: u.sum() - 1, solver=plane)
    for _ in range(3):
        node(randn(2, 3))
    assert not graphs(node)
    for _ in range(60):
        node(randn(2, 3))
    assert graphs(node)
    off = DeclarativeNode(lambda x, u: (u - x).square().sum(), lambda _, u: u.sum() - 1, solver=plane, record=False)
    for _ in range(60):
        off(randn(2, 3))
    assert not graphs(off)


def test_several_threads():
    node = DeclarativeNode(lambda x, u: (u - x).pow(4).sum() + u.square().sum(), start=3, record=True)
    x = randn(6, 3)
    truth, found = node(x), [None] * 4

    def work(i):
        found[i] = node(x)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(relative(y, truth) < 1e-12 for y in found)


def test_record_must_be_a_choice():
    with pytest.raises(ValueError, match="record must be None, True or False"):
        DeclarativeNode(lambda x, u: (u - x).square().sum(), start=3, record="yes")


STEP = 1.0


def test_a_global_number_that_is_read_in_a_roundabout_way():
    global STEP
    node = DeclarativeNode(lambda x, u: (u - globals()["STEP"] * x).square().sum(), start=3, record=True)
    x = randn(2, 3).requires_grad_()
    for value in (1.0, 1.0, 4.0):
        STEP = value
        (grad,) = torch.autograd.grad(node(x).sum(), x)
        assert relative(grad, torch.full((2, 3), value, dtype=DOUBLE)) < 1e-12


def test_what_is_returned_belongs_to_the_caller():
    weights = torch.tensor([1.0, 2.0, 4.0], dtype=DOUBLE)
    node = DeclarativeNode(
        lambda x, u: (weights * (u - x).square()).sum(), lambda _, u: u.sum() - 1, start=3, record=True
    )
    x = randn(1, 3).requires_grad_()
    results = []
    for _ in range(3):
        solution, derivatives = node.solve(x.detach()), node.derivatives(x.detach())
        (grad,) = torch.autograd.grad(node(x)[:, 0].sum(), x)
        tensors = [solution.y, solution.multipliers, derivatives.A, derivatives.H, derivatives.B, derivatives.C, grad]
        results.append([tensor.clone() for tensor in tensors])
        for tensor in tensors:
            tensor.fill_(7.0)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(other, results[0], strict=True))
