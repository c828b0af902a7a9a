"""The dense KKT matrix of every problem of a batch, factored by the cheapest way that is safe for it.

By Cholesky and the Schur complement A H^-1 A' where H is positive definite, by LU of the whole matrix where it is not,
and by its spectrum where it is singular: the solution is then the one of least norm, and a warning says so.

Nothing depends on units. Cholesky does the same whatever the units of u are, and its pivots are compared with the
entries that they started from; the whole matrix is brought to rows and columns of unit size first, both alike.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from ..torchside import value_is_hidden
from .contract import Pair, Solve, System, bordered, by_rows, or_one, times, warn_of
from .forms import Full, StoredSystem
from .schur import SchurReduction, leaves_digits, solve_factored

EQUILIBRATIONS = 8  # sweeps over the matrix; each brings the logarithms of row sizes to half of what they were
SINGULAR = "is singular (redundant constraints, a repeated eigenvalue, a flat objective or a kink)"


class DenseSystem(StoredSystem):
    """The system assembled from H (batch, m, m), A (batch, k, m) and active (batch, k)."""

    form = Full()

    def multiply(self, z: Tensor, s: Tensor) -> Pair:
        return bordered(times(self.hessian, z), self.jacobian, self.active, z, s)

    def factorise(self, warn: bool = True) -> DenseFactorisation:
        return DenseFactorisation(self.hessian, self.jacobian, self.active, "the KKT matrix" if warn else None)


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


class DenseFactorisation:
    """The factors of [H A'D; DA -(I - D)] for H (batch, m, m), A (batch, k, m) and D = diag(active), (batch, k).

    Args:
        name: what a warning calls the matrix where it is singular; None for no warning.
    """

    def __init__(self, hessian: Tensor, jacobian: Tensor, active: Tensor, name: str | None) -> None:
        self.name = name
        self.eps = torch.finfo(hessian.dtype).eps  # of the entries; they are computed with in double precision
        self.hessian, self.rows, self.finite = _finite_part(hessian.double(), jacobian.double(), active)
        self.mask = (active & self.finite.unsqueeze(-1)).to(self.hessian.dtype)
        self._factorise()
        if name is not None:
            self._announce(name)

    def _announce(self, name: str) -> None:
        if not self.finite.all():
            warn_of(~self.finite, "a derivative is not finite", "their gradient is NaN")
        if bool((singular := self.singular()).any()):
            why, so = f"{name} {SINGULAR}", "the least-norm solution was used; check(node, x) tells more"
            warn_of(singular, why, so)

    def _factorise(self) -> None:
        diagonal = torch.diagonal(self.hessian, dim1=-2, dim2=-1)
        self.unit = torch.where(diagonal > 0, diagonal, 1.0).rsqrt()  # of u, (batch, m): then H has a unit diagonal
        scaled = self.hessian * self.unit.unsqueeze(-1) * self.unit.unsqueeze(-2)
        columns = self.rows * self.unit.unsqueeze(-2)
        self.length = or_one(torch.linalg.vector_norm(columns, dim=-1))  # (batch, k)
        self.scaled, self.scaled_rows = scaled, columns / self.length.unsqueeze(-1)
        self._schur, self.definite = _factorise_schur(scaled, self.scaled_rows, self.mask, self.eps)
        self.rest = (~self.definite).nonzero().flatten()

    @functools.cached_property
    def _whole(self) -> Whole:
        return Whole(self.hessian[self.rest], self.rows[self.rest], self.mask[self.rest], self.eps)

    def curvature(self) -> Tensor:  # (batch,)
        """Along the constraints: 1 where it is positive, 0 where it vanishes in some directions, -1 where negative."""
        signs = torch.ones_like(self.rest.new_zeros(len(self.mask)))
        return signs.index_copy(0, self.rest, self._whole.curvature()) if len(self.rest) else signs

    def flat_directions(self) -> tuple[Tensor, Tensor]:  # (count,), (count, m)
        """The problems whose curvature vanishes in some directions, and one such direction for each entry."""
        problems, directions = self._whole.flat_directions()
        return self.rest[problems], directions

    def singular(self) -> Tensor:  # (batch,)
        """Which matrices have no inverse."""
        none = torch.zeros_like(self.finite)
        return none.index_copy(0, self.rest, self._whole.singular) if len(self.rest) else none

    def __call__(self, r: Tensor, t: Tensor) -> Pair:
        dtype, r, t = r.dtype, r.to(self.mask.dtype), t.to(self.mask.dtype) * self.mask
        z, s = self._solve(r, t)
        # Once more for what is left: that mends the last digits, and its size says how many digits were lost.
        pulled = times(self.rows.mT, s)
        left, gap = r - times(self.hessian, z) - pulled, t - times(self.rows, z)
        change_z, change_s = self._solve(left, gap * self.mask)
        if not value_is_hidden(r):
            self._report_lost_digits(z, s, change_z, change_s)
        z, s = z + change_z, (s + change_s) * self.mask
        if not self.finite.all():
            z = torch.where(self.finite[:, None], z, torch.nan)
        return z.to(dtype), s.to(dtype)

    def _solve(self, r: Tensor, t: Tensor) -> Pair:
        z, s = self._schur(r * self.unit, t / self.length)
        z, s = z * self.unit, s / self.length
        if len(self.rest):
            z_rest, s_rest = self._whole(r[self.rest], t[self.rest])
            z, s = z.index_copy(0, self.rest, z_rest), s.index_copy(0, self.rest, s_rest)
        return z, s

    def _report_lost_digits(self, z: Tensor, s: Tensor, change_z: Tensor, change_s: Tensor) -> None:
        if self.name is None:
            return
        size, change = (
            torch.cat([p / self.unit, q * self.length], -1).abs().amax(-1) for p, q in ((z, s), (change_z, change_s))
        )
        lost = change / or_one(size)
        bad = (lost > self.eps**0.5) & self.finite
        bad = bad & ~self.singular() if bool(bad.any()) else bad
        if bool(bad.any()):
            warn_of(
                bad,
                f"{self.name} is so ill-conditioned that its solution is only good to {float(lost[bad].amax()):.0e}",
                "so many digits of the gradient are lost; check(node, x) tells more",
            )


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
    return functools.partial(reduction.solve, functools.partial(solve_factored, small)), definite


class Whole:
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
    by_curvature = _balanced(hessian, _by_largest)
    by_curvature = torch.cat([by_curvature, 1 / or_one(largest_entry(rows * by_curvature.unsqueeze(-2)))], -1)
    fixed = mask.sum(-1, keepdim=True) >= hessian.shape[-1]
    if bool(fixed.any()):
        by_curvature = torch.where(fixed, _balanced(matrix, _by_largest), by_curvature)
    best = _factorise_in(by_curvature, matrix)
    if bool((best[-1] > torch.finfo(matrix.dtype).eps ** 0.5).all()):
        return best
    by_all = _balanced(matrix, _by_mean)
    by_all = by_all * _balanced(matrix * by_all.unsqueeze(-1) * by_all.unsqueeze(-2), _by_largest)
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
    empty = largest_entry(size) == 0
    mean = (torch.where(empty, 0.0, unit.log()).sum(-1) / (~empty).sum(-1).clamp(min=1)).exp()
    return torch.where(empty, mean.unsqueeze(-1), unit)


def _by_largest(size: Tensor) -> Tensor:
    return largest_entry(size)


def _by_mean(size: Tensor) -> Tensor:
    """The geometric mean of the entries of a row that are not zero."""
    present = size > 0
    logarithms = torch.where(present, size, 1.0).log()
    return (logarithms.sum(-1) / present.sum(-1).clamp(min=1)).exp()


def largest_entry(matrix: Tensor) -> Tensor:  # (batch, n, m) -> (batch, n)
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


def least_squares(rows: Tensor, right: Tensor) -> Tensor:  # (batch, k, m), (batch, m) -> (batch, k)
    """The least-squares, least-norm solution of A' l = right, for rows of unit length, or zero."""
    gram = rows @ rows.mT + torch.diag_embed((rows.abs().amax(-1) == 0).to(rows.dtype))
    none = torch.zeros_like(rows[:, :0])
    factor = DenseFactorisation(gram, none.new_zeros(*gram.shape[:1], 0, gram.shape[-1]), none[..., 0].bool(), None)
    empty = right[:, :0]
    first = factor(times(rows, right), empty)[0]
    # A second pass makes up for the squared condition number of the Gram matrix.
    return first + factor(times(rows, right - times(rows.mT, first)), empty)[0]
