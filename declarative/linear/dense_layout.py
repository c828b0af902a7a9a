"""The dense layout: all entries of H and A, and the system of a Newton step by Cholesky factors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from ..kernels.dense_systems import LARGEST, solve_all_active
from ..kernels.library import available
from .contract import Pair, or_one, times
from .dense import DenseSystem, least_squares
from .forms import Full
from .layout import ActiveSolution, KktSolution, Layout, Product, StepMatrix, rows_of
from .schur import SchurReduction, solve_factored

PIVOT = 1e-15  # a pivot that cancelled to less than this fraction of what it was is zero
STIFF = 1e4  # an inequality whose barrier curves this much more than H is as good as an equality
NOTHING = 1e-12  # curvature that is less than this part of the largest may be none
SQUARED = 32  # unknowns, from which multipliers by A A' are worth a kind of system that tapes have no other use for


@dataclass(frozen=True)
class DenseLayout(Layout):
    """All entries of H and A: (batch, m, m) and (batch, k, m)."""

    hessian = Full()
    jacobian = Full()
    weights_help = True

    def hessian_values(self, pull: Product, u: Tensor) -> Tensor:
        return rows_of(pull, u, u.shape[-1])

    def jacobian_values(self, pull: Product, transpose: Callable[[], Product], u: Tensor, k: int) -> Tensor:  # noqa: ARG002
        return rows_of(pull, u, k)

    def least_curvature(
        self,
        hessian: Tensor,
        jacobian: Tensor,
        dual: Tensor,
        size: Tensor,
        p: int,
        rough: bool = False,  # noqa: ARG002
    ) -> Pair:
        values, vectors = _spectrum(hessian, jacobian, dual, size, p)
        return values[:, 0], vectors[..., 0] * size.rsqrt()

    def turned(
        self, hessian: Tensor, jacobian: Tensor, dual: Tensor, size: Tensor, p: int, slope: Tensor, reach: Tensor
    ) -> Tensor:
        """H with negative curvature along the constraints turned positive.

        Along an eigenvector with curvature c < 0 the step is that of |c|: downhill, and as long as Newton's; but a step
        from the slope (batch, m) is not longer than reach (batch,).
        """
        values, vectors = _spectrum(hessian, jacobian, dual, size, p)
        unit = size.rsqrt()
        along = times(vectors.mT, slope * unit).abs()
        longest = (vectors * unit.unsqueeze(-1)).abs().amax(-2)  # of an entry of u, for a unit along a direction
        wanted = torch.maximum(values.abs(), along * longest / reach.unsqueeze(-1))
        wanted = torch.maximum(wanted, NOTHING * values.abs().amax(-1, keepdim=True))  # what is less is rounding
        back = vectors / unit.unsqueeze(-1)
        return hessian + (back * (wanted - values).unsqueeze(-2)) @ back.mT

    def least_norm(self, jacobian: Tensor) -> Callable[[Tensor], Tensor]:
        inverse = torch.linalg.pinv(jacobian) if jacobian.shape[1] else jacobian.mT
        return lambda right: times(inverse, right)

    def least_squares(self, jacobian: Tensor, right: Tensor) -> Tensor:
        return least_squares(jacobian, right)

    def quick_least_squares(self, jacobian: Tensor, right: Tensor) -> Tensor:
        k, m = jacobian.shape[1:]
        there = self.jacobian.row_lengths(jacobian) > 0
        if k > m or m < SQUARED:
            eye = torch.eye(m, dtype=right.dtype, device=right.device).expand(len(right), -1, -1)
            _, s, trusted = self.solve_active(eye, jacobian, there, (right, torch.zeros_like(jacobian[..., 0])))
            return torch.where(trusted.unsqueeze(-1), s, torch.nan)
        square = torch.baddbmm(torch.diag_embed((~there).to(right.dtype)), jacobian, jacobian.mT)
        none = jacobian[:, :0, :k], there[:, :0]
        s, left = torch.zeros_like(jacobian[..., 0]), right
        for _ in range(2):  # the second time for the digits that the square of A has lost
            more, _, trusted = self.solve_active(square, *none, (times(jacobian, left), s[:, :0]))
            s = s + more
            left = right - times(jacobian.mT, s)
        return torch.where(trusted.unsqueeze(-1), s, torch.nan)

    def system(self, hessian: Tensor, jacobian: Tensor, active: Tensor) -> DenseSystem:
        return DenseSystem(hessian, jacobian, active)

    def solve_kkt(self, matrix: StepMatrix, right: Pair) -> KktSolution:
        """By Cholesky factors of H + primal + G' dual^-1 G + weight A'A and of its Schur complement.

        H + weight A'A is positive definite for a large weight if and only if H is so along A u = 0: Cholesky can test
        what an inertia count would.
        """
        hessian, jacobian, primal, dual, p, weight, damping = matrix
        (r, t), rows, pull = right, jacobian[:, :p], jacobian[:, p:]
        inverse = 1 / dual[:, p:]
        reduced = hessian + torch.diag_embed(primal)
        if pull.shape[1]:
            reduced = torch.baddbmm(reduced, pull.mT, inverse.unsqueeze(-1) * pull)
            r = r + times(pull.mT, inverse * t[:, p:])
        if p:
            reduced = torch.baddbmm(reduced, rows.mT * weight[:, None, None], rows)
            r = r + times(rows.mT, weight.unsqueeze(-1) * t[:, :p])
        whole, convex, room = _cholesky(reduced)
        if not p:
            z = torch.cholesky_solve(r.unsqueeze(-1), whole).squeeze(-1)
            s, independent = t[:, :0], torch.ones_like(convex)
        else:
            both = torch.linalg.solve_triangular(whole, torch.cat([rows.mT, r.unsqueeze(-1)], -1), upper=False)
            half, first = both[..., :p], both[..., p:]
            complement = torch.bmm(half.mT, half)
            if damping is not None:
                most = torch.diagonal(complement, dim1=-2, dim2=-1).amax(-1)
                complement = complement + torch.diag_embed((damping * most).unsqueeze(-1).expand(-1, p))
            small, independent, _ = _cholesky(complement)
            down = torch.cholesky_solve(torch.bmm(half.mT, first) - t[:, :p].unsqueeze(-1), small)
            z = torch.linalg.solve_triangular(whole.mT, first - torch.bmm(half, down), upper=True).squeeze(-1)
            s = down.squeeze(-1)
        if pull.shape[1]:
            s = torch.cat([s, inverse * (times(pull, z) - t[:, p:])], -1)
        return KktSolution(z, s, convex, independent, room)

    def solve_active(self, hessian: Tensor, jacobian: Tensor, active: Tensor, right: Pair) -> ActiveSolution:
        x, trusted = torch.ops.declarative.solve_dense_active(hessian, jacobian, active, *right)
        z, s = x.split([right[0].shape[-1], right[1].shape[-1]], 1)
        return ActiveSolution(z, s, trusted)


def _spectrum(hessian: Tensor, jacobian: Tensor, dual: Tensor, size: Tensor, p: int) -> Pair:
    """Curvatures along the constraints in units in which H has this size, and their directions: (batch, m, m).

    Inequalities with hardly any dual are so stiff by their barrier that they count as equalities.
    """
    unit = size.rsqrt()
    rows, pull = (x * unit.unsqueeze(-2) for x in (jacobian[:, :p], jacobian[:, p:]))
    matrix = hessian * unit.unsqueeze(-1) * unit.unsqueeze(-2)
    if pull.shape[1]:
        stiffness = 1 / dual[:, p:]
        stiff = stiffness * pull.square().sum(-1) > STIFF
        matrix = matrix + pull.mT @ (torch.where(stiff, 0.0, stiffness).unsqueeze(-1) * pull)
        rows = torch.cat([rows, pull * stiff.unsqueeze(-1)], -2)
    if rows.shape[-2]:
        rows = rows / or_one(torch.linalg.vector_norm(rows, dim=-1, keepdim=True))
        onto = torch.linalg.pinv(rows, rtol=1e-10) @ rows
        free = torch.eye(rows.shape[-1], dtype=rows.dtype, device=rows.device) - onto
        matrix = free @ matrix @ free + matrix.abs().sum(-1).amax(-1)[:, None, None] * onto
    values, vectors = torch.linalg.eigh(matrix)
    return values, vectors


def _cholesky(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The factor (of the identity where there is none), whether it is one, and what is left of the diagonal."""
    factor, info = torch.linalg.cholesky_ex(matrix)
    pivots, before = (torch.diagonal(x, dim1=-2, dim2=-1) for x in (factor, matrix))
    room = (pivots.square() / before).amin(-1) if matrix.shape[-1] else matrix.new_ones(len(matrix))
    good = (info == 0) & (room > PIVOT)
    eye = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    return torch.where(good[:, None, None], factor, eye), good, room


def _solve_active(hessian: Tensor, jacobian: Tensor, active: Tensor, r: Tensor, t: Tensor) -> Pair:
    """By Cholesky factors of H + A'A and of its Schur complement, in units in which H and A have size 1.

    One operation for torch, so that a recording can contain it: [z; s], zero where it is not to be trusted, and whether
    it is.
    """
    if r.dtype == torch.float64 and r.device.type == "cpu" and r.shape[-1] <= LARGEST and available():
        return solve_all_active(hessian, jacobian, active, r, t)
    rows = torch.where(active.unsqueeze(-1), jacobian, 0.0)
    unit = or_one(torch.diagonal(hessian, dim1=-2, dim2=-1).abs()).rsqrt()
    columns = rows * unit.unsqueeze(-2)
    length = 1 / or_one(torch.linalg.vector_norm(columns, dim=-1))
    scaled, columns = hessian * unit.unsqueeze(-1) * unit.unsqueeze(-2), columns * length.unsqueeze(-1)
    whole, definite, room = _cholesky(torch.baddbmm(scaled, columns.mT, columns))
    reduction = SchurReduction.from_factor(whole, columns, definite)
    free = (~active).to(hessian.dtype)
    small, _, rest = _cholesky(reduction.product() + torch.diag_embed(free))

    def solve(r: Tensor, t: Tensor) -> Pair:
        return reduction.solve(partial(solve_factored, small), r + times(columns.mT, t), t)

    r, t = r * unit, torch.where(active, t, 0.0) * length
    z, s = solve(r, t)
    more_z, more_s = solve(r - times(scaled, z) - times(columns.mT, s), t - times(columns, z) - free * s)
    size, change = (torch.cat(pair, -1).abs().amax(-1) for pair in ((z, s), (more_z, more_s)))
    digits = torch.finfo(z.dtype).eps ** 0.5
    trusted = (torch.minimum(room, rest) > digits) & (change <= digits * size)
    x = torch.cat([(z + more_z) * unit, (s + more_s) * length * active], -1)
    return torch.where(trusted.unsqueeze(-1), x, 0.0), trusted


_library = torch.library.Library("declarative", "FRAGMENT")
_library.define(
    "solve_dense_active(Tensor hessian, Tensor jacobian, Tensor active, Tensor r, Tensor t) -> (Tensor, Tensor)"
)
_library.impl("solve_dense_active", _solve_active, "CompositeExplicitAutograd")


def _shapes(*arguments: Tensor) -> Pair:
    *_, active, r, t = arguments
    return r.new_empty(len(r), r.shape[1] + t.shape[1]), active.new_empty(len(r))


torch.library.register_fake("declarative::solve_dense_active", _shapes, lib=_library)


DENSE = DenseLayout()
