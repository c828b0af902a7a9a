"""The dual active-set method of the quadratic programs, and what is left to interior points."""

from __future__ import annotations

from itertools import chain, combinations

import numpy as np
import pytest
import torch
from torch import Tensor

from problems import QuadraticProgram, active_set, interior
from problems.active_set import find_active

DOUBLE = torch.float64
LIMIT = 60


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=DOUBLE)


def complementarity(batch: int, k: int, m: int) -> tuple[Tensor, Tensor]:
    """S and e, S of full rank if m >= k."""
    rows = randn(batch, k, m)
    return rows @ rows.mT / m, randn(batch, k)


def by_enumeration(S: Tensor, e: Tensor, p: int) -> list[bool]:
    """The one active set with which slacks and multipliers are not negative."""
    k = len(e)
    subsets = chain.from_iterable(combinations(range(p, k), size) for size in range(k - p + 1))
    for subset in subsets:
        W = [*range(p), *subset]
        s = torch.zeros(k, dtype=DOUBLE)
        if W:
            s[W] = torch.linalg.solve(S[W][:, W], -e[W])
        w = S @ s + e
        if (s[p:] >= 0).all() and all(w[i] > 0 for i in range(k) if i not in W):
            return [i in W for i in range(k)]
    raise AssertionError("there is none")


@pytest.mark.parametrize("p", [0, 2])
def test_the_active_set_is_that_of_an_enumeration(p: int):
    S, e = complementarity(20, 7, 9)
    x, table = e.clone(), S.clone()
    active, count, clear = find_active(table, x, torch.ones(20, dtype=torch.bool), p, LIMIT)
    assert clear.all()
    assert (count >= active.sum(-1) - p).all()
    assert active.tolist() == [by_enumeration(S[i], e[i], p) for i in range(20)]


def test_what_is_left_of_the_matrix_is_an_inverse_and_of_the_slacks_the_multipliers():
    S, e = complementarity(5, 8, 8)
    x, table = e.clone(), S.clone()
    active, _, clear = find_active(table, x, torch.ones(5, dtype=torch.bool), 1, LIMIT)
    assert clear.all()
    for i in range(5):
        W = active[i]
        assert (-table[i][W][:, W] - torch.linalg.inv(S[i][W][:, W])).abs().max() < 1e-9
        assert (x[i][W] - torch.linalg.solve(S[i][W][:, W], -e[i][W])).abs().max() < 1e-9
        assert (x[i][~W] - (S[i][~W][:, W] @ x[i][W] + e[i][~W])).abs().max() < 1e-9


def test_a_row_that_leaves_is_swept_out_again(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(active_set, "PLAIN", float("inf"))
    S, e = complementarity(10, 50, 52)
    x = e.clone()
    active, count, clear = find_active(S.clone(), x, torch.ones(10, dtype=torch.bool), 0, LIMIT)
    assert clear.all()
    assert (count > active.sum(-1)).any()
    s = torch.where(active, x, 0.0)
    w = (S @ s.unsqueeze(-1)).squeeze(-1) + e
    assert s.min() >= 0
    assert w[~active].min() > 0
    assert w[active].abs().max() < 1e-9 * s.max()


@pytest.mark.parametrize(
    ("S", "e"),
    [
        pytest.param([[1.0, -1.0], [-1.0, 1.0]], [-1.0, -1.0], id="contradictory"),
        pytest.param([[1.0, 1.0], [1.0, 1.0]], [-1.0, -1.0], id="the same twice"),
        pytest.param([[1.0, 0.0], [0.0, 1.0]], [-1.0, 0.0], id="neither slack nor multiplier"),
        pytest.param([[float("nan"), 0.0], [0.0, 1.0]], [-1.0, 1.0], id="not a number"),
    ],
)
def test_what_is_not_clear_is_left_alone(S: list[list[float]], e: list[float]):
    table, x = torch.tensor([S, [[1.0, 0.0], [0.0, 1.0]]], dtype=DOUBLE), torch.tensor([e, [-1.0, 1.0]], dtype=DOUBLE)
    active, _, clear = find_active(table, x, torch.ones(2, dtype=torch.bool), 0, LIMIT)
    assert clear.tolist() == [False, True]
    assert active[1].tolist() == [True, False]


def test_problems_that_are_not_wanted_are_left_alone():
    S, e = complementarity(2, 3, 3)
    table, x = S.clone(), e.clone()
    _, _, clear = find_active(table, x, torch.zeros(2, dtype=torch.bool), 0, LIMIT)
    assert not clear.any()
    assert torch.equal(table, S)
    assert torch.equal(x, e)


def program(batch: int, m: int, p: int, n: int) -> list[Tensor]:
    root, inside, A, G = randn(batch, m, m), randn(batch, m, 1), randn(batch, p, m), randn(batch, n, m)
    Q = root @ root.mT / m + 0.1 * torch.eye(m, dtype=DOUBLE)
    slack = torch.rand(batch, n, dtype=DOUBLE)
    return [Q, 3 * randn(batch, m), A, (A @ inside).squeeze(-1), G, (G @ inside).squeeze(-1) + slack]


def answer(xs: list[Tensor], v: Tensor) -> list[Tensor]:
    leaves = [x.clone().requires_grad_() for x in xs]
    solution = QuadraticProgram().solve(*leaves)
    gradients = torch.autograd.grad(solution.y, leaves, v)
    return [solution.y.detach(), solution.multipliers, solution.inequality_multipliers, *gradients]


@pytest.mark.parametrize("sizes", [(6, 1, 4), (12, 3, 20), (30, 2, 15)])
def test_pivots_and_interior_points_agree(sizes: tuple[int, int, int], request: pytest.FixtureRequest):
    xs, v = program(8, *sizes), randn(8, sizes[0])
    mine = answer(xs, v)
    request.getfixturevalue("by_interior_points")
    for one, other in zip(mine, answer(xs, v), strict=True):
        assert (one - other).abs().max() <= 1e-9 * other.abs().max().clamp(min=1.0)


def test_interior_points_are_not_asked_where_pivots_are_enough(monkeypatch: pytest.MonkeyPatch):
    def refused(*_: object) -> None:
        raise AssertionError("interior points were asked")

    monkeypatch.setattr(interior, "_by_interior_points", refused)
    assert QuadraticProgram().solve(*program(4, 10, 2, 12)).converged.all()


def test_python_and_the_core_agree(monkeypatch: pytest.MonkeyPatch):
    if not active_set.available():
        pytest.skip("there is no compiled core")
    S, e = complementarity(3, 6, 6)
    wanted = torch.ones(3, dtype=torch.bool)
    x, table = e.clone(), S.clone()
    expected = find_active(table, x, wanted, 1, LIMIT)
    monkeypatch.setattr(active_set, "available", lambda: False)
    again, slacks = S.clone(), e.clone()
    for mine, other in zip(find_active(again, slacks, wanted, 1, LIMIT), expected, strict=True):
        assert torch.equal(mine, other)
    assert (again - table).abs().max() < 1e-12
    assert (slacks - x).abs().max() < 1e-12


def network(nodes: int, edges: int, batch: int, capacity: float) -> list[Tensor]:
    """Quadratic flows with two sources' worth of capacity at the source: many of their corners are degenerate."""
    draw = np.random.default_rng(1)
    tails = np.r_[np.arange(nodes), draw.integers(0, nodes, edges)][:edges]
    heads = (tails + np.r_[np.ones(nodes, int), draw.integers(1, nodes, edges)[nodes:]][:edges]) % nodes
    A = np.zeros((nodes, edges))
    A[tails, np.arange(edges)] += 1
    A[heads, np.arange(edges)] -= 1
    b = np.zeros(nodes)
    b[0], b[nodes // 2] = 1.0, -1.0
    G, h = np.r_[-np.eye(edges), np.eye(edges)], np.r_[np.zeros(edges), np.full(edges, capacity)]
    shared = [torch.tensor(x) for x in (np.eye(edges), A[:-1], b[:-1], G, h)]
    return [shared[0], torch.tensor(draw.uniform(0.1, 1.0, (batch, edges))), *shared[1:]]


def test_degenerate_flows_are_solved(either_way: str):  # noqa: ARG001
    Q, q, A, b, G, h = network(20, 60, 32, 0.5)
    q = q[[17, 24, 26, 28]]  # the most degenerate
    solution = QuadraticProgram().solve(Q, q, A, b, G, h)
    u, y, z = solution.y, solution.multipliers, solution.inequality_multipliers
    assert (u @ A.mT - b).abs().max() < 1e-8
    assert (u @ G.mT - h).max() < 1e-8
    pull = q - y @ A + z @ G  # the value of the dual, for Q = I
    dual = -pull.square().sum(-1) / 2 + y @ b - z @ h
    assert (solution.objective - dual).abs().max() < 1e-7
