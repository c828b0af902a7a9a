"""Functions that solve linear equations or take determinants: their derivatives, which torch gets wrong in places."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from declarative import DeclarativeNode
from declarative.problem import Batch, Problem
from declarative.recording import Recordings
from tests.support.helpers import relative

DOUBLE = torch.float64


def matrix(u: Tensor) -> Tensor:
    return 2 * torch.eye(3, dtype=u.dtype) + torch.outer(u, u) + torch.diag(u[:2].exp(), 1)


OPERATIONS = {
    "solve": lambda x, u: torch.linalg.solve(matrix(u), x),
    "solve from the right": lambda x, u: torch.linalg.solve(matrix(u), torch.outer(x, u), left=False).sum(0),
    "solve for another matrix": lambda x, u: torch.linalg.solve(matrix(x), u**2),
    "tensorsolve": lambda x, u: torch.linalg.tensorsolve(matrix(u), x),
    "det": lambda x, u: torch.linalg.det(matrix(u)) * x,
    "logdet": lambda x, u: torch.logdet(matrix(u)) * x,
    "slogdet": lambda x, u: torch.linalg.slogdet(matrix(u))[1] * x,
    "inv": lambda x, u: torch.linalg.inv(matrix(u)) @ x,
    "cholesky": lambda x, u: torch.linalg.cholesky(matrix(u) @ matrix(u).mT) @ x,
    "lu_solve": lambda x, u: torch.linalg.lu_solve(*torch.linalg.lu_factor(matrix(u)), x.unsqueeze(-1)).squeeze(-1),
    "qr": lambda x, u: torch.linalg.qr(matrix(u))[1] @ x,
    "matrix_exp": lambda x, u: torch.matrix_exp(0.1 * matrix(u)) @ x,
}


@pytest.mark.parametrize("recorded", [False, True], ids=["called", "recorded"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_all_derivatives_are_those_of_each_problem_by_itself(name, recorded):
    """With gradients disabled, as in a forward pass, vmap over vjp takes an LU factor for that of the transpose."""
    operation = OPERATIONS[name]
    x, u, weights, z = torch.randn(4, 4, 3, dtype=DOUBLE).unbind()
    problem = Problem(lambda x, u: (u - x).square().sum(), lambda x, u: operation(x, u) - 1)
    batch = Batch(problem, (x,), (0,), 4, torch.Size([3]), 3, 0, Recordings() if recorded else None)
    with torch.no_grad():
        found = [batch.expand(u, weights).jacobian, batch.jacobian(u), batch.expand(u, weights).curvature]
        found += [batch.hessian(u, weights), batch.product(u, weights, z, weights)]
        (pulled,) = batch.pullback(u, weights, z, weights)
        (pulled_each,) = batch.pullback_each(u, weights, z, weights, [0])
        pushed = torch.cat(batch.pushforward(u, weights, [z], [0]), -1)
    for i in range(4):
        jacobian, hessian, mixed, moved = _truth(operation, x[i], u[i], weights[i])
        truths = [jacobian, jacobian, hessian, hessian, hessian @ z[i] + jacobian.mT @ weights[i]]
        for one, truth in zip(found, truths, strict=True):
            assert relative(one[i], truth) < 1e-10
        assert relative(pulled[i], -(mixed.mT @ z[i] + moved.mT @ weights[i])) < 1e-10
        assert relative(pulled_each[i], pulled[i]) < 1e-10
        assert relative(pushed[i], -torch.cat([mixed @ z[i], moved @ z[i]])) < 1e-10


def _truth(operation, x, u, weights):
    """D_U c, D^2_UU L, D^2_XU L and D_X c of one problem by plain autograd."""
    x, u = (one.clone().requires_grad_() for one in (x, u))
    values = operation(x, u)
    (slope,) = torch.autograd.grad((u - x).square().sum() - (weights * values).sum(), u, create_graph=True)
    rows = [[torch.autograd.grad(one, at, retain_graph=True, materialize_grads=True)[0] for one in ones]
            for ones, at in ((values, u), (slope, u), (slope, x), (values, x))]  # fmt: skip
    return [torch.stack(row) for row in rows]


@pytest.mark.parametrize("recorded", [False, True], ids=["called", "recorded"])
def test_the_inverse_of_a_matrix_as_a_minimum(recorded):
    """u = X^-1 minimises tr(X u) - log det u over symmetric u."""
    root = 0.3 * torch.randn(4, 3, 3, dtype=DOUBLE)  # far away, two negative eigenvalues make a positive determinant
    x = (root @ root.mT + torch.eye(3, dtype=DOUBLE)).requires_grad_()
    node = DeclarativeNode(
        lambda x, u: (x * u).sum() - torch.logdet((u + u.mT) / 2) + (u - u.mT).square().sum(),
        solver="newton",
        start=torch.eye(3, dtype=DOUBLE),
        record=recorded,
    )
    y, truth = node(x), torch.linalg.inv(x)
    assert relative(y, truth) < 1e-10
    weights = torch.randn_like(root)
    weights = weights + weights.mT  # what is not symmetric depends on the penalty
    found, expected = (torch.autograd.grad((weights * one).sum(), x)[0] for one in (y, truth))
    assert relative(found, expected) < 1e-9
