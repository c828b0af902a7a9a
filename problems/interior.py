"""Convex quadratic programs, a batch at a time: a primal-dual interior-point method, finished on the active set.

    minimise u' Q u / 2 + q' u   subject to   A u = b and G u + w = h, w >= 0

With multipliers y of the equalities and l >= 0 of the inequalities (L = f + y' (A u - b) + l' (G u - h)), each
iteration takes Mehrotra's predictor and corrector steps towards w_i l_i = mu -> 0. What it finds is good to about
half of the digits and tells which constraints are active; one solution of the optimality conditions with those gives
the rest of the digits.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from declarative.factorisation import Solve, factorise_dense

PATIENCE = 4  # iterations that need not bring progress


@dataclass(frozen=True)
class Program:
    """A batch of quadratic programs, Q symmetric."""

    Q: Tensor  # (batch, m, m)
    q: Tensor  # (batch, m)
    A: Tensor  # (batch, p, m)
    b: Tensor  # (batch, p)
    G: Tensor  # (batch, n, m)
    h: Tensor  # (batch, n)

    def select(self, rows: Tensor) -> Program:
        """The programs at these positions."""
        return Program(*(x[rows] for x in (self.Q, self.q, self.A, self.b, self.G, self.h)))

    def normalised(self) -> tuple[Program, Tensor, Tensor]:
        """The same programs with an objective of size 1 and rows of length 1, so that units do not matter.

        Also the factors that turn multipliers y and l of these into those of the given programs.
        """
        size = _or_one(torch.maximum(self.Q.abs().amax((-2, -1)), self.q.abs().amax(-1))).unsqueeze(-1)
        of_A, of_G = (_or_one(torch.linalg.vector_norm(rows, dim=-1)) for rows in (self.A, self.G))
        objective = self.Q / size.unsqueeze(-1), self.q / size
        rows = self.A / of_A.unsqueeze(-1), self.b / of_A, self.G / of_G.unsqueeze(-1), self.h / of_G
        return Program(*objective, *rows), size / of_A, size / of_G


@dataclass(frozen=True)
class Point:
    """A batch of points: u, the multipliers y and l, and the slacks w."""

    u: Tensor
    y: Tensor
    l: Tensor  # noqa: E741
    w: Tensor

    def moved(self, step: Point, length: Tensor) -> Point:
        """The points plus length times the step."""
        t = length.unsqueeze(-1)
        return Point(self.u + t * step.u, self.y + t * step.y, self.l + t * step.l, self.w + t * step.w)

    def tensors(self) -> tuple[Tensor, ...]:
        """u, y, l and w."""
        return self.u, self.y, self.l, self.w

    def select(self, rows: Tensor) -> Point:
        """The points at these positions (indices or a mask)."""
        return Point(*(x[rows] for x in self.tensors()))

    def put(self, rows: Tensor, other: Point) -> Point:
        """The other points at these positions."""
        return Point(*(x.index_copy(0, rows, y) for x, y in zip(self.tensors(), other.tensors(), strict=True)))

    def sound(self) -> Tensor:
        """Whether all numbers are finite and of a size that one can compute with."""
        limit = torch.finfo(self.u.dtype).eps ** -1.5
        small = torch.cat([x.abs() for x in self.tensors()], -1).amax(-1) < limit
        return small & (torch.cat([self.w, self.l], -1) > 1 / limit).all(-1)

    def where(self, mask: Tensor, other: Point) -> Point:
        """These points where the mask holds, the others elsewhere."""
        m = mask.unsqueeze(-1)
        return Point(*(torch.where(m, x, y) for x, y in zip(self.tensors(), other.tensors(), strict=True)))


def _or_one(size: Tensor) -> Tensor:
    return torch.where(size > 0, size, 1.0)


def times(matrix: Tensor, vector: Tensor) -> Tensor:
    """A batch of matrix-vector products."""
    return (matrix @ vector.unsqueeze(-1)).squeeze(-1)


def solve_equality(program: Program, active: Tensor) -> tuple[Tensor, Tensor]:  # active: (batch, p + n)
    """u and the multipliers of [A; G], with the active rows as equations and without the others."""
    rows = torch.cat([program.A, program.G], -2)
    solve = factorise_dense(program.Q, rows, active, None)
    return solve(-program.q, torch.cat([program.b, program.h], -1))


def solve_program(program: Program, limit: int) -> tuple[Point, Tensor]:
    """A point and the iterations of every program; each stops when it is solved, makes no progress or diverges."""
    point = best = _first_point(program)
    lowest = residual(program, point)
    iterations, idle = torch.zeros_like(lowest, dtype=torch.int64), torch.zeros_like(lowest, dtype=torch.int64)
    rows = torch.arange(len(lowest), device=lowest.device)
    goal = torch.finfo(program.Q.dtype).eps ** 0.6  # the active set is clear by then
    for _ in range(limit):
        rows = rows[(lowest[rows] > goal) & (idle[rows] < PATIENCE)]
        if not len(rows):
            break
        part, here = program.select(rows), point.select(rows)
        here = here.moved(*_step(part, here))
        rows, here = rows[here.sound()], here.select(here.sound())
        point = point.put(rows, here)
        now = residual(program.select(rows), here)
        better = now < lowest[rows]
        best = best.put(rows[better], here.select(better))
        idle[rows] = torch.where(better, 0, idle[rows] + 1)
        lowest[rows] = torch.minimum(now, lowest[rows])
        iterations[rows] += 1
    return _finish(program, best, lowest), iterations


def _first_point(program: Program) -> Point:
    """The minimiser without inequalities, the slacks that it leaves, and both kept away from zero."""
    count = program.h.shape[-1]
    none = torch.zeros_like(program.h, dtype=torch.bool)
    u, s = solve_equality(program, torch.cat([torch.ones_like(program.b, dtype=torch.bool), none], -1))
    slack = program.h - times(program.G, u)
    if not count:
        return Point(u, s, slack, slack.clone())
    scale = slack.abs().amax(-1, keepdim=True).clamp(min=1.0)
    slope = (times(program.Q, u) + program.q).abs().amax(-1, keepdim=True).clamp(min=1.0)
    return Point(u, s[:, : program.b.shape[-1]], slope.expand_as(slack), torch.maximum(slack, 0.1 * scale))


def residuals(program: Program, point: Point) -> tuple[Tensor, Tensor, Tensor]:
    """Of stationarity, equalities and inequalities."""
    dual = times(program.Q, point.u) + program.q + times(program.A.mT, point.y) + times(program.G.mT, point.l)
    return dual, times(program.A, point.u) - program.b, times(program.G, point.u) + point.w - program.h


def residual(program: Program, point: Point) -> Tensor:  # (batch,)
    """The largest violation of the optimality conditions, relative to the sizes of the numbers in them."""
    dual, equal, unequal = residuals(program, point)
    force = _size(program.q, times(program.Q, point.u), point.l.abs() * program.G.abs().amax(-1))
    place = _size(program.b, program.h, point.u)
    gap = point.w * point.l
    parts = (
        (_size(dual, floor=0.0), force),
        (_size(equal, unequal, floor=0.0), place),
        (_size(gap, floor=0.0), force * place),
    )
    return torch.stack([part / size for part, size in parts]).amax(0).nan_to_num(nan=torch.inf)


def _size(*rows: Tensor, floor: float = 1.0) -> Tensor:
    least = rows[0].new_full((len(rows[0]), 1), floor)
    return torch.cat([least, *(row.abs() for row in rows)], -1).amax(-1)


def _step(program: Program, point: Point) -> tuple[Point, Tensor]:
    """Mehrotra's direction, and how far along it slacks and multipliers stay positive."""
    right = residuals(program, point)
    product = point.w * point.l
    solve = _factorise(program, point)
    predictor = _direction(program, point, right, product, solve)
    if not product.shape[-1]:
        return predictor, torch.ones_like(point.u[:, 0])
    mu = product.mean(-1, keepdim=True)
    ahead = point.moved(predictor, _longest(point, predictor, 1.0))
    centring = ((ahead.w * ahead.l).mean(-1, keepdim=True) / mu) ** 3
    target = product + predictor.w * predictor.l - centring * mu
    step = _direction(program, point, right, target, solve)
    return step, _longest(point, step, 0.995)


def _factorise(program: Program, point: Point) -> Solve:
    """With the slacks and their multipliers eliminated, H = Q + G' diag(l / w) G."""
    weights = (point.l / point.w).unsqueeze(-1)
    hessian = program.Q + program.G.mT @ (weights * program.G)
    active = torch.ones_like(program.b, dtype=torch.bool)
    return factorise_dense(hessian, program.A, active, None)


def _direction(program: Program, point: Point, right: tuple[Tensor, ...], product: Tensor, solve: Solve) -> Point:
    """From Q du + A' dy + G' dl = -dual, A du = -equal, G du + dw = -unequal, l dw + w dl = -product."""
    dual, equal, unequal = right
    force = (point.l * unequal - product) / point.w  # dl = force + (l / w) G du
    du, dy = solve(-dual - times(program.G.mT, force), -equal)
    dw = -unequal - times(program.G, du)
    return Point(du, dy, -(product + point.l * dw) / point.w, dw)


def _longest(point: Point, step: Point, fraction: float) -> Tensor:
    """The longest step up to 1 that leaves this fraction of the way to the boundary."""
    ratios = [torch.where(d < 0, -x / d, torch.inf) for x, d in ((point.w, step.w), (point.l, step.l))]
    return (fraction * torch.cat(ratios, -1).amin(-1)).clamp(max=1.0)


def _finish(program: Program, point: Point, lowest: Tensor) -> Point:
    """Solve the optimality conditions with the constraints that are active, and take the result where it is better."""
    p = program.b.shape[-1]
    for _ in range(3):  # the second time from a better point: a multiplier of the wrong sign drops out
        held = point.l > point.w
        active = torch.cat([torch.ones_like(program.b, dtype=torch.bool), held], -1)
        u, s = solve_equality(program, active)
        slack = torch.where(held, 0.0, program.h - times(program.G, u))
        exact = Point(u, s[:, :p], torch.where(held, s[:, p:], 0.0), slack)
        clipped = Point(exact.u, exact.y, exact.l.clamp(min=0.0), exact.w.clamp(min=0.0))
        now = residual(program, clipped)
        better = now < lowest
        point, lowest = clipped.where(better, point), torch.where(better, now, lowest)
    return point
