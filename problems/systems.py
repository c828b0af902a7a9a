"""Linear systems with structure, for the backward passes of the ready-made layers."""

from __future__ import annotations

import abc
from dataclasses import dataclass

import torch
from torch import Tensor

from declarative.linear import Pair, Solve, System
from declarative.linear.forms import Full, kkt_product


def largest_or_one(x: Tensor) -> Tensor:  # (batch, ...) -> (batch,)
    """The largest absolute value of each problem; 1 where all are zero, so that one can divide by it."""
    size = x.reshape(x.shape[0], -1).abs().amax(-1)
    return torch.where(size > 0, size, 1.0)


def pseudo_reciprocal(values: Tensor, tolerance: float | Tensor) -> Tensor:
    """1 / values, and 0 where they vanish up to a tolerance."""
    regular = values.abs() > tolerance
    return torch.where(regular, 1 / torch.where(regular, values, 1.0), 0.0)


def symmetric_part(X: Tensor) -> Tensor:
    """(X + X') / 2, halved first: the sum of two large numbers is not finite."""
    return X / 2 + X.mT / 2


@dataclass(eq=False)
class StructuredSystem(System):
    """Abstract: a linear system whose operands are the fields of a dataclass."""

    def __post_init__(self) -> None:
        super().__init__(*vars(self).values())


@dataclass(eq=False)
class InverseDiagonalSystem(StructuredSystem):
    """A diagonal Hessian without constraint rows, as the DiagonalHessianSystem, given by its inverse w, which may
    vanish: z / w = r, s = 0.
    """

    inverse: Tensor  # (batch, m)

    def multiply(self, z: Tensor, s: Tensor) -> Pair:
        return z / self.inverse, s

    def factorise(self) -> Solve:
        return lambda r, t: (self.inverse * r, torch.zeros_like(t))


@dataclass(eq=False)
class IdentitySystem(StructuredSystem):
    """Abstract: H = I, with linear constraints that a subclass knows how to solve with."""

    active: Tensor  # (batch, k)

    @abc.abstractmethod
    def rows(self, eye: Tensor) -> Tensor:  # (m, m) -> (k, m)
        """A, the same for all problems, from the identity matrix."""

    def multiply(self, z: Tensor, s: Tensor) -> Pair:
        mask = self.active.to(z.dtype)
        rows = self.rows(torch.eye(z.shape[-1], dtype=z.dtype, device=z.device)) * mask.unsqueeze(-1)
        return kkt_product(z, Full(), rows, 1 - mask, z, s)


@dataclass(eq=False)
class OneConstraintSystem(StructuredSystem):
    """A diagonal Hessian with one constraint: [diag(h) a; a' 0] [z; s] = [r; t], solved by the Schur complement.

    h is given with its inverse, by which the system is solved: a formula for that may keep digits that one for h has
    lost. It is h that is differentiated. A problem whose constraint is not active has s = 0 and z = r / h.
    """

    hessian: Tensor  # (batch, m)
    inverse: Tensor  # (batch, m)
    normal: Tensor  # (batch, m)
    active: Tensor  # (batch, 1)

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
