"""Eigenvalues that are nearly repeated: what rounding errors of the matrix leave of the gradient, and what is said."""

from __future__ import annotations

import warnings

import mpmath
import pytest
import torch
from torch import Tensor

from declarative import NumericalWarning
from problems import Eigenvectors

DOUBLE, SINGLE = torch.float64, torch.float32
DIGITS = 60
BAD = {DOUBLE: 3e-7, SINGLE: 1e-2}  # a relative error of the gradient that has to be told
FINE = {DOUBLE: 1e-4, SINGLE: 0.05}  # a gap that leaves nothing to tell


def matrix(gap: float, scale: float, dtype: torch.dtype, seed: int) -> Tensor:
    """Symmetric, with eigenvalues 1, 1 + gap, 2 and -1.5 times the scale; then rounded."""
    generator = torch.Generator().manual_seed(seed)
    basis = torch.linalg.qr(torch.randn(4, 4, dtype=DOUBLE, generator=generator))[0]
    X = basis @ torch.diag(torch.tensor([1.0, 1.0 + gap, 2.0, -1.5], dtype=DOUBLE)) @ basis.T
    return (scale * (X + X.T) / 2).to(dtype)


def exact_gradient(X: Tensor, v: Tensor, U: Tensor) -> Tensor:
    """That of v'u_j for the columns of U, from the eigenvectors of X to sixty digits; signs as in U."""
    with mpmath.workdps(DIGITS):
        values, vectors = mpmath.eigsy(mpmath.matrix(X.double().tolist()))
        total = mpmath.zeros(4)
        for j in range(4):
            u = vectors[:, j]
            sign = 1 if sum(float(u[i]) * float(U[i, j]) for i in range(4)) > 0 else -1
            for i in range(4):
                if i != j:
                    w = vectors[:, i]
                    pull = sum(w[a] * float(v[a, j]) for a in range(4)) * sign / (values[j] - values[i])
                    total += pull / 2 * (w * u.T + u * w.T)
        return torch.tensor([[float(total[a, b]) for b in range(4)] for a in range(4)], dtype=DOUBLE)


def answer(X: Tensor, v: Tensor) -> tuple[Tensor, Tensor, list[str]]:
    """The eigenvectors, the gradient, and what was said."""
    leaf = X.clone().requires_grad_()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        U = Eigenvectors()(leaf)
        (grad,) = torch.autograd.grad(U, leaf, v)
    assert all(issubclass(warning.category, NumericalWarning) for warning in caught)
    return U.detach(), grad, [str(warning.message) for warning in caught]


@pytest.mark.parametrize("dtype", [DOUBLE, SINGLE], ids=str)
@pytest.mark.parametrize("scale", [1e-8, 1.0, 1e8])
def test_a_gradient_that_has_lost_its_digits_is_told(dtype: torch.dtype, scale: float):
    """For gaps of any size, and nothing is said where they are large."""
    bad = 0
    for exponent in range(17 if dtype == DOUBLE else 9):
        for seed in range(3):
            X = matrix(10.0**-exponent, scale, dtype, seed)
            v = torch.randn(4, 4, dtype=DOUBLE, generator=torch.Generator().manual_seed(seed)).to(dtype)
            U, grad, said = answer(X.unsqueeze(0), v.unsqueeze(0))
            values = torch.linalg.eigvalsh(X.double())
            truth = exact_gradient(X, v, U[0].double())
            error = float((grad[0].double() - truth).norm() / truth.norm())
            if error > BAD[dtype]:
                bad += 1
                assert said, (exponent, seed, error)
            if (values[1:] - values[:-1]).min() > FINE[dtype] * values.abs().max():
                assert error < BAD[dtype]
                assert not said
    assert bad > 5


def test_only_the_problems_are_counted_that_are_affected():
    X = torch.stack([matrix(gap, 1.0, DOUBLE, 0) for gap in (0.3, 1e-11, 1e-3, 1e-12)])
    v = torch.ones(4, 4, 4, dtype=DOUBLE)
    _, _, said = answer(X, v)
    assert len(said) == 1
    assert "2 problem(s)" in said[0]


def test_a_gap_that_the_gradient_does_not_hang_on_is_not_told():
    """The loss sees the third eigenvector alone, whose eigenvalue is far from all others."""
    X, v = matrix(1e-12, 1.0, DOUBLE, 0).unsqueeze(0), torch.zeros(1, 4, 4, dtype=DOUBLE)
    v[..., -1] = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=DOUBLE)
    assert not answer(X, v)[2]
