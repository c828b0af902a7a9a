"""Sparse nodes against their dense twins: solutions, multipliers, gradients of every kind, statuses."""

import copy
import pickle
import warnings

import pytest
import torch

from declarative import DeclarativeNode, Newton, NumericalWarning, SolverError
from declarative.linear import DENSE
from declarative.linear.sparse import SparseLayout
from tests.support.helpers import DOUBLE, relative

M = 12


def banded(x, u):
    return (u - x).square().sum() + 0.1 * (u[1:] * u[:-1]).square().sum()


def arrow(x, u):
    return (u - x).square().sum() + 0.2 * (u[:-1] * u[-1]).sum() + u.pow(4).sum() / 10


def blocks(x, u):
    return (u - x).square().sum() + u.view(4, 3).prod(-1).square().sum()


def grid(x, u):
    image = u.view(3, 4)
    return (u - x).square().sum() + image.diff(dim=0).pow(4).sum() + image.diff(dim=1).pow(4).sum()


def separable(x, u):
    return (u - x).square().sum() + u.exp().sum()


def disconnected(x, u):
    return (u - x).square().sum() + u[:6].diff().pow(4).sum() + u[6:].diff().square().sum()


def neighbours(_, u):
    return u[2:] - u[:-2] - 0.7


def products(x, u):
    return u[::3].square() + u[1::3] - 0.3 - x[:4].tanh() / 10


def dense_row(_, u):
    return torch.cat([u.sum().reshape(1) - 1, u[1:3] - 2 * u[3:5]])


def empty_row(_, u):
    return torch.stack([u[0] * u[1] - 1, -1 - 0 * u[2], u[4] - 1])


def everything(_, u):
    return u + 3.0


def nothing(_, u):
    return -9.0 - u


def total(_, u):
    return u.sum() - 1


def positive(_, u):
    return -u


def boxed_twice(_, u):
    return torch.cat([u - 0.1, -u - 0.1, 3 * u - 0.3])  # at an upper bound, two constraints hold


TABLE = {
    "banded": (banded, None, neighbours),
    "arrow": (arrow, None, None),
    "blocks": (blocks, products, None),
    "grid": (grid, None, neighbours),
    "separable": (separable, products, neighbours),
    "dense row": (banded, dense_row, None),
    "empty row": (banded, None, empty_row),
    "disconnected": (disconnected, products, neighbours),
    "all active": (banded, None, everything),
    "all inactive": (banded, dense_row, nothing),
    "simplex": (lambda x, u: (u - 3 * x).square().sum(), total, positive),
}


def inputs(size=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(size, M, generator=generator, dtype=DOUBLE).requires_grad_()


def twins(name, **options):
    functions = TABLE[name]
    return [DeclarativeNode(*functions, start=M, structure=kind, **options) for kind in ("sparse", "dense")]


RECORDED = ("separable", "dense row", "all inactive")
TWINS = [*((name, False) for name in TABLE), *((name, True) for name in RECORDED)]


@pytest.mark.parametrize(("name", "record"), TWINS)
def test_twins_agree(name, record):
    sparse, dense = twins(name, solver=Newton(), record=record)
    x = inputs()
    one, other = sparse.solve(x), dense.solve(x)
    assert is_sparse(sparse)
    assert not is_sparse(dense)
    for key in ("y", "multipliers", "inequality_multipliers"):
        torch.testing.assert_close(getattr(one, key), getattr(other, key), rtol=1e-8, atol=1e-9)
    assert torch.equal(one.active, other.active)
    v = torch.randn_like(one.y)
    first = [torch.autograd.grad(s.y, x, v, create_graph=True)[0] for s in (one, other)]
    torch.testing.assert_close(*first, rtol=1e-9, atol=1e-10)
    second = [torch.autograd.grad(g.square().sum(), x)[0] for g in first]
    torch.testing.assert_close(*second, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("rule", ["unconstrained", "curvature", "identity"])
@pytest.mark.parametrize("name", ["banded", "disconnected", "arrow"])
def test_other_rules_agree(name, rule):
    x = inputs()
    grads = [torch.autograd.grad(node.with_gradient(rule)(x).pow(3).sum(), x)[0] for node in twins(name)]
    assert relative(*grads) < 1e-9


@pytest.mark.parametrize("name", ["separable", "dense row"])
def test_forward_mode_and_maps_agree(name):
    x, dx = inputs().detach(), inputs(seed=1).detach()
    pushed = [torch.func.jvp(node, (x,), (dx,))[1] for node in twins(name)]
    assert relative(*pushed) < 1e-9
    many = torch.stack([x, x + 0.1])
    assert relative(*(torch.vmap(node)(many) for node in twins(name))) < 1e-9


def test_gradcheck():
    sparse, _ = twins("disconnected")
    x = inputs(1)
    assert torch.autograd.gradcheck(sparse, (x,), fast_mode=True)
    assert torch.autograd.gradgradcheck(sparse, (x,), fast_mode=True)


def test_single_precision():
    sparse, dense = twins("separable")
    x = inputs().detach().float().requires_grad_()
    grads = [torch.autograd.grad(node(x).pow(3).sum(), x)[0] for node in (sparse, dense)]
    assert grads[0].dtype == torch.float32
    assert relative(*grads) < 1e-6


def is_sparse(node):
    known = node.spec.plan.layouts._known.values()
    return any(isinstance(layout, SparseLayout) for layout in known)


def chain(n):
    return DeclarativeNode(
        lambda x, u: (u - x).square().sum(), inequality=lambda _, u: u.diff().square() - 0.01, start=n, solver="newton"
    )


def test_auto_chooses_by_size_and_fill():
    small, large = chain(10), chain(150)
    full = DeclarativeNode(lambda x, u: (u - x).square().sum() + u.sum().pow(4), start=120, solver="newton")
    for node, n, expected in ((small, 10, False), (large, 150, True), (full, 120, False)):
        node(torch.linspace(0, 1, n, dtype=DOUBLE).expand(2, n))
        assert is_sparse(node) is expected


def test_nothing_dense_is_formed(monkeypatch):
    """Of 3,000 unknowns, a dense Hessian of two problems would take 144 MB."""
    n = 3000
    node = chain(n)
    x = torch.linspace(0, 1, n, dtype=DOUBLE).sin().expand(2, n).clone().requires_grad_()
    monkeypatch.setattr(type(DENSE), "hessian_values", None)
    monkeypatch.setattr(type(DENSE), "jacobian_values", None)
    (grad,) = torch.autograd.grad(node(x).square().sum(), x)
    assert grad.isfinite().all()


def test_copies_and_pickles_find_their_own_pattern():
    node, _ = twins("banded")
    node(inputs())
    again = copy.deepcopy(node)
    assert not is_sparse(again)
    assert torch.equal(again(inputs()), node(inputs()))
    assert pickle.loads(pickle.dumps(DeclarativeNode(banded, start=M, structure="sparse")))(inputs()).shape == (3, M)


@pytest.mark.parametrize("record", [False, True])
def test_a_pattern_that_does_not_hold_any_more_is_told_and_left(record):
    weight = torch.zeros(M, M, dtype=DOUBLE)
    node = DeclarativeNode(
        lambda x, u: (u - x).square().sum() + (u @ weight @ u),
        start=M,
        structure="sparse",
        solver="newton",
        record=record,
    )
    x = inputs()
    assert relative(node(x), x) < 1e-12
    weight += 0.05
    with pytest.warns(NumericalWarning, match="pattern does not hold"):
        y = node(x)
    matrix = 2 * torch.eye(M, dtype=DOUBLE) + 2 * weight
    truth = torch.linalg.solve(matrix, 2 * x.detach().mT).mT
    assert relative(y, truth) < 1e-10
    (grad,) = torch.autograd.grad(y.sum(), x)
    assert relative(grad, torch.linalg.solve(matrix, torch.full((3, M), 2.0, dtype=DOUBLE).mT).mT) < 1e-10


def test_dependent_active_constraints_have_the_gradient_of_their_twins():
    nodes = [
        DeclarativeNode(banded, None, boxed_twice, start=M, structure=kind, solver=Newton(), on_failure="mask")
        for kind in ("sparse", "dense")
    ]
    x = inputs(8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NumericalWarning)  # that the multipliers are not unique
        ys = [node(x) for node in nodes]
        grads = [torch.autograd.grad(y.pow(3).sum(), x)[0] for y in ys]
    assert relative(*ys) < 1e-9
    assert relative(*grads) < 1e-9
    assert ((ys[0].abs() - 0.1).abs() < 1e-9).sum() > 40


def test_dependent_constraints():
    def twice(_, u):
        return torch.cat([u[:4].sum().reshape(1) - 1, 2 * u[:4].sum().reshape(1) - 2])

    x = inputs()
    one, other = (
        DeclarativeNode(banded, twice, start=M, structure=kind, solver="newton") for kind in ("sparse", "dense")
    )
    assert relative(one(x), other(x)) < 1e-8


def test_infeasible_and_unbounded_get_a_status():
    node = DeclarativeNode(banded, inequality=lambda _, u: torch.cat([u - 1, 2 - u]), start=M, structure="sparse")
    with pytest.raises(SolverError, match=r"infeasible|stalled"):
        node(inputs())
    falling = DeclarativeNode(lambda x, u: (x * u).sum(), start=M, structure="sparse")
    with pytest.raises(SolverError, match=r"unbounded|stalled"):
        falling(inputs())


def test_sparse_where_it_cannot_be_had_is_an_error():
    def full(x, u):
        return (u - x).square().sum() + (u[:, None, None] * u[:, None] * u).square().sum()

    m = 300  # 27 million entries on the way
    node = DeclarativeNode(full, start=m, structure="sparse")
    with pytest.raises(ValueError, match="structure='dense'"):
        node(torch.zeros(1, m, dtype=DOUBLE))


def test_a_saddle_point_is_no_solution():
    node = DeclarativeNode(
        lambda x, u: (u[1:] - x[1:]).square().sum() - (u[0] - 1).square() + (u[0] - 1).pow(4),
        solver=lambda x: torch.cat([torch.ones_like(x[:, :1]), x[:, 1:]], -1),  # nothing but curvature tells it there
        structure="sparse",
    )
    with pytest.raises(SolverError, match="not_optimal"):
        node(inputs())


@pytest.mark.parametrize("record", [False, True])
def test_more_active_constraints_than_unknowns_are_told_in_any_units(record):
    """Each of the gradients that such a system has is one of many, also where large numbers hide that."""

    def objective(x, u):
        return 1e8 * ((u[1:] * u[:-1]).sum() + 0.05 * u.pow(4).sum() + (x * u).sum())

    node = DeclarativeNode(
        objective,
        lambda x, u: u[::4] + u[1] - 0.3 * x[::4],
        lambda x, u: u[:-1].square() + u[1:].square() - 1.5 + 0.0 * x[0],
        start=torch.tensor([0.5, -0.4, 0.6, -0.5, 0.45], dtype=torch.float64),
        structure="sparse",
        record=record,
    )
    x = torch.zeros(1, 5, dtype=torch.float64, requires_grad=True)
    solution = node.solve(x)
    assert solution.active.sum() > 3  # and two equalities: more than unknowns
    with pytest.warns(NumericalWarning, match="singular"):
        solution.y.sum().backward()
