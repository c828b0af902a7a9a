"""Linear least squares."""

from __future__ import annotations

from functools import partial
from typing import Literal

import torch
from torch import Tensor

from declarative import ClosedForm, Rule
from declarative.derivatives import Point
from declarative.linear import DenseSystem, HessianSystem
from declarative.linear.contract import System
from declarative.structure import Kind

from .layer import Inputs, Layer, require_floating, require_shape


def weighted_squares(A: Tensor, b: Tensor, w: Tensor, u: Tensor, ridge: float) -> Tensor:
    """sum_i w_i (a_i' u - b_i)^2 / 2 + ridge ||u||^2 / 2."""
    return (w * (A @ u - b).square()).sum() / 2 + ridge * u.square().sum() / 2


class LeastSquares(Layer):
    """Weighted linear least squares with an optional ridge:

        minimise sum_i w_i (a_i' u - b_i)^2 / 2 + ridge ||u||^2 / 2.

    Differentiable in A, b and w. There are no constraints, so that all rules but ``identity`` are exact.

    Shapes: A (batch, n, m), b (batch, n), w (batch, n) or (n,), by default ones -> y (batch, m). A may come without
    the batch dimension, and is then shared.

    Degenerate: where A has not full rank and there is no ridge, the solution of least norm is returned; its gradient is
    the least-norm one, with a :class:`NumericalWarning`. A weight may be zero, but not negative (``ValueError``).

    Args:
        ridge: the weight of ||u||^2 / 2.
        gradient: the rule by which it is differentiated.
        on_failure: as in :class:`DeclarativeNode`.

    Example:
        >>> import torch
        >>> from problems import LeastSquares
        >>> A = torch.tensor([[1.0, 0.0], [1.0, 1.0], [1.0, 2.0]])
        >>> LeastSquares()(A, torch.tensor([[1.0, 3.0, 5.0]])).round(decimals=4)
        tensor([[1., 2.]])
    """

    def __init__(
        self,
        ridge: float = 0.0,
        *,
        gradient: str | Rule = "exact",
        on_failure: Literal["raise", "mask"] = "raise",
    ) -> None:
        if not isinstance(ridge, int | float) or not 0 <= ridge < float("inf"):
            raise ValueError(f"ridge must be a finite number that is not negative, but is {ridge!r}.")
        super().__init__(
            partial(weighted_squares, ridge=ridge),
            solver=ClosedForm(partial(_least_squares, ridge=ridge)),
            system=partial(_system, ridge=ridge),
            start=_origin,
            gradient=gradient,
            on_failure=on_failure,
        )

    def prepare(self, *xs: Tensor) -> Inputs:
        if not 2 <= len(xs) <= 3:
            raise TypeError(f"least squares takes A, b and w, but was called with {len(xs)} inputs.")
        A, b, w = (*xs, None)[:3]
        require_shape("b", b, ("batch", "n"))
        require_floating("A", A, ("batch", "n", "m"))
        if A.dim() == 2:
            A = A.expand(b.shape[0], *A.shape)
        require_shape("A", A, ("batch", "n", "m"))
        if A.shape[:2] != b.shape:
            raise ValueError(f"A of shape {tuple(A.shape)} does not go with b of shape {tuple(b.shape)}.")
        if w is None:
            return A, b, torch.ones_like(b)
        require_floating("w", w, ("batch", "n"))
        require_shape("w", w if w.dim() == 2 else w.unsqueeze(0), ("batch", "n"))
        if w.shape not in (b.shape, b.shape[1:]):
            raise ValueError(f"w must have shape {tuple(b.shape)} or {tuple(b.shape[1:])}, but has {tuple(w.shape)}.")
        return A, b, w.expand(b.shape)


def _least_squares(A: Tensor, b: Tensor, w: Tensor, ridge: float) -> Tensor:
    if (w < 0).any():
        raise ValueError("w must not be negative.")
    n, m = A.shape[-2:]
    root = w.sqrt()
    rows, right = A * root.unsqueeze(-1), b * root
    if ridge:
        eye = torch.eye(m, dtype=A.dtype, device=A.device).expand(len(A), m, m)
        rows, right = torch.cat([rows, ridge**0.5 * eye], -2), torch.cat([right, b.new_zeros(len(b), m)], -1)
    # A NaN would make the whole batch fail; its problem is given a status by the node.
    finite = rows.isfinite().all(-1).all(-1) & right.isfinite().all(-1)
    rows = torch.where(finite[:, None, None], rows, 0.0)
    tolerance = 10 * max(n, m) * torch.finfo(A.dtype).eps
    inverse = torch.linalg.pinv(rows, rtol=tolerance)
    y = (inverse @ right.unsqueeze(-1)).squeeze(-1)
    left = right - (rows @ y.unsqueeze(-1)).squeeze(-1)
    return y + (inverse @ left.unsqueeze(-1)).squeeze(-1)


def _system(point: Point, kind: Kind, ridge: float) -> System:
    A, _, w = (x.to(point.u.dtype) for x in point.batch.unshared().xs)
    eye = torch.eye(A.shape[-1], dtype=A.dtype, device=A.device)
    hessian = A.mT @ (w.unsqueeze(-1) * A) + ridge * eye
    if kind != "full":
        return HessianSystem(hessian)
    return DenseSystem(hessian, hessian.new_zeros(point.batch.size, 0, A.shape[-1]), point.active)


def _origin(A: Tensor, b: Tensor, w: Tensor) -> Tensor:  # noqa: ARG001
    return torch.zeros_like(A[0])
