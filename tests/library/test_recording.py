"""Recording is a contract: pure functions are traced once and give the same numbers; others are refused."""

import copy
import pickle

import pytest
import torch
from torch import nn

from declarative import DeclarativeNode
from declarative.kernels.library import available
from declarative.recording import RecordingError
from declarative.recording.graph import record
from declarative.recording.trace import trace
from tests.support.helpers import DOUBLE, REGULAR, RULES, gradients, in_threads, relative


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)


def plane(x):  # the nearest point with sum 1
    return x - (x.sum(-1, keepdim=True) - 1) / x.shape[-1]


def graphs(node):
    """The graphs that a node has recorded, in all modes of its functions."""
    recordings = node.spec.plan.recordings
    every = (recordings, *recordings._modes.values())
    return [graph for one in every for graph in (*one._graphs.values(), *one._tapes.values())]


@pytest.fixture(params=[True, False], ids=["tape", "graph"])
def way(request, monkeypatch):
    """How what was recorded is run: as a tape, if there is a compiled core, or operation by operation."""
    monkeypatch.setattr("declarative.recording.cache.available", lambda: request.param and available())


EVERY = [(case, "closed form", "exact") for case in REGULAR]
FEW = [(case, "closed form", rule) for case in REGULAR[:2] for rule in RULES[1:]]
FEW += [(case, "newton", "exact") for case in REGULAR[::4]]


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize(("case", "solver", "rule"), EVERY + FEW, ids=str)
def test_the_same_numbers_as_called(case, solver, rule):
    results = []
    for recorded in (False, True):
        node, xs = case.node(solver, record=recorded, gradient=rule), case.xs(4)
        for _ in range(2):  # the second time everything is replayed
            y = node(*xs)
            grads = gradients(y, xs, torch.ones_like(y))
        results.append((y.detach(), *grads))
    for called, recorded in zip(*results, strict=True):
        assert relative(recorded, called) < 1e-12


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_lower_precision(dtype):
    x = randn(4, 3).to(dtype).requires_grad_()
    node = DeclarativeNode(
        lambda x, u: (u - x).square().sum(), lambda _, u: u.sum() - 1, solver="newton", start=3, record=True
    )
    for _ in range(2):
        y = node(x)
        assert y.dtype == dtype
        assert relative(y.float(), plane(x.float())) < (1e-6 if dtype == torch.float32 else 1e-2)
    assert torch.autograd.grad(y.sum(), x)[0].isfinite().all()


class Counted:
    """A function that knows how often it was called."""

    def __init__(self):
        self.calls = 0

    def __call__(self, x, u):
        self.calls += 1
        return (u - x).square().sum()


@pytest.mark.parametrize("record", [False, True])
def test_by_default_functions_are_called_and_recorded_ones_are_not(record):
    function, x = Counted(), randn(4, 3).requires_grad_()
    node = DeclarativeNode(function, lambda _, u: u.sum() - 1, solver="newton", start=3, record=record)
    for _ in range(60):  # no number of calls turns one into the other
        torch.autograd.grad(node(x).sum(), x)
    before = function.calls
    torch.autograd.grad(node(x).sum(), x)
    assert (function.calls == before) is record


# What is captured; that its values are read anew is tested in test_captured.py


class Module(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.tensor(2.0, dtype=DOUBLE))

    def forward(self, x, u):
        return (u - self.scale * x).square().sum()


def test_a_captured_tensor_of_another_precision_is_traced_anew():
    scale, x = torch.tensor(2.0), randn(4, 3)
    node = DeclarativeNode(lambda x, u: (u - scale * x).square().sum(), solver="newton", start=3, record=True)
    node(x)
    scale.data = torch.tensor(5.0, dtype=DOUBLE)
    assert relative(node(x), 5 * x) < 1e-12


@pytest.mark.parametrize("dtype", [DOUBLE, torch.float32], ids=["tape", "graph"])
def test_inputs_of_another_shape_are_not_replayed_by_the_same_recording(dtype):
    node = DeclarativeNode(
        lambda x, u: (u - x).pow(4).sum() + u.sum(), solver=lambda x: x - 0.25 ** (1 / 3), record=True
    )
    for shape in ((4, 3), (4, 5), (7, 3), (4, 3)):
        x = randn(*shape).to(dtype).requires_grad_()
        y = node(x)
        assert relative(y.detach(), x.detach() - 0.25 ** (1 / 3)) < 1e-6
        assert relative(torch.autograd.grad(y.sum(), x)[0], torch.ones_like(x)) < 1e-5


@pytest.mark.parametrize("dtype", [DOUBLE, torch.float32], ids=["tape", "graph"])
def test_a_captured_tensor_of_another_shape_is_not_replayed(dtype):
    scale, x = torch.ones(2, dtype=dtype), randn(4, 3).to(dtype)
    node = DeclarativeNode(
        lambda x, u: (u - scale.sum() / len(scale) * x).square().sum(), solver="newton", start=3, record=True
    )
    node(x)
    scale.data = torch.ones(4, dtype=dtype)
    with pytest.raises(RecordingError, match="have changed"):
        node(x)


def test_a_captured_tensor_that_comes_to_need_a_gradient_is_refused():
    scale, x = torch.tensor(2.0, dtype=DOUBLE), randn(4, 3).requires_grad_()
    node = DeclarativeNode(lambda x, u: (u - scale * x).square().sum(), solver="newton", start=3, record=True)
    node(x)
    scale.requires_grad_()
    with pytest.raises(ValueError, match="other than through its arguments"):
        node(x)


def test_numbers_are_frozen():
    setting, x = {"scale": 2.0}, randn(4, 3).requires_grad_()
    node = DeclarativeNode(
        lambda x, u: (u - setting["scale"] * x).square().sum(), solver="newton", start=3, record=True
    )
    for _ in range(2):
        y = node(x)
        (grad,) = torch.autograd.grad(y.sum(), x)
        assert relative(y.detach(), 2 * x.detach()) < 1e-12
        assert relative(grad, torch.full_like(x, 2.0)) < 1e-12
        setting["scale"] = 3.0


def test_a_change_between_forward_and_backward_is_refused_not_mixed_in():
    setting, x = {"scale": 1.0}, randn(4, 3).requires_grad_()
    node = DeclarativeNode(
        lambda x, u: (u - setting["scale"] * x).square().sum(), solver=lambda x: 1.0 * x, record=True
    )
    y = node(x)
    setting["scale"] = 3.0
    with pytest.raises(RecordingError, match="have changed since they were recorded"):
        torch.autograd.grad(y.sum(), x)
    setting["scale"] = 1.0  # and nothing is left of it
    assert relative(torch.autograd.grad(node(x).sum(), x)[0], torch.ones_like(x)) < 1e-12


# What is refused


def counter():
    count = iter(range(1000))
    return lambda x, u: (u - x).square().sum() + next(count) * 0.1


REFUSED = {
    "a shape by values": (
        lambda x, w, u: (u - x).square().sum() + torch.masked_select(w, w > 0).mean() * u.sum(),
        "shape",
    ),
    "a mask": (lambda x, w, u: (u - x).square().sum() + w[w > 0].mean() * u.sum(), "shape of the result of u.mask."),
    "a number": (lambda x, w, u: (u - x).square().sum() + w[0].item() * u.sum(), "Python number"),
    "a branch": (lambda x, w, u: (u - x).square().sum() * (2 if w.sum() > 0 else 1), "decision"),
}


@pytest.mark.parametrize(("function", "words"), REFUSED.values(), ids=REFUSED)
def test_what_depends_on_values_is_refused_with_the_remedy(function, words):
    x, w = randn(4, 3), torch.tensor([1.0, -2.0, 3.0], dtype=DOUBLE)
    node = DeclarativeNode(function, start=3, in_dims=(0, None), record=True)
    with pytest.raises(RecordingError, match=rf"(?s){words}.*record=False"):
        node(x, w)


def test_a_normalisation_inside_of_a_module_is_recorded():
    class Energy(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.out = torch.nn.LayerNorm(6, dtype=DOUBLE), torch.nn.Linear(6, 1, dtype=DOUBLE)

        def forward(self, x, u):
            return self.out(torch.tanh(self.norm(torch.cat([x, u])))).sum() + u.square().sum()

    energy, x = Energy(), randn(4, 3)
    recorded = DeclarativeNode(energy, start=3, record=True)(x)
    assert (recorded - DeclarativeNode(energy, start=3, record=False)(x)).abs().max() < 1e-8


def test_a_shape_that_depends_on_values_is_refused_with_the_remedy():
    def objective(x, u):
        matrix = torch.outer(u, u) + 3 * torch.eye(3, dtype=DOUBLE)
        return torch.linalg.lstsq(matrix, x[:, None]).solution.sum() + 5 * u.square().sum()

    x = randn(4, 3)
    assert DeclarativeNode(objective, start=3)(x).shape == x.shape
    with pytest.raises(RecordingError, match=r"depends on values.*record=False"):
        DeclarativeNode(objective, start=3, record=True)(x)


def test_whole_number_indices_are_recorded():
    places = torch.tensor([2, 0, 0])
    node = DeclarativeNode(
        lambda x, u: (u - x).square().sum() + (u[places] ** 4).sum() + (u[[1]] ** 4).sum(),
        start=3,
        solver="newton",
        record=True,
    )
    x = torch.randn(4, 3, dtype=torch.float64)
    assert torch.allclose(node(x), node.with_plan(recordings=None, sizes=None)(x), rtol=1e-12)


def test_a_shared_input_may_decide_where_functions_are_called():
    w = torch.tensor([1.0, -2.0, 3.0], dtype=DOUBLE, requires_grad=True)
    x = randn(4, 3).requires_grad_()
    node = DeclarativeNode(
        lambda x, w, u: (u - torch.masked_select(w, w > 0).mean() * x).square().sum(), start=3, in_dims=(0, None)
    )
    for positive in (2, 1):
        (grad,) = torch.autograd.grad(node(x, w).sum(), w)
        truth = torch.where(w > 0, x.detach().sum() / positive, 0.0)
        assert relative(grad, truth) < 1e-9
        w = torch.tensor([1.0, -2.0, -3.0], dtype=DOUBLE, requires_grad=True)


def test_what_differs_from_call_to_call_is_refused():
    function = counter()
    node = DeclarativeNode(function, start=3, record=True)
    with pytest.raises(RecordingError, match="do not do the same operations every time"):
        node(randn(4, 3))


def test_an_error_of_the_users_function_comes_through():
    def wrong(x, u):
        if not u.requires_grad:
            raise KeyError("mine")
        return (u - x).square().sum()

    node = DeclarativeNode(wrong, start=3, record=True)
    with pytest.raises(KeyError, match="mine"):
        node(randn(4, 3))


# Memory


def storages(*tensors):
    return [x.untyped_storage().data_ptr() for x in tensors]


@pytest.mark.parametrize("record", [False, True])
@pytest.mark.parametrize("rule", RULES)
def test_gradients_own_their_memory(record, rule):
    node = DeclarativeNode(
        lambda a, b, u: (u + a + b).square().sum(), start=3, record=record, gradient=rule, solver="newton"
    )
    a, b = randn(4, 3).requires_grad_(), randn(4, 3, seed=1).requires_grad_()
    for _ in range(3):
        y = node(a, b)
        v = torch.ones_like(y)
        grads = torch.autograd.grad(y, (a, b), v)
        assert len(set(storages(a, b, v, y, *grads))) == 6
        before = grads[1].clone()
        grads[0].mul_(7)
        assert torch.equal(grads[1], before)


def test_a_zero_gradient_is_made_of_entries_of_its_own():
    node = DeclarativeNode(lambda x, u: (u - 1).square().sum() + 0 * x.sum(), solver="newton", start=2, record=True)
    x = torch.zeros(1, 70_000, dtype=DOUBLE, requires_grad=True)
    for _ in range(2):
        (grad,) = torch.autograd.grad(node(x).sum(), x)
        assert 0 not in grad.stride()
        grad[0, 0] = 1
        assert grad.sum() == 1


def test_what_is_returned_belongs_to_the_caller():
    node = DeclarativeNode(lambda x, u: (u - x).square().sum(), lambda _, u: u.sum() - 1, solver=plane, record=True)
    x = randn(4, 3)
    for _ in range(3):
        d = node.derivatives(x)
        for matrix in (d.A, d.B, d.C, d.H, d.H_hat):
            matrix.fill_(torch.nan)
    assert node.derivatives(x).H.isfinite().all()


def test_matrices_of_one_problem_each_are_not_copied_for_every_unit_vector(monkeypatch):
    monkeypatch.setattr("declarative.recording.cache.available", lambda: False)
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


# The cache


@pytest.mark.usefixtures("way")
def test_the_cache_is_bounded_and_belongs_to_the_node(monkeypatch):
    monkeypatch.setattr("declarative.recording.sizes.CAPACITY", 5)
    node = DeclarativeNode(module := Module(), solver=lambda x: module.scale * x, record=True)
    for n in range(1, 12):
        node(randn(2, n))
    assert 0 < len(graphs(node)) <= 5
    assert not graphs(copy.deepcopy(node))
    assert not graphs(pickle.loads(pickle.dumps(DeclarativeNode(Module(), start=3, record=True))))


def test_several_threads_record_at_once_and_leave_others_alone():
    x, tracing = randn(4, 3), []

    def objective(x, u):
        tracing.append(torch.fx._symbolic_trace.is_fx_tracing())
        return (u - x).square().sum()

    node = DeclarativeNode(objective, lambda _, u: u.sum() - 1, solver="newton", start=3, record=True)
    assert all(relative(y, plane(x)) < 1e-12 for y in in_threads(node, [x] * 4))
    assert tracing
    assert not any(tracing)  # what fx says of the whole process has not changed


@pytest.mark.parametrize("record", [None, 1, "yes"])
def test_record_must_be_a_choice(record):
    with pytest.raises(TypeError, match="record must be True or False"):
        DeclarativeNode(lambda x, u: (u - x).square().sum(), start=3, record=record)


# What only a small fault would change


def test_another_captured_tensor_is_refused_not_mixed_in():
    setting, x = {"scale": torch.tensor(1.0, dtype=DOUBLE)}, randn(4, 3).requires_grad_()
    node = DeclarativeNode(
        lambda x, u: (u - setting["scale"] * x).square().sum(), solver=lambda x: 1.0 * x, record=True
    )
    y = node(x)
    setting["scale"] = torch.tensor(3.0, dtype=DOUBLE)
    with pytest.raises(RecordingError, match="have changed since they were recorded"):
        torch.autograd.grad(y.sum(), x)


def test_random_numbers_are_refused():
    with pytest.raises(RecordingError, match="draws random numbers"):
        trace(lambda x: x + torch.rand(3), [torch.ones(3)])


def test_a_graph_that_does_not_reproduce_the_function_is_refused():
    count = iter(range(10))
    with pytest.raises(RecordingError, match="does not reproduce the functions"):
        record(lambda x: (x + next(count)).exp(), [torch.ones(3)])


def test_outputs_of_a_graph_own_their_memory():
    x = randn(4, 3)
    graph = record(lambda x: (x, x.T, torch.ones_like(x), 2 * x, (2 * x).T), [x])
    first, second = graph([x]), graph([x])
    assert len({*storages(x), *storages(*first), *storages(*second)}) == 11
    for one, truth in zip(first, (x, x.T, torch.ones_like(x), 2 * x, 2 * x.T), strict=True):
        assert torch.equal(one, truth)


def test_factors_that_are_one_in_part_stay():
    weights = torch.tensor([1.0, 2.0, 1.0], dtype=DOUBLE)
    x = randn(4, 3)
    graph = record(lambda x: x * torch.tensor([1.0, 2.0, 1.0], dtype=DOUBLE), [x])
    assert torch.equal(graph([x]), x * weights)


def test_derivatives_of_a_recorded_node_to_any_order():
    def onto_sphere(x):
        return x / x.norm(dim=-1, keepdim=True)

    node = DeclarativeNode(
        lambda x, u: (u - x).square().sum(), lambda _, u: u.square().sum() - 1, solver=onto_sphere, record=True
    )
    x, v = randn(2, 3).requires_grad_(), randn(2, 3, seed=1)
    torch.autograd.grad(node(x), x, v)  # from here on there are graphs to be replayed

    def second(function):
        (g,) = torch.autograd.grad(function(x), x, v, create_graph=True)
        return torch.autograd.grad(g.square().sum(), x)[0]

    assert relative(second(node), second(onto_sphere)) < 1e-12
    for transform in (torch.func.jacrev, torch.func.jacfwd):
        assert relative(transform(node)(x.detach()), transform(onto_sphere)(x.detach())) < 1e-12


def test_what_rounding_errors_can_make_anything_of_is_not_compared():
    calls = []

    def noisy(x):
        calls.append(x)
        return 2 * x, x + len(calls)

    x = torch.ones(3, dtype=DOUBLE)
    with pytest.raises(RecordingError, match="another point"):
        record(noisy, [x])
    assert torch.equal(record(noisy, [x], compared=1)([x])[0], 2 * x)


# Entries that are looked up


def test_an_index_that_is_an_input_is_read_anew():
    node = DeclarativeNode(lambda x, i, u: (u - x).square().sum() + u[i].square() - x[i] * u[i], start=4, record=True)
    x = torch.arange(1.0, 9.0, dtype=torch.float64).view(2, 4)
    for indices in ([1, 3], [0, 0], [2, 1]):
        i = torch.tensor(indices)
        truth = x.scatter(1, i[:, None], 0.75 * x.gather(1, i[:, None]))  # 2 (u - x) + 2 u - x = 0
        torch.testing.assert_close(node(x, i), truth)


def test_an_index_that_all_problems_share_is_refused_with_the_way_out():
    x, i = torch.arange(1.0, 9.0, dtype=torch.float64).view(2, 4), torch.tensor(2)

    def node(look_up):
        return DeclarativeNode(
            lambda x, i, u: (u - look_up(x, i)).square().sum(), start=(), in_dims=(0, None), record=True
        )

    with pytest.raises(RecordingError, match=r"x\[i\] with an i that all problems share.*index_select"):
        node(lambda x, i: x[i])(x, i)
    torch.testing.assert_close(node(lambda x, i: x.index_select(0, i.reshape(1)))(x, i), x[:, 2])


def test_an_operation_that_looks_at_values_is_refused_with_the_way_out():
    x = torch.tensor([[0.0, 3.0, 1.0], [5.0, 4.0, 2.0]], dtype=torch.float64)

    def node(chosen):
        return DeclarativeNode(lambda x, u: (u - chosen(x.argmax())).square().sum(), start=3, record=True)

    with pytest.raises(RecordingError, match=r"F\.one_hot does: compare instead, \(i == torch\.arange\(n\)\)"):
        node(lambda i: torch.nn.functional.one_hot(i, 3))(x)
    compared = node(lambda i: (i == torch.arange(3)).to(torch.float64))(x)
    torch.testing.assert_close(compared, torch.tensor([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]], dtype=torch.float64))
