"""Fits stated by their residuals: the same solutions and gradients as the sum of squares written out."""

from __future__ import annotations

import pytest
import torch
from scipy.optimize import least_squares
from torch import Tensor, nn

from declarative import DeclarativeNode, Newton
from tests.support.helpers import DOUBLE, gradients, relative

TIMES = torch.linspace(0.0, 2.0, 9, dtype=DOUBLE)


def decay(readings: Tensor, u: Tensor) -> Tensor:
    """Of an exponential with a size and a rate."""
    return u[0] * torch.exp(-u[1] * TIMES.to(u)) - readings


def readings(noise: float, count: int = 3) -> Tensor:
    size, rate = (
        torch.tensor([[2.0], [1.0], [3.0]])[:count].double(),
        torch.tensor([[1.0], [0.5], [2.0]])[:count].double(),
    )
    return size * torch.exp(-rate * TIMES) + noise * torch.randn(count, len(TIMES), dtype=DOUBLE)


@pytest.mark.parametrize("hessian", ["exact", "gauss-newton"])
@pytest.mark.parametrize("noise", [0.0, 0.1])
@pytest.mark.parametrize("record", [False, True])
def test_a_fit_is_that_of_scipy_and_its_gradient_that_of_the_sum_of_squares(hessian, noise, record):
    x = readings(noise).requires_grad_()
    start = torch.tensor([1.0, 0.3], dtype=DOUBLE)
    fit = DeclarativeNode(residuals=decay, start=start, solver=Newton(hessian=hessian), record=record)
    written = DeclarativeNode(lambda x, u: decay(x, u).square().sum() / 2, start=start)
    y = fit(x)
    for i in range(3):
        one = x[i].detach()
        found = least_squares(
            lambda u, one=one: decay(one, torch.tensor(u)).numpy(),
            [1.0, 0.3],
            jac=lambda u, one=one: torch.func.jacrev(lambda u: decay(one, u))(torch.tensor(u)).numpy(),
            **dict.fromkeys(("xtol", "ftol", "gtol"), 1e-15),
        )
        assert relative(y[i], torch.tensor(found.x)) < 1e-6
    v = torch.randn_like(y)
    assert relative(gradients(y, (x,), v)[0], gradients(written(x), (x,), v)[0]) < 1e-7  # H, not J'J
    assert fit.solve(x).objective.detach().tolist() == pytest.approx(written.solve(x).objective.tolist(), abs=1e-12)


def test_gauss_newton_has_no_negative_curvature_to_leave():
    """From far away the exact Hessian is indefinite, J'J is not: fewer iterations where residuals become small."""
    x = readings(0.0, 1)
    start = torch.tensor([1.0, -2.0], dtype=DOUBLE)
    counts = {
        hessian: int(DeclarativeNode(residuals=decay, start=start, solver=Newton(hessian=hessian)).solve(x).iterations)
        for hessian in ("exact", "gauss-newton")
    }
    assert counts["gauss-newton"] < 0.7 * counts["exact"]


def test_the_linearised_objective_has_the_same_slope_and_no_curvature_of_the_residuals():
    node = DeclarativeNode(residuals=decay, start=2)
    objective = node.spec.plan.problem.objective
    x, u = readings(0.1)[0], torch.tensor([1.5, 0.7], dtype=DOUBLE)
    jacobian = torch.func.jacrev(lambda u: decay(x, u))(u)
    slope = torch.func.grad(lambda u: objective.linearised(x, u))(u)
    hessian = torch.func.hessian(lambda u: objective.linearised(x, u))(u)
    assert relative(slope, jacobian.mT @ decay(x, u)) < 1e-12
    assert relative(hessian, jacobian.mT @ jacobian) < 1e-12


def test_constraints_several_residuals_several_unknowns_and_a_module():
    class Line(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.tensor(0.5, dtype=DOUBLE))

        def forward(self, x, u):
            return {"fit": u["a"] * TIMES + u["b"] - x, "prior": self.weight * u["b"]}

    fit = DeclarativeNode(
        residuals=Line(),
        inequality=lambda _, u: u["a"] - 0.4,
        start={"a": (), "b": ()},
        solver=Newton(hessian="gauss-newton"),
    )
    x = (1.0 * TIMES + 0.3).unsqueeze(0)
    y = fit(x)
    assert y["a"].item() == pytest.approx(0.4)
    (g,) = torch.autograd.grad(y["b"].sum(), fit.objective.weight)
    w, n, mean = 0.5, len(TIMES), float((x - 0.4 * TIMES).sum())  # b = mean / (n + w^2)
    assert y["b"].item() == pytest.approx(mean / (n + w * w))
    assert g.item() == pytest.approx(-2 * w * mean / (n + w * w) ** 2)
    assert "residuals=Line" in repr(fit)


@pytest.mark.parametrize(
    ("make", "error", "match"),
    [
        (
            lambda: DeclarativeNode(decay, residuals=decay, start=2),
            ValueError,
            "there is an objective and there are resid",
        ),
        (lambda: DeclarativeNode(residuals=3, start=2), TypeError, "residuals must be a function"),
        (lambda: DeclarativeNode(start=2), ValueError, "without an objective solves equations.*or fits residuals="),
        (lambda: Newton(hessian="gauss"), ValueError, "hessian must be 'exact' or 'gauss-newton', but is 'gauss'"),
        (lambda: Newton(hessian=True), ValueError, "hessian must be"),
    ],
)
def test_misuse_when_it_is_made(make, error, match):
    with pytest.raises(error, match=match):
        make()


@pytest.mark.parametrize(
    ("function", "error", "match"),
    [
        (lambda *_: 1.0, TypeError, "residuals must return a floating-point tensor.*float"),
        (lambda _, u: u > 0, TypeError, "residuals must return a floating-point tensor.*torch.bool"),
        (lambda x, _: (x, None), TypeError, "residuals must return a floating-point tensor"),
        (lambda x, _: x, ValueError, "does not depend on u"),
    ],
)
def test_misuse_when_it_is_called(function, error, match):
    with pytest.raises(error, match=match):
        DeclarativeNode(residuals=function, start=1)(torch.ones(2, 1, dtype=DOUBLE))


def test_an_approximate_rule_takes_the_curvature_of_the_sum_of_squares():
    """(2 u - x)^2 / 2 has B = -2 and H = 4."""
    x = torch.tensor([[1.0], [3.0]], dtype=DOUBLE, requires_grad=True)
    node = DeclarativeNode(residuals=lambda x, u: x - 2 * u, start=1)
    for rule, slope in (("identity", 2.0), ("unconstrained", 0.5)):
        y = node.with_gradient(rule)(x)
        assert relative(y, x / 2) < 1e-9
        assert relative(gradients(y, (x,), torch.ones_like(y))[0], torch.full_like(x, slope)) < 1e-9


def test_gauss_newton_needs_residuals():
    node = DeclarativeNode(lambda x, u: (u - x).square().sum(), start=1, solver=Newton(hessian="gauss-newton"))
    with pytest.raises(ValueError, match="needs to know the residuals: state the problem with DeclarativeNode"):
        node(torch.ones(1, 1))
