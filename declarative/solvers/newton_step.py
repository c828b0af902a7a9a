"""One step of the batched Newton method: the local model, its regularised factorisation, and the step that follows.

Notation, here and in ``newton.py``: L = f + y' c with c = [h; g], slacks s > 0 for the inequalities, so that the
constraint residual is [h; g + s] and the multipliers y_g of inequalities are positive.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from ..linear.dense import Pair, times
from ..optimality import largest

TRIES = 30  # of ever larger regularisation
PIVOT = 1e-13  # a pivot that cancelled to less than this fraction is zero
SADDLE = 1e-6  # a curvature that needs more than this, relative to the Hessian's size, is really negative


class Rows:
    """A dataclass of tensors with one row per problem."""

    def take(self, rows: Tensor) -> Self:
        """The problems at these positions."""
        return type(self)(**{name: x[rows] for name, x in vars(self).items()})

    def put(self, rows: Tensor, part: Self) -> Self:
        """The same, with these problems replaced."""
        return type(self)(**{name: x.index_copy(0, rows, getattr(part, name)) for name, x in vars(self).items()})

    def where(self, chosen: Tensor, other: Self) -> Self:
        """Itself where chosen, the other elsewhere."""
        mixed = {}
        for name, x in vars(self).items():
            mixed[name] = torch.where(chosen.view(-1, *(1,) * (x.dim() - 1)), x, getattr(other, name))
        return type(self)(**mixed)


@dataclass(frozen=True)
class Model(Rows):
    """The problem's values and derivatives at the current point."""

    objective: Tensor  # (batch,)
    gradient: Tensor  # of f, (batch, m)
    values: Tensor  # c, (batch, k)
    jacobian: Tensor  # (batch, k, m)
    hessian: Tensor  # of L, (batch, m, m)
    y: Tensor  # (batch, k)
    s: Tensor  # (batch, q)

    @property
    def p(self) -> int:
        """The number of equalities."""
        return self.y.shape[-1] - self.s.shape[-1]

    def slope(self) -> Tensor:  # (batch, m)
        """D_U L."""
        return self.gradient + times(self.jacobian.mT, self.y)

    def residual(self) -> Tensor:  # (batch, k)
        """[h; g + s]."""
        return torch.cat([self.values[:, : self.p], self.values[:, self.p :] + self.s], -1)

    def stationarity(self) -> Tensor:
        """|D_U L| relative to the forces that balance in it."""
        force = times(self.jacobian.mT.abs(), self.y.abs()).amax(-1)
        return self.slope().abs().amax(-1) / torch.maximum(self.gradient.abs().amax(-1), force).clamp(min=1.0)

    def violation(self) -> Tensor:
        """The largest violation of a constraint."""
        return largest(self.violated().abs())

    def violated(self) -> Tensor:  # (batch, k)
        """h, and g where it is positive."""
        return torch.cat([self.values[:, : self.p], self.values[:, self.p :].clamp(min=0.0)], -1)

    def complementarity(self, barrier: Tensor | None = None) -> Tensor:
        """The largest deviation of s y from the barrier parameter (from zero without one), slacks that lag included."""
        target = 0.0 if barrier is None else barrier.unsqueeze(-1)
        lag = torch.minimum(self.s, (self.values[:, self.p :] + self.s).abs())
        product = self.s * self.y[:, self.p :] - target
        return torch.maximum(largest(product.abs()), largest(lag))

    def violation_is_stationary(self) -> Tensor:
        """Whether the violation cannot be reduced to first order."""
        wrong = self.violated()
        slope = times(self.jacobian.mT, wrong).abs().amax(-1)
        return slope <= 1e-7 * largest(wrong.abs()) * largest(self.jacobian.abs().amax(-1)).clamp(min=1e-3)

    def finite(self) -> Tensor:
        """Whether all values and first and second derivatives are numbers: if one is not, neither is their sum."""
        total = self.objective + self.gradient.sum(-1) + self.values.sum(-1)
        return (total + self.jacobian.sum((-2, -1)) + self.hessian.sum((-2, -1))).isfinite()


@dataclass(frozen=True)
class Step(Rows):
    """A change of u, s and y."""

    u: Tensor
    s: Tensor
    y: Tensor


@dataclass(frozen=True)
class Factor(Rows):
    """Cholesky factors of the condensed Hessian and of the Schur complement of the equalities."""

    whole: Tensor  # of H + d I + G' (Y/S) G + weight A'A, (batch, m, m)
    half: Tensor  # whole^-1 A', (batch, m, p)
    small: Tensor  # of A (...)^-1 A', (batch, p, p)
    weight: Tensor  # (batch,)
    delta: Tensor  # d, (batch,)
    damping: Tensor  # of the step towards the equalities, relative, (batch,)
    size: Tensor  # the scale of the Hessian, (batch,)

    def indefinite(self) -> Tensor:
        """Whether the Hessian has negative curvature along the constraints."""
        return self.delta > SADDLE * self.size

    def damped(self, damping: Tensor) -> Factor:
        """The same with a step towards the equalities that is damped by this much, relative, as Levenberg's."""
        small, damping = _factorise_complement(self.half.mT @ self.half, damping)
        return replace(self, small=small, damping=damping)

    def solve(self, model: Model, barrier: Tensor, residual: Tensor) -> Step:
        """The Newton step for a given value of the constraint residual [h; g + s]."""
        p = model.p
        rows, pull = model.jacobian[:, :p], model.jacobian[:, p:]
        y, s = model.y[:, p:], model.s
        inner = residual[:, p:] - s + barrier.unsqueeze(-1) / y  # g + barrier / y
        right = (
            -model.slope() - times(pull.mT, y / s * inner) - times(rows.mT, self.weight.unsqueeze(-1) * residual[:, :p])
        )
        first = torch.linalg.solve_triangular(self.whole, right.unsqueeze(-1), upper=False)
        dy = torch.cholesky_solve(self.half.mT @ first + residual[:, :p].unsqueeze(-1), self.small)
        du = torch.linalg.solve_triangular(self.whole.mT, first - self.half @ dy, upper=True).squeeze(-1)
        change = times(pull, du)
        return Step(u=du, s=-residual[:, p:] - change, y=torch.cat([dy.squeeze(-1), y / s * (change + inner)], -1))


@dataclass(frozen=True)
class Kept(Rows):
    """The last factorisation of a problem without inequalities: that of its KKT matrix, in scaled units."""

    whole: Tensor
    half: Tensor
    small: Tensor
    weight: Tensor
    objective_scale: Tensor  # (batch,)
    row_scale: Tensor  # (batch, p)

    def solve_system(self, r: Tensor, t: Tensor) -> Pair:
        """[H A'; A 0] [z; s] = [r; t], in the problem's own units."""
        scale = self.objective_scale.unsqueeze(-1)
        right, target = (scale * r).unsqueeze(-1), (self.row_scale * t).unsqueeze(-1)
        first = torch.linalg.solve_triangular(self.whole, right, upper=False)
        first = first + self.weight[:, None, None] * (self.half @ target)
        s = torch.cholesky_solve(self.half.mT @ first - target, self.small)
        z = torch.linalg.solve_triangular(self.whole.mT, first - self.half @ s, upper=True)
        return z.squeeze(-1), s.squeeze(-1) * self.row_scale / scale


def factorise(model: Model, last: Tensor, refused: Tensor, curved: Tensor) -> Factor:
    """Factor the step's system with the least regularisation that makes it a step towards a minimum.

    H + weight A'A is positive definite for a large weight if and only if H is so along A u = 0, and adding the weight
    changes nothing in the solution: Cholesky can test what an inertia count would.

    Args:
        model: the problems.
        last: the regularisation that each needed in its last iteration, (batch,).
        refused: whether the last step was refused, so that at least that much is to be used, (batch,).
        curved: whether the Hessian was not positive definite without a weight in the last iteration, (batch,).
    """
    p = model.p
    rows, pull = model.jacobian[:, :p], model.jacobian[:, p:]
    condensed = model.hessian
    if model.s.shape[-1]:
        condensed = condensed + pull.mT @ ((model.y[:, p:] / model.s).unsqueeze(-1) * pull)
    size = scale_of(model)
    unit = size / rows.square().sum(-2).amax(-1).clamp(min=1e-8)  # the largest entry of A'A is on its diagonal
    delta = torch.where(refused, last, 0.0)
    weight = torch.where(curved, unit, 0.0)  # most Hessians are positive definite without
    whole, good = _cholesky(_regularised(condensed, rows, delta, weight))
    failed = ~good
    for attempt in range(TRIES):
        if not failed.any():
            break
        if attempt:
            index = failed.nonzero().flatten()
            factor, good = _cholesky(_regularised(condensed[index], rows[index], delta[index], weight[index]))
            whole[index[good]] = factor[good]
            failed[index[good]] = False
        if attempt < 2:  # a larger weight may be all that is missing
            weight = torch.where(failed, torch.where(weight == 0, unit, 1e4 * unit), weight)
        else:
            first = torch.maximum(1e-8 * size, last / 8)
            delta = torch.where(failed, torch.where(delta == 0, first, 8 * delta), delta)
    if failed.any():
        eye = torch.eye(condensed.shape[-1], dtype=condensed.dtype, device=condensed.device)
        whole = torch.where(failed[:, None, None], eye, whole)
    half = torch.linalg.solve_triangular(whole, rows.mT, upper=False)
    small, damping = _factorise_complement(half.mT @ half, torch.zeros_like(size))
    return Factor(whole=whole, half=half, small=small, weight=weight, delta=delta, damping=damping, size=size)


def _regularised(hessian: Tensor, rows: Tensor, delta: Tensor, weight: Tensor) -> Tensor:
    """H + d I + weight A'A, in one pass."""
    weighted = rows.shape[1] and bool(weight.any())
    matrix = torch.baddbmm(hessian, rows.mT * weight[:, None, None], rows) if weighted else hessian.clone()
    torch.diagonal(matrix, dim1=-2, dim2=-1).add_(delta.unsqueeze(-1))
    return matrix


def _cholesky(matrix: Tensor) -> Pair:
    """The factor, and whether it is one; pivots are compared entry by entry: units do not matter."""
    factor, info = torch.linalg.cholesky_ex(matrix)
    pivots, before = (torch.diagonal(x, dim1=-2, dim2=-1) for x in (factor, matrix))
    return factor, (info == 0) & (pivots.square() > PIVOT * before).all(-1)


def _factorise_complement(complement: Tensor, damping: Tensor) -> Pair:  # (batch, p, p), (batch,)
    """Cholesky with at least this relative damping, and more where the equalities depend on each other."""
    p = complement.shape[-1]
    if not p:
        return complement, damping
    eye = torch.eye(p, dtype=complement.dtype, device=complement.device)
    small = eye.expand_as(complement)
    trace = torch.diagonal(complement, dim1=-2, dim2=-1).sum(-1).clamp(min=1e-8)
    failed, used = torch.ones_like(trace, dtype=torch.bool), torch.ones_like(damping)
    for least in (0.0, 1e-12, 1e-9, 1e-6, 1.0):
        jitter = trace * damping.clamp(min=least)
        factor, info = torch.linalg.cholesky_ex(complement + jitter[:, None, None] * eye)
        pivots = torch.diagonal(factor, dim1=-2, dim2=-1)
        good = failed & (info == 0) & (pivots.amin(-1) > 3e-7 * pivots.amax(-1))  # and not a rounding error's root
        small = torch.where(good[:, None, None], factor, small)
        used = torch.where(good, damping.clamp(min=least), used)
        failed = failed & ~good
        if not failed.any():
            break
    return small, used


def scale_of(model: Model) -> Tensor:  # (batch,)
    """The size of the Hessian; where it vanishes, a small part of the gradient's, so that a step stays within reach."""
    hessian = torch.linalg.vector_norm(model.hessian, torch.inf, (-2, -1))
    return torch.maximum(hessian, 1e-3 * model.slope().abs().amax(-1)).clamp(min=1e-8)
