"""Tensors that the functions reach other than through their arguments: no gradient is lost without a word."""

import contextlib
import functools

import pytest
import torch
from torch import nn
from torch.func import functional_call

from declarative import DeclarativeNode
from declarative.fingerprint import Fingerprint
from declarative.problem import Batch, Problem
from tests.support.captured_state import AFTER, BEFORE, KINDS
from tests.support.helpers import DOUBLE, half_square, relative

X = torch.ones(2, 3)


class Captures(nn.Module):
    """Holds a tensor where a module's parameters are not looked for."""

    def __init__(self):
        super().__init__()
        self.weights = {"first": torch.ones(3, requires_grad=True)}

    def forward(self, x, u):
        return (self.weights["first"] * (u - x)).square().sum()


class Attribute(nn.Module):
    """Holds a tensor as a plain attribute, which is none of its parameters."""

    def __init__(self):
        super().__init__()
        self.weight = torch.ones(3, requires_grad=True)

    def forward(self, x, u):
        return (self.weight * (u - x)).square().sum()


def capturing(kind):
    weight = torch.ones(3, requires_grad=True)
    if kind == "closure":
        return {"objective": lambda x, u: (weight * (u - x)).square().sum()}
    if kind == "constraint":
        return {"objective": half_square, "equality": lambda _, u: weight @ u - 1}
    if kind == "not a leaf":
        derived = 2 * weight
        return {"objective": lambda x, u: (derived * (u - x)).square().sum()}
    if kind == "partial":
        return {"objective": functools.partial(lambda w, x, u: (w * (u - x)).square().sum(), weight)}
    return {"objective": Captures()}


@pytest.mark.parametrize("solver", ["scipy", lambda x: x])
@pytest.mark.parametrize("kind", ["closure", "constraint", "not a leaf", "partial", "module"])
def test_a_captured_tensor_that_requires_a_gradient_is_refused_with_the_remedy(kind, solver):
    node = DeclarativeNode(**capturing(kind), solver=solver, start=3)
    with pytest.raises(ValueError, match=r"reaches a tensor that requires a gradient.*Make it an argument"):
        node(X)


def test_the_captured_tensor_is_named():
    with pytest.raises(ValueError, match=r"\(weight\).*node\(x, weight\)"):
        DeclarativeNode(**capturing("closure"), solver="scipy", start=3)(X)
    with pytest.raises(ValueError, match=r"\(self.weight\)"):
        DeclarativeNode(Attribute(), solver="scipy", start=3)(X)


def test_a_captured_tensor_is_refused_under_torch_func_too():
    def loss(weight):
        node = DeclarativeNode(lambda x, u: (weight * (u - x)).square().sum(), solver=lambda x: x.clone())
        return node(X).sum()

    with pytest.raises(ValueError, match="Make it an argument"):
        torch.func.grad(loss)(torch.ones(3))


def test_a_captured_tensor_of_an_outer_vmap_is_refused():
    def solve(weight):
        return DeclarativeNode(lambda x, u: (weight * (u - x)).square().sum(), solver="scipy", start=3)(X)

    with pytest.raises(ValueError, match="Make it an argument"):
        torch.vmap(solve)(torch.ones(2, 3))


def test_the_remedy_for_a_captured_tensor_speaks_of_every_function():
    wind = torch.nn.Parameter(torch.ones(3))
    node = DeclarativeNode(lambda x, u: (u - x).square().sum(), lambda x, u: u @ wind - x[0], start=3)
    with pytest.raises(ValueError, match=r"every function of the node, equality\(x, wind, u\)"):
        node(X)


def test_a_captured_constant_is_fine():
    constant = torch.ones(3)
    node = DeclarativeNode(lambda x, u: (constant * (u - x)).square().sum(), solver=lambda x: x.clone())
    assert torch.equal(node(X), X)


def test_a_captured_tensor_is_refused_in_forward_mode():
    weight = torch.full((2,), 2.0)

    def solve(weight):
        return DeclarativeNode(lambda x, u: (u - weight * x).square().sum(), start=2)(torch.ones(1, 2))

    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(weight, torch.ones(2))
        with pytest.raises(ValueError, match="Make it an argument"):
            solve(dual)
    with pytest.raises(ValueError, match="Make it an argument"):
        torch.func.jvp(solve, (weight,), (torch.ones(2),))


# Modules: all of their parameters are named, and the remedy that is shown works


def refusal(objective, *xs) -> str:
    with pytest.raises(ValueError, match="would be lost") as caught:
        DeclarativeNode(objective, start=3)(*(xs or (X,)))
    return str(caught.value)


def test_every_parameter_of_a_captured_module_is_named():
    net = nn.Linear(3, 3)
    told = refusal(lambda x, u: (u - net(x)).square().sum())
    assert "(net.weight, net.bias)" in told
    assert "objective(x, weight, bias, u)" in told
    assert "torch.func.functional_call(net, {'weight': weight, 'bias': bias}, ...)" in told
    assert "node(x, net.weight, net.bias) with in_dims=(0, None, None)" in told
    assert "net.requires_grad_(False)" in told
    assert "let objective be an nn.Module, or a method of one, that holds net" in told


def test_the_remedy_for_a_module_gives_its_gradients():
    net = nn.Linear(3, 3, dtype=DOUBLE)
    x = torch.randn(4, 3, dtype=DOUBLE)

    def objective(x, weight, bias, u):
        return (u - functional_call(net, {"weight": weight, "bias": bias}, (x,))).square().sum()

    node = DeclarativeNode(objective, start=3, in_dims=(0, None, None))
    node(x, net.weight, net.bias).pow(3).sum().backward()
    expected = torch.autograd.grad(net(x).pow(3).sum(), list(net.parameters()))
    for parameter, truth in zip(net.parameters(), expected, strict=True):
        assert relative(parameter.grad, truth) < 1e-9


def test_the_remedy_for_a_deep_module_gives_its_gradients():
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    net[0].bias.requires_grad_(False)
    x = torch.randn(4, 3, dtype=DOUBLE)
    told = refusal(lambda x, u: (u - net(x)).square().sum(), x)
    assert "(net.0.weight, net.2.weight, net.2.bias)" in told
    assert "def objective(x, *rest): *weights, u = rest" in told
    assert "torch.func.functional_call(net, dict(zip(names, weights)), ...)" in told
    assert "node(x, *net.parameters()) with in_dims=(0, *[None] * 4)" in told
    names = [name for name, _ in net.named_parameters()]

    def objective(x, *rest):
        *weights, u = rest
        return (u - functional_call(net, dict(zip(names, weights, strict=True)), (x,))).square().sum()

    node = DeclarativeNode(objective, start=3, in_dims=(0, *[None] * 4))
    trained = [parameter for parameter in net.parameters() if parameter.requires_grad]
    found = torch.autograd.grad(node(x, *net.parameters()).pow(3).sum(), trained)
    for one, truth in zip(found, torch.autograd.grad(net(x).pow(3).sum(), trained), strict=True):
        assert relative(one, truth) < 1e-9


class Plain:
    def __init__(self):
        self.net = nn.Linear(3, 3, bias=False)

    def energy(self, x, u):
        return (u - self.net(x)).square().sum()


def test_captured_tensors_are_named_wherever_they_are():
    scale = nn.Parameter(torch.ones(3))
    told = refusal(Plain().energy)
    assert "(self.net.weight)" in told
    assert "functional_call(self.net, {'weight': weight}, ...)" in told
    assert "node(x, self.net.weight)" in told
    assert "(scale)" in refusal(lambda x, u, scale=scale: (scale * (u - x)).square().sum())
    assert "(w)" in refusal(functools.partial(lambda w, x, u: (w * (u - x)).square().sum(), scale))
    twins = [nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)]
    first, second = twins
    assert "objective(x, first_weight, second_weight, u)" in refusal(
        lambda x, u: (u - first(x) - second(x)).square().sum()
    )


# Without gradients nothing is lost


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("record", [False, True])
def test_without_gradients_a_captured_tensor_is_a_constant(mode, record):
    scale = nn.Parameter(torch.tensor([2.0, 3.0, 4.0]))
    node = DeclarativeNode(lambda x, u: (u - scale * x).square().sum(), start=3, record=record)
    for _ in range(3):  # what was seen without gradients does not pass for what is seen with them
        with mode():
            assert relative(node(X), scale * X) < 1e-6
            assert node.solve(X).converged.all()
        with pytest.raises(ValueError, match=r"\(scale\).*would be lost"):
            node(X)
    for call in (node.solve, node.derivatives, lambda x: node.descent(x, x)):
        with pytest.raises(ValueError, match="would be lost"):
            call(X)
    with mode():
        assert relative(node(X), scale * X) < 1e-6


def test_without_gradients_the_objective_still_has_to_depend_on_u():
    scale = nn.Parameter(torch.ones(3))
    with torch.no_grad(), pytest.raises(ValueError, match="does not depend on u"):
        DeclarativeNode(lambda x, _: (scale * x).square().sum(), start=3)(X)


def test_without_gradients_the_tensors_of_a_transform_are_refused_all_the_same():
    """They cannot be reached from where a node is solved."""

    def solve(scale):
        with torch.no_grad():
            return DeclarativeNode(lambda x, u: (u - scale * x).square().sum(), start=3)(X).sum() + scale.sum()

    for transform in (torch.func.grad(solve), torch.func.jacfwd(solve)):
        with pytest.raises(ValueError, match="would be lost"):
            transform(torch.ones(3))
    with pytest.raises(ValueError, match="would be lost"):
        torch.vmap(solve)(torch.ones(2, 3))


# What changes between the passes of a call


class RefusedError(Exception):
    """What a node says where it does not mix two versions of a function."""


@contextlib.contextmanager
def refusing():
    try:
        yield
    except (RuntimeError, ValueError) as error:
        if "changed between its forward and its backward pass" in str(error) or "have changed since" in str(error):
            raise RefusedError from error
        raise


def gradient(y, x):
    return torch.autograd.grad(y.sum(), x, retain_graph=True)[0]


@pytest.mark.parametrize("record", [False, True])
@pytest.mark.parametrize("name", KINDS)
def test_what_changes_between_the_passes_is_not_mixed_in(name, record):
    """The gradient is that of the problem that was solved, or refused: before a first backward pass, and a second."""
    for passes in (0, 1):
        kind = KINDS[name]()
        node = kind.node(record=record)
        x = torch.tensor([[1.0], [0.0], [-0.5]], dtype=DOUBLE, requires_grad=True)
        y = node(x)
        assert relative(y, BEFORE * x) < 1e-8
        for _ in range(passes):
            assert relative(gradient(y, x), torch.full_like(x, BEFORE)) < 1e-8
        kind.change()
        with contextlib.suppress(RefusedError), refusing():
            assert relative(gradient(y, x), torch.full_like(x, BEFORE)) < 1e-8


@pytest.mark.parametrize("name", KINDS)
def test_what_changes_between_calls_is_followed(name):
    kind = KINDS[name]()
    node, x = kind.node(), torch.tensor([[1.0], [0.0], [-0.5]], dtype=DOUBLE, requires_grad=True)
    for s in (BEFORE, AFTER):
        y = node(x)
        assert relative(y, s * x) < 1e-8
        assert relative(gradient(y, x), torch.full_like(x, s)) < 1e-8
        kind.change()


@pytest.mark.parametrize("record", [False, True])
def test_what_changes_before_a_transform_has_pulled_back_is_refused(record):
    x = torch.tensor([[1.0], [0.0]], dtype=DOUBLE)
    for inputs in (x, x.unsqueeze(0)):
        kind = KINDS["tensor: dict in a closure"]()
        node = kind.node(record=record)
        y, pull = torch.func.vjp(torch.vmap(node) if inputs.dim() == 3 else node, inputs)
        assert relative(pull(torch.ones_like(y))[0], torch.full_like(inputs, BEFORE)) < 1e-8
        kind.change()
        with pytest.raises(RuntimeError, match="changed between its forward and its backward pass"):
            pull(torch.ones_like(y))


def test_the_closed_form_of_a_transform_is_looked_at_too():
    """Its rows are solved one by one where vmap maps over an input that the batch shares."""
    held = {"s": torch.tensor(BEFORE, dtype=DOUBLE)}
    node = DeclarativeNode(
        lambda x, w, u: (u - held["s"] * w * x).square().sum(), solver=lambda x, w: held["s"] * w * x, in_dims=(0, None)
    )
    x, w = torch.ones(2, 1, dtype=DOUBLE), torch.ones(3, 1, dtype=DOUBLE)

    def pulled(w, change):
        y, pull = torch.func.vjp(lambda w: node(x, w), w)
        change()
        return pull(torch.ones_like(y))[0]

    assert relative(torch.vmap(lambda w: pulled(w, int))(w), torch.full_like(w, 2 * BEFORE)) < 1e-8
    with pytest.raises(RuntimeError, match="changed between its forward and its backward pass"):
        torch.vmap(lambda w: pulled(w, lambda: held["s"].fill_(AFTER)))(w)


def test_what_cannot_be_evaluated_beside_a_solution_is_looked_at_nearer():
    held = {"s": torch.tensor(BEFORE, dtype=DOUBLE)}
    u = torch.tensor([[0.1, 1 - 1e-6]], dtype=DOUBLE)
    for function in (
        lambda _, u: held["s"] * torch.asin(u).sum(),  # not a number above 1
        lambda _, u: (
            held["s"] * torch.linalg.cholesky(torch.eye(2, dtype=DOUBLE) - u[1] ** 4 * torch.ones(2, 2) / 2).sum()
        ),
    ):
        taken = Fingerprint.take(Batch(Problem(function), (torch.ones(1, 1),), (0,), 1, torch.Size([2]), 0, 0), u)
        assert taken.is_current()
        held["s"].mul_(1 + 1e-6)
        assert not taken.is_current()


def test_a_change_that_one_problem_alone_would_feel_is_seen():
    table = torch.tensor([1.0, 2.0, 3.0], dtype=DOUBLE)
    node = DeclarativeNode(lambda x, i, u: (u - table[i] * x).square().sum(), start=())
    x, i = torch.ones(3, dtype=DOUBLE, requires_grad=True), torch.arange(3)
    y = node(x, i)
    table[2] += 1e-6
    with pytest.raises(RuntimeError, match="changed between its forward and its backward pass"):
        gradient(y, x)


def test_what_an_input_of_zero_hides_is_seen():
    held = {"s": torch.tensor(BEFORE, dtype=DOUBLE)}
    x = torch.zeros(2, 1, dtype=DOUBLE, requires_grad=True)
    y = DeclarativeNode(lambda x, u: (u - held["s"] * x).square().sum(), solver=lambda x: held["s"] * x)(x)
    held["s"].fill_(AFTER)
    with pytest.raises(RuntimeError, match="changed between its forward and its backward pass"):
        gradient(y, x)


def test_rounding_is_not_taken_for_a_change():
    calls = []

    def objective(x, u):
        calls.append(1)
        return (u - 2 * x).square().sum() * (1 + 1e-14 * (len(calls) % 2))

    x = torch.ones(2, 1, dtype=DOUBLE, requires_grad=True)
    y = DeclarativeNode(objective, solver=lambda x: 2 * x)(x)
    for _ in range(3):
        assert relative(gradient(y, x), 2 * torch.ones_like(x)) < 1e-8
        calls.append(1)


# Their values are read anew in every call


@pytest.fixture(params=["called", "graph", "tape"])
def record(request, monkeypatch):
    """How functions are evaluated: what is recorded is run as a tape, if there is a core, or by operations."""
    if request.param == "graph":
        monkeypatch.setattr("declarative.recording.cache.available", lambda: False)
    return request.param != "called"


CHANGES = {
    "in place": lambda scale: scale.mul_(3),
    "through data": lambda scale: scale.data.fill_(6.0),
    "other data": lambda scale: setattr(scale, "data", torch.tensor(6.0, dtype=DOUBLE)),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("solver", ["newton", "closed form"])
def test_their_values_are_read_anew(solver, change, record):
    """Those of an objective and of a constraint, which are evaluated once in a search if that is affine."""
    scale, x = torch.tensor(2.0, dtype=DOUBLE), torch.randn(4, 3, dtype=DOUBLE, requires_grad=True)

    def truth(x):
        return scale * x + (1 / scale - scale * x.sum(-1, keepdim=True)) / 3

    node = DeclarativeNode(
        lambda x, u: (u - scale * x).square().sum(),
        lambda _, u: (scale * u).sum() - 1,
        solver=truth if solver == "closed form" else solver,
        start=3,
        record=record,
    )
    for _ in range(2):
        for _ in range(2):
            y, expected = node(x), truth(x)
            found, wanted = (torch.autograd.grad(one.pow(3).sum(), x)[0] for one in (y, expected))
        assert relative(y, expected) < 1e-12
        assert relative(found, wanted) < 1e-12
        change(scale)


def test_places_are_read_anew_too(record):
    """Whole numbers are in the tape: it is written anew."""
    places, x = torch.tensor([0, 1, 2]), torch.randn(4, 3, dtype=DOUBLE)
    node = DeclarativeNode(
        lambda x, u: (u - x[places]).square().sum(), lambda _, u: u.sum() - 1, start=3, record=record
    )
    for others in ([2, 0, 1], [1, 1, 0]):
        moved = x[:, places]
        assert relative(node(x), moved + (1 - moved.sum(-1, keepdim=True)) / 3) < 1e-12
        places.copy_(torch.tensor(others))
