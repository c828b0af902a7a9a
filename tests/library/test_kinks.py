"""Where an inequality is just active or just not: solved all the same, and never differentiated wrongly in silence.

The problems are quadratic programs whose second inequality is not active at the solution, by a given slack.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from declarative import DeclarativeNode
from problems.quadratic import linear_equality, linear_inequality, quadratic
from tests.support.helpers import DOUBLE, gradients, relative
from tests.support.verdicts import SOLVERS, listening, solved


def weak_programs(count: int, slack: float, p: int = 1, m: int = 3) -> tuple[tuple[Tensor, ...], Tensor]:
    """(Q, q, A, b, G, h) with a solution at which the first inequality is active, and the solution."""
    root, u, G, A = (torch.randn(count, *shape, dtype=DOUBLE) for shape in ((m, m), (m, 1), (3, m), (p, m)))
    Q = root @ root.mT + 0.3 * torch.eye(m, dtype=DOUBLE)
    q = -(Q @ u) - 0.8 * G[:, :1].mT - A.mT @ torch.randn(count, p, 1, dtype=DOUBLE)
    h = G @ u + torch.tensor([[0.0], [slack], [0.7]], dtype=DOUBLE)
    return (Q, q.squeeze(-1), A, (A @ u).squeeze(-1), G, h.squeeze(-1)), u.squeeze(-1)


def weak_node(solver: str) -> DeclarativeNode:
    return DeclarativeNode(
        quadratic, linear_equality, linear_inequality, solver=SOLVERS[solver], start=3, on_failure="mask"
    )


def gradient_of_q(Q: Tensor, A: Tensor, G: Tensor, v: Tensor) -> Tensor:
    """Of v'y, if the equalities and the first inequality hold: minus the z of the KKT system."""
    rows = torch.cat([A, G[:, :1]], 1)
    below = torch.cat([rows, rows.new_zeros(len(v), rows.shape[1], rows.shape[1])], -1)
    matrix = torch.cat([torch.cat([Q, rows.mT], -1), below], 1)
    right = torch.cat([v, v.new_zeros(len(v), rows.shape[1])], -1)
    return -torch.linalg.solve(matrix, right)[:, : v.shape[1]]


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("slack", [1e-9, 1e-7, 6.5e-6])
def test_a_solution_near_a_kink_is_a_solution(solver, slack):
    (Q, q, A, b, G, h), u = weak_programs(15, slack)
    q.requires_grad_()
    solution = solved(weak_node(solver), Q, q, A, b, G, h)
    assert solution.converged.all()
    assert relative(solution.y, u) < 1e-6
    if slack > 1e-6:  # nearer ones may be told instead
        v = torch.randn_like(u)
        with listening():
            (g,) = gradients(solution.y, (q,), v)
        assert relative(g, gradient_of_q(Q, A, G, v)) < 1e-6


@pytest.mark.parametrize(("solver", "equalities"), [("newton", 1), ("scipy", 1), ("scipy", 0)])
@pytest.mark.parametrize("slack", [0.0, 8e-11, 1e-9])
def test_a_kink_is_told_or_differentiated_right(solver, equalities, slack):
    every, u = weak_programs(6, slack, equalities)
    v, silent, node = torch.randn_like(u), [], weak_node(solver)
    for i in range(len(u)):  # one by one, so that the words are about this one
        Q, q, A, b, G, h = (x[i : i + 1] for x in every)
        with listening() as words:
            y = node(Q, q.requires_grad_(), A, b, G, h)
            (g,) = gradients(y, (q,), v[i : i + 1])
        if not words and (slack == 0 or relative(g, gradient_of_q(Q, A, G, v[i : i + 1])) > 1e-6):
            silent.append(i)
    assert not silent


def programs_with_a_kink_at_zero(count: int, m: int = 3) -> tuple[Tensor, Tensor]:
    """(Q, q) of whole numbers with u >= 0: u_0 is zero with the multiplier zero, exactly, others as it comes."""
    root = torch.randint(-2, 3, (count, m, m)).to(DOUBLE)
    Q = root @ root.mT + torch.eye(m, dtype=DOUBLE)
    part = torch.randint(0, 3, (count, m))  # on the edge, not active, active
    part[:, 0] = 0
    u, pull = 2 * (part == 1).to(DOUBLE), (part == 2).to(DOUBLE)
    return Q, pull - (Q @ u.unsqueeze(-1)).squeeze(-1)


@pytest.mark.parametrize(
    ("solver", "dtype", "unit"),
    [
        ("newton", torch.float64, 1.0),
        ("newton", torch.float64, 1e-9),
        ("newton", torch.float32, 1.0),
        ("scipy", torch.float64, 1.0),
    ],
)
def test_a_kink_where_an_unknown_vanishes_and_so_do_all_of_its_forces_is_told(solver, dtype, unit):
    node = DeclarativeNode(quadratic, inequality=lambda Q, q, u: -u, solver=SOLVERS[solver], start=3)  # noqa: ARG005
    silent = []
    for i, (Q, q) in enumerate(zip(*programs_with_a_kink_at_zero(8), strict=True)):
        with listening() as words:
            solution = node.solve((unit * Q[None]).to(dtype), (unit * q[None]).to(dtype).requires_grad_())
        told = any("the one-sided derivative without that constraint was taken" in word for word in words)
        silent += [] if told and not solution.active[0, 0] else [i]
    assert not silent


@pytest.mark.parametrize(("last", "pull"), [(0.0, 0.0), (1.0, 0.0), (1.0, 1e-13)])
def test_a_kink_of_a_formula_is_told(last, pull):
    """At (0, 0, last) no force is left on an unknown at its bound, or what rounding errors leave of larger ones."""
    node = DeclarativeNode(
        lambda x, u: (u - x).square().sum() / 2 + (u[0] + u[1]) * u[2] / 2,
        inequality=lambda _, u: -u[:2],
        solver=lambda x: x.clamp(min=0) * torch.tensor([0.0, 0.0, 1.0], dtype=DOUBLE),
    )
    for edge in range(2):
        x = torch.tensor([[-1.0, -1.0, last]], dtype=DOUBLE)
        x[0, edge] = last / 2 - pull
        with listening() as words:
            node(x.requires_grad_())
        assert len(words) == 1
        assert "just active" in words[0]


def test_a_point_too_rough_to_tell_the_sides_of_a_kink_is_told():
    """The formula is right to five digits of single precision; with more of them the multiplier would vanish."""
    node = DeclarativeNode(
        lambda x, u: (u - x).square().sum() / 2, inequality=lambda _, u: -2 * u - 4, solver=lambda x: x + 4e-5
    )
    with listening() as words:
        node(torch.tensor([[-2.0], [1.0]], requires_grad=True))
    assert len(words) == 1
    assert "1 of 2 problems have a constraint that is just active" in words[0]
