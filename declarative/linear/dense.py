"""The dense KKT matrix of every problem of a batch, factored by the cheapest way that is safe for it.

By Cholesky and the Schur complement A H^-1 A' where H is positive definite, by LU of the whole matrix where it is not,
and by its spectrum where it is singular: the solution is then the one of least norm, and a warning says so.

Nothing depends on units. Cholesky does the same whatever the units of u are, and its pivots are compared with the
entries that they started from.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from ..torchside import value_is_hidden
from .contract import Factorisation, Pair, Solve, System, Wanted, or_one, times, warn_of
from .correction import BALANCED, Equations, announce, corrected
from .fallback import WithFallback
from .forms import Full, StoredSystem
from .indefinite import IndefiniteFactorisation
from .schur import SchurReduction, leaves_digits, solve_factored

SINGULAR = "is singular (redundant constraints, a repeated eigenvalue, a flat objective or a kink)"


class DenseSystem(StoredSystem):
    """The system assembled from H (batch, m, m), A (batch, k, m) and active (batch, k)."""

    hessian_form = Full()

    def factorise(self, warn: bool = True) -> DenseFactorisation:
        name = "the KKT matrix" if warn else None
        return DenseFactorisation(self.hessian, self.jacobian, self.active, name, self.wanted)


class HessianSystem(System):
    """H z = r without constraint rows, for the approximate rules; s = 0.

    A singular H is not an accident here (for an eigenvector, the Lagrangian's Hessian always is): the rules that use
    this system are defined by the pseudo-inverse.
    """

    def __init__(self, hessian: Tensor) -> None:
        super().__init__(hessian)
        self.hessian = hessian

    def multiply(self, z: Tensor, s: Tensor) -> Pair:
        return times(self.hessian, z), s

    def factorise(self) -> Solve:
        none = self.hessian.new_zeros(self.hessian.shape[0], 0)
        rows = none.unsqueeze(-1).expand(-1, 0, self.hessian.shape[-1])
        inner = DenseFactorisation(self.hessian, rows, none.bool(), None)

        def solve(r: Tensor, t: Tensor) -> Pair:
            return inner(r, t[:, :0])[0], torch.zeros_like(t)

        return solve


class DenseFactorisation(Factorisation):
    """The factors of [H A'D; DA -(I - D)] for H (batch, m, m), A (batch, k, m) and D = diag(active), (batch, k).

    Args:
        name: what a warning calls the matrix where it is singular; None for no warning.
        wanted: what a doubtful solution is judged by.
    """

    def __init__(
        self, hessian: Tensor, jacobian: Tensor, active: Tensor, name: str | None, wanted: Wanted | None = None
    ) -> None:
        self.name, self.wanted = name, wanted
        self.eps = torch.finfo(hessian.dtype).eps  # of the entries; they are computed with in double precision
        self.hessian, self.rows, self.finite = _finite_part(hessian.double(), jacobian.double(), active)
        self.mask = (active & self.finite.unsqueeze(-1)).to(self.hessian.dtype)
        self.equations = Equations(Full(), self.hessian, Full(), self.rows, 1 - self.mask)
        self._factorise()
        if name is not None and not self.finite.all():
            warn_of(~self.finite, "a derivative is not finite", "their gradient is NaN")

    def _factorise(self) -> None:
        hessian, rows, mask, eps = self.hessian, self.rows, self.mask, self.eps
        diagonal = torch.diagonal(hessian, dim1=-2, dim2=-1)
        self.unit = torch.where(diagonal > 0, diagonal, 1.0).rsqrt()  # of u, (batch, m): then H has a unit diagonal
        columns = rows * self.unit.unsqueeze(-2)
        self.length = or_one(torch.linalg.vector_norm(columns, dim=-1))  # (batch, k)
        scaled = hessian * self.unit.unsqueeze(-1) * self.unit.unsqueeze(-2)
        schur, definite = _factorise_schur(scaled, columns / self.length.unsqueeze(-1), mask, eps)
        self._factors = WithFallback(partial(_in_units, schur, self.unit, self.length), definite, self._eliminate)

    def _eliminate(self, which: Tensor) -> IndefiniteFactorisation:
        """The factors of the whole matrix of some problems."""
        return IndefiniteFactorisation(self.hessian[which], self.rows[which], self.mask[which], self.eps)

    def curvature(self) -> Tensor:
        return self._factors.curvature()

    def flat_directions(self) -> tuple[Tensor, Tensor]:
        return self._factors.flat_directions()

    def singular(self) -> Tensor:  # (batch,)
        """Which matrices have no inverse."""
        none, rest = torch.zeros_like(self.finite), self._factors.rest
        return none.index_copy(0, rest, self._factors.fallback.singular) if len(rest) else none

    def leaves_a_choice(self) -> Tensor:  # (batch,)
        """Which matrices have many solutions, of which one that differs may be another answer to what is asked."""
        return self.singular()

    def __call__(self, r: Tensor, t: Tensor) -> Pair:
        dtype, r, t = r.dtype, r.to(self.mask.dtype), t.to(self.mask.dtype) * self.mask
        if value_is_hidden(r):
            z, s = self._factors(r, t)
            change_z, change_s = self._factors(*self.equations.left(z, s, r, t))
            z, s = z + change_z, s + change_s
        else:
            z, s = self._solve(r, t)
        if not self.finite.all():
            z = torch.where(self.finite[:, None], z, torch.nan)
        return z.to(dtype), (s * self.mask).to(dtype)

    def _solve(self, r: Tensor, t: Tensor) -> Pair:
        units = self.unit, 1 / self.length
        found = corrected(self.equations, self._factors, r, t, None if self.name is None else units)
        again = ((found.error > BALANCED * self.eps) & self._factors.accurate).nonzero().flatten()
        if len(again):  # the Schur form has lost more than it should
            found = found.put(again, corrected(self.equations.take(again), self._eliminate(again), r[again], t[again]))
        if self.name is not None:
            singular, words = self.leaves_a_choice() & self.finite, (self.name, SINGULAR)
            announce(self.equations, self._factors, found, (r, t), singular, units, self.eps, words, self.wanted)
        return found.z, found.s


def _in_units(solve: Solve, unit: Tensor, length: Tensor, r: Tensor, t: Tensor) -> Pair:
    """The solution by factors of H in other units of u, (batch, m), and rows of other lengths, (batch, k)."""
    z, s = solve(r * unit, t / length)
    return z * unit, s / length


def _finite_part(hessian: Tensor, jacobian: Tensor, active: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """H and DA with problems blanked out that are not finite, and which are.

    Curvature along an unknown that an active constraint fixes by itself never matters, even where it is infinite.
    """
    rows = torch.where(active.unsqueeze(-1), jacobian, 0.0)
    finite = (hessian.sum((-2, -1)) + rows.sum((-2, -1))).isfinite()
    if finite.all():
        return hessian, rows, finite
    alone = (rows != 0).sum(-1, keepdim=True) == 1
    fixed = ((rows != 0) & alone).any(-2)  # (batch, m)
    free = ~(fixed.unsqueeze(-1) | fixed.unsqueeze(-2))
    eye = torch.eye(hessian.shape[-1], dtype=hessian.dtype, device=hessian.device)
    repaired = torch.where(free, hessian, eye)
    hessian = torch.where(finite[:, None, None], hessian, repaired)
    finite = hessian.isfinite().all(-1).all(-1) & rows.isfinite().all(-1).all(-1)
    keep = finite[:, None, None]
    return torch.where(keep, hessian, eye), torch.where(keep, rows, 0.0), finite


def _factorise_schur(hessian: Tensor, rows: Tensor, mask: Tensor, eps: float) -> tuple[Solve, Tensor]:
    """z = H^-1 (r - A' s) with (A H^-1 A') s = A H^-1 r - t, and for which problems this is accurate.

    With as many constraints as unknowns z follows from them alone, and not from a small H by cancellation.
    """
    factor, info = torch.linalg.cholesky_ex(hessian)
    before = torch.diagonal(hessian, dim1=-2, dim2=-1)
    definite = (info == 0) & leaves_digits(factor, before, eps) & (mask.sum(-1) < hessian.shape[-1])
    if not definite.all():
        identity = torch.eye(hessian.shape[-1], dtype=hessian.dtype, device=hessian.device)
        factor = torch.where(definite[:, None, None], factor, identity)
    reduction = SchurReduction.from_factor(factor, rows, definite)
    complement = reduction.product() + torch.diag_embed(1 - mask)
    small, info = torch.linalg.cholesky_ex(complement)
    definite = definite & (info == 0) & leaves_digits(small, torch.diagonal(complement, dim1=-2, dim2=-1), eps)
    if not definite.all():
        identity = torch.eye(mask.shape[-1], dtype=hessian.dtype, device=hessian.device)
        small = torch.where(definite[:, None, None], small, identity)
    return partial(reduction.solve, partial(solve_factored, small)), definite


def least_squares(rows: Tensor, right: Tensor) -> Tensor:  # (batch, k, m), (batch, m) -> (batch, k)
    """The least-squares, least-norm solution of A' l = right, for rows of unit length, or zero."""
    gram = rows @ rows.mT + torch.diag_embed((rows.abs().amax(-1) == 0).to(rows.dtype))
    solve, none = HessianSystem(gram).factorise(), right[:, :0]
    first = solve(times(rows, right), none)[0]
    # A second pass makes up for the squared condition number of the Gram matrix.
    return first + solve(times(rows, right - times(rows.mT, first)), none)[0]
