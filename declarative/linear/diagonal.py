"""The KKT system of a diagonal Hessian: nothing is formed that is larger than A."""

from __future__ import annotations

import torch
from torch import Tensor

from .contract import Factorisation, Pair, Solve, System, rank_tolerance, times
from .dense import DenseFactorisation
from .fallback import WithFallback
from .forms import Diagonal, StoredSystem
from .schur import leaves_digits, solve_factored


class DiagonalSystem(StoredSystem):
    """The system of a diagonal Hessian, given by its diagonal (batch, m), A (batch, k, m) and active (batch, k)."""

    hessian_form = Diagonal()

    def factorise(self, warn: bool = True) -> Factorisation:
        return factorise_diagonal(self.hessian, self.jacobian, self.active, "the KKT matrix" if warn else None)


class DiagonalHessianSystem(System):
    """diag(d) z = r without constraint rows, as the dense HessianSystem; z = 0 where d is."""

    def __init__(self, diagonal: Tensor) -> None:
        super().__init__(diagonal)
        self.diagonal = diagonal

    def multiply(self, z: Tensor, s: Tensor) -> Pair:
        return self.diagonal * z, s

    def factorise(self) -> Solve:
        size = self.diagonal.abs()
        regular = size > rank_tolerance(self.diagonal) * size.amax(-1, keepdim=True)
        inverse = torch.where(regular, 1 / torch.where(regular, self.diagonal, 1.0), 0.0)

        def solve(r: Tensor, t: Tensor) -> Pair:
            return inverse * r, torch.zeros_like(t)

        return solve


def factorise_diagonal(diagonal: Tensor, jacobian: Tensor, active: Tensor, name: str | None) -> Factorisation:
    """The factors for H = diag(d): elementwise where d is positive, by the dense matrix where it is not.

    Args:
        name: what a warning calls the matrix where it is singular; None for no warning.
    """

    def factorise_rest(rest: Tensor) -> DenseFactorisation:  # not worth a way of their own
        return DenseFactorisation(torch.diag_embed(diagonal[rest]), jacobian[rest], active[rest], name)

    return WithFallback(*diagonal_schur(diagonal, jacobian, active), factorise_rest)


def diagonal_schur(diagonal: Tensor, jacobian: Tensor, active: Tensor | None) -> tuple[Solve, Tensor]:
    """z = D^-1 (r - A' s) with (A D^-1 A') s = A D^-1 r - t, and for which problems this is accurate.

    Decides nothing by values, so that it can be recorded. Without ``active`` all constraints hold with equality.
    """
    mask = torch.ones_like(jacobian[..., 0]) if active is None else active.to(diagonal.dtype)
    rows = jacobian * mask.unsqueeze(-1)
    weighted = rows / diagonal.unsqueeze(1)  # A H^-1, (batch, k, m)
    complement = weighted @ rows.mT + torch.diag_embed(1 - mask)
    small, info = torch.linalg.cholesky_ex(complement)
    definite = (diagonal.amin(-1) > 0) & (diagonal.amax(-1) < torch.inf) & (mask.sum(-1) < diagonal.shape[-1])
    definite = definite & (info == 0) & leaves_digits(small, torch.diagonal(complement, dim1=-2, dim2=-1))

    def solve(r: Tensor, t: Tensor) -> Pair:
        right = times(weighted, r) - mask * t
        s = solve_factored(small, right)
        # One step of refinement: what is left of the conditioning goes into s alone, for z follows from it exactly.
        s = (s + solve_factored(small, right - times(complement, s))) * mask
        return r / diagonal - times(weighted.mT, s), s

    return solve, definite
