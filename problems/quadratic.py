"""Quadratic programs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Unpack

import torch
from torch import Tensor

from declarative import Status
from declarative.linear import (
    ActiveFactorisation,
    DenseSystem,
    FactorisedSystem,
    HessianSystem,
    SchurReduction,
    System,
    times,
)
from declarative.optimality import Assessment, optimality_tolerance
from declarative.problem import Batch
from declarative.solution import RawSolution
from declarative.structure import Kind, Point

from .evidence import convex, convex_along, reason
from .flats import fall
from .formula import StructuredSolver, assessment
from .inputs import Inputs, require_count, visible
from .interior import solve_program
from .layer import Layer, Options
from .program import Iterate, Normalised, Program, decided, is_weak, residual, residuals, solve_equality


def quadratic(Q: Tensor, q: Tensor, *rest: Tensor) -> Tensor:
    """u' Q u / 2 + q' u."""
    u = rest[-1]
    return u @ Q @ u / 2 + q @ u


def linear_equality(Q: Tensor, q: Tensor, A: Tensor, b: Tensor, *rest: Tensor) -> Tensor:  # noqa: ARG001
    """A u - b."""
    return A @ rest[-1] - b


def linear_inequality(*arguments: Tensor) -> Tensor:
    """G u - h."""
    *_, G, h, u = arguments
    return G @ u - h


def pull_linear(xs: Inputs, u: Tensor, multipliers: Tensor | None, z: Tensor, s: Tensor) -> Inputs:
    """-(B' z + C' s) for a quadratic objective Q, q with linear constraints, A and b, and perhaps G and h.

    It is minus the derivative of z' D_U L + s' c = z' (Q u + q - [A; G]' l) + s' ([A; G] u - [b; h]).
    """
    half, p = -z / 2, xs[3].shape[-1]
    grads = [torch.stack([half, u], -1) @ torch.stack([u, half], -2), -z]
    for part in (slice(p), slice(p, None))[: len(xs) // 2 - 1]:
        if multipliers is None:
            grads.append(-s[:, part].unsqueeze(-1) * u.unsqueeze(-2))
        else:
            grads.append(torch.stack([-s[:, part], multipliers[:, part]], -1) @ torch.stack([u, z], -2))
        grads.append(s[:, part].clone())  # each in memory of its own
    return tuple(grads)


class EqualityQP(Layer):
    """A quadratic program with equality constraints: minimise u' Q u / 2 + q' u subject to A u = b.

    Solved directly from its optimality conditions. Only the symmetric part of Q counts. Q need not be definite, as
    long as it is on the null space of A.

    Shapes: Q (batch, m, m), q (batch, m), A (batch, p, m), b (batch, p) -> y (batch, m).

    Degenerate: redundant constraints have a least-norm gradient, with a :class:`NumericalWarning`. Contradictory ones
    are ``Status.INFEASIBLE``. Where Q has negative curvature on the null space of A, or none along a direction in which
    q falls, the objective is ``Status.UNBOUNDED``.

    Example:
        >>> import torch
        >>> from problems import EqualityQP
        >>> q = torch.tensor([[1.0, -1.0]], requires_grad=True)
        >>> y = EqualityQP()(torch.eye(2), q, torch.ones(1, 2), torch.ones(1))
        >>> y.detach()
        tensor([[-0.5000,  1.5000]])
        >>> torch.autograd.grad(y[0, 0], q)[0]
        tensor([[-0.5000,  0.5000]])
    """

    pure = True
    required = ("Q", "q", "A", "b")
    empty = "p"

    def __init__(self, **options: Unpack[Options]) -> None:
        super().__init__(quadratic, linear_equality, solver=Direct(), start=_origin, **options)


class QuadraticProgram(Layer):
    """A convex quadratic program:

        minimise u' Q u / 2 + q' u   subject to   A u = b and G u <= h.

    Where Q is definite, the active set is found by a dual method, in compiled code; what that leaves
    open is solved by a batched interior-point method, and finished on the active set, to rounding. Only the symmetric
    part of Q counts, which must be positive semidefinite. Differentiable in all six inputs.

    Shapes: Q (batch, m, m), q (batch, m), A (batch, p, m), b (batch, p), G (batch, n, m), h (batch, n) -> y (batch, m).
    A and b may be None, and so may G and h.

    A bound that is not there is +inf in h: its row has the multiplier 0 and no gradient, so that no large number has to
    stand for it. Infinite entries of any other kind, -inf in h among them, and NaNs are ``Status.NOT_FINITE``.

    Degenerate: constraints without a solution are ``Status.INFEASIBLE``, an objective without a bound
    ``Status.UNBOUNDED``, a Q that is not convex ``Status.NOT_OPTIMAL``. A constraint that is just active, with a zero
    multiplier, is a kink, and linearly dependent active constraints have a least-norm gradient: both warn.

    Args:
        max_iterations: of the interior-point method; the dual method changes the active set 8 times as often at most.
        **options: see :class:`Layer`.

    Example:
        >>> import torch
        >>> from problems import QuadraticProgram
        >>> q = torch.tensor([[-3.0, 1.0]], requires_grad=True)
        >>> y = QuadraticProgram()(torch.eye(2), q, None, None, torch.tensor([[1.0, 1.0], [0.0, -1.0]]), torch.ones(2))
        >>> y.detach().round(decimals=4)
        tensor([[ 2., -1.]])
    """

    pure = True
    required = ("Q", "q")
    optional = ("A", "b", "G", "h")
    empty = "pn"

    def __init__(self, max_iterations: int = 60, **options: Unpack[Options]) -> None:
        require_count(max_iterations=max_iterations)
        solver = InteriorPoint(max_iterations)
        super().__init__(quadratic, linear_equality, linear_inequality, solver=solver, start=_origin, **options)

    def complete(self, Q: Tensor, q: Tensor, *rest: Tensor | None) -> Inputs:
        found = [Q, q]
        for rows, right, names in zip(rest[::2], rest[1::2], ("A and b", "G and h"), strict=True):
            if (rows is None) != (right is None):
                raise ValueError(f"{names} belong together: give both or neither.")
            found.append(q.new_zeros(len(q), 0, q.shape[-1]) if rows is None else rows)
            found.append(q.new_zeros(len(q), 0) if right is None else right)
        return _without_absent(*found)


def _without_absent(Q: Tensor, q: Tensor, A: Tensor, b: Tensor, G: Tensor, h: Tensor) -> Inputs:
    """The inputs with 0' u <= 1 in the place of g' u <= +inf: neither holds anything, and neither has a gradient."""
    absent = h == torch.inf
    if visible(h) and not bool(absent.any()):
        return Q, q, A, b, G, h
    blank = absent.unsqueeze(-1) & G.isfinite()
    return Q, q, A, b, torch.where(blank, 0.0, G), torch.where(absent, 1.0, h)


def _program(batch: Batch, dtype: torch.dtype, *, symmetric: bool = True) -> Program:
    Q, q, A, b, *inequalities = (x.to(dtype) for x in batch.unshared().xs)
    G, h = inequalities or (A[:, :0], b[:, :0])
    return Program((Q + Q.mT).mul_(0.5) if symmetric else Q, q, A, b, G, h)


class _QuadraticSolver(StructuredSolver):
    """Abstract: what both solvers have in common: how the multipliers that they return are tested, and derivatives."""

    def assess(self, batch: Batch, raw: RawSolution) -> Assessment | None:
        if raw.multipliers is None or raw.assessment is not None:
            return raw.assessment
        # The symmetric part of Q is not formed for one product with it.
        normal = _program(batch, raw.y.dtype, symmetric=False).normalised(with_q=False)
        program = normal.program
        u, curve = raw.y / normal.unit, (times(program.Q, raw.y) + times(program.Q.mT, raw.y)) / (2 * normal.size)
        y, pull = -raw.multipliers[:, : batch.p] / normal.of_y, -raw.multipliers[:, batch.p :] / normal.of_l
        point, weak = decided(program, u, y, pull)
        found = residual(program, point, residuals(program, point, curve))
        # What the solver has failed of, in double precision, cannot be seen in single.
        found = torch.where(raw.codes == Status.CONVERGED, found, found.clamp(min=1.0)).to(u.dtype)
        return _assessment(raw.multipliers, point, weak, found)

    def system(self, point: Point, kind: Kind) -> System:
        factors = point.factors
        if kind == "full" and isinstance(factors, ActiveFactorisation) and torch.equal(factors.active, point.active):
            return FactorisedSystem(factors)
        Q, _, A, *rest = self.arguments(point.batch, point.u)
        hessian = (Q + Q.mT) / 2  # the constraints are linear: H = H_hat
        if kind != "full":
            return HessianSystem(hessian)
        rows = torch.cat([A, rest[1]], -2) if len(rest) == 3 else A
        return DenseSystem(hessian, rows, point.active)

    def pullback(self, xs: Inputs, u: Tensor, multipliers: Tensor | None, z: Tensor, s: Tensor) -> Inputs:
        return pull_linear(xs, u, multipliers, z, s)


def _assessment(multipliers: Tensor, point: Iterate, weak: Tensor, found: Tensor) -> Assessment:
    """With the multipliers of all equalities, and of the inequalities that hold."""
    held = point.l > point.w
    p = multipliers.shape[-1] - held.shape[-1]
    active, weak = torch.nn.functional.pad(held, (p, 0), value=True), torch.nn.functional.pad(weak, (p, 0))
    return assessment(torch.where(active, multipliers, 0.0), found, found, active, weak)


@dataclass(frozen=True)
class Direct(_QuadraticSolver):
    """One solution of the optimality conditions."""

    def solve(self, batch: Batch, start: Tensor) -> RawSolution:
        normal = _program(batch, start.dtype).normalised()
        program = normal.program
        active = torch.ones_like(program.b, dtype=torch.bool)
        u, s, factors = solve_equality(program, active, SchurReduction.of(program.Q, program.A))
        point, iterations = Iterate(u, s, program.h, program.h), torch.zeros_like(factors.sound, dtype=torch.int64)
        found = residual(program, point)
        good = found <= optimality_tolerance(u.dtype)
        good = good & ~fall(program, point).any(-1)
        minimal = factors.sound.clone()  # for Q is definite there; where the constraints make up for it, it need not be
        if not minimal.all():
            rest = program.select(~minimal).to(torch.float64)
            minimal[~minimal] = convex_along(rest.Q, rest.A, u.dtype)
        codes = _codes(program, point, good & minimal, start.dtype)
        codes = torch.where(minimal | (codes == Status.INFEASIBLE), codes, int(Status.UNBOUNDED))
        return _raw(normal, point, codes, iterations, factors if factors.sound.all() else None, found)


@dataclass(frozen=True)
class InteriorPoint(_QuadraticSolver):
    """Pivots or interior points, in double precision: half of the digits of single do not tell what is active."""

    max_iterations: int

    def solve(self, batch: Batch, start: Tensor) -> RawSolution:
        normal = _program(batch, torch.float64).normalised()
        point, iterations, found, factors = solve_program(normal.program, self.max_iterations)
        good = found <= optimality_tolerance(torch.float64)
        codes = _codes(normal.program, point, good, start.dtype)
        tired = (codes == Status.STALLED) & (iterations >= self.max_iterations)
        codes = torch.where(tired, int(Status.ITERATION_LIMIT), codes)
        if factors is None:  # else Q has a Cholesky factor
            codes = torch.where(convex(normal.program.Q, start.dtype), codes, int(Status.NOT_OPTIMAL))
        # Rounded to single precision, they will be other points.
        known = found if start.dtype == torch.float64 else None
        return _raw(normal, point, codes, iterations, factors, known).to(start.dtype)


def _codes(program: Program, point: Iterate, good: Tensor, dtype: torch.dtype) -> Tensor:
    """CONVERGED, or the reason why it is not."""
    codes = torch.zeros_like(good, dtype=torch.int64)
    # At a point so far away the conditions may seem to hold, relative to the size of its coordinates.
    away = point.u.abs().amax(-1) * torch.finfo(point.u.dtype).eps ** 0.5
    if (good & (away <= 1)).all():
        return codes
    far = good & (away > torch.cat([program.b, program.h, torch.ones_like(point.u)], -1).abs().amax(-1))
    if far.any():
        codes[far] = reason(program.select(far), point.select(far), point.u.dtype, Status.CONVERGED)
    if not good.all():
        codes[~good] = reason(program.select(~good), point.select(~good), dtype, Status.STALLED)
    return codes


def _raw(
    given: Normalised,
    point: Iterate,
    codes: Tensor,
    iterations: Tensor,
    factors: ActiveFactorisation | None,
    found: Tensor | None,
) -> RawSolution:
    """A point of the normalised program as one of the given program; ``found`` is its residual, if all were solved."""
    reasons = {int(Status.NOT_OPTIMAL): "Q is not positive semidefinite"}
    messages = tuple(reasons.get(code, "") for code in codes.tolist())
    multipliers = -torch.cat([given.of_y * point.y, given.of_l * point.l], -1)
    lengths = torch.cat([given.of_y, given.of_l], -1) / given.unit
    factors = None if factors is None else replace(factors, size=given.size / given.unit, lengths=lengths)
    assessment = None
    if found is not None and not codes.any():
        weak = is_weak(given.program, point.u, point.y, point.w, point.l)
        assessment = _assessment(multipliers, point, weak, found)
    return RawSolution(
        point.u * given.unit, multipliers, codes, iterations, messages, factors=factors, assessment=assessment
    )


def _origin(Q: Tensor, q: Tensor, *rest: Tensor) -> Tensor:  # noqa: ARG001
    return torch.zeros_like(q)
