"""The linear systems of the general backward pass: dense, with a diagonal Hessian, left over from the solver, or none.

A structured problem may bring its own :class:`declarative.linear.System`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, Self

import torch
from torch import Tensor

from .contract import System
from .dense import Pair, Solve, factorise_dense, factorise_diagonal, rank_tolerance, times

CORRECTIONS = 3  # of a solution by a nearby factorisation; each gains as many digits as the two matrices share


class DenseSystem(System):
    """The system assembled from H (batch, m, m), A (batch, k, m) and active (batch, k)."""

    def __init__(self, hessian: Tensor, jacobian: Tensor, active: Tensor) -> None:
        super().__init__(hessian, jacobian, active)
        self.hessian = hessian
        self.jacobian = jacobian
        self.active = active

    def multiply(self, z: Tensor, s: Tensor) -> Pair:
        mask = self.active.to(z.dtype)
        rows = self.jacobian * mask.unsqueeze(-1)
        top = times(self.hessian, z) + times(rows.mT, s)
        return top, times(rows, z) - (1 - mask) * s

    def factorise(self) -> Solve:
        return factorise_dense(self.hessian, self.jacobian, self.active, "the KKT matrix")


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
        inner = factorise_dense(
            self.hessian, none.unsqueeze(-1).expand(-1, 0, self.hessian.shape[-1]), none.bool(), None
        )

        def solve(r: Tensor, t: Tensor) -> Pair:
            return inner(r, t[:, :0])[0], torch.zeros_like(t)

        return solve


class DiagonalSystem(System):
    """The system of a diagonal Hessian, given by its diagonal (batch, m), A (batch, k, m) and active (batch, k)."""

    def __init__(self, diagonal: Tensor, jacobian: Tensor, active: Tensor) -> None:
        super().__init__(diagonal, jacobian, active)
        self.diagonal = diagonal
        self.jacobian = jacobian
        self.active = active

    def multiply(self, z: Tensor, s: Tensor) -> Pair:
        mask = self.active.to(z.dtype)
        rows = self.jacobian * mask.unsqueeze(-1)
        return self.diagonal * z + times(rows.mT, s), times(rows, z) - (1 - mask) * s

    def factorise(self) -> Solve:
        return factorise_diagonal(self.diagonal, self.jacobian, self.active, "the KKT matrix")


class DiagonalHessianSystem(System):
    """diag(d) z = r without constraint rows, as :class:`HessianSystem`; z = 0 where d is."""

    def __init__(self, diagonal: Tensor) -> None:
        super().__init__(diagonal)
        self.diagonal = diagonal

    def multiply(self, z: Tensor, s: Tensor) -> Pair:
        return self.diagonal * z, s

    def factorise(self) -> Solve:
        size = self.diagonal.abs()
        regular = size > rank_tolerance(self.diagonal) * size.amax(-1, keepdim=True)
        inverse = torch.where(regular, 1 / torch.where(regular, self.diagonal, 1.0), 0.0)

        def solve(r: Tensor, t: Tensor) -> Pair:
            return inverse * r, torch.zeros_like(t)

        return solve


class Prepared(Protocol):
    """The factorisation of a system close to the wanted one, that a forward solver has left."""

    def solve_system(self, r: Tensor, t: Tensor) -> Pair:
        """(z, s) for its own matrix."""

    def take(self, rows: Tensor) -> Self:
        """That of the problems at these positions."""


class PreparedSystem(System):
    """A system solved by what a solver has left, and corrected with the true matrix until nothing is left to correct.

    The matrix itself is neither assembled nor factored: for m unknowns that saves m reverse passes and O(m^3). The
    solution is not differentiable. Where the corrections do not converge, ``instead`` is solved.
    """

    def __init__(
        self, factor: Prepared, product: Callable[[Tensor, Tensor], Pair], instead: Callable[[], System]
    ) -> None:
        super().__init__()
        self.factor = factor
        self.product = product
        self.instead = instead

    def multiply(self, z: Tensor, s: Tensor) -> Pair:
        return self.product(z, s)

    def factorise(self) -> Solve:
        def solve(r: Tensor, t: Tensor) -> Pair:
            z, s = self.factor.solve_system(r, t)
            eps = torch.finfo(r.dtype).eps
            for _ in range(CORRECTIONS):
                top, bottom = self.product(z, s)
                change_z, change_s = self.factor.solve_system(r - top, t - bottom)
                z, s = z + change_z, s + change_s
                if _settled(change_z, z, eps) and _settled(change_s, s, eps):
                    return z, s
            return self.instead().solve(r, t)

        return solve

    def solve(self, r: Tensor, t: Tensor) -> Pair:
        return self.factorise()(r, t)


def _settled(change: Tensor, value: Tensor, eps: float) -> bool:
    """Whether a correction has changed no problem by more than rounding errors."""
    if not value.shape[-1]:
        return True
    return bool((change.abs().amax(-1) <= 100 * eps * value.abs().amax(-1)).all())
