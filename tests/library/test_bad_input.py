"""What bad input gets: an error that names the argument, what was expected, what came, and the remedy."""

import functools

import pytest
import torch
from torch import nn

from declarative import DeclarativeNode, NumericalWarning, Scipy, SolverError, Status
from tests.support.helpers import DOUBLE, case, half_square, normalise

X = torch.ones(2, 3)


def sphere(_, u):
    return u.square().sum() - 1


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"gradient": "exakt"}, ValueError, "gradient must be one of 'exact'"),
        ({"gradient": 3}, ValueError, "gradient must be one of"),
        ({"solver": "newtn"}, ValueError, "solver must be one of"),
        ({"solver": 3}, TypeError, "solver must be a name"),
        ({"on_failure": "ignore"}, ValueError, "on_failure must be 'raise' or 'mask'"),
        ({"solver": "scipy", "start": None}, ValueError, "start is needed by iterative solvers"),
        ({"start": "3"}, TypeError, "start must be the shape of u"),
        ({"start": (2, -1)}, TypeError, "start must be the shape of u"),
        ({"start": (2, 0)}, ValueError, "at least one entry"),
        ({"equality": 3}, TypeError, "equality must be a function"),
        ({"objective": None}, TypeError, "objective must be a function"),
    ],
)
def test_wrong_arguments_are_refused_when_the_node_is_made(options, error, match):
    given = {"objective": half_square, "start": 3, **options}
    with pytest.raises(error, match=match):
        DeclarativeNode(given.pop("objective"), given.pop("equality", None), **given)


@pytest.mark.parametrize(
    ("problem", "match"),
    [
        ({"objective": lambda x, u: (u - x).square()}, r"objective must return a scalar.*\(3,\).*sum it"),
        ({"objective": lambda x, u: (u - x).square().sum()[None]}, r"objective must return a scalar.*\(1,\)"),
        ({"objective": lambda x, _: x.square().sum()}, "objective does not depend on u"),
        ({"objective": lambda x, u: (u.detach() - x).square().sum()}, "objective does not depend on u"),
        ({"equality": lambda _, u: torch.outer(u, u)}, r"equality must return a vector or a scalar.*\(3, 3\)"),
        ({"inequality": lambda _, u: u.expand(2, 3)}, r"inequality must return a vector or a scalar.*\(2, 3\)"),
    ],
)
def test_wrong_return_shapes(problem, match):
    node = DeclarativeNode(problem.pop("objective", half_square), **problem, solver="scipy", start=3)
    with pytest.raises(ValueError, match=match):
        node(X)


@pytest.mark.parametrize(
    ("problem", "match"),
    [
        ({"objective": lambda x, u: (u - x).sum() > 0}, "objective must return a floating-point tensor"),
        ({"objective": lambda *_: 1.0}, "objective must return a tensor, but returned float"),
        ({"equality": lambda _, u: (u.sum(), u.sum())}, "equality must return a tensor, but returned tuple"),
    ],
)
def test_wrong_return_types(problem, match):
    node = DeclarativeNode(problem.pop("objective", half_square), **problem, solver="scipy", start=3)
    with pytest.raises(TypeError, match=match):
        node(X)


def test_the_users_own_exception_comes_through_with_a_note():
    node = DeclarativeNode(lambda x, u: (x @ u).sum(), solver="scipy", start=4)
    with pytest.raises(RuntimeError) as caught:
        node(X)
    assert "objective(*xs, u)" in caught.value.__notes__[0]
    assert "(3,)" in caught.value.__notes__[0]
    assert "(4,)" in caught.value.__notes__[0]


@pytest.mark.parametrize(
    ("inputs", "options", "error", "match"),
    [
        ((), {}, ValueError, "at least one input"),
        (([1.0],), {}, TypeError, "input 0 must be a tensor, but is list"),
        ((X.to(torch.complex64),), {}, TypeError, "input 0 is complex"),
        ((X.to_sparse(),), {}, TypeError, "sparse"),
        ((torch.tensor(1.0),), {}, ValueError, "add a batch dimension"),
        ((X,), {"in_dims": 2}, ValueError, "dimension 2 is the batch"),
        ((X, X), {"in_dims": (0,)}, ValueError, "in_dims has 1 entries, but the node was called with 2"),
        ((X, torch.ones(3, 3)), {}, ValueError, r"different batch sizes \(input 0: 2, input 1: 3\)"),
    ],
)
def test_wrong_inputs(inputs, options, error, match):
    def objective(*arguments):
        return sum((arguments[-1] - x).square().sum() for x in arguments[:-1])

    with pytest.raises(error, match=match):
        DeclarativeNode(objective, solver="scipy", start=3, **options)(*inputs)


@pytest.mark.parametrize(
    ("formula", "error", "match"),
    [
        (lambda x: x[:1], ValueError, r"one solution per problem, shape \(2, ...\), but returned \(1, 3\)"),
        (lambda x: x.sum(), ValueError, "one solution per problem"),
        (lambda x: x.numpy(), TypeError, "must return a tensor, but returned ndarray"),
        (lambda x: x.long(), TypeError, "floating-point"),
    ],
)
def test_wrong_closed_forms(formula, error, match):
    with pytest.raises(error, match=match):
        DeclarativeNode(half_square, solver=formula)(X)


def test_a_closed_form_that_is_not_the_solution_is_found_out():
    node = DeclarativeNode(half_square, sphere, solver=lambda x: 2 * normalise(x))
    with pytest.raises(SolverError, match="check its formula") as caught:
        node(X)
    assert caught.value.indices == [0, 1]
    assert caught.value.solution.y.shape == (2, 3)


class Captures(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

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
        DeclarativeNode(Captures(), solver="scipy", start=3)(X)


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


def test_a_function_that_changes_its_input_is_refused():
    node = DeclarativeNode(lambda x, u: (x.mul_(2.0) - u).square().sum(), solver="scipy", start=3)
    with pytest.raises(ValueError, match="changes its input in place"):
        node(X.clone())


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("solver", ["closed form", "scipy"])
def test_inputs_that_are_not_finite_are_a_status_of_their_problem(solver, bad):
    problem = case("sphere")
    (x,) = problem.xs(3)
    x = x.detach().clone()
    x[1, 0] = bad
    with pytest.raises(SolverError, match="not_finite") as caught:
        problem.node(solver)(x)
    assert caught.value.indices == [1]
    assert caught.value.solution.status == [Status.CONVERGED, Status.NOT_FINITE, Status.CONVERGED]
    with pytest.warns(NumericalWarning, match="1 of 3 problems"):
        y = problem.node(solver, on_failure="mask")(x.requires_grad_())
    (g,) = torch.autograd.grad(y[[0, 2]].pow(3).sum(), x)
    assert not g[1].any()
    good = problem.truth(x[[0, 2]])
    (expected,) = torch.autograd.grad(good.pow(3).sum(), x)
    assert torch.allclose(g[[0, 2]], expected[[0, 2]], rtol=1e-12)


def test_a_masked_nan_does_not_leak_into_a_shared_input():
    problem = case("two inputs")
    x, a = problem.xs(3)
    x = x.detach().clone()
    x[0, 1] = torch.nan
    with pytest.warns(NumericalWarning, match="1 of 3"):
        y = problem.node("scipy", on_failure="mask")(x, a)
    (g,) = torch.autograd.grad(y.sum(), a)
    (expected,) = torch.autograd.grad(problem.truth(x[1:], a).sum(), a)
    assert torch.allclose(g, expected, rtol=1e-10)


def test_all_problems_masked_gives_zero_gradients():
    problem = case("two inputs")
    x, a = problem.xs(2)
    x = torch.full_like(x, torch.nan).requires_grad_()
    with pytest.warns(NumericalWarning, match="2 of 2"):
        y = problem.node("scipy", on_failure="mask")(x, a)
    for g in torch.autograd.grad(y.sum(), (x, a)):
        assert not g.any()


@pytest.mark.parametrize("name", ["sphere", "simplex", "two inputs", "u a matrix", "u a scalar"])
@pytest.mark.parametrize("solver", ["closed form", "scipy"])
def test_an_empty_batch_gives_an_empty_result_and_zero_gradients(name, solver):
    problem = case(name)
    xs = problem.xs(1)
    dims = problem.options.get("in_dims", (0,) * len(xs))
    empty = tuple((x[:0] if dim == 0 else x).detach().requires_grad_() for x, dim in zip(xs, dims, strict=True))
    y = problem.node(solver)(*empty)
    assert y.shape == (0, *problem.truth(*xs).shape[1:])
    for x, g in zip(empty, torch.autograd.grad(y.sum(), empty), strict=True):
        assert g.shape == x.shape
        assert not g.any()


def test_more_constraints_than_unknowns():
    """p > m is fine where the constraints agree."""
    node = DeclarativeNode(
        lambda _, u: u.square().sum(),
        lambda x, u: torch.stack([u[0] - x, u[1] - 1, u.sum() - x - 1]),
        solver=lambda x: torch.stack([x, torch.ones_like(x)], -1),
    )
    x = torch.tensor([0.5, 2.0], dtype=DOUBLE, requires_grad=True)
    y = node(x)
    with pytest.warns(NumericalWarning, match="singular"):
        (g,) = torch.autograd.grad(y[:, 0].sum() + 2 * y[:, 1].sum(), x)
    assert torch.allclose(g, torch.ones(2, dtype=DOUBLE), rtol=1e-10)


def test_all_integer_inputs_give_the_default_dtype():
    y = DeclarativeNode(lambda x, u: (u - x).square().sum(), solver="scipy", start=2)(torch.tensor([[1, 2]]))
    assert y.dtype == torch.get_default_dtype()
    assert torch.equal(y, torch.tensor([[1.0, 2.0]]))


def test_constraints_need_a_method_that_takes_them():
    with pytest.raises(ValueError, match="takes no constraints"):
        DeclarativeNode(half_square, sphere, solver=Scipy(method="BFGS"), start=3)(X)
    with pytest.raises(ValueError, match="method must be one of"):
        Scipy(method="newton")


def test_a_start_of_the_wrong_shape_is_the_functions_own_error_with_shapes():
    node = DeclarativeNode(half_square, solver="scipy", start=torch.zeros(4))
    with pytest.raises(RuntimeError) as caught:
        node(X)
    assert "u of shape (4,)" in caught.value.__notes__[0]


def test_messages_do_not_print_arrays():
    x = torch.full((64, 200), torch.nan)
    with pytest.raises(SolverError) as caught:
        DeclarativeNode(half_square, solver="scipy", start=200)(x)
    assert len(str(caught.value)) < 1500
    assert "and 54 more" in str(caught.value)
    assert len(repr(caught.value.solution)) < 200


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


def test_under_a_transform_the_functions_see_real_inputs_only():
    node = DeclarativeNode(lambda S, u: (torch.linalg.cholesky(S) @ u - 1).square().sum(), solver="newton", start=2)
    S = torch.tensor([[[2.0, 0.3], [0.3, 1.0]]], dtype=DOUBLE)
    found = torch.func.grad(lambda S: node(S).sum())(S)
    (expected,) = torch.autograd.grad(node(S.requires_grad_()).sum(), S)
    assert torch.allclose(found, expected, rtol=1e-12)


def test_a_warm_start_of_another_shape_is_refused():
    node = DeclarativeNode(half_square, solver="newton", start=3)
    for wrong in (torch.zeros(2, 1), torch.zeros(2, 1, 3)):
        with pytest.raises(ValueError, match=r"start must have shape \(2, 3\)"):
            node(X, start=wrong)


def test_empty_batches_everywhere():
    node = DeclarativeNode(half_square, sphere, start=3)
    d = node.derivatives(torch.zeros(0, 3))
    assert d.H.shape == (0, 3, 3)
    assert torch.vmap(node)(torch.zeros(2, 0, 3)).shape == (2, 0, 3)
