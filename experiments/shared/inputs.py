"""Random inputs for batches of problems."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


def normal(generator: torch.Generator, *shape: int) -> Tensor:
    """Independent normal numbers, in double precision."""
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


@dataclass(frozen=True)
class Draw:
    """Random inputs for a batch."""

    batch: int
    generator: torch.Generator

    def normal(self, *shape: int) -> Tensor:
        return normal(self.generator, self.batch, *shape)

    def uniform(self, *shape: int) -> Tensor:
        return torch.rand(self.batch, *shape, generator=self.generator, dtype=torch.float64)

    def marginal(self, size: int) -> Tensor:
        x = self.uniform(size) + 0.5
        return x / x.sum(-1, keepdim=True)

    def definite(self, size: int) -> Tensor:
        root = self.normal(size, size)
        return root @ root.mT / size + 0.5 * torch.eye(size, dtype=root.dtype)

    def program(self, m: int, p: int, count: int) -> tuple[Tensor, ...]:
        """Q, q, A, b, G, h of quadratic programs with p equalities and inequalities that a point satisfies."""
        Q, q, A, G, inside = (self.definite(m), *(self.normal(*s) for s in ((m,), (p, m), (count, m), (m, 1))))
        return Q, q, A, (A @ inside).squeeze(-1), G, (G @ inside).squeeze(-1) + self.uniform(count)

    def radii(self) -> Tensor:
        """Inside and outside of the unit ball in turn."""
        return torch.tensor([0.5, 2.0, 4.0], dtype=torch.float64).repeat(self.batch)[: self.batch, None]
