"""The linear systems: every way to solve them against dense linear algebra, whatever mixture a batch contains."""

import pytest
import torch

from declarative import NumericalWarning
from declarative.linear import DenseSystem, HessianSystem
from declarative.linear.dense import kkt_matrix
from tests.support.helpers import DOUBLE, relative

M, K = 5, 3


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
    assert torch.autograd.gradgradcheck(solve, arguments)
