"""The KKT system of a diagonal Hessian: nothing is formed that is larger than A."""

from __future__ import annotations

import torch
from torch import Tensor

from .contract import Pair, Solve, System, bordered, rank_tolerance, times
from .dense import DenseFactorisation
from .forms import Diagonal, StoredSystem
from .schur import leaves_digits, solve_factored


class DiagonalSystem(StoredSystem):
    """The system of a diagonal Hessian, given by its diagonal (batch, m), A (batch, k, m) and active (batch, k)."""

    form = Diagonal()

    def multiply(self, z: Tensor, s: Tensor) -> Pair:
        return bordered(self.hessian * z, self.jacobian, self.active, z, s)

    def factorise(self, warn: bool = True) -> DiagonalFactorisation:
        return DiagonalFactorisation(self.hessian, self.jacobian, self.active, "the KKT matrix" if warn else None)


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


class DiagonalFactorisation:
    """The factors for H = diag(d): elementwise where d is positive, by the dense matrix where it is not.

    Args:
        name: what a warning calls the matrix where it is singular; None for no warning.
    """

    def __init__(self, diagonal: Tensor, jacobian: Tensor, active: Tensor, name: str | None) -> None:
        self._regular, definite = diagonal_schur(diagonal, jacobian, active)
        self.size = len(diagonal)
        self.rest = (~definite).nonzero().flatten()
        self._dense = None
        if len(self.rest):  # not worth a way of their own
            matrix = torch.diag_embed(diagonal[self.rest])
            self._dense = DenseFactorisation(matrix, jacobian[self.rest], active[self.rest], name)

    def curvature(self) -> Tensor:  # (batch,)
        """Along the constraints: 1 where it is positive, 0 where it vanishes in some directions, -1 where negative."""
        signs = torch.ones(self.size, dtype=torch.int64, device=self.rest.device)
        return signs if self._dense is None else signs.index_copy(0, self.rest, self._dense.curvature())

    def flat_directions(self) -> tuple[Tensor, Tensor]:  # (count,), (count, m)
        """The problems whose curvature vanishes in some directions, and one such direction for each entry."""
        assert self._dense is not None  # there are none otherwise
        problems, directions = self._dense.flat_directions()
        return self.rest[problems], directions

    def __call__(self, r: Tensor, t: Tensor) -> Pair:
        z, s = self._regular(r, t)
        if self._dense is not None:
            z_rest, s_rest = self._dense(r[self.rest], t[self.rest])
            z, s = z.index_copy(0, self.rest, z_rest), s.index_copy(0, self.rest, s_rest)
        return z, s


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
