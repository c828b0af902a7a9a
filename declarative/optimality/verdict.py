"""Is this point a solution? It is if one is *near*, however small or large a slope may look.

With only the constraints that hold with equality, a solution solves R(u, l) = [D_U L; c] = 0, so that the Newton step

    [H A'; A 0] [du; -dl] = -[D_U L; c]

estimates how far away it is: du is a distance in the units of u, entry by entry, whatever the units of f and c are and
whatever constant is added to f. The point is a solution if

    |du_i| <= tolerance * (max(|u_i|, r_i) + e_i / 10)      for every entry i,

where r_i and e_i measure what a change of u_i is in this problem: by r_i it changes one of the conditions by as much as
the terms that cancel in it (the least such change over all conditions), and e_i = sqrt(F / H_ii), at most the largest
entry of u, is what changes f by as much as its terms F. Slopes and constraint values that rounding errors explain count
as zero, unless rounding errors would explain anything. A second step must not lead further away than the first. There
must be a minimum nearby: the matrix has as many negative eigenvalues as there are active constraints; where curvature
vanishes, f must not fall to either side. Where there is no estimate (a derivative is not finite, the system has no
solution) the point is not a solution.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..linear import Pair
from ..linear.directions import irregular
from ..problem import Batch
from ..structure import Structure, stores_hessian, structure_at
from .assessment import Assessment
from .conditions import (
    EXACT,
    ROUNDING,
    Terms,
    estimate_multipliers,
    largest,
    optimality_tolerance,
    quick_multipliers,
    ratio,
)
from .minimum import is_minimum, nears_infimum
from .quick import Moved, quick_verdict
from .residuals import TRAVEL_ROUNDING, Measured, Residuals, conclusion, measured

MOST_BLURRED = 0.1  # a relative distance that rounding errors of the conditions must not stand for
BEYOND = 10  # steps, by the same factors, lead beyond a solution that is near: five would if f were like u^6
MINOR_STEP = 1e-3  # of the longest step, relatively, is one whose sign the nonlinearity of the others may turn
WITHOUT_EFFECT = 1e4  # times the largest unknown: one that has to change by more to change a condition does nothing
PART_OF_STEP = 2.0**-10  # of a step: what slopes must change by accordingly if they are more than rounding errors


def assess(
    batch: Batch,
    u: Tensor,  # (batch, m)
    multipliers: Tensor | None = None,  # (batch, k)
    *,
    dtype: torch.dtype | None = None,
    travel: Tensor | None = None,  # (batch, m)
    structure: Structure = "auto",
    minimum: bool = True,
) -> Assessment:
    """Test a batch of points; without multipliers, estimate them by least squares over the tight constraints.

    Args:
        batch: the problems.
        u: the points.
        multipliers: stacked, if the solver knows them.
        dtype: the precision that the points are given in, by default that of u.
        travel: the way that a solver has come to these points, another measure of what a change of u is.
        structure: what is known of the Hessian.
        minimum: whether a saddle point is refused.
    """
    batch, dtype, given_multipliers = batch.without_constants(), dtype or u.dtype, multipliers
    structure = structure_at(batch, u, multipliers, structure)
    estimated = None if multipliers is not None else _with_multipliers(dtype, structure)
    given = u.new_zeros(batch.size, batch.k) if multipliers is None else multipliers
    seen = quick_verdict(batch, u, given, dtype, travel, structure, estimated)
    if seen is not None and bool(seen.conclusive.all()):  # as nearly always
        balanced = seen["stationarity"] <= ROUNDING * torch.finfo(u.dtype).eps
        if multipliers is not None or bool(balanced.all()):  # else there are better ones than were estimated
            return seen.assessment()
    if multipliers is None:
        multipliers, seen = estimate_multipliers(batch, u, optimality_tolerance(dtype), structure), None
    here = Residuals.at(batch, u, multipliers, dtype, structure, travel) if seen is None else seen.residuals()
    here = _with_multipliers_that_tell(batch, here, dtype, structure)
    here = _without_cancelled_curvature(batch, here, structure)
    terms, active, multipliers, scale = here.terms, here.active, here.multipliers, here.scale
    factors = terms.system.with_active(active).factorise(warn=False)
    newton_step, change = factors(-here.left, -here.gap)
    step = newton_step
    found = measured(here, step, change, dtype)
    distance, noise, tolerance = found.distance, torch.finfo(dtype).eps, optimality_tolerance(dtype)
    if bool((distance > tolerance).any()):
        shorter = _without_rounding(terms, factors, here.left, here.gap, noise, scale, distance)
        excused = (shorter <= tolerance) & (distance > tolerance)
        if bool(excused.any()):
            excused = excused & ~_rises_on_both_sides(batch, terms, multipliers, factors, noise)
        distance = torch.where(excused, distance, shorter)
    near = distance <= tolerance
    if travel is not None:
        rounded = near & (found.distance > tolerance)
        unfinished = _is_unfinished(batch, here, factors, step, change, near, rounded, dtype)
        if bool(unfinished.any()):  # the way there is no measure of it
            travel = torch.where(unfinished.unsqueeze(-1), 0.0, travel)
            return assess(batch, u, given_multipliers, dtype=dtype, travel=travel, structure=structure, minimum=minimum)
    held = terms.form.multiply_transposed(terms.jacobian.abs(), active.to(u.dtype)) > 0
    idle = ~held & (scale > WITHOUT_EFFECT * terms.longest) & (terms.longest > 0)
    step = torch.where(idle & _is_undetermined(here, step, dtype), 0.0, step)
    if bool((near & (distance > EXACT * torch.finfo(u.dtype).eps)).any()):
        further, left = _next_step(batch, u + step, multipliers - change, active, factors)
        further = torch.where(idle & _is_negligible(terms, left, noise), 0.0, further.abs())
        again = torch.maximum(distance, largest(ratio(further, scale)).nan_to_num(torch.inf))
        again = torch.where(_goes_on_beyond(batch, here, factors, step, change, dtype), torch.inf, again)
        distance = torch.where(near, again, distance)
    if minimum:
        near = distance <= tolerance
        good = is_minimum(batch, terms, multipliers, active, factors, near)
        doubted = (good & near).unsqueeze(-1) & here.is_short_by_energy_alone(newton_step, dtype)
        good = good & ~nears_infimum(batch, terms, multipliers, active, newton_step, doubted)
        distance = torch.where(good, distance, torch.inf)
        flat = good & near & (factors.curvature() == 0)
        return replace(_concluded(here, step, change, found._replace(distance=distance), dtype), flat=flat)
    return _concluded(here, step, change, found._replace(distance=distance), dtype)


@functools.cache
def _with_multipliers(dtype: torch.dtype, structure: Structure) -> Callable[..., Moved]:
    """What a quick verdict does first at points without multipliers."""

    def estimated(batch: Batch, u: Tensor, given: Tensor, travel: Tensor | None) -> Moved:  # noqa: ARG001
        multipliers = quick_multipliers(batch, u, optimality_tolerance(dtype), structure)
        return u, multipliers, torch.zeros_like(u[:, 0], dtype=torch.bool)

    return estimated


def _concluded(here: Residuals, step: Tensor, change: Tensor, found: Measured, dtype: torch.dtype) -> Assessment:
    """The verdict, with the multipliers of constraints that do nothing at the solution left out."""
    multipliers, active, weak, residual, settled = conclusion(here, found, dtype)
    return Assessment(
        multipliers,
        active,
        weak,
        found.stationarity,
        found.violation,
        residual=residual,
        step=step,
        multiplier_step=-change,
        jacobian=here.terms.jacobian,
        hessian=here.terms.system.stored_hessian() if bool(settled.all()) else None,
    )


def _with_multipliers_that_tell(batch: Batch, here: Residuals, dtype: torch.dtype, structure: Structure) -> Residuals:
    """Where multipliers cancel each other, the smallest that do the same; without forces that nothing exerts."""
    u, travel = here.terms.u, here.terms.travel
    if bool(here.cancelling.any()):
        least = estimate_multipliers(batch, u, optimality_tolerance(dtype), structure)
        chosen = torch.where(here.cancelling.unsqueeze(-1), least, here.multipliers)
        here = Residuals.at(batch, u, chosen, dtype, structure, travel)
    if bool(here.spurious.any()):
        here = Residuals.at(batch, u, here.multipliers, dtype, structure, travel)
    return here


def _without_cancelled_curvature(batch: Batch, here: Residuals, structure: Structure) -> Residuals:
    """Where f and the constraints curve the same way, what is left of H may be rounding errors: these are zero.

    Such as on a circle of solutions, where H vanishes: a step by what is left of it would lead anywhere.
    """
    if not batch.k or not stores_hessian(batch, structure):
        return here
    terms, hessian = here.terms, here.terms.system.stored_hessian()
    assert hessian is not None
    alone = batch.hessian(terms.u)
    false = hessian.abs() <= ROUNDING * torch.finfo(hessian.dtype).eps * (alone.abs() + (alone - hessian).abs())
    if not bool((false & (hessian != 0)).any()):
        return here
    everywhere = torch.ones_like(here.multipliers, dtype=torch.bool)
    system: Any = batch.layout.system(torch.where(false, 0.0, hessian), terms.jacobian, everywhere)
    return replace(here, terms=replace(terms, system=system))


def _without_rounding(
    terms: Terms, factors: Any, left: Tensor, gap: Tensor, noise: float, scale: Tensor, distance: Tensor
) -> Tensor:  # (batch,)
    """The distance that is left if what rounding errors explain counts as zero; unless they could explain anything."""
    sizes = ((left, terms.force), (gap, terms.terms))
    step, _ = factors(*(-_without_noise(x, ROUNDING * noise * size) for x, size in sizes))
    blur = largest(ratio(_rounding_step(terms, factors, noise).abs(), scale))
    trusted = torch.maximum(distance, blur) <= MOST_BLURRED
    return torch.where(trusted, largest(ratio(step.abs(), scale)), distance)


def _rounding_step(terms: Terms, factors: Any, noise: float) -> Tensor:  # (batch, m)
    """A step that rounding errors of the conditions lead to."""
    step: Tensor = factors(*(2 * noise * size * irregular(size) for size in (terms.force, terms.terms)))[0]
    return step


def _rises_on_both_sides(
    batch: Batch, terms: Terms, multipliers: Tensor, factors: Any, noise: float
) -> Tensor:  # (batch,)
    """Whether L rises to both sides of all that rounding errors may take for the solution, as about a minimum.

    Where it falls for ever, slower and slower, slopes get small too, but point to the same side everywhere. The way is
    that along which rounding errors lead furthest; what is not finite at its end is a wall.
    """
    none = torch.zeros_like(terms.values)
    way, _ = factors(noise * terms.force * irregular(terms.u), none)
    push = noise * terms.force * way.sign()
    way, _ = factors(push, none)
    expected = ROUNDING * (push * way).sum(-1)
    hollow = torch.ones_like(expected, dtype=torch.bool)
    for side in (1.0, -1.0):
        slope = batch.slopes(terms.u + side * 2 * ROUNDING * way, multipliers)[1]
        hollow = hollow & ~(side * (slope * way).sum(-1) < expected / 2)
    return hollow


def _is_unfinished(
    batch: Batch,
    here: Residuals,
    factors: Any,
    step: Tensor,  # (batch, m)
    change: Tensor,  # (batch, k)
    near: Tensor,  # (batch,)
    rounded: Tensor,  # those that are near but for rounding errors, (batch,)
    dtype: torch.dtype,
) -> Tensor:  # (batch,)
    """Whether a point is near by the way there alone, and could be improved by itself: unfinished, not rounded."""
    travel, tolerance = here.terms.travel, optimality_tolerance(dtype)
    assert travel is not None
    by_travel = near & (travel != 0).any(-1) & ~here.is_near_by_itself(step, change, dtype)
    if not bool(by_travel.any()):
        return by_travel
    noise, strict = torch.finfo(dtype).eps, largest(ratio(step.abs(), here.own))
    strict = _without_rounding(here.terms, factors, here.left, here.gap, noise, here.own, strict)
    by_travel = by_travel & ~(rounded & (strict <= tolerance) & ~here.lost)  # which have been looked into already
    return by_travel & ~_is_lost_in_rounding(batch, here, factors, step, change, dtype)


def _is_lost_in_rounding(
    batch: Batch, here: Residuals, factors: Any, step: Tensor, change: Tensor, dtype: torch.dtype
) -> Tensor:  # (batch,)
    """Whether what is small beside the way there is lost in rounding errors or zero, and not merely unfinished.

    Zero is a solution then, as nearly as can be told; or slopes do not change as they should along a part of a step.
    """
    terms, after, tolerance = here.terms, here.multipliers - change, optimality_tolerance(dtype)
    eps, size = torch.finfo(step.dtype).eps, torch.maximum(step.abs(), terms.u.abs())
    assert terms.travel is not None
    tiny = (terms.u.abs() <= TRAVEL_ROUNDING * eps * terms.travel.abs()) & (terms.u != 0)
    apart = step.abs() > tolerance * here.own
    asked = apart | (tiny & here.lost.unsqueeze(-1))
    there, _ = _next_step(batch, torch.where(tiny, 0.0, terms.u), after, here.active, factors)
    zero = tiny & (there.abs() <= EXACT * eps * size)
    nudged = here.multipliers - PART_OF_STEP * change
    there, _ = _next_step(batch, terms.u + PART_OF_STEP * step, nudged, here.active, factors)
    seen = asked & ~zero & (~apart | ((there - (1 - PART_OF_STEP) * step).abs() <= PART_OF_STEP / 2 * step.abs()))
    return asked.any(-1) & ~seen.any(-1)


def _next_step(batch: Batch, u: Tensor, multipliers: Tensor, active: Tensor, factors: Any) -> Pair:  # (batch, m) both
    """The Newton step from another point, by the same factors, and D_U L there."""
    _, left, values, _ = batch.slopes(u, multipliers)
    return factors(-left, -torch.where(active, values, 0.0))[0], left


def _is_negligible(terms: Terms, left: Tensor, noise: float) -> Tensor:  # (batch, m)
    """Where a slope changes L by less than rounding errors, were the unknown to change by the largest of all."""
    return left.abs() * terms.longest <= ROUNDING * noise * terms.energy.unsqueeze(-1)


def _is_undetermined(here: Residuals, step: Tensor, dtype: torch.dtype) -> Tensor:  # (batch, m)
    """Which unknowns do not matter where the others are, such as an angle at a pole, and would go anywhere."""
    faint = _is_negligible(here.terms, here.left, torch.finfo(dtype).eps)
    return faint & (step.abs() > optimality_tolerance(dtype) * here.terms.u.abs())


def _goes_on_beyond(
    batch: Batch, here: Residuals, factors: Any, step: Tensor, change: Tensor, dtype: torch.dtype
) -> Tensor:  # (batch,)
    """Whether the way goes on beyond the estimated solution, as on a slope with a spike of curvature in it.

    If a solution lies a few steps ahead, then the next step from there leads back, entry by entry; those aside that are
    small or that rounding errors explain. An unknown that does not matter where the others are is left where it is,
    and nothing is concluded from what it may do to the others.
    """
    terms, noise = here.terms, torch.finfo(dtype).eps
    loose = _is_undetermined(here, step, dtype)
    ahead, away = torch.where(loose, 0.0, step), torch.where(loose, BEYOND * step.abs(), 0.0)
    onward, _ = _next_step(batch, terms.u + BEYOND * ahead, here.multipliers - change, here.active, factors)
    pulled = factors(terms.system.magnitude(away) * irregular(step), torch.zeros_like(change))[0]
    unclear = torch.maximum(pulled.abs(), ROUNDING * _rounding_step(terms, factors, noise).abs())
    length, unclear = (ratio(x.abs(), here.scale) for x in (ahead, unclear))
    matters = length > torch.maximum(MINOR_STEP * largest(length).unsqueeze(-1), unclear)
    return (matters & (onward * ahead > 0)).any(-1)


def _without_noise(values: Tensor, noise: Tensor) -> Tensor:
    """The values, less what rounding errors explain."""
    return values.sign() * (values.abs() - noise).clamp(min=0.0)
