"""The optimality conditions of convex quadratic programs: points, what they violate, and their active constraints.

minimise u' Q u / 2 + q' u   subject to   A u = b and G u + w = h, w >= 0,   L = f + y' (A u - b) + l' (G u - h)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from declarative.linear import ActiveFactorisation, DenseFactorisation, SchurReduction, times
from declarative.optimality import kink_tolerance

from .program import Program


@dataclass(frozen=True)
class Iterate:
    """A batch of points: u, the multipliers y and l, and the slacks w."""

    u: Tensor
    y: Tensor
    l: Tensor  # noqa: E741
    w: Tensor

    def moved(self, step: Iterate, length: Tensor) -> Iterate:
        """The points plus length times the step."""
        t = length.unsqueeze(-1)
        return Iterate(self.u + t * step.u, self.y + t * step.y, self.l + t * step.l, self.w + t * step.w)

    def tensors(self) -> tuple[Tensor, ...]:
        """u, y, l and w."""
        return self.u, self.y, self.l, self.w

    def select(self, rows: Tensor) -> Iterate:
        """The points at these positions (indices or a mask)."""
        return Iterate(*(x[rows] for x in self.tensors()))

    def put(self, rows: Tensor, other: Iterate) -> Iterate:
        """The other points at these positions."""
        return Iterate(*(x.index_copy(0, rows, y) for x, y in zip(self.tensors(), other.tensors(), strict=True)))

    def sound(self) -> Tensor:
        """Whether all numbers are finite and of a size that one can compute with."""
        limit = torch.finfo(self.u.dtype).eps ** -1.5
        small = torch.cat([x.abs() for x in self.tensors()], -1).amax(-1) < limit
        sound: Tensor = small & (torch.cat([self.w, self.l], -1) > 1 / limit).all(-1)
        return sound

    def where(self, mask: Tensor, other: Iterate) -> Iterate:
        """These points where the mask holds, the others elsewhere."""
        m = mask.unsqueeze(-1)
        return Iterate(*(torch.where(m, x, y) for x, y in zip(self.tensors(), other.tensors(), strict=True)))


@dataclass(frozen=True)
class Residuals:
    """Of stationarity, equalities and inequalities; and Q u, which is a part of the first."""

    dual: Tensor
    equal: Tensor
    unequal: Tensor
    curve: Tensor

    def select(self, rows: Tensor) -> Residuals:
        """Those of the programs at these positions."""
        return Residuals(self.dual[rows], self.equal[rows], self.unequal[rows], self.curve[rows])


def residuals(program: Program, point: Iterate, curve: Tensor | None = None) -> Residuals:
    """What is left of the optimality conditions but complementarity; ``curve`` is Q u, if it is known."""
    curve = times(program.Q, point.u) if curve is None else curve
    dual = curve + program.q + times(program.A.mT, point.y) + times(program.G.mT, point.l)
    equal, unequal = times(program.A, point.u) - program.b, times(program.G, point.u) + point.w - program.h
    return Residuals(dual, equal, unequal, curve)


def residual(program: Program, point: Iterate, right: Residuals | None = None) -> Tensor:  # (batch,)
    """The largest violation of the optimality conditions, relative to the sizes of the numbers in them."""
    right = residuals(program, point) if right is None else right
    force = _size(program.q, right.curve, point.l * program.steepest)
    far = _size(point.u)
    at_A, at_G = torch.maximum(program.b.abs(), far), torch.maximum(program.h.abs(), far)
    gap = point.w * point.l / (force * at_G)
    parts = (right.dual / force, right.equal / at_A, right.unequal / at_G, gap)
    return torch.cat(parts, -1).abs_().amax(-1).nan_to_num(nan=torch.inf)


def _size(*rows: Tensor) -> Tensor:  # (batch, 1)
    """The largest number in these rows, but at least 1, which is the size of objective, rows and bounds."""
    return torch.cat(rows, -1).abs_().amax(-1, keepdim=True).clamp_(min=1.0)


def solve_equality(
    program: Program, active: Tensor, reduction: SchurReduction
) -> tuple[Tensor, Tensor, ActiveFactorisation]:
    """u and the multipliers of [A; G], with the active rows (batch, p + n) as equations and without the others.

    Also the factorisation by which most of them, or all, were computed.
    """
    rows, level = program.rows, program.level
    factors = ActiveFactorisation.of(program.Q, rows, active, reduction)
    u, s = factors(-program.q, level)
    rest = (~factors.sound).nonzero().flatten()
    if len(rest):
        solve = DenseFactorisation(program.Q[rest], rows[rest], active[rest], None)
        u[rest], s[rest] = solve(-program.q[rest], level[rest])
    return u, s, factors


def is_weak(u: Tensor, slack: Tensor, pull: Tensor) -> Tensor:  # (batch, n)
    """Which inequalities of a normalised program have neither a slack nor a multiplier."""
    small = kink_tolerance(u.dtype)
    return (slack <= small * u.abs().amax(-1, keepdim=True).clamp(min=1.0)) & (pull <= small)


def decided(program: Program, u: Tensor, y: Tensor, pull: Tensor) -> tuple[Iterate, Tensor]:
    """The point with either a slack or a multiplier for every inequality, and which of them have neither."""
    slack = program.h - times(program.G, u)
    weak = is_weak(u, slack, pull)
    slack = slack.clamp_(min=0.0)
    held = (pull > slack) & ~weak
    return Iterate(u, y, torch.where(held, pull, 0.0), torch.where(held, 0.0, slack)), weak


def within_bounds(program: Program, point: Iterate) -> Tensor:  # (batch, m)
    """u without the rounding errors by which it misses a bound on a single entry, of rows of length 1."""
    if not program.h.shape[-1]:
        return point.u
    if not (program.steepest > 1 - torch.finfo(point.u.dtype).eps ** 0.5).any():  # no row has but one entry
        return point.u
    single, place, sign = (program.G != 0).sum(-1) == 1, program.G.abs().argmax(-1), program.G.sum(-1)
    held, bound = point.l > point.w, 0.0 + sign * program.h
    upper, lower = torch.full_like(point.u, torch.inf), torch.full_like(point.u, -torch.inf)
    upper.scatter_reduce_(-1, place, torch.where(single & (held | (sign > 0)), bound, torch.inf), "amin")
    lower.scatter_reduce_(-1, place, torch.where(single & (held | (sign < 0)), bound, -torch.inf), "amax")
    return point.u.clamp(lower, upper)
