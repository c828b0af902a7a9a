"""The batched Newton method on problems from the literature, alone and in the default chain."""

import contextlib
import itertools

import pytest
import torch

from declarative import DeclarativeNode, Newton, NumericalWarning, Scipy
from declarative.kernels.library import available
from declarative.linear import DENSE
from declarative.solvers.newton import regularisation, safeguards
from declarative.solvers.newton.iteration import newton_step
from declarative.solvers.newton.state import Model
from tests.support.helpers import DOUBLE, case, relative
from tests.support.nlp import PROGRAMMES

ONE = torch.ones(1, dtype=DOUBLE)
LEVEL = [
    "HS46",
    "HS49",
]  # whose least squares have fourth and sixth powers: at the minimum no curvature is left of these


@pytest.mark.parametrize("programme", [pytest.param(p, id=f"{p.name}-newton") for p in PROGRAMMES])
def test_published_optima(programme):
    level = pytest.warns(NumericalWarning, match="Hessian is singular")
    with level if programme.name in LEVEL else contextlib.nullcontext():
        solution = programme.node(solver="newton").solve(ONE)
    assert solution.residual.item() < 1e-8
    assert abs(solution.objective.item() - programme.optimum) <= 1e-6 * max(1.0, abs(programme.optimum))


@pytest.mark.parametrize("scale", [1e-8, 1e8])
@pytest.mark.parametrize("name", ["HS7", "HS71", "HS100", "HS35"])
def test_units_of_the_objective_do_not_matter(name, scale):
    programme = next(p for p in PROGRAMMES if p.name == name)
    solution = programme.node(solver="newton").solve(ONE * scale)
    assert abs(solution.objective.item() / scale - programme.optimum) <= 1e-6 * max(1.0, abs(programme.optimum))


def test_every_kind_is_well_represented():
    equality = [p for p in PROGRAMMES if p.equality and not p.inequality]
    inequality = [p for p in PROGRAMMES if p.inequality]
    assert len(equality) >= 15
    assert len(inequality) >= 15


def brute_force_qp(Q, q, G, h):
    """The solution of a small convex QP by trying every active set."""
    best, value = None, float("inf")
    n, k = len(q), len(h)
    for size in range(min(n, k) + 1):
        for rows in itertools.combinations(range(k), size):
            A = G[list(rows)]
            matrix = torch.cat([torch.cat([Q, A.T], 1), torch.cat([A, torch.zeros(size, size, dtype=DOUBLE)], 1)])
            u = torch.linalg.solve(matrix, torch.cat([-q, h[list(rows)]]))[:n]
            objective = 0.5 * u @ Q @ u + q @ u
            if (G @ u <= h + 1e-9).all() and objective < value:
                best, value = u, objective
    return best


@pytest.mark.parametrize("seed", range(6))
def test_random_convex_quadratic_programmes_with_mixed_active_sets(seed):
    generator = torch.Generator().manual_seed(seed)
    batch, n, k = 5, 4, 5
    root = torch.randn(batch, n, n, generator=generator, dtype=DOUBLE)
    Q = root @ root.mT + 0.1 * torch.eye(n, dtype=DOUBLE)
    q = torch.randn(batch, n, generator=generator, dtype=DOUBLE)
    G = torch.randn(batch, k, n, generator=generator, dtype=DOUBLE)
    h = 0.1 + torch.rand(batch, k, generator=generator, dtype=DOUBLE)
    node = DeclarativeNode(
        lambda Q, q, _G, _h, u: 0.5 * u @ Q @ u + q @ u,
        inequality=lambda _Q, _q, G, h, u: G @ u - h,
        solver="newton",
        start=n,
    )
    truth = torch.stack([brute_force_qp(*one) for one in zip(Q, q, G, h, strict=True)])
    assert relative(node(Q, q, G, h), truth) < 1e-9


def coupled(x, u):
    return (u.exp().sum() + (u - x).square().sum() + 0.1 * u.prod()) / 2


def curved(_, u):
    return torch.stack([u[:3].square().sum() - 1, u[3] * u[4] - 0.5, u.sum() - 2])


def test_a_batch_gives_what_its_problems_give_one_by_one_and_agrees_with_scipy():
    x = torch.randn(6, 6, dtype=DOUBLE)
    start = torch.tensor([0.6, 0.5, 0.6, 0.7, 0.7, 0.1], dtype=DOUBLE)
    newton = DeclarativeNode(coupled, curved, solver="newton", start=start)
    together = newton(x)
    alone = torch.cat([newton(one[None]) for one in x])
    assert relative(together, alone) < 1e-12
    scipy = DeclarativeNode(coupled, curved, solver=Scipy(), start=start)
    same = (scipy(x) - together).abs().amax(-1) < 1e-8
    worse = scipy.solve(x).objective >= newton.solve(x).objective - 1e-9
    assert (same | worse).all()
    assert same.sum() >= 4


@pytest.mark.parametrize(
    ("objective", "equality", "start", "value"),
    [
        (lambda x, u: (u[0] ** 2 - 1) ** 2 + x * u[1] ** 2, None, [0.0, 0.0], 0.0),
        (lambda x, u: x * (u[0] ** 2 - u[1] ** 2), lambda _, u: u.square().sum() - 1, [1.0, 0.0], -1.0),
        (lambda x, u: -x * (u[0] ** 2 + 2 * u[1] ** 2 + 3 * u[2] ** 2), lambda _, u: u @ u - 1, [1.0, 0.0, 0.0], -3.0),
        (lambda x, u: x * u.sum(), lambda _, u: u.square().sum() - 2, [1.0, 1.0], -2.0),
    ],
)
def test_started_at_a_saddle_or_a_maximum_it_finds_the_minimum(objective, equality, start, value):
    node = DeclarativeNode(objective, equality, solver="newton", start=torch.tensor(start, dtype=DOUBLE))
    assert abs(node.solve(ONE).objective.item() - value) < 1e-10


def test_a_start_where_the_constraints_have_no_gradient_is_not_fatal():
    x = torch.tensor([[3.0, 4.0], [-1.0, 0.0]], dtype=DOUBLE)
    sphere = DeclarativeNode(
        lambda x, u: (u - x).square().sum(), lambda _, u: u.square().sum() - 1, solver="newton", start=torch.zeros(2)
    )
    assert relative(sphere(x), x / x.norm(dim=-1, keepdim=True)) < 1e-12


def test_redundant_and_degenerate_constraints():
    x = torch.randn(3, 4, dtype=DOUBLE)
    plane = DeclarativeNode(
        lambda x, u: (u - x).square().sum(),
        lambda _, u: torch.stack([u.sum() - 1, 2 * u.sum() - 2]),
        solver="newton",
        start=4,
    )
    assert relative(plane(x), x - (x.sum(-1, keepdim=True) - 1) / 4) < 1e-9
    vertex = DeclarativeNode(
        lambda x, u: x @ u,
        inequality=lambda _, u: torch.cat([-u, -u.sum()[None]]),
        solver="newton",
        start=torch.ones(2),
        on_failure="raise",
    )
    assert vertex(torch.ones(2, 2, dtype=DOUBLE)).abs().max() < 1e-9


def test_precision_and_options():
    x = torch.randn(3, 4)
    node = DeclarativeNode(
        lambda x, u: (u - x).square().sum(), lambda _, u: u.square().sum() - 1, solver=Newton(keep_dtype=True), start=4
    )
    y = node(x)
    assert y.dtype == torch.float32
    assert relative(y, x / x.norm(dim=-1, keepdim=True)) < 1e-5
    with pytest.raises(ValueError, match="max_iterations must be an integer, at least 1"):
        Newton(max_iterations=0)


def test_constants_in_single_precision_keep_the_solver_in_single_precision():
    matrix = torch.eye(3)
    node = DeclarativeNode(lambda x, u: (matrix @ u - x).square().sum(), lambda _, u: u.sum() - 1, start=3)
    x = torch.randn(2, 3)
    assert relative(node(x), x - (x.sum(-1, keepdim=True) - 1) / 3) < 1e-5


def test_derivatives_of_the_verdict_serve_the_backward_pass(monkeypatch):
    """The backward pass evaluates no second derivative, and its gradient is that of one that does."""
    from declarative.problem import Batch

    x = torch.randn(3, 6, dtype=DOUBLE, requires_grad=True)
    start = torch.tensor([0.6, 0.5, 0.6, 0.7, 0.7, 0.1], dtype=DOUBLE)
    node = DeclarativeNode(coupled, curved, solver="newton", start=start)
    y = node(x)
    v = torch.randn_like(y)
    (dense,) = torch.autograd.grad(y, x, v, create_graph=True)  # differentiable, so evaluated
    for name in ("hessian", "expand"):
        monkeypatch.setattr(Batch, name, None)
    (reused,) = torch.autograd.grad(y, x, v)
    assert relative(reused, dense.detach()) < 1e-12


def test_a_long_step_onto_a_saddle_point_is_not_the_end():
    def objective(x, u):
        return (u[0] - x[0]).square() / 2 + u[1].square() * (0.5 - u[0]) / 2 + u[1].pow(4)

    node = DeclarativeNode(objective, solver="newton", start=torch.zeros(2, dtype=DOUBLE))
    solution = node.solve(torch.ones(1, 1, dtype=DOUBLE))
    assert solution.objective[0] < -0.0178  # at the saddle point (1, 0) it is 0


def test_the_weight_of_the_constraints_changes_nothing_in_a_step():
    """A'A, added with any weight, makes H definite if it is so along the constraints; the step stays that of H."""
    hessian = torch.diag(torch.tensor([-1.0, 2.0, 3.0], dtype=DOUBLE))[None]
    rows = torch.tensor([[[1.0, 0.2, -0.1]]], dtype=DOUBLE)
    vectors = torch.randn(2, 3, dtype=DOUBLE)
    model = Model(
        objective=ONE,
        gradient=vectors[:1],
        values=ONE[None],
        jacobian=rows,
        hessian=hessian,
        u=vectors[:1],
        y=-ONE[None],
        s=ONE[None, :0],
        layout=DENSE,
    )
    zero = torch.zeros(1, dtype=DOUBLE)
    assert not newton_step(model, zero, zero, ONE, model.residual)[1].convex
    matrix = torch.cat([torch.cat([hessian, rows.mT], -1), torch.cat([rows, zero[:, None, None]], -1)], -2)
    truth = torch.linalg.solve(matrix, -torch.cat([model.slope, model.residual], -1))
    for weight in (3.0, 40.0):
        step, found = newton_step(model, zero, weight * ONE, ONE, model.residual)
        assert found.convex
        assert relative(torch.cat([step.u, step.y], -1), truth) < 1e-12


def test_derivatives_of_the_verdict_serve_losses_of_the_multipliers_too(monkeypatch):
    from declarative.problem import Batch

    problem = case("eigenvector")  # whose H is not definite
    (x,) = problem.xs(3)
    solution = problem.node("newton").solve(x)
    loss = (solution.y.pow(3) * torch.randn_like(solution.y)).sum() + solution.multipliers.pow(2).sum()
    (dense,) = torch.autograd.grad(loss, x, create_graph=True)
    for name in ("hessian", "expand"):
        monkeypatch.setattr(Batch, name, None)
    (reused,) = torch.autograd.grad(loss, x)
    assert relative(reused, dense.detach()) < 1e-11


def test_its_own_multipliers_are_those_of_the_solution():
    problem = case("linear-equality")
    (x,) = problem.xs(3)
    unpolished = problem.node(Newton(polish=False)).solve(x)
    assert relative(unpolished.multipliers, problem.node("closed form").solve(x).multipliers) < 1e-9


def wells(x, u):
    """A chain with two wells for every other unknown, at 1 and -1; at 0 it curves down."""
    bowls = (u[::2] - x).square().sum()
    return bowls + (u[1::2].pow(4) / 4 - u[1::2].square() / 2).sum() + 0.01 * (u[1:] * u[:-1]).square().sum()


@pytest.mark.parametrize("record", [False, True])
def test_a_saddle_point_that_only_the_verdict_tells_is_left(record):
    """A sparse Hessian is shifted, by which a step onto the saddle point is as good as one to a minimum."""
    node = DeclarativeNode(
        wells, solver="newton", start=torch.zeros(120, dtype=DOUBLE), structure="sparse", record=record
    )
    x = torch.full((2, 60), 0.5, dtype=DOUBLE)
    solution = node.solve(x)
    assert bool((solution.y[:, 1::2].abs() > 0.9).all())


@pytest.mark.skipif(not available(), reason="only the compiled core does it")
def test_an_indefinite_sparse_problem_is_shifted_without_python(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("Python looks for a shift")

    for module in (regularisation, safeguards):
        monkeypatch.setattr(module, "least_curvature", refuse)
    start = torch.full((120,), 0.4, dtype=DOUBLE)
    node = DeclarativeNode(wells, solver="newton", start=start, structure="sparse", record=True)
    x = torch.linspace(0, 1, 3 * 60, dtype=DOUBLE).view(3, 60)
    solution = node.solve(x)
    for row, u in zip(x, solution.y, strict=True):
        hessian = torch.autograd.functional.hessian(lambda u, x=row: wells(x, u), u)
        assert torch.linalg.eigvalsh(hessian)[0] > 0
