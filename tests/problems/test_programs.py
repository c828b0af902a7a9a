"""Quadratic programs without a solution, close to having none, and on their bounds."""

from __future__ import annotations

import pytest
import torch
from scipy.optimize import linprog
from torch import Tensor

from declarative import SolverError, Status
from problems import EqualityQP, QuadraticProgram
from problems.evidence import convex

DOUBLE, SINGLE = torch.float64, torch.float32
SHAPES = [(2, 0, 1), (3, 1, 4), (5, 2, 6), (8, 3, 12)]  # unknowns, equalities, inequalities
each_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=DOUBLE)


def statuses(layer: torch.nn.Module, *xs: Tensor) -> set[str]:
    with pytest.raises(SolverError) as caught:
        layer(*xs)
    return {status.name for status in caught.value.solution.status}


def unbounded(count: int, m: int, p: int, n: int, tight: bool, scale: float = 1.0) -> tuple[Tensor, ...]:
    """Feasible programs whose objective falls along a direction d with Q d = 0, A d = 0 and G d <= 0."""
    d = torch.nn.functional.normalize(randn(count, m, 1), dim=1)
    across = torch.eye(m, dtype=DOUBLE) - d @ d.mT
    root = randn(count, m // 2, m) @ across
    A, G, q, inside = randn(count, p, m) @ across, randn(count, n, m), randn(count, m), scale * randn(count, m, 1)
    G[:, : n // 2] = G[:, : n // 2] @ across if tight else G[:, : n // 2]
    G = torch.where(G @ d > 0, -G, G)
    q = torch.where(q.unsqueeze(1) @ d > 0, -q.unsqueeze(1), q.unsqueeze(1)).squeeze(1)
    h = (G @ inside).squeeze(-1) + torch.rand(count, n, dtype=DOUBLE)
    return root.mT @ root, q, A, (A @ inside).squeeze(-1), G, h


@each_shape
@pytest.mark.parametrize("tight", [False, True])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_a_feasible_program_without_a_bound_is_unbounded(shape: tuple[int, int, int], tight: bool, scale: float):
    assert statuses(QuadraticProgram(), *unbounded(20, *shape, tight, scale)) == {"UNBOUNDED"}


@each_shape
def test_contradictory_constraints_are_infeasible(shape: tuple[int, int, int]):
    """Farkas: a combination of the constraints with A' y + G' l = 0, l >= 0 and b' y + h' l < 0."""
    m, p, n = shape[0], shape[1], shape[2] + 1
    root, q, A, G = randn(20, m // 2, m), randn(20, m), randn(20, p, m), randn(20, n, m)
    y, pull = randn(20, p, 1), torch.rand(20, n, 1, dtype=DOUBLE) + 0.1
    b, h = randn(20, p), randn(20, n)
    G[:, -1] = -(G[:, :-1].mT @ pull[:, :-1] + A.mT @ y).squeeze(-1) / pull[:, -1]
    short = b.unsqueeze(1) @ y + h[:, :-1].unsqueeze(1) @ pull[:, :-1] + torch.rand(20, 1, 1, dtype=DOUBLE) + 0.01
    h[:, -1] = -(short / pull[:, -1:]).flatten()
    assert statuses(QuadraticProgram(), root.mT @ root, q, A, b, G, h) == {"INFEASIBLE"}


def test_linear_programs_against_scipy():
    """Whether one has a solution, and its value."""
    names = {0: Status.CONVERGED, 2: Status.INFEASIBLE, 3: Status.UNBOUNDED}
    found = set()
    for seed in range(40):
        generator = torch.Generator().manual_seed(seed)
        G, h, q = (torch.randn(*shape, dtype=DOUBLE, generator=generator) for shape in ((6, 3), (6,), (3,)))
        reference = linprog(q.numpy(), A_ub=G.numpy(), b_ub=h.numpy(), bounds=(None, None), options={"presolve": False})
        layer = QuadraticProgram(on_failure="raise")
        try:
            solution = layer.solve(torch.zeros(3, 3, dtype=DOUBLE), q.unsqueeze(0), None, None, G, h)
        except SolverError as error:
            solution = error.solution
        assert solution.status == [names[reference.status]]
        if reference.status == 0:
            assert abs(solution.objective.item() - reference.fun) < 1e-9
        found.add(reference.status)
    assert found == set(names)


@pytest.mark.parametrize("dtype", [DOUBLE, SINGLE], ids=str)
@pytest.mark.parametrize("m", [2, 10, 60])
def test_a_slightly_negative_curvature_is_no_minimum(dtype: torch.dtype, m: int):
    """Every direction counts, in whatever units; a stationary point of such a program is a saddle."""
    negative = -1e-4 if dtype == SINGLE else -1e-9
    values = torch.linspace(0.1, 1.0, m, dtype=DOUBLE)
    values[0] = negative
    basis = torch.linalg.qr(randn(m, m))[0]
    for matrix in (
        torch.diag(values),
        basis @ torch.diag(values) @ basis.mT,
        torch.diag(values * 10.0 ** (2 * values)),
    ):
        xs = matrix.to(dtype).unsqueeze(0), torch.zeros(1, m, dtype=dtype)
        box = torch.cat([torch.eye(m), -torch.eye(m)]).to(dtype), torch.ones(2 * m, dtype=dtype)
        assert statuses(QuadraticProgram(), *xs, None, None, *box) == {"NOT_OPTIMAL"}


@pytest.mark.parametrize("dtype", [DOUBLE, SINGLE], ids=str)
def test_products_of_low_rank_are_convex_whatever_rounding_does(dtype: torch.dtype):
    root = randn(20, 3, 30).to(dtype)
    box = torch.cat([torch.eye(30), -torch.eye(30)]).to(dtype), torch.ones(60, dtype=dtype)
    assert QuadraticProgram().solve(root.mT @ root, randn(20, 30).to(dtype), None, None, *box).converged.all()
    in_any_units = (root.double() * 10.0 ** (8 * torch.rand(30, dtype=DOUBLE))).to(dtype)
    assert convex((in_any_units.mT @ in_any_units).double(), dtype).all()


@pytest.mark.parametrize("dtype", [DOUBLE, SINGLE], ids=str)
def test_a_saddle_along_the_equalities_is_unbounded(dtype: torch.dtype):
    Q = torch.diag(torch.tensor([1.0, -1.0, 2.0])).to(dtype)
    q, b = torch.ones(1, 3, dtype=dtype), torch.ones(1, dtype=dtype)
    assert EqualityQP().solve(Q, q, torch.tensor([[0.0, 1.0, 0.0]], dtype=dtype), b).converged.all()
    assert statuses(EqualityQP(), Q, q, torch.tensor([[1.0, 0.0, 0.0]], dtype=dtype), b) == {"UNBOUNDED"}
    flat = torch.diag(torch.tensor([1.0, -1.0, 0.0])).to(dtype)
    assert statuses(EqualityQP(), flat, q, torch.tensor([[0.0, 1.0, 0.0]], dtype=dtype), b) == {"UNBOUNDED"}
    twice = torch.tensor([[0.0, 1.0, 0.0], [0.0, 2.0, 0.0]], dtype=dtype)
    assert statuses(EqualityQP(), flat, q, twice, torch.tensor([1.0, 3.0], dtype=dtype)) == {"INFEASIBLE"}


@pytest.mark.parametrize("dtype", [DOUBLE, SINGLE], ids=str)
@pytest.mark.parametrize("scale", [1e-8, 1.0, 1e8])
def test_a_solution_is_on_its_bounds_and_not_beyond(dtype: torch.dtype, scale: float):
    """0 <= u <= 1 and 1' u = 2.5, in any units; what a bound holds is there exactly."""
    m = 12
    root = randn(50, 4, m)
    total, ones = torch.ones(1, m, dtype=dtype), torch.ones(m, dtype=dtype)
    bounds = torch.cat([torch.eye(m), -3 * torch.eye(m)]).to(dtype), scale * torch.cat([ones, 0 * ones])
    xs = (
        (root.mT @ root).to(dtype),
        scale * 5 * randn(50, m).to(dtype),
        total,
        torch.full((1,), 2.5 * scale, dtype=dtype),
    )
    solution = QuadraticProgram().solve(*xs, *bounds)
    assert (solution.y >= 0).all()
    assert (solution.y <= scale).all()
    pull = solution.inequality_multipliers
    assert (solution.y[pull[:, m:] > 0] == 0).all()
    assert (solution.y[pull[:, :m] > 0] == torch.tensor(scale, dtype=dtype)).all()
    assert (pull > 0).any()


@each_shape
@pytest.mark.parametrize("scale", [1e-20, 1e-12, 1e-6, 1e6, 1e12])
def test_units_of_the_unknowns_do_not_matter(shape: tuple[int, int, int], scale: float):
    m, p, n = shape
    root, q, A, G, inside = randn(10, m // 2, m), randn(10, m), randn(10, p, m), randn(10, 3 * n, m), randn(10, m, 1)
    b, h = (A @ inside).squeeze(-1), (G @ inside).squeeze(-1) + torch.rand(10, 3 * n, dtype=DOUBLE)
    box = torch.cat([G, torch.eye(m, dtype=DOUBLE).expand(10, m, m), -torch.eye(m, dtype=DOUBLE).expand(10, m, m)], 1)
    bounds = torch.cat([h, torch.full((10, 2 * m), 9.0, dtype=DOUBLE)], 1)
    expected = QuadraticProgram().solve(root.mT @ root, q, A, b, box, bounds)
    found = QuadraticProgram().solve(root.mT @ root, scale * q, A, scale * b, box, scale * bounds)
    assert (found.y / scale - expected.y).abs().max() < 1e-9
    assert (found.inequality_multipliers / scale - expected.inequality_multipliers).abs().max() < 1e-8


def test_a_bound_far_away_is_no_bound():
    Q, q, A, b = (
        2 * torch.eye(3, dtype=DOUBLE),
        randn(4, 3),
        torch.ones(1, 3, dtype=DOUBLE),
        torch.ones(1, dtype=DOUBLE),
    )
    G, h = -torch.eye(3, dtype=DOUBLE), torch.tensor([0.0, 1e20, 1e20], dtype=DOUBLE)
    expected = QuadraticProgram()(Q, q, A, b, G[:1], h[:1])
    assert (QuadraticProgram()(Q, q, A, b, G, h) - expected).abs().max() < 1e-12


def test_a_limit_that_was_reached_is_told():
    G, inside = randn(80, 20), randn(20)
    xs = torch.eye(20, dtype=DOUBLE), 9 * randn(1, 20), None, None, G, G @ inside + 0.01 * torch.rand(80, dtype=DOUBLE)
    assert statuses(QuadraticProgram(1), *xs) == {"ITERATION_LIMIT"}
    assert QuadraticProgram().solve(*xs).converged.all()
