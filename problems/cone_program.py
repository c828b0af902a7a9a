"""Cone programs: convex problems with linear, quadratic, second-order, semidefinite, exponential and power terms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Unpack

import torch
from torch import Tensor

from declarative import Adaptive, Rule, Smoothed, Status
from declarative.derivatives import Derivatives
from declarative.linear import HessianSystem, System
from declarative.optimality import Assessment, kink_tolerance
from declarative.problem import Batch
from declarative.solution import RawSolution
from declarative.structure import Kind, Point
from declarative.theory.descent import DescentReport

from .cones import BentSystem, Cones, ConicProgram, FaceSystem, Surface, equilibrate, solve_polished
from .evidence import convex
from .formula import StructuredSolver, assessment
from .inputs import Inputs, require_count
from .layer import Layer, Options
from .quadratic import pull_linear, quadratic
from .systems import symmetric_part


class ConeProgram(Layer):
    """A convex program over a product of cones:

        minimise u' P u / 2 + q' u   subject to   A u + s = b and s in K.

    K is stated by :class:`Cones`, in whose order the rows of A and b come. Solved by an interior-point method on the
    homogeneous embedding, and polished to rounding on the faces of the cones where the solution lies. Only the
    symmetric part of P counts, which must be positive semidefinite; None is zero. Differentiable in all four inputs.

    Shapes: P (batch, m, m), q (batch, m), A (batch, k, m), b (batch, k) -> y (batch, m).

    The multipliers z of A u + s = b, in the dual cone, are the ``inequality_multipliers`` of a solution; those of the
    equations are its ``multipliers``, with the opposite sign.

    Degenerate: a program without a feasible point is ``Status.INFEASIBLE``, one without a bound ``Status.UNBOUNDED``,
    and one whose P is not convex ``Status.NOT_OPTIMAL``. Where a slack and its multiplier vanish together the solution
    has a kink, and where it is not unique its gradient is the least-norm one: both warn.

    Args:
        cones: the product of cones.
        max_iterations: of the interior-point method.
        **options: see :class:`Layer`.

    Example:
        >>> import torch
        >>> from problems import ConeProgram, Cones
        >>> norm = ConeProgram(Cones(second_order=(3,)))  # the smallest t with |x| <= t
        >>> A, b = torch.tensor([[-1.0], [0.0], [0.0]]), torch.tensor([[0.0, 3.0, 4.0]], requires_grad=True)
        >>> t = norm(None, torch.ones(1), A, b)
        >>> t.detach().round(decimals=4)
        tensor([[5.]])
        >>> torch.autograd.grad(t.sum(), b)[0].round(decimals=4) + 0
        tensor([[-1.0000,  0.6000,  0.8000]])
    """

    pure = True
    required = ("P", "q", "A", "b")
    empty = "p"

    def __init__(self, cones: Cones, max_iterations: int = 100, **options: Unpack[Options]) -> None:
        if not isinstance(cones, Cones):
            raise TypeError(f"cones must be Cones(...), but is {type(cones).__name__}.")
        require_count(max_iterations=max_iterations)
        equality = RowsOf(0, cones.zero) if cones.zero else None
        inequality = RowsOf(cones.zero, cones.rows) if cones.rows > cones.zero else None
        solver = HomogeneousEmbedding(cones, max_iterations)
        super().__init__(quadratic, equality, inequality, solver=solver, start=_origin, **options)
        self.cones = cones
        _refuse_rule(cones, self.gradient)

    def prepare(self, *xs: Any) -> Inputs:
        if len(xs) == len(self.required) and xs[0] is None and isinstance(xs[1], Tensor) and xs[1].dim():
            m = xs[1].shape[-1]
            xs = (xs[1].new_zeros(m, m), *xs[1:])
        return super().prepare(*xs)

    def complete(self, *xs: Tensor) -> Inputs:
        if xs[3].shape[-1] != self.cones.rows:
            raise ValueError(f"A and b must have {self.cones.rows} rows, as {self.cones}, but have {xs[3].shape[-1]}.")
        return xs

    def with_gradient(self, gradient: str | Rule) -> ConeProgram:
        other = super().with_gradient(gradient)
        assert isinstance(other, ConeProgram)
        _refuse_rule(self.cones, other.gradient)
        return other

    def derivatives(self, *xs: Any) -> Derivatives:
        self.require_smooth("derivatives")
        return super().derivatives(*xs)

    def descent(self, *xs: Any, v: Any = None) -> DescentReport:
        self.require_smooth("descent")
        return super().descent(*xs, v=v)

    def require_smooth(self, what: str) -> None:
        """Refuse what needs constraints that are smooth functions: a cone that is no half-line has a boundary that is
        none at its apex, and A u - b does not say how it bends.
        """
        if _has_curved(self.cones):
            raise TypeError(
                f"{what} needs constraints that are smooth functions, and cones other than zero and nonnegative are "
                "not: ask layer.generic(), where the solution is not at an apex."
            )

    def generic(self) -> Layer:
        """The same problem for a general solver, with the boundary of each cone as one smooth constraint.

        That is no solution method for one whose solution is at the apex of a cone.

        Raises:
            TypeError: there is a semidefinite cone, whose boundary is not smooth.
        """
        if not _has_curved(self.cones):
            return super().generic()
        if self.cones.semidefinite:
            raise TypeError("a semidefinite cone is no smooth constraint: compare with the problem stated in CVXPY.")
        equality = RowsOf(0, self.cones.zero) if self.cones.zero else None
        rule, plan = self.gradient, self.spec.plan
        return Layer(
            quadratic,
            equality,
            Boundaries(self.cones),
            gradient=rule,
            start=_origin,
            on_failure=plan.on_failure,
        )


def _has_curved(cones: Cones) -> bool:
    return cones.rows > cones.zero + cones.nonnegative


def _refuse_rule(cones: Cones, rule: Rule) -> None:
    if _has_curved(cones) and isinstance(rule, Smoothed | Adaptive):
        raise ValueError(
            f"gradient={type(rule).__name__}() is for constraints that are smooth functions, not for cones: use "
            "'exact', 'curvature', 'unconstrained' or 'identity'."
        )


@dataclass(frozen=True)
class Boundaries:
    """How far b - A u is outside of each cone but the zero cone: a smooth function away from apexes."""

    cones: Cones

    def __call__(self, P: Tensor, q: Tensor, A: Tensor, b: Tensor, u: Tensor) -> Tensor:  # noqa: ARG002
        s = (b - A @ u).unsqueeze(0)
        groups = zip(self.cones.groups, self.cones.parts(s), strict=True)
        return torch.cat([cone.boundary(part).flatten() for cone, part in groups if cone.degree])


@dataclass(frozen=True)
class RowsOf:
    """A u - b, for some of the rows."""

    first: int
    last: int

    def __call__(self, P: Tensor, q: Tensor, A: Tensor, b: Tensor, u: Tensor) -> Tensor:  # noqa: ARG002
        return A[self.first : self.last] @ u - b[self.first : self.last]


@dataclass(frozen=True)
class HomogeneousEmbedding(StructuredSolver):
    """Interior points of the homogeneous embedding, polished; all in double precision.

    Its byproduct is a row for each problem: u, z, on which face the slack of each cone lies, whether it may leave it,
    and the residual. In single precision these cannot be told from the solution.
    """

    cones: Cones
    max_iterations: int

    def solve(self, batch: Batch, start: Tensor) -> RawSolution:
        program = self._program(batch)
        scaled, units = equilibrate(program)
        found = solve_polished(scaled, self.max_iterations)
        u, z, states, codes, residual = found.u, found.z, found.states, found.codes, found.residual
        weak = self.cones.is_weak(scaled.slack(u), z, states, u.new_tensor(kink_tolerance(u.dtype)))
        saddle = ~convex(program.P, start.dtype)
        codes = torch.where(saddle, int(Status.NOT_OPTIMAL), codes)
        residual = torch.where(saddle, torch.inf, residual)
        messages = tuple("P is not positive semidefinite" if bent else "" for bent in saddle.tolist())
        u, z = u * units.of_u, z * units.of_z
        byproduct = torch.cat([u, z, states, weak.to(u.dtype), residual.unsqueeze(-1)], -1)
        return RawSolution(u, -z, codes, found.iterations, messages, byproduct).to(start.dtype)

    def assess(self, batch: Batch, raw: RawSolution) -> Assessment | None:
        if raw.byproduct is None or raw.multipliers is None:
            return None
        *_, states, weak, residual = self._apart(raw.byproduct, batch.m)
        active, weak = self.cones.active(states), self.cones.repeated(weak) > 0
        residual = residual.squeeze(-1).to(raw.y.dtype)
        return assessment(raw.multipliers, residual, residual, active, weak)

    def system(self, point: Point, kind: Kind) -> System:
        program = self._program(point.batch)
        if kind == "objective":
            return HessianSystem(program.P)
        byproduct = point.byproduct
        if byproduct is None:
            raise RuntimeError("a cone program is differentiated at its solutions only.")
        u, z, states, *_ = self._apart(byproduct.detach(), point.batch.m)
        if point.u.requires_grad or point.multipliers.requires_grad:  # to be differentiated once more
            u, z = point.u.to(u.dtype), -point.multipliers.to(z.dtype)
        surface = Surface(self.cones, program.slack(u), z, states)
        if kind == "curvature":
            return BentSystem(surface, program.P, program.A)
        return FaceSystem(surface, program.P, program.A)

    def pullback(self, xs: Inputs, u: Tensor, multipliers: Tensor | None, z: Tensor, s: Tensor) -> Inputs:
        return pull_linear(xs, u, multipliers, z, s)

    def _program(self, batch: Batch) -> ConicProgram:
        P, q, A, b = (x.double() for x in batch.unshared().xs)
        return ConicProgram(self.cones, symmetric_part(P), q, A, b)

    def _apart(self, byproduct: Tensor, m: int) -> tuple[Tensor, ...]:
        """u, z, states, weak and the residual."""
        parts: tuple[Tensor, ...] = byproduct.split([m, self.cones.rows, self.cones.count, self.cones.count, 1], -1)
        return parts


def _origin(P: Tensor, q: Tensor, *rest: Tensor) -> Tensor:  # noqa: ARG001
    return torch.zeros_like(q)
