"""Is this point a solution? The same answer in all units, and never yes where there is none nearby."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

from declarative import DeclarativeNode, NumericalWarning, Status
from declarative.optimality import assess, verdict
from declarative.problem import Batch, Problem
from problems import QuadraticProgram, RobustPooling
from tests.support import without_solution
from tests.support.helpers import DOUBLE, gradients, half_square, relative
from tests.support.power_flow import loads, power_flow
from tests.support.traps import TRAPS, Trap
from tests.support.verdicts import ACCURACY, SOLVERS, each_dtype, solved
from tests.support.without_solution import Hopeless


def largest_error(y: Tensor, truth: Tensor) -> Tensor:  # (batch,)
    """Of each problem, relative to the entry."""
    error = (y - truth).detach().abs() / truth.detach().abs()
    return error.reshape(len(y), -1).amax(-1)


# Points that look like solutions


@pytest.mark.parametrize("trap", TRAPS, ids=str)
@each_dtype
def test_a_formula_that_returns_no_solution_is_refused(trap: Trap, dtype):
    assert not solved(trap.node(trap.trap), trap.x.to(dtype)).converged.any()


@pytest.mark.parametrize("trap", TRAPS, ids=str)
@each_dtype
def test_a_formula_that_returns_the_solution_is_believed(trap: Trap, dtype):
    x = trap.x.to(dtype).requires_grad_()
    solution, truth = trap.node(trap.truth).solve(x), trap.truth(x)
    assert solution.converged.all()
    v = truth.detach().reciprocal()  # each entry counts by its own size
    assert relative(*(gradients(y, (x,), v)[0] for y in (solution.y, truth))) < ACCURACY[dtype]


@pytest.mark.parametrize("trap", TRAPS, ids=str)
@pytest.mark.parametrize("solver", SOLVERS)
def test_a_solver_that_starts_there_does_not_stay_there(trap: Trap, solver):
    solution = solved(trap.node(SOLVERS[solver]), trap.x)
    right = largest_error(solution.y, trap.truth(trap.x)) < 1e-6
    assert right[solution.converged].all()
    assert solver != "default" or not trap.way_out or solution.converged.all()


def saddle(x: Tensor, u: Tensor) -> Tensor:  # x: the ratio of the curvatures, and where the saddle is
    return x[0] / 2 * (u[0] - x[1]).square() - u[1].square() / 2 + u[1] ** 4 / 4


def turned_saddle(x: Tensor, u: Tensor) -> Tensor:
    a, b = (u[0] + u[1]) / 2**0.5, (u[0] - u[1]) / 2**0.5
    return saddle(x, torch.stack([a + x[1], b]))


RATIOS = torch.tensor([[10.0**k, 0.3] for k in range(0, 13, 2)], dtype=DOUBLE)


@each_dtype
def test_a_saddle_point_is_no_solution_however_steep_its_walls(dtype):
    x = RATIOS[RATIOS[:, 0] <= 0.01 / torch.finfo(dtype).eps].to(dtype)
    node = DeclarativeNode(
        saddle, solver=lambda x: torch.stack([x[:, 1], torch.zeros_like(x[:, 1])], -1), on_failure="mask"
    )
    assert not solved(node, x).converged.any()
    turned = DeclarativeNode(turned_saddle, solver=lambda x: torch.zeros_like(x), on_failure="mask")
    assert not solved(turned, x).converged.any()


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_solver_that_starts_on_a_saddle_point_leaves_it_or_says_so(solver):
    node = DeclarativeNode(
        saddle,
        solver=SOLVERS[solver],
        start=lambda x: torch.stack([x[1], torch.zeros_like(x[1])]),
        on_failure="mask",
    )
    solution = solved(node, RATIOS)
    assert ((solution.y[:, 1].abs() - 1).abs() < 1e-6)[solution.converged].all()
    assert solver == "scipy" or solution.converged.all()


@each_dtype
def test_a_slightly_concave_quadratic_program_is_not_solved(dtype):
    turn = torch.linalg.qr(torch.randn(4, 3, 3, dtype=DOUBLE)).Q
    Q = turn @ torch.diag_embed(torch.tensor([1.0, 0.3, -1e-4], dtype=DOUBLE)) @ turn.mT
    box, q = torch.cat([torch.eye(3), -torch.eye(3)]).to(dtype), torch.zeros(4, 3, dtype=dtype)
    layer = QuadraticProgram(on_failure="mask")
    assert not solved(layer, Q.to(dtype), q, None, None, box, torch.ones(6, dtype=dtype)).converged.any()


# Problems without a solution

PLACES = [0.0, 0.2, 1.0, 10.0, 1e2, 1e3, 1e5, 1e7, 1e9, 1e12]
FACTORS = [1.0, 1e-8, 1e8]


@pytest.mark.parametrize("problem", without_solution.TABLE, ids=str)
def test_the_path_shows_that_there_is_no_solution(problem: Hopeless):
    points = [torch.stack(problem.path(torch.tensor(t, dtype=DOUBLE))) for t in (0.0, 0.2, 1.0, 3.0, 10.0)]
    values = [problem.objective(point).item() for point in points]
    assert all(after < before for before, after in itertools.pairwise(values))
    assert all(problem.equality is None or problem.equality(u).abs().max() < 1e-12 for u in points)
    assert all(problem.inequality is None or problem.inequality(u).max() <= 0 for u in points)


@pytest.mark.parametrize("problem", without_solution.TABLE, ids=str)
@each_dtype
def test_no_point_is_believed_to_be_a_solution_where_there_is_none(problem: Hopeless, dtype):
    x = torch.tensor([[factor, t] for factor in FACTORS for t in PLACES], dtype=dtype)
    if problem.name == "a crest":  # further out its walls are steeper than 1 / eps, and nothing can be seen
        x = x[x[:, 1] <= (1e5 if dtype == torch.float32 else 1e9)]
    solution = solved(problem.node("closed form"), x)
    assert not solution.converged.any(), x[solution.converged].tolist()


ASKED = [("newton", torch.float32), ("default", DOUBLE)]  # which asks SciPy where Newton's method fails


@pytest.mark.parametrize("problem", without_solution.NAMED, ids=str)
@pytest.mark.parametrize(("solver", "dtype"), ASKED)
def test_no_solver_finds_a_solution_where_there_is_none(problem: Hopeless, solver, dtype):
    solution = solved(problem.node(SOLVERS[solver]), torch.tensor([[1.0, 0.2], [1e8, 1.0]], dtype=dtype))
    assert not solution.converged.any(), solution.y


@pytest.mark.parametrize(("solver", "dtype"), [("newton", torch.float32), ("newton", DOUBLE), ("scipy", DOUBLE)])
def test_a_valley_that_falls_for_ever_is_no_solution_however_far_away_zero_is(solver, dtype):
    """Slopes of the decay are as small as the rounding errors of the walls, which grow with |u|."""
    far = 1e3 if dtype == DOUBLE else 30.0
    node = DeclarativeNode(
        lambda x, u: 3 * (u.sum() - x[0]).square() + (u[1] - u[0] - x[1]).exp(),
        solver=SOLVERS[solver],
        start=lambda x: torch.stack([x[0] / 2 - x[1] / 2, x[0] / 2 + x[1] / 2]),
        on_failure="mask",
    )
    solution = solved(node, torch.tensor([[far, -far], [far, far], [-far, 0.3 * far]], dtype=dtype))
    assert not solution.converged.any(), solution.y


def test_a_valley_between_equal_walls_that_falls_for_ever_is_no_solution():
    """Rounding errors that push both unknowns to the same side do not move along it."""
    node = DeclarativeNode(
        lambda x, u: 30 * (u[0] + u[2] - x[0]).square() + u[1].square() + (u[2] - u[0]).exp(),
        solver=lambda x: torch.stack([x[:, 0] / 2 + x[:, 1], 0 * x[:, 0], x[:, 0] / 2 - x[:, 1]], -1),
        on_failure="mask",
    )
    x = torch.tensor([[-0.8, t] for t in (4.0, 6.0, 8.0, 10.0, 12.0)], dtype=torch.float32)
    assert not solved(node, x).converged.any()


def test_a_decay_that_is_seen_nowhere_but_between_rounding_errors_and_overflow_is_no_solution():
    """The constraint is not even defined where the exponential overflows: nothing can be concluded from there."""

    def decay(x: Tensor, u: Tensor) -> Tensor:  # x: how fast, and where it is as large as the other terms
        return (-x[0] * (u[1] - u[0] - x[1])).exp()

    node = DeclarativeNode(
        lambda x, u: 20 * (u.sum() - 4000).square() + decay(x, u),
        lambda x, u: u.sum() - 4000 + 0 * decay(x, u),
        solver=lambda x: torch.stack([2000 - x[:, 1] / 2 - 20 / x[:, 0], 2000 + x[:, 1] / 2 + 20 / x[:, 0]], -1),
        on_failure="mask",
    )
    x = torch.tensor([[rate, 4900.0] for rate in torch.logspace(-1, 2, 40).tolist()], dtype=DOUBLE)
    solution = solved(node, x)
    assert not solution.converged.any(), x[solution.converged]


DECAYS = {
    "exponential": lambda v: (-v).exp(),
    "softplus": lambda v: torch.nn.functional.softplus(-v),
    "bump": lambda v: (-v.square()).exp(),
    "hill": lambda v: 1 / (1 + v.square()),
}


@pytest.mark.parametrize("decay", DECAYS.values(), ids=DECAYS)
@pytest.mark.parametrize("solver", ["closed form", "newton"])
@pytest.mark.parametrize("tied", [False, True], ids=["free", "tied"])
@each_dtype
def test_a_decay_is_no_solution_beside_an_unknown_in_other_units(decay, solver, tied, dtype):
    """Beyond rounding errors of the other term, and small beside the other unknown, it looks like zero."""

    def place(x: Tensor) -> Tensor:  # x: units of both unknowns, how far out
        return torch.stack([x[..., 2] / x[..., 0], 1 / x[..., 1]], -1)

    node = DeclarativeNode(
        lambda x, u: decay(x[0] * u[0]) + (x[1] * u[1] - 1).square(),
        (lambda x, u: x[1] * u[1] - 1) if tied else None,
        solver=place if solver == "closed form" else solver,
        start=None if solver == "closed form" else place,
        on_failure="mask",
    )
    units = itertools.product([1e-8, 1.0, 1e4, 1e8], [1e-8, 1.0, 1e8], [0.2, 10.0, 60.0, 100.0, 300.0, 1e6])
    x = torch.tensor(list(units), dtype=dtype)
    clearest = torch.tensor([[1e8, 1e-8, t] for t in (100.0, 300.0)], dtype=dtype)  # by themselves judged at a glance
    for inputs in (x, clearest):
        solution = solved(node, inputs)
        assert not solution.converged.any(), inputs[solution.converged].tolist()


@pytest.mark.parametrize("power", [2, 4])
@pytest.mark.parametrize("record", [False, True])
def test_zero_is_a_solution_beside_an_unknown_in_other_units(power, record):
    """Whatever rounding errors leave of it: nothing but the other unknown says how small it has to be."""
    node = DeclarativeNode(
        lambda x, u: (x[0] * u[0]).pow(power) + (x[1] * u[1] - 1).square(),
        solver=lambda x: torch.stack([x[:, 2] / x[:, 0], 1 / x[:, 1]], -1),
        on_failure="mask",
        record=record,
    )
    units = itertools.product([1e-8, 1.0, 1e8], [1e-8, 1.0, 1e8], [0.0, 1e-30, -1e-33])
    assert solved(node, torch.tensor(list(units), dtype=DOUBLE)).converged.all()
    if power == 4:  # f falls visibly to zero, by less than single precision sees
        assert solved(node, torch.tensor([[1.0, 1e-8, 3e-3]], dtype=torch.float32)).converged.all()


def test_zero_is_told_from_a_decay_at_a_glance(monkeypatch):
    """One look ten steps ahead: a trajectory that comes to rest is nearly zero in most of its unknowns."""
    monkeypatch.setattr(verdict, "is_minimum", lambda *_: pytest.fail("looked at with care"))
    x = torch.tensor([[1.0, 1e-30, -1e-36, 3e-42], [1e8, 0.0, 2e-20, 0.0]], dtype=DOUBLE)
    node = DeclarativeNode(lambda x, u: (u[0] - x[0]).square() + u[1:].square().sum(), solver=lambda x: x)
    assert node.solve(x).converged.all()


@pytest.mark.parametrize("unit", [1e-8, 1e-2, 1.0, 1e8])
@pytest.mark.parametrize("height", [1e-8, 1.0, 1e8])
def test_far_from_a_bump_all_is_level_and_no_solution(unit, height):
    """Where the exponential is zero, so are all slopes and curvatures: a step over the edge may lead there."""
    node = DeclarativeNode(
        lambda x, u: height * (-(u / unit - x).square().sum()).exp(),
        start=unit * torch.tensor([0.5, 0.9], dtype=DOUBLE),
        on_failure="mask",
    )
    assert not solved(node, torch.tensor([[0.0], [0.3]], dtype=DOUBLE)).converged.any()


@pytest.mark.parametrize("width", [1e-6, 1e-9, 1e-12])
def test_a_spike_of_curvature_on_a_slope_is_no_solution(width):
    def objective(x, u):
        return ((u - 1).square() + width**2).sqrt().sum() - 1.5 * u.sum() + (u - x).square().sum()

    x = torch.full((1, 1), 3.0, dtype=DOUBLE)
    assert not solved(DeclarativeNode(objective, solver=torch.ones_like, on_failure="mask"), x).converged
    assert relative(DeclarativeNode(objective, start=torch.ones(1, dtype=DOUBLE))(x), x + 0.25) < 1e-6


@pytest.mark.parametrize("slope", [1.01, 1.5, 10.0])
def test_a_spike_is_seen_beside_an_unknown_that_is_nearly_zero(slope):
    """Whether it ends at once or not: smoothed |u0 - 1|, of slope 1, on a steeper slope."""

    def rounded(x, u):
        return ((u[0] - 1).square() + 1e-22).sqrt() - slope * u[0] + (u[0] - x[0]).square() + u[1].square()

    def huber(x, u):
        near = torch.nn.functional.huber_loss(u[0], torch.ones_like(u[0]), delta=1e-11) / 1e-11
        return near - slope * u[0] + (u[0] - x[0]).square() + u[1].square()

    for objective in (rounded, huber):
        node = DeclarativeNode(objective, solver=torch.clone, on_failure="mask")
        assert not solved(node, torch.tensor([[1.0, 1e-13]], dtype=DOUBLE)).converged


@pytest.mark.parametrize("power", [4, 6, 8])
def test_a_solution_without_curvature_is_no_spike(power):
    """Newton steps from beside it are short, and so are the next."""
    node = DeclarativeNode(lambda x, u: (u - x).pow(power).sum(), solver=lambda x: x * (1 + 1e-9), on_failure="mask")
    assert solved(node, torch.tensor([[3.0], [-40.0]], dtype=DOUBLE)).converged.all()


@pytest.mark.parametrize(
    ("decades", "gap", "dtype"),
    [(0, 1e-2, torch.float32), (7, 1e-2, torch.float32), (7, 1e-2, DOUBLE), (4, 3.0, DOUBLE)],
)
def test_constraints_that_exclude_each_other_are_seen_in_all_units(decades, gap, dtype):
    unit = torch.tensor([10.0**decades, 10.0**-decades], dtype=DOUBLE)

    def objective(x, u):
        return (unit.to(u) * u - x).square().sum()

    def total(u):
        return (unit.to(u) * u).sum() - 1

    def start(x):
        return x / unit.to(x)

    options = {"start": start, "solver": "newton", "on_failure": "mask"}
    nodes = (
        DeclarativeNode(objective, lambda _, u: total(u), lambda _, u: total(u) + gap, **options),
        DeclarativeNode(objective, None, lambda _, u: torch.stack([total(u) + gap, -total(u)]), **options),
    )
    for node in nodes:
        assert not solved(node, torch.tensor([[1.0, 2.0], [30.0, -20.0]], dtype=dtype)).converged.any()


@pytest.mark.parametrize("record", [False, True])
@pytest.mark.parametrize("place", [[0.5, 0.5], [1.0, 0.2]])
@pytest.mark.parametrize("product", [lambda u: u[0] * u[1], lambda u: u[0].square() * u[1]], ids=["bilinear", "cubic"])
def test_no_multiplier_is_so_large_that_an_unknown_of_nothing_balances_a_slope(product, place, record):
    """On u0 u1 = 0 one unknown gets as small as one likes, and times a huge multiplier as large as one likes."""
    node = DeclarativeNode(
        lambda x, u: (u - x).square().sum(),
        lambda _, u: product(u),
        bounds=(0, None),
        start=torch.tensor(place, dtype=DOUBLE),
        solver="newton",
        on_failure="mask",
        record=record,
    )
    x = torch.tensor([[0.5, 1.0], [2.0, 0.7], [-1.0, 2.0], [1.0, 1.0]], dtype=DOUBLE)
    solution = solved(node, x)
    truth = torch.where(solution.y > 1e-9, x, 0.0)  # one unknown is zero, the other free
    assert ((solution.y - truth).abs() <= 1e-8).all(-1)[solution.converged].all(), solution.y
    assert solution.converged.sum() >= 2


def unbounded_programs(count: int, m: int, n: int) -> tuple[Tensor, ...]:
    """Feasible at 0, and falling for ever along a direction in which Q is flat."""
    along = torch.nn.functional.normalize(torch.randn(count, m, 1, dtype=DOUBLE), dim=1)
    across = torch.eye(m, dtype=DOUBLE) - along @ along.mT
    root = torch.randn(count, m, m, dtype=DOUBLE) @ across
    A = torch.randn(count, 1, m, dtype=DOUBLE) @ across
    G = torch.randn(count, n, m, dtype=DOUBLE)
    G = G * -(G @ along).sign()
    q = torch.randn(count, m, dtype=DOUBLE)
    q = q * -(q.unsqueeze(1) @ along).squeeze(-1).sign()
    return root.mT @ root, q, A, torch.zeros(count, 1, dtype=DOUBLE), G, torch.rand(count, n, dtype=DOUBLE)


@pytest.mark.parametrize("generic", [False, True])
def test_an_unbounded_program_is_not_called_infeasible(generic):
    layer = QuadraticProgram(on_failure="mask")
    solution = solved(layer.generic() if generic else layer, *unbounded_programs(20 if generic else 300, 3, 4))
    assert not {Status.CONVERGED, Status.INFEASIBLE} & set(solution.status)


@pytest.mark.parametrize("far", [1e8, 1e14, 1e16])
def test_a_point_that_ran_away_is_no_solution(far):
    """Where a slope that nothing balances is lost in the rounding errors of large terms."""
    Q, q, *_ = unbounded_programs(200, 3, 1)
    along = torch.linalg.eigh(Q).eigenvectors[..., 0]  # the flat direction
    nearest = -(torch.linalg.pinv(Q, hermitian=True, rtol=1e-10) @ q.unsqueeze(-1)).squeeze(-1)
    node = DeclarativeNode(
        lambda Q, q, place, u: u @ Q @ u / 2 + q @ u,  # noqa: ARG005
        solver=lambda Q, q, place: place,  # noqa: ARG005
        on_failure="mask",
    )
    assert not solved(node, Q, q, nearest + far * along).converged.any()


# Solved problems that were refused


@pytest.mark.parametrize(
    ("objective", "x"),
    [
        (lambda x, u: (u - x).square() - 1e11, 3.0),
        (lambda x, u: (u - x).square() + 1e11, 3.0),
        (lambda x, u: 1e-8 * (u - x).square() - 1000, 3.0),
        (lambda x, u: (u - x).square(), 1e12),
        (lambda x, u: (u - x).square(), -1e12),
        (lambda x, u: -(x.square()) + (u - x).square(), 1e8),
        (lambda x, u: -x * u + u.square() / 2, 1e7),
    ],
)
@pytest.mark.parametrize("solver", ["newton", None], ids=str)
def test_a_low_value_is_not_unbounded(objective, x, solver):
    x = torch.tensor([x], dtype=DOUBLE, requires_grad=True)
    solution = DeclarativeNode(objective, solver=solver, start=()).solve(x)
    assert relative(solution.y, x) < 1e-6
    assert abs(torch.autograd.grad(solution.y, x)[0].item() - 1) < 1e-6


@pytest.mark.parametrize(
    ("dtype", "scale"), [(torch.float32, 1e-1), (torch.float32, 1e-3), (DOUBLE, 1e-1), (DOUBLE, 1e-3), (DOUBLE, 1e-5)]
)
def test_a_penalty_that_is_nearly_an_absolute_value(dtype, scale):
    x = torch.tensor([[0.3, 0.5, 0.1, 2.0], [-1.0, 1.0, 0.2, 0.21]], dtype=dtype)
    layer = RobustPooling("pseudo-huber", scale=scale)
    for node in (layer, layer.generic()):
        y = node.solve(x).y.double()
        residuals = y.unsqueeze(-1) - x.double()
        slopes = residuals / (1 + (residuals / scale).square()).sqrt()
        curvatures = (1 + (residuals / scale).square()) ** -1.5
        assert (slopes.sum(-1) / curvatures.sum(-1)).abs().max() < ACCURACY[dtype]  # a step from the solution


@pytest.mark.parametrize("bound", [50.0, 100.0, 1e3, 1e5, 1e7])
def test_a_far_away_bound_takes_no_more_steps_than_a_near_one(bound):
    x = torch.randn(3, 3, dtype=DOUBLE)
    solution = DeclarativeNode(half_square, inequality=lambda _, u: u.sum() + bound, start=3).solve(x)
    assert relative(solution.y, x - (x.sum(-1, keepdim=True) + bound) / 3) < 1e-9
    assert solution.solvers == ["Newton"] * 3
    assert solution.iterations.max() <= 30


def defined(x: Tensor, u: Tensor) -> Tensor:  # u2 is seen by nothing else, so that the multiplier is 0
    return u[2] - x[1] * u[0] * u[1] - x[2] * u[1] - x[3] * u[1].square() - u[0].sin()


def definition(x: Tensor) -> Tensor:
    u1 = x[..., 0]
    return torch.stack([torch.zeros_like(u1), u1, x[..., 2] * u1 + x[..., 3] * u1.square()], -1)


BOUNDS = {"alone": None, "with bounds that are not active": lambda _, u: torch.cat([u[2:] - 100, -100 - u[2:]])}


def definition_node(bounds: str, solver: Any, start: Any) -> DeclarativeNode:
    return DeclarativeNode(
        lambda x, u: u[0].square() + (u[1] - x[0]).square(), defined, BOUNDS[bounds], solver=solver, start=start
    )


def check_definition(node: DeclarativeNode, x: Tensor) -> None:
    y, truth, v = node(x), definition(x), torch.randn(len(x), 3, dtype=DOUBLE)
    assert relative(y, truth) < 1e-8
    assert relative(gradients(y, (x,), v)[0], gradients(truth, (x,), v)[0]) < 1e-8


@pytest.mark.parametrize("bounds", BOUNDS)
@pytest.mark.parametrize("solver", SOLVERS)
def test_an_unknown_that_only_an_equality_sees(bounds, solver):
    x = torch.randn(40, 4, dtype=DOUBLE, requires_grad=True)
    check_definition(definition_node(bounds, solver=SOLVERS[solver], start=torch.tensor([0.3, -0.2, 0.5])), x)


@pytest.mark.parametrize("bounds", BOUNDS)
@pytest.mark.parametrize("move", [0.0, 1e-14, 1e-12, 1e-11])
def test_such_a_solution_moved_by_rounding_is_still_one(bounds, move):
    x = torch.randn(40, 4, dtype=DOUBLE, requires_grad=True)
    away = torch.rand(40, 3, dtype=DOUBLE) - 0.5
    check_definition(definition_node(bounds, lambda x: definition(x) + move * away, None), x)


def test_an_optimal_power_flow():
    x = loads(16).requires_grad_()
    node = power_flow(solver="newton")
    y = node(x)
    v, along = torch.randn_like(y), 1e-5 * torch.randn_like(x)
    (g,) = gradients(y, (x,), v)
    change = (node(x.detach() + along) - node(x.detach() - along)) / 2
    assert relative((g * along).sum(-1), (v * change).sum(-1)) < 1e-5


def entmax(x: Tensor) -> Tensor:
    """minimise (4/3) sum (u^1.5 - u) - x'u on the simplex: u = max(x/2 - t, 0)^2."""
    return (x / 2 - threshold(x)).clamp(min=0).square()


def threshold(x: Tensor) -> Tensor:
    """The t with sum max(x/2 - t, 0)^2 = 1, from the largest entries, as many of them as are above it."""
    ordered = (x / 2).sort(-1, descending=True).values
    count = torch.arange(1, x.shape[-1] + 1, dtype=x.dtype)
    mean, square = ordered.cumsum(-1) / count, ordered.square().cumsum(-1) / count
    t = mean - ((1 - count * (square - mean.square())) / count).clamp(min=0).sqrt()
    return t.gather(-1, (t <= ordered).sum(-1, keepdim=True) - 1)


def test_multipliers_at_exact_zeros_where_the_curvature_is_infinite():
    x = torch.tensor([[1.0, 0.2, -1.5, -0.4], [2.0, 0.0, 0.1, 0.3]], dtype=DOUBLE, requires_grad=True)
    node = DeclarativeNode(
        lambda x, u: 4 / 3 * (u**1.5 - u).sum() - x @ u,
        lambda _, u: u.sum() - 1,
        lambda _, u: -u,
        solver=entmax,
    )
    solution, truth = node.solve(x), entmax(x)  # a warning would be an error
    assert (truth.detach() == 0).any(-1).all()
    assert relative(solution.inequality_multipliers, (2 * threshold(x) - x).clamp(min=0)) < 1e-8
    v = torch.randn_like(truth)
    assert relative(gradients(solution.y, (x,), v)[0], gradients(truth, (x,), v)[0]) < 1e-8


# Gradients that depend on the verdict


@pytest.mark.parametrize("solver", ["newton", "scipy"])
@pytest.mark.parametrize("curvature", [0.0, 1.0])
@pytest.mark.parametrize("x", [[0.0, 0.0], [1.0, -2.0]])
def test_as_many_equations_as_unknowns_leave_nothing_to_the_objective(solver, curvature, x):
    node = DeclarativeNode(
        lambda x, u: (x * u).sum() - 1 + curvature * u.square().sum(),
        lambda _, u: torch.stack([u.square().sum() - 25, u[0] * u[1] - 9]),
        solver=solver,
        start=torch.tensor([4.0, 2.0]),
    )
    x = torch.tensor([x], dtype=DOUBLE, requires_grad=True)
    y = node(x)
    assert relative(y, torch.tensor([[43**0.5 + 7**0.5, 43**0.5 - 7**0.5]], dtype=DOUBLE) / 2) < 1e-9
    assert gradients(y, (x,), torch.tensor([[1.0, -3.0]]))[0].abs().max() < 1e-9


@each_dtype
def test_a_violated_constraint_that_pulls_the_wrong_way_is_not_overlooked(dtype):
    """The inequalities exclude each other: where one of them holds, with a good multiplier, the other has let go."""
    rows = torch.tensor(
        [[-0.026, -0.14, 1.349, -1.778], [-0.446, 0.697, -0.168, -0.158], [-0.148, 0.831, 0.811, -1.096]], dtype=dtype
    )
    curvature = torch.tensor([1.0, 0.194, 0.0375, 0.00726], dtype=dtype)
    node = DeclarativeNode(
        lambda x, u: (curvature * u.square()).sum() / 2 + (x[:4] * u).sum(),
        lambda x, u: rows[:2] @ u - x[4:6],
        lambda x, u: torch.stack([rows[2] @ u - x[6], x[7] - rows[2] @ u]),
        start=torch.tensor([1.65, -1.66, -1.96, 4.79], dtype=dtype),
        on_failure="mask",
    )
    x = torch.tensor([[-0.589, 1.373, 1.013, -0.857, -9.166, -0.836, -6.1459, -6.1272]], dtype=dtype)
    with pytest.warns(NumericalWarning, match="not solved"):
        assert node.solve(x).status == [Status.INFEASIBLE]


def test_a_kink_is_noticed_at_a_point_that_is_only_near_it():
    """Four constraints meet in the plane's solution (2, 0, 2, 0), and one of them does nothing there.

    The point is good enough for single precision; its multipliers, 0.005 where the truth is zero, are of that point.
    """
    matrix = torch.tensor([[8.0, -1, 2, 5], [-1, 7, 3, -1], [2, 3, 10, 5], [5, -1, 5, 7]])
    rows = torch.tensor([[-1.0, -3, 3, 1], [-1, -2, -2, -3], [2, 2, 0, -2], [-2, -2, -3, -2]])
    far, off = torch.tensor([4.25, -1.65, -18.6, 23.1]), torch.tensor([0.0, 1.42e-4, 0.0, 0.0])
    node = DeclarativeNode(
        lambda x, u: (u + far) @ matrix @ (u + far) / 2 + x @ (u + far),
        inequality=lambda _, u: rows @ (u + far) - torch.tensor([4.0, -6, 4, -10]),
        solver=lambda x: (torch.tensor([2.0, 0.0, 2.0, 0.0]) + off - far).expand(len(x), 4),
    )
    x = torch.tensor([[-17.0, 1.0, -21.0, -15.0]], requires_grad=True)
    with pytest.warns(NumericalWarning, match="just active, with a zero multiplier"):
        assert node.solve(x).active.tolist() == [[True, False, True, True]]


def test_multipliers_that_cancel_each_other_do_not_hide_a_slope():
    rows = torch.tensor([[-2.0, 2.0, 1.0], [0.0, 1.0, 0.0], [-2.0, -2.0, 1.0]], dtype=DOUBLE)  # one too many
    along = torch.tensor([1.0, 0.0, 2.0], dtype=DOUBLE)  # which they leave free
    problem = Problem(lambda x, u: (u - x).square().sum(), lambda x, u: rows @ (u - x))
    x = torch.tensor([[-2.0, -1.0, -1.0]], dtype=DOUBLE)
    batch = Batch(problem, (x,), (0,), 1, torch.Size([3]), 3, 0)
    nothing = 1e14 * torch.tensor([[1.0, -4.0, -1.0]], dtype=DOUBLE)
    assert float((nothing @ rows).abs().max()) < 0.1
    assert assess(batch, x, nothing).residual < 1e-9
    assert assess(batch, x + 1e-3 * along, nothing).residual > 1e-4


@pytest.mark.parametrize("record", [False, True])
@pytest.mark.parametrize(
    "objective",
    [
        lambda x, u: u[0] ** 2 + u[1] ** 3,  # noqa: ARG005
        lambda x, u: u[0] ** 2 - u[1] ** 4 + u[1] ** 6,  # noqa: ARG005
        lambda x, u: u[0] ** 3 - 3 * u[0] * u[1] ** 2 + u.pow(4).sum(),  # noqa: ARG005
    ],
)
def test_a_sparse_matrix_that_is_singular_is_not_trusted_with_a_zero(objective, record):
    """At a stationary start there is no step, which solves any system: that curvature vanishes has to be seen."""
    node = DeclarativeNode(
        objective, start=torch.zeros(2, dtype=DOUBLE), structure="sparse", on_failure="mask", record=record
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        solution = node.solve(torch.ones(1, 1, dtype=DOUBLE))
    lower = solution.objective < -1e-3  # elsewhere there may be a minimum, or none
    assert bool((lower | ~solution.converged).all())


DEGENERATE = {
    "an inflection point": (lambda x, u: u.pow(3).sum() + u.pow(4).sum() + 0 * x.sum(), (1.0,), None),
    "beside a bowl": (lambda x, u: u[0] ** 2 + u[1] ** 3 + u[1] ** 4 + 0 * x.sum(), (0.5, 0.5), None),
    "one that falls for ever": (lambda x, u: u.pow(3).sum() + 0 * x.sum(), (1.0,), None),
    "a flat maximum": (lambda x, u: -u.pow(4).sum() + 0 * x.sum(), (0.9, 0.0), (-1.0, 1.0)),
}


@each_dtype
@pytest.mark.parametrize("name", DEGENERATE)
def test_a_degenerate_point_at_zero_is_no_minimum(name, dtype):
    """However small u gets there, and whatever sign its curvature has on that side."""
    objective, start, bounds = DEGENERATE[name]
    node = DeclarativeNode(objective, start=torch.tensor(start, dtype=dtype), bounds=bounds, on_failure="mask")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        solution = node.solve(torch.ones(1, 1, dtype=dtype))
    stayed = bool((solution.y[0, -1].abs() < 0.1).all())  # the last unknown is the degenerate one
    assert not (stayed and bool(solution.converged[0]))


@each_dtype
@pytest.mark.parametrize("power", [2, 4, 6])
@pytest.mark.parametrize("offset", [0.0, 5.0])
def test_a_degenerate_minimum_at_zero_is_one(power, offset, dtype):
    node = DeclarativeNode(lambda x, u: u.pow(power).sum() + offset + 0 * x.sum(), start=torch.ones(2, dtype=dtype))
    assert float(node(torch.ones(1, 1, dtype=dtype)).abs().max()) < 1e-2
