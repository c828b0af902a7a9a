"""Convex quadratic programs as data: programs, points, what these violate, and the active constraints.

minimise u' Q u / 2 + q' u   subject to   A u = b and G u + w = h, w >= 0,   L = f + y' (A u - b) + l' (G u - h)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cached_property
from typing import NamedTuple, Self

import torch
from torch import Tensor

from declarative.linear import ActiveFactorisation, DenseFactorisation, SchurReduction, or_one, times
from declarative.optimality import kink_tolerance

REACH = 1e8  # how much farther away than |q| / |Q| a solution may be, by the condition of Q


class Rows:
    """Abstract: a dataclass of tensors with a row for each problem."""

    def tensors(self) -> list[Tensor]:
        """The fields."""
        return [getattr(self, one.name) for one in fields(self)]  # type: ignore[arg-type]

    def select(self, rows: Tensor) -> Self:
        """The problems at these positions (indices or a mask)."""
        return type(self)(*(x[rows] for x in self.tensors()))

    def combined(self, other: Self, function: Callable[[Tensor, Tensor], Tensor]) -> Self:
        """A function of the fields of both."""
        return type(self)(*(function(x, y) for x, y in zip(self.tensors(), other.tensors(), strict=True)))


@dataclass(frozen=True)
class Program(Rows):
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

    def forces(self, point: Iterate) -> Tensor:  # (batch, m)
        """The sizes of the terms of D_U L at a point.

        Those of Q u are at least those of a product R' R u, whose entries are no larger than sqrt(Q_ii Q_jj).
        """
        pulls = times(self.A.abs().mT, point.y.abs()) + times(self.G.abs().mT, point.l.abs())
        root = torch.diagonal(self.Q, dim1=-2, dim2=-1).abs().sqrt()
        curved = root * (root * point.u.abs()).sum(-1, keepdim=True)
        return torch.maximum(times(self.Q.abs(), point.u.abs()), curved) + self.q.abs() + pulls

    def to(self, dtype: torch.dtype) -> Program:
        """The same programs in another precision."""
        return Program(*(x.to(dtype) for x in self.tensors()))

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


@dataclass(frozen=True)
class Iterate(Rows):
    """A batch of points: u, the multipliers y and l, and the slacks w."""

    u: Tensor
    y: Tensor
    l: Tensor  # noqa: E741
    w: Tensor

    def moved(self, step: Iterate, length: Tensor) -> Iterate:
        """The points plus length times the step."""
        return self.combined(step, lambda x, dx: x + length.unsqueeze(-1) * dx)

    def put(self, rows: Tensor, other: Iterate) -> Iterate:
        """The other points at these positions."""
        return self.combined(other, lambda x, y: x.index_copy(0, rows, y))

    def where(self, mask: Tensor, other: Iterate) -> Iterate:
        """These points where the mask holds, the others elsewhere."""
        return self.combined(other, lambda x, y: torch.where(mask.unsqueeze(-1), x, y))

    def sound(self) -> Tensor:
        """Whether all numbers are finite and of a size that one can compute with."""
        limit = torch.finfo(self.u.dtype).eps ** -1.5
        small = torch.cat([x.abs() for x in self.tensors()], -1).amax(-1) < limit
        sound: Tensor = small & (torch.cat([self.w, self.l], -1) > 1 / limit).all(-1)
        return sound


@dataclass(frozen=True)
class Residuals(Rows):
    """Of stationarity, equalities and inequalities; and Q u, which is a part of the first."""

    dual: Tensor
    equal: Tensor
    unequal: Tensor
    curve: Tensor


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


def is_weak(program: Program, u: Tensor, y: Tensor, slack: Tensor, pull: Tensor) -> Tensor:  # (batch, n)
    """Which inequalities of a normalised program have neither a slack nor a multiplier."""
    small = kink_tolerance(u.dtype)
    weak = (slack <= small * u.abs().amax(-1, keepdim=True).clamp(min=1.0)) & (pull <= small)
    rows = (weak & (pull > 0)).any(-1).nonzero().flatten()
    if len(rows):  # a multiplier is small beside the other forces along the entries of u that its constraint acts on
        part, at = program.select(rows), Iterate(u[rows], y[rows], pull[rows], slack[rows])
        forces = part.forces(at) + torch.finfo(u.dtype).eps * part.Q.abs().sum(-1) * _size(at.u)
        effect = (part.G.abs() / or_one(forces).unsqueeze(-2)).amax(-1) * at.l
        weak = weak.index_copy(0, rows, weak[rows] & (effect <= small))
    return weak


def decided(program: Program, u: Tensor, y: Tensor, pull: Tensor) -> tuple[Iterate, Tensor]:
    """The point with either a slack or a multiplier for every inequality, and which of them have neither."""
    slack = program.h - times(program.G, u)
    weak = is_weak(program, u, y, slack, pull)
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
