"""What cannot be relied on is told, and the rest is right: multipliers that vanish, minima with a singular Hessian."""

from __future__ import annotations

import warnings

import pytest
import torch

from declarative import DeclarativeNode, NumericalWarning, Status
from tests.support.helpers import relative

DOUBLE = torch.float64
WAYS = [("dense", False), ("dense", True), ("sparse", False), ("sparse", True)]


def told(run):
    """What it returns, and the words of warning."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        result = run()
    return result, [str(one.message) for one in seen if issubclass(one.category, NumericalWarning)]


def node(objective, start, structure="auto", record=False, **more) -> DeclarativeNode:
    start = torch.as_tensor(start, dtype=DOUBLE)
    return DeclarativeNode(objective, start=start, structure=structure, record=record, **more)


# Multipliers that vanish


def slacks(structure, record) -> DeclarativeNode:
    """Two of three squared slacks are not zero, so that their multipliers are."""
    return node(
        lambda x, u: 0.01 * u[0].square() + u[1].square() + x @ u,
        [15.811, 1.5811, 0, 15.083, 3.7164],
        structure,
        record,
        equality=lambda _, u: torch.stack(
            [u[0] + u[1] - u[2] ** 2 - 25, u[0] ** 2 + u[1] ** 2 - u[3] ** 2 - 25, u[0] - u[4] ** 2 - 2]
        ),
    )


def slacks_derivative(y: torch.Tensor, multiplier: float) -> torch.Tensor:
    """Dy, from the null space of A and the curvature of the objective and of the one multiplier that is not zero."""
    a, b, c, d, e = y.tolist()
    rows = torch.tensor([[1, 1, -2 * c, 0, 0], [2 * a, 2 * b, 0, -2 * d, 0], [1, 0, 0, 0, -2 * e]], dtype=DOUBLE)
    null = torch.linalg.qr(rows.T, mode="complete")[0][:, 3:]
    hessian = torch.diag(torch.tensor([0.02, 2, 2 * multiplier, 0, 0], dtype=DOUBLE))
    return -null @ torch.linalg.solve(null.T @ hessian @ null, null.T)


@pytest.mark.parametrize(("structure", "record"), WAYS)
def test_prices_of_slacks_whose_multipliers_vanish(structure, record):
    x = torch.zeros(1, 5, dtype=DOUBLE, requires_grad=True)
    solution = slacks(structure, record).solve(x)
    y = solution.y[0]
    jacobian = torch.stack([torch.autograd.grad(y[i], x, retain_graph=True)[0][0] for i in range(5)])
    assert torch.equal(solution.multipliers[0, 1:], torch.zeros(2, dtype=DOUBLE))
    assert relative(jacobian, slacks_derivative(y.detach(), solution.multipliers[0, 0].item())) < 1e-9
    assert abs(jacobian[3, 3].item() + 0.5058) < 1e-4


@pytest.mark.parametrize(("structure", "record"), WAYS)
def test_forward_mode_and_second_derivatives_with_multipliers_that_vanish(structure, record):
    """y = (u, z) with z^2 = 1 + u^2, u = -x: z is sqrt(1 + x^2), for a price of z that is zero now."""
    hidden = node(
        lambda x, p, u: 0.5 * u[0].square() + x * u[0] + p * u[1],
        [0.5, 1.5],
        structure,
        record,
        equality=lambda *given: 1 + given[-1][0].square() - given[-1][1].square(),
    )
    x, p = (torch.full((1,), value, dtype=DOUBLE, requires_grad=True) for value in (-0.7, 0.0))
    z = hidden(x, p)[0, 1]
    g = torch.autograd.grad(z, (x, p), create_graph=True)
    curvature = torch.autograd.grad(g[0], x, retain_graph=True)[0]
    length = (1 + 0.49) ** 0.5
    # At a small price u moves by -p dz/du: dz/dp = -(u / z)^2.
    expected = [-0.7 / length, -0.49 / length**2, 1 / length**3]
    torch.testing.assert_close(torch.cat([*g, curvature]), torch.tensor(expected, dtype=DOUBLE), rtol=1e-9, atol=0)
    _, pushed = torch.func.jvp(lambda p: hidden(x.detach(), p), (p.detach(),), (torch.ones_like(p),))
    torch.testing.assert_close(pushed[0, 1].item(), expected[1], rtol=1e-9, atol=0)


@pytest.mark.parametrize("record", [False, True])
def test_a_solution_that_is_zero_in_truth_goes_the_short_way(record, monkeypatch):
    """At a corner of the simplex, and along (1, ..., 1): rounding errors of zero are not doubted."""
    simplex = node(
        lambda x, u: (u - x).square().sum(),
        [0.3, 0.3, 0.4],
        record=record,
        equality=lambda _, u: u.sum() - 1,
        inequality=lambda _, u: -u,
    )
    x = torch.tensor([[5.0, 0.1, -0.3], [0.4, 0.3, -2.0], [0.31, 0.42, 0.2]], dtype=DOUBLE, requires_grad=True)
    y = simplex(x)
    monkeypatch.setattr("declarative.structure.Point.full", None)
    (gradient,) = torch.autograd.grad(y.sum() + y[:, 0].sum(), x)
    expected = torch.tensor([[0, 0, 0], [0.5, -0.5, 0], [2 / 3, -1 / 3, -1 / 3]], dtype=DOUBLE)
    torch.testing.assert_close(gradient, expected, rtol=1e-12, atol=1e-14)


# Minima with a singular Hessian

SINGULAR = {
    "quartic": lambda x, u: 3 * u[0] ** 4 - 2 * u[0] ** 2 * u[1] ** 2 + 3 * u[1] ** 4 + x @ u,
    "sextic": lambda x, u: u.pow(6).sum() + x @ u,
    "sextic, elsewhere": lambda x, u: (u - 1).pow(6).sum() + x @ u,
    "quartic along one direction": lambda x, u: (u[0] - u[1]) ** 4 + (u[0] + u[1] - 1) ** 2 + x @ u,
}


@pytest.mark.parametrize(("structure", "record"), WAYS)
@pytest.mark.parametrize("name", SINGULAR)
def test_a_minimum_with_a_singular_hessian_is_told(name, structure, record):
    x = torch.zeros(1, 2, dtype=DOUBLE, requires_grad=True)
    singular = node(SINGULAR[name], [1.3, 2.0], structure, record)
    solution, words = told(lambda: singular.solve(x))
    assert solution.status == [Status.CONVERGED]
    assert any("minimum to second order only" in one for one in words)


def test_a_point_that_is_a_minimum_to_second_order_only_is_told_without_a_derivative():
    """From (0, 0), (y - x^2)(y - 3 x^2) falls between the parabolas."""
    between = node(lambda _, u: (u[1] - u[0] ** 2) * (u[1] - 3 * u[0] ** 2), [0.0, 0.0])
    _, words = told(lambda: between.solve(torch.zeros(1, dtype=DOUBLE)))
    assert any("minimum to second order only" in one for one in words)


@pytest.mark.parametrize(
    "objective",
    [
        lambda x, u: (u.square().sum() - 1).square() + 0 * x,  # a circle of solutions
        lambda x, u: (u.sum() - x).square(),  # a line
        lambda x, u: (u - x).square().sum(),
        lambda x, u: 1e-3 * (u - x).pow(4).sum() + (u - 2 * x).pow(2).sum(),
        lambda x, u: (u.exp() - x * u).sum(),
    ],
)
def test_other_minima_are_not(objective):
    x = torch.tensor([1.5], dtype=DOUBLE, requires_grad=True)
    _, words = told(lambda: node(objective, [0.4, 0.3]).solve(x))
    assert not words


# One of many multipliers, or one of many gradients


@pytest.mark.parametrize("structure", ["dense", "sparse"])
@pytest.mark.parametrize(
    ("objective", "equality", "loss", "expected"),
    [
        # The same constraint twice, and one that follows from two others: the gradient is that of one.
        (
            lambda x, u: (u - x).square().sum(),
            lambda x, u: torch.stack([u.sum() - x[0], 2 * u.sum() - 2 * x[0]]),
            lambda y: y[:, 1],
            [-1 / 3 + 1 / 3, 2 / 3, -1 / 3],
        ),
        # What the loss does not depend on is free: u may move along (1, -1, 0).
        (
            lambda x, u: (u[0] + u[1] - x[0]).square() + (u[2] - x[2]).square(),
            None,
            lambda y: y[:, 0] + y[:, 1],
            [1.0, 0.0, 0.0],
        ),
    ],
    ids=["redundant", "free"],
)
def test_a_gradient_that_is_unique_is_not_warned_of(objective, equality, loss, expected, structure):
    x = torch.tensor([[0.3, 0.9, -0.4]], dtype=DOUBLE, requires_grad=True)
    y = node(objective, [0.1, 0.2, 0.3], structure, equality=equality)(x)
    (gradient,) = torch.autograd.grad(loss(y).sum(), x)
    torch.testing.assert_close(gradient, torch.tensor([expected], dtype=DOUBLE), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("structure", ["dense", "sparse"])
@pytest.mark.parametrize(
    ("objective", "equality", "inequality"),
    [
        # Equations that contradict each other for other inputs.
        (lambda x, u: (u - x).square().sum(), lambda x, u: torch.stack([u.sum() - x[0], u.sum() - x[1]]), None),
        # The loss depends on which of the solutions is taken.
        (lambda x, u: (u[0] + u[1] - x[0]).square() + (u[2] - x[2]).square(), None, None),
        # Multipliers that are some of many, and curve the problem differently.
        (lambda x, u: u[2] + x[2] * u[0], None, lambda _, u: u[:2].square() - u[2]),
    ],
    ids=["contradictory", "free", "curved"],
)
def test_one_of_many_gradients_is_told(objective, equality, inequality, structure):
    x = torch.tensor([[0.3, 0.3, 0.0]], dtype=DOUBLE, requires_grad=True)

    def gradient():
        y = node(objective, [0.1, 0.2, 0.3], structure, equality=equality, inequality=inequality)(x)
        return torch.autograd.grad(y[:, 0].sum(), x)[0]

    found, words = told(gradient)
    assert words
    assert bool((found.abs() < 1e10).all())


@pytest.mark.parametrize("record", [False, True])
@pytest.mark.parametrize("count", [2, 3, 5])
def test_the_least_of_squares_is_told_however_it_is_stored(count, record):
    """Minimise t with u_i^2 <= t at x = 0, where multipliers are any that add up to one."""
    statuses = []
    for structure in ("dense", "sparse"):
        least = node(
            lambda x, u: u[0] + x @ u,
            [0.0, *range(1, count + 1)],
            structure,
            record,
            inequality=lambda _, u: u[1:].square() - u[0],
            on_failure="mask",
        )
        x = torch.zeros(1, count + 1, dtype=DOUBLE, requires_grad=True)

        def gradient(least=least, x=x):
            solution = least.solve(x)
            return solution.status, torch.autograd.grad(solution.y.sum(), x)[0]

        (status, found), words = told(gradient)
        statuses.append(status)
        assert words
        assert bool((found.abs() < 1e3).all())
    assert statuses[0] == statuses[1]
