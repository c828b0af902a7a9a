"""The sparse system at a point: its solutions can be differentiated, and it says how definite it is."""

from __future__ import annotations

from functools import cached_property, partial

import torch
from torch import Tensor

from ..contract import Factorisation, Pair, or_one, warn_of
from ..correction import BALANCED, Corrected, Equations, announce, corrected
from ..dense import SINGULAR, DenseFactorisation
from ..directions import irregular
from ..fallback import WithFallback
from ..forms import StoredSystem
from .kkt import LdlFactorisation, SparseKKT
from .ldl import LOST

LARGEST_DENSE = 1000  # unknowns and constraints, up to which a singular matrix is looked at as a dense one
EXACT = 1e-10  # a relative residual that a regular matrix leaves
ITERATIONS = 6  # of inverse iteration, towards a direction without curvature


class SparseSystem(StoredSystem):
    """The system of H and A by their entries, (batch, nonzeros) each, and active (batch, k)."""

    def __init__(self, kkt: SparseKKT, hessian: Tensor, jacobian: Tensor, active: Tensor) -> None:
        super().__init__(hessian, jacobian, active)
        self.kkt = kkt
        self.hessian_form, self.jacobian_form = kkt.hessian_form, kkt.symbolic.pattern.jacobian

    @property
    def rebuild(self) -> partial[SparseSystem]:
        return partial(SparseSystem, self.kkt)

    def factorise(self, warn: bool = True) -> SparseFactorisation:
        return SparseFactorisation(self, *self.active_rows(self.hessian.dtype), warn)


class SparseFactorisation(Factorisation):
    """The factors of a sparse system; of a singular matrix, if it is not too large, those of the dense one.

    So what is said of it, and its least-norm solution, do not depend on how it is stored.
    """

    def __init__(self, system: SparseSystem, rows: Tensor, dual: Tensor, warn: bool) -> None:
        self.system, self.active = system, system.active
        self.warn = warn
        self.like = system.hessian
        self.finite = (system.hessian.sum(-1) + rows.sum(-1)).isfinite()
        self.sound = bool(self.finite.all())
        hessian, primal = system.hessian, None
        if not self.sound:
            keep = self.finite.unsqueeze(-1)
            primal = torch.where(keep, 0.0, 1.0).expand(-1, system.kkt.m)
            hessian, rows, dual = torch.where(keep, hessian, 0.0), torch.where(keep, rows, 0.0), dual.where(keep, 1.0)
        self.factor: LdlFactorisation = system.kkt.factorise(hessian, rows, primal, dual)
        parts = hessian.double(), system.jacobian_form, rows.double(), dual.double()
        self.equations = Equations(system.hessian_form, *parts)
        if warn and not self.sound:
            warn_of(~self.finite, "a derivative is not finite", "their gradient is NaN")

    def __call__(self, r: Tensor, t: Tensor) -> Pair:
        right = r.double(), (t * self.active).double()
        if not self.sound:
            right = torch.where(self.finite.unsqueeze(-1), right[0], 0.0), right[1] * self.finite.unsqueeze(-1)
        found, eps = corrected(self.equations, self._factors, *right), torch.finfo(r.dtype).eps
        if self.warn:
            poor = ((found.error > BALANCED * eps) & self._factors.accurate).nonzero().flatten()
            if len(poor) and self._is_small:  # the order of the pivots does not suit the units
                part, again = self.equations.take(poor), self._densely(poor)
                found = found.put(poor, corrected(part, again, right[0][poor], right[1][poor]))
            self._announce(found, right, eps)
        z = found.z if self.sound else torch.where(self.finite.unsqueeze(-1), found.z, torch.nan)
        return z.to(r.dtype), found.s.to(r.dtype) * self.active

    def _announce(self, found: Corrected, right: Pair, eps: float) -> None:
        diagonal = self.equations.hessian_form.diagonal(self.equations.hessian)
        unit = torch.where(diagonal > 0, diagonal, 1.0).rsqrt()
        form, rows = self.equations.jacobian_form, self.equations.rows
        units = unit, 1 / or_one(form.row_lengths(form.scale_columns(rows, unit)))
        words = "the KKT matrix", SINGULAR
        singular, wanted = self._singular & self.finite, self.system.wanted
        announce(self.equations, self._factors, found, right, singular, units, eps, words, wanted)

    @cached_property
    def _factors(self) -> WithFallback[DenseFactorisation]:
        """The sparse factors, and dense ones of what is singular."""
        regular = ~self._singular if self._is_small else torch.ones_like(self.finite)

        def solve(r: Tensor, t: Tensor) -> Pair:
            z, s, _ = self.factor.solve(r, t)
            return z.double(), s.double()

        return WithFallback(solve, regular, self._densely)

    @property
    def _is_small(self) -> bool:
        """Whether there may be dense factors."""
        return self.factor.kkt.symbolic.size <= LARGEST_DENSE

    def _densely(self, which: Tensor) -> DenseFactorisation:
        """The dense factors of some problems."""
        kkt, (_, hessian, _, rows, _) = self.system.kkt, self.equations.take(which)
        hessian, rows = kkt.hessian_form.dense(hessian), kkt.symbolic.pattern.jacobian.dense(rows)
        return DenseFactorisation(hessian, rows, self.equations.dual[which] == 0, None)

    @cached_property
    def _singular(self) -> Tensor:  # (batch,)
        """Where the matrix is singular: some right-hand sides have solutions all the same, more than one."""
        crowded = self.active.sum(-1) > self.factor.kkt.m  # constraints hold more than there is
        if not bool((self.factor.inertia()[:, 2] > 0).any()):
            return crowded
        r = self.like.new_zeros(len(self.active), self.factor.kkt.m)
        t = torch.zeros_like(self.active, dtype=self.like.dtype)
        return crowded | (self.factor.solve(irregular(r), irregular(t) * self.active).error > LOST)

    @cached_property
    def _vanishing(self) -> tuple[Tensor, Tensor]:  # (batch,), (batch, m)
        """Whether curvature vanishes along some direction, and that direction: what hardly any force moves far."""
        none = torch.zeros_like(self.active, dtype=self.like.dtype)
        direction = irregular(self.like.new_zeros(len(none), self.factor.kkt.m))
        singular = torch.zeros_like(self.finite)
        for _ in range(ITERATIONS):
            direction, _, error = self.factor.solve(direction, none)
            singular = singular | (error > EXACT)
            direction = (direction / direction.abs().amax(-1, keepdim=True)).nan_to_num(0.0)
        return singular, direction

    def curvature(self) -> Tensor:  # (batch,)
        convex = self.factor.convex()
        signs = torch.where(convex, 1, -1)
        if len(self._factors.rest):
            return signs.index_copy(0, self._factors.rest, self._factors.fallback.curvature())
        if bool((self.factor.inertia()[:, 2] > 0).any()):  # pivots that were replaced: singular, or only out of order
            signs = torch.where(convex & self._vanishing[0], 0, signs)
        return signs

    def flat_directions(self) -> tuple[Tensor, Tensor]:  # (count,), (count, m)
        if len(self._factors.rest):
            return self._factors.flat_directions()
        singular, direction = self._vanishing
        problems = singular.nonzero().flatten()
        return problems, direction[problems]
