"""Cone programs, a batch at a time, by a primal-dual interior-point method on the homogeneous embedding.

A point (u, s, z, t, k) with s in K, z in K* and t, k >= 0 is sought where

    P u + A' z + q t = 0,    A u + s = b t,    u' P u / t + q' u + b' z + k = 0.

With t > 0 and k = 0 it is t times a solution; with t = 0 and k > 0 either z shows that there is no feasible point, or u
that the objective falls without limit. Each iteration takes a predictor step, which tells how much of the way can be
gone at once, and a corrector step towards s o z = mu on the central path. (Mehrotra's method; for cones without the
scaling of Nesterov and Todd as by Dahl and Andersen, and as Goulart and Chen do it with a quadratic objective.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from declarative import Status
from declarative.linear import times

from .cone import BACKTRACK, first_bound
from .conic import ConicProgram
from .product import Cones, joined

EVIDENCE = 1e-9  # how well a certificate has to hold
FRACTION = 0.99  # of the way to the boundary
NEIGHBOURHOOD = 1.0  # how far from the central path a point may be, by its barrier; 0 is on it
IDLE_ITERATIONS = 5  # without progress, before a problem is given up
SHORTENINGS = 60
POOR = 0.1  # a step so short is not worth its while
SMALL_RIDGE = 4e-16  # of the Schur complement of the equations, relative
REFINEMENTS = 3  # of a step, at most
FINE = 1e-13  # relative residual of a step that need not be refined


@dataclass(frozen=True)
class Homogeneous:
    """A batch of points of the embedding."""

    u: Tensor  # (batch, m)
    s: Tensor  # (batch, k)
    z: Tensor  # (batch, k)
    t: Tensor  # (batch, 1)
    k: Tensor  # (batch, 1)

    def tensors(self) -> list[Tensor]:
        """The fields."""
        return [getattr(self, one.name) for one in fields(self)]

    def select(self, rows: Tensor) -> Homogeneous:
        """The points at these positions."""
        return Homogeneous(*(x[rows] for x in self.tensors()))

    def where(self, mask: Tensor, other: Homogeneous) -> Homogeneous:  # (batch,)
        """These points where the mask holds, the others elsewhere."""
        pairs = zip(self.tensors(), other.tensors(), strict=True)
        return Homogeneous(*(torch.where(mask.unsqueeze(-1), x, y) for x, y in pairs))

    def moved(self, step: Homogeneous, length: Tensor) -> Homogeneous:  # (batch,)
        """The points plus length times the step."""
        pairs = zip(self.tensors(), step.tensors(), strict=True)
        return Homogeneous(*(torch.addcmul(x, length.unsqueeze(-1), dx) for x, dx in pairs))

    def gap(self, cones: Cones) -> Tensor:  # (batch, 1)
        """The mu of the nearest point of the central path."""
        return (dot(self.s, self.z) + self.t * self.k) / (cones.degree + 1)


@dataclass(frozen=True)
class Ended:
    """What the iterations led to: points with t = 1 if they are solved, else a direction or the last point."""

    u: Tensor  # (batch, m)
    s: Tensor
    z: Tensor
    codes: Tensor  # (batch,)
    iterations: Tensor  # (batch,)

    def put(self, rows: Tensor, point: Homogeneous, codes: Tensor, count: int) -> None:
        """Write down points of the embedding: over t where they are no certificates, and of size 1 where they are."""
        ray = ((codes == Status.INFEASIBLE) | (codes == Status.UNBOUNDED)).unsqueeze(-1)
        divisor = torch.where(ray, torch.cat([point.u, point.z], -1).abs().amax(-1, keepdim=True), point.t)
        for mine, x in ((self.u, point.u), (self.s, point.s), (self.z, point.z)):
            mine[rows] = x / divisor
        self.codes[rows], self.iterations[rows] = codes, count


def dot(x: Tensor, y: Tensor) -> Tensor:  # (batch, n) -> (batch, 1)
    """The product of two vectors."""
    return (x * y).sum(-1, keepdim=True)


def solve_embedding(program: ConicProgram, limit: int, goal: float, ridge: float) -> Ended:
    """The solutions, or certificates, of equilibrated programs; each problem drops out when it has ended.

    Args:
        program: with numbers of size 1.
        limit: the number of iterations.
        goal: for the residuals and the gap, relative.
        ridge: added to the matrix of a step, relative to its diagonal. A small one costs no digits; a larger one is
            needed where the matrix is singular, as where the objective falls without limit along a line.
    """
    point = _first_point(program)
    size, device = len(program.q), program.q.device
    found = Ended(
        point.u.clone(),
        point.s.clone(),
        point.z.clone(),
        torch.full((size,), int(Status.ITERATION_LIMIT), device=device),
        torch.zeros(size, dtype=torch.int64, device=device),
    )
    rows, best = torch.arange(size, device=device), point
    lowest = torch.full((size,), torch.inf, dtype=program.q.dtype, device=device)
    idle = torch.zeros_like(rows)
    for count in range(limit + 1):
        residuals = _residuals(program, point)
        codes, distance = _ended(program, point, residuals, goal)
        better = distance < 0.9 * lowest
        best, idle = point.where(distance <= lowest, best), torch.where(better, 0, idle + 1)
        lowest = torch.fmin(distance, lowest)
        stuck = (idle >= IDLE_ITERATIONS) | ~distance.isfinite()
        codes = torch.where((codes == Status.ITERATION_LIMIT) & stuck, int(Status.STALLED), codes)
        going = codes == Status.ITERATION_LIMIT
        last = count == limit or not bool(going.any())
        if last or not bool(going.all()):
            ended = torch.ones_like(going) if last else ~going
            found.put(rows[ended], best.select(ended), codes[ended], count)
            if last:
                break
            rows, program, point, best = rows[going], program.select(going), point.select(going), best.select(going)
            residuals = [x[going] for x in residuals]
            lowest, idle = lowest[going], idle[going]
        point = _iterate(program, point, residuals, ridge)
    return found


def _first_point(program: ConicProgram) -> Homogeneous:
    unit = program.cones.unit(program.q).expand_as(program.b)
    one = torch.ones_like(program.q[:, :1])
    return Homogeneous(torch.zeros_like(program.q), unit, unit, one, one)


def _residuals(program: ConicProgram, point: Homogeneous) -> list[Tensor]:
    """Of the three conditions, and P u and A' z, which are parts of them."""
    curve, pull = times(program.P, point.u), times(program.A.mT, point.z)
    dual = curve + pull + program.q * point.t
    primal = times(program.A, point.u) + point.s - program.b * point.t
    level = dot(point.u, curve) / point.t + dot(program.q, point.u) + dot(program.b, point.z)
    return [dual, primal, level + point.k, curve, pull, level]


def _size(*xs: Tensor) -> Tensor:  # (batch, 1)
    return torch.cat(xs, -1).abs().amax(-1, keepdim=True)


def _ended(program: ConicProgram, point: Homogeneous, residuals: list[Tensor], goal: float) -> tuple[Tensor, Tensor]:
    """A code for each problem, and how far the point is from a solution or a certificate, relatively."""
    dual, primal, _, curve, pull, level = residuals
    t = point.t
    force = _size(program.q * t, curve, pull, t)
    reach = _size(program.b * t, point.s, t) if point.s.shape[-1] else t
    worth = torch.maximum(t, torch.maximum(dot(program.q, point.u).abs(), dot(program.b, point.z).abs()))
    parts = [_size(dual) / force, _size(primal) / reach if primal.shape[-1] else 0 * t, level.abs() / worth]
    distance = torch.cat(parts, -1).amax(-1)
    # Certificates: A' z = 0 with b' z < 0, and P u = 0, A u + s = 0 with q' u < 0.
    fall, rise = -dot(program.q, point.u), -dot(program.b, point.z)
    of_z, of_u = _size(point.z) if point.z.shape[-1] else 0 * t, _size(point.u)
    no_point = _size(pull) / torch.where(rise > 0, rise, 0.0)
    along = primal + program.b * t
    no_bound = (torch.maximum(_size(curve), _size(along)) if along.shape[-1] else _size(curve)) / torch.where(
        fall > 0, fall, 0.0
    )
    no_point = torch.where((of_z > 0) & (rise > 0), no_point, torch.inf).squeeze(-1)
    no_bound = torch.where((of_u > 0) & (fall > 0), no_bound, torch.inf).squeeze(-1)
    codes = torch.full_like(distance, int(Status.ITERATION_LIMIT), dtype=torch.int64)
    codes = torch.where(no_bound <= EVIDENCE, int(Status.UNBOUNDED), codes)
    codes = torch.where(no_point <= EVIDENCE, int(Status.INFEASIBLE), codes)
    codes = torch.where(distance <= goal, int(Status.CONVERGED), codes)
    return codes, torch.minimum(distance, torch.minimum(no_point, no_bound))


def _iterate(program: ConicProgram, point: Homogeneous, residuals: list[Tensor], ridge: float) -> Homogeneous:
    """A predictor and a corrector step."""
    cones, steps = program.cones, _Steps(program, point, residuals, ridge)
    ahead, scaled = steps.towards(torch.zeros_like(point.t))
    length = steps.longest(ahead, scaled)
    length = length if cones.symmetric else _shortened(cones, point, ahead, length)
    step, scaled = steps.towards((1 - length.unsqueeze(-1)) ** 3, ahead, scaled)
    length = FRACTION * steps.longest(step, scaled)
    if cones.symmetric:
        return point.moved(step, length)
    length = _shortened(cones, point, step, length)
    poor = length < POOR
    if bool(poor.any()):  # back towards the central path
        none = [(torch.zeros_like(dw), torch.zeros_like(dv)) for dw, dv in scaled]
        other, scaled = steps.towards(torch.ones_like(point.t), point.moved(point, -torch.ones_like(length)), none)
        reach = _shortened(cones, point, other, FRACTION * steps.longest(other, scaled))
        step, length = other.where(poor, step), torch.where(poor, reach, length)
    return point.moved(step, length)


def _shortened(cones: Cones, point: Homogeneous, step: Homogeneous, length: Tensor) -> Tensor:  # (batch,)
    """Until the points are near enough to the central path."""
    length = _inside(cones, point, step, length)
    for _ in range(SHORTENINGS):
        bad = ~(_centrality(cones, point.moved(step, length)) < NEIGHBOURHOOD)
        if not bool(bad.any()):
            break
        length = torch.where(bad, BACKTRACK * length, length)
    return length


def _inside(cones: Cones, point: Homogeneous, step: Homogeneous, length: Tensor) -> Tensor:  # (batch,)
    """Until the points are inside of the cones whose boundary is no root of a polynomial."""
    parts = [cones.parts(x) for x in (point.s, point.z, step.s, step.z)]
    for cone, s, z, ds, dz in zip(cones.groups, *parts, strict=True):
        for _ in range(SHORTENINGS if not cone.symmetric else 0):
            way = length[:, None, None]
            depth = torch.minimum(cone.depth(s + way * ds), cone.dual_depth(z + way * dz))
            bad = ~(first_bound(depth) > 0)
            if not bool(bad.any()):
                break
            length = torch.where(bad, BACKTRACK * length, length)
    return length


def _centrality(cones: Cones, point: Homogeneous) -> Tensor:  # (batch,)
    """The barrier minus its smallest value with the same mu: 0 on the central path."""
    total = (cones.degree + 1) * point.gap(cones).log() - (point.t * point.k).log()
    total = total.squeeze(-1) + cones.degree
    for cone, s, z in zip(cones.groups, cones.parts(point.s), cones.parts(point.z), strict=True):
        total = total + cone.barrier(s, z)
    return total.nan_to_num(nan=torch.inf)


Scaled = list[tuple[Tensor, Tensor]]  # ds~ and dz~ of each group


class _Steps:
    """The steps from a point.

    With the rows of cones scaled, A~ = W^-T A, the conditions of a step are those of [P E' A~'; E 0 0; A~ 0 -I], where
    E are the equations. The Schur complement P + A~' A~ is factored once.
    """

    def __init__(self, program: ConicProgram, point: Homogeneous, residuals: list[Tensor], ridge: float) -> None:
        self.program, self.point, self.residuals = program, point, residuals
        cones, self.p = program.cones, program.cones.zero
        self.groups = [cone for cone in cones.groups if cone.degree]
        self.mu = point.gap(cones)
        parts = zip(self.groups, self._parts(point.s), self._parts(point.z), strict=True)
        self.scalings = [cone.scaling(s, z, self.mu.unsqueeze(-1)) for cone, s, z in parts]
        self.rows, self.E = self._scaled(program.A), program.A[:, : self.p]
        matrix = torch.baddbmm(program.P, self.rows.mT, self.rows)
        diagonal = torch.diagonal(matrix, dim1=-2, dim2=-1)
        largest = diagonal.amax(-1, keepdim=True)
        self.weight = torch.where(largest > 0, largest, 1.0).unsqueeze(-1)
        if self.p:
            matrix = torch.baddbmm(matrix, self.weight * self.E.mT, self.E)
        self.factor = _cholesky(matrix, ridge)
        if self.p:
            half = torch.linalg.solve_triangular(self.factor, self.E.mT, upper=False)
            self.small = _cholesky(half.mT @ half, SMALL_RIDGE)
        self.shift = self._scaled(residuals[1].unsqueeze(-1)).squeeze(-1)  # W^-T of the primal residual
        self.middle = self._targets([(None, None)] * len(self.groups), self.mu)  # W z
        # The solution for the right-hand side (-q, b), as its difference from (u, z) / t: that has more digits.
        dual, primal, *_ = residuals
        self.fixed = self._solve(
            -dual / point.t, -primal[:, : self.p] / point.t, (2 * self.middle - self.shift) / point.t
        )

    def _parts(self, x: Tensor) -> list[Tensor]:
        """The rows of each group of cones that are not equations."""
        return self.program.cones.parts(x)[1 if self.p else 0 :]

    def _scaled(self, x: Tensor) -> Tensor:  # (batch, rows, columns)
        """W^-T X of the rows that are not equations."""
        parts = zip(self.scalings, self._parts(x), strict=True)
        return joined([scaling.scaled(part) for scaling, part in parts], x[:, :0])

    def _apart(self, x: Tensor) -> list[Tensor]:  # (batch, rows without equations)
        sizes = [cone.count * cone.size for cone in self.groups]
        parts = zip(self.groups, x.split(sizes, 1) if sizes else (), strict=True)
        return [part.unflatten(1, (cone.count, cone.size)) for cone, part in parts]

    def towards(
        self, centring: Tensor, ahead: Homogeneous | None = None, scaled: Scaled | None = None
    ) -> tuple[Homogeneous, Scaled]:
        """The step to mu times ``centring``, with the products of the predictor step taken into account."""
        program, p = self.program, self.p
        dual, primal, level, curve, *_ = self.residuals
        u, t, k = self.point.u, self.point.t, self.point.k
        goal, rest = centring * self.mu, 1 - centring
        target, product = self.middle, t * k
        if ahead is not None and scaled is not None:
            target, product = self._targets(scaled, goal), product + ahead.t * ahead.k - goal
        u1, y1, v1 = self._solve(-rest * dual, -rest * primal[:, :p], target - rest * self.shift)
        u2, y2, v2 = self.fixed
        away, u2, y2, v2 = u2, u2 + u / t, y2 + self.point.z[:, :p] / t, v2 + self.middle / t
        bend = dot(away, times(program.P, away)) + dot(v2, v2) + k / t
        z1, z2 = (self._multipliers(y, v) for y, v in ((y1, v1), (y2, v2)))
        fall = dot(program.q + 2 * curve / t, u1) + dot(program.b, z1)
        dt = (rest * level - product / t + fall) / bend
        du, dv, dz = u1 + dt * u2, v1 + dt * v2, z1 + dt * z2
        dw = -target - dv
        ds = program.b * dt - times(program.A, du) - rest * primal
        if p:
            ds = torch.cat([torch.zeros_like(ds[:, :p]), ds[:, p:]], -1)
        step = Homogeneous(du, ds, dz, dt, -(product + k * dt) / t)
        return step, list(zip(self._apart(dw), self._apart(dv), strict=True))

    def _targets(self, pairs: Sequence[tuple[Tensor | None, Tensor | None]], goal: Tensor) -> Tensor:
        """What leads to s o z = goal, for all groups."""
        parts = zip(self.scalings, pairs, strict=True)
        return joined([scaling.target(*pair, goal.unsqueeze(-1)) for scaling, pair in parts], goal[:, :0])

    def _multipliers(self, y: Tensor, v: Tensor) -> Tensor:  # (batch, rows)
        """Those of the equations, and of cones by their scaled ones."""
        parts = [scaling.multiplier(part) for scaling, part in zip(self.scalings, self._apart(v), strict=True)]
        return torch.cat([y, joined(parts, v[:, :0])], -1)

    def longest(self, step: Homogeneous, scaled: Scaled) -> Tensor:  # (batch,)
        """How far the step may go to the boundary, at most 1."""
        point, length = self.point, torch.ones_like(self.point.t[:, 0])
        for x, dx in ((point.t, step.t), (point.k, step.k)):
            length = torch.minimum(length, torch.where(dx < 0, -x / dx, torch.inf).squeeze(-1))
        for scaling, (dw, dv) in zip(self.scalings, scaled, strict=True):
            length = torch.minimum(length, scaling.longest(dw, dv))
        return length

    def _solve(self, a: Tensor, e: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(u, y, v) with P u + E' y + A~' v = a, E u = e and A~ u - v = c; refined until it is accurate."""
        u, y = self._solve_roughly(a + times(self.rows.mT, c), e)
        for _ in range(REFINEMENTS):
            v = times(self.rows, u) - c
            pull = times(self.rows.mT, v)
            left = a - times(self.program.P, u) - pull
            gap = e - times(self.E, u) if self.p else e
            left = left - times(self.E.mT, y) if self.p else left
            off = torch.maximum(_size(left) / _size(a, pull), _size(gap) / _size(e, u) if self.p else _size(0 * a))
            du, dy = self._solve_roughly(left, gap)
            u, y = u + du, y + dy
            if not bool((off > FINE).any()):
                break
        return u, y, times(self.rows, u) - c

    def _solve_roughly(self, a: Tensor, e: Tensor) -> tuple[Tensor, Tensor]:
        """(u, y) with (P + A~' A~) u + E' y = a and E u = e."""
        if not self.p:
            return _solved(a, self.factor), e
        a = a + self.weight.squeeze(-1) * times(self.E.mT, e)
        y = _solved(times(self.E, _solved(a, self.factor)) - e, self.small)
        return _solved(a - times(self.E.mT, y), self.factor), y


def _cholesky(matrix: Tensor, ridge: float) -> Tensor:
    """The factor of a positive semidefinite matrix, in units in which its diagonal is 1, with a tiny ridge."""
    diagonal = torch.diagonal(matrix, dim1=-2, dim2=-1)
    floor = ridge**2 * diagonal.amax(-1, keepdim=True)
    added = ridge * diagonal.clamp(min=0.0) + torch.where(floor > 0, floor, 1.0)
    factor: Tensor = torch.linalg.cholesky_ex(matrix + torch.diag_embed(added)).L
    return factor


def _solved(x: Tensor, factor: Tensor) -> Tensor:
    return torch.cholesky_solve(x.unsqueeze(-1), factor).squeeze(-1)
