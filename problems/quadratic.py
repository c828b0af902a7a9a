"""Quadratic programs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Unpack

import torch
from torch import Tensor

from declarative import Solver, Status
from declarative.derivatives import Kind, Linearisation
from declarative.linear.contract import System
from declarative.linear.systems import DenseSystem, HessianSystem
from declarative.optimality import Assessment, kink_tolerance, optimality_tolerance
from declarative.problem import Batch
from declarative.solution import RawSolution

from .interior import Normalised, Point, Program, residual, residuals, solve_equality, solve_program
from .layer import Inputs, Layer, Options
from .settings import require_count
from .systems import Left, LeftSystem, Reduction, largest, times


def quadratic(Q: Tensor, q: Tensor, *rest: Tensor) -> Tensor:
    """u' Q u / 2 + q' u."""
    u = rest[-1]
    return u @ Q @ u / 2 + q @ u


def linear_equality(Q: Tensor, q: Tensor, A: Tensor, b: Tensor, *rest: Tensor) -> Tensor:  # noqa: ARG001
    """A u - b."""
    return A @ rest[-1] - b


def linear_inequality(
    Q: Tensor,  # noqa: ARG001
    q: Tensor,  # noqa: ARG001
    A: Tensor,  # noqa: ARG001
    b: Tensor,  # noqa: ARG001
    G: Tensor,
    h: Tensor,
    u: Tensor,
) -> Tensor:
    """G u - h."""
    return G @ u - h


class EqualityQP(Layer):
    """A quadratic program with equality constraints: minimise u' Q u / 2 + q' u subject to A u = b.

    Solved directly from its optimality conditions. Only the symmetric part of Q counts. Q need not be definite, as
    long as it is on the null space of A.

    Shapes: Q (batch, m, m), q (batch, m), A (batch, p, m), b (batch, p) -> y (batch, m).

    Degenerate: redundant constraints have a least-norm gradient, with a :class:`NumericalWarning`. Contradictory ones
    are ``Status.INFEASIBLE``, and a Q that is not positive definite on the null space of A is not a minimum: it is
    ``Status.UNBOUNDED`` where the conditions have no solution, and otherwise a saddle point that is not noticed.

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

    required = ("Q", "q", "A", "b")
    empty = "p"

    def __init__(self, **options: Unpack[Options]) -> None:
        super().__init__(
            quadratic,
            linear_equality,
            solver=Direct(),
            system=_system,
            pullback=_pullback,
            start=_origin,
            **options,
        )


class QuadraticProgram(Layer):
    """A convex quadratic program:

        minimise u' Q u / 2 + q' u   subject to   A u = b and G u <= h.

    Solved by a batched interior-point method that is finished on the active set, to rounding. Only the symmetric part
    of Q counts, which must be positive semidefinite. Differentiable in all six inputs.

    Shapes: Q (batch, m, m), q (batch, m), A (batch, p, m), b (batch, p), G (batch, n, m), h (batch, n) -> y (batch, m).
    A and b may be None, and so may G and h.

    Degenerate: constraints without a solution are ``Status.INFEASIBLE``, an objective without a bound
    ``Status.UNBOUNDED``, a Q that is not convex ``Status.NOT_OPTIMAL``. A constraint that is just active, with a zero
    multiplier, is a kink, and linearly dependent active constraints have a least-norm gradient: both warn.

    Args:
        max_iterations: of the interior-point method.
        **options: see :class:`Layer`.

    Example:
        >>> import torch
        >>> from problems import QuadraticProgram
        >>> q = torch.tensor([[-3.0, 1.0]], requires_grad=True)
        >>> y = QuadraticProgram()(torch.eye(2), q, None, None, torch.tensor([[1.0, 1.0], [0.0, -1.0]]), torch.ones(2))
        >>> y.detach().round(decimals=4)
        tensor([[ 2., -1.]])
    """

    required = ("Q", "q")
    optional = ("A", "b", "G", "h")
    empty = "pn"

    def __init__(self, max_iterations: int = 60, **options: Unpack[Options]) -> None:
        require_count(max_iterations=max_iterations)
        super().__init__(
            quadratic,
            linear_equality,
            linear_inequality,
            solver=InteriorPoint(max_iterations),
            system=_system,
            pullback=_pullback,
            start=_origin,
            **options,
        )

    def complete(self, Q: Tensor, q: Tensor, *rest: Tensor | None) -> Inputs:
        found = [Q, q]
        for names, rows, right in (("A and b", *rest[:2]), ("G and h", *rest[2:])):
            if (rows is None) != (right is None):
                raise ValueError(f"{names} belong together: give both or neither.")
            found += [q.new_zeros(len(q), 0, q.shape[-1]) if rows is None else rows]
            found += [q.new_zeros(len(q), 0) if right is None else right]
        return tuple(found)


def _program(batch: Batch, dtype: torch.dtype, *, symmetric: bool = True) -> Program:
    Q, q, A, b, *inequalities = (x.to(dtype) for x in batch.unshared().xs)
    G, h = inequalities or (A[:, :0], b[:, :0])
    return Program((Q + Q.mT).mul_(0.5) if symmetric else Q, q, A, b, G, h)


class _Quadratic(Solver):
    """What both solvers have in common: how the multipliers that they return are tested."""

    def assess(self, batch: Batch, raw: RawSolution) -> Assessment | None:
        if raw.multipliers is None:
            return None
        # The symmetric part of Q is not formed for one product with it.
        program, size, of_y, of_l = _program(batch, raw.y.dtype, symmetric=False).normalised(with_q=False)
        curve = (times(program.Q, raw.y) + times(program.Q.mT, raw.y)) / (2 * size)
        y, pull = -raw.multipliers[:, : batch.p] / of_y, -raw.multipliers[:, batch.p :] / of_l
        slack = program.h - times(program.G, raw.y)
        small = kink_tolerance(raw.y.dtype)
        weak = (slack <= small * raw.y.abs().amax(-1, keepdim=True).clamp(min=1.0)) & (pull <= small)
        held = (pull > slack.clamp(min=0.0)) & ~weak
        point = Point(raw.y, y, torch.where(held, pull, 0.0), torch.where(held, 0.0, slack.clamp(min=0.0)))
        found = residual(program, point, residuals(program, point, curve))
        # A stationary point of a program that is not convex is no solution.
        found = torch.where(raw.codes == Status.NOT_OPTIMAL, 1.0, found).to(raw.y.dtype)
        always = torch.ones_like(program.b, dtype=torch.bool)
        return Assessment(
            multipliers=torch.cat([raw.multipliers[:, : batch.p], torch.where(held, -pull * of_l, 0.0)], -1),
            active=torch.cat([always, held], -1),
            weak=torch.cat([~always, weak], -1),
            stationarity=found,
            violation=found,
            residual=found,
        )


@dataclass(frozen=True)
class Direct(_Quadratic):
    """One solution of the optimality conditions."""

    def solve(self, batch: Batch, start: Tensor) -> RawSolution:
        program = _program(batch, start.dtype)
        normal = program.normalised()
        reduction = Reduction.of(normal.program.Q, normal.program.A)
        u, s, left = solve_equality(normal.program, torch.ones_like(program.b, dtype=torch.bool), reduction)
        none = torch.zeros(batch.size, dtype=torch.int64, device=u.device)
        # Where the constraints make up for it, Q need not be convex.
        return _raw(normal, Point(u, s, program.h, program.h), none, none == 0, left if left.sound.all() else None)


@dataclass(frozen=True)
class InteriorPoint(_Quadratic):
    """The interior-point method, in double precision: half of the digits of single do not tell what is active."""

    max_iterations: int

    def solve(self, batch: Batch, start: Tensor) -> RawSolution:
        program = _program(batch, torch.float64)
        normal = program.normalised()
        point, iterations, left = solve_program(normal.program, self.max_iterations)
        convex = _convex(_program(batch, start.dtype))
        return _raw(normal, point, iterations, convex, left).to(start.dtype)


def _raw(given: Normalised, point: Point, iterations: Tensor, convex: Tensor, left: Left | None) -> RawSolution:
    """A point of the normalised program as one of the given program, with the reason should it be no solution."""
    normal, size, of_y, of_l = given
    equal, unequal = times(normal.A, point.u) - normal.b, (times(normal.G, point.u) - normal.h).clamp(min=0.0)
    infeasible = torch.maximum(_largest(equal), _largest(unequal)) > 1e-4 * point.u.abs().amax(-1).clamp(min=1.0)
    codes = torch.where(infeasible, int(Status.INFEASIBLE), int(Status.UNBOUNDED))
    solved = residual(normal, point) <= optimality_tolerance(point.u.dtype)
    codes = torch.where(solved, int(Status.CONVERGED), codes)
    codes = torch.where(convex, codes, int(Status.NOT_OPTIMAL))
    messages = tuple("" if good else "Q is not positive semidefinite" for good in convex.tolist())
    multipliers = -torch.cat([of_y * point.y, of_l * point.l], -1)
    factor = None if left is None else replace(left, size=size, lengths=torch.cat([of_y, of_l], -1))
    return RawSolution(point.u, multipliers, codes, iterations, messages, factor=factor)


def _convex(program: Program) -> Tensor:
    """Whether Q is positive semidefinite, up to rounding."""
    shift = optimality_tolerance(program.Q.dtype) * largest(program.Q)
    shifted = program.Q + torch.diag_embed(shift.unsqueeze(-1).expand(program.q.shape))
    return torch.linalg.cholesky_ex(shifted).info == 0


def _largest(x: Tensor) -> Tensor:
    return x.abs().amax(-1) if x.shape[-1] else x.new_zeros(len(x))


def _origin(Q: Tensor, q: Tensor, *rest: Tensor) -> Tensor:  # noqa: ARG001
    return torch.zeros_like(q)


def _system(point: Linearisation, kind: Kind) -> System:
    left = point.factor
    if kind == "full" and isinstance(left, Left) and torch.equal(left.active, point.active):
        return LeftSystem(left)
    Q, _, A, *rest = (x.to(point.u.dtype) for x in point.batch.unshared().xs)
    hessian = (Q + Q.mT) / 2  # the constraints are linear: H = H_hat
    if kind != "full":
        return HessianSystem(hessian)
    rows = torch.cat([A, rest[1]], -2) if len(rest) == 3 else A
    return DenseSystem(hessian, rows, point.active)


def _pullback(xs: Inputs, u: Tensor, multipliers: Tensor | None, z: Tensor, s: Tensor) -> Inputs:
    """Minus the derivative of z' D_U L + s' c = z' (Q u + q - [A; G]' l) + s' ([A; G] u - [b; h])."""
    half = -z / 2
    symmetric = torch.stack([half, u], -1) @ torch.stack([u, half], -2)
    if multipliers is None:
        rows = (-s).unsqueeze(-1) * u.unsqueeze(-2)
    else:
        rows = torch.stack([-s, multipliers], -1) @ torch.stack([u, z], -2)
    p = xs[3].shape[-1]
    grads = (symmetric, -z, rows[:, :p], s[:, :p], rows[:, p:], s[:, p:])
    return grads[: len(xs)]
