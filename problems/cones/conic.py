"""Cone programs as data, and their units.

minimise u' P u / 2 + q' u   subject to   A u + s = b,  s in K
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from declarative.linear import or_one, times

from .product import Cones

ROUNDS = 8  # of the equilibration
REACH = 1e8  # how much farther away than |q| / |P| a solution may be


@dataclass(frozen=True)
class ConicProgram:
    """A batch of cone programs, P symmetric, in double precision."""

    cones: Cones
    P: Tensor  # (batch, m, m)
    q: Tensor  # (batch, m)
    A: Tensor  # (batch, k, m)
    b: Tensor  # (batch, k)

    def select(self, rows: Tensor) -> ConicProgram:
        """The problems at these positions (indices or a mask)."""
        return ConicProgram(self.cones, self.P[rows], self.q[rows], self.A[rows], self.b[rows])

    def slack(self, u: Tensor) -> Tensor:  # (batch, k)
        """b - A u."""
        return self.b - times(self.A, u)

    def slope(self, u: Tensor, z: Tensor) -> Tensor:  # (batch, m)
        """P u + q + A' z."""
        return times(self.P, u) + self.q + times(self.A.mT, z)


@dataclass(frozen=True)
class Units:
    """Those of a program that is equilibrated: u = of_u u~, s = of_s s~ and z = of_z z~."""

    of_u: Tensor  # (batch, m)
    of_s: Tensor  # (batch, k)
    of_z: Tensor  # (batch, k)

    def select(self, rows: Tensor) -> Units:
        """The problems at these positions."""
        return Units(self.of_u[rows], self.of_s[rows], self.of_z[rows])


def equilibrate(program: ConicProgram) -> tuple[ConicProgram, Units]:
    """The same programs in units in which the rows and columns of [P A'; A 0], b and q are of size 1 (Ruiz).

    All rows of a cone that is not a half-line have the same unit, and powers of 2 keep all digits.
    """
    cones, P, A = program.cones, program.P, program.A
    columns, rows = torch.ones_like(program.q), torch.ones_like(program.b)
    for _ in range(ROUNDS):
        of_A = A.abs()
        wide = torch.maximum(P.abs().amax(-1), _largest(of_A, -2))
        high = cones.repeated(cones.each(lambda _, x: x.squeeze(-1).amax(-1), _largest(of_A, -1).unsqueeze(-1)))
        left, right = _power_of_two(or_one(high).rsqrt()), _power_of_two(or_one(wide).rsqrt())
        P, A = P * right.unsqueeze(-1) * right.unsqueeze(-2), A * left.unsqueeze(-1) * right.unsqueeze(-2)
        columns, rows = columns * right, rows * left
        if bool((left == 1).all() & (right == 1).all()):
            break
    q, b = program.q * columns, program.b * rows
    size, slope = _largest(P.flatten(1).abs(), -1), _largest(q.abs(), -1)
    unit = _power_of_two(_unit(b, slope / or_one(size))).unsqueeze(-1)
    worth = _power_of_two(or_one(torch.maximum(size * unit.squeeze(-1), slope))).unsqueeze(-1)
    scaled = ConicProgram(cones, P * (unit / worth).unsqueeze(-1), q / worth, A, b / unit)
    return scaled, Units(columns * unit, unit / rows, worth * rows)


def _unit(b: Tensor, curved: Tensor) -> Tensor:  # (batch, k), (batch,) -> (batch,)
    """A size for u: that of its bounds or, where they are zero or out of reach, that of the objective's minimiser."""
    level, curved = (torch.where(x != 0, x.abs(), torch.nan) for x in (b, curved))
    bound = torch.nn.functional.pad(level, (0, 1), value=torch.nan).nanmedian(-1).values
    return or_one(torch.where(bound.isnan(), curved, torch.fmin(bound, REACH * curved)).nan_to_num(nan=1.0))


def _largest(x: Tensor, dim: int) -> Tensor:
    """The maximum, 0 if there are no entries."""
    return x.amax(dim) if x.shape[dim] else x.sum(dim)


def _power_of_two(x: Tensor) -> Tensor:
    return torch.exp2(x.log2().round())
