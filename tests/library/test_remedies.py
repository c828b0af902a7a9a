"""What goes wrong in a user's function comes with the remedy for this kind of thing, and no other."""

import pickle

import pytest
import torch

from declarative import DeclarativeNode, Newton, NumericalWarning, SolverError
from declarative.boundary import corner_hint, corners
from declarative.problem import Batch, Problem
from declarative.solution import Status
from tests.support.helpers import half_square

X = torch.ones(2, 3, dtype=torch.float64)
SINGLE = torch.ones(2, 3)


def filled(_, u):
    parts = torch.zeros(3, dtype=u.dtype)
    parts[0] = u[0]
    return parts.sum()


COUNT, SHAPES, DTYPE = "was called with", "A shape depends on values", ".to(u)"
RANDOM, FILLED, ONE = "draw them before", "torch.stack or torch.cat", "Write it for one problem"
KINDS = [COUNT, SHAPES, DTYPE, RANDOM, FILLED, ONE]


@pytest.mark.parametrize(
    ("objective", "remedy"),
    [
        (lambda x: x.sum(), COUNT),
        (lambda x, w, u: (u - w * x).sum(), COUNT),
        (lambda x, *, u: (u - x).sum(), COUNT),
        (lambda x, u: u[x > 0].sum(), SHAPES),
        (lambda x, u: u.sum() * x.nonzero().sum(), SHAPES),
        (lambda x, u: torch.masked_select(u, x > 0).sum(), SHAPES),
        (lambda _, u: (SINGLE @ u).square().sum(), DTYPE),
        (lambda _, u: torch.einsum("ij,j", SINGLE, u).sum(), DTYPE),
        (lambda _, u: torch.linalg.solve(torch.eye(3), u).sum(), DTYPE),
        (lambda x, u: (u - x + torch.rand(3, dtype=u.dtype)).sum(), RANDOM),
        (filled, FILLED),
        (lambda x, u: (u - x[:2]).square().sum(), ONE),
        (lambda x, u: u.sum(1) - x.sum(), ONE),
        (lambda _, u: u[5], ONE),
        (lambda x, u: torch.cat([u[None], x]).sum(), ONE),
        (lambda _, u: u.undefined(), ""),
        (lambda *_: 1 / 0, ""),
        (lambda _, u: sum(zip(u, u, strict=True)), ""),  # a TypeError, but the number of arguments is right
    ],
)
def test_each_kind_of_error_has_its_own_note(objective, remedy):
    with pytest.raises((RuntimeError, TypeError, IndexError, AttributeError, ZeroDivisionError)) as caught:
        DeclarativeNode(objective, start=3)(X)
    (note,) = caught.value.__notes__
    assert [kind for kind in KINDS if kind in note] == ([remedy] if remedy else [])
    assert ("called under torch.vmap for one problem" in note) == (remedy != COUNT)


def test_a_wrong_number_of_arguments_is_counted():
    with pytest.raises(TypeError) as caught:
        DeclarativeNode(lambda x, w, u: (u - w * x).sum(), start=3)(X)
    told = "objective(x, w, u) was called with 2 arguments: the 1 input(s) that the node was called with, and u"
    assert told in caught.value.__notes__[0]


def test_the_note_tells_the_shapes_and_the_dtype():
    with pytest.raises(RuntimeError) as caught:
        DeclarativeNode(lambda x, u: (x @ u).sum(), solver="scipy", start=4)(X)
    assert (
        "objective(*xs, u), called under torch.vmap for one problem with inputs of shape (3,) and u of shape (4,)"
        in (caught.value.__notes__[0])
    )
    with pytest.raises(RuntimeError) as caught:
        DeclarativeNode(half_square, lambda _, u: SINGLE @ u, start=3)(X)
    assert caught.value.__notes__[0].startswith("This happened in equality")
    assert "The inputs and u are torch.float64 here" in caught.value.__notes__[0]
    assert DeclarativeNode(half_square, lambda _, u: SINGLE.to(u) @ u, start=3).solve(X).converged.all()


def test_what_is_no_tensor_needs_no_note():
    with pytest.raises(TypeError, match="must return a tensor") as caught:
        DeclarativeNode(lambda *_: 1.0, start=3)(X)
    assert not hasattr(caught.value, "__notes__")


# Steps: their derivative is zero everywhere, so that any point would pass for a solution


@pytest.mark.parametrize(
    ("step", "name"),
    [
        (torch.round, "round"),
        (lambda v: v.round(decimals=1), "round"),
        (torch.floor, "floor"),
        (torch.ceil, "ceil"),
        (torch.trunc, "trunc"),
        (torch.sign, "sign"),
        (torch.sgn, "sgn"),
        (lambda v: torch.div(v, 2.0, rounding_mode="floor"), r"div\(rounding_mode='floor'\)"),
        (lambda v: torch.exp(v.round() + v.floor()), "floor and round"),
    ],
)
@pytest.mark.parametrize("solver", [None, "scipy", lambda x: x.clone()], ids=["default", "scipy", "closed form"])
def test_an_objective_made_of_steps_is_refused(step, name, solver):
    node = DeclarativeNode(lambda x, u: step(u - x).square().sum(), solver=solver, start=3)
    with pytest.raises(ValueError, match=f"objective depends on u only through {name}, with a derivative of zero"):
        node(X)


def test_a_constraint_made_of_steps_is_refused():
    for options in ({"equality": lambda _, u: u.round().sum() - 1}, {"inequality": lambda _, u: -u.floor()}):
        with pytest.raises(ValueError, match=f"{next(iter(options))} depends on u only through"):
            DeclarativeNode(half_square, **options, start=3)(X)


def test_steps_beside_a_slope_or_of_the_inputs_are_fine():
    rounded = DeclarativeNode(lambda x, u: (u - x.round()).square().sum(), start=3)(X + 0.2)
    assert torch.allclose(rounded, X)
    beside = DeclarativeNode(lambda x, u: ((u - x) * (1 + (u - x).detach().sign() / 4)).square().sum(), start=3)(X)
    assert torch.allclose(beside, X)
    way_around = DeclarativeNode(lambda x, u: (u - x).square().sum() + 0.0 * u.round().sum(), start=3)(X)
    assert torch.allclose(way_around, X)


def test_steps_are_refused_inside_transforms_too():
    node = DeclarativeNode(lambda x, u: (u - x).round().square().sum(), start=3)
    for transform in (torch.func.grad(lambda x: node(x).sum()), lambda x: torch.vmap(node)(x[None])):
        with pytest.raises(ValueError, match="only through round"):
            transform(X)


# Corners


def batch(objective, **constraints) -> Batch:
    return Batch(Problem(objective, **constraints), (X,), (0,), 2, torch.Size([3]), 0, 0)


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (lambda v: v.abs(), ["abs"]),
        (torch.relu, ["relu"]),
        (lambda v: v.clamp(min=0), ["clamp"]),
        (lambda v: torch.clamp_max(v, 1.0), ["clamp"]),
        (lambda v: v.norm(), ["norm"]),
        (lambda v: torch.dist(v, torch.zeros_like(v)), ["norm"]),
        (lambda v: v.max(), ["max"]),
        (lambda v: v.min(0).values, ["min"]),
        (lambda v: v.amax(), ["amax"]),
        (lambda v: torch.maximum(v, -v), ["maximum"]),
        (lambda v: torch.where(v > 0, v, -v), ["where"]),
        (lambda v: v.sort().values[0], ["sort"]),
        (lambda v: v.median(), ["median"]),
        (lambda v: torch.nn.functional.l1_loss(v, torch.zeros_like(v)), ["abs"]),
        (lambda v: v.abs() + v.round() + v.relu(), ["abs", "relu", "round"]),
        (lambda v: v.square() + v.exp() + v.softmax(0) * v.logsumexp(0), []),
        (lambda v: v.detach().abs() * v, []),
    ],
)
def test_the_operations_with_corners_are_found(function, names):
    one = batch(lambda x, u: function(u - x).sum() + x.abs().sum())
    assert corners(one, torch.zeros_like(X)) == [f"{name} in objective" for name in names]


def test_corners_are_found_in_every_function_and_not_those_of_captured_tensors():
    weight = torch.nn.Parameter(torch.ones(3, dtype=X.dtype))
    one = batch(
        lambda _, u: (weight.abs() * u).square().sum(),
        equality=lambda _, u: u.norm() - 1,
        inequality=lambda x, u: torch.relu(u) - x,
    )
    assert corners(one, X) == ["norm in equality", "relu in inequality"]


def test_a_hint_at_corners_is_for_problems_that_were_given_up_on():
    one = batch(lambda x, u: (u - x).abs().sum())
    for status in Status:
        told = corner_hint(one, X, torch.tensor([Status.CONVERGED, status]))
        given_up = status in (Status.ITERATION_LIMIT, Status.STALLED, Status.NOT_OPTIMAL)
        assert ("corners or jumps (abs in objective)" in told and "extra unknown" in told) == given_up
        assert bool(told) == given_up
    smooth = batch(lambda x, u: (u - x).square().sum())
    assert corner_hint(smooth, X, torch.tensor([Status.STALLED, Status.STALLED])) == ""


def test_what_the_hint_advises_solves_the_problem():
    """(u - x)^2 / 2 + |u|, with |u| replaced by t and two inequalities: the solution is a soft threshold."""
    x = torch.tensor([3.0, 0.4, -0.2, -2.0], dtype=torch.float64)
    node = DeclarativeNode(
        lambda x, z: (z[0] - x).square() / 2 + z[1],
        inequality=lambda _, z: torch.stack([z[0] - z[1], -z[0] - z[1]]),
        start=2,
    )
    assert torch.allclose(node(x)[:, 0], torch.nn.functional.softshrink(x, 1.0), atol=1e-6)


def test_a_hint_is_the_last_line_of_the_error_and_survives_pickling():
    with pytest.raises(SolverError) as caught:
        DeclarativeNode(lambda x, u: x @ u, start=3)(X)
    error = SolverError(caught.value.solution, "Mind the corners.")
    assert str(error).splitlines() == [*str(caught.value).splitlines(), "Mind the corners."]
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.hint) == (str(error), "Mind the corners.")


@pytest.mark.parametrize("on_failure", ["raise", "mask"])
def test_a_solution_on_a_corner_is_told_of(on_failure):
    node = DeclarativeNode(
        lambda x, u: (u - x).abs().sum(), solver=Newton(max_iterations=20), start=3, on_failure=on_failure
    )
    context = pytest.raises(SolverError) if on_failure == "raise" else pytest.warns(NumericalWarning)
    with context as caught:
        node(X)
    told = str(caught.value if on_failure == "raise" else caught[0].message)
    assert "corners or jumps (abs in objective)" in told
