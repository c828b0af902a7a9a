"""The nearest rotation to a matrix."""

from __future__ import annotations

import warnings
from typing import Literal

import torch
from torch import Tensor

from declarative import ClosedForm, NumericalWarning, Rule
from declarative.derivatives import Point
from declarative.linear.contract import Pair, Solve, System, rank_tolerance
from declarative.structure import Kind

from .layer import Inputs, Layer, only_input
from .sphere import squared_distance
from .systems import DiagonalSystem


def orthogonality(X: Tensor, R: Tensor) -> Tensor:  # noqa: ARG001
    """The upper triangle of (R' R - I) / 2, diagonal included."""
    d = R.shape[-1]
    rows, columns = torch.triu_indices(d, d, device=R.device)
    return (R.mT @ R - torch.eye(d, dtype=R.dtype, device=R.device))[rows, columns] / 2


class RotationProjection(Layer):
    """The nearest rotation: minimise ||R - X||^2 / 2 subject to R' R = I, with det R = 1.

    The orthogonality constraints are the d (d + 1) / 2 entries of the upper triangle of (R' R - I) / 2. From the
    singular value decomposition X = U S V' the solution is R = U diag(1, ..., 1, det(U V')) V'. With the symmetric
    matrix T = R' X, which the multipliers give, the Hessian of the Lagrangian is Z -> Z T, and the exact gradient comes
    from a Sylvester equation with T: nothing larger than d x d is solved.

    Shapes: X (batch, d, d) -> R (batch, d, d).

    Degenerate: with det X > 0 the solution is smooth. It is not unique where the two smallest singular values are both
    zero, or equal with det X < 0: there the least-norm gradient is taken, with a :class:`NumericalWarning`.

    Args:
        gradient: the rule by which it is differentiated.
        on_failure: as in :class:`DeclarativeNode`.

    Example:
        >>> import torch
        >>> from problems import RotationProjection
        >>> RotationProjection()(torch.tensor([[[0.0, -2.0], [1.0, 0.0]]])).round(decimals=4).abs()
        tensor([[[0., 1.],
                 [1., 0.]]])
    """

    def __init__(self, *, gradient: str | Rule = "exact", on_failure: Literal["raise", "mask"] = "raise") -> None:
        # A general solver may end at the nearest reflection: the constraints allow both. The general way is Newton's
        # method from the same formula.
        self.generic_solver = ClosedForm(_nearest, polish=True)
        super().__init__(
            squared_distance,
            orthogonality,
            solver=ClosedForm(_nearest),
            system=_system,
            pullback=_pullback,
            gradient=gradient,
            on_failure=on_failure,
        )

    def prepare(self, *xs: Tensor) -> Inputs:
        X = only_input("X", xs, ("batch", "d", "d"))
        if X.shape[-1] != X.shape[-2]:
            raise ValueError(f"X must be square, but has shape {tuple(X.shape)}.")
        return xs


def _nearest(X: Tensor) -> Tensor:
    finite = X.isfinite().all(-1).all(-1)[:, None, None]  # the decomposition refuses what the node gives a status
    U, _, Vh = torch.linalg.svd(torch.where(finite, X, 0.0))
    sign = torch.linalg.det(U @ Vh).sign().unsqueeze(-1)
    return torch.where(finite, torch.cat([U[..., :-1], U[..., -1:] * sign.unsqueeze(-1)], -1) @ Vh, X)


def _pullback(xs: Inputs, u: Tensor, multipliers: Tensor | None, z: Tensor, s: Tensor) -> Inputs:  # noqa: ARG001
    """B = -I, C = 0."""
    return (z.view(xs[0].shape),)


def _system(point: Point, kind: Kind) -> System:
    if kind == "objective":
        return DiagonalSystem(torch.ones_like(point.u))
    R = point.u.view(point.batch.size, *point.batch.shape)
    T = torch.eye(R.shape[-1], dtype=R.dtype, device=R.device) - _pairing(point.multipliers, R.shape[-1])
    return SylvesterSystem(R, T) if kind == "full" else RightSystem(T)


def _pairing(s: Tensor, d: int) -> Tensor:  # (batch, d (d + 1) / 2) -> (batch, d, d)
    """The symmetric matrix whose inner product with R' R / 2 is s' c, up to a constant: A' s = R times this."""
    return _mirrored(s, d) * (0.5 + 0.5 * torch.eye(d, dtype=s.dtype, device=s.device))


def _mirrored(t: Tensor, d: int) -> Tensor:
    """The symmetric matrix with this upper triangle."""
    rows, columns = torch.triu_indices(d, d, device=t.device)
    place = torch.zeros(d, d, dtype=torch.int64, device=t.device)
    place[rows, columns] = place[columns, rows] = torch.arange(len(rows), device=t.device)
    return t[:, place]


def _triangle(matrix: Tensor) -> Tensor:
    d = matrix.shape[-1]
    rows, columns = torch.triu_indices(d, d, device=matrix.device)
    return matrix[:, rows, columns]


def _sym(matrix: Tensor) -> Tensor:
    return (matrix + matrix.mT) / 2


def _reciprocal(values: Tensor, size: Tensor, tolerance: float) -> Tensor:
    """1 / values, and 0 where they vanish beside the size."""
    regular = values.abs() > tolerance * size
    return torch.where(regular, 1 / torch.where(regular, values, 1.0), 0.0)


class RightSystem(System):
    """Z T = V for matrices, T symmetric, by the pseudo-inverse."""

    def __init__(self, T: Tensor) -> None:
        super().__init__(T)
        self.T = T

    def multiply(self, z: Tensor, s: Tensor) -> Pair:
        return (z.view(self.T.shape) @ self.T).flatten(1), s

    def factorise(self) -> Solve:
        values, vectors = torch.linalg.eigh(self.T)
        inverse = _reciprocal(values, values.abs().amax(-1, keepdim=True), rank_tolerance(self.T))

        def solve(r: Tensor, t: Tensor) -> Pair:
            Z = ((r.view(self.T.shape) @ vectors) * inverse.unsqueeze(-2)) @ vectors.mT
            return Z.flatten(1), torch.zeros_like(t)

        return solve


class SylvesterSystem(System):
    """Z T + R S = V and sym(R' Z) = Y for a symmetric S, T symmetric and R a rotation.

    With R' Z = Y + K, K skew, the skew part of the first equation is (K T + T K) / 2 = skew(R' V - Y T), which the
    eigenvectors of T make diagonal; S is what is left of its symmetric part.
    """

    def __init__(self, R: Tensor, T: Tensor) -> None:
        super().__init__(R, T)
        self.R = R
        self.T = T

    def multiply(self, z: Tensor, s: Tensor) -> Pair:
        Z = z.view(self.T.shape)
        top = Z @ self.T + self.R @ _pairing(s, self.T.shape[-1])
        return top.flatten(1), _triangle(_sym(self.R.mT @ Z))

    def factorise(self) -> Solve:
        d = self.T.shape[-1]
        values, vectors = torch.linalg.eigh(self.T)
        sums = (values.unsqueeze(-1) + values.unsqueeze(-2)) / 2
        inverse = _reciprocal(sums, values.abs().amax(-1)[:, None, None], rank_tolerance(self.T))
        off = ~torch.eye(d, dtype=torch.bool, device=sums.device)  # a skew matrix has no diagonal
        singular = ((inverse == 0) & off).any(-1).any(-1)
        if singular.any():
            warnings.warn(
                f"{int(singular.sum())} problem(s) of the batch: the nearest rotation is not unique, and the KKT "
                "matrix is singular; the least-norm solution was used.",
                NumericalWarning,
                stacklevel=2,
            )

        def solve(r: Tensor, t: Tensor) -> Pair:
            G, Y = self.R.mT @ r.view(self.T.shape), _mirrored(t, d)
            right = G - Y @ self.T
            skew = vectors.mT @ ((right - right.mT) / 2) @ vectors
            W = Y + vectors @ (inverse * skew) @ vectors.mT
            S = _sym(G - W @ self.T)
            return (self.R @ W).flatten(1), _triangle(S * (2 - torch.eye(d, dtype=S.dtype, device=S.device)))

        return solve
