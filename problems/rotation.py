"""The nearest rotation to a matrix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Unpack

import torch
from torch import Tensor

from declarative import ClosedForm
from declarative.linear import Pair, Solve, System, rank_tolerance, warn_of
from declarative.structure import Kind, Point

from .formula import Multipliers
from .layer import Options
from .projection import Projection, ProjectionFormula
from .systems import StructuredSystem, largest_or_one, pseudo_reciprocal, symmetric_part


def orthogonality(X: Tensor, R: Tensor) -> Tensor:  # noqa: ARG001
    """The upper triangle of (R' R - I) / 2, diagonal included."""
    return _triangle(R.mT @ R - _eye(R)) / 2


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
        solver = Orthogonalise()
        self.generic_solver = ClosedForm(solver.solution, polish=True)
        super().__init__(orthogonality, solver=solver, **options)


class Orthogonalise(ProjectionFormula):
    """R = U diag(1, ..., 1, det(U V')) V', from the singular value decomposition X = U S V'."""

    def solution(self, X: Tensor) -> Tensor:
        finite = X.isfinite().all(-1).all(-1)[:, None, None]  # the decomposition refuses what the node gives a status
        U, _, Vh = torch.linalg.svd(torch.where(finite, X, 0.0))
        sign = torch.linalg.det(U @ Vh).sign().unsqueeze(-1)
        return torch.where(finite, torch.cat([U[..., :-1], U[..., -1:] * sign.unsqueeze(-1)], -1) @ Vh, X)

    def conditions(self, X: Tensor, u: Tensor) -> Pair:
        """X = R T with T = R' X symmetric, relative to X."""
        R = u.view(X.shape)
        T = R.mT @ X
        return (T - T.mT).abs().amax((-2, -1)) / largest_or_one(X), (R.mT @ R - _eye(R)).abs().amax((-2, -1))

    def multipliers(self, X: Tensor, u: Tensor) -> Multipliers:
        """Those of I - T."""
        return _weights(_eye(X) - symmetric_part(u.view(X.shape).mT @ X)), None, None

    def curved_system(self, point: Point, kind: Kind) -> System:
        (X,) = self.arguments(point.batch, point.u)
        R = point.u.view(X.shape)
        hessian, T = _eye(R) - _pairing(point.multipliers, R.shape[-1]), symmetric_part(R.mT @ X).detach()
        return SylvesterSystem(hessian, T, R) if kind == "full" else RightSystem(hessian, T)


def _eye(matrix: Tensor) -> Tensor:
    return torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)


def _pairing(s: Tensor, d: int) -> Tensor:  # (batch, d (d + 1) / 2) -> (batch, d, d)
    """The symmetric matrix whose inner product with R' R / 2 is s' c, up to a constant: A' s = R times this."""
    matrix = _mirrored(s, d)
    return matrix * (0.5 + 0.5 * _eye(matrix))


def _weights(S: Tensor) -> Tensor:  # (batch, d, d) -> (batch, d (d + 1) / 2)
    """The inverse of the pairing."""
    return _triangle(S * (2 - _eye(S)))


def _mirrored(t: Tensor, d: int) -> Tensor:
    """The symmetric matrix with this upper triangle."""
    rows, columns = torch.triu_indices(d, d, device=t.device)
    place = torch.zeros(d, d, dtype=torch.int64, device=t.device)
    place[rows, columns] = place[columns, rows] = torch.arange(len(rows), device=t.device)
    return t[:, place]


def _triangle(matrix: Tensor) -> Tensor:
    d = matrix.shape[-1]
    rows, columns = torch.triu_indices(d, d, device=matrix.device)
    return matrix[..., rows, columns]


@dataclass(eq=False)
class RightSystem(StructuredSystem):
    """Z T = V for matrices, T symmetric, by the pseudo-inverse.

    T is given twice: from the multipliers, as I - ..., which cancels where X is small, to be differentiated; and with
    all its digits, to be solved with.
    """

    hessian: Tensor  # (batch, d, d)
    T: Tensor  # (batch, d, d)

    def multiply(self, z: Tensor, s: Tensor) -> Pair:
        return (z.view(self.T.shape) @ self.hessian).flatten(1), s

    def spectrum(self) -> tuple[Tensor, Tensor, Tensor]:
        """Eigenvalues relative to the size of T, eigenvectors, and that size, (batch, 1, 1)."""
        size = largest_or_one(self.T)[:, None, None]
        return *torch.linalg.eigh(self.T / size), size

    def factorise(self) -> Solve:
        values, vectors, size = self.spectrum()
        inverse = pseudo_reciprocal(values, rank_tolerance(self.T)).unsqueeze(-2) / size

        def solve(r: Tensor, t: Tensor) -> Pair:
            Z = ((r.view(self.T.shape) @ vectors) * inverse) @ vectors.mT
            return Z.flatten(1), torch.zeros_like(t)

        return solve


@dataclass(eq=False)
class SylvesterSystem(RightSystem):
    """Z T + R S = V and sym(R' Z) = Y for a symmetric S, T symmetric (given as in RightSystem) and R a rotation.

    With R' Z = Y + K, K skew, the skew part of the first equation is (K T + T K) / 2 = skew(R' V - Y T), which the
    eigenvectors of T make diagonal; S is what is left of its symmetric part.
    """

    R: Tensor  # (batch, d, d)

    def multiply(self, z: Tensor, s: Tensor) -> Pair:
        Z = z.view(self.T.shape)
        top = Z @ self.hessian + self.R @ _pairing(s, self.T.shape[-1])
        return top.flatten(1), _triangle(symmetric_part(self.R.mT @ Z))

    def factorise(self) -> Solve:
        d = self.T.shape[-1]
        values, vectors, size = self.spectrum()
        inverse = pseudo_reciprocal((values.unsqueeze(-1) + values.unsqueeze(-2)) / 2, rank_tolerance(self.T))
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
            return (self.R @ W).flatten(1), _weights(symmetric_part(G - W @ self.T))

        return solve
