"""A dense KKT matrix that is indefinite or singular: LU where its pivots say that it is regular, else its spectrum.

The matrix is brought to rows and columns of unit size first, both alike, so that nothing depends on units. A singular
one gives the solution of least norm.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from .contract import Factorisation, Pair, by_rows, or_one

EQUILIBRATIONS = 8  # sweeps over the matrix; each brings the logarithms of row sizes to half of what they were


class IndefiniteFactorisation(Factorisation):
    """The factors of [H A'; A -(I - D)]: LU where the pivots say that it is regular, its spectrum where they do not."""

    def __init__(self, hessian: Tensor, rows: Tensor, mask: Tensor, eps: float) -> None:
        self.m, self.rows, self.mask = hessian.shape[-1], rows, mask
        self.rank_tolerance = 10 * (self.m + mask.shape[-1]) * eps
        matrix = kkt_matrix(hessian, rows, mask)
        self.unit, self.matrix, self.factor, self.pivots, quality = _best_units(hessian, rows, mask, matrix)
        doubtful = quality <= eps ** (2 / 3)
        self.doubtful = doubtful.nonzero().flatten()
        self.singular = torch.zeros_like(doubtful)
        if len(self.doubtful):
            self._least_norm, irregular = _factorise_spectral(
                self.matrix[self.doubtful], matrix[self.doubtful], self.rank_tolerance
            )
            self.singular = self.singular.index_copy(0, self.doubtful, irregular)
            self.factor[self.doubtful] = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)

    def __call__(self, r: Tensor, t: Tensor) -> Pair:
        right = torch.cat([r, t], -1)
        scaled = (right * self.unit).unsqueeze(-1)
        result = torch.linalg.lu_solve(self.factor, self.pivots, scaled).squeeze(-1) * self.unit
        if len(self.doubtful):
            result = result.index_copy(
                0, self.doubtful, self._least_norm(right[self.doubtful], self.unit[self.doubtful])
            )
        return result[:, : self.m], result[:, self.m :]

    @functools.cached_property
    def _spectrum(self) -> tuple[Tensor, Tensor]:
        values, vectors = torch.linalg.eigh(self.matrix)
        return values, vectors

    def curvature(self) -> Tensor:  # (batch,)
        """By the inertia: a minimum has as many negative eigenvalues as there are rows, and none that is zero.

        With rows that depend on each other, rank of them; each one that depends makes a zero eigenvalue of its own.
        """
        values = self._spectrum[0]
        zero = self.rank_tolerance * values.abs().amax(-1, keepdim=True)
        negative, vanishing = (values < -zero).sum(-1), (values.abs() <= zero).sum(-1)
        k = self.mask.shape[-1]
        rank = torch.full_like(negative, k)
        if bool(vanishing.any()):
            rank = _rank(self.matrix[:, self.m :, : self.m], self.rank_tolerance) + (self.mask == 0).sum(-1)
        flat = vanishing - (k - rank)
        return torch.where(negative > rank, -1, torch.where(flat > 0, 0, 1))

    def flat_directions(self) -> tuple[Tensor, Tensor]:
        values, vectors = self._spectrum
        zero = values.abs() <= self.rank_tolerance * values.abs().amax(-1, keepdim=True)
        directions = vectors.mT[:, :, : self.m] * self.unit[:, None, : self.m]
        present = zero & (vectors.mT[:, :, : self.m].abs().amax(-1) > 1e-6)  # and not among the multipliers alone
        return present.nonzero()[:, 0], directions[present]


def _rank(rows: Tensor, tolerance: float) -> Tensor:  # (batch, k, m) -> (batch,)
    if not rows.shape[1]:
        return torch.zeros(rows.shape[0], dtype=torch.int64, device=rows.device)
    values = torch.linalg.svdvals(rows / or_one(torch.linalg.vector_norm(rows, dim=-1, keepdim=True)))
    count: Tensor = (values > tolerance * values[:, :1]).sum(-1)
    return count


def _best_units(hessian: Tensor, rows: Tensor, mask: Tensor, matrix: Tensor) -> tuple[Tensor, ...]:
    """Units of u and of the constraints, the matrix in these, its LU factors, and how good they are, per problem.

    H says what the units of u are, so that those of f do not matter; but not where the constraints alone fix u, whose H
    may be nothing but rounding errors. Where that does not do, all entries have a say.
    """
    by_curvature = _balanced(hessian, _largest_entry)
    by_curvature = torch.cat([by_curvature, 1 / or_one(_largest_entry(rows * by_curvature.unsqueeze(-2)))], -1)
    fixed = mask.sum(-1, keepdim=True) >= hessian.shape[-1]
    if bool(fixed.any()):
        by_curvature = torch.where(fixed, _balanced(matrix, _largest_entry), by_curvature)
    best = _factorise_in(by_curvature, matrix)
    if bool((best[-1] > torch.finfo(matrix.dtype).eps ** 0.5).all()):
        return best
    by_all = _balanced(matrix, _by_mean)
    by_all = by_all * _balanced(matrix * by_all.unsqueeze(-1) * by_all.unsqueeze(-2), _largest_entry)
    other = _factorise_in(by_all, matrix)
    better = other[-1] > best[-1]
    return tuple(torch.where(by_rows(better, x), y, x) for x, y in zip(best, other, strict=True))


def _factorise_in(unit: Tensor, matrix: Tensor) -> tuple[Tensor, ...]:
    scaled = matrix * unit.unsqueeze(-1) * unit.unsqueeze(-2)
    factor, pivots, info = torch.linalg.lu_factor_ex(scaled)
    size = torch.diagonal(factor, dim1=-2, dim2=-1).abs()
    quality = torch.where(info == 0, size.amin(-1) / or_one(size.amax(-1)), 0.0).nan_to_num(0.0)
    return unit, scaled, factor, pivots, quality


def _balanced(matrix: Tensor, size_of: Callable[[Tensor], Tensor]) -> Tensor:  # (batch, n, n) -> (batch, n)
    """Factors for rows and columns alike that bring each row to size 1; their mean for empty rows."""
    size = matrix.abs()
    unit = torch.ones_like(size[..., 0])
    for _ in range(EQUILIBRATIONS):
        unit = unit / or_one(size_of(size * unit.unsqueeze(-2)) * unit).sqrt()
    empty = _largest_entry(size) == 0
    mean = (torch.where(empty, 0.0, unit.log()).sum(-1) / (~empty).sum(-1).clamp(min=1)).exp()
    return torch.where(empty, mean.unsqueeze(-1), unit)


def _by_mean(size: Tensor) -> Tensor:
    """The geometric mean of the entries of a row that are not zero."""
    present = size > 0
    logarithms = torch.where(present, size, 1.0).log()
    return (logarithms.sum(-1) / present.sum(-1).clamp(min=1)).exp()


def _largest_entry(matrix: Tensor) -> Tensor:  # (batch, n, m) -> (batch, n)
    """The largest absolute value of each row."""
    return matrix.abs().amax(-1) if matrix.shape[-1] else matrix.new_zeros(matrix.shape[:-1])


def _factorise_spectral(
    scaled: Tensor, matrix: Tensor, tolerance: float
) -> tuple[Callable[[Tensor, Tensor], Tensor], Tensor]:
    """The solution by eigenvalues, and which matrices are singular: those get the solution of least norm.

    What is singular is decided in units of the matrix's own or, where these mislead, in the user's: the rank depends on
    neither, so the larger one counts. The least norm is that of u in the user's units.
    """
    values = torch.linalg.eigvalsh(scaled)
    size = values.abs()
    regular = size > tolerance * size.amax(-1, keepdim=True)
    doubtful = ~regular.all(-1)
    plain = matrix / or_one(matrix.abs().amax((-2, -1), keepdim=True))
    own_values, own_vectors = torch.linalg.eigh(torch.where(doubtful[:, None, None], plain, scaled))
    own_size = own_values.abs()
    vanishing = (own_size <= tolerance * own_size.amax(-1, keepdim=True)).sum(-1, keepdim=True)
    order = own_size.argsort(-1).argsort(-1)
    kept = order >= torch.minimum(vanishing, (~regular).sum(-1, keepdim=True))
    singular = ~kept.all(-1)
    inverse = torch.where(kept, 1 / torch.where(kept, own_values, 1.0), 0.0)
    whole = or_one(matrix.abs().amax((-2, -1)))

    def solve(right: Tensor, unit: Tensor) -> Tensor:  # (batch, n)
        unit = torch.where(doubtful[:, None], whole.rsqrt().unsqueeze(-1), unit)
        projected = own_vectors.mT @ (right * unit).unsqueeze(-1)
        result: Tensor = (own_vectors @ (inverse.unsqueeze(-1) * projected)).squeeze(-1) * unit
        return result

    return solve, singular


def kkt_matrix(hessian: Tensor, rows: Tensor, mask: Tensor) -> Tensor:  # (batch, m + k, m + k)
    """[H, A' D; D A, -(I - D)], with the mask already applied to the rows."""
    top = torch.cat([hessian, rows.mT], -1)
    bottom = torch.cat([rows, -torch.diag_embed(1 - mask)], -1)
    return torch.cat([top, bottom], -2)
