"""Quadratic programs as data, and in units of their own."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from declarative.linear import or_one

REACH = 1e8  # how much farther away than |q| / |Q| a solution may be, by the condition of Q


@dataclass(frozen=True)
class Program:
    """A batch of quadratic programs, Q symmetric."""

    Q: Tensor  # (batch, m, m)
    q: Tensor  # (batch, m)
    A: Tensor  # (batch, p, m)
    b: Tensor  # (batch, p)
    G: Tensor  # (batch, n, m)
    h: Tensor  # (batch, n)

    @property
    def size(self) -> int:
        """How many constraints there are."""
        return self.b.shape[-1] + self.h.shape[-1]

    @cached_property
    def rows(self) -> Tensor:  # (batch, p + n, m)
        """[A; G]."""
        return torch.cat([self.A, self.G], -2)

    @cached_property
    def level(self) -> Tensor:  # (batch, p + n)
        """[b; h]."""
        return torch.cat([self.b, self.h], -1)

    @cached_property
    def steepest(self) -> Tensor:  # (batch, n)
        """The largest entry of each row of G."""
        return self.G.abs().amax(-1)

    def select(self, rows: Tensor) -> Program:
        """The programs at these positions."""
        return Program(*(x[rows] for x in (self.Q, self.q, self.A, self.b, self.G, self.h)))

    def to(self, dtype: torch.dtype) -> Program:
        """The same programs in another precision."""
        return Program(*(x.to(dtype) for x in (self.Q, self.q, self.A, self.b, self.G, self.h)))

    def normalised(self, *, with_q: bool = True) -> Normalised:
        """The same programs with an objective of size 1, rows of length 1 and bounds of size 1: units do not matter.

        Q itself is overwritten (it is large, and to get new memory takes longer than the division) or left as it is.
        """
        largest = torch.maximum(self.Q.amax((-2, -1)), -self.Q.amin((-2, -1)))
        slope = self.q.abs().amax(-1)
        of_A, of_G = (or_one(torch.linalg.vector_norm(rows, dim=-1)) for rows in (self.A, self.G))
        unit = _unit(torch.cat([self.b / of_A, self.h / of_G], -1), slope / largest).unsqueeze(-1)
        size = or_one(torch.maximum(largest.unsqueeze(-1) * unit, slope.unsqueeze(-1)))
        objective = self.Q.mul_((unit / size).unsqueeze(-1)) if with_q else self.Q, self.q / size
        rows = self.A / of_A.unsqueeze(-1), self.b / of_A / unit, self.G / of_G.unsqueeze(-1), self.h / of_G / unit
        return Normalised(Program(*objective, *rows), size, unit, size / of_A, size / of_G)


class Normalised(NamedTuple):
    """Programs in units of their own, as functions of u / unit."""

    program: Program
    size: Tensor  # of the objective over that of u, (batch, 1)
    unit: Tensor  # of u, (batch, 1)
    of_y: Tensor  # by which to multiply y to have that of the given programs, (batch, p)
    of_l: Tensor  # and l, (batch, n)


def _unit(level: Tensor, curved: Tensor) -> Tensor:  # (batch, p + n), (batch,) -> (batch,)
    """A size for u: that of its bounds or, where they are zero or out of reach, that of the objective's minimiser."""
    level, curved = (torch.where(x != 0, x.abs(), torch.nan) for x in (level, curved))
    bound = torch.nn.functional.pad(level, (0, 1), value=torch.nan).nanmedian(-1).values
    unit = torch.where(bound.isnan(), curved, torch.fmin(bound, REACH * curved))
    return or_one(unit)
