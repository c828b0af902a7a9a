"""Functions with parameters: a module, or a method of one, has its parameters and buffers as inputs of the node."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.func import functional_call

from declarative import DeclarativeNode, SolverError, check
from declarative.problem import Batch
from tests.support.helpers import DOUBLE, RULES, in_threads, relative


class Fit(nn.Module):
    """|u - W x|^2 / 2, and a plane that the same scale and an offset of its own move."""

    def __init__(self):
        super().__init__()
        self.map = nn.Linear(3, 4, bias=False, dtype=DOUBLE)
        self.offset = nn.Parameter(torch.tensor(0.7, dtype=DOUBLE))
        self.register_buffer("normal", torch.tensor([1.0, 2.0, -1.0, 0.5], dtype=DOUBLE))

    def forward(self, x, u):
        return 0.5 * (u - self.map(x)).square().sum() + 0.0 * self.offset * u.sum()

    def plane(self, x, u):  # noqa: ARG002
        return self.normal @ u - self.offset * self.map.weight.sum()


def truth(fit: Fit, x):
    """The projection of W x onto the plane, in plain torch."""
    target = fit.map(x)
    gap = target @ fit.normal - fit.offset * fit.map.weight.sum()
    return target - gap.unsqueeze(-1) * fit.normal / fit.normal.square().sum()


@pytest.fixture
def fit():
    torch.manual_seed(3)
    return Fit()


@pytest.fixture
def x():
    return torch.randn(5, 3, dtype=DOUBLE, generator=torch.Generator().manual_seed(1))


def gradients(y, *tensors):
    return torch.autograd.grad(y.pow(3).sum(), tensors)


def matching(node, truth, x, parameters):
    parameters = list(parameters)
    x = x.clone().requires_grad_()
    assert relative(node(x), truth(x)) < 1e-8
    for found, expected in zip(gradients(node(x), x, *parameters), gradients(truth(x), x, *parameters), strict=True):
        assert relative(found, expected) < 1e-7


# Gradients


@pytest.mark.parametrize("record", [False, True])
@pytest.mark.parametrize("solver", [None, "scipy", "closed form"])
def test_a_parameter_of_two_functions_has_the_gradient_of_both(fit, x, solver, record):
    solver = (lambda x: truth(fit, x).detach()) if solver == "closed form" else solver
    node = DeclarativeNode(fit, fit.plane, solver=solver, start=4, record=record)
    matching(node, lambda x: truth(fit, x), x, fit.parameters())
    with torch.no_grad():
        for parameter in fit.parameters():
            parameter.mul_(-1.3)
    matching(node, lambda x: truth(fit, x), x, fit.parameters())


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_equals_that_of_explicit_inputs(fit, x, rule):
    names = [name for name, _ in fit.named_parameters()]

    def objective(x, *rest):
        *weights, u = rest
        return functional_call(fit, dict(zip(names, weights, strict=True)), (x, u))

    def plane(x, offset, weight, u):  # noqa: ARG001
        return fit.normal @ u - offset * weight.sum()

    explicit = DeclarativeNode(objective, plane, start=4, gradient=rule, in_dims=(0, None, None))
    node = DeclarativeNode(fit, fit.plane, start=4).with_gradient(rule)
    parameters = list(fit.parameters())
    for found, expected in zip(
        gradients(node(x), *parameters), gradients(explicit(x, *parameters), *parameters), strict=True
    ):
        assert relative(found, expected) < 1e-12


def of_parameters(node, x):
    """The node as a function of its parameters."""
    names = [name for name, _ in node.named_parameters()]
    return lambda *weights: functional_call(node, dict(zip(names, weights, strict=True)), (x,))


class Energy(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 2, bias=False), nn.Tanh(), nn.Linear(2, 1, bias=False)).to(DOUBLE)

    def forward(self, x, u):
        return (u - x).square().sum() + self.net(torch.cat([x, u])).sum()


def test_derivatives_of_both_orders_forward_and_reverse(x):
    torch.manual_seed(0)
    node = DeclarativeNode(Energy(), lambda x, u: u.sum() - x[0], start=2)
    function, weights = of_parameters(node, x[:1, :2]), [w.detach().requires_grad_() for w in node.parameters()]
    assert torch.autograd.gradcheck(function, weights, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(function, weights, fast_mode=True)


def test_transforms_reach_parameters(fit, x):
    node = DeclarativeNode(fit, fit.plane, start=4)
    weights = {name: w.detach() for name, w in node.named_parameters()}
    plain = {name.removeprefix("objective."): w for name, w in weights.items()}

    def of_fit(parameters):
        return truth(lambda_fit(fit, parameters), x)

    found = torch.func.jacrev(lambda w: functional_call(node, w, (x,)))(weights)
    ahead = torch.func.jacfwd(lambda w: functional_call(node, w, (x,)))(weights)
    expected = torch.func.jacrev(of_fit)(plain)
    for name, value in expected.items():
        assert relative(found[f"objective.{name}"], value) < 1e-9
        assert relative(ahead[f"objective.{name}"], value) < 1e-9
    many = {name: torch.stack([w, 2 * w, -w]) for name, w in weights.items()}
    mapped = torch.vmap(lambda w: functional_call(node, w, (x,)))(many)
    each = [of_fit({name: w * factor for name, w in plain.items()}) for factor in (1, 2, -1)]
    assert relative(mapped, torch.stack(each)) < 1e-9


def lambda_fit(fit, parameters):
    """Something with the attributes of a Fit and these parameters."""
    other = type("Other", (), {})()
    other.normal, other.offset = fit.normal, parameters["offset"]
    weight = parameters["map.weight"]
    other.map = lambda x: x @ weight.mT
    other.map.weight = weight
    return other


def test_an_unbatched_node(fit, x):
    node = DeclarativeNode(fit, fit.plane, start=4, in_dims=None)
    matching(node, lambda x: truth(fit, x), x[0], fit.parameters())


def test_tied_parameters_are_taken_once(x):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = (nn.Linear(3, 3, bias=False, dtype=DOUBLE) for _ in range(2))
            self.second.weight = self.first.weight

        def forward(self, x, u):
            return (u - self.first(x) - 2 * self.second(x)).square().sum()

    tied = Tied()
    node = DeclarativeNode(tied, start=3)
    assert len(list(node.parameters())) == 1
    assert len(node.evaluate((x,)).inputs.xs) == 2
    matching(node, lambda x: 3 * tied.first(x), x, tied.parameters())


def test_what_is_frozen_costs_no_gradient(fit, x, monkeypatch):
    fit.map.weight.requires_grad_(False)
    node, seen, pullback = DeclarativeNode(fit, fit.plane, start=4), [], Batch.pullback

    def spied(self, *arguments):
        seen.append([self.xs[i].shape for i in arguments[-1]])
        return pullback(self, *arguments)

    monkeypatch.setattr(Batch, "pullback", spied)
    node(x).sum().backward()
    assert seen == [[fit.offset.shape]]
    assert fit.map.weight.grad is None
    assert fit.offset.grad is not None
    fit.requires_grad_(False)
    assert not node(x).requires_grad


def test_a_parameter_that_two_modules_share(x):
    first, second = Residual(nn.Linear(3, 3, bias=False, dtype=DOUBLE)), Sum(nn.Linear(3, 1, bias=False, dtype=DOUBLE))
    first.net.scale = second.net.scale = nn.Parameter(torch.tensor(1.5, dtype=DOUBLE))
    node = DeclarativeNode(first, second, start=3)
    assert len(list(node.parameters())) == 3

    def projected(x):
        target = first.net.scale * first.net(x)
        normal = second.net.weight[0]
        gap = target @ normal - first.net.scale.exp()
        return target - gap.unsqueeze(-1) * normal / normal.square().sum()

    matching(node, projected, x, node.parameters())


def test_parametrised_modules(x):
    net = nn.utils.parametrizations.weight_norm(nn.Linear(3, 3, dtype=DOUBLE))
    node = DeclarativeNode(Residual(net), start=3)
    assert len(list(node.parameters())) == 3
    matching(node, net, x, net.parameters())
    with nn.utils.parametrize.cached(), pytest.raises(ValueError, match=r"parametrize.cached\(\) would not notice"):
        node(x)


def test_a_node_inside_a_function_of_another_node(x):
    """The inner one has the weights that the outer evaluation is for."""

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = DeclarativeNode(Residual(nn.Linear(3, 3, dtype=DOUBLE)), start=3)

        def forward(self, x, u):
            return (u - 2 * self.inner(x[None])[0]).square().sum()

    node = DeclarativeNode(outer := Outer(), start=3)
    net = outer.inner._modules["objective"].net
    matching(node, lambda x: 2 * net(x), x[:2], net.parameters())


# A node is a module


def test_a_node_contains_the_modules_of_its_functions(fit, x):
    node = DeclarativeNode(fit, fit.plane, start=4)
    assert {id(one) for one in node.parameters()} == {id(one) for one in fit.parameters()}
    assert "objective.map.weight" in node.state_dict()
    other = DeclarativeNode(again := Fit(), again.plane, start=4)
    assert relative(other(x), node(x)) > 0.01
    other.load_state_dict(node.state_dict())
    assert relative(other(x), node(x)) < 1e-12
    node.eval()
    assert not fit.training
    node.float()
    assert fit.map.weight.dtype == torch.float32
    assert "(map): Linear" in repr(node)
    optimiser, before = torch.optim.SGD(nn.Sequential(node).parameters(), lr=0.1), fit.offset.item()
    node(x.float()).sum().backward()
    optimiser.step()
    assert fit.offset.item() != before


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda node: pickle.loads(pickle.dumps(node))])
def test_copies_have_parameters_of_their_own(fit, x, copied):
    node = DeclarativeNode(fit, fit.plane, start=4, record=True)
    node(x)
    other = copied(node)
    with torch.no_grad():
        fit.map.weight.zero_()
    assert relative(node(x), truth(fit, x)) < 1e-8
    twin = other._modules["objective"]
    assert twin is not fit
    matching(other, lambda x: truth(twin, x), x, twin.parameters())
    assert fit.map.weight.grad is None


class Model(nn.Module):
    """Makes a node of its own method in its constructor, where the node becomes a part of it."""

    def __init__(self):
        super().__init__()
        self.before = nn.Linear(3, 3, dtype=DOUBLE)
        self.node = DeclarativeNode(self.energy, start=3)
        self.scale = nn.Parameter(torch.full((3,), 2.0, dtype=DOUBLE))

    def energy(self, x, u):
        return (u - self.scale * x).square().sum()

    def forward(self, x):
        return self.node(self.before(x))


class Layer(DeclarativeNode):
    """A node whose functions are its own methods."""

    def __init__(self):
        super().__init__(self.energy, start=3)
        self.scale = nn.Parameter(torch.full((3,), 2.0, dtype=DOUBLE))

    def energy(self, x, u):
        return (u - self.scale * x).square().sum()


def test_a_node_made_in_the_constructor_of_its_module(x):
    model = copy.deepcopy(Model())
    assert set(model.state_dict()) == {"before.weight", "before.bias", "scale"}
    model.to(DOUBLE).eval().apply(lambda _: None)
    assert repr(model).count("DeclarativeNode") == 1
    matching(model, lambda x: model.scale * model.before(x), x, model.parameters())


def test_a_node_that_is_the_module_of_its_own_functions(x):
    for layer in (Layer(), copy.deepcopy(Layer()), Layer().with_gradient("exact")):
        assert set(layer.state_dict()) == {"scale"}
        matching(layer, lambda x, layer=layer: layer.scale * x, x, layer.parameters())


def test_a_module_that_contains_its_node_and_is_contained_in_it_is_refused(x):
    model = nn.Module()
    model.scale = nn.Parameter(torch.ones(3, dtype=DOUBLE))
    model.energy = Layer.energy.__get__(model)
    model.node = DeclarativeNode(model.energy, start=3)
    with pytest.raises(ValueError, match=r"contains this node.*constructor"):
        model.node(x)


# What a module does while it is evaluated


def test_training_is_that_of_the_forward_pass(x):
    class Mode(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(3, dtype=DOUBLE))

        def forward(self, x, u):
            return (u - (2 if self.training else 3) * self.scale * x).square().sum()

    for record in (False, True):
        node = DeclarativeNode(mode := Mode(), start=3, record=record)
        for training, factor in ((True, 2), (False, 3), (True, 2), (False, 3)):
            y = node.train(training)(x)
            assert relative(y, factor * x) < 1e-9
            mode.train(not training)
            (found,) = torch.autograd.grad(y.sum(), mode.scale)
            assert relative(found, factor * x.sum(0)) < 1e-9


def test_running_statistics_in_training_are_refused_and_fine_in_evaluation(x):
    class Normed(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(3, dtype=DOUBLE)

        def forward(self, x, u):
            return (u - self.norm(torch.stack([x, 2 * x])).sum(0)).square().sum()

    node = DeclarativeNode(Normed(), start=3)
    with pytest.raises((ValueError, RuntimeError), match="in place") as caught:
        node(x)
    assert "Call .eval()" in str(caught.value) + str(getattr(caught.value, "__notes__", ""))
    norm = node.eval()._modules["objective"].norm
    norm.running_mean += 0.3
    matching(node, lambda x: norm(x) + norm(2 * x), x, norm.parameters())
    assert norm.num_batches_tracked == 0


def test_a_module_that_counts_its_calls_is_refused(x):
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("calls", torch.tensor(0))

        def forward(self, x, u):
            self.calls += 1
            return (u - x).square().sum()

    with pytest.raises(ValueError, match="changes a parameter or a buffer of its module in place"):
        DeclarativeNode(Counting(), start=3)(x)


def test_what_a_module_notes_does_not_stay(x):
    class Noting(nn.Linear):
        def forward(self, x, u):
            self.seen = super().forward(x)
            return (u - self.seen).square().sum()

    node = DeclarativeNode(net := Noting(3, 3, dtype=DOUBLE), start=3)
    matching(node, lambda x: nn.functional.linear(x, net.weight, net.bias), x, net.parameters())
    assert not hasattr(net, "seen")


def test_buffers_of_whole_numbers_and_infinite_ones(x):
    class Chosen(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("order", torch.tensor([2, 0, 1]))
            self.register_buffer("mask", torch.tensor([0.0, -torch.inf, 0.0], dtype=DOUBLE))
            self.scale = nn.Parameter(torch.ones(3, dtype=DOUBLE))

        def forward(self, x, u):
            return (u - self.scale * (x + self.mask).softmax(0)[self.order]).square().sum()

    node = DeclarativeNode(chosen := Chosen(), start=3)
    matching(node, lambda x: chosen.scale * (x + chosen.mask).softmax(-1)[:, chosen.order], x, chosen.parameters())


def test_a_buffer_that_requires_a_gradient_gets_it(fit, x):
    fit.normal.requires_grad_()
    node = DeclarativeNode(fit, fit.plane, start=4)
    matching(node, lambda x: truth(fit, x), x, [fit.normal])


@pytest.mark.parametrize(("given", "own"), [(torch.float32, DOUBLE), (DOUBLE, torch.float32), (torch.float16, DOUBLE)])
def test_precision(given, own):
    net = nn.Linear(3, 3, dtype=own)
    node = DeclarativeNode(Residual(net), start=3)
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(0)).to(given).requires_grad_()
    y = node(x)
    assert y.dtype == given  # that of the inputs
    y.double().pow(3).sum().backward()
    assert x.grad.dtype == given
    assert net.weight.grad.dtype == own
    twin = copy.deepcopy(net).double()
    expected = torch.autograd.grad(twin(x.detach().double()).pow(3).sum(), twin.weight)[0]
    assert relative(net.weight.grad.double(), expected) < (5e-3 if given == torch.float16 else 1e-5)


class Residual(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x, u):
        return (u - getattr(self.net, "scale", 1.0) * self.net(x)).square().sum()


class Sum(Residual):
    def forward(self, _, u):
        return self.net(u) - self.net.scale.exp()


def test_inputs_that_are_whole_numbers():
    class Table(nn.Module):
        def __init__(self):
            super().__init__()
            self.rows = nn.Embedding(5, 3, dtype=DOUBLE)

        def forward(self, i, u):
            return (u - self.rows(i)).square().sum()

    node = DeclarativeNode(table := Table(), start=3)
    i = torch.tensor([1, 4, 1])
    y = node(i)
    assert y.dtype == DOUBLE
    (found,) = torch.autograd.grad(y.pow(3).sum(), table.rows.weight)
    (expected,) = torch.autograd.grad(table.rows(i).pow(3).sum(), table.rows.weight)
    assert relative(found, expected) < 1e-9


def test_recurrent_networks_keep_their_weights_in_a_list_too(x):
    class Reading(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = nn.RNN(1, 2, dtype=DOUBLE)

        def forward(self, x, u):
            return (u - self.cell(x.unsqueeze(-1))[1][0]).square().sum()

    node = DeclarativeNode(reading := Reading(), start=2, in_dims=None)
    matching(node, lambda x: reading.cell(x.unsqueeze(-1))[1][0], x[0], reading.parameters())


def test_threads_do_not_see_each_other(x):
    failed = []

    def work(factor):
        node = DeclarativeNode(shared, start=3)
        for _ in range(5):
            with torch.no_grad():
                if relative(node(factor * x), shared.net(factor * x)) > 1e-8:
                    failed.append(factor)
            y = node(factor * x)
            g = torch.autograd.grad(y.sum(), shared.net.weight)[0]
            if relative(g, factor * x.sum(0).expand(3, 3)) > 1e-8:
                failed.append(factor)

    shared = Residual(nn.Linear(3, 3, dtype=DOUBLE))
    in_threads(work, (1.0, -2.0, 3.0))
    assert not failed


def test_a_parameter_that_was_changed_before_the_backward_pass_is_noticed(fit, x):
    y = DeclarativeNode(fit, fit.plane, start=4)(x)
    with torch.no_grad():
        fit.offset.add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_a_parameter_that_is_not_finite_is_a_status(fit, x):
    with torch.no_grad():
        fit.offset.fill_(torch.nan)
    with pytest.raises(SolverError, match="not_finite"):
        DeclarativeNode(fit, fit.plane, start=4)(x)


def test_without_gradients_and_in_inference_mode(fit, x):
    node = DeclarativeNode(fit, fit.plane, start=4)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            assert relative(node(x), truth(fit, x)) < 1e-8
    with torch.inference_mode():
        made = Fit()
    y = DeclarativeNode(made, made.plane, start=4)(x)
    with torch.no_grad():
        assert relative(y, truth(made, x)) < 1e-8


# Reports speak of the inputs


def test_reports_speak_of_the_inputs_alone(fit, x):
    node = DeclarativeNode(fit, fit.plane, start=4)
    d = node.derivatives(x)
    assert d.B.shape == (5, 4, 3)
    assert relative(d.B, -fit.map.weight.detach().expand(5, 4, 3)) < 1e-9
    assert node.descent(x, torch.ones(5, 4, dtype=DOUBLE)).g.shape == (5, 3)
    result = check(node, x)
    assert result.passed, str(result)
    assert check(node.with_gradient("unconstrained"), x)["gradient of input 0"].grade.name == "PASS"
    solution = node.solve(x)
    g = torch.autograd.grad(solution.objective.sum(), fit.map.weight)[0]
    expected = torch.autograd.grad(0.5 * (truth(fit, x) - fit.map(x)).square().sum(), fit.map.weight)[0]
    assert relative(g, expected) < 1e-7


# Mistakes


def test_modules_that_hide_what_they_compute_are_refused():
    with pytest.raises(TypeError, match=r"objective is a compiled module.*pass the module itself"):
        DeclarativeNode(torch.compile(Residual(nn.Linear(3, 3)), backend="eager"), start=3)


def test_a_lazy_module_has_to_be_called_first(x):
    with pytest.raises(ValueError, match=r"objective.net.weight has no shape yet: call the module once"):
        DeclarativeNode(Residual(nn.LazyLinear(3)), start=3)(x)


def test_a_module_elsewhere_is_named():
    node = DeclarativeNode(Residual(nn.Linear(3, 3, device="meta")), start=3)
    with pytest.raises(ValueError, match=r"input 0 is on cpu and objective.net.weight on meta"):
        node(torch.ones(2, 3))
    y = node(torch.ones(2, 3, device="meta"))
    assert y.shape == (2, 3)
    assert y.requires_grad


def test_an_error_in_a_module_comes_with_the_shapes_of_the_inputs(fit):
    node = DeclarativeNode(fit, start=4)
    with pytest.raises(RuntimeError) as caught:
        node(torch.ones(2, 5, dtype=DOUBLE))
    assert "with inputs of shape (5,) and u of shape (4,)" in caught.value.__notes__[0]
    with pytest.raises(TypeError) as caught:
        DeclarativeNode(fit, start=4)(torch.ones(2, 3, dtype=DOUBLE), torch.ones(2, 3, dtype=DOUBLE))
    assert "was called with 3 arguments: the 2 input(s)" in caught.value.__notes__[0]


# torch.func.functional_call, which goes wrong where it meets a module twice


class Shared(nn.Module):
    """A projection whose target, of a part of it, and whose plane have parameters."""

    def __init__(self):
        super().__init__()
        self.target, self.plane = nn.Linear(3, 3, dtype=DOUBLE), Plane()
        self.plane.weight = self.target.weight

    def energy(self, x, u):
        return (u - self.target(x)).square().sum()

    def other_plane(self, x, u):
        return self.plane(x, u)

    def cap(self, x, u):
        return u - 20 - self.target(x).square()


class Plane(nn.Module):
    def __init__(self):
        super().__init__()
        self.level = nn.Parameter(torch.tensor(0.7, dtype=DOUBLE))

    def forward(self, x, u):  # noqa: ARG002
        return u.sum() - self.level - self.weight.sum()


def distance(x, u):
    return (u - x).square().sum()


class InConstructor(nn.Module):
    """Contains the module of a function of the node that it makes."""

    def __init__(self, shared):
        super().__init__()
        self.shared = shared
        self.node = DeclarativeNode(shared.energy, shared.plane, start=3)

    def forward(self, x):
        return self.node(x)


SHARING = {
    "two methods": lambda one: DeclarativeNode(one.energy, one.other_plane, start=3),
    "a part of the other": lambda one: DeclarativeNode(one.energy, one.plane, start=3),
    "the other is the whole": lambda one: DeclarativeNode(distance, one.plane, one.cap, start=3),
    "in a constructor": InConstructor,
}


@pytest.mark.parametrize("name", SHARING)
def test_parameters_of_one_call_do_not_stay(name, x):
    torch.manual_seed(0)
    shared = Shared()
    node, before = SHARING[name](shared), {key: value.clone() for key, value in shared.state_dict().items()}
    first = node(x)
    twice = copy.deepcopy(shared)
    with torch.no_grad():
        for parameter in twice.parameters():
            parameter.mul_(2.0)
    given = {key: (2.0 * value).detach() for key, value in node.named_parameters()}
    assert len(given) == len(list(node.parameters()))
    assert relative(functional_call(node, given, x), SHARING[name](twice)(x)) < 1e-9
    assert all(torch.equal(value, before[key]) for key, value in shared.state_dict().items())
    assert all(isinstance(value, nn.Parameter) for value in shared.parameters())
    assert torch.equal(node(x), first)


def test_what_takes_the_place_of_a_module_does_so_for_all_of_its_functions(x):
    torch.manual_seed(0)
    node, other = SHARING["a part of the other"](Shared()), Shared()
    node.objective = other
    assert relative(node(x), SHARING["a part of the other"](other)(x)) < 1e-12
