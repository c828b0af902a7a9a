"""A system solved by a factorisation that a solver has left, instead of by one of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, Self

import torch
from torch import Tensor

from .contract import Pair, Solve, System

CORRECTIONS = 3  # of a solution by a nearby factorisation; each gains as many digits as the two matrices share


class Factorisation(Protocol):
    """The factors of a system, or of one close to it, for all problems of a batch."""

    def __call__(self, r: Tensor, t: Tensor) -> Pair:
        """(z, s) for its own matrix."""

    def take(self, rows: Tensor) -> Self:
        """That of the problems at these positions."""


class ReusedSystem(System):
    """A system solved by nearby factors, and corrected with the true matrix until nothing is left to correct.

    The matrix itself is neither assembled nor factored: for m unknowns that saves m reverse passes and O(m^3). The
    solution is not differentiable. Where the corrections do not converge, ``instead`` is solved.
    """

    def __init__(
        self, factors: Factorisation, product: Callable[[Tensor, Tensor], Pair], instead: Callable[[], System]
    ) -> None:
        super().__init__()
        self.factors = factors
        self.product = product
        self.instead = instead

    def multiply(self, z: Tensor, s: Tensor) -> Pair:
        return self.product(z, s)

    def factorise(self) -> Solve:
        def solve(r: Tensor, t: Tensor) -> Pair:
            z, s = self.factors(r, t)
            eps = torch.finfo(r.dtype).eps
            for _ in range(CORRECTIONS):
                top, bottom = self.product(z, s)
                change_z, change_s = self.factors(r - top, t - bottom)
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
