"""Newton's method alone on problems of the table, each of which needs something of it that is easily lost."""

import pytest
import torch

from declarative import DeclarativeNode
from declarative.linear import DENSE
from declarative.optimality import assess, optimality_tolerance
from declarative.problem import Batch, Problem
from declarative.solvers.newton.regularisation import least_curvature, reflected
from declarative.solvers.newton.state import Model
from tests.support.helpers import DOUBLE
from tests.support.nlp import TABLE
from tests.support.nlp.run import SOLVERS, attempt

ONE = torch.ones(1, dtype=DOUBLE)
NEEDS = {
    "a barrier as small as the tolerance asks": ["HS19", "HS106", "HS109"],
    "equalities that depend on each other": ["HS55", "Haverly 2", "traffic 4 x 5"],
    "slacks that take the room there is": ["HS70", "HS108", "compliance 3 x 3"],
    "a way out of where violations balance": ["HS90", "HS92"],
    "long steps along faint negative curvature": ["Misra1a far", "Misra1d far", "Eckerle4 far", "Biggs", "HS9"],
    "curvature that cancels at the solution": ["tension spring", "G11", "ten bars, stresses", "power, 9 buses"],
    "solutions that are not alone": ["Thomson 12, angles", "Thomson 5, points", "linear, rank 1", "HS26"],
    "sums whose rounding errors are large": ["Watson 12"],
}
ITERATIONS = 100


@pytest.fixture(scope="module")
def compiled():
    """The time limit is for solving: kernels have been compiled, those for curvature that is turned among them."""
    DeclarativeNode(lambda x, u: (x * u).cos().sum(), lambda _, u: u.sum() - 1, start=2, bounds=(-1, 1))(ONE.view(1, 1))


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("name", [pytest.param(name, id=name) for names in NEEDS.values() for name in names])
def test_known_minima_are_found_in_a_moderate_number_of_iterations(name):
    outcome = attempt(next(p for p in TABLE if p.name == name), SOLVERS["newton"], 10.0)
    assert outcome.verdict in ("solved", "local"), outcome
    assert outcome.iterations <= ITERATIONS


def saddle(count=1):
    """f = u0^2 - u1^2 / 2 at (1, 1), on the line u2 = 0."""
    hessian = torch.diag(torch.tensor([2.0, -1.0, -5.0], dtype=DOUBLE)).expand(count, 3, 3)
    gradient = torch.tensor([[2.0, -1.0, 0.0]], dtype=DOUBLE).expand(count, 3)
    row = torch.tensor([[[0.0, 0.0, 1.0]]], dtype=DOUBLE).expand(count, 1, 3)
    none = gradient.new_zeros(count)
    column = none.unsqueeze(-1)
    return Model(none, gradient, column, row, hessian, gradient, gradient[:, :0], column, DENSE)


def test_least_curvature_is_that_along_the_constraints():
    curvature, direction = least_curvature(saddle())
    torch.testing.assert_close(curvature, torch.tensor([-1.0], dtype=DOUBLE))  # relative to the diagonal's 1
    assert direction[0, 1].abs() > 0
    assert direction[0, [0, 2]].abs().max() < 1e-12


def test_curvature_is_turned_and_steps_stay_within_reach():
    model = saddle()
    far = reflected(model, ONE, 1e9 * ONE, ONE > 0).hessian[0]
    torch.testing.assert_close(far[:2, :2], torch.diag(torch.tensor([2.0, 1.0], dtype=DOUBLE)))
    near = reflected(model, ONE, 0.25 * ONE, ONE > 0).hessian[0]
    step = -torch.linalg.solve(near[:2, :2], model.gradient[0, :2])
    assert step.abs().max() <= 0.25 + 1e-12
    assert (model.gradient[0, :2] @ step) < 0


def test_multipliers_of_constraints_with_room_do_not_make_a_solution():
    """Huge ones, of both sides of a box that is far away, balance; a force of that size must not be a measure."""
    problem = Problem(lambda _, u: (u - 1).square().sum() / 2, None, lambda _, u: torch.stack([u[0] - 9, -9 - u[0]]))
    batch = Batch(problem, (ONE,), (0,), 1, torch.Size([1]), 0, 2, None)
    found = assess(batch, torch.tensor([[1e-9]], dtype=DOUBLE), torch.tensor([[-1e20, -1e20]], dtype=DOUBLE))
    assert found.residual.item() > optimality_tolerance(DOUBLE)


def test_a_curve_of_solutions_on_a_curved_constraint():
    """All points of the circle are solutions, and along its tangents f is less than on it: that is no descent."""
    node = DeclarativeNode(
        lambda x, u: -x * u.square().sum(),
        inequality=lambda _, u: u.square().sum() - 4,
        solver="newton",
        start=torch.tensor([0.3, 0.2], dtype=DOUBLE),
    )
    assert node.solve(ONE).objective.item() == pytest.approx(-4.0, rel=1e-9)
