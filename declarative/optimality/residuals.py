"""The residuals of the optimality conditions, and the distance to a solution that a Newton step estimates."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from ..problem import Batch
from ..structure import Structure
from .conditions import EVEN, ROUNDING, Terms, kink_tolerance, largest, optimality_tolerance, ratio

ENERGY_SHARE = 0.1  # of e_i is added to the scale of u_i, which may be zero where nothing else says how large it is
CANCELLING = 1e6  # times the slopes of f: forces of constraints that are larger cancel each other
TRAVEL_ROUNDING = 100  # units in the last place of the way that a solver has come: below that, a distance may be zero


@dataclass(frozen=True)
class Residuals:
    """What is seen at a batch of points before anything is solved."""

    terms: Terms
    multipliers: Tensor  # (batch, k)
    active: Tensor  # (batch, k)
    weak: Tensor  # (batch, k)
    left: Tensor  # D_U L, (batch, m)
    gap: Tensor  # c, where active, (batch, k)
    size: Tensor  # what a change of u is by the conditions alone, without e, (batch, m)
    scale: Tensor  # what a change of u is, (batch, m)
    own: Tensor  # the same without the way there, (batch, m)
    lost: Tensor  # whether the way there decides which constraints are active, (batch,)
    settled: Tensor  # whether the multipliers are those that were given, (batch,)
    cancelling: Tensor  # whether they cancel each other, so that slopes are lost in their rounding errors, (batch,)
    spurious: Tensor  # whether some of those that were given exert a force that they should not, (batch,)

    @classmethod
    def at(
        cls,
        batch: Batch,
        u: Tensor,
        given: Tensor,
        dtype: torch.dtype,
        structure: Structure,
        travel: Tensor | None,
    ) -> Residuals:
        terms = Terms.at(batch, u, given, structure, travel)
        noise, tolerance = torch.finfo(dtype).eps, optimality_tolerance(dtype)
        multipliers, active, weak, lost = terms.active_set(dtype)
        size, eps = terms.scale(active), torch.finfo(u.dtype).eps
        own = size + ENERGY_SHARE * terms.energy_scale() + eps * u.abs().amax(-1, keepdim=True)
        way = 0.0 if travel is None else TRAVEL_ROUNDING * eps / tolerance * travel.abs()
        size, scale = size + way, own + way
        feasible = (terms.violation(scale) <= ROUNDING * noise).all(-1)
        return cls(
            terms,
            multipliers,
            active,
            weak,
            left=terms.left(multipliers),
            gap=torch.where(active, terms.values, 0.0),
            size=size,
            scale=scale,
            own=own,
            lost=lost.any(-1),
            settled=(multipliers == given).all(-1),
            cancelling=feasible & (largest(terms.pulls()) > CANCELLING * largest(terms.gradient.abs())),
            spurious=(terms.effect(given - multipliers) > tolerance).any(-1),
        )

    def is_short_by_energy_alone(self, step: Tensor, dtype: torch.dtype) -> Tensor:  # (batch, m)
        """Which steps are short by e_i alone: by its own size and conditions, the unknown is not at its solution."""
        return step.abs() > optimality_tolerance(dtype) * self.size

    def is_short_by_itself(self, step: Tensor, dtype: torch.dtype) -> Tensor:  # (batch,)
        """Whether a step and what is violated are small without being excused by the way there."""
        small = optimality_tolerance(dtype)
        short = (step.abs() <= small * self.own).all(-1) & (self.terms.violation(self.own) <= small).all(-1)
        return short & ~self.lost

    def is_near_by_itself(self, step: Tensor, change: Tensor, dtype: torch.dtype) -> Tensor:  # (batch,)
        """Whether the point is near a solution without being excused by the way there."""
        strict = replace(self, scale=self.own, terms=replace(self.terms, travel=None))
        return ~self.lost & (measured(strict, step, change, dtype).distance <= optimality_tolerance(dtype))


class Measured(NamedTuple):
    """What a Newton step says of a point."""

    distance: Tensor  # that it stands for; infinite if there is no solution that way, (batch,)
    stationarity: Tensor  # (batch,)
    violation: Tensor  # (batch,)
    vanishing: Tensor  # active inequalities that do nothing at a solution nearby, (batch, k)
    dust: Tensor  # multipliers that are nothing but their own error, (batch, k)


def measured(here: Residuals, step: Tensor, change: Tensor, dtype: torch.dtype) -> Measured:
    """The distance that a step stands for, and the residuals beside the terms that cancel in them."""
    terms, active, scale = here.terms, here.active, here.scale
    noise, tolerance = torch.finfo(dtype).eps, optimality_tolerance(dtype)
    distance = largest(ratio(step.abs(), scale))
    system = terms.system.with_active(active)
    solvable = terms.is_solved_by(system, step, change, here.left, here.gap, scale, noise)
    after = here.multipliers - change
    effect, inequality = terms.effect(after), active & ~terms.equality
    pulls = inequality & (after > 0) & (effect > tolerance)
    violation = terms.violation(scale)
    overlooked = ~active & (violation > tolerance)
    # No step leads to a solution, a constraint should let go, or one is violated that the step does not see.
    distance = torch.where(solvable & ~(pulls | overlooked).any(-1), distance, torch.inf)
    # A slope along which L would change by less than the rounding errors of its terms is none.
    slope = torch.where(here.left.abs() * scale <= ROUNDING * noise * terms.energy.unsqueeze(-1), 0.0, here.left.abs())
    # What a multiplier does is lost in rounding errors or, where forces balance, a step takes nearly all of it away:
    # curvature by it is none, and to scale or to divide by that would make anything of it.
    stationarity = largest(ratio(slope, terms.force))
    fleeting = (after.abs() <= EVEN * here.multipliers.abs()) & (stationarity <= tolerance).unsqueeze(-1)
    dust = (effect <= ROUNDING * noise) | fleeting
    vanishing = inequality & (effect <= kink_tolerance(dtype))
    return Measured(distance, stationarity, largest(violation), vanishing, dust)


def conclusion(here: Residuals, found: Measured, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Multipliers, active, weak and residual of the verdict, and whether H belongs to these multipliers."""
    distance = found.distance
    near = (distance <= optimality_tolerance(dtype)).unsqueeze(-1)
    vanishing = found.vanishing & near
    zero = vanishing | (found.dust & near)
    residual = torch.where(here.terms.u.isfinite().all(-1), distance.nan_to_num(torch.inf, torch.inf), torch.inf)
    multipliers = torch.where(zero, 0.0, here.multipliers)
    settled = here.settled & ~(zero & (here.multipliers != 0)).any(-1)
    return multipliers, here.active & ~vanishing, here.weak | vanishing, residual, settled
