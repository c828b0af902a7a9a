"""Convex quadratic programs, a batch at a time: by pivots, or by a primal-dual interior-point method.

    minimise u' Q u / 2 + q' u   subject to   A u = b and G u + w = h, w >= 0

Where Q is definite, a dual method finds the active constraints by pivots, and most programs are solved by that. For the
others, with multipliers y of the equalities and l >= 0 of the inequalities, each iteration takes Mehrotra's predictor
and corrector steps towards w_i l_i = mu -> 0. What they find is good to about half of the digits and tells which
constraints are active; one solution of the optimality conditions with those gives the rest of the digits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from declarative.linear import ActiveFactorisation, DenseFactorisation, SchurReduction, times
from declarative.optimality import optimality_tolerance

from .active_set import find_active
from .flats import fall, next_constraint
from .program import Iterate, Program, Residuals, decided, residual, residuals, solve_equality, within_bounds

IDLE_ITERATIONS = 4  # iterations that need not bring progress
CORNERS = 4  # sets of active constraints to solve with, besides those that a slope leads to
START_DISTANCE = 10.0  # how far from the origin to start, in units of the bounds


class Solved(NamedTuple):
    """What is found of every program."""

    point: Iterate
    iterations: Tensor  # (batch,)
    residual: Tensor  # (batch,)
    factors: ActiveFactorisation | None  # the factorisation with the active constraints, if it is good for all

    def put(self, rows: Tensor, other: Solved) -> Solved:
        """The others at these positions."""
        mine, part = self.factors, other.factors
        return Solved(
            self.point.put(rows, other.point),
            self.iterations.index_copy(0, rows, other.iterations),
            self.residual.index_copy(0, rows, other.residual),
            None if mine is None or part is None else mine.put(rows, part),
        )


def solve_program(program: Program, limit: int) -> Solved:
    """By pivots where that leads to a clear answer, and by interior points elsewhere."""
    reduction = SchurReduction.of(program.Q, program.rows)
    found = _by_pivots(program, reduction, limit)
    good = found.residual <= optimality_tolerance(program.Q.dtype)
    if good.all():
        return found
    if not good.any():
        return _by_interior_points(program, reduction, limit)
    rest = (~good).nonzero().flatten()
    return found.put(rest, _by_interior_points(program.select(rest), reduction.take(rest), limit))


def _by_pivots(program: Program, reduction: SchurReduction, limit: int) -> Solved:
    """The solution with the constraints that are clearly active; its residual is infinite where this is not clear."""
    p, first, table = program.b.shape[-1], reduction.start(-program.q), reduction.product()
    x = program.level - times(reduction.half.mT, first)
    active, count, clear = find_active(table, x, reduction.sound, p, limit)
    if not clear.any():
        nowhere = Iterate(program.q, program.b, program.h, program.h)
        return Solved(nowhere, count, torch.full_like(program.q[:, 0], torch.inf), None)
    mask = active.to(table.dtype)
    inverse, s = table.mul_(mask.unsqueeze(-1)).mul_(-mask.unsqueeze(-2)), mask * x
    factors = ActiveFactorisation(program.Q, program.rows, active, reduction, inverse, clear)
    u, s = factors.refine(reduction.end(first, s), s, -program.q, mask * program.level)
    near = Iterate(u, s[:, :p], s[:, p:], torch.where(active, -1.0, 1.0)[:, p:])
    point, _ = decided(program, within_bounds(program, near), near.y, near.l)
    return Solved(point, count, torch.where(clear, residual(program, point), torch.inf), factors)


def _by_interior_points(program: Program, reduction: SchurReduction, limit: int) -> Solved:
    """Until the active set is clear; where that is not enough, as far as it goes.

    At a corner with more active constraints than directions, slacks and multipliers vanish slowly, as the square roots
    of their products.
    """
    eps = torch.finfo(program.Q.dtype).eps
    point, count, lowest = _approach(program, _first_point(program, reduction), reduction, limit, eps**0.6)
    found = _finish(program, point, count, lowest, reduction)
    rest = (~(found.residual <= optimality_tolerance(program.Q.dtype))).nonzero().flatten()
    if not len(rest):
        return found
    part, reduction, done = program.select(rest), reduction.take(rest), count[rest]
    point, more, lowest = _approach(part, point.select(rest), reduction, limit - int(done.max()), eps**0.95)
    return found.put(rest, _finish(part, point, done + more, lowest, reduction))


def _approach(
    program: Program, point: Iterate, reduction: SchurReduction, limit: int, goal: float
) -> tuple[Iterate, Tensor, Tensor]:
    """The best points, iterations and residuals; each stops at the goal, without progress or as it diverges."""
    rows, part, best = torch.arange(len(program.q), device=program.q.device), program, point
    by_rows = reduction if program.size <= 2 * program.q.shape[-1] else None
    right = residuals(program, point)
    lowest = residual(program, point, right)
    iterations, idle = torch.zeros_like(rows), torch.zeros_like(rows)
    sound = torch.ones_like(rows, dtype=torch.bool)
    for _ in range(limit):
        keep = sound & (lowest[rows] > goal) & (idle[rows] < IDLE_ITERATIONS)
        if not keep.all():
            rows, part, point, right = rows[keep], part.select(keep), point.select(keep), right.select(keep)
            by_rows = None if by_rows is None else by_rows.take(keep)
        if not len(rows):
            break
        point = point.moved(*_step(part, point, right, by_rows))
        right, sound = residuals(part, point), point.sound()
        now = residual(part, point, right)
        better = sound & (now < lowest[rows])
        best = best.put(rows[better], point.select(better))
        idle[rows] = torch.where(better, 0, idle[rows] + 1)
        lowest[rows] = torch.where(better, now, lowest[rows])
        iterations[rows] += sound
    return best, iterations, lowest


def _first_point(program: Program, reduction: SchurReduction) -> Iterate:
    """The minimiser without inequalities, the slacks that it leaves, and both kept away from zero."""
    count = program.h.shape[-1]
    none = torch.zeros_like(program.h, dtype=torch.bool)
    active = torch.cat([torch.ones_like(program.b, dtype=torch.bool), none], -1)
    u, s, _ = solve_equality(program, active, reduction)
    if count:  # where Q is hardly curved, that minimiser is far from everything
        shrink = (START_DISTANCE / u.abs().amax(-1, keepdim=True)).clamp(max=1.0)
        u, s = shrink * u, shrink * s
    slack = program.h - times(program.G, u)
    if not count:
        return Iterate(u, s, slack, slack.clone())
    scale = slack.abs().amax(-1, keepdim=True).clamp(min=1.0)
    slope = (times(program.Q, u) + program.q).abs().amax(-1, keepdim=True).clamp(min=1.0)
    return Iterate(u, s[:, : program.b.shape[-1]], slope.expand_as(slack), torch.maximum(slack, 0.1 * scale))


def _step(
    program: Program, point: Iterate, right: Residuals, reduction: SchurReduction | None
) -> tuple[Iterate, Tensor]:
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


def _directions(program: Program, point: Iterate, right: Residuals, reduction: SchurReduction | None) -> Direction:
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


def _finish(program: Program, point: Iterate, count: Tensor, lowest: Tensor, reduction: SchurReduction) -> Solved:
    """Solve the optimality conditions with the constraints that are active, and take the result where it is better.

    Where Q is singular, a slope along a direction without curvature leads to the next constraint, which joins them.
    """
    p, held, before = program.b.shape[-1], point.l > point.w, None
    falling = torch.zeros_like(reduction.sound)
    for step in range(CORNERS + program.q.shape[-1]):
        if before is not None and (torch.equal(held, before) or (step >= CORNERS and not falling.any())):
            break
        active, before = torch.cat([torch.ones_like(program.b, dtype=torch.bool), held], -1), held
        u, s, factors = solve_equality(program, active, reduction)
        slack = program.h - times(program.G, u)
        pull = torch.where(held, s[:, p:], 0.0)
        corner = Iterate(u, s[:, :p], pull.clamp(min=0.0), torch.where(held, 0.0, slack.clamp(min=0.0)))
        way = _fall(program, corner, reduction)
        now, falling = residual(program, corner), way.any(-1)
        better = (now < lowest) & ~falling
        point, lowest = corner.where(better, point), torch.where(better, now, lowest)
        # What is violated joins, and a multiplier of the wrong sign drops out.
        moved = torch.where(held, pull > 0, slack < 0) | (next_constraint(program, corner, way)[0])
        held = moved if step < CORNERS else torch.where(falling.unsqueeze(-1), moved, held)
    point, _ = decided(program, within_bounds(program, point), point.y, point.l)
    # One that still falls is no solution, however small the slope is.
    found = torch.where(_fall(program, point, reduction).any(-1), 1.0, residual(program, point))
    return Solved(point, count, found, factors if factors.sound.all() else None)


def _fall(program: Program, point: Iterate, reduction: SchurReduction) -> Tensor:  # (batch, m)
    """The way down along flat directions, which there are none of where Q is definite."""
    way, rest = torch.zeros_like(point.u), (~reduction.sound).nonzero().flatten()
    return way.index_copy(0, rest, fall(program.select(rest), point.select(rest))) if len(rest) else way
