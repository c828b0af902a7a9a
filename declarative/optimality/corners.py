"""Does a solution lie on a corner? By the slopes of L to both sides of it, a short way and a shorter one.

At a corner torch takes a slope between those of the two sides, often zero. By that slope a maximum may look like a
solution, and at a minimum the curvature is that of one side, or of none. Along a direction the slope of a smooth L
changes in proportion to the length of the way, and to both sides by the same amount. Where it changes as much over an
eighth of the way, it jumps; where its changes to the two sides differ in proportion to the way, the curvature jumps.

Directions are along the constraints that hold with equality: what is beyond them is not for u to find.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..linear import or_one
from ..linear.directions import irregular
from ..problem import Batch
from ..structure import Structure
from .conditions import ROUNDING, Terms

SHORTER = 8  # times shorter is the shorter way
UNEVEN = 1e-3  # of the changes to both sides: if they differ by less, curvature does not jump
HELD = 1e-9  # of a direction: what is left of it along the constraints if these hold an unknown
COARSE = 100  # units in the last place of the points: what is nearer to a corner is on it
MOST_UNKNOWNS = 16  # of a problem that are looked along one by one
FREQUENCIES = (0.7, 1.9)  # of the directions along which all unknowns change


class Sides(NamedTuple):
    """What is to the sides of the points, each (batch,)."""

    bent: Tensor  # whether a slope or a curvature jumps
    falls: Tensor  # whether L falls to a side: there is no minimum
    level: Tensor  # whether L is level to a side: there are other solutions


def slopes_to_the_sides(
    batch: Batch,
    u: Tensor,  # (batch, m)
    multipliers: Tensor,  # (batch, k)
    held: Tensor,  # which constraints hold with equality, (batch, k)
    dtype: torch.dtype,
    structure: Structure = "auto",
) -> Sides:
    """Look to the sides of solutions in this precision; where something jumps, along each unknown by itself too.

    Example:
        >>> import torch
        >>> from declarative.problem import Batch, Problem
        >>> x = torch.tensor([0.0, 1.0, -1.0], dtype=torch.float64)
        >>> batch = Batch(Problem(lambda x, u: u.square() + x * u.abs()), (x,), (0,), 3, torch.Size([]), 0, 0)
        >>> none = x.new_zeros(3, 0)
        >>> sides = slopes_to_the_sides(batch, x.new_zeros(3, 1), none, none.bool(), x.dtype)
        >>> sides.bent.tolist(), sides.falls.tolist()
        ([False, True, True], [False, False, True])
    """
    terms, form = Terms.at(batch, u, multipliers, structure), batch.layout.jacobian
    unit = terms.scale(held) + terms.energy_scale()
    unit = or_one(torch.where(unit > 0, unit, terms.longest))
    rows = form.scale_columns(form.scale_rows(terms.jacobian, held.to(u.dtype)), unit)
    look = _Look(batch, u, multipliers, unit, rows, terms.force)
    length = max(torch.finfo(u.dtype).eps ** 0.5, COARSE * torch.finfo(dtype).eps)
    ways = [irregular(u, frequency) for frequency in FREQUENCIES]
    found = look.along(torch.stack([torch.where(way < 0, way - 1, way + 1) / 2 for way in ways], 1), length)
    if not bool(found.bent.any()) or not 1 < batch.m <= MOST_UNKNOWNS:
        return found
    bent = found.bent.nonzero().flatten()
    axes = torch.eye(batch.m, dtype=u.dtype, device=u.device).expand(len(bent), -1, -1)
    closer = look.take(bent).along(axes, length)
    return Sides(*(seen.index_put((bent,), seen[bent] | more) for seen, more in zip(found, closer, strict=True)))


class _Look(NamedTuple):
    """Where to look from."""

    batch: Batch
    u: Tensor  # (batch, m)
    multipliers: Tensor  # (batch, k)
    unit: Tensor  # what a change of u is, (batch, m)
    rows: Tensor  # of the constraints that hold with equality, by this unit, as the layout has them
    force: Tensor  # of the terms of D_U L, (batch, m)

    def take(self, index: Tensor) -> _Look:
        """From the points at these positions."""
        return _Look(self.batch.select(index), *(x[index] for x in self[1:]))

    def along(self, directions: Tensor, length: float) -> Sides:  # (batch, count, m)
        """What is seen along directions, in units of u, over this length and a shorter one."""
        batch, count = self.batch, directions.shape[1]
        ways = torch.stack([self._unconstrained(way) for way in directions.unbind(1)], 1) * self.unit.unsqueeze(1)
        lengths = [0.0, *(side * far for far in (length, length / SHORTER) for side in (1.0, -1.0))]
        points = torch.stack([self.u.unsqueeze(1) + far * ways for far in lengths], 2)  # (batch, count, 5, m)
        each = torch.arange(batch.size, device=self.u.device).repeat_interleave(count * len(lengths))
        slopes = batch.select(each).gradient(points.flatten(0, 2), self.multipliers[each]).view_as(points)
        here, there = slopes[:, :, 0], slopes[:, :, 1:]
        far, near = (there - here.unsqueeze(2)).unflatten(2, (2, 2)).unbind(2)  # (batch, count, sides, m) each
        noise = ROUNDING * torch.finfo(self.u.dtype).eps * self.force[:, None, None]
        jumps = near.abs() > torch.maximum(noise, far.abs() / 2)
        uneven, before = near.sum(2).abs(), far.sum(2).abs()
        least = torch.maximum(noise.squeeze(2), torch.maximum(2 * before / SHORTER**2, UNEVEN * near.abs().amax(2)))
        bent = jumps.flatten(1).any(-1) | (uneven > least).flatten(1).any(-1)
        sides = ways.unsqueeze(2) * ways.new_tensor([1.0, -1.0]).view(2, 1)
        small = (noise * sides.abs()).sum(-1)
        falls = ((near * sides).sum(-1) < -small) & ((far * sides).sum(-1) < -small)
        still = (far.abs() <= noise).all(-1) & (ways != 0).any(-1, keepdim=True)
        return Sides(bent, *(bent & seen.flatten(1).any(-1) for seen in (falls, still)))

    def _unconstrained(self, way: Tensor) -> Tensor:  # (batch, m)
        """What is left of a direction along the constraints."""
        if not self.batch.k:
            return way
        layout = self.batch.layout
        missed = layout.jacobian.multiply(self.rows, way)
        left = way - layout.least_norm(self.rows.nan_to_num(0.0, 0.0, 0.0))(missed)
        return torch.where(left.abs() > HELD, left, 0.0)
