"""Linear systems with structure, for the backward passes of the ready-made layers."""

from __future__ import annotations

import torch
from torch import Tensor

from declarative.linear import DiagonalHessianSystem, Pair, Solve, System
from declarative.structure import Kind, Point


def largest_or_one(x: Tensor) -> Tensor:  # (batch, ...) -> (batch,)
    """The largest absolute value of each problem; 1 where all are zero, so that one can divide by it."""
    size = x.reshape(x.shape[0], -1).abs().amax(-1)
    return torch.where(size > 0, size, 1.0)


class InverseDiagonalSystem(System):
    """A diagonal Hessian without constraint rows, as the DiagonalHessianSystem, given by its inverse w, which may
    vanish: z / w = r, s = 0.
    """

    def __init__(self, inverse: Tensor) -> None:  # (batch, m)
        super().__init__(inverse)
        self.inverse = inverse

    def multiply(self, z: Tensor, s: Tensor) -> Pair:
        return z / self.inverse, s

    def factorise(self) -> Solve:
        def solve(r: Tensor, t: Tensor) -> Pair:
            return self.inverse * r, torch.zeros_like(t)

        return solve


class IdentitySystem(System):
    """Abstract: H = I, with constraints that a subclass multiplies and solves with."""

    def __init__(self, ones: Tensor, active: Tensor) -> None:  # (batch, m), (batch, k)
        super().__init__(ones, active)
        self.ones = ones
        self.active = active

    @classmethod
    def at(cls, point: Point, kind: Kind) -> System:
        """The system of a rule; constraints that are linear leave H as it is."""
        ones = torch.ones_like(point.u)
        return cls(ones, point.active) if kind == "full" else DiagonalHessianSystem(ones)


class OneConstraintSystem(System):
    """A diagonal Hessian with one constraint: [diag(h) a; a' 0] [z; s] = [r; t], solved by the Schur complement.

    h is given with its inverse, by which the system is solved: a formula for that may keep digits that one for h has
    lost. It is h that is differentiated. A problem whose constraint is not active has s = 0 and z = r / h.
    """

    def __init__(self, hessian: Tensor, inverse: Tensor, normal: Tensor, active: Tensor) -> None:  # active: (batch, 1)
        super().__init__(hessian, inverse, normal, active)
        self.hessian = hessian
        self.inverse = inverse
        self.normal = normal
        self.active = active

    def multiply(self, z: Tensor, s: Tensor) -> Pair:
        mask = self.active.to(z.dtype)
        normal = mask * self.normal
        return self.hessian * z + normal * s, (normal * z).sum(-1, keepdim=True) - (1 - mask) * s

    def factorise(self) -> Solve:
        # In units in which both the normal and the inverse are of size 1, so that no product of them underflows.
        length, size = largest_or_one(self.normal).unsqueeze(-1), largest_or_one(self.inverse).unsqueeze(-1)
        normal = torch.where(self.active, self.normal / length, 0.0)
        weighted = self.inverse / size * normal
        complement = torch.where(self.active, (normal * weighted).sum(-1, keepdim=True), 1.0)

        def solve(r: Tensor, t: Tensor) -> Pair:
            gap = torch.where(self.active, t / length / size, 0.0)
            s = ((weighted * r).sum(-1, keepdim=True) - gap) / complement
            return self.inverse * (r - normal * s), s / length

        return solve
