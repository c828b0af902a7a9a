"""A warm start, from a solution or a point: the same in fewer iterations, and nothing worse if it does not fit."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

from declarative import DeclarativeNode, Solution
from tests.support.helpers import DOUBLE, gradients, relative

M = 12
ROWS = torch.randn(18, M, dtype=DOUBLE, generator=torch.Generator().manual_seed(5))


def objective(x: Tensor, u: Tensor) -> Tensor:
    return u.square().sum() / 2 - x @ u + 0.1 * u.pow(4).sum()


def program(**options) -> DeclarativeNode:
    """A convex program with equalities, inequalities and bounds."""
    given = {"solver": "newton", "start": M, **options}
    return DeclarativeNode(
        objective, lambda _, u: u.sum() - 1, lambda _, u: ROWS.to(u) @ u - 0.5, bounds=(-0.4, None), **given
    )


def slowly(step: float) -> list[Tensor]:
    x, direction = torch.randn(6, M, dtype=DOUBLE), torch.randn(6, M, dtype=DOUBLE)
    return [x + step * t * direction for t in range(5)]


@pytest.mark.parametrize(("step", "share"), [(1e-2, 0.9), (1e-3, 0.5), (1e-5, 0.3)])
def test_a_solution_saves_iterations_and_changes_nothing(step, share):
    node = program()
    last, cold, warm = None, 0, 0
    for x in slowly(step):
        alone, solution = node.solve(x), node.solve(x, start=last)
        assert relative(solution.y, alone.y) < 1e-8
        assert relative(solution.rows, alone.rows) < 1e-6
        if last is not None:
            cold, warm = cold + int(alone.iterations.sum()), warm + int(solution.iterations.sum())
        last = solution
    assert 0 < warm < share * cold


def test_the_gradient_is_the_same():
    before, x = slowly(1e-3)[:2]
    x.requires_grad_()
    node = program()
    v = torch.randn(6, M, dtype=DOUBLE)
    cold, warm = (gradients(node(x, start=start), (x,), v)[0] for start in (None, node.solve(before)))
    assert relative(warm, cold) < 1e-7
    one = program(in_dims=None)
    last = one.solve(before[0])
    mapped = torch.func.grad(lambda x: one(x, start=last) @ v[0])(x[0].detach())
    assert relative(mapped, cold[0]) < 1e-7


def test_other_active_constraints_are_found():
    """A solution from far away is a start like any other."""
    node = program()
    x = torch.randn(6, M, dtype=DOUBLE)
    far = node.solve(-3 * x)
    assert relative(node(x, start=far), node(x)) < 1e-8


def test_multipliers_that_are_nonsense_do_not_matter():
    node, x = program(), torch.randn(6, M, dtype=DOUBLE)
    last = node.solve(x)
    for rows in (
        1e6 * torch.randn_like(last.rows),
        torch.full_like(last.rows, torch.nan),
        last.rows[:, :3],
        last.rows[:2],
    ):
        assert relative(node(x, start=dataclasses.replace(last, rows=rows)), last.y) < 1e-8


def test_several_unknowns_and_single_precision():
    def named(x, u):
        return objective(x, torch.cat([u["a"], u["b"]]))

    node = DeclarativeNode(named, inequality=lambda _, u: {"a": u["a"] - 0.2, "b": -u["b"]}, start={"a": 5, "b": M - 5})
    x = torch.randn(3, M)
    last = node.solve(x)
    again = node.solve(x + 1e-4, start=last)
    assert isinstance(again, Solution)
    assert relative(again.y["b"], node(x + 1e-4)["b"]) < 1e-5
    assert int(again.iterations.max()) <= 3 < int(last.iterations.min())
    alone = node.with_gradient("exact").solve(x + 1e-4, start=last.y)
    assert int(again.iterations.sum()) < int(alone.iterations.sum())


def test_a_point_alone_saves_iterations_and_changes_nothing_else():
    x = torch.randn(4, 5, dtype=DOUBLE, requires_grad=True)
    node = DeclarativeNode(
        lambda x, u: (u - x).pow(4).sum() + u.exp().sum(), lambda _, u: u.square().sum() - 1, start=torch.ones(5)
    )
    cold = node.solve(x)
    moved = (x + 1e-4 * torch.randn_like(x)).detach().requires_grad_()
    again, warm = node.solve(moved), node.solve(moved, start=cold.y)
    assert relative(warm.y, again.y) < 1e-9
    assert warm.iterations.double().mean() < 0.6 * again.iterations.double().mean()
    v = torch.randn_like(warm.y)
    (g,) = torch.autograd.grad(node(moved, start=cold.y), moved, v)
    (expected,) = torch.autograd.grad(node(moved), moved, v)
    assert relative(g, expected) < 1e-8


def test_a_warm_start_under_vmap_and_for_one_problem():
    node = DeclarativeNode(lambda x, u: (u - x).square().sum(), lambda _, u: u.sum() - 1, start=3)
    x = torch.randn(2, 4, 3, dtype=DOUBLE)
    truth = x - (x.sum(-1, keepdim=True) - 1) / 3
    y = torch.vmap(lambda x, start: node(x, start=start))(x, truth + 0.1)
    assert relative(y, truth) < 1e-12
    one = DeclarativeNode(lambda x, u: (u - x).square().sum(), lambda _, u: u.sum() - 1, start=3, in_dims=None)
    assert relative(one(x[0, 0], start=truth[0, 0]), truth[0, 0]) < 1e-12


@pytest.mark.parametrize(
    ("start", "error", "match"),
    [
        ("last", TypeError, "start must be a tensor like the node's output, but is str"),
        ([1.0] * M, TypeError, "start must be a tensor"),
        (torch.zeros(5, M), ValueError, r"one point for each of the 6 problems.*\(5, 12\)"),
        (torch.zeros(6, M + 1), ValueError, "start must have shape"),
        (torch.zeros(6, M, dtype=torch.complex64), TypeError, "complex"),
        (torch.zeros(6, M, device="meta"), ValueError, "no values"),
        (torch.zeros(6, M).to_sparse(), TypeError, "sparse"),
        (torch.tensor(1.0), ValueError, "one point for each"),
        (torch.zeros(M), ValueError, "one point for each of the 6 problems"),
        (torch.zeros(6, 1), ValueError, r"start must have shape \(6, 12\)"),
        (torch.zeros(6, 1, M), ValueError, r"start must have shape \(6, 12\)"),
        (3, TypeError, "start must be a tensor"),
        ({"u": torch.zeros(6, M)}, TypeError, "start must be a tensor"),
    ],
)
def test_misuse(start, error, match):
    with pytest.raises(error, match=match):
        program()(torch.randn(6, M, dtype=DOUBLE), start=start)


def test_the_solution_of_another_batch_is_refused():
    node = program()
    with pytest.raises(ValueError, match="one point for each of the 6 problems"):
        node(torch.randn(6, M, dtype=DOUBLE), start=node.solve(torch.randn(2, M, dtype=DOUBLE)))
