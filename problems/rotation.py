"""The nearest rotation to a matrix."""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor

from declarative import ClosedForm
from declarative.linear import DiagonalHessianSystem, Pair, Solve, System, rank_tolerance, warn_of
from declarative.structure import Kind, Point

from .formula import Formula, Multipliers
from .layer import Options
from .projection import Projection
from .systems import largest_or_one


def orthogonality(X: Tensor, R: Tensor) -> Tensor:  # noqa: ARG001
    """The upper triangle of (R' R - I) / 2, diagonal included."""
    d = R.shape[-1]
    rows, columns = torch.triu_indices(d, d, device=R.device)
    return (R.mT @ R - torch.eye(d, dtype=R.dtype, device=R.device))[rows, columns] / 2


class RotationProjection(Projection):
    """The nearest rotation: minimise ||R - X||^2 / 2 subject to R' R = I, with det R = 1.

    The orthogonality constraints are the m (m + 1) / 2 entries of the upper triangle of (R' R - I) / 2. From the
    singular value decomposition X = U S V' the solution is R = U diag(1, ..., 1, det(U V')) V'. With the symmetric
    matrix T = R' X, which the multipliers give, the Hessian of the Lagrangian is Z -> Z T, and the exact gradient comes
    from a Sylvester equation with T: nothing larger than m x m is solved.

    Shapes: X (batch, m, m) -> R (batch, m, m).

    Degenerate: with det X > 0 the solution is smooth. It is not unique where the two smallest singular values are both
    zero, or equal with det X < 0: there the least-norm gradient is taken, with a :class:`NumericalWarning`.

    Example:
        >>> import torch
        >>> from problems import RotationProjection
        >>> RotationProjection()(torch.tensor([[[0.0, -2.0], [1.0, 0.0]]])).round(decimals=4).abs()
        tensor([[[0., 1.],
                 [1., 0.]]])
    """

    required = ("X",)

    def __init__(self, **options: Unpack[Options]) -> None:
        # A general solver may end at the nearest reflection: the constraints allow both. The general way is Newton's
        # method from the same formula.
        self.generic_solver = ClosedForm(_nearest, polish=True)
        super().__init__(orthogonality, solver=Formula(_nearest, _conditions, _multipliers), system=_system, **options)


def _nearest(X: Tensor) -> Tensor:
    finite = X.isfinite().all(-1).all(-1)[:, None, None]  # the decomposition refuses what the node gives a status
    U, _, Vh = torch.linalg.svd(torch.where(finite, X, 0.0))
    sign = torch.linalg.det(U @ Vh).sign().unsqueeze(-1)
    return torch.where(finite, torch.cat([U[..., :-1], U[..., -1:] * sign.unsqueeze(-1)], -1) @ Vh, X)


def _conditions(X: Tensor, u: Tensor) -> Pair:
    """X = R T with T = R' X symmetric, relative to X."""
    R, eye = u.view(X.shape), torch.eye(X.shape[-1], dtype=X.dtype, device=X.device)
    T = R.mT @ X
    return (T - T.mT).abs().amax((-2, -1)) / largest_or_one(X), (R.mT @ R - eye).abs().amax((-2, -1))


def _multipliers(X: Tensor, u: Tensor) -> Multipliers:
    """Those of I - T."""
    eye = torch.eye(X.shape[-1], dtype=X.dtype, device=X.device)
    return _weights(eye - _sym(u.view(X.shape).mT @ X)), None, None


def _system(point: Point, kind: Kind) -> System:
    ones = torch.ones_like(point.u)
    if kind == "objective":
        return DiagonalHessianSystem(ones)
    X = point.batch.unshared().xs[0].to(point.u.dtype)
    R = point.u.view(X.shape)
    hessian = torch.eye(R.shape[-1], dtype=R.dtype, device=R.device) - _pairing(point.multipliers, R.shape[-1])
    T = _sym(R.mT @ X).detach()
    return SylvesterSystem(R, hessian, T) if kind == "full" else RightSystem(hessian, T)


def _pairing(s: Tensor, d: int) -> Tensor:  # (batch, d (d + 1) / 2) -> (batch, d, d)
    """The symmetric matrix whose inner product with R' R / 2 is s' c, up to a constant: A' s = R times this."""
    return _mirrored(s, d) * (0.5 + 0.5 * torch.eye(d, dtype=s.dtype, device=s.device))


def _weights(S: Tensor) -> Tensor:  # (batch, d, d) -> (batch, d (d + 1) / 2)
    """The inverse of the pairing."""
    return _triangle(S * (2 - torch.eye(S.shape[-1], dtype=S.dtype, device=S.device)))


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


def _spectrum(T: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Eigenvalues relative to the size of T, eigenvectors, and that size, (batch, 1, 1)."""
    size = largest_or_one(T)[:, None, None]
    return *torch.linalg.eigh(T / size), size


def _reciprocal(values: Tensor, tolerance: float) -> Tensor:
    """1 / values, and 0 where they vanish beside 1."""
    regular = values.abs() > tolerance
    return torch.where(regular, 1 / torch.where(regular, values, 1.0), 0.0)


class RightSystem(System):
    """Z T = V for matrices, T symmetric, by the pseudo-inverse.

    T is given twice: from the multipliers, as I - ..., which cancels where X is small, to be differentiated; and with
    all its digits, to be solved with.
    """

    def __init__(self, hessian: Tensor, T: Tensor) -> None:  # (batch, d, d) both
        super().__init__(hessian, T)
        self.hessian = hessian
        self.T = T

    def multiply(self, z: Tensor, s: Tensor) -> Pair:
        return (z.view(self.T.shape) @ self.hessian).flatten(1), s

    def factorise(self) -> Solve:
        values, vectors, size = _spectrum(self.T)
        inverse = _reciprocal(values, rank_tolerance(self.T)).unsqueeze(-2) / size

        def solve(r: Tensor, t: Tensor) -> Pair:
            Z = ((r.view(self.T.shape) @ vectors) * inverse) @ vectors.mT
            return Z.flatten(1), torch.zeros_like(t)

        return solve


class SylvesterSystem(System):
    """Z T + R S = V and sym(R' Z) = Y for a symmetric S, T symmetric (given as in RightSystem) and R a rotation.

    With R' Z = Y + K, K skew, the skew part of the first equation is (K T + T K) / 2 = skew(R' V - Y T), which the
    eigenvectors of T make diagonal; S is what is left of its symmetric part.
    """

    def __init__(self, R: Tensor, hessian: Tensor, T: Tensor) -> None:
        super().__init__(R, hessian, T)
        self.R = R
        self.hessian = hessian
        self.T = T

    def multiply(self, z: Tensor, s: Tensor) -> Pair:
        Z = z.view(self.T.shape)
        top = Z @ self.hessian + self.R @ _pairing(s, self.T.shape[-1])
        return top.flatten(1), _triangle(_sym(self.R.mT @ Z))

    def factorise(self) -> Solve:
        d = self.T.shape[-1]
        values, vectors, size = _spectrum(self.T)
        inverse = _reciprocal((values.unsqueeze(-1) + values.unsqueeze(-2)) / 2, rank_tolerance(self.T))
        off = ~torch.eye(d, dtype=torch.bool, device=values.device)  # a skew matrix has no diagonal
        singular = ((inverse == 0) & off).any(-1).any(-1)
        if singular.any():
            why = "the nearest rotation is not unique, and the KKT matrix is singular"
            warn_of(singular, why, "the least-norm solution was used")

        def solve(r: Tensor, t: Tensor) -> Pair:
            G, Y = self.R.mT @ r.view(self.T.shape), _mirrored(t, d)
            right = G - Y @ self.T
            skew = vectors.mT @ ((right - right.mT) / 2) @ vectors
            W = Y + vectors @ (inverse / size * skew) @ vectors.mT
            return (self.R @ W).flatten(1), _weights(_sym(G - W @ self.T))

        return solve
