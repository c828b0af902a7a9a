"""The structure of the Hessian, found or declared: the same gradient as the dense matrix, or a word."""

import pytest
import torch

from declarative import ClosedForm, DeclarativeNode, NumericalWarning
from declarative.structure import DIAGONAL_FROM
from tests.library.test_recording import randn
from tests.support.helpers import DOUBLE, RULES, relative

KINDS = ["auto", "dense", "diagonal", "matrix-free"]


def onto_sphere(x):
    return x / x.norm(dim=-1, keepdim=True)


def sphere(**options):
    return DeclarativeNode(
        lambda x, u: (u - x).square().sum() / 2, lambda _, u: (u.square().sum() - 1) / 2, solver=onto_sphere, **options
    )


def sphere_gradient(x, v):
    y = onto_sphere(x)
    return (v - y * (y * v).sum(-1, keepdim=True)) / x.norm(dim=-1, keepdim=True)


@pytest.mark.parametrize("record", [True, False])
@pytest.mark.parametrize("hessian", KINDS)
@pytest.mark.parametrize("n", [3, DIAGONAL_FROM + 5])
def test_every_structure_gives_the_gradient_of_the_sphere(n, hessian, record):
    node, x, v = sphere(structure=hessian, record=record), randn(4, n).requires_grad_(), randn(4, n, seed=1)
    for _ in range(2):
        (grad,) = torch.autograd.grad(node(x), x, v)
    assert relative(grad, sphere_gradient(x.detach(), v)) < 1e-12


def no_dense_matrix(*_):
    raise AssertionError("a dense Hessian was assembled")


NEVER = [(hessian, rule) for hessian in ("auto", "diagonal") for rule in RULES] + [("matrix-free", "exact")]


@pytest.mark.parametrize(("hessian", "rule"), NEVER)
def test_a_diagonal_hessian_is_never_assembled(hessian, rule, monkeypatch):
    monkeypatch.setattr("declarative.problem.Batch.hessian", no_dense_matrix)
    monkeypatch.setattr("declarative.problem.Batch.expand", no_dense_matrix)
    x = randn(4, DIAGONAL_FROM + 5).requires_grad_()
    assert torch.autograd.grad(sphere(structure=hessian, gradient=rule)(x).sum(), x)[0].isfinite().all()


def tridiagonal(strength, **options):
    """Neighbours pull at each other; with strength 0 the Hessian is diagonal."""
    return DeclarativeNode(
        lambda x, u: (u - x).square().sum() + u.pow(4).sum() + strength * (u[1:] * u[:-1]).sum(),
        lambda _, u: u.sum() - 1,
        solver="scipy",
        start=DIAGONAL_FROM + 5,
        **options,
    )


@pytest.mark.parametrize("strength", [0.0, 1e-12, 1e-8, 0.3])
def test_even_a_slight_coupling_is_seen(strength):
    x, v = randn(2, DIAGONAL_FROM + 5).requires_grad_(), randn(2, DIAGONAL_FROM + 5, seed=1)
    found = [torch.autograd.grad(tridiagonal(strength, structure=hessian)(x), x, v)[0] for hessian in ("auto", "dense")]
    assert relative(*found) < 1e-12


@pytest.mark.parametrize("record", [True, False])
def test_a_false_declaration_is_refused(record):
    x = randn(2, DIAGONAL_FROM + 5).requires_grad_()
    with pytest.raises(ValueError, match="the Hessian is not diagonal here"):  # where H is first asked for
        torch.autograd.grad(tridiagonal(0.3, structure="diagonal", record=record)(x).sum(), x)


def test_a_hessian_that_is_diagonal_at_one_point_only_has_a_second_derivative():
    n = DIAGONAL_FROM + 5  # at w = 0 the Hessian is diagonal, but its derivative with respect to w is not

    def solve(w, x):
        matrix = torch.eye(n, dtype=DOUBLE) + w.unsqueeze(-1) * coupling
        return torch.linalg.solve(matrix, x.unsqueeze(-1)).squeeze(-1)

    coupling = torch.ones(n, n, dtype=DOUBLE) - torch.eye(n, dtype=DOUBLE)
    node = DeclarativeNode(
        lambda w, x, u: u.square().sum() / 2 + w[0] * (u.sum().square() - u.square().sum()) / 2 - x @ u, solver=solve
    )
    w, x = torch.zeros(2, 1, dtype=DOUBLE, requires_grad=True), randn(2, n).requires_grad_()
    second = []
    for function in (node, solve):
        (first,) = torch.autograd.grad(function(w, x).square().sum(), x, create_graph=True)
        second.append(torch.autograd.grad(first.sum(), w)[0])
    assert relative(*second) < 1e-10


@pytest.mark.parametrize("hessian", KINDS[:3])
def test_inequalities_with_a_diagonal_hessian(hessian):
    node = DeclarativeNode(
        lambda x, u: (u - x).square().sum() / 2 * 3,
        lambda _, u: u.sum() - 1,
        lambda _, u: -u,
        start=DIAGONAL_FROM + 1,
        structure=hessian,
        record=True,
    )
    x = randn(3, DIAGONAL_FROM + 1).requires_grad_()
    for _ in range(2):
        y = node(x)
        (grad,) = torch.autograd.grad(y[:, 0].sum() + 2 * y[:, 1].sum(), x)
    free = (y > 1e-9).to(DOUBLE)
    v = torch.zeros_like(y)
    v[:, 0], v[:, 1] = 1.0, 2.0
    expected = free * (v - (free * v).sum(-1, keepdim=True) / free.sum(-1, keepdim=True))
    assert relative(grad, expected) < 1e-9


def stiff(n, **options):
    """A dense Hessian with a spread of curvatures, and constraints."""
    weights = torch.logspace(0, 3, n, dtype=DOUBLE)
    mixing = torch.linalg.qr(randn(n, n, seed=7)).Q
    normals = randn(3, n, seed=8)
    matrix = mixing.T @ torch.diag(weights) @ mixing
    kkt = torch.cat([torch.cat([matrix, normals.T], 1), torch.cat([normals, torch.zeros(3, 3, dtype=DOUBLE)], 1)])

    def solve(x):
        right = torch.cat([x, torch.ones(len(x), 3, dtype=DOUBLE)], -1)
        return torch.linalg.solve(kkt, right.T).T[:, :n]

    node = DeclarativeNode(
        lambda x, u: u @ matrix @ u / 2 - x @ u, lambda _, u: normals @ u - 1, solver=solve, **options
    )
    return node, torch.linalg.inv(kkt)[:n, :n]


def test_without_a_matrix(monkeypatch):
    monkeypatch.setattr("declarative.problem.Batch.hessian", no_dense_matrix)
    monkeypatch.setattr("declarative.problem.Batch.expand", no_dense_matrix)
    node, inverse = stiff(60, structure="matrix-free")
    x, v = randn(2, 60).requires_grad_(), randn(2, 60, seed=1)
    (grad,) = torch.autograd.grad(node(x), x, v)
    assert relative(grad, v @ inverse) < 1e-9


@pytest.mark.parametrize("kind", ["all taken up", "nearly all taken up"])
def test_without_a_matrix_where_the_constraints_take_up_the_gradient(kind):
    node = DeclarativeNode(
        lambda x, u: (u - x).square().sum() + (u[1:] - u[:-1]).square().sum(),
        lambda _, u: u.sum() - 1,
        solver="scipy",
        start=30,
        structure="matrix-free",
    )
    dense = DeclarativeNode(
        node.spec.plan.problem.objective, node.spec.plan.problem.equality, solver="scipy", start=30, structure="dense"
    )
    x, v = randn(2, 30).requires_grad_(), torch.full((2, 30), 0.7, dtype=DOUBLE)
    v[:, 0] += 0.0 if kind == "all taken up" else 1e-9
    found, truth = (torch.autograd.grad(one(x), x, v)[0] for one in (node, dense))
    assert (found - truth).abs().max() < 1e-14


def test_where_conjugate_gradients_fail_the_dense_matrix_is_used_and_that_is_told():
    node = DeclarativeNode(  # a saddle point, for the reduced Hessian is indefinite
        lambda x, u: (u[0] * u[1] - x @ u) + u[2].square(),
        solver=ClosedForm(lambda x: torch.stack([x[:, 1], x[:, 0], x[:, 2] / 2], -1), stationary=True),
        structure="matrix-free",
    )
    x, v = randn(2, 3).requires_grad_(), torch.tensor([[1.0, -2.0, 0.5], [3.0, -1.0, 1.0]], dtype=DOUBLE)
    y = node(x)
    with pytest.warns(NumericalWarning, match="the dense system was solved instead"):
        (grad,) = torch.autograd.grad(y, x, v)
    assert relative(grad, torch.stack([v[:, 1], v[:, 0], v[:, 2] / 2], -1)) < 1e-12


def test_structure_must_be_a_choice():
    with pytest.raises(
        ValueError, match="structure must be one of 'auto', 'dense', 'diagonal', 'sparse', 'matrix-free'"
    ):
        sphere(structure="banded")


def test_the_old_name_of_structure_still_works_and_is_told():
    with pytest.warns(DeprecationWarning, match="structure="):
        node = sphere(hessian="diagonal")
    assert node.spec.plan.structure == "diagonal"


@pytest.mark.parametrize("record", [True, False])
def test_a_dense_hessian_is_judged_at_a_glance(record, monkeypatch):
    """Once it has been seen that it is not diagonal."""
    monkeypatch.setattr("declarative.optimality.verdict.is_minimum", lambda *_: pytest.fail("looked at with care"))
    n = DIAGONAL_FROM + 5
    x, full = randn(3, n), torch.eye(n, dtype=DOUBLE) + torch.full((n, n), 0.1, dtype=DOUBLE)
    node = DeclarativeNode(
        lambda x, u: u @ full @ u / 2 - x @ u,
        lambda x, u: u.sum() - 1,  # noqa: ARG005
        solver=lambda x: bordered(full, x),
        record=record,
    )
    assert node.solve(x).converged.all()


def bordered(Q, x):
    """min u'Qu / 2 - x'u subject to 1'u = 1, by its KKT matrix."""
    one = torch.ones(1, len(Q), dtype=Q.dtype)
    matrix = torch.cat([torch.cat([Q, one.mT], 1), torch.cat([one, torch.zeros(1, 1, dtype=Q.dtype)], 1)])
    return torch.linalg.solve(matrix, torch.nn.functional.pad(x, (0, 1), value=1.0).mT).mT[:, :-1]
