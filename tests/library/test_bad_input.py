"""What bad input gets: an error that names the argument, what was expected, what came, and the remedy."""

import pytest
import torch

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
        ({"objective": None}, ValueError, "without an objective solves equations"),
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
        ({"objective": lambda _, u: (u.sum(), u.sum())}, "objective must return a tensor, but returned tuple"),
        (
            {"equality": lambda *_: 1.0},
            "equality must return a tensor, or a dict or tuple of tensors, but returned float",
        ),
    ],
)
def test_wrong_return_types(problem, match):
    node = DeclarativeNode(problem.pop("objective", half_square), **problem, solver="scipy", start=3)
    with pytest.raises(TypeError, match=match):
        node(X)


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


def test_an_input_that_is_not_finite_is_a_status_even_where_nothing_depends_on_it():
    node = DeclarativeNode(lambda x, u: (u - x[:1]).square().sum(), start=1, on_failure="mask")
    with pytest.warns(NumericalWarning, match="not_finite"):
        solution = node.solve(torch.tensor([[1.0, torch.nan], [2.0, 3.0]]))
    assert solution.status == [Status.NOT_FINITE, Status.CONVERGED]


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


def test_more_constraints_than_unknowns():
    """p > m is fine where the constraints agree."""
    node = DeclarativeNode(
        lambda _, u: u.square().sum(),
        lambda x, u: torch.stack([u[0] - x, u[1] - 1, u.sum() - x - 1]),
        solver=lambda x: torch.stack([x, torch.ones_like(x)], -1),
    )
    x = torch.tensor([0.5, 2.0], dtype=DOUBLE, requires_grad=True)
    y = node(x)
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


def test_under_a_transform_the_functions_see_real_inputs_only():
    node = DeclarativeNode(lambda S, u: (torch.linalg.cholesky(S) @ u - 1).square().sum(), solver="newton", start=2)
    S = torch.tensor([[[2.0, 0.3], [0.3, 1.0]]], dtype=DOUBLE)
    found = torch.func.grad(lambda S: node(S).sum())(S)
    (expected,) = torch.autograd.grad(node(S.requires_grad_()).sum(), S)
    assert torch.allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("order", [(torch.float32, torch.float64), (torch.float64, torch.float32)], ids=str)
def test_the_widest_input_decides_the_precision(order):
    node = DeclarativeNode(lambda x, a, u: (u - x - a).square().sum(), solver=lambda x, a: x + a)
    x, a = (torch.randn(2, 3, dtype=dtype, requires_grad=True) for dtype in order)
    y = node(x, a)
    assert y.dtype == torch.float64
    assert [g.dtype for g in torch.autograd.grad(y.sum(), (x, a))] == list(order)
