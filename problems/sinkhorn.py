"""Entropy-regularised optimal transport, solved for a batch.

With S = gamma M the solution is P = exp(f_i + g_j - S_ij), and the potentials f and g minimise the dual objective

    sum(P) - r' f - c' g,   with gradient [P 1 - r; P' 1 - c]   and Hessian [diag(P 1) P; P' diag(P' 1)].

Sinkhorn's iteration minimises over f and g in turn, which is all it takes while the regularisation is strong. Where it
stalls, Newton's method takes over. The Hessian is the matrix of the backward pass too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from declarative import Status
from declarative.linear import Pair, or_one
from declarative.optimality import Assessment, optimality_tolerance
from declarative.problem import Batch
from declarative.solution import RawSolution

from .formula import StructuredSolver, assessment
from .scaling import Scaled, iterate
from .schur import solve_schur

NEAR = 0.1  # a relative error of the marginals from which the next, harder problem can be started
PATIENCE = 5  # steps of Newton's method that need not bring progress; beyond, what is left is rounding
FIRST = 20  # iterations before the first look at which problems are still worth iterating
CHUNK = 10  # and between two looks
SLOWEST = 0.9  # the slowest convergence, per iteration, for which steps are made longer


def uniform_marginals(M: Tensor) -> tuple[Tensor, Tensor]:
    """1/m and 1/n for a matrix (m, n)."""
    m, n = M.shape
    return M.new_full((m,), 1 / m), M.new_full((n,), 1 / n)


@dataclass(frozen=True)
class Sinkhorn(StructuredSolver):
    """Abstract: Sinkhorn's iteration in a stabilised form, finished by Newton's method on the dual where it stalls.

    The scalar parameter is gamma, the inverse of the weight of the entropy.

    Args:
        tolerance: the largest error of a marginal, relative to that marginal; by default close to rounding.
        max_iterations: of Sinkhorn's iteration, and of Newton's.
    """

    tolerance: float | None = None
    max_iterations: int = 200

    def solve(self, batch: Batch, start: Tensor) -> RawSolution:
        operands = _, r, c, gamma = self._operands(batch, start)
        found = self._found(operands)
        f, g = found.f + (found.u / r).log_(), found.g + (found.v / c).log_()
        gauge = g[:, -1:]
        multipliers = torch.cat([f + (gauge + 1), g[:, :-1] - gauge], -1).div_(gamma.squeeze(-1))
        # What a problem failed of, should the assessment find that it did.
        codes = torch.where(found.iterations < self.max_iterations, int(Status.STALLED), int(Status.ITERATION_LIMIT))
        assessment = _assessment(multipliers, found.plan, r, c)
        messages = ("",) * batch.size
        return RawSolution(found.plan.flatten(1), multipliers, codes, found.iterations, messages, assessment=assessment)

    def solve_plainly(self, batch: Batch, start: Tensor) -> Pair:
        operands = _, r, c, _ = self._operands(batch, start)
        plan = self._found(operands).plan
        return plan.flatten(1), _error(plan, r, c)

    def _found(self, operands: tuple[Tensor, Tensor, Tensor, Tensor]) -> _Found:
        M, r, c, gamma = operands
        tolerance = min(self.tolerance or 64 * torch.finfo(M.dtype).eps, optimality_tolerance(M.dtype))
        found = _scale(M, gamma, r, c, tolerance, self.max_iterations)
        if not found.error.max().item() <= tolerance:
            rest = (~(found.error <= tolerance)).nonzero().flatten()
            f, g, plan, iterations = _newton(gamma[rest] * M[rest], r[rest], c[rest], tolerance, self.max_iterations)
            for whole, piece in ((found.f, f), (found.g, g), (found.plan, plan)):
                whole[rest] = piece
            found.u[rest] = found.v[rest] = 1.0
            found.iterations[rest] += iterations
        # An entry that underflows would have an infinite logarithm. This one is as good as zero, and so is its square.
        floor = torch.finfo(M.dtype).tiny ** 0.5 * r.amax(-1) * c.amax(-1)
        found.plan.clamp_(min=floor[:, None, None])
        return found

    def assess(self, batch: Batch, raw: RawSolution) -> Assessment:
        if raw.assessment is not None:
            return raw.assessment
        _, r, c, _ = self._operands(batch, raw.y)
        multipliers = raw.multipliers if raw.multipliers is not None else raw.y.new_zeros(batch.size, batch.k)
        return _assessment(multipliers, raw.y.view(batch.size, *batch.shape), r, c)

    def _operands(self, batch: Batch, like: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """M, r, c and gamma, (batch, 1, 1)."""
        M, *marginals, gamma = self.arguments(batch, like)
        for name, x in zip("rc", marginals, strict=False):
            if not (x > 0).all():
                raise ValueError(f"{name} must not be negative, and have a mass.")
        r, c = marginals or (x.expand(batch.size, -1) for x in uniform_marginals(M[0]))
        return M, r, c, gamma.unsqueeze(-1)


def _assessment(multipliers: Tensor, plan: Tensor, r: Tensor, c: Tensor) -> Assessment:
    """Of the marginals alone: the plan is computed from the multipliers, so that it is stationary by construction."""
    error = _error(plan, r, c)
    return assessment(multipliers, torch.zeros_like(error), error)


def _error(plan: Tensor, r: Tensor, c: Tensor) -> Tensor:  # (batch,)
    """The largest relative error of a marginal."""
    rows = ((plan.sum(-1) - r) / r).abs().amax(-1)
    columns = ((plan.sum(-2) - c) / c).abs().amax(-1)
    return torch.maximum(rows, columns)


def _plan(cost: Tensor, f: Tensor, g: Tensor) -> Tensor:
    return (f.unsqueeze(-1) + g.unsqueeze(-2)).sub_(cost).exp_()


# Sinkhorn's iteration. Whatever has the size of the plan is changed in place: to get new memory takes longer than to
# compute what goes into it.


class _Found(NamedTuple):
    """The plan exp(f_i + g_j - S_ij) scaled by u and v."""

    f: Tensor  # (batch, m)
    g: Tensor  # (batch, n)
    u: Tensor
    v: Tensor
    plan: Tensor  # (batch, m, n)
    error: Tensor  # of its marginals, (batch,)
    iterations: Tensor  # (batch,)


def _scale(M: Tensor, gamma: Tensor, r: Tensor, c: Tensor, tolerance: float, limit: int) -> _Found:
    """Every problem for as long as it makes good progress."""
    whole, f, g = _kernel(M, gamma)
    u, v, excess = torch.ones_like(r), torch.ones_like(c), M.new_zeros(len(M))
    far = -0.25 * math.log(torch.finfo(M.dtype).tiny)
    steps = min(FIRST, limit)
    first = iterate(whole, r, c, u, v, excess, tolerance, steps)
    drift = _drift(first)
    if bool(((first.error <= tolerance) & (drift <= far)).all()):  # before anything is kept in mind
        return _Found(f, g, first.u, first.v, _scaled(whole, first.u, first.v), first.error, first.iterations)
    error = torch.full_like(excess, torch.inf)
    iterations = torch.zeros_like(first.iterations)
    rows, kernel, before = torch.arange(len(M), device=M.device), whole, error.clone()
    horizon = min(limit, 80 + min(M.shape[1:]) // 2)  # beyond, Newton's method is faster, the less so the larger M is
    now, done = first, 0
    while True:
        excess[rows] = _longer(excess[rows], (now.error / now.middle) ** (2 / steps))
        finite = drift.isfinite()
        for x, new in ((u, now.u), (v, now.v)):
            x[rows] = torch.where(finite.unsqueeze(-1), new, x[rows])
        # Far from where the kernel was computed, what had underflowed in it may count by now.
        stale = finite & (drift > far)
        current = now.error
        if stale.any():
            there = rows[stale]
            f[there], g[there] = f[there] + u[there].log(), g[there] + v[there].log()
            whole[there] = kernel[stale] = _plan(gamma[there] * M[there], f[there], g[there])
            u[there] = v[there] = 1.0
            current = torch.where(stale, torch.inf, current)
        error[rows] = current
        iterations[rows] += now.iterations
        done += steps
        rate = (current / before) ** ((horizon - done) / steps)
        stalled = ~finite | ((current * rate > tolerance) & current.isfinite() & before.isfinite())
        keep = (current > tolerance) & ~stalled
        if done >= limit or not keep.any():
            return _Found(f, g, u, v, _scaled(whole, u, v), error, iterations)
        if not keep.all():
            rows, current, kernel = rows[keep], current[keep], kernel[keep]
        before, steps = current, min(CHUNK, limit - done)
        now = iterate(kernel, r[rows], c[rows], u[rows], v[rows], excess[rows], tolerance, steps)
        drift = _drift(now)


def _drift(found: Scaled) -> Tensor:  # (batch,)
    """How far the potentials have moved since the kernel was computed."""
    return torch.cat([found.u, found.v], -1).log_().abs_().amax(-1)


def _scaled(kernel: Tensor, u: Tensor, v: Tensor) -> Tensor:
    """diag(u) K diag(v), in the memory of the kernel."""
    return kernel.mul_(u.unsqueeze(-1)).mul_(v.unsqueeze(-2))


def _kernel(M: Tensor, gamma: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """exp(f_i + g_j - gamma M_ij) with an entry 1 in every row and in every column, and f and g."""
    kernel = M * -gamma
    f = -kernel.amax(-1)
    g = -kernel.add_(f.unsqueeze(-1)).amax(-2)
    return kernel.add_(g.unsqueeze(-2)).exp_(), f, g


def _longer(excess: Tensor, speed: Tensor) -> Tensor:
    """By how much a step should be longer than Sinkhorn's, from the speed of convergence with the present excess w.

    Close to the solution this is successive over-relaxation: where the plain iteration converges at a rate q, the
    relaxed one does at a rate s with (s + w)^2 = s (1 + w)^2 q, and best at w with 1 + w = 2 / (1 + sqrt(1 - q)).
    """
    plain = (speed + excess).square() / (speed * (1 + excess).square())
    best = 2 / (1 + (1 - plain.clamp(max=SLOWEST)).sqrt()) - 1
    return torch.maximum(excess, best.nan_to_num(0.0))


# Newton's method.


def _newton(cost: Tensor, r: Tensor, c: Tensor, tolerance: float, limit: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Potentials, plan and iterations.

    Each problem starts with a small fraction of its cost, where it is easy, and has it doubled whenever the marginals
    are roughly right: the potentials, scaled alike, are then a good start. After each step one iteration of Sinkhorn's
    puts the marginals right as far as it can.
    """
    f = cost.amin(-1)
    g = (cost - f.unsqueeze(-1)).amin(-2)
    spread = (cost - f.unsqueeze(-1) - g.unsqueeze(-2)).amax((-2, -1))
    fraction = (10 / or_one(spread)).clamp(max=1.0)
    f, g = fraction.unsqueeze(-1) * f, fraction.unsqueeze(-1) * g
    potentials, best = (f.clone(), g.clone()), torch.full_like(spread, torch.inf)
    iterations, idle = torch.zeros_like(spread, dtype=torch.int64), torch.zeros_like(spread, dtype=torch.int64)
    rows = torch.arange(len(f), device=f.device)
    for _ in range(limit):
        part = fraction[rows, None, None] * cost[rows], r[rows], c[rows]
        here = _sweep(*part, f[rows], g[rows])
        plan = _plan(part[0], *here)
        error = _error(plan, *part[1:])
        last = fraction[rows] == 1
        better = last & (error < best[rows])
        for store, x in zip(potentials, here, strict=True):
            store[rows] = torch.where(better.unsqueeze(-1), x, store[rows])
        best[rows] = torch.where(better, error, best[rows])
        idle[rows] = torch.where(better | ~last, 0, idle[rows] + 1)
        iterations[rows] += 1
        f[rows], g[rows] = _newton_step(*part, *here, plan)
        growth = torch.where(error < NEAR, (1 / fraction[rows]).clamp(max=2.0), 1.0)
        fraction[rows] *= growth
        f[rows] *= growth.unsqueeze(-1)
        g[rows] *= growth.unsqueeze(-1)
        rows = rows[~last | ((error > tolerance) & (idle[rows] < PATIENCE))]
        if not len(rows):
            break
    f, g = potentials
    plan = _plan(cost, f, g)
    u = r / plan.sum(-1)
    plan = plan * u.unsqueeze(-1)
    v = c / plan.sum(-2)
    return f + u.log(), g + v.log(), plan * v.unsqueeze(-2), iterations


def _sweep(cost: Tensor, r: Tensor, c: Tensor, f: Tensor, g: Tensor) -> Pair:
    """One iteration of Sinkhorn's in the logarithmic domain, which nothing can overflow."""
    f = r.log() - torch.logsumexp(g.unsqueeze(-2) - cost, -1)
    return f, c.log() - torch.logsumexp(f.unsqueeze(-1) - cost, -2)


def _newton_step(cost: Tensor, r: Tensor, c: Tensor, f: Tensor, g: Tensor, plan: Tensor) -> Pair:
    """A step halved until the dual objective falls enough (Armijo)."""
    rows, columns = plan.sum(-1), plan.sum(-2)
    right = r - rows, c - columns
    df, dg = solve_schur(plan, *right, warn=False)
    slope = (df * right[0]).sum(-1) + (dg * right[1]).sum(-1)  # minus the derivative along the step
    mass = plan.sum((-2, -1))
    length = torch.ones_like(mass)
    for _ in range(40):
        step = length.unsqueeze(-1)
        new = _plan(cost, f + step * df, g + step * dg).sum((-2, -1))
        change = new - mass - length * ((df * r).sum(-1) + (dg * c).sum(-1))
        noise = 1e3 * torch.finfo(mass.dtype).eps * mass
        enough = change <= -1e-4 * length * slope + noise
        if enough.all():
            break
        length = torch.where(enough, length, 0.5 * length)
    step = length.unsqueeze(-1)
    return f + step * df, g + step * dg
