"""The cone of positive semidefinite matrices, its own dual.

A symmetric n x n matrix is a vector of n (n + 1) / 2 entries: its lower triangle column by column, with the entries off
the diagonal times sqrt(2), so that the product of two vectors is the trace of the product of the matrices.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from .cone import Cone, Face, Scaling, first_bound


def order(size: int) -> int:
    """The n of n (n + 1) / 2 entries."""
    return (math.isqrt(8 * size + 1) - 1) // 2


def matrices(x: Tensor) -> Tensor:  # (..., d) -> (..., n, n)
    """The symmetric matrices of these entries."""
    n = order(x.shape[-1])
    place, weight = _places(n, x)
    return x[..., place] * weight


def entries(X: Tensor) -> Tensor:  # (..., n, n) -> (..., d)
    """The entries of symmetric matrices; of others, those of the symmetric part."""
    i, j = torch.triu_indices(X.shape[-1], X.shape[-1], device=X.device)
    weight = torch.where(i == j, X.new_tensor(0.5), X.new_tensor(0.5).sqrt())
    return (X[..., i, j] + X[..., j, i]) * weight


def _places(n: int, like: Tensor) -> tuple[Tensor, Tensor]:  # (n, n)
    i, j = torch.triu_indices(n, n, device=like.device)
    place = torch.zeros(n, n, dtype=torch.int64, device=like.device)
    place[i, j] = place[j, i] = torch.arange(len(i), device=like.device)
    weight = torch.where(
        torch.eye(n, dtype=torch.bool, device=like.device), like.new_tensor(1.0), like.new_tensor(0.5).sqrt()
    )
    return place, weight


def _between(L: Tensor, x: Tensor) -> Tensor:  # (batch, count, n, n), (batch, count, d, columns)
    """L' X L for every column X."""
    L = L.unsqueeze(-3)
    return entries(L.mT @ matrices(x.mT) @ L).mT


class SemidefiniteScaling(Scaling):
    """W Z = R' Z R, the scaling of Nesterov and Todd: R' Z R = R^-1 S R^-T = diag(l)."""

    def __init__(self, s: Tensor, z: Tensor) -> None:
        root_s, root_z = (torch.linalg.cholesky_ex(matrices(x)).L for x in (s, z))
        left, self.middle, right = torch.linalg.svd(root_z.mT @ root_s)
        width = self.middle.sqrt().unsqueeze(-2)
        self.root = root_s @ right.mT / width
        self.inverse = (left / width).mT @ root_z.mT  # R^-1 = l^-1/2 U' L_z'

    def scaled(self, x: Tensor) -> Tensor:
        return _between(self.inverse.mT, x)

    def slack(self, x: Tensor) -> Tensor:
        return entries(self.root @ matrices(x) @ self.root.mT)

    def multiplier(self, x: Tensor) -> Tensor:
        return entries(self.inverse.mT @ matrices(x) @ self.inverse)

    def target(self, ds: Tensor | None, dz: Tensor | None, mu: Tensor) -> Tensor:
        middle = torch.diag_embed(self.middle)
        if ds is None or dz is None:
            return entries(middle)
        product = matrices(ds) @ matrices(dz)
        right = (product + product.mT) / 2 - mu.unsqueeze(-1) * torch.eye(product.shape[-1]).to(product)
        return entries(middle + 2 * right / (self.middle.unsqueeze(-1) + self.middle.unsqueeze(-2)))

    def longest(self, ds: Tensor, dz: Tensor) -> Tensor:
        width = self.middle.rsqrt()
        both = matrices(torch.stack([ds, dz])) * width.unsqueeze(-1) * width.unsqueeze(-2)
        good = both.isfinite().all(-1).all(-1)
        lowest = torch.linalg.eigvalsh(torch.where(good[..., None, None], both, 0.0))[..., 0].amin(0)
        return first_bound(torch.where(lowest < 0, -1 / lowest, torch.inf))


def kept_vectors(states: Tensor, n: int) -> Tensor:  # (batch, count) -> (batch, count, n)
    """Which eigenvectors, in the order of their eigenvalues, belong to the largest ones, as many as the rank."""
    return torch.arange(n - 1, -1, -1, device=states.device) < states.unsqueeze(-1)


class SemidefiniteFace(Face):
    """Matrices of the rank of S: their Schur complement in V = [V_1 V_0] vanishes, where S = V_1 diag(l) V_1'.

    With S_ij = V_i' S V_j, c(S) = S_00 - S_01 S_11^-1 S_10 and G = V_1 S_11^-1 V_1', the tangent of c is T' X T for
    T = V_0 - V_1 S_11^-1 S_10, and its curvature M X = G X Z + Z X G.
    """

    def __init__(self, s: Tensor, z: Tensor, states: Tensor) -> None:
        S, self.Z = matrices(s), matrices(z)
        n = S.shape[-1]
        with torch.no_grad():
            V = torch.linalg.eigh(_balanced(S, self.Z)).eigenvectors
            kept = kept_vectors(states, n)
            self.kept = kept.unsqueeze(-1) & kept.unsqueeze(-2)
            self.gone = ~kept.unsqueeze(-1) & ~kept.unsqueeze(-2)
            eye = torch.eye(n, dtype=s.dtype, device=s.device)
        turned = V.mT @ S @ V
        size = torch.where(self.kept, turned, 0.0).diagonal(dim1=-2, dim2=-1).abs().amax(-1)[..., None, None]
        size = torch.where(size > 0, size, 1.0)
        inverse = torch.where(self.kept, torch.linalg.inv(torch.where(self.kept, turned / size, eye)), 0.0) / size
        mixed = torch.where(kept.unsqueeze(-1) & ~kept.unsqueeze(-2), turned, 0.0)
        self.T = V @ (torch.where(self.gone, eye, 0.0) - inverse @ mixed)
        self.G = V @ inverse @ V.mT
        self.complement = torch.where(self.gone, turned - mixed.mT @ inverse @ mixed, 0.0)

    def value(self) -> Tensor:
        return entries(self.complement)

    def across(self, x: Tensor) -> Tensor:
        return _between(self.T, x)

    def along(self, y: Tensor) -> Tensor:
        return _between(self.T.mT, y)

    def coordinates(self, z: Tensor) -> Tensor:
        # T_0' T_0 = I + B'B, which is I at a solution, where V is that of S.
        return self.across(z.unsqueeze(-1)).squeeze(-1)

    def bend(self, x: Tensor) -> Tensor:
        G, Z = self.G.unsqueeze(-3), self.Z.unsqueeze(-3)
        product = G @ matrices(x.mT) @ Z
        return 2 * entries(product).mT  # entries symmetrises


def _balanced(S: Tensor, Z: Tensor) -> Tensor:
    """S - Z in units in which both have size 1: with the eigenvectors of both."""
    sizes = [torch.linalg.matrix_norm(X, keepdim=True) for X in (S, Z)]
    S, Z = (X / torch.where(size > 0, size, 1.0) for X, size in zip((S, Z), sizes, strict=True))
    return torch.nan_to_num(S - Z)


@dataclass(frozen=True)
class Semidefinite(Cone):
    """Positive semidefinite matrices."""

    @property
    def n(self) -> int:
        """The rows of a matrix."""
        return order(self.size)

    @property
    def degree(self) -> int:
        return self.count * self.n

    def unit(self, like: Tensor) -> Tensor:
        return entries(torch.eye(self.n, dtype=like.dtype, device=like.device)).expand(self.count, -1)

    def scaling(self, s: Tensor, z: Tensor, mu: Tensor) -> Scaling:  # noqa: ARG002
        return SemidefiniteScaling(s, z)

    def depth(self, x: Tensor) -> Tensor:
        X = matrices(x)
        finite = X.isfinite().all(-1).all(-1)
        lowest: Tensor = torch.linalg.eigvalsh(torch.where(finite[..., None, None], X, 0.0))[..., 0]
        return torch.where(finite, lowest, -torch.inf)

    def boundary(self, s: Tensor) -> Tensor:
        """Minus the smallest eigenvalue, smooth where it is simple."""
        return -self.depth(s)

    def barrier(self, s: Tensor, z: Tensor) -> Tensor:
        total = s.new_zeros(len(s))
        for x in (s, z):
            factor, info = torch.linalg.cholesky_ex(matrices(x))
            logs = torch.diagonal(factor, dim1=-2, dim2=-1).log().sum(-1)
            total = total - 2 * torch.where(info == 0, logs, -torch.inf).sum(-1)
        return total - self.degree

    def states(self, s: Tensor, z: Tensor) -> Tensor:
        """The rank of S: with how many common eigenvectors the eigenvalue of S is larger than that of Z."""
        difference = torch.nan_to_num(matrices(s) - matrices(z))
        rank: Tensor = (torch.linalg.eigvalsh(difference) > 0).sum(-1)
        return rank.to(s.dtype)

    def active(self, states: Tensor) -> Tensor:
        gone = ~kept_vectors(states, self.n)
        return entries((gone.unsqueeze(-1) & gone.unsqueeze(-2)).to(states.dtype)) > 0

    def is_weak(self, s: Tensor, z: Tensor, states: Tensor, small: Tensor) -> Tensor:  # noqa: ARG002
        total = torch.nan_to_num(matrices(s) + matrices(z))
        weak: Tensor = torch.linalg.eigvalsh(total)[..., 0] <= small
        return weak

    def face(self, s: Tensor, z: Tensor, states: Tensor) -> Face:
        return SemidefiniteFace(s, z, states)
