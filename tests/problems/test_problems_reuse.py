"""The fast paths of the quadratic programs: u eliminated once, and a factorisation that serves both passes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from declarative import NumericalWarning
from declarative.linear import ActiveFactorisation, FactorisedSystem, SchurReduction
from problems import EqualityQP, QuadraticProgram, interior, quadratic

DOUBLE = torch.float64


def definite(batch: int, m: int) -> Tensor:
    X = torch.randn(batch, m, m, dtype=DOUBLE)
    return X @ X.mT / m + torch.eye(m, dtype=DOUBLE)


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=DOUBLE)


def program(batch: int, m: int, p: int, n: int) -> list[Tensor]:
    """With a point strictly inside."""
    Q, q, A, G, inside = definite(batch, m), 3 * randn(batch, m), randn(batch, p, m), randn(batch, n, m), randn(m, 1)
    return [Q, q, A, (A @ inside).squeeze(-1), G, (G @ inside).squeeze(-1) + torch.rand(batch, n, dtype=DOUBLE)]


def gradients(layer: torch.nn.Module, xs: Sequence[Tensor], v: Tensor) -> tuple[Tensor, ...]:
    leaves = [x.clone().requires_grad_() for x in xs]
    return torch.autograd.grad(layer(*leaves), leaves, v)


def refused(*_: object) -> None:
    raise AssertionError("the matrix was factored again")


def test_reduction_solves_the_whole_system():
    H, C, r, t = definite(3, 6), 100 * randn(3, 4, 6), randn(3, 6), randn(3, 4)
    D = torch.tensor([0.0, 1e-9, 1.0, 1e12], dtype=DOUBLE).expand(3, 4)
    solve, good = SchurReduction.of(H, C).factorise(D)
    z, s = solve(r, t)
    assert good.all()
    assert ((H @ z.unsqueeze(-1) + C.mT @ s.unsqueeze(-1)).squeeze(-1) - r).abs().max() < 1e-11
    assert ((C @ z.unsqueeze(-1)).squeeze(-1) - D * s - t).abs().max() < 1e-11


def test_reduction_knows_what_it_cannot_solve():
    H = definite(4, 3)
    H[1] -= 10 * torch.eye(3, dtype=DOUBLE)  # not definite
    C = randn(4, 2, 3)
    C[2, 1] = C[2, 0]  # dependent
    C[3, 0] = 0.0
    _, good = SchurReduction.of(H, C).factorise(torch.zeros(4, 2, dtype=DOUBLE))
    assert good.tolist() == [True, False, False, False]


def test_a_factorisation_multiplies_back():
    H, C, active = definite(2, 5), randn(2, 3, 5), torch.tensor([[True, True, False], [True, False, True]])
    system = FactorisedSystem(ActiveFactorisation.of(H, C, active, SchurReduction.of(H, C)))
    r, t = randn(2, 5), torch.where(active, randn(2, 3), 0.0)
    for mine, given in zip(system.multiply(*system.solve(r, t)), (r, t), strict=True):
        assert (mine - given).abs().max() < 1e-12


def test_equality_program_is_factored_once(monkeypatch: pytest.MonkeyPatch):
    xs, v = program(5, 7, 3, 0)[:4], randn(5, 7)
    expected = gradients(EqualityQP().generic(), xs, v)
    monkeypatch.setattr(quadratic, "DenseSystem", refused)
    for mine, other in zip(gradients(EqualityQP(), xs, v), expected, strict=True):
        assert (mine - other).abs().max() < 1e-11


def test_quadratic_program_is_factored_for_its_active_set_once(
    monkeypatch: pytest.MonkeyPatch,
    either_way: str,  # noqa: ARG001
):
    xs, v = program(6, 8, 2, 10), randn(6, 8)
    xs[0], xs[1], xs[4], xs[5] = 1e3 * xs[0], 1e3 * xs[1], 0.1 * xs[4], 0.1 * xs[5]  # the units must not matter
    active = QuadraticProgram().solve(*xs).inequality_multipliers > 0
    assert active.any()
    assert not active.all()
    expected = gradients(QuadraticProgram().generic(), xs, v)
    monkeypatch.setattr(quadratic, "DenseSystem", refused)
    for mine, other in zip(gradients(QuadraticProgram(), xs, v), expected, strict=True):
        assert (mine - other).abs().max() <= 1e-8 * other.abs().max().clamp(min=1.0)


def test_second_derivatives_do_not_use_the_factorisation():
    xs = [x.requires_grad_() for x in program(1, 3, 1, 2)]
    assert torch.autograd.gradgradcheck(QuadraticProgram(), xs)


@pytest.mark.parametrize("sizes", [(4, 1, 20), (10, 3, 12)])
@pytest.mark.usefixtures("by_interior_points")
def test_both_eliminations_agree(sizes: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch):
    xs = program(8, *sizes)
    mine = QuadraticProgram().solve(*xs)
    monkeypatch.setattr(
        interior, "_directions", lambda part, point, right, _: interior._primal_directions(part, point, right)
    )
    other = QuadraticProgram().solve(*xs)
    assert (mine.y - other.y).abs().max() < 1e-10
    assert (mine.inequality_multipliers - other.inequality_multipliers).abs().max() < 1e-9


def test_a_singular_problem_among_regular_ones():
    Q, q, A, b, G, h = program(4, 5, 1, 12)
    Q[2] = 0.0
    G[2, :5], G[2, 5:10] = torch.eye(5, dtype=DOUBLE), -torch.eye(5, dtype=DOUBLE)  # a box, for a linear program
    h[2], b[2] = 1.0, 0.0
    G[2, 10:] = 0.0
    together = QuadraticProgram().solve(Q, q, A, b, G, h)
    assert together.converged.all()
    for i in range(4):
        alone = QuadraticProgram().solve(*(x[i : i + 1] for x in (Q, q, A, b, G, h)))
        assert (alone.y[0] - together.y[i]).abs().max() < 1e-9


def test_dependent_equalities_warn_where_the_gradient_is_one_of_many():
    Q, q, A, b = program(2, 4, 2, 0)[:4]
    A[1, 1], b[1, 1] = A[1, 0], b[1, 0]
    q.requires_grad_()
    (found,) = torch.autograd.grad(EqualityQP()(Q, q, A, b).pow(2).sum(), q)
    (alone,) = torch.autograd.grad(EqualityQP()(Q[1:], q[1:], A[1:, :1], b[1:, :1]).pow(2).sum(), q)
    assert (found[1] - alone[1]).abs().max() < 1e-10
    b.requires_grad_()
    y = EqualityQP()(Q, q.detach(), A, b)
    with pytest.warns(NumericalWarning, match="1 problem"):
        torch.autograd.grad(y.sum(), b)
