"""Second order and ``torch.func``: gradcheck, gradgradcheck and every transform against the closed form."""

import contextlib

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vmap

from declarative import DeclarativeNode, NumericalWarning
from tests.support.helpers import CASES, SOLVERS, case, gradients, relative, up_to_sign
from tests.support.layers import each_ready_made, loss, near, sphere
from tests.support.problem_table import Case

SMOOTH = [(problem, "closed form") for problem in CASES if not problem.sign_free]
each_solver = pytest.mark.parametrize("solver", SOLVERS)


def quiet(problem):
    if not problem.redundant:
        return contextlib.nullcontext()
    return pytest.warns(NumericalWarning)


@pytest.mark.parametrize(("problem", "solver"), SMOOTH, ids=str)
def test_gradcheck_forward_and_reverse(problem, solver):
    with quiet(problem):
        assert torch.autograd.gradcheck(
            problem.node(solver), problem.xs(2), check_forward_ad=True, check_batched_grad=True, fast_mode=True
        )


@pytest.mark.parametrize(("problem", "solver"), [*SMOOTH, (case("ball"), "scipy")], ids=str)
def test_gradgradcheck(problem, solver):
    with quiet(problem):
        assert torch.autograd.gradgradcheck(problem.node(solver), problem.xs(2), fast_mode=True)


def test_third_order():
    problem = case("sphere")
    (x,) = problem.xs(1)

    def third(f):
        return jacrev(jacrev(jacrev(lambda x: f(x[None])[0].pow(3).sum())))(x[0].detach())

    assert relative(third(problem.node("closed form")), third(problem.truth)) < 1e-10


NAMES = ["sphere", "simplex", "two inputs", "u a matrix", "u a scalar"]
TRANSFORMED = [*((name, solver) for name in NAMES for solver in ("closed form", "scipy")), ("sphere", "newton")]


@pytest.mark.parametrize(("name", "solver"), TRANSFORMED)
def test_func_transforms_agree_with_the_closed_form(name, solver):
    problem = case(name)
    node, xs = problem.node(solver), tuple(x.detach() for x in problem.xs(2))
    every, tangents = tuple(range(len(xs))), tuple(torch.randn_like(x) for x in xs)
    for transform in (jacrev, jacfwd):
        for mine, truth in zip(transform(node, every)(*xs), transform(problem.truth, every)(*xs), strict=True):
            assert relative(mine, truth) < 1e-9
    for mine, truth in zip(jvp(node, xs, tangents), jvp(problem.truth, xs, tangents), strict=True):
        assert relative(mine, truth) < 1e-9
    for transform, tolerance in ((grad, 1e-9), (hessian, 1e-8)):
        mine, truth = (transform(lambda *xs, f=f: loss(f(*xs)))(*xs) for f in (node, problem.truth))
        assert relative(mine, truth) < tolerance


NESTED = {
    "vmap of vmap": (lambda f: vmap(vmap(f)), 1e-12),
    "along another dimension": (lambda f: vmap(vmap(f, in_dims=1, out_dims=1)), 1e-12),
    "vmap of vmap of grad": (lambda f: vmap(vmap(grad(lambda x: loss(f(x))))), 1e-10),
    "grad of vmap": (lambda f: grad(lambda x: loss(vmap(vmap(f))(x))), 1e-10),
    "vmap of hessian": (lambda f: vmap(vmap(hessian(lambda x: loss(f(x))))), 1e-8),
}


@each_solver
@pytest.mark.parametrize(("nested", "tolerance"), NESTED.values(), ids=NESTED)
def test_nested_transforms_agree_with_the_closed_form(nested, tolerance, solver):
    problem = case("sphere")
    x = torch.randn(2, 3, 2, 4, dtype=torch.float64)
    assert relative(nested(problem.node(solver))(x), nested(problem.truth)(x)) < tolerance


@each_ready_made
def test_forward_over_reverse_is_reverse_over_reverse(case: Case):
    xs = tuple(x.detach() for x in case.inputs())
    once = grad(lambda *xs: loss(case.layer(*xs)))
    tangent = torch.linspace(-1, 1, xs[0].numel(), dtype=xs[0].dtype).sin().view(xs[0].shape)
    _, forward = jvp(lambda x: once(x, *xs[1:]), (xs[0],), (tangent,))
    backward = grad(lambda x: (once(x, *xs[1:]) * tangent).sum())(xs[0])  # the Hessian is symmetric
    assert near(forward, backward, 1e-8)


def test_functional_call_of_a_model_and_a_gradient_for_each_problem_of_the_batch():
    model = nn.Sequential(nn.Linear(3, 3), sphere("newton")).double()
    x, parameters = torch.randn(4, 3, dtype=torch.float64), {name: p.detach() for name, p in model.named_parameters()}

    def slopes(parameters, x):
        return grad(lambda p: loss(functional_call(model, p, (x,))))(parameters)

    together = slopes(parameters, x)
    each = vmap(lambda p, x: slopes(p, x[None]), in_dims=(None, 0))(parameters, x)
    expected = torch.autograd.grad(loss(model(x)), list(model.parameters()))
    alone = [torch.autograd.grad(loss(model(row[None])), list(model.parameters())) for row in x]
    for name, whole, *rows in zip(parameters, expected, *alone, strict=True):
        assert relative(together[name], whole) < 1e-12
        assert relative(each[name], torch.stack(rows)) < 1e-10


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


@each_solver
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
