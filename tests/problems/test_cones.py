"""Cone programs: solutions that are known by construction or in closed form, gradients, verdicts, and bad input."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
from torch import Tensor

from declarative import Adaptive, NumericalWarning, Smoothed, SolverError, Status, check, conformance
from problems import BallProjection, ConeProgram, Cones, QuadraticProgram
from tests.support.random_cones import OF_EACH_KIND, infeasible, matrix, solvable, triangle, unbounded

DOUBLE = torch.float64
M = 5
WIDE = 18  # unknowns, more than there are active constraints: then multipliers are unique
each_kind = pytest.mark.parametrize("name", OF_EACH_KIND)


def differences(function, xs, directions, step=1e-5):
    """The derivative along a direction, to the fourth order."""

    def at(length):
        return function(*[x.detach() + length * d for x, d in zip(xs, directions, strict=True)])

    return (8 * (at(step) - at(-step)) - (at(2 * step) - at(-2 * step))) / (12 * step)


def directions_for(xs, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(x.shape, dtype=DOUBLE, generator=generator) for x in xs]


def statuses(layer, *xs):
    with pytest.raises(SolverError) as caught:
        layer(*xs)
    return caught.value.solution.status


@each_kind
def test_the_solution_that_a_program_was_built_around_is_found(name):
    cones = OF_EACH_KIND[name]
    xs, u, z = solvable(cones, WIDE, 20)
    solution = ConeProgram(cones).solve(*xs)
    assert (solution.y - u).abs().max() < 1e-9
    if cones.zero not in (0, cones.rows):
        found = torch.cat([-solution.multipliers, solution.inequality_multipliers], -1)
        assert (found - z).abs().max() < 1e-8
    slack = xs[3] - torch.einsum("bki,bi->bk", xs[2], solution.y)
    assert (slack[:, : cones.zero].abs() < 1e-10).all()
    assert (solution.residual < 1e-10).all()


@each_kind
def test_gradients_are_those_of_finite_differences(name):
    cones = OF_EACH_KIND[name]
    xs, _, _ = solvable(cones, WIDE, 1, seed=11)
    xs = [x.requires_grad_() for x in xs]
    layer, weights = ConeProgram(cones), torch.linspace(-1, 1, WIDE, dtype=DOUBLE)

    def loss(*xs):
        return (layer(*xs) @ weights).square().sum()

    grads, along = torch.autograd.grad(loss(*xs), xs), directions_for(xs)
    slope = sum((g * d).sum() for g, d in zip(grads, along, strict=True))
    expected = differences(loss, xs, along)
    assert (slope - expected).abs() <= 1e-8 * (1 + expected.abs())


@pytest.mark.parametrize("name", [name for name in OF_EACH_KIND if name != "zero"])
def test_second_derivatives_and_those_of_multipliers(name):
    cones = OF_EACH_KIND[name]
    xs, _, _ = solvable(cones, WIDE, 1, seed=5)
    layer, others = ConeProgram(cones), directions_for(xs, seed=2)

    def slope(*xs):
        xs = [x.requires_grad_() for x in xs]
        solution = layer.solve(*xs)
        total = solution.y.square().sum() + solution.inequality_multipliers.square().sum()
        grads = torch.autograd.grad(total, xs, create_graph=True)
        return sum((g * d).sum() for g, d in zip(grads, others, strict=True))

    leaves = [x.clone().requires_grad_() for x in xs]
    along = [0.1 * d for d in directions_for(xs, seed=3)]
    grads = torch.autograd.grad(slope(*leaves), leaves)
    found = sum((g * d).sum() for g, d in zip(grads, along, strict=True))
    expected = differences(slope, xs, along, step=1e-4).detach()
    assert (found - expected).abs() <= 1e-6 * (1 + expected.abs())


@each_kind
def test_programs_without_a_feasible_point(name):
    cones = OF_EACH_KIND[name]
    assert set(statuses(ConeProgram(cones), *infeasible(cones, 2 if name == "zero" else M, 12))) == {Status.INFEASIBLE}


@each_kind
def test_programs_without_a_bound(name):
    cones = OF_EACH_KIND[name]
    assert set(statuses(ConeProgram(cones), *unbounded(cones, M, 12))) == {Status.UNBOUNDED}


@pytest.mark.parametrize("unit", [1e-6, 1e6])
def test_units_do_not_matter(unit):
    cones = OF_EACH_KIND["all"]
    (P, q, A, b), u, _ = solvable(cones, M, 4, seed=3)
    assert (ConeProgram(cones)(P / unit**2, q / unit, A / unit, b) / unit - u).abs().max() < 1e-8  # of u
    assert (ConeProgram(cones)(unit * P, unit * q, A, b) - u).abs().max() < 1e-8  # of the objective
    assert (ConeProgram(cones)(P, q, unit * A, unit * b) - u).abs().max() < 1e-8  # of the slacks


def test_a_batch_is_solved_as_its_problems_alone():
    cones = OF_EACH_KIND["all"]
    xs, _, _ = solvable(cones, M, 3)
    layer = ConeProgram(cones)
    alone = torch.cat([layer(*[x[i : i + 1] for x in xs]) for i in range(3)])
    assert (layer(*xs) - alone).abs().max() < 1e-11


@each_kind
def test_single_precision_is_that_of_the_inputs(name):
    cones = OF_EACH_KIND[name]
    xs, _, _ = solvable(cones, WIDE, 2, seed=4)
    leaves = [x.float().requires_grad_() for x in xs]
    exact = [x.detach().double().requires_grad_() for x in leaves]
    layer = ConeProgram(cones)
    y, wide = layer(*leaves), layer(*exact)
    assert y.dtype == torch.float32
    assert (y - wide).abs().max() < 1e-5
    grads = (torch.autograd.grad(one.square().sum(), given) for one, given in ((y, leaves), (wide, exact)))
    for one, other in zip(*grads, strict=True):
        assert one.dtype == torch.float32
        assert (one - other).abs().max() <= 1e-4 * (1 + other.abs().max())


def project(cones: Cones, x: Tensor) -> Tensor:
    """The nearest point of the cones."""
    eye = torch.eye(cones.rows, dtype=x.dtype)
    return ConeProgram(cones)(eye, -x, -eye, torch.zeros(cones.rows, dtype=x.dtype))


def test_projection_onto_a_second_order_cone_in_closed_form():
    x = torch.randn(20, 4, dtype=DOUBLE, generator=torch.Generator().manual_seed(0))
    length = torch.linalg.vector_norm(x[:, 1:], dim=-1, keepdim=True)
    half = (x[:, :1] + length) / 2
    expected = torch.where(length <= -x[:, :1], 0.0, half * torch.cat([torch.ones_like(length), x[:, 1:] / length], -1))
    expected = torch.where(length <= x[:, :1], x, expected)
    assert (project(Cones(second_order=(4,)), x) - expected).abs().max() < 1e-12


def test_projection_onto_semidefinite_matrices_in_closed_form():
    X = torch.randn(10, 4, 4, dtype=DOUBLE, generator=torch.Generator().manual_seed(0))
    X = X + X.mT
    values, vectors = torch.linalg.eigh(X)
    expected = vectors @ (values.clamp(min=0).unsqueeze(-1) * vectors.mT)
    found = project(Cones(semidefinite=(4,)), torch.stack([triangle(one) for one in X]))
    for one, other in zip(found, expected, strict=True):
        assert (matrix(one, 4) - other).abs().max() < 1e-11


def test_log_sum_exp_and_its_gradient_softmax():
    """The smallest t with sum exp(x_i - t) <= 1, in t and the r_i >= exp(x_i - t)."""
    x = torch.tensor([[0.3, -1.0, 2.0], [5.0, 5.0, 5.0]], dtype=DOUBLE, requires_grad=True)
    n = x.shape[-1]
    A, b = torch.zeros(1 + 3 * n, 1 + n, dtype=DOUBLE), torch.zeros(2, 1 + 3 * n, dtype=DOUBLE)
    A[0, 1:], b[:, 0] = 1.0, 1.0  # sum r <= 1
    for i in range(n):
        A[1 + 3 * i, 0], A[3 + 3 * i, 1 + i], b[:, 2 + 3 * i] = 1.0, -1.0, 1.0
    b = b.index_add(-1, torch.arange(1, 1 + 3 * n, 3), x)
    q = torch.zeros(1 + n, dtype=DOUBLE)
    q[0] = 1.0
    t = ConeProgram(Cones(nonnegative=1, exponential=n))(None, q, A, b)[:, 0]
    assert (t - x.logsumexp(-1)).abs().max() < 1e-12
    assert (torch.autograd.grad(t.sum(), x)[0] - x.softmax(-1)).abs().max() < 1e-11


def test_the_geometric_mean():
    """The largest t with t <= x^a y^(1 - a)."""
    x = torch.tensor([[2.0, 5.0], [0.1, 3.0]], dtype=DOUBLE, requires_grad=True)
    A, b = torch.tensor([[0.0], [0.0], [-1.0]], dtype=DOUBLE), torch.nn.functional.pad(x, (0, 1))
    t = ConeProgram(Cones(power=(0.3,)))(None, -torch.ones(1, dtype=DOUBLE), A, b)[:, 0]
    expected = x[:, 0] ** 0.3 * x[:, 1] ** 0.7
    assert (t - expected).abs().max() < 1e-12
    grads = [torch.autograd.grad(one.sum(), x, retain_graph=True)[0] for one in (t, expected)]
    assert (grads[0] - grads[1]).abs().max() < 1e-11


SHAPES = ((4, 4), (4,), (1, 4), (6, 4))


def test_it_agrees_with_quadratic_programs():
    generator = torch.Generator().manual_seed(0)
    root, q, A, G = (torch.randn(6, *shape, dtype=DOUBLE, generator=generator) for shape in SHAPES)
    Q, b, h = root @ root.mT, torch.ones(6, 1, dtype=DOUBLE), torch.ones(6, 6, dtype=DOUBLE)
    found = ConeProgram(Cones(1, 6)).solve(Q, q, torch.cat([A, G], 1), torch.cat([b, h], 1))
    other = QuadraticProgram().solve(Q, q, A, b, G, h)
    for name in ("y", "multipliers", "inequality_multipliers", "objective", "active"):
        one, two = (getattr(solution, name).double() for solution in (found, other))
        assert (one - two).abs().max() < 1e-9


def test_it_keeps_the_promises_of_layers():
    cones = Cones(nonnegative=1, second_order=(3,))
    xs, _, _ = solvable(cones, 5, 2, seed=1)
    result = conformance(ConeProgram(cones), *xs, twin=ConeProgram(cones).generic())
    failed = [line.name for line in result.lines if line.grade.name == "FAIL"]
    # That rule leaves out B, which is that of A u - b in one of the two statements, and bends in the other.
    assert failed == ["identity gradient: twin"], str(result)


def test_the_ball_as_a_cone():
    x = torch.tensor([[3.0, 4.0], [0.1, 0.2]], dtype=DOUBLE, requires_grad=True)
    A = torch.cat([torch.zeros(1, 2), -torch.eye(2)]).double()
    b = torch.tensor([1.0, 0.0, 0.0], dtype=DOUBLE)
    y, other = ConeProgram(Cones(second_order=(3,)))(torch.eye(2).double(), -x, A, b), BallProjection(1.0)(x)
    assert (y - other).abs().max() < 1e-12
    one, two = (torch.autograd.grad(found[:, 0].sum(), x)[0] for found in (y, other))
    assert (one - two).abs().max() < 1e-11


def test_a_kink_and_a_singular_system_warn():
    eye, zero = torch.eye(1, dtype=DOUBLE), torch.zeros(1, dtype=DOUBLE, requires_grad=True)
    with pytest.warns(NumericalWarning, match="just active"):
        ConeProgram(Cones(nonnegative=1))(eye, zero.unsqueeze(0), -eye, torch.zeros(1, dtype=DOUBLE))
    q = torch.zeros(1, 2, dtype=DOUBLE, requires_grad=True)
    twice = torch.tensor([[1.0, 1.0], [1.0, 1.0]], dtype=DOUBLE)
    y = ConeProgram(Cones(zero=2))(torch.eye(2, dtype=DOUBLE), q, twice, torch.ones(2, dtype=DOUBLE))
    assert (y - 0.5).abs().max() < 1e-12
    (gradient,) = torch.autograd.grad(y[0, 0], q)  # does not depend on which of the two rows is redundant
    assert (gradient - torch.tensor([-0.5, 0.5], dtype=DOUBLE)).abs().max() < 1e-12
    flat = ConeProgram(Cones(zero=1))(None, q, twice[:1], torch.ones(1, dtype=DOUBLE))  # any point of a line
    with pytest.warns(NumericalWarning, match="not unique"):
        torch.autograd.grad(flat[0, 0], q)


def test_what_is_not_convex_is_told():
    P = torch.diag(torch.tensor([1.0, -1.0], dtype=DOUBLE))
    box = torch.cat([torch.eye(2), -torch.eye(2)]).double()
    xs = P, torch.zeros(1, 2, dtype=DOUBLE), box, torch.ones(4, dtype=DOUBLE)
    assert statuses(ConeProgram(Cones(nonnegative=4)), *xs) == [Status.NOT_OPTIMAL]


def test_one_problem_with_a_nan_leaves_the_others_alone():
    cones = OF_EACH_KIND["all"]
    (P, q, A, b), u, _ = solvable(cones, M, 3)
    q = q.clone()
    q[1, 0] = math.nan
    with pytest.warns(NumericalWarning):
        solution = ConeProgram(cones, on_failure="mask").solve(P, q, A, b)
    assert solution.status == [Status.CONVERGED, Status.NOT_FINITE, Status.CONVERGED]
    assert (solution.y[::2] - u[::2]).abs().max() < 1e-9


def test_an_unfinished_one_says_so():
    cones = OF_EACH_KIND["all"]
    xs, _, _ = solvable(cones, M, 2)
    assert set(statuses(ConeProgram(cones, max_iterations=2), *xs)) == {Status.ITERATION_LIMIT}


def test_sizes_at_the_edge():
    one = torch.ones(1, 1, dtype=DOUBLE)
    free = ConeProgram(Cones())(one, one, torch.zeros(0, 1, dtype=DOUBLE), torch.zeros(0, dtype=DOUBLE))
    assert (free + 1).abs().max() < 1e-12  # without constraints
    for cones in (Cones(nonnegative=1), Cones(second_order=(1,)), Cones(semidefinite=(1,))):  # half-lines all three
        assert (ConeProgram(cones)(None, one, -one, -3 * one) - 3).abs().max() < 1e-12
    empty = torch.zeros(0, 1, dtype=DOUBLE)
    assert ConeProgram(Cones(nonnegative=1))(None, empty, -one, one[0]).shape == (0, 1)
    rows = torch.cat([-one, 0 * one])  # the second one is 0 u <= 1
    assert (ConeProgram(Cones(nonnegative=2))(None, one, rows, torch.ones(2, dtype=DOUBLE)) + 1).abs().max() < 1e-12


BAD_CONES = {
    "negative": ({"zero": -1}, ValueError, "zero must be an int"),
    "a float": ({"nonnegative": 1.5}, ValueError, "nonnegative must be an int"),
    "a number for a list": ({"second_order": 3}, TypeError, "second_order must be a sequence"),
    "a cone of no rows": ({"semidefinite": (0,)}, ValueError, "semidefinite must be an int of at least 1"),
    "an exponent of 1": ({"power": (1.0,)}, ValueError, "between 0 and 1"),
    "a cone that is unknown": ({"ellipsoid": 1}, TypeError, "ellipsoid"),
}


@pytest.mark.parametrize("name", BAD_CONES)
def test_cones_that_are_none(name):
    given, kind, words = BAD_CONES[name]
    with pytest.raises(kind, match=words):
        Cones(**given)


def test_misuse_is_told_at_the_door():
    cones, one = Cones(nonnegative=2, second_order=(3,)), torch.ones(1, 2)
    with pytest.raises(TypeError, match="cones must be Cones"):
        ConeProgram(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="must have 5 rows"):
        ConeProgram(cones)(None, one, torch.ones(4, 2), torch.ones(4))
    with pytest.raises(ValueError, match="A must have shape"):
        ConeProgram(cones)(None, one, torch.ones(5, 3), torch.ones(5))
    with pytest.raises(TypeError, match="floating-point"):
        ConeProgram(cones)(None, one, torch.ones(5, 2, dtype=torch.int64), torch.ones(5))
    for rule in (Smoothed(0.1), Adaptive()):
        with pytest.raises(ValueError, match="not for cones"):
            ConeProgram(cones, gradient=rule)
        with pytest.raises(ValueError, match="not for cones"):
            ConeProgram(cones).with_gradient(rule)
    for ask in (ConeProgram(cones).derivatives, ConeProgram(cones).descent, lambda *xs: check(ConeProgram(cones), *xs)):
        with pytest.raises(TypeError, match="smooth functions"):
            ask(None, one, torch.ones(5, 2), torch.ones(5))
    with pytest.raises(TypeError, match="semidefinite"):
        ConeProgram(Cones(semidefinite=(2,))).generic()


def test_nothing_warns_where_all_is_well():
    cones = OF_EACH_KIND["all"]
    xs, _, _ = solvable(cones, WIDE, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        y = ConeProgram(cones)(*[x.requires_grad_() for x in xs])
        torch.autograd.grad(y.sum(), xs)
