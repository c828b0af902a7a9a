"""Where a solver starts: fixed, per problem, warm, or several places at once."""

import pytest
import torch

from declarative import DeclarativeNode
from declarative.forward import defined_start
from declarative.problem import Batch, Problem
from declarative.user.starts import default_points, initial_points
from tests.support.helpers import DOUBLE, relative


def wells(x, u):
    """Two minima, near -1 and 1; the sign of x says which one is deeper."""
    return ((u.square() - 1).square() + 0.3 * x * u).sum()


def test_several_starts_keep_the_best():
    x = torch.tensor([[1.0], [-1.0]], dtype=DOUBLE)
    right = DeclarativeNode(wells, start=torch.tensor([1.0]))(x)
    assert (right > 0).all()
    both = DeclarativeNode(wells, start=[torch.tensor([-1.0]), lambda x: torch.ones_like(x)])
    y = both(x.requires_grad_())
    assert (y[0] < 0).all()
    assert (y[1] > 0).all()
    assert torch.autograd.gradcheck(both, x)


# A node's own start has the shape of u for one problem


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("equality", [None, lambda _, u: u.sum() - 1])
def test_a_batched_start_of_the_node_is_refused_with_both_readings(several, equality):
    start = torch.zeros(4, 3)
    node = DeclarativeNode(
        lambda x, u: (u - x).square().sum(), equality, start=[torch.ones(3), start] if several else start
    )
    with pytest.raises(ValueError, match=r"solutions would have shape \(4, 4, 3\).*node\(x, start=...\)") as caught:
        node(torch.randn(4, 3))
    assert "start=(3,)" in str(caught.value)
    assert "start=lambda x: x" in str(caught.value)


def test_both_remedies_for_a_batched_start_work():
    x, start = torch.randn(4, 3, dtype=DOUBLE), torch.randn(4, 3, dtype=DOUBLE)

    def objective(x, u):
        return (u - x).square().sum()

    assert relative(DeclarativeNode(objective, start=(3,))(x, start=start), x) < 1e-12
    assert relative(DeclarativeNode(objective, start=lambda x: x + 1)(x), x) < 1e-12
    matrix = DeclarativeNode(objective, start=lambda _: torch.zeros(4, 3, dtype=DOUBLE))(x)
    assert relative(matrix, x[:, None].expand(4, 4, 3)) < 1e-12


@pytest.mark.filterwarnings("ignore:objective. input 0 of shape:UserWarning")  # the scalar inputs, as many as unknowns
@pytest.mark.parametrize(
    ("objective", "start", "inputs"),
    [
        (lambda x, u: (u - x).square().sum(), (4, 3), (5, 3)),  # another number of problems
        (lambda x, u: (u - x).square().sum(), (4, 3), (4, 4, 3)),  # the inputs have the same shape
        (lambda x, u: (u @ x - 1).square().sum() + u.square().sum(dim=(0, 1)), (4, 3), (4, 3)),  # u must be a matrix
        (lambda x, u: (u - x).square().sum(), (4,), (4,)),  # a scalar input goes with any shape
        (lambda x, u: (u.sum() - x.sum()).square() + u.square().sum(), (4, 3), (4, 2)),  # no input of such a shape
    ],
)
def test_a_start_that_is_one_point_is_taken_for_one(objective, start, inputs):
    y = DeclarativeNode(objective, start=torch.zeros(start))(torch.randn(inputs))
    assert y.shape == (inputs[0], *start)


def test_what_the_batch_shares_does_not_make_a_start_a_batch():
    def objective(x, w, u):
        return (w.mean(0) * u).square().sum() - x * u.sum()

    node = DeclarativeNode(objective, start=torch.zeros(4, 3), in_dims=(0, None))
    assert node(torch.randn(4), torch.ones(5, 3)).shape == (4, 4, 3)


def test_functions_that_return_another_kind_of_thing_for_a_row_take_none():
    node = DeclarativeNode(
        lambda x, u: (u - x).square().sum(),
        lambda _, u: torch.diag(u) - 1,  # the diagonal of a matrix, but a matrix of a row
        start=torch.zeros(4, 3),
    )
    assert node(torch.randn(4, 3)).shape == (4, 4, 3)


# The start that is chosen where only a shape is given lies where the functions are defined


def points(*shape: int, size: int = 2) -> torch.Tensor:
    return initial_points(torch.Size(shape), (torch.zeros(size),), (0,), size, DOUBLE)


def test_the_default_points_are_different_places_without_symmetry():
    candidates = list(default_points(points(3, 2)))
    assert torch.equal(candidates[0], points(3, 2))
    for one in candidates:
        assert one.shape == (2, 3, 2)
        assert torch.equal(one[0], one[1])
        assert one[0].unique().numel() == 6
    _, positive, simplex, small, large, negative = candidates
    assert ((positive > 0.25) & (positive < 0.75)).all()
    assert (simplex > 0).all()
    assert 0.5 < simplex[0].sum() < 1
    assert ((small > 0) & (small < 2e-3)).all()
    assert (large > 1).all()
    assert (negative < 0).all()


@pytest.mark.parametrize("n", [1, 2, 50])
def test_a_sum_below_one_is_among_the_default_points(n):
    sums = [one[0].sum() for one in default_points(points(n)) if (one > 0).all()]
    assert any(0.4 < total < 1 for total in sums)


def test_each_problem_takes_the_first_point_where_it_is_defined():
    asked = []

    def candidates(*values: float):
        for value in values:
            asked.append(value)
            yield torch.full((4, 2), value)

    def above(*least: float) -> Batch:
        problem = Problem(lambda x, u: (u - x).log().sum())
        return Batch(problem, (torch.tensor(least),), (0,), 4, torch.Size([2]), 0, 0)

    start = defined_start(above(-5.0, 0.0, 1.0, 100.0), candidates(-1.0, 0.5, 3.0))
    assert start[:, 0].tolist() == [-1.0, 0.5, 3.0, -1.0]
    assert asked == [-1.0, 0.5, 3.0]
    asked.clear()
    start = defined_start(above(-5.0, 0.0, -5.0, 0.0), candidates(0.5, 3.0))
    assert torch.equal(start, torch.full((4, 2), 0.5))
    assert asked == [0.5]  # no more than needed


@pytest.mark.parametrize(
    "functions",
    [
        {"objective": lambda x, u: (u * u.log()).sum() - x @ u, "equality": lambda _, u: u.sum() - 1},
        {"objective": lambda x, u: -u.log().sum() - (1 - u).log().sum() + x @ u},
        {"objective": lambda x, u: x @ u - u.log().sum() - (1 - u.sum()).log()},
        {"objective": lambda x, u: (u - x).square().sum() - (u - 1).log().sum()},
        {"objective": lambda x, u: (u - x).square().sum() - (-u).log().sum()},
        {"objective": lambda x, u: (u - x).square().sum(), "inequality": lambda _, u: 0.5 - u.sqrt()},
        {
            "objective": lambda x, u: (u - x).square().sum(),
            "inequality": lambda _, u: -3 - u.log(),
        },  # its slope is finite
        {"objective": lambda x, u: (u - x).square().sum() - (u + u.abs()).sqrt().sum()},  # a slope of NaN below 0
    ],
)
def test_logarithms_and_roots_are_defined_where_the_solver_would_start(functions):
    p, q = 1 if "equality" in functions else 0, 4 if "inequality" in functions else 0
    batch = Batch(Problem(**functions), (torch.rand(2, 4, dtype=DOUBLE),), (0,), 2, torch.Size([4]), p, q)
    first = points(4)
    assert not batch.is_defined(first).any()
    start = defined_start(batch, default_points(first))
    f, slope, values, jacobian = batch.slopes(start)
    assert all(part.isfinite().all() for part in (f, slope, values, jacobian))


def test_an_inequality_without_a_bound_is_defined():
    def rows(_, u):
        return torch.stack([u.sum() - 1, u.sum() - torch.inf])

    batch = Batch(Problem(wells, inequality=rows), (torch.rand(2, 4, dtype=DOUBLE),), (0,), 2, torch.Size([4]), 0, 2)
    assert batch.is_defined(points(4)).all()


def test_where_everything_is_defined_the_start_is_the_first_point():
    batch = Batch(Problem(wells), (torch.rand(2, 4, dtype=DOUBLE),), (0,), 2, torch.Size([4]), 0, 0)
    assert torch.equal(defined_start(batch, default_points(points(4))), points(4))


def test_entropy_is_solved_from_a_shape_alone():
    x = torch.randn(3, 4, dtype=DOUBLE)
    for options in ({"start": 4}, {"start": [4, torch.full((4,), 0.25)]}):
        node = DeclarativeNode(lambda x, u: (u * u.log()).sum() - x @ u, lambda _, u: u.sum() - 1, **options)
        assert relative(node(x), x.softmax(-1)) < 1e-8
