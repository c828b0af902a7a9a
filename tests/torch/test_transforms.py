"""Second order and ``torch.func``: gradcheck, gradgradcheck and every transform against the closed form."""

import contextlib

import pytest
import torch
from torch.func import grad, hessian, jacfwd, jacrev, vmap

from declarative import DeclarativeNode, NumericalWarning
from tests.support.helpers import CASES, case, cases, gradients, relative, up_to_sign

SMOOTH = [c for c in CASES if not c.sign_free]


def quiet(problem):
    if not problem.warns:
        return contextlib.nullcontext()
    return pytest.warns(NumericalWarning)


@pytest.mark.parametrize("problem", cases(SMOOTH))
def test_gradcheck_forward_and_reverse(problem):
    node = problem.node("closed form")
    with quiet(problem):
        assert torch.autograd.gradcheck(
            node, problem.xs(2), check_forward_ad=True, check_batched_grad=True, fast_mode=True
        )


@pytest.mark.parametrize("problem", cases(SMOOTH))
def test_gradgradcheck(problem):
    with quiet(problem):
        assert torch.autograd.gradgradcheck(problem.node("closed form"), problem.xs(2), fast_mode=True)


def test_gradgradcheck_through_an_iterative_solver():
    problem = case("ball")
    assert torch.autograd.gradgradcheck(problem.node("scipy"), problem.xs(2), fast_mode=True)


def test_third_order():
    problem = case("sphere")
    (x,) = problem.xs(1)

    def third(f):
        return jacrev(jacrev(jacrev(lambda x: f(x[None])[0].pow(3).sum())))(x[0].detach())

    assert relative(third(problem.node("closed form")), third(problem.truth)) < 1e-10


@pytest.mark.parametrize("solver", ["closed form", "scipy"])
@pytest.mark.parametrize("name", ["sphere", "simplex", "two inputs", "u a matrix", "u a scalar"])
def test_func_transforms_agree_with_the_closed_form(name, solver):
    problem = case(name)
    node, xs = problem.node(solver), tuple(x.detach() for x in problem.xs(2))

    def loss(f):
        return lambda *xs: (f(*xs) + 0.3).pow(3).sum()

    every = tuple(range(len(xs)))
    for transform in (jacrev, jacfwd):
        for mine, truth in zip(transform(node, every)(*xs), transform(problem.truth, every)(*xs), strict=True):
            assert relative(mine, truth) < 1e-9
    assert relative(grad(loss(node))(*xs), grad(loss(problem.truth))(*xs)) < 1e-9
    assert relative(hessian(loss(node))(*xs), hessian(loss(problem.truth))(*xs)) < 1e-8


@pytest.mark.parametrize("solver", ["closed form", "scipy"])
def test_vmap_over_a_node_nested_and_with_gradients(solver):
    problem = case("sphere")
    node = problem.node(solver)
    x = torch.randn(2, 3, 2, 4, dtype=torch.float64)
    assert relative(vmap(vmap(node))(x), problem.truth(x)) < 1e-12

    def loss(f):
        return lambda x: f(x).pow(3).sum()

    assert relative(vmap(grad(loss(node)))(x[0]), vmap(grad(loss(problem.truth)))(x[0])) < 1e-10
    assert relative(vmap(node, in_dims=1, out_dims=1)(x[0]), problem.truth(x[0])) < 1e-12


@pytest.mark.parametrize("solver", ["closed form", "scipy"])
def test_vmap_over_an_input_that_the_node_shares(solver):
    problem = case("two inputs")
    node = problem.node(solver)
    x, a = torch.randn(3, 3, dtype=torch.float64), torch.randn(2, 3, dtype=torch.float64)
    expected = torch.stack([problem.truth(x, one) for one in a])
    assert relative(vmap(node, in_dims=(None, 0))(x, a), expected) < 1e-10


def test_vmap_over_an_unbatched_node():
    problem = case("sphere")
    x = torch.randn(3, 4, dtype=torch.float64)
    for solver in ("scipy", lambda x: x / x.norm()):
        node = problem.node(solver, in_dims=None)
        assert relative(vmap(node)(x), problem.truth(x)) < 1e-12
        assert node(x[0]).shape == (4,)


def test_eigenvector_second_order():
    problem = case("eigenvector")
    (x,) = problem.xs(2)
    node = problem.node("closed form")

    def loss(y):
        return (y.unsqueeze(-1) * y.unsqueeze(-2)).pow(3).sum()  # does not see the sign

    def second(f):
        (g,) = torch.autograd.grad(loss(f(x)), x, create_graph=True)
        return torch.autograd.grad(g.pow(2).sum(), x)[0]

    assert relative(second(node), second(problem.truth)) < 1e-8


def test_an_input_that_needs_no_gradient_gets_none_and_an_integer_input_is_data():
    problem = case("two inputs")
    x, a = problem.xs(2)
    y, truth = problem.node("closed form")(x, a.detach()), problem.truth(x, a)
    v = torch.randn_like(y)
    assert relative(gradients(y, (x,), v)[0], gradients(truth, (x,), v)[0]) < 1e-12
    pick = DeclarativeNode(
        lambda x, i, u: (u - x.gather(0, i[None])[0]).square(), solver=lambda x, i: x.gather(1, i[:, None])[:, 0]
    )
    x = torch.randn(3, 4, requires_grad=True)
    index = torch.tensor([2, 0, 1])
    (g,) = torch.autograd.grad(pick(x, index).sum(), x)
    assert torch.equal(g, torch.zeros(3, 4).scatter(1, index[:, None], 1.0))


def test_eigenvectors_from_the_solver_differ_at_most_by_sign():
    problem = case("eigenvector")
    (x,) = problem.xs(3)
    y = problem.node("scipy")(x)
    assert relative(up_to_sign(y, problem.truth(x)).detach(), problem.truth(x).detach()) < 1e-9


@pytest.mark.parametrize("solver", ["closed form", "newton", "scipy"])
@pytest.mark.parametrize("name", ["sphere", "linear-equality", "simplex"])
def test_many_incoming_gradients_at_once(name, solver):
    """Whatever the solver left for the backward pass, a mapped incoming gradient finds its way."""
    problem = case(name)
    (x,) = problem.xs(2)
    y = problem.node(solver)(x)
    v = torch.randn(4, *y.shape, dtype=y.dtype)
    one_by_one = torch.stack([torch.autograd.grad(y, x, one, retain_graph=True)[0] for one in v])
    (batched,) = torch.autograd.grad(y, x, v, is_grads_batched=True, retain_graph=True)
    mapped = torch.vmap(lambda v: torch.autograd.grad(y, x, v, retain_graph=True)[0])(v)
    assert relative(batched, one_by_one) < 1e-12
    assert relative(mapped, one_by_one) < 1e-12


FORWARD = {
    "second derivatives": lambda node, x, v: torch.func.hessian(lambda x: (v * node(x)).sum())(x),
    "the objective": lambda node, x, v: torch.func.jvp(lambda x: node.solve(x).objective, (x,), (v,))[1],
    "a matrix": lambda node, x, v: torch.func.jvp(lambda x: node.derivatives(x).H, (x,), (v,))[1],
}


@pytest.mark.parametrize("derivative", FORWARD.values(), ids=FORWARD)
def test_forward_mode_where_gradients_are_disabled(derivative):
    node = DeclarativeNode(
        lambda x, u: (u - x).square().sum() / 2 + u.pow(4).sum(), lambda _, u: u.square().sum() - 1, start=3
    )
    x, v = torch.randn(2, 2, 3, dtype=torch.float64).unbind()
    truth = derivative(node, x, v)
    with torch.no_grad():
        assert torch.allclose(derivative(node, x, v), truth, rtol=1e-12)
    assert truth.abs().max() > 1e-3


def test_forward_mode_of_forward_mode_is_refused():
    node = DeclarativeNode(lambda x, u: (u - x).square().sum() + u.pow(4).sum(), start=3)
    x = torch.randn(2, 2, 3, dtype=torch.float64)
    assert torch.vmap(torch.func.jacfwd(node))(x).shape == (2, 2, 3, 2, 3)
    with pytest.raises(ValueError, match="reverse mode for one of the two"):
        torch.func.jacfwd(torch.func.jacfwd(node))(x[0])
