"""The linear systems: every way to solve them against dense linear algebra, whatever mixture a batch contains."""

import pytest
import torch

from declarative import NumericalWarning
from declarative.linear import (
    DenseSystem,
    DiagonalHessianSystem,
    DiagonalSystem,
    HessianSystem,
    MatrixFreeSystem,
)
from declarative.linear.correction import Equations, corrected
from declarative.linear.dense import least_squares
from declarative.linear.dense_layout import DENSE
from declarative.linear.forms import Full
from declarative.linear.indefinite import kkt_matrix
from tests.support.helpers import DOUBLE, relative

M, K = 5, 3


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def mixture(generator):
    """Five problems: definite, indefinite, singular H with a regular KKT matrix, an inactive row, badly scaled."""
    root = torch.randn(5, M, M, generator=generator, dtype=DOUBLE)
    hessian = root @ root.mT + torch.eye(M, dtype=DOUBLE)
    hessian[1] = root[1] + root[1].T
    hessian[2] = torch.diag(torch.tensor([0.0, 1.0, 2.0, 3.0, 4.0], dtype=DOUBLE))
    hessian[4] *= 1e-9
    jacobian = torch.randn(5, K, M, generator=generator, dtype=DOUBLE)
    jacobian[4, 0] *= 1e7
    active = torch.ones(5, K, dtype=torch.bool)
    active[3, 1] = False
    return hessian, jacobian, active


def dense(hessian, jacobian, active, r, t):
    mask = active.to(DOUBLE)
    matrix = kkt_matrix(hessian, jacobian * mask.unsqueeze(-1), mask)
    right = torch.cat([r, mask * t], -1)
    return torch.linalg.solve(matrix, right).split([M, K], -1)


def test_a_mixed_batch_is_solved_problem_by_problem():
    generator = torch.Generator().manual_seed(0)
    system = mixture(generator)
    r, t = torch.randn(5, M, generator=generator, dtype=DOUBLE), torch.randn(5, K, generator=generator, dtype=DOUBLE)
    for found, truth in zip(DenseSystem(*system).solve(r, t), dense(*system, r, t), strict=True):
        for i in range(5):
            assert relative(found[i], truth[i]) < 1e-9, i


def test_one_by_one_gives_the_same_as_the_batch():
    generator = torch.Generator().manual_seed(1)
    system = mixture(generator)
    r, t = torch.randn(5, M, generator=generator, dtype=DOUBLE), torch.zeros(5, K, dtype=DOUBLE)
    together = DenseSystem(*system).solve(r, t)
    for i in range(5):
        alone = DenseSystem(*(x[i : i + 1] for x in system)).solve(r[i : i + 1], t[i : i + 1])
        for mine, batch in zip(alone, together, strict=True):
            assert relative(mine[0], batch[i]) < 1e-12


def test_a_singular_matrix_gets_the_least_norm_solution_and_one_warning_that_counts():
    hessian = torch.eye(3, dtype=DOUBLE).repeat(4, 1, 1)
    jacobian = torch.tensor([[1.0, 1.0, 0.0], [2.0, 2.0, 0.0]], dtype=DOUBLE).repeat(4, 1, 1)
    jacobian[:2, 1] = torch.tensor([0.0, 1.0, 1.0])
    active = torch.ones(4, 2, dtype=torch.bool)
    r = torch.randn(4, 3, dtype=DOUBLE)
    with pytest.warns(NumericalWarning, match="2 problem") as seen:
        z, s = DenseSystem(hessian, jacobian, active).solve(r, torch.zeros(4, 2, dtype=DOUBLE))
    assert len(seen) == 1
    mask = active.to(DOUBLE)
    for i in (2, 3):
        plane = torch.tensor([1.0, 1.0, 0.0], dtype=DOUBLE)
        assert relative(z[i], r[i] - plane * (plane @ r[i]) / 2) < 1e-12
    full = torch.linalg.pinv(kkt_matrix(hessian, jacobian, mask), hermitian=True)
    assert relative(z[2:], (full @ torch.cat([r, torch.zeros(4, 2)], -1).unsqueeze(-1))[2:, :3, 0]) < 1e-10
    assert s.isfinite().all()


def test_what_counts_as_singular_does_not_depend_on_units():
    """Scaling the objective by 1e-12 and a constraint by 1e8 leaves the problem, and so z, as it was."""
    generator = torch.Generator().manual_seed(2)
    hessian, jacobian, active = mixture(generator)
    r, t = torch.randn(5, M, generator=generator, dtype=DOUBLE), torch.zeros(5, K, dtype=DOUBLE)
    z, _ = DenseSystem(hessian, jacobian, active).solve(r, t)
    scaled, _ = DenseSystem(1e-12 * hessian, 1e8 * jacobian, active).solve(1e-12 * r, t)
    assert relative(scaled, z) < 1e-9


def test_the_hessian_system_is_a_pseudo_inverse_without_a_warning():
    hessian = torch.diag(torch.tensor([0.0, 2.0, -4.0], dtype=DOUBLE))[None]
    z, s = HessianSystem(hessian).solve(torch.ones(1, 3, dtype=DOUBLE), torch.ones(1, 2, dtype=DOUBLE))
    assert relative(z, torch.tensor([[0.0, 0.5, -0.25]], dtype=DOUBLE)) < 1e-14
    assert not s.any()


def test_a_derivative_that_is_not_finite_spoils_its_own_problem_only_and_is_told():
    hessian = torch.eye(2, dtype=DOUBLE).repeat(3, 1, 1)
    hessian[1, 0, 0] = torch.nan
    with pytest.warns(NumericalWarning, match="not finite"):
        z, _ = DenseSystem(hessian, torch.ones(3, 1, 2, dtype=DOUBLE), torch.ones(3, 1, dtype=torch.bool)).solve(
            torch.ones(3, 2, dtype=DOUBLE), torch.zeros(3, 1, dtype=DOUBLE)
        )
    assert z[1].isnan().all()
    assert z[[0, 2]].isfinite().all()


def test_solutions_are_differentiable_twice_in_everything():
    generator = torch.Generator().manual_seed(3)
    hessian, jacobian, active = mixture(generator)
    r, t = torch.randn(5, M, generator=generator, dtype=DOUBLE), torch.randn(5, K, generator=generator, dtype=DOUBLE)

    def solve(hessian, jacobian, r, t):
        return DenseSystem(hessian + hessian.mT, jacobian, active[:3]).solve(r, t)

    arguments = [x[:3].clone().requires_grad_() for x in (hessian, jacobian, r, t)]
    assert torch.autograd.gradcheck(solve, arguments, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(solve, arguments, fast_mode=True)


# Every implementation of the contract


def right_hand_side(seed, count=5):
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(count, size, generator=generator, dtype=DOUBLE) for size in (M, K))


def diagonals():
    """Definite, indefinite, definite with an inactive row, indefinite along the constraints, vanishing where fixed."""
    generator = torch.Generator().manual_seed(4)
    diagonal = 0.5 + torch.rand(5, M, generator=generator, dtype=DOUBLE)
    diagonal[1, 2], diagonal[3, 4] = -3.0, -1.0
    diagonal[4, 0] = 0.0
    jacobian = torch.randn(5, K, M, generator=generator, dtype=DOUBLE)
    jacobian[3] = torch.eye(M, dtype=DOUBLE)[:K]
    active = torch.ones(5, K, dtype=torch.bool)
    active[2, 1] = False
    return diagonal, jacobian, active


def matrix_free(hessian, jacobian, active):
    return MatrixFreeSystem(
        lambda z: (hessian @ z.unsqueeze(-1)).squeeze(-1),
        lambda directions: directions @ hessian,
        jacobian,
        active,
        lambda: DenseSystem(hessian, jacobian, active),
        required=True,
    )


def definite(count=5):
    hessian, jacobian, active = mixture(torch.Generator().manual_seed(5))
    hessian[1:3] = hessian[0] + torch.eye(M, dtype=DOUBLE)
    hessian[4], jacobian[4] = hessian[3], jacobian[3]
    return hessian[:count], jacobian[:count], active[:count]


SYSTEMS = {
    "dense": lambda: (DenseSystem(*mixture(seeded(6))), mixture(seeded(6))),
    "diagonal": lambda: (DiagonalSystem(*diagonals()), (torch.diag_embed(diagonals()[0]), *diagonals()[1:])),
    "matrix-free": lambda: (matrix_free(*definite()), definite()),
}


@pytest.mark.parametrize("make", SYSTEMS.values(), ids=SYSTEMS)
def test_every_system_solves_and_multiplies_by_its_matrix(make):
    system, (hessian, jacobian, active) = make()
    r, t = right_hand_side(7)
    for found, truth in zip(system.solve(r, t), dense(hessian, jacobian, active, r, t), strict=True):
        for i in range(5):
            assert relative(found[i], truth[i]) < 1e-9, i
    z, s = right_hand_side(8)
    mask = active.to(DOUBLE)
    matrix = kkt_matrix(hessian, jacobian * mask.unsqueeze(-1), mask)
    product = (matrix @ torch.cat([z, s], -1).unsqueeze(-1)).squeeze(-1)
    for found, truth in zip(system.multiply(z, s), product.split([M, K], -1), strict=True):
        assert relative(found, truth) < 1e-14


def test_curvature_along_the_constraints_is_that_of_the_reduced_hessian():
    diagonal, jacobian, active = diagonals()
    signs = []
    for i in range(5):
        rows = jacobian[i][active[i]]
        basis = torch.linalg.svd(rows).Vh[len(rows) :]
        signs.append(int(torch.linalg.eigvalsh(basis @ torch.diag(diagonal[i]) @ basis.T)[0].sign()))
    assert signs.count(1) >= 2
    assert signs[3] == -1
    assert DiagonalSystem(diagonal, jacobian, active).factorise().curvature().tolist() == signs
    hessian = torch.diag_embed(diagonal)
    assert DenseSystem(hessian, jacobian, active).factorise().curvature().tolist() == signs
    assert matrix_free(hessian, jacobian, active).factorise().curvature().tolist() == signs


def test_a_diagonal_hessian_without_curvature_gets_the_pseudo_inverse():
    diagonal = torch.tensor([[0.0, 2.0, -4.0, 1e-17]], dtype=DOUBLE)
    z, s = DiagonalHessianSystem(diagonal).solve(torch.ones(1, 4, dtype=DOUBLE), torch.ones(1, 2, dtype=DOUBLE))
    assert torch.equal(z, torch.tensor([[0.0, 0.5, -0.25, 0.0]], dtype=DOUBLE))
    assert not s.any()


def test_conjugate_gradients_that_do_not_converge_are_replaced_and_that_is_told():
    hessian, jacobian, active = mixture(torch.Generator().manual_seed(9))
    r, t = right_hand_side(10)
    with pytest.warns(NumericalWarning, match="the dense system was solved instead"):
        found = matrix_free(hessian[1:2], jacobian[1:2], active[1:2]).solve(r[1:2], t[1:2])
    for mine, truth in zip(found, dense(hessian, jacobian, active, r, t), strict=True):
        assert relative(mine[0], truth[1]) < 1e-9


# Digits


def test_a_hessian_that_is_nearly_singular_where_a_constraint_holds_costs_no_digits():
    """The KKT matrix is well conditioned; its Schur form alone would lose six digits."""
    hessian = torch.tensor([[[1.0, 1 - 2.0**-20], [1 - 2.0**-20, 1.0]]], dtype=DOUBLE)
    jacobian, active = torch.tensor([[[1.0, -1.0]]], dtype=DOUBLE), torch.ones(1, 1, dtype=torch.bool)
    z, s = torch.tensor([[3.0, 1.0]], dtype=DOUBLE), torch.tensor([[-2.0]], dtype=DOUBLE)
    system = DenseSystem(hessian, jacobian, active)
    for found, truth in zip(system.solve(*system.multiply(z, s)), (z, s), strict=True):
        assert relative(found, truth) < 1e-14


def test_lost_digits_are_told():
    """Rounding the entries of H changes the solution by 1e-16 / 1e-10 of itself."""
    hessian, jacobian, active = definite(3)
    hessian = torch.eye(M, dtype=DOUBLE).repeat(3, 1, 1)
    hessian[:2, 0, 1] = hessian[:2, 1, 0] = 1 - 1e-10
    r, t = right_hand_side(13, 3)
    with pytest.warns(NumericalWarning, match="2 problem.*so ill-conditioned"):
        DenseSystem(hessian, jacobian, torch.zeros_like(active)).solve(r, t)


def test_least_squares_with_nearly_dependent_rows():
    generator = torch.Generator().manual_seed(11)
    rows = torch.randn(4, K, M, generator=generator, dtype=DOUBLE)
    rows[:, 1] = rows[:, 0] + 1e-4 * rows[:, 1]
    rows = rows / rows.norm(dim=-1, keepdim=True)
    right = torch.randn(4, M, generator=generator, dtype=DOUBLE)
    truth = torch.linalg.lstsq(rows.mT, right.unsqueeze(-1)).solution.squeeze(-1)
    assert relative(least_squares(rows, right), truth) < 1e-10


@pytest.mark.parametrize(("m", "k"), [(6, 3), (40, 3), (40, 45)])
@pytest.mark.parametrize(("aside", "error"), [(0.0, 1e-12), (1.0, 1e-9)])
def test_quick_multipliers_are_those_of_least_squares(m, k, aside, error):
    """Also of rows that are nearly the same, and with rows that do not count: for few and for many unknowns.

    What no row can make up for takes digits away by the square of the condition, 1e7, whatever the method.
    """
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(4, k, m, dtype=DOUBLE, generator=generator)
    rows[:, 1] = rows[:, 0] + 1e-3 * rows[:, 1]
    rows[:, 3:] = 0.0
    rows[0, 2] = 0.0
    wanted = torch.randn(4, k, dtype=DOUBLE, generator=generator) * (rows != 0).any(-1)
    beside = torch.linalg.qr(rows[:, :3].mT, mode="complete")[0][..., -1]
    right = (rows.mT @ wanted.unsqueeze(-1)).squeeze(-1) + aside * beside
    assert relative(DENSE.quick_least_squares(rows, right), wanted) < error


@pytest.mark.parametrize("m", [6, 40])
def test_quick_multipliers_of_rows_that_depend_on_each_other_are_no_numbers(m):
    rows = torch.randn(2, 3, m, dtype=DOUBLE, generator=torch.Generator().manual_seed(0))
    rows[0, 2] = rows[0, 0] + rows[0, 1]
    found = DENSE.quick_least_squares(rows, rows.sum(1))
    assert found[0].isnan().all()
    assert relative(found[1], torch.ones(3, dtype=DOUBLE)) < 1e-12


def test_an_equation_that_never_holds_keeps_no_other_from_being_corrected():
    """By a matrix of ones on the diagonal: one unknown is zero but for rounding, the other good to eight digits."""
    eye = torch.eye(2, dtype=DOUBLE).unsqueeze(0)
    none = eye.new_zeros(1, 0)
    equations = Equations(Full(), eye, Full(), eye[:, :0], none)

    def solve(r, t):
        return torch.stack([r[:, 0] * (1 + 1e-8), r[:, 1] + 1e-30 * r[:, 0]], -1), t

    found = corrected(equations, solve, torch.tensor([[3.0, 0.0]], dtype=DOUBLE), none)
    assert (found.z[0, 0] - 3).abs() < 1e-14
    assert found.error.item() > 0.5
