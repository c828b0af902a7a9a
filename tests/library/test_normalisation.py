"""Normalisations inside of functions: right derivatives of second order, which torch's own operations do not have."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from declarative import DeclarativeNode
from declarative.user.normalisation import PutTogether
from tests.support.helpers import DOUBLE, relative

WEIGHT, BIAS = torch.tensor([0.7, 1.3, -0.4], dtype=DOUBLE), torch.tensor([0.2, -0.1, 0.5], dtype=DOUBLE)
TWO, TWO_MORE = WEIGHT[:2], BIAS[:2]
NORMALISATIONS = {
    "layer_norm": lambda v: functional.layer_norm(v, (3,)),
    "layer_norm of both": lambda v: functional.layer_norm(v, (2, 3), eps=0.1),
    "layer_norm with weights": lambda v: functional.layer_norm(v, (3,), WEIGHT, BIAS),
    "torch.layer_norm": lambda v: torch.layer_norm(v, (3,), WEIGHT, BIAS),
    "LayerNorm": nn.LayerNorm(3, dtype=DOUBLE).requires_grad_(False),
    "instance_norm": lambda v: functional.instance_norm(v.unsqueeze(0), weight=TWO, bias=TWO_MORE),
    "InstanceNorm1d": lambda v: nn.InstanceNorm1d(2)(v.unsqueeze(0)),
    "batch_norm": lambda v: functional.batch_norm(v, None, None, WEIGHT, BIAS, training=True),
    "batch_norm of signals": lambda v: functional.batch_norm(v.unsqueeze(0), None, None, TWO, TWO_MORE, training=True),
    "BatchNorm1d": nn.BatchNorm1d(3, track_running_stats=False, dtype=DOUBLE).requires_grad_(False),
    "batch_norm in evaluation": lambda v: functional.batch_norm(v, BIAS, BIAS.exp(), WEIGHT),
    "group_norm": lambda v: functional.group_norm(v.unsqueeze(0), 1),
    "rms_norm": lambda v: functional.rms_norm(v, (3,)),
}


def node_with(normalise, **options):
    def objective(x, u):
        v = (x * u).view(2, 3) + u.view(2, 3)
        return (u - x).square().sum() + (normalise(v) - v.sin()).pow(3).sum() / 20

    return DeclarativeNode(objective, lambda x, u: u.sum() - x.sum(), start=lambda x: x, **options)


@pytest.fixture
def x():
    return torch.randn(2, 6, dtype=DOUBLE, generator=torch.Generator().manual_seed(1)).requires_grad_()


@pytest.mark.parametrize("name", NORMALISATIONS)
def test_second_derivatives(name, x):
    assert torch.autograd.gradgradcheck(node_with(NORMALISATIONS[name]), x, atol=1e-5, rtol=1e-4, fast_mode=True)


@pytest.mark.parametrize("name", ["layer_norm", "batch_norm"])
def test_second_derivatives_of_what_is_recorded_and_by_transforms(name, x):
    def loss(x, node):
        return node(x).pow(3).sum()

    called, recorded = (node_with(NORMALISATIONS[name], record=record) for record in (False, True))
    truth = torch.autograd.functional.hessian(lambda x: loss(x, called), x.detach())
    h, row = 1e-5, torch.randn(2, 6, dtype=DOUBLE, generator=torch.Generator().manual_seed(2))
    slopes = [torch.autograd.grad(loss(x + sign * h * row, called), x)[0] for sign in (1, -1)]
    assert relative((truth * row).sum((-1, -2)), (slopes[0] - slopes[1]) / (2 * h)) < 1e-6
    for node in (called, recorded):
        for outer in (torch.func.jacrev, torch.func.jacfwd):
            found = outer(torch.func.jacrev(lambda x, node=node: loss(x, node)))(x.detach())
            assert relative(found, truth) < 1e-8


@pytest.mark.parametrize("name", NORMALISATIONS)
def test_the_values_are_those_of_torch(name):
    v = torch.randn(2, 3, dtype=DOUBLE, generator=torch.Generator().manual_seed(1))
    with PutTogether():
        found = NORMALISATIONS[name](v)
    assert relative(found, NORMALISATIONS[name](v)) < 1e-12


@pytest.mark.parametrize("dim", [0, 1, 2, -1])
def test_weights_are_normalised_along_every_dimension(dim):
    norm = nn.utils.parametrizations.weight_norm(nn.Conv1d(2, 3, 4, dtype=DOUBLE), dim=None if dim == -1 else dim)
    with PutTogether():
        found = norm.weight
    assert relative(found, norm.weight) < 1e-12


def test_second_derivatives_by_normalised_weights(x):
    class Normalised(nn.Module):
        def __init__(self):
            super().__init__()
            self.map = nn.utils.parametrizations.weight_norm(nn.Linear(6, 6, dtype=DOUBLE))

        def forward(self, x, u):
            return (u - x).square().sum() + (self.map(u) - x).sin().sum() / 5

    torch.manual_seed(0)
    node = DeclarativeNode(Normalised(), start=lambda x: x)
    names, weights = zip(*node.named_parameters(), strict=True)

    def solved(x, *weights):
        return torch.func.functional_call(node, dict(zip(names, weights, strict=True)), x)

    assert torch.autograd.gradgradcheck(solved, (x, *weights), atol=1e-5, rtol=1e-4, fast_mode=True)


ONLY_ONCE = {
    "weight_norm": lambda v: torch._weight_norm(v, v[:, :1].exp(), 0),
    "cdist": lambda v: torch.cdist(v, torch.ones_like(v)),
    "pdist": functional.pdist,
    "hardsigmoid": functional.hardsigmoid,
    "multi_margin_loss": lambda v: functional.multi_margin_loss(v, torch.tensor([0, 2])),
    "scaled_dot_product_attention": lambda v: functional.scaled_dot_product_attention(*3 * (v.view(1, 1, 2, 3),)),
}


@pytest.mark.parametrize("name", ONLY_ONCE)
def test_what_has_no_second_derivative_is_refused(name, x):
    node = DeclarativeNode(lambda x, u: (u - x).square().sum() + ONLY_ONCE[name](u.view(2, 3)).sum(), start=6)
    with pytest.raises(ValueError, match=rf"objective depends on u through {name}, of which torch has no second deri"):
        node(x)
    other = DeclarativeNode(lambda x, u: (u - x).square().sum() + ONLY_ONCE[name](x.view(2, 3)).sum(), start=6)
    assert relative(other(x.detach()), x) < 1e-8  # of the input alone it is none of u


def test_attention_by_the_remedy(x):
    def objective(x, u):
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            return (u - x).square().sum() + ONLY_ONCE["scaled_dot_product_attention"](u.view(2, 3)).sin().sum() / 5

    assert torch.autograd.gradcheck(DeclarativeNode(objective, start=6), x, atol=1e-6)


def test_a_constraint_by_layer_norm(x):
    weight = WEIGHT.float()  # captured, so that what is called cannot be evaluated in double precision

    def level(x, u):
        return functional.layer_norm(u.view(2, 3), (3,), weight.to(u)).pow(3).sum() - 0.1 * x.sum()

    node = DeclarativeNode(lambda x, u: (u - x).square().sum(), level, start=lambda x: x)
    assert torch.autograd.gradcheck(node, x, atol=1e-6)
    single = DeclarativeNode(
        node.spec.plan.problem.objective.written,
        lambda x, u: functional.layer_norm(u.view(2, 3), (3,), weight).pow(3).sum() - 0.1 * x.sum(),
        start=lambda x: x,
    )
    y = single(x.float())
    assert relative(y.double(), node(x)) < 1e-3


class Evaluated(nn.Module):
    def __init__(self, norm, shape):
        super().__init__()
        self.norm, self.shape = norm, shape
        norm.eval().to(DOUBLE)
        with torch.no_grad():
            norm.running_mean += 0.3
            norm.running_var *= 0.6

    def forward(self, x, u):
        return (u - x).square().sum() + (self.norm(u.view(self.shape)).sum(0).reshape(-1) - 1.0).sin().sum() / 5


@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize(
    ("kind", "channels", "shape"),
    [(nn.BatchNorm1d, 3, (2, 3)), (nn.BatchNorm2d, 2, (1, 2, 1, 3)), (nn.InstanceNorm1d, 2, (1, 2, 3))],
)
def test_running_statistics_in_evaluation_are_recorded(kind, channels, shape, affine, x):
    torch.manual_seed(0)
    function = Evaluated(kind(channels, affine=affine, track_running_stats=True), shape)
    called, recorded = (DeclarativeNode(function, start=lambda x: x, record=record) for record in (False, True))
    assert relative(recorded(x), called(x)) < 1e-9
    inputs = (x, *function.parameters())
    found, expected = (torch.autograd.grad(node(x).pow(3).sum(), inputs) for node in (recorded, called))
    for one, other in zip(found, expected, strict=True):
        assert relative(one, other) < 1e-8
    with torch.no_grad():  # they are read anew in every call
        function.norm.running_mean += 1.0
    assert relative(recorded(x), called(x)) < 1e-9
