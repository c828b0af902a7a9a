"""Tensors that the functions reach other than through their arguments: no gradient is lost without a word."""

import functools

import pytest
import torch
from torch import nn
from torch.func import functional_call

from declarative import DeclarativeNode
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


class Scaled:
    """A function with a tensor of its own."""

    def __init__(self, factor):
        self.factor = factor

    def objective(self, x, u):
        return (u - self.factor * x).square().sum()


class Callable(Scaled):
    """An object that is called itself."""

    __call__ = Scaled.objective


class Module(nn.Module):
    """A module with a tensor that is none of its parameters and buffers."""

    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def forward(self, x, u):
        return (u - self.factor * x).square().sum()


def by_default(x, u, factor=None):
    return (u - factor * x).square().sum()


def holding(how, factor):
    layer = torch.nn.Linear(1, 1, bias=False, dtype=DOUBLE).requires_grad_(False)
    if how == "module":
        layer.weight.data = factor.view(1, 1)
    return {
        "closure": lambda x, u: (u - factor * x).square().sum(),
        "method": Scaled(factor).objective,
        "object": Callable(factor),
        "attribute of a module": Module(factor),
        "partial": functools.partial(by_default, factor=factor),
        "default": lambda x, u, factor=factor: by_default(x, u, factor),
        "keyword": lambda x, u, *, factor=factor: by_default(x, u, factor),
        "first argument": functools.partial(lambda *arguments: by_default(*arguments[1:], arguments[0]), factor),
        "module": lambda x, u: (u - layer(x)).square().sum(),
    }[how], layer.weight if how == "module" else factor


@pytest.mark.parametrize("record", [False, True])
@pytest.mark.parametrize(
    "how",
    [
        "closure",
        "method",
        "object",
        "attribute of a module",
        "partial",
        "default",
        "keyword",
        "first argument",
        "module",
    ],
)
def test_a_captured_tensor_that_changes_between_the_passes_is_refused(how, record):
    objective, factor = holding(how, torch.tensor([2.0], dtype=DOUBLE))
    node = DeclarativeNode(objective, start=1, record=record)
    x = torch.ones(3, 1, dtype=DOUBLE, requires_grad=True)
    y = node(x)
    assert (torch.autograd.grad(y.sum(), x, retain_graph=True)[0] == 2).all()
    factor.mul_(5)
    with pytest.raises(RuntimeError, match="changed in place between its forward and its backward pass"):
        torch.autograd.grad(y.sum(), x)
    assert relative(torch.autograd.grad(node(x).sum(), x)[0], 10 * torch.ones_like(x)) < 1e-12


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
