"""Linear systems with structure, for the backward passes of the ready-made layers."""

from __future__ import annotations

import torch
from torch import Tensor

from declarative.linear import Pair, Solve, System


class DiagonalSystem(System):
    """A diagonal Hessian without constraint rows, given by its inverse w: z / w = r, s = 0."""

    def __init__(self, inverse: Tensor) -> None:  # (batch, m)
        super().__init__(inverse)
        self.inverse = inverse

    def multiply(self, z: Tensor, s: Tensor) -> Pair:
        return z / self.inverse, s

    def factorise(self) -> Solve:
        def solve(r: Tensor, t: Tensor) -> Pair:
            return self.inverse * r, torch.zeros_like(t)

        return solve


class OneConstraintSystem(System):
    """A diagonal Hessian with one constraint: [diag(1 / w) a; a' 0] [z; s] = [r; t], solved by the Schur complement.

    A problem whose constraint is not active (only an inequality can be) has s = 0 and z = w r.
    """

    def __init__(self, inverse: Tensor, normal: Tensor, active: Tensor) -> None:  # (batch, m) twice, (batch, 1)
        super().__init__(inverse, normal, active)
        self.inverse = inverse
        self.normal = normal
        self.active = active

    def multiply(self, z: Tensor, s: Tensor) -> Pair:
        mask = self.active.to(z.dtype)
        normal = mask * self.normal
        return z / self.inverse + normal * s, (normal * z).sum(-1, keepdim=True) - (1 - mask) * s

    def factorise(self) -> Solve:
        normal = torch.where(self.active, self.normal, 0.0)
        scaled = self.inverse * normal
        complement = torch.where(self.active, (normal * scaled).sum(-1, keepdim=True), 1.0)

        def solve(r: Tensor, t: Tensor) -> Pair:
            s = torch.where(self.active, (scaled * r).sum(-1, keepdim=True) - t, 0.0) / complement
            return self.inverse * r - scaled * s, s

        return solve
