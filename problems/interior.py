"""Convex quadratic programs, a batch at a time: a primal-dual interior-point method, finished on the active set.

    minimise u' Q u / 2 + q' u   subject to   A u = b and G u + w = h, w >= 0

With multipliers y of the equalities and l >= 0 of the inequalities (L = f + y' (A u - b) + l' (G u - h)), each
iteration takes Mehrotra's predictor and corrector steps towards w_i l_i = mu -> 0. What it finds is good to about
half of the digits and tells which constraints are active; one solution of the optimality conditions with those gives
the rest of the digits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from declarative.linear.dense import DenseFactorisation
from declarative.optimality import optimality_tolerance

from .active_set import find_active
from .program import Program
from .systems import Left, Reduction, thin_product, times

PATIENCE = 4  # iterations that need not bring progress
NEAR = 10.0  # how far from the origin to start, in units of the bounds


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


def solve_equality(program: Program, active: Tensor, reduction: Reduction) -> tuple[Tensor, Tensor, Left]:
    """u and the multipliers of [A; G], with the active rows (batch, p + n) as equations and without the others.

    Also the factorisation by which most of them, or all, were computed.
    """
    rows, level = program.rows, program.level
    left = Left.of(program.Q, rows, active, reduction)
    u, s = left(-program.q, level)
    rest = (~left.sound).nonzero().flatten()
    if len(rest):
        solve = DenseFactorisation(program.Q[rest], rows[rest], active[rest], None)
        u[rest], s[rest] = solve(-program.q[rest], level[rest])
    return u, s, left


class Solved(NamedTuple):
    """What is found of every program."""

    point: Iterate
    iterations: Tensor  # (batch,)
    residual: Tensor  # (batch,)
    left: Left | None  # the factorisation with the active constraints, if it is good for all

    def put(self, rows: Tensor, other: Solved) -> Solved:
        """The others at these positions."""
        mine, part = self.left, other.left
        return Solved(
            self.point.put(rows, other.point),
            self.iterations.index_copy(0, rows, other.iterations),
            self.residual.index_copy(0, rows, other.residual),
            None if mine is None or part is None else mine.put(rows, part),
        )


def solve_program(program: Program, limit: int) -> Solved:
    """By pivots where that leads to a clear answer, and by interior points elsewhere."""
    reduction = Reduction.of(program.Q, program.rows)
    found = _by_pivots(program, reduction, limit)
    good = found.residual <= optimality_tolerance(program.Q.dtype)
    if good.all():
        return found
    if not good.any():
        return _by_interior_points(program, reduction, limit)
    rest = (~good).nonzero().flatten()
    return found.put(rest, _by_interior_points(program.select(rest), reduction.take(rest), limit))


def _by_pivots(program: Program, reduction: Reduction, limit: int) -> Solved:
    """The solution with the constraints that are clearly active; its residual is infinite where this is not clear."""
    p, first, table = program.b.shape[-1], reduction.start(-program.q), reduction.product()
    x = program.level - thin_product(reduction.half.mT, first).squeeze(-1)
    active, count, clear = find_active(table, x, reduction.sound, p, limit)
    if not clear.any():
        nowhere = Iterate(program.q, program.b, program.h, program.h)
        return Solved(nowhere, count, torch.full_like(program.q[:, 0], torch.inf), None)
    mask = active.to(table.dtype)
    inverse, s = table.mul_(mask.unsqueeze(-1)).mul_(-mask.unsqueeze(-2)), mask * x
    left = Left(program.Q, program.rows, active, reduction, inverse, clear)
    u, s = left.refine(reduction.end(first, s.unsqueeze(-1)), s, -program.q, mask * program.level)
    point = _corner(program, active[:, p:], u, s)
    point = replace(point, u=within_bounds(program, point))
    return Solved(point, count, torch.where(clear, residual(program, point), torch.inf), left)


def _corner(program: Program, held: Tensor, u: Tensor, s: Tensor) -> Iterate:
    """A point with these constraints as equations, without what is wrong about slacks and multipliers."""
    p = program.b.shape[-1]
    slack = torch.where(held, 0.0, (program.h - times(program.G, u)).clamp_(min=0.0))
    return Iterate(u, s[:, :p], torch.where(held, s[:, p:].clamp(min=0.0), 0.0), slack)


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


def _by_interior_points(program: Program, whole: Reduction, limit: int) -> Solved:
    """Each program stops when it is solved, makes no progress or diverges."""
    rows, (k, m) = torch.arange(len(program.q), device=program.q.device), (program.size, program.q.shape[-1])
    point = best = _first_point(program, whole)
    part, reduction = program, whole if k <= 2 * m else None
    right = residuals(program, point)
    lowest = residual(program, point, right)
    iterations, idle = torch.zeros_like(rows), torch.zeros_like(rows)
    goal = torch.finfo(program.Q.dtype).eps ** 0.6  # the active set is clear by then
    sound = torch.ones_like(rows, dtype=torch.bool)
    for _ in range(limit):
        keep = sound & (lowest[rows] > goal) & (idle[rows] < PATIENCE)
        if not keep.all():
            rows, part, point, right = rows[keep], part.select(keep), point.select(keep), right.select(keep)
            reduction = None if reduction is None else reduction.take(keep)
        if not len(rows):
            break
        point = point.moved(*_step(part, point, right, reduction))
        right, sound = residuals(part, point), point.sound()
        now = residual(part, point, right)
        better = sound & (now < lowest[rows])
        best = best.put(rows[better], point.select(better))
        idle[rows] = torch.where(better, 0, idle[rows] + 1)
        lowest[rows] = torch.where(better, now, lowest[rows])
        iterations[rows] += sound
    point, left = _finish(program, best, lowest, whole)
    point = replace(point, u=within_bounds(program, point))
    return Solved(point, iterations, residual(program, point), left)


def _first_point(program: Program, reduction: Reduction) -> Iterate:
    """The minimiser without inequalities, the slacks that it leaves, and both kept away from zero."""
    count = program.h.shape[-1]
    none = torch.zeros_like(program.h, dtype=torch.bool)
    active = torch.cat([torch.ones_like(program.b, dtype=torch.bool), none], -1)
    u, s, _ = solve_equality(program, active, reduction)
    if count:  # where Q is hardly curved, that minimiser is far from everything
        shrink = (NEAR / u.abs().amax(-1, keepdim=True)).clamp(max=1.0)
        u, s = shrink * u, shrink * s
    slack = program.h - times(program.G, u)
    if not count:
        return Iterate(u, s, slack, slack.clone())
    scale = slack.abs().amax(-1, keepdim=True).clamp(min=1.0)
    slope = (times(program.Q, u) + program.q).abs().amax(-1, keepdim=True).clamp(min=1.0)
    return Iterate(u, s[:, : program.b.shape[-1]], slope.expand_as(slack), torch.maximum(slack, 0.1 * scale))


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


def _step(program: Program, point: Iterate, right: Residuals, reduction: Reduction | None) -> tuple[Iterate, Tensor]:
    """Mehrotra's direction, and how far along it slacks and multipliers stay positive."""
    product = point.w * point.l
    direction = _directions(program, point, right, reduction)
    predictor = direction(product)
    if not product.shape[-1]:
        return predictor, torch.ones_like(point.u[:, 0])
    mu = product.mean(-1, keepdim=True)
    length = _longest(point, predictor, 1.0).unsqueeze(-1)
    ahead = torch.addcmul(point.w, length, predictor.w) * torch.addcmul(point.l, length, predictor.l)
    centring = (ahead.mean(-1, keepdim=True) / mu) ** 3
    step = direction(product + predictor.w * predictor.l - centring * mu)
    return step, _longest(point, step, 0.995)


Direction = Callable[[Tensor], Iterate]


def _directions(program: Program, point: Iterate, right: Residuals, reduction: Reduction | None) -> Direction:
    """The solution, as a function of the products that are to vanish, of

        Q du + A' dy + G' dl = -dual,   A du = -equal,   G du + dw = -unequal,   l dw + w dl = -product,

    with u eliminated where Q allows it, and slacks and their multipliers elsewhere.
    """
    if reduction is None:
        return _primal_directions(program, point, right)
    p, ratio = program.b.shape[-1], point.w / point.l
    solve, good = reduction.factorise(torch.cat([torch.zeros_like(program.b), ratio], -1))
    rest = (~good).nonzero().flatten()
    fallback = None
    if len(rest):
        fallback = _primal_directions(program.select(rest), point.select(rest), right.select(rest))

    def direction(product: Tensor) -> Iterate:
        du, s = solve(-right.dual, torch.cat([-right.equal, product / point.l - right.unequal], -1))
        step = Iterate(du, s[:, :p], s[:, p:], -right.unequal - times(program.G, du))
        return step if fallback is None else step.put(rest, fallback(product[rest]))

    return direction


def _primal_directions(program: Program, point: Iterate, right: Residuals) -> Direction:
    """With H = Q + G' diag(l / w) G."""
    weights = (point.l / point.w).unsqueeze(-1)
    hessian = program.Q + program.G.mT @ (weights * program.G)
    solve = DenseFactorisation(hessian, program.A, torch.ones_like(program.b, dtype=torch.bool), None)

    def direction(product: Tensor) -> Iterate:
        force = (point.l * right.unequal - product) / point.w  # dl = force + (l / w) G du
        du, dy = solve(-right.dual - times(program.G.mT, force), -right.equal)
        dw = -right.unequal - times(program.G, du)
        return Iterate(du, dy, -(product + point.l * dw) / point.w, dw)

    return direction


def _longest(point: Iterate, step: Iterate, fraction: float) -> Tensor:
    """The longest step up to 1 that leaves this fraction of the way to the boundary."""
    ratios = [torch.where(d < 0, -x / d, torch.inf) for x, d in ((point.w, step.w), (point.l, step.l))]
    return (fraction * torch.cat(ratios, -1).amin(-1)).clamp(max=1.0)


def _finish(program: Program, point: Iterate, lowest: Tensor, reduction: Reduction) -> tuple[Iterate, Left | None]:
    """Solve the optimality conditions with the constraints that are active, and take the result where it is better.

    Also the factorisation, if it was good for all.
    """
    p, held, before = program.b.shape[-1], point.l > point.w, None
    for _ in range(4):
        if before is not None and torch.equal(held, before):
            break
        active, before = torch.cat([torch.ones_like(program.b, dtype=torch.bool), held], -1), held
        u, s, left = solve_equality(program, active, reduction)
        corner = _corner(program, held, u, s)
        now = residual(program, corner)
        better = now < lowest
        point, lowest = corner.where(better, point), torch.where(better, now, lowest)
        # What is violated joins, and a multiplier of the wrong sign drops out.
        held = torch.where(held, s[:, p:] > 0, program.h < times(program.G, u))
    return point, left if left.sound.all() else None
