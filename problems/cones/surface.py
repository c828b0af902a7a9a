"""Where a solution lies on the boundary of the cones, as smooth constraints: to polish it, and to differentiate it.

Near a solution with strict complementarity the cones are surfaces c(s) = 0, one for each, and the program is

    minimise u' P u / 2 + q' u   subject to   c(b - A u) = 0,

with multipliers mu, z = N mu. Newton's method on its optimality conditions gives the last digits, and the matrix of
its last step is that of the derivative of the solution:

    [P + A' M A  A' N; N' A  0] [du; dmu] = [-(P u + q + A' z); c(s)].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from declarative.linear import DenseFactorisation, DenseSystem, HessianSystem, Pair, or_one, times, warn_of
from declarative.torchside import value_is_hidden

from .cone import Face
from .conic import ConicProgram
from .product import Cones, joined

STEPS = 5  # of Newton's method
EXACT = 1e-15  # a residual that cannot be improved


class Surface:
    """The faces of all cones; vectors are (batch, rows) and matrices (batch, rows, columns)."""

    def __init__(self, cones: Cones, s: Tensor, z: Tensor, states: Tensor) -> None:
        self.cones = cones
        columns = zip(cones.groups, cones.parts(s), cones.parts(z), cones.of_cones(states), strict=True)
        self.faces = [cone.face(*column) for cone, *column in columns]
        self.active = cones.active(states)

    def value(self) -> Tensor:
        """c(s)."""
        return joined([face.value() for face in self.faces], self.active[:, :0].to(torch.float64))

    def across(self, x: Tensor) -> Tensor:
        """N' X."""
        return self._each(Face.across, x)

    def along(self, y: Tensor) -> Tensor:
        """N y."""
        return self._each(Face.along, y.unsqueeze(-1)).squeeze(-1)

    def bend(self, x: Tensor) -> Tensor:
        """M X."""
        return self._each(Face.bend, x)

    def coordinates(self, z: Tensor) -> Tensor:
        """mu."""
        parts = zip(self.faces, self.cones.parts(z), strict=True)
        return joined([face.coordinates(part) for face, part in parts], z)

    def _each(self, function: Callable[[Face, Tensor], Tensor], x: Tensor) -> Tensor:
        name = function.__name__
        parts = zip(self.faces, self.cones.parts(x), strict=True)
        return joined([getattr(face, name)(part) for face, part in parts], x)

    def pulled(self, A: Tensor, t: Tensor) -> Tensor:  # (batch, rows) -> (batch, m)
        """A' M t."""
        return times(A.mT, self.bend(t.unsqueeze(-1)).squeeze(-1))

    def pushed(self, A: Tensor, z: Tensor, t: Tensor) -> Tensor:  # (batch, m), (batch, rows)
        """M (A z - t)."""
        return self.bend((times(A, z) - t).unsqueeze(-1)).squeeze(-1)

    def hessian(self, P: Tensor, A: Tensor) -> Tensor:
        """P + A' M A."""
        return P + A.mT @ self.bend(A)


class UniqueWhereAsked(DenseFactorisation):
    """Factors of a matrix that may be singular, as where a variable of an inactive constraint is not determined.

    For a right-hand side in its range, what is asked does not depend on that; there is a warning where it does.
    """

    def __init__(self, hessian: Tensor, rows: Tensor, active: Tensor) -> None:
        super().__init__(hessian, rows, active, None)
        self.name = "the KKT matrix"
        if not self.finite.all():
            warn_of(~self.finite, "a derivative is not finite", "their gradient is NaN")

    def leaves_a_choice(self) -> Tensor:  # (batch,)
        return torch.zeros_like(self.finite)  # that a solution exists is what counts here, and is told below

    def __call__(self, r: Tensor, t: Tensor) -> Pair:
        z, s = super().__call__(r, t)
        if not value_is_hidden(r) and bool((singular := self.singular()).any()):
            left = r - times(self.hessian, z) - times(self.rows.mT, s * self.mask)
            gap = (t - times(self.rows, z)) * self.mask
            size = torch.cat([r, t * self.mask], -1).abs().amax(-1)
            off = torch.cat([left, gap], -1).abs().amax(-1) > self.eps**0.5 * size
            if bool((off & singular).any()):
                why = "the solution or its multipliers are not unique, and the matrix of its derivative is singular"
                warn_of(off & singular, why, "the least-norm gradient was used")
        return z, s


class MatrixOfFaces(DenseSystem):
    """The system in the coordinates of the faces."""

    def factorise(self, warn: bool = True) -> DenseFactorisation:
        if not warn:
            return super().factorise(warn)
        return UniqueWhereAsked(self.hessian, self.jacobian, self.active)


class FaceSystem(MatrixOfFaces):
    """The linear system of the derivatives: that of a node whose active constraints are N' A, and whose constraints
    A u - b have multipliers that bend with the surface besides, s = M (A z - t) + N y.

    The matrix is that of the faces' own coordinates; ``solve`` takes and returns those of the rows.
    """

    def __init__(self, surface: Surface, P: Tensor, A: Tensor) -> None:
        rows, self.place = _gathered(surface.across(A), surface.active)
        super().__init__(surface.hessian(P, A), rows, surface.active.gather(-1, self.place))
        self.surface, self.matrix = surface, A

    @property
    def rebuild(self) -> Callable[..., DenseSystem]:
        """In the coordinates of the faces."""
        return MatrixOfFaces

    def solve(self, r: Tensor, t: Tensor) -> Pair:
        dtype, r, t = r.dtype, r.to(self.matrix.dtype), t.to(self.matrix.dtype)
        across = self.surface.across(t.unsqueeze(-1)).squeeze(-1)
        z, y = super().solve(r + self.surface.pulled(self.matrix, t), across.gather(-1, self.place))
        y = torch.zeros_like(t).scatter(-1, self.place, y)
        s = self.surface.pushed(self.matrix, z, t) + self.surface.along(y)
        return z.to(dtype), s.to(dtype)


class BentSystem(HessianSystem):
    """The system of the rule that keeps the curvature and drops the constraints: N is left out, and M is not."""

    def __init__(self, surface: Surface, P: Tensor, A: Tensor) -> None:
        super().__init__(surface.hessian(P, A))
        self.surface, self.matrix = surface, A

    @property
    def rebuild(self) -> Callable[..., HessianSystem]:
        """In the coordinates of the faces."""
        return HessianSystem

    def solve(self, r: Tensor, t: Tensor) -> Pair:
        dtype, r, t = r.dtype, r.to(self.matrix.dtype), t.to(self.matrix.dtype)
        z, _ = super().solve(r + self.surface.pulled(self.matrix, t), torch.zeros_like(t))
        return z.to(dtype), self.surface.pushed(self.matrix, z, t).to(dtype)


def _gathered(rows: Tensor, active: Tensor) -> tuple[Tensor, Tensor]:
    """The active rows first, without those that are active nowhere, and their places."""
    place = active.to(torch.int8).argsort(dim=-1, descending=True, stable=True)
    if not value_is_hidden(active):
        place = place[:, : int(active.sum(-1).amax()) if active.numel() else 0]
    return rows.gather(1, place.unsqueeze(-1).expand(-1, -1, rows.shape[-1])), place


@dataclass(frozen=True)
class Polished:
    """Solutions of equilibrated programs."""

    u: Tensor  # (batch, m)
    z: Tensor  # (batch, k)
    states: Tensor  # (batch, cones), on which faces they lie
    residual: Tensor  # (batch,)


def polish(program: ConicProgram, u: Tensor, s: Tensor, z: Tensor) -> Polished:
    """The solutions next to those of an interior-point method; each step is kept where it is an improvement."""
    cones = program.cones
    states = cones.states(s, z)
    at_u, at_z, residual = u, z, conditions(program, u, z)
    for step in range(STEPS):
        u, z = _newton(program, u, z, states)
        found = conditions(program, u, z)
        better = found < residual
        at_u, at_z = (torch.where(better.unsqueeze(-1), x, y) for x, y in ((u, at_u), (z, at_z)))
        residual = torch.fmin(found, residual)
        # The first step leaves the central path for the faces, which need not be an improvement yet.
        if step > 0 and not bool((better & (residual > EXACT)).any()):
            break
    return Polished(at_u, at_z, states, residual)


def _newton(program: ConicProgram, u: Tensor, z: Tensor, states: Tensor) -> Pair:
    """One step, with the multipliers of the faces."""
    surface = Surface(program.cones, program.slack(u), z, states)
    mu = surface.coordinates(z)
    rows, place = _gathered(surface.across(program.A), surface.active)
    active = surface.active.gather(-1, place)
    solve = DenseFactorisation(surface.hessian(program.P, program.A), rows, active, None)
    du, dmu = solve(-program.slope(u, surface.along(mu)), surface.value().gather(-1, place))
    bent = surface.bend(times(program.A, du).unsqueeze(-1)).squeeze(-1)
    z = surface.along(mu.scatter_add(-1, place, dmu)) + bent
    u = u + du
    there = Surface(program.cones, program.slack(u), z, states)
    return u, there.along(there.coordinates(z))


def conditions(program: ConicProgram, u: Tensor, z: Tensor) -> Tensor:  # (batch,)
    """The largest violation of the optimality conditions, relative to the sizes of the numbers in them."""
    cones, s = program.cones, program.slack(u)
    curve, pull = times(program.P, u), times(program.A.mT, z)
    force = or_one(torch.cat([curve, pull, program.q], -1).abs().amax(-1))
    parts = [(curve + pull + program.q).abs().amax(-1) / force]
    if cones.count:
        reach = torch.cat([program.b, times(program.A, u), torch.zeros_like(u)], -1).abs().amax(-1)
        reach, pulling = or_one(reach), or_one(torch.maximum(z.abs().amax(-1), force))
        outside = cones.each(lambda cone, x: -cone.depth(x), s).amax(-1)
        wrong = cones.each(lambda cone, x: -cone.dual_depth(x), z).amax(-1)
        gap = cones.each(lambda _, x, y: (x * y).sum(-1).abs(), s, z).amax(-1)
        parts += [outside / reach, wrong / pulling, gap / (reach * pulling)]
    return torch.stack(parts, -1).amax(-1).clamp(min=0.0).nan_to_num(nan=torch.inf)
