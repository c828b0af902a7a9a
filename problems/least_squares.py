"""Linear least squares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Unpack

import torch
from torch import Tensor

from declarative.linear import Pair, Solve, System, times, warn_of
from declarative.structure import Kind, Point

from .formula import Formula
from .inputs import Inputs, Number, ScalarParameter
from .layer import Layer, Options
from .systems import StructuredSystem, largest_or_one


def weighted_squares(A: Tensor, b: Tensor, w: Tensor, ridge: Number, u: Tensor) -> Tensor:
    """sum_i w_i (a_i' u - b_i)^2 / 2 + ridge ||u||^2 / 2."""
    return (w * (A @ u - b).square()).sum() / 2 + ridge * u.square().sum() / 2


class LeastSquares(Layer):
    """Weighted linear least squares with an optional ridge:

        minimise sum_i w_i (a_i' u - b_i)^2 / 2 + ridge ||u||^2 / 2.

    Solved by the QR decomposition of the weighted rows, which serves the gradient too: A'A is never formed.
    Differentiable in A, b and w. There are no constraints, so that all rules but ``identity`` are exact.

    Shapes: A (batch, p, m), b (batch, p), w (batch, p), by default ones, ridge () or (batch,) -> y (batch, m).

    Degenerate: where A has not full rank and there is no ridge, the solution of least norm is returned; its gradient is
    the least-norm one, with a :class:`NumericalWarning`. There is one too where A is so ill-conditioned that more than
    half of the digits of the gradient are lost. A weight may be zero, but not negative (``ValueError``).

    Args:
        ridge: the weight of ||u||^2 / 2; a number, or a tensor (see :class:`Layer`).
        **options: see :class:`Layer`.

    Example:
        >>> import torch
        >>> from problems import LeastSquares
        >>> A = torch.tensor([[1.0, 0.0], [1.0, 1.0], [1.0, 2.0]])
        >>> LeastSquares()(A, torch.tensor([[1.0, 3.0, 5.0]])).round(decimals=4)
        tensor([[1., 2.]])
    """

    pure = True
    required = ("A", "b")
    optional = ("w", "ridge")

    def __init__(self, ridge: Number = 0.0, **options: Unpack[Options]) -> None:
        solver = WeightedRows(scalar=ScalarParameter("ridge", ridge, may_vanish=True))
        super().__init__(weighted_squares, solver=solver, start=_origin, **options)

    def complete(self, A: Tensor, b: Tensor, w: Tensor | None, _: Tensor | None) -> Inputs:
        return A, b, torch.ones_like(b) if w is None else w


def _origin(A: Tensor, *rest: Tensor) -> Tensor:  # noqa: ARG001
    return torch.zeros_like(A[0])


class WeightedRows(Formula):
    """The pseudo-inverse of [sqrt(w) A; sqrt(ridge) I] times [sqrt(w) b; 0], refined once."""

    def solution(self, A: Tensor, b: Tensor, w: Tensor, ridge: Tensor) -> Tensor:
        if (w < 0).any():
            raise ValueError("w must not be negative.")
        rows = _rows(A, w, ridge)
        inverse, _, _ = _pseudo_inverse(rows)
        right = torch.nn.functional.pad(w.sqrt() * b, (0, rows.shape[1] - b.shape[1]))
        y = times(inverse, right)
        return y + times(inverse, right - times(rows, y))

    def conditions(self, A: Tensor, b: Tensor, w: Tensor, ridge: Tensor, u: Tensor) -> Pair:
        """A' W (A u - b) + ridge u = 0, relative to the sizes of the numbers in it."""
        unit, pull = A / largest_or_one(A)[:, None, None], ridge / largest_or_one(A).unsqueeze(-1) * u
        slope = times(unit.mT, w * (times(A, u) - b)) + pull
        size = times(unit.mT.abs(), w * (times(A.abs(), u.abs()) + b.abs())) + pull.abs()
        stationarity = slope.abs().amax(-1) / largest_or_one(size)
        return stationarity, torch.zeros_like(stationarity)

    def system(self, point: Point, kind: Kind) -> System:  # noqa: ARG002
        A, _, w, ridge = self.arguments(point.batch, point.u)
        return GramSystem(A, w, ridge)


def _rows(A: Tensor, w: Tensor, ridge: Tensor) -> Tensor:  # (batch, p + m, m)
    """[sqrt(w) A; sqrt(ridge) I], whose squares are the objective."""
    return torch.cat([w.sqrt().unsqueeze(-1) * A, torch.diag_embed(ridge.sqrt().expand(-1, A.shape[-1]))], -2)


def _pseudo_inverse(rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # (batch, m, rows), (batch,), (batch,)
    """The pseudo-inverse, by QR where it is safe; the condition number; and whether the rank is not full.

    Either way errors grow with the condition number, and not with its square as they would with the Gram matrix. It is
    that of the rows with columns of unit length, so that units do not matter.
    """
    Q, R = torch.linalg.qr(rows)
    inverse = torch.linalg.solve_triangular(R, Q.mT, upper=True)
    lengths = torch.linalg.vector_norm(rows, dim=-2).unsqueeze(-1)
    condition = rows.shape[-1] ** 0.5 * torch.linalg.vector_norm(lengths * inverse, dim=(-2, -1))
    tolerance = 10 * max(rows.shape[1:]) * torch.finfo(rows.dtype).eps
    deficient = ~(tolerance * condition < 1)
    if deficient.any():
        finite = rows.isfinite().all(-1).all(-1)[:, None, None]  # what is not has no solution, which the node will say
        inverse[deficient] = torch.linalg.pinv(torch.where(finite, rows, 0.0)[deficient], rtol=tolerance)
    return inverse, condition, deficient


@dataclass(eq=False)
class GramSystem(StructuredSystem):
    """(A' W A + ridge I) z = r, without forming the matrix."""

    A: Tensor  # (batch, p, m)
    w: Tensor  # (batch, p)
    ridge: Tensor  # (batch, 1)

    def multiply(self, z: Tensor, s: Tensor) -> Pair:
        return times(self.A.mT, self.w * times(self.A, z)) + self.ridge * z, s

    def factorise(self) -> Solve:
        inverse, condition, deficient = _pseudo_inverse(_rows(self.A, self.w, self.ridge))
        poor = ~deficient & (condition > torch.finfo(condition.dtype).eps ** -0.5)
        if deficient.any():
            warn_of(deficient, "A has not full rank, and the system is singular", "the least-norm solution was used")
        if poor.any():
            why = "A is so ill-conditioned that more than half of the digits of the gradient are lost"
            warn_of(poor, why, "a ridge helps")
        return lambda r, t: (times(inverse, times(inverse.mT, r)), t)
