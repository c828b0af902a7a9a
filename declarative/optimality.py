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
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .conditions import (
    EXACT,
    ROUNDING,
    Terms,
    estimate_multipliers,
    kink_tolerance,
    largest,
    optimality_tolerance,
    quick_multipliers,
    ratio,
)
from .linear import Pair, or_one
from .linear.directions import irregular
from .minimum import is_minimum, nears_infimum
from .problem import Batch
from .structure import Structure, stores_hessian

__all__ = ["Assessment", "Glance", "assess", "estimate_multipliers", "glance", "kink_tolerance", "optimality_tolerance"]

FAINT = 0.1  # of the scale e_i is added to that of u_i: an entry may be zero where nothing else says how large it is
DOUBTFUL = 0.1  # a relative distance that rounding errors of the conditions must not stand for
BEYOND = 10  # steps, by the same factors, lead beyond a solution that is near: five would if f were like u^6
WILD = 1e6  # times the slopes of f: forces of constraints that are larger cancel each other
MINOR = 1e-3  # of the longest step, relatively, is one whose sign the nonlinearity of the others may turn
IDLE = 1e4  # times the largest unknown: one that has to change by more to change a condition does nothing
CERTAIN = 4  # of what is seen does not follow from a system that may be singular
NOISE = 100  # units in the last place of the way that a solver has come: below that, a distance may be zero
NUDGE = 2.0**-10  # of a step: what slopes must change by accordingly if they are more than rounding errors


@dataclass(frozen=True)
class Assessment:
    """What the optimality conditions say about a batch of points.

    Attributes:
        multipliers: stacked, zero where inactive, (batch, k).
        active: which constraints hold with equality; all equalities, (batch, k).
        weak: inequalities with neither slack nor multiplier, where the solution has a kink, (batch, k).
        stationarity, violation: of the conditions, relative to the terms that cancel in them, (batch,).
        residual: the estimated distance to a solution, relative; infinite where there is no minimum nearby, (batch,).
        step, multiplier_step: the Newton step to it, (batch, m) and (batch, k).
        jacobian: A at the points, for whoever needs it too, in the form of the batch.
        hessian: H at these points and multipliers, likewise: in the form of the batch or, if diagonal, its diagonal.
        bent: where a slope or a curvature jumps at a solution, if functions have corners, (batch,).
        level: where L is level to one side of such a solution, which is not the only one then, (batch,).
    """

    multipliers: Tensor
    active: Tensor
    weak: Tensor
    stationarity: Tensor
    violation: Tensor
    residual: Tensor
    step: Tensor | None = None
    multiplier_step: Tensor | None = None
    jacobian: Tensor | None = None
    hessian: Tensor | None = None
    bent: Tensor | None = None
    level: Tensor | None = None

    def solved(self, dtype: torch.dtype) -> Tensor:  # (batch,)
        """Which points are solutions, as far as this precision can tell."""
        return self.residual <= optimality_tolerance(dtype)

    def to(self, dtype: torch.dtype) -> Assessment:
        """The same in another precision."""
        return self._each(lambda x: x.to(dtype) if x.is_floating_point() else x)

    def take(self, rows: Tensor) -> Assessment:
        """The problems at these positions."""
        return self._each(lambda x: x[rows])

    def put(self, rows: Tensor, part: Assessment) -> Assessment:
        """The same with the problems at these indices replaced."""
        pairs = [(x, getattr(part, name)) for name, x in vars(self).items()]
        merged: list[Any] = [None if x is None or y is None else x.index_copy(0, rows, y) for x, y in pairs]
        return Assessment(*merged)

    def _each(self, function: Callable[[Tensor], Tensor]) -> Assessment:
        changed: list[Any] = [None if x is None else function(x) for x in vars(self).values()]
        return Assessment(*changed)


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
    estimated = None if multipliers is not None else _with_multipliers(dtype, structure)
    given = u.new_zeros(batch.size, batch.k) if multipliers is None else multipliers
    seen = glance(batch, u, given, dtype, travel, structure, estimated)
    if seen is not None and bool(seen["plain"].all()):  # as nearly always
        return seen.assessment()
    if multipliers is None:
        multipliers, seen = estimate_multipliers(batch, u, optimality_tolerance(dtype), structure), None
    look = _Look.at(batch, u, multipliers, dtype, structure, travel) if seen is None else seen.look()
    if bool(look.wild.any()):  # of all multipliers that do the same, the smallest tell
        least = estimate_multipliers(batch, u, optimality_tolerance(dtype), structure)
        chosen = torch.where(look.wild.unsqueeze(-1), least, look.multipliers)
        look = _Look.at(batch, u, chosen, dtype, structure, travel)
    if bool(look.doubtful.any()):  # forces and curvature that nothing exerts
        look = _Look.at(batch, u, look.multipliers, dtype, structure, travel)
    look = _without_false_curvature(batch, look, structure)
    terms, active, multipliers, scale = look.terms, look.active, look.multipliers, look.scale
    factors = terms.system.with_active(active).factorise(warn=False)
    newton_step, change = factors(-look.left, -look.gap)
    step = newton_step
    found = _measured(look, step, change, dtype)
    distance, noise, tolerance = found.distance, torch.finfo(dtype).eps, optimality_tolerance(dtype)
    if bool((distance > tolerance).any()):
        shorter = _without_rounding(terms, factors, look.left, look.gap, noise, scale, distance)
        excused = (shorter <= tolerance) & (distance > tolerance)
        if bool(excused.any()):
            excused = excused & ~_is_hollow(batch, terms, multipliers, factors, noise)
        distance = torch.where(excused, distance, shorter)
    near = distance <= tolerance
    if travel is not None:
        by_travel = near & (travel != 0).any(-1) & ~look.is_near_by_itself(step, change, dtype)
        if bool(by_travel.any()):
            strict = largest(ratio(step.abs(), look.own))
            strict = _without_rounding(terms, factors, look.left, look.gap, noise, look.own, strict)
            rounded = (found.distance > tolerance) & (strict <= tolerance)  # which has been looked into already
            by_travel = by_travel & ~(rounded & ~look.lost)
            unfinished = by_travel & ~_is_lost(batch, look, factors, step, change, dtype)
            if bool(unfinished.any()):  # the way there is no measure of it
                travel = torch.where(unfinished.unsqueeze(-1), 0.0, travel)
                return assess(
                    batch, u, given_multipliers, dtype=dtype, travel=travel, structure=structure, minimum=minimum
                )
    held = terms.form.multiply_transposed(terms.jacobian.abs(), active.to(u.dtype)) > 0
    idle = ~held & (scale > IDLE * terms.longest) & (terms.longest > 0)
    step = torch.where(idle & _is_loose(look, step, dtype), 0.0, step)
    if bool((near & (distance > EXACT * torch.finfo(u.dtype).eps)).any()):
        further, left = _next_step(batch, u + step, multipliers - change, active, factors)
        further = torch.where(idle & _is_faint(terms, left, noise), 0.0, further.abs())
        again = torch.maximum(distance, largest(ratio(further, scale)).nan_to_num(torch.inf))
        again = torch.where(_is_stuck(batch, look, factors, step, change, dtype), torch.inf, again)
        distance = torch.where(near, again, distance)
    if minimum:
        near = distance <= tolerance
        good = is_minimum(batch, terms, multipliers, active, factors, near)
        vague = (good & near).unsqueeze(-1) & look.is_vague(newton_step, dtype)
        good = good & ~nears_infimum(batch, terms, multipliers, active, newton_step, vague)
        distance = torch.where(good, distance, torch.inf)
    return _concluded(look, step, change, found._replace(distance=distance), dtype)


@functools.cache
def _with_multipliers(dtype: torch.dtype, structure: Structure) -> Callable[..., Moved]:
    """What a glance does first at points without multipliers."""

    def estimated(batch: Batch, u: Tensor, given: Tensor, travel: Tensor | None) -> Moved:  # noqa: ARG001
        multipliers = quick_multipliers(batch, u, optimality_tolerance(dtype), structure)
        return u, multipliers, torch.zeros_like(u[:, 0], dtype=torch.bool)

    return estimated


@dataclass(frozen=True)
class _Look:
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
    wild: Tensor  # whether they cancel each other, so that slopes are lost in their rounding errors, (batch,)
    doubtful: Tensor  # whether some of those that were given exert a force that they should not, (batch,)

    @classmethod
    def at(
        cls,
        batch: Batch,
        u: Tensor,
        given: Tensor,
        dtype: torch.dtype,
        structure: Structure,
        travel: Tensor | None,
    ) -> _Look:
        terms = Terms.at(batch, u, given, structure, travel)
        noise, tolerance = torch.finfo(dtype).eps, optimality_tolerance(dtype)
        multipliers, active, weak, lost = terms.active_set(dtype)
        size, eps = terms.scale(active), torch.finfo(u.dtype).eps
        own = size + FAINT * terms.energy_scale() + eps * u.abs().amax(-1, keepdim=True)
        way = 0.0 if travel is None else NOISE * eps / tolerance * travel.abs()
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
            wild=feasible & (largest(terms.pulls()) > WILD * largest(terms.gradient.abs())),
            doubtful=(terms.effect(given - multipliers) > tolerance).any(-1),
        )

    def is_vague(self, step: Tensor, dtype: torch.dtype) -> Tensor:  # (batch, m)
        """Which steps are short by e_i alone: by its own size and conditions, the unknown is not at its solution."""
        return step.abs() > optimality_tolerance(dtype) * self.size

    def is_near_by_itself(self, step: Tensor, change: Tensor, dtype: torch.dtype) -> Tensor:  # (batch,)
        """Whether the point is near a solution without being excused by the way there."""
        strict = replace(self, scale=self.own, terms=replace(self.terms, travel=None))
        return ~self.lost & (_measured(strict, step, change, dtype).distance <= optimality_tolerance(dtype))


def _without_false_curvature(batch: Batch, look: _Look, structure: Structure) -> _Look:
    """Where f and the constraints curve the same way, what is left of H may be rounding errors: these are zero.

    Such as on a circle of solutions, where H vanishes: a step by what is left of it would lead anywhere.
    """
    if not batch.k or not stores_hessian(batch, structure):
        return look
    terms, hessian = look.terms, look.terms.system.stored_hessian()
    assert hessian is not None
    alone = batch.hessian(terms.u)
    false = hessian.abs() <= ROUNDING * torch.finfo(hessian.dtype).eps * (alone.abs() + (alone - hessian).abs())
    if not bool((false & (hessian != 0)).any()):
        return look
    everywhere = torch.ones_like(look.multipliers, dtype=torch.bool)
    system: Any = batch.layout.system(torch.where(false, 0.0, hessian), terms.jacobian, everywhere)
    return replace(look, terms=replace(terms, system=system))


class _Measured(NamedTuple):
    """What a Newton step says of a point."""

    distance: Tensor  # that it stands for; infinite if there is no solution that way, (batch,)
    stationarity: Tensor  # (batch,)
    violation: Tensor  # (batch,)
    vanishing: Tensor  # active inequalities that do nothing at a solution nearby, (batch, k)


def _measured(look: _Look, step: Tensor, change: Tensor, dtype: torch.dtype) -> _Measured:
    terms, active, scale = look.terms, look.active, look.scale
    noise, tolerance = torch.finfo(dtype).eps, optimality_tolerance(dtype)
    distance = largest(ratio(step.abs(), scale))
    system = terms.system.with_active(active)
    solvable = terms.is_solved_by(system, step, change, look.left, look.gap, scale, noise)
    after = look.multipliers - change
    effect, inequality = terms.effect(after), active & ~terms.equality
    pulls = inequality & (after > 0) & (effect > tolerance)
    violation = terms.violation(scale)
    overlooked = ~active & (violation > tolerance)
    # No step leads to a solution, a constraint should let go, or one is violated that the step does not see.
    distance = torch.where(solvable & ~(pulls | overlooked).any(-1), distance, torch.inf)
    # A slope along which L would change by less than the rounding errors of its terms is none.
    slope = torch.where(look.left.abs() * scale <= ROUNDING * noise * terms.energy.unsqueeze(-1), 0.0, look.left.abs())
    stationarity = largest(ratio(slope, terms.force))
    return _Measured(distance, stationarity, largest(violation), inequality & (effect <= kink_tolerance(dtype)))


def _concluded(look: _Look, step: Tensor, change: Tensor, found: _Measured, dtype: torch.dtype) -> Assessment:
    """The verdict, with the multipliers of constraints that do nothing at the solution left out."""
    multipliers, active, weak, residual, settled = _conclusion(look, found, dtype)
    return Assessment(
        multipliers,
        active,
        weak,
        found.stationarity,
        found.violation,
        residual=residual,
        step=step,
        multiplier_step=-change,
        jacobian=look.terms.jacobian,
        hessian=look.terms.system.stored_hessian() if bool(settled.all()) else None,
    )


def _conclusion(look: _Look, found: _Measured, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Multipliers, active, weak and residual of the verdict, and whether H belongs to these multipliers."""
    distance = found.distance
    vanishing = found.vanishing & (distance <= optimality_tolerance(dtype)).unsqueeze(-1)
    residual = torch.where(look.terms.u.isfinite().all(-1), distance.nan_to_num(torch.inf, torch.inf), torch.inf)
    multipliers = torch.where(vanishing, 0.0, look.multipliers)
    settled = look.settled & ~vanishing.any(-1)
    return multipliers, look.active & ~vanishing, look.weak | vanishing, residual, settled


@dataclass(frozen=True)
class Glance:
    """What is seen of a batch of points without a decision by values.

    By name: ``u`` and ``given``, the points and multipliers; ``moved``: whether a point was moved before; ``plain``:
    whether there is nothing else to be said, the point is a solution to the last digits; ``trusted``: whether the step
    is Newton's to a minimum; ``step`` and ``change``, of the multipliers with the opposite sign; the verdict; and what
    was measured and looked at.
    """

    batch: Batch
    travel: Tensor | None
    seen: Sequence[Tensor]

    def __getitem__(self, name: str) -> Tensor:
        return self.seen[SEEN.index(name)]

    def assessment(self) -> Assessment:
        """The verdict, where it is plain."""
        return Assessment(
            self["kept"],
            self["holding"],
            self["kinks"],
            self["stationarity"],
            self["violation"],
            self["residual"],
            self["step"],
            -self["change"],
            self["jacobian"],
            self["hessian"] if bool(self["consistent"].all()) else None,
        )

    def look(self) -> _Look:
        """What was looked at."""
        terms, look = ({name: self[name] for name in names} for names in (OF_TERMS, OF_LOOK))
        everywhere = torch.ones_like(self["given"], dtype=torch.bool)
        system: Any = self.batch.layout.system(self["hessian"], terms["jacobian"], everywhere)
        whole = Terms(
            system=system,
            u=self["u"],
            form=self.batch.layout.jacobian,
            multipliers=self["given"],
            p=self.batch.p,
            travel=self.travel,
            **terms,
        )
        return _Look(whole, **look)


OF_TERMS = ("gradient", "values", "jacobian", "force", "terms")
OF_LOOK = (
    "multipliers",
    "active",
    "weak",
    "left",
    "gap",
    "size",
    "scale",
    "own",
    "lost",
    "settled",
    "wild",
    "doubtful",
)
VERDICT = ("kept", "holding", "kinks", "residual", "consistent")
SEEN = (
    *("u", "given", "moved", "plain", "trusted", "step", "change"),
    *VERDICT,
    *_Measured._fields,
    *("hessian", *OF_TERMS, *OF_LOOK),
)
Moved = tuple[Tensor, Tensor, Tensor]  # points, multipliers, and which are others than they were


def glance(
    batch: Batch,
    u: Tensor,
    given: Tensor,
    dtype: torch.dtype,
    travel: Tensor | None,
    structure: Structure = "auto",
    move: Callable[[Batch, Tensor, Tensor, Tensor | None], Moved] | None = None,
) -> Glance | None:
    """What is seen of the points; None where H is not stored.

    Everything is a function of each problem by itself, called or replayed. ``move`` may change the points before.
    """
    if not stores_hessian(batch, structure):
        return None

    def look_at(batch: Batch, u: Tensor, given: Tensor, travel: Tensor | None) -> tuple[Tensor, ...]:
        moved = torch.zeros_like(u[:, 0], dtype=torch.bool)
        if move is not None:
            u, given, moved = move(batch, u, given, travel)
        batch = batch.without_constants()  # the verdict is by what the functions are at these points
        look = _Look.at(batch, u, given, dtype, structure, travel)
        hessian = look.terms.system.stored_hessian()
        assert hessian is not None
        right = (-look.left, -look.gap)
        step, change, trusted = batch.layout.solve_active(hessian, look.terms.jacobian, look.active, right)
        found = _measured(look, step, change, dtype)
        exact = found.distance <= EXACT * torch.finfo(step.dtype).eps
        balanced = found.stationarity <= optimality_tolerance(step.dtype)
        plain = trusted & exact & balanced & ~(look.wild | look.doubtful | look.is_vague(step, dtype).any(-1))
        if travel is not None:
            plain = plain & look.is_near_by_itself(step, change, dtype)
        parts = (getattr(part, name) for part, names in ((look.terms, OF_TERMS), (look, OF_LOOK)) for name in names)
        verdict = _conclusion(look, found, dtype)
        return u, given, moved, plain, trusted, step, change, *verdict, *found, hessian, *parts

    name = ("glance", dtype, structure, move)
    certain = 0 if move else CERTAIN
    seen = batch.evaluate(name, look_at, u, given, travel, by_problem=True, compared=certain, lazy=True)
    return Glance(batch.without_constants(), travel, seen)


def _without_rounding(
    terms: Terms, factors: Any, left: Tensor, gap: Tensor, noise: float, scale: Tensor, distance: Tensor
) -> Tensor:  # (batch,)
    """The distance that is left if what rounding errors explain counts as zero; unless they could explain anything."""
    sizes = ((left, terms.force), (gap, terms.terms))
    step, _ = factors(*(-_without_noise(x, ROUNDING * noise * size) for x, size in sizes))
    blur = largest(ratio(_shaken(terms, factors, noise).abs(), scale))
    trusted = torch.maximum(distance, blur) <= DOUBTFUL
    return torch.where(trusted, largest(ratio(step.abs(), scale)), distance)


def _shaken(terms: Terms, factors: Any, noise: float) -> Tensor:  # (batch, m)
    """A step that rounding errors of the conditions lead to."""
    step: Tensor = factors(*(2 * noise * size * irregular(size) for size in (terms.force, terms.terms)))[0]
    return step


def _is_hollow(batch: Batch, terms: Terms, multipliers: Tensor, factors: Any, noise: float) -> Tensor:  # (batch,)
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


def _is_lost(
    batch: Batch, look: _Look, factors: Any, step: Tensor, change: Tensor, dtype: torch.dtype
) -> Tensor:  # (batch,)
    """Whether what is small beside the way there is lost in rounding errors or zero, and not merely unfinished.

    Zero is a solution then, as nearly as can be told; or slopes do not change as they should along a part of a step,
    nor violated constraints along a part of the way to where they hold.
    """
    terms, after, tolerance = look.terms, look.multipliers - change, optimality_tolerance(dtype)
    eps, size = torch.finfo(step.dtype).eps, torch.maximum(step.abs(), terms.u.abs())
    assert terms.travel is not None
    tiny = (terms.u.abs() <= NOISE * eps * terms.travel.abs()) & (terms.u != 0)
    apart = step.abs() > tolerance * look.own
    asked = apart | (tiny & look.lost.unsqueeze(-1))
    there, _ = _next_step(batch, torch.where(tiny, 0.0, terms.u), after, look.active, factors)
    zero = tiny & (there.abs() <= EXACT * eps * size)
    nudged = look.multipliers - NUDGE * change
    there, _ = _next_step(batch, terms.u + NUDGE * step, nudged, look.active, factors)
    seen = asked & ~zero & (~apart | ((there - (1 - NUDGE) * step).abs() <= NUDGE / 2 * step.abs()))
    violated = terms.violation(look.own) > tolerance
    length = or_one(terms.form.row_lengths(terms.jacobian).square())
    back = terms.form.multiply_transposed(terms.jacobian, torch.where(violated, -terms.values / length, 0.0))
    changed = batch.values(terms.u + NUDGE * back)[1] - terms.values
    expected = NUDGE * terms.form.multiply(terms.jacobian, back)
    vanished = asked.any(-1, keepdim=True) & (zero | ~asked).all(-1, keepdim=True)
    real = violated & ~vanished & ((changed - expected).abs() <= NUDGE / 2 * terms.values.abs())
    return (asked.any(-1) | violated.any(-1)) & ~(seen.any(-1) | real.any(-1))


def _next_step(batch: Batch, u: Tensor, multipliers: Tensor, active: Tensor, factors: Any) -> Pair:  # (batch, m) both
    """The Newton step from another point, by the same factors, and D_U L there."""
    _, left, values, _ = batch.slopes(u, multipliers)
    return factors(-left, -torch.where(active, values, 0.0))[0], left


def _is_faint(terms: Terms, left: Tensor, noise: float) -> Tensor:  # (batch, m)
    """Where a slope changes L by less than rounding errors, were the unknown to change by the largest of all."""
    return left.abs() * terms.longest <= ROUNDING * noise * terms.energy.unsqueeze(-1)


def _is_loose(look: _Look, step: Tensor, dtype: torch.dtype) -> Tensor:  # (batch, m)
    """Which unknowns do not matter where the others are, such as an angle at a pole, and would go anywhere."""
    faint = _is_faint(look.terms, look.left, torch.finfo(dtype).eps)
    return faint & (step.abs() > optimality_tolerance(dtype) * look.terms.u.abs())


def _is_stuck(
    batch: Batch, look: _Look, factors: Any, step: Tensor, change: Tensor, dtype: torch.dtype
) -> Tensor:  # (batch,)
    """Whether the way goes on beyond the estimated solution, as on a slope with a spike of curvature in it.

    If a solution lies a few steps ahead, then the next step from there leads back, entry by entry; those aside that are
    small or that rounding errors explain. An unknown that does not matter where the others are is left where it is,
    and nothing is concluded from what it may do to the others.
    """
    terms, noise = look.terms, torch.finfo(dtype).eps
    loose = _is_loose(look, step, dtype)
    ahead, away = torch.where(loose, 0.0, step), torch.where(loose, BEYOND * step.abs(), 0.0)
    onward, _ = _next_step(batch, terms.u + BEYOND * ahead, look.multipliers - change, look.active, factors)
    pulled = factors(terms.system.magnitude(away) * irregular(step), torch.zeros_like(change))[0]
    unclear = torch.maximum(pulled.abs(), ROUNDING * _shaken(terms, factors, noise).abs())
    length, unclear = (ratio(x.abs(), look.scale) for x in (ahead, unclear))
    matters = length > torch.maximum(MINOR * largest(length).unsqueeze(-1), unclear)
    return (matters & (onward * ahead > 0)).any(-1)


def _without_noise(values: Tensor, noise: Tensor) -> Tensor:
    """The values, less what rounding errors explain."""
    return values.sign() * (values.abs() - noise).clamp(min=0.0)
