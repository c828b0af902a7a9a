"""A batch solved in the fast way where that is accurate, and by another factorisation where it is not."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Generic, TypeVar

import torch
from torch import Tensor

from .contract import Factorisation, Pair, Solve

Other = TypeVar("Other", bound=Factorisation)


class WithFallback(Factorisation, Generic[Other]):
    """Two factorisations of a batch as one.

    Args:
        fast: the solution of all problems, with positive curvature where it is accurate.
        accurate: where that is, (batch,).
        factorise_rest: the other factorisation, of the problems at given positions.
    """

    def __init__(self, fast: Solve, accurate: Tensor, factorise_rest: Callable[[Tensor], Other]) -> None:
        self.fast = fast
        self.accurate = accurate
        self.rest = (~accurate).nonzero().flatten()
        self.factorise_rest = factorise_rest

    @cached_property
    def fallback(self) -> Other:
        """The factorisation of the rest."""
        return self.factorise_rest(self.rest)

    def __call__(self, r: Tensor, t: Tensor) -> Pair:
        z, s = self.fast(r, t)
        if len(self.rest):
            z_rest, s_rest = self.fallback(r[self.rest], t[self.rest])
            z, s = z.index_copy(0, self.rest, z_rest), s.index_copy(0, self.rest, s_rest)
        return z, s

    def curvature(self) -> Tensor:
        signs = torch.ones_like(self.accurate, dtype=torch.int64)
        return signs.index_copy(0, self.rest, self.fallback.curvature()) if len(self.rest) else signs

    def flat_directions(self) -> tuple[Tensor, Tensor]:
        problems, directions = self.fallback.flat_directions()
        return self.rest[problems], directions
