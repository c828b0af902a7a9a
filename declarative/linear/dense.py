"""Factor the KKT matrix of every problem of a batch by the cheapest way that is safe for it.

By Cholesky and the Schur complement D A H^-1 A' D where H is positive definite (elementwise where it is diagonal),
by LU of the whole matrix where it is not, and by the least-norm solution where the matrix is singular.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import NumericalWarning
from ..torchside import value_is_hidden

Pair = tuple[Tensor, Tensor]
Solve = Callable[[Tensor, Tensor], Pair]


def times(matrix: Tensor, vector: Tensor) -> Tensor:
    """A batch of matrices times a batch of vectors."""
    return (matrix @ vector.unsqueeze(-1)).squeeze(-1)


def rank_tolerance(matrix: Tensor) -> float:
    """Eigenvalues below this fraction of the largest are zero to working precision."""
    return 10 * matrix.shape[-1] * torch.finfo(matrix.dtype).eps


def factorise_dense(hessian: Tensor, jacobian: Tensor, active: Tensor, name: str | None) -> Solve:
    """Factor the system of H (batch, m, m), A (batch, k, m) and active (batch, k).

    Args:
        name: what a warning calls the matrix where it is singular; None for no warning.
    """
    size = or_one(torch.linalg.vector_norm(hessian, torch.inf, (-2, -1)))
    scaled = hessian / size[:, None, None]
    scales = _Scales.of(scaled, size, jacobian, active)
    rows, mask = scales.rows, scales.mask
    if not scales.finite.all():
        eye = torch.eye(scaled.shape[-1], dtype=scaled.dtype, device=scaled.device)
        scaled = torch.where(scales.finite[:, None, None], scaled, eye)
    schur, definite = _factorise_schur(scaled, rows, mask)
    rest = ~definite
    whole, singular = (None, rest) if definite.all() else _factorise_whole(scaled, rows, mask, rest, name)

    def solve_scaled(r: Tensor, t: Tensor) -> Pair:
        z, s = schur(r, t)
        if whole is not None:
            z[rest], s[rest] = whole(r[rest], t[rest])
        return z, s

    return scales.restored(solve_scaled, lambda z: times(scaled, z), name, singular)


def factorise_diagonal(diagonal: Tensor, jacobian: Tensor, active: Tensor, name: str | None) -> Solve:
    """The same for H = diag(d), given by d (batch, m), without forming a matrix that is larger than A."""
    regular, definite = diagonal_schur(diagonal, jacobian, active)
    rest = ~definite
    dense = None
    if rest.any():  # not worth a way of their own
        dense = factorise_dense(torch.diag_embed(diagonal[rest]), jacobian[rest], active[rest], name)

    def solve(r: Tensor, t: Tensor) -> Pair:
        z, s = regular(r, t)
        if dense is not None:
            z[rest], s[rest] = dense(r[rest], t[rest])
        return z, s

    return solve


def diagonal_schur(diagonal: Tensor, jacobian: Tensor, active: Tensor | None) -> tuple[Solve, Tensor]:
    """z = D^-1 (r - A' s) with (A D^-1 A') s = A D^-1 r - t, and for which problems this is accurate.

    Decides nothing by values, so that it can be recorded. Without ``active`` all constraints hold with equality.
    """
    eps = torch.finfo(diagonal.dtype).eps
    definite = diagonal.amin(-1) > eps**0.5 * diagonal.amax(-1)
    if active is None and jacobian.shape[1] == 1:
        return _one_constraint(diagonal, jacobian[:, 0], definite)
    mask = torch.ones_like(jacobian[..., 0]) if active is None else active.to(diagonal.dtype)
    rows = jacobian * mask.unsqueeze(-1)
    weighted = rows / diagonal.unsqueeze(1)  # A H^-1, (batch, k, m)
    complement = weighted @ rows.mT + torch.diag_embed(1 - mask)
    small, info = torch.linalg.cholesky_ex(complement)
    if mask.shape[-1]:  # pivots compared with what they were before elimination: units do not matter
        pivots, before = (torch.diagonal(x, dim1=-2, dim2=-1) for x in (small, complement))
        definite = definite & (info == 0) & (pivots.square() > eps**0.5 * before).all(-1)

    def solve(r: Tensor, t: Tensor) -> Pair:
        right = (times(weighted, r) - mask * t).unsqueeze(-1)
        s = torch.cholesky_solve(right, small)
        # One step of refinement: what is left of the conditioning goes into s alone, for z follows from it exactly.
        s = (s + torch.cholesky_solve(right - complement @ s, small)).squeeze(-1) * mask
        return r / diagonal - times(weighted.mT, s), s

    return solve, definite


def _one_constraint(diagonal: Tensor, normal: Tensor, definite: Tensor) -> tuple[Solve, Tensor]:
    """The same for a single equality constraint."""
    weighted = normal / diagonal
    complement = (weighted * normal).sum(-1, keepdim=True)

    def solve(r: Tensor, t: Tensor) -> Pair:
        s = ((weighted * r).sum(-1, keepdim=True) - t) / complement
        return r / diagonal - weighted * s, s

    return solve, definite & (complement > 0).squeeze(-1)


@dataclass(frozen=True)
class _Scales:
    """Rows of A brought to unit length and H to unit size.

    So what counts as singular does not depend on the units of objective and constraints. Both scalings treat all of u
    alike: the least-norm z stays the least-norm z.
    """

    size: Tensor  # of H, (batch,)
    length: Tensor  # of the rows of A, (batch, k)
    rows: Tensor  # D A, scaled, (batch, k, m)
    mask: Tensor  # D, (batch, k)
    finite: Tensor  # (batch,)

    @classmethod
    def of(cls, scaled: Tensor, size: Tensor, jacobian: Tensor, active: Tensor) -> _Scales:
        mask = active.to(jacobian.dtype)
        length = or_one(torch.linalg.vector_norm(jacobian, dim=-1))
        rows = jacobian * (mask / length).unsqueeze(-1)
        # A number that is not finite makes its sum not finite; a sum can overflow too, but not of scaled entries.
        finite = (scaled.sum((-2, -1)) + rows.sum((-2, -1))).isfinite()
        if not finite.all():
            rows = torch.where(finite[:, None, None], rows, 0.0)
            mask = mask * finite.unsqueeze(-1)
            _warn(~finite, "a derivative is not finite", "their gradient is NaN")
        return cls(size, length, rows, mask, finite)

    def restored(
        self, solve_scaled: Solve, product: Callable[[Tensor], Tensor], name: str | None, singular: Tensor
    ) -> Solve:
        """The solution in the problem's own units, refined where its residual asks for it.

        What is left above half of the digits is reported, unless the matrix is singular, which has been reported.
        """
        eps = torch.finfo(self.rows.dtype).eps

        def residual(z: Tensor, s: Tensor, r: Tensor, t: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            curved, pulled = product(z), times(self.rows.mT, s)
            left, gap = r - curved - pulled, t - times(self.rows, z) + (1 - self.mask) * s
            force = torch.maximum(r.abs(), curved.abs().maximum(pulled.abs())).amax(-1)
            error = left.abs().amax(-1) / or_one(force)
            if gap.shape[-1]:
                error = torch.maximum(error, gap.abs().amax(-1) / or_one(largest_of(t, z, r)))  # H has unit size
            return left, gap, error

        def solve(r: Tensor, t: Tensor) -> Pair:
            r, t = r / self.size[:, None], t * self.mask / self.length
            z, s = solve_scaled(r, t)
            left, gap, error = residual(z, s, r, t)
            hidden = value_is_hidden(error)  # then no decision can depend on it
            if hidden or bool((error > 100 * eps).any()):
                change_z, change_s = solve_scaled(left, gap)
                z, s = z + change_z, s + change_s
                if not hidden:
                    _report_error(residual(z, s, r, t)[2], singular, name)
            if not self.finite.all():
                z = torch.where(self.finite[:, None], z, torch.nan)
            return z, s * self.size[:, None] / self.length * self.mask

        return solve


def largest_of(*vectors: Tensor) -> Tensor:  # (batch,)
    """The largest entry of any of them."""
    return torch.cat([vector.abs() for vector in vectors], -1).amax(-1)


def _report_error(error: Tensor, singular: Tensor, name: str | None) -> None:
    bad = (error > torch.finfo(error.dtype).eps ** 0.5) & ~singular
    if name is not None and bool(bad.any()):
        _warn(
            bad,
            f"{name} is so ill-conditioned that a relative residual of {float(error[bad].amax()):.0e} is left",
            "so many digits of the gradient are lost; check(node, x) tells more",
        )


def _factorise_schur(hessian: Tensor, rows: Tensor, mask: Tensor) -> tuple[Solve, Tensor]:
    """z = H^-1 (r - A' s) with (A H^-1 A') s = A H^-1 r - t, and for which problems this is accurate."""
    eps = torch.finfo(hessian.dtype).eps
    factor, info = torch.linalg.cholesky_ex(hessian)
    definite = (info == 0) & _well_conditioned(factor, eps)
    if not definite.all():
        identity = torch.eye(hessian.shape[-1], dtype=hessian.dtype, device=hessian.device)
        factor = torch.where(definite[:, None, None], factor, identity)
    half = torch.linalg.solve_triangular(factor, rows.mT, upper=False)  # L^-1 A', (batch, m, k)
    complement = half.mT @ half + torch.diag_embed(1 - mask)
    small, info = torch.linalg.cholesky_ex(complement)
    definite = definite & (info == 0) & _well_conditioned(small, eps)
    if not definite.all():
        identity = torch.eye(mask.shape[-1], dtype=hessian.dtype, device=hessian.device)
        small = torch.where(definite[:, None, None], small, identity)

    def solve(r: Tensor, t: Tensor) -> Pair:
        first = torch.linalg.solve_triangular(factor, r.unsqueeze(-1), upper=False)
        s = torch.cholesky_solve(half.mT @ first - t.unsqueeze(-1), small)
        z = torch.linalg.solve_triangular(factor.mT, first - half @ s, upper=True)
        return z.squeeze(-1), s.squeeze(-1)

    return solve, definite


def factorise_gram(rows: Tensor, mask: Tensor) -> Callable[[Tensor], Tensor]:  # (batch, k, m), (batch, k)
    """Factor A A' + (I - D) for rows of unit length, or zero; least norm where they depend on each other."""
    gram = rows @ rows.mT + torch.diag_embed(1 - mask)
    factor, info = torch.linalg.cholesky_ex(gram)
    doubtful = ~((info == 0) & _well_conditioned(factor, torch.finfo(gram.dtype).eps))
    spectral = _factorise_spectral(gram[doubtful], None) if doubtful.any() else None
    if spectral is not None:
        factor = torch.where(
            doubtful[:, None, None], torch.eye(mask.shape[-1], dtype=gram.dtype, device=gram.device), factor
        )

    def solve(right: Tensor) -> Tensor:  # (batch, k)
        result = torch.cholesky_solve(right.unsqueeze(-1), factor)
        if spectral is not None:
            result[doubtful] = spectral(right[doubtful].unsqueeze(-1))
        return result.squeeze(-1)

    return solve


def _well_conditioned(factor: Tensor, eps: float) -> Tensor:
    """Whether a Cholesky factor leaves half of the digits: past that, the whole matrix is the safer way."""
    diagonal = torch.diagonal(factor, dim1=-2, dim2=-1)
    if not diagonal.shape[-1]:
        return torch.ones(diagonal.shape[:-1], dtype=torch.bool, device=diagonal.device)
    ratio = (diagonal.amin(-1) / diagonal.amax(-1)).square()
    result: Tensor = ratio > eps**0.5
    return result


def _factorise_whole(
    hessian: Tensor, rows: Tensor, mask: Tensor, rest: Tensor, name: str | None
) -> tuple[Solve, Tensor]:
    """LU for the rest, where the pivots say that the matrix is regular, its spectrum where they do not.

    Returns:
        The solution for the rest alone, and which of all the problems are solved by their spectrum.
    """
    m = hessian.shape[-1]
    matrix = kkt_matrix(hessian[rest], rows[rest], mask[rest])
    factor, pivots, info = torch.linalg.lu_factor_ex(matrix)
    diagonal = torch.diagonal(factor, dim1=-2, dim2=-1).abs()
    doubtful = ~((info == 0) & (diagonal.amin(-1) > torch.finfo(matrix.dtype).eps ** (2 / 3) * diagonal.amax(-1)))
    spectral = _factorise_spectral(matrix[doubtful], name) if doubtful.any() else None
    if spectral is not None:
        factor[doubtful] = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)

    def solve(r: Tensor, t: Tensor) -> Pair:
        right = torch.cat([r, t], -1).unsqueeze(-1)
        result = torch.linalg.lu_solve(factor, pivots, right)
        if spectral is not None:
            result[doubtful] = spectral(right[doubtful])
        return result[:, :m, 0], result[:, m:, 0]

    return solve, rest.masked_scatter(rest, doubtful)


def _factorise_spectral(matrix: Tensor, name: str | None) -> Callable[[Tensor], Tensor]:
    values, vectors = torch.linalg.eigh(matrix)
    size = values.abs()
    regular = size > rank_tolerance(matrix) * size.amax(-1, keepdim=True)
    inverse = torch.where(regular, 1 / torch.where(regular, values, 1.0), 0.0)
    if name is not None and not regular.all():
        _warn(
            ~regular.all(-1),
            f"{name} is singular (redundant constraints, a repeated eigenvalue, a flat objective or a kink)",
            "the least-norm solution was used; check(node, x) tells more",
        )

    def solve(right: Tensor) -> Tensor:
        result: Tensor = vectors @ (inverse.unsqueeze(-1) * (vectors.mT @ right))
        return result

    return solve


def kkt_matrix(hessian: Tensor, rows: Tensor, mask: Tensor) -> Tensor:  # (batch, m + k, m + k)
    """[H, A' D; D A, -(I - D)], with the mask already applied to the rows."""
    top = torch.cat([hessian, rows.mT], -1)
    bottom = torch.cat([rows, -torch.diag_embed(1 - mask)], -1)
    return torch.cat([top, bottom], -2)


def or_one(size: Tensor) -> Tensor:
    """A scale to divide by: 1 where it is zero or not finite."""
    return torch.where((size > 0) & (size < torch.inf), size, 1.0)


def _warn(which: Tensor, why: str, so: str) -> None:
    warnings.warn(f"{int(which.sum())} problem(s) of the batch: {why}; {so}.", NumericalWarning, stacklevel=2)
