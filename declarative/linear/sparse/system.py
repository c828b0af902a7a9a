"""The sparse system at a point: its solutions can be differentiated, and it says how definite it is."""

from __future__ import annotations

from functools import cached_property, partial

import torch
from torch import Tensor

from ..contract import Factorisation, Pair, warn_of
from ..directions import irregular
from ..forms import StoredSystem
from .kkt import LdlFactorisation, SparseKKT
from .ldl import LOST

SINGULAR = "the KKT matrix is singular (redundant constraints, a flat objective or a kink)"
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
    """The factors of a sparse system."""

    def __init__(self, system: SparseSystem, rows: Tensor, dual: Tensor, warn: bool) -> None:
        self.active = system.active
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

    def __call__(self, r: Tensor, t: Tensor) -> Pair:
        z, s, error = self.factor.solve(r, t * self.active)
        if self.warn:
            self._announce(error, torch.finfo(r.dtype).eps)
        if not self.sound:
            z = torch.where(self.finite.unsqueeze(-1), z, torch.nan)
        return z.to(r.dtype), s.to(r.dtype) * self.active

    def _announce(self, error: Tensor, eps: float) -> None:
        if not self.sound:
            warn_of(~self.finite, "a derivative is not finite", "their gradient is NaN")
        bad = ((error > eps**0.5) | self._singular) & self.finite
        if bool(bad.any()):
            warn_of(bad, SINGULAR, "what it can be solved for was used; structure='dense' and check(node, x) tell more")

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
        if bool((self.factor.inertia()[:, 2] > 0).any()):  # pivots that were replaced: singular, or only out of order
            signs = torch.where(convex & self._vanishing[0], 0, signs)
        return signs

    def flat_directions(self) -> tuple[Tensor, Tensor]:  # (count,), (count, m)
        singular, direction = self._vanishing
        problems = singular.nonzero().flatten()
        return problems, direction[problems]
