"""Problems without a solution: shown to be so where that can be done, and quietly."""

from __future__ import annotations

import dataclasses
import warnings

import pytest
import torch
from torch import Tensor

from declarative import Chain, DeclarativeNode, Newton, NumericalWarning, Scipy, Solver, Status
from declarative.problem import Batch, Problem
from declarative.solution import RawSolution
from declarative.solvers.certificate import proves_infeasible, proves_unbounded
from tests.support.helpers import DOUBLE, in_threads

T = torch.tensor([1.0, 2.0, 30.0], dtype=DOUBLE)
# name: equality, inequality, unknowns; none of them has a feasible point
CONVEX = {
    "bounds and a sum": (lambda x, u: u.sum() + x, lambda _, u: 1 - u, 6),
    "a sum of squares": (lambda x, u: u.square().sum() + x, None, 3),
    "a sphere and bounds": (lambda _, u: u.square().sum() - 1, lambda x, u: x - u, 4),
    "two balls": (None, lambda x, u: torch.stack([(u - x).square().sum() - 1, (u + x).square().sum() - 1]), 4),
    "other units": (lambda _, u: 1e3 * (u.sum() - 1), lambda x, u: torch.cat([-1e-2 * u, u - 0.1 / x]), 5),
    "an exponential": (None, lambda x, u: torch.stack([u[0].exp() - u[1], u[1] + x]), 2),
}
EITHER = {**CONVEX, "a sine": (lambda x, u: u.sin().sum() - 3 - x, None, 2)}


def square(_, u):
    return u.square().sum()


def solve(equality, inequality, m: int, x: Tensor, solver: Solver | None = None):
    node = DeclarativeNode(square, equality, inequality, solver=solver, start=m, on_failure="mask")
    with pytest.warns(NumericalWarning, match="not solved"):
        return node.solve(x)


class Counting(Solver):
    """Remembers how many problems it was asked to solve."""

    def __init__(self) -> None:
        self.asked = 0

    def solve(self, batch: Batch, start: Tensor) -> RawSolution:
        self.asked += batch.size
        raw = RawSolution.unsolved(start)
        return dataclasses.replace(raw, codes=torch.full_like(raw.codes, Status.STALLED))


@pytest.mark.parametrize(
    ("name", "dtype"),
    [*((name, DOUBLE) for name in CONVEX if name != "a sphere and bounds"), ("a sphere and bounds", torch.float32)],
)
def test_what_has_been_shown_to_be_infeasible_is_not_tried_again(name, dtype):
    second = Counting()
    solution = solve(*CONVEX[name], T.to(dtype), Chain((Newton(), second)))
    assert solution.status == [Status.INFEASIBLE] * 3
    assert second.asked == 0


def test_what_might_be_feasible_elsewhere_is_tried_again():
    second = Counting()
    assert solve(*EITHER["a sine"], T, Chain((Newton(), second))).status == [Status.STALLED] * 3
    assert second.asked == 3


@pytest.mark.parametrize("name", ["two balls", "a sine"])
def test_the_status_is_infeasible_and_scipy_keeps_its_warnings(name):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        scipy = Chain((Scipy(method="SLSQP"), Scipy(method="trust-constr")))
        node = DeclarativeNode(square, *EITHER[name][:2], solver=scipy, start=EITHER[name][2], on_failure="mask")
        node.solve(T[:2])
    assert {w.category for w in told} == {NumericalWarning}


# Feasible problems, and points from which it does not look like it: every one of them has the feasible point u = 0.


def waves(x, u):
    return (x * u).sin() + (1 - (3 * u).cos())


def rim(x, u):
    return (u.square().sum() * (4 - u.square().sum()) * x.square().sum()).reshape(1)


def product(x, u):
    return torch.stack([u.prod() * x[0] + u.sum(), u[0] - u[1] * u[2] * x[1]])


def quadratic(x, u):
    return torch.stack([x[0] * u.square().sum() + x[1] * u[0] * u[1] + u[2], x @ u + (u * x.roll(1)).square().sum()])


@pytest.mark.parametrize("function", [waves, rim, product, quadratic, lambda x, u: x * u])
@pytest.mark.parametrize("kind", ["equality", "inequality"])
def test_nothing_is_proved_of_a_problem_that_has_a_feasible_point(function, kind):
    generator = torch.Generator().manual_seed(0)
    x, u, start = (3 * torch.randn(200, 3, dtype=DOUBLE, generator=generator) for _ in range(3))
    count = len(function(x[0], u[0]))
    sizes = (count, 0) if kind == "equality" else (0, count)
    batch = Batch(Problem(square, **{kind: function}), (x,), (0,), 200, torch.Size([3]), *sizes)
    assert not proves_infeasible(batch, u, start).any()


def test_what_falls_far_and_rises_in_the_end_is_not_unbounded():
    far, start = torch.full((2, 1), 2e3, dtype=DOUBLE), torch.zeros(2, 1, dtype=DOUBLE)
    x = torch.tensor([1e-6, 0.0], dtype=DOUBLE)
    batch = Batch(Problem(lambda x, u: (x * u.square() - u).sum()), (x,), (0,), 2, torch.Size([1]), 0, 0)
    assert proves_unbounded(batch, far, start).tolist() == [False, True]


def test_without_constraints_there_is_nothing_to_prove():
    batch = Batch(Problem(square), (T,), (0,), 3, torch.Size([2]), 0, 0)
    assert not proves_infeasible(batch, torch.ones(3, 2), torch.zeros(3, 2)).any()


# Warnings


def test_a_warning_of_the_callers_function_comes_through_scipy():
    def warning(x, u):
        warnings.warn("the caller's own", UserWarning, stacklevel=1)
        return (u - x).square().sum()

    with pytest.warns(UserWarning, match="the caller's own"):
        DeclarativeNode(warning, solver="scipy", start=())(T)


def test_threads_leave_the_filters_as_they_were():
    node = DeclarativeNode(lambda x, u: (u - x).square().sum(), lambda x, u: u.sum() - x, solver="scipy", start=2)
    before = list(warnings.filters)
    in_threads(node, [T] * 4)
    assert warnings.filters == before
