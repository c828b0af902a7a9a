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
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .linear import DenseSystem, Form, Layout, Pair, or_one, total
from .linear.directions import irregular
from .problem import Batch
from .structure import General, Point, Structure, stores_hessian

ROUNDING = 50  # units in the last place of the terms of a sum: below that, a sum is zero
FAINT = 0.1  # of the scale e_i is added to that of u_i: an entry may be zero where nothing else says how large it is
SOLVED = 1e4  # units in the last place that a linear system may be left unsolved by
EXACT = 64  # units in the last place: a distance below that needs no second look
DOUBTFUL = 0.1  # a relative distance that rounding errors of the conditions must not stand for
BEYOND = 10  # steps, by the same factors, lead beyond a solution that is near: five would if f were like u^6
MINOR = 1e-3  # of the longest step, relatively, is one whose sign the nonlinearity of the others may turn
EVEN = 0.1  # of each other: slack and multiplier, relatively, if it is not clear which of them vanishes
NOISE = 100  # units in the last place of the way that a solver has come: below that, a distance is zero
FURTHEST = 1e3  # times the largest entry of u, or of the way there: no entry of u changes by more
TRIES = 3  # of which inequalities are tight
CHORDS = 3  # steps back to curved constraints
STRAIGHT = 1e-4  # sizes of u: nearer than this a curved constraint can be followed for sure
FAR_LENGTHS = (0.1, 1.0, 2.0)  # likewise, in sizes of the largest entry of u
PROBE_LENGTHS = (1e-10, 1e-8, 1e-6, 1e-4, 1e-2, 1.0)  # along a direction without curvature, in sizes of u


def optimality_tolerance(dtype: torch.dtype) -> float:
    """A point further from a solution than this, relatively, is none: rather more than half of the digits."""
    return float(torch.finfo(dtype).eps ** 0.55)  # 2e-9 in double, 2e-4 in single precision


def kink_tolerance(dtype: torch.dtype) -> float:
    """A multiplier below this is none; without slack either, a constraint is between active and inactive."""
    return float(torch.finfo(dtype).eps ** 0.8)  # 3e-13 in double precision


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
        travel: how far a solver has come to these points, another measure of what a change of u is.
        structure: what is known of the Hessian.
        minimum: whether a saddle point is refused.
    """
    dtype = dtype or u.dtype
    if multipliers is None:
        multipliers = estimate_multipliers(batch, u, optimality_tolerance(dtype), structure)
    look = _look(batch, u, multipliers, dtype, structure, travel)
    if bool(look.doubtful):  # forces and curvature that nothing exerts
        look = _look(batch, u, look.multipliers, dtype, structure, travel)
    terms, active, multipliers, scale = look.terms, look.active, look.multipliers, look.scale
    factors = terms.system.with_active(active).factorise(warn=False)
    step, change = factors(-look.left, -look.gap)
    distance, stationarity, violation = _measured(batch, look, step, change, dtype)
    noise, tolerance = torch.finfo(dtype).eps, optimality_tolerance(dtype)
    if bool((distance > tolerance).any()):
        shorter = _without_rounding(terms, factors, look.left, look.gap, noise, scale, distance)
        excused = (shorter <= tolerance) & (distance > tolerance)
        if bool(excused.any()):
            excused = excused & ~_is_hollow(batch, terms, multipliers, factors, noise)
        distance = torch.where(excused, distance, shorter)
    near = distance <= tolerance
    if bool((near & (distance > EXACT * torch.finfo(u.dtype).eps)).any()):
        again = largest(_ratio(_next_step(batch, u + step, multipliers - change, active, factors).abs(), scale))
        again = torch.maximum(distance, again.nan_to_num(torch.inf))
        again = torch.where(_is_stuck(batch, look, factors, step, change, dtype), torch.inf, again)
        distance = torch.where(near, again, distance)
    if minimum:
        near = distance <= tolerance
        distance = torch.where(_is_minimum(batch, terms, multipliers, active, factors, near), distance, torch.inf)
    vanishing = terms.vanishing(active, multipliers - change, dtype) & (distance <= tolerance).unsqueeze(-1)
    settled = bool(look.settled & ~vanishing.any())
    return Assessment(
        torch.where(vanishing, 0.0, multipliers),
        active & ~vanishing,
        look.weak | vanishing,
        stationarity,
        violation,
        residual=torch.where(u.isfinite().all(-1), distance.nan_to_num(torch.inf, torch.inf), torch.inf),
        step=step,
        multiplier_step=-change,
        jacobian=terms.jacobian,
        hessian=terms.system.stored_hessian() if settled else None,
    )


@dataclass(frozen=True)
class _Look:
    """What is seen at a batch of points before anything is solved."""

    terms: _Terms
    multipliers: Tensor  # (batch, k)
    active: Tensor  # (batch, k)
    weak: Tensor  # (batch, k)
    left: Tensor  # D_U L, (batch, m)
    gap: Tensor  # c, where active, (batch, k)
    scale: Tensor  # what a change of u is, (batch, m)
    settled: Tensor  # whether the multipliers are those that were given, ()
    doubtful: Tensor  # whether some of those that were given exert a force that they should not, ()

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
        terms = _Terms.at(batch, u, given, structure, travel)
        noise, tolerance = torch.finfo(dtype).eps, optimality_tolerance(dtype)
        multipliers, active, weak = terms.active_set(dtype)
        scale = terms.scale(active) + FAINT * terms.energy_scale()
        scale = scale + torch.finfo(u.dtype).eps * u.abs().amax(-1, keepdim=True)
        if travel is not None:
            scale = scale + NOISE * noise / tolerance * travel
        return cls(
            terms,
            multipliers,
            active,
            weak,
            left=terms.left(multipliers),
            gap=torch.where(active, terms.values, 0.0),
            scale=scale,
            settled=(multipliers == given).all(),
            doubtful=(terms.effect(given - multipliers) > tolerance).any(),
        )


OF_TERMS = ("gradient", "values", "jacobian", "force", "terms")
OF_LOOK = ("multipliers", "active", "weak", "left", "gap", "scale", "settled", "doubtful")


def _look(
    batch: Batch, u: Tensor, given: Tensor, dtype: torch.dtype, structure: Structure, travel: Tensor | None
) -> _Look:
    """What is seen at the points, called or replayed: where H is stored, nothing in it is decided by values."""
    if batch.evaluator is None or not stores_hessian(batch, structure):
        return _Look.at(batch, u, given, dtype, structure, travel)

    def tensors(batch: Batch, u: Tensor, given: Tensor, travel: Tensor | None) -> tuple[Tensor, ...]:
        look = _Look.at(batch, u, given, dtype, structure, travel)
        parts = [getattr(look.terms, name) for name in OF_TERMS] + [getattr(look, name) for name in OF_LOOK]
        hessian = look.terms.system.stored_hessian()
        assert hessian is not None
        return hessian, *parts

    found = batch.evaluate(("look", dtype, structure), tensors, u, given, travel)
    return _rebuilt(batch, u, travel, given, found)


def _rebuilt(batch: Batch, u: Tensor, travel: Tensor | None, given: Tensor, found: Sequence[Tensor]) -> _Look:
    """The inverse of taking it apart into tensors."""
    hessian, *parts = found
    terms = dict(zip(OF_TERMS, parts, strict=False))
    system = batch.layout.system(hessian, terms["jacobian"], torch.ones_like(given, dtype=torch.bool))
    whole = _Terms(
        system=system,  # type: ignore[arg-type]
        u=u,
        form=batch.layout.jacobian,
        multipliers=given,
        p=batch.p,
        travel=travel,
        **terms,
    )
    return _Look(whole, *parts[len(OF_TERMS) :])


def _measured(
    batch: Batch, look: _Look, step: Tensor, change: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:  # (batch,) each
    """The distance that a step stands for, stationarity and violation; called or replayed likewise."""
    terms = look.terms
    hessian = terms.system.stored_hessian()
    if batch.evaluator is None or hessian is None or hessian.shape == step.shape:
        return _measure(look, step, change, dtype)

    def measure(batch: Batch, u: Tensor, *rows: Any) -> tuple[Tensor, Tensor, Tensor]:
        travel, given, step, change, *found = rows
        return _measure(_rebuilt(batch, u, travel, given, found), step, change, dtype)

    parts = [getattr(terms, name) for name in OF_TERMS] + [getattr(look, name) for name in OF_LOOK]
    rows = (terms.u, terms.travel, terms.multipliers, step, change, hessian, *parts)
    result: tuple[Tensor, Tensor, Tensor] = batch.evaluate(("measure", dtype), measure, *rows)
    return result


def _measure(look: _Look, step: Tensor, change: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    terms, active, scale = look.terms, look.active, look.scale
    noise, tolerance = torch.finfo(dtype).eps, optimality_tolerance(dtype)
    distance = largest(_ratio(step.abs(), scale))
    system = terms.system.with_active(active)
    solvable = terms.is_solved_by(system, step, change, look.left, look.gap, scale, noise)
    after = look.multipliers - change
    pulls = active & ~terms.equality & (after > 0) & (terms.effect(after) > tolerance)
    violated = torch.where(terms.equality, terms.values.abs(), terms.values.clamp(min=0.0))
    reach = terms.form.multiply(terms.jacobian.abs(), scale) + terms.terms
    violation = _ratio(violated, reach)
    overlooked = ~active & (violation > tolerance)
    # No step leads to a solution, a constraint should let go, or one is violated that the step does not see.
    distance = torch.where(solvable & ~(pulls | overlooked).any(-1), distance, torch.inf)
    stationarity = largest(_ratio(look.left.abs(), terms.force))
    return distance, stationarity, largest(violation)


def _without_rounding(
    terms: _Terms, factors: Any, left: Tensor, gap: Tensor, noise: float, scale: Tensor, distance: Tensor
) -> Tensor:  # (batch,)
    """The distance that is left if what rounding errors explain counts as zero; unless they could explain anything."""
    sizes = ((left, terms.force), (gap, terms.terms))
    step, _ = factors(*(-_without(x, ROUNDING * noise * size) for x, size in sizes))
    blur = largest(_ratio(_shaken(terms, factors, noise).abs(), scale))
    trusted = torch.maximum(distance, blur) <= DOUBTFUL
    return torch.where(trusted, largest(_ratio(step.abs(), scale)), distance)


def _shaken(terms: _Terms, factors: Any, noise: float) -> Tensor:  # (batch, m)
    """A step that rounding errors of the conditions lead to."""
    step: Tensor = factors(*(2 * noise * size * irregular(size) for size in (terms.force, terms.terms)))[0]
    return step


def _is_hollow(batch: Batch, terms: _Terms, multipliers: Tensor, factors: Any, noise: float) -> Tensor:  # (batch,)
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


def _next_step(batch: Batch, u: Tensor, multipliers: Tensor, active: Tensor, factors: Any) -> Tensor:  # (batch, m)
    """The Newton step from another point, by the same factors."""
    _, left, values, _ = batch.slopes(u, multipliers)
    step: Tensor = factors(-left, -torch.where(active, values, 0.0))[0]
    return step


def _is_stuck(
    batch: Batch, look: _Look, factors: Any, step: Tensor, change: Tensor, dtype: torch.dtype
) -> Tensor:  # (batch,)
    """Whether the way goes on beyond the estimated solution, as on a slope with a spike of curvature in it.

    If a solution lies a few steps ahead, then the next step from there leads back, entry by entry; those aside that are
    small or that rounding errors explain. An unknown that does not matter where the others are, such as an angle at a
    pole, may go anywhere: it is left where it is, and nothing is concluded from what it may do to the others.
    """
    terms, noise = look.terms, torch.finfo(dtype).eps
    faint = look.left.abs() * terms.longest <= ROUNDING * noise * terms.energy.unsqueeze(-1)
    loose = faint & (step.abs() > optimality_tolerance(dtype) * terms.u.abs())
    ahead, away = torch.where(loose, 0.0, step), torch.where(loose, BEYOND * step.abs(), 0.0)
    onward = _next_step(batch, terms.u + BEYOND * ahead, look.multipliers - change, look.active, factors)
    pulled = factors(terms.system.magnitude(away) * irregular(step), torch.zeros_like(change))[0]
    unclear = torch.maximum(pulled.abs(), ROUNDING * _shaken(terms, factors, noise).abs())
    length, unclear = (_ratio(x.abs(), look.scale) for x in (ahead, unclear))
    matters = length > torch.maximum(MINOR * largest(length).unsqueeze(-1), unclear)
    return (matters & (onward * ahead > 0)).any(-1)


@dataclass(frozen=True)
class _Terms:
    """The conditions at a batch of points, and the sizes of what is summed up in each of them."""

    system: General
    u: Tensor
    gradient: Tensor  # of f, (batch, m)
    values: Tensor  # c, (batch, k)
    jacobian: Tensor  # (batch, k, m), or as its form says
    form: Form
    multipliers: Tensor  # (batch, k)
    p: int  # the number of equalities
    force: Tensor  # of the terms of D_U L, (batch, m)
    terms: Tensor  # of those of c, (batch, k)
    travel: Tensor | None  # the way there, (batch, m)

    @classmethod
    def at(
        cls, batch: Batch, u: Tensor, multipliers: Tensor, structure: Structure, travel: Tensor | None = None
    ) -> _Terms:
        everywhere = torch.ones_like(multipliers, dtype=torch.bool)
        system, here = Point(batch, u, multipliers, everywhere, structure).expanded()
        form, size = batch.layout.jacobian, here.jacobian.abs()
        gradient = here.gradient + form.multiply_transposed(here.jacobian, multipliers)
        force = gradient.abs() + form.multiply_transposed(size, multipliers.abs()) + system.magnitude(u)
        terms = form.multiply(size, u.abs())
        return cls(system, u, gradient, here.values, here.jacobian, form, multipliers, batch.p, force, terms, travel)

    @functools.cached_property
    def equality(self) -> Tensor:  # (k,)
        """Which constraints are equalities."""
        return torch.arange(self.values.shape[-1], device=self.u.device) < self.p

    @property
    def way(self) -> Tensor:  # (batch, m)
        """What u is made of: its size, or that of the way there."""
        return self.u.abs() if self.travel is None else torch.maximum(self.u.abs(), self.travel)

    @property
    def longest(self) -> Tensor:  # (batch, 1)
        """The largest entry of it."""
        return self.way.amax(-1, keepdim=True)

    @property
    def energy(self) -> Tensor:  # (batch,)
        """What the terms of D_U L change L by, were u to change by its size."""
        return (self.force * self.u.abs()).sum(-1)

    def left(self, multipliers: Tensor) -> Tensor:  # (batch, m)
        """D_U L."""
        return self.gradient - self.form.multiply_transposed(self.jacobian, multipliers)

    def active_set(self, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        """Which constraints hold with equality: multipliers, active, weak.

        At a solution either slack or multiplier vanishes. Which one does is seen by comparing them, relative to what
        the constraint changes by with u, and to the forces that it acts against.
        """
        if self.p == self.values.shape[-1]:
            everywhere = torch.ones_like(self.multipliers, dtype=torch.bool)
            return self.multipliers, everywhere, ~everywhere
        pull, slack = -self.multipliers, -self.values  # both not negative at a solution
        noise, tolerance = ROUNDING * torch.finfo(dtype).eps, optimality_tolerance(dtype)
        size = self.reach()
        # A multiplier that does nothing: it is small beside the other forces or, with room to move, by its energy.
        energy = self.energy.unsqueeze(-1)
        length = self.form.multiply(self.jacobian.abs(), self.longest.expand_as(self.u))
        idle = (slack > tolerance * size) & (pull.abs() * length <= tolerance * energy)
        pull = torch.where((self.effect(pull) <= noise) | idle, 0.0, pull)
        touching = (slack.abs() <= noise * self.terms) & (pull > 0)
        effect, share = self.effect(pull), _ratio(slack, size)
        more, less = torch.maximum(effect, share.abs()), torch.minimum(effect, share.abs())
        undecided = (more <= tolerance) & (less > EVEN * more)  # the point is not good enough to tell
        weak = (effect <= kink_tolerance(dtype)) & (slack.abs() <= tolerance * size)
        weak = ~self.equality & (weak | undecided | self.is_lost(dtype))
        pushes = pull.sign() * effect > share
        active = self.equality | ((pushes | touching) & ~weak)
        return torch.where(active, self.multipliers, 0.0), active, weak

    def is_solved_by(
        self, system: General, step: Tensor, change: Tensor, left: Tensor, gap: Tensor, scale: Tensor, noise: float
    ) -> Tensor:  # (batch,)
        """Whether a step solves the linearised conditions: not if these contradict each other, or nothing curves."""
        top, bottom = system.multiply(step, change)
        size = self.jacobian.abs()
        force = self.force + system.magnitude(step) + self.form.multiply_transposed(size, change.abs())
        force = force + noise * force.amax(-1, keepdim=True)
        reach = self.terms + self.form.multiply(size, scale + step.abs())
        exact = max(SOLVED * torch.finfo(self.u.dtype).eps, ROUNDING * noise)
        unsolved = top.isfinite() & ((top + left).abs() > exact * force)
        rounding = EXACT * noise * self.form.multiply(size, self.way)
        return ~(unsolved.any(-1) | ((bottom + gap).abs() > exact * reach + rounding).any(-1))

    def effect(self, multipliers: Tensor, force: Tensor | None = None) -> Tensor:  # (batch, k)
        """How much multipliers do, beside the other forces; nothing, if they are zero where there are no forces."""
        strength = self.form.largest_effect(self.jacobian, self.force if force is None else force)
        return torch.where(multipliers == 0, 0.0, multipliers.abs() * strength)

    def vanishing(self, active: Tensor, after: Tensor, dtype: torch.dtype) -> Tensor:  # (batch, k)
        """Active inequalities that do nothing at the solution nearby, with multipliers as they are after the step."""
        return active & ~self.equality & (self.effect(after) <= kink_tolerance(dtype))

    def is_lost(self, dtype: torch.dtype) -> Tensor:  # (batch, k)
        """Where slack and multiplier are what is left of the way that a solver has come: rounding errors, both."""
        if self.travel is None:
            return torch.zeros_like(self.values, dtype=torch.bool)
        small = EXACT * torch.finfo(dtype).eps
        near = self.values.abs() <= small * self.form.multiply(self.jacobian.abs(), self.travel)
        return near & (self.effect(self.multipliers, self.system.magnitude(self.travel)) <= small)

    def reach(self) -> Tensor:  # (batch, k)
        """What a constraint changes by if u changes by its size, or by what changes its slopes by theirs."""
        bend = self.system.diagonal_entries().abs()
        size = torch.where(bend > 0, self.force / torch.where(bend > 0, bend, 1.0), self.longest)
        far = torch.where(
            self.longest > 0, FURTHEST * self.longest, torch.inf
        )  # curvature may cancel to next to nothing
        return self.form.multiply(self.jacobian.abs(), torch.maximum(self.u.abs(), torch.minimum(size, far)))

    def scale(self, active: Tensor) -> Tensor:  # (batch, m)
        """max(|u_i|, r_i): the least change of u_i that changes a condition by as much as its terms."""
        rows = self.form.scale_rows(self.jacobian, active.to(self.jacobian.dtype))
        least = torch.minimum(self.system.least_change(self.force), self.form.least_change(rows, self.terms))
        return torch.maximum(self.u.abs(), torch.where(least < torch.inf, least, 0.0))

    def gradient_unit(self) -> Tensor:  # (batch, m)
        """What a slope is compared with: that of the terms of D_U f or, without any, one that u_i makes as much of."""
        energy = or_one(largest(self.force * self.u.abs())).unsqueeze(-1)
        by_size = energy / or_one(self.u.abs())
        return torch.where(self.force > 0, torch.minimum(self.force, by_size), by_size)

    def energy_scale(self) -> Tensor:  # (batch, m)
        """e_i = sqrt(F / H_ii): the change of u_i that changes f as much as its terms F; at most the largest |u_j|.

        Of f alone: the forces of constraints that contradict each other balance, and grow without end.
        """
        force = self.gradient.abs() + self.system.magnitude(self.u)
        energy = (force * self.u.abs()).sum(-1, keepdim=True)
        bend = self.system.diagonal_entries()
        scale = torch.where(bend > 0, energy / torch.where(bend > 0, bend, 1.0), 0.0).sqrt()
        return torch.minimum(scale, self.u.abs().amax(-1, keepdim=True))


def estimate_multipliers(batch: Batch, u: Tensor, near: float, structure: Structure = "auto") -> Tensor:  # (batch, k)
    """Least-squares multipliers of the constraints with a slack below ``near``, relatively, with the right sign."""
    terms = _Terms.at(batch, u, u.new_zeros(batch.size, batch.k), structure)
    tight = terms.equality | (-terms.values <= near * terms.reach())
    unit = terms.gradient_unit()
    multipliers = fitted_multipliers(batch.layout, terms.gradient, terms.jacobian, tight, unit)
    for _ in range(TRIES):  # leaving out those that would pull
        wrong = ~terms.equality & (multipliers > 0)
        if not bool(wrong.any()):
            break
        tight = tight & ~wrong
        multipliers = fitted_multipliers(batch.layout, terms.gradient, terms.jacobian, tight, unit)
    return torch.where(terms.equality, multipliers, multipliers.clamp(max=0.0))


def fitted_multipliers(
    layout: Layout,
    gradient: Tensor,  # (batch, m)
    jacobian: Tensor,  # (batch, k, m), or as the layout says
    tight: Tensor,  # (batch, k)
    unit: Tensor | None = None,  # of the gradient's entries, (batch, m)
) -> Tensor:  # (batch, k)
    """The least-squares, least-norm solution of A' l = D_U f over the tight constraints."""
    form = layout.jacobian
    if not tight.shape[-1]:
        return torch.zeros_like(tight, dtype=gradient.dtype)
    if unit is not None:
        gradient, jacobian = gradient / or_one(unit), form.scale_columns(jacobian, 1 / or_one(unit))
    usable = (total(jacobian) + gradient.sum(-1)).isfinite()
    gradient = torch.where(usable[:, None], gradient, 0.0)
    jacobian = torch.where(usable.view(-1, *(1,) * (jacobian.dim() - 1)), jacobian, 0.0)
    length = or_one(form.row_lengths(jacobian))
    return layout.least_squares(form.scale_rows(jacobian, tight / length), gradient) / length


def _is_minimum(
    batch: Batch, terms: _Terms, multipliers: Tensor, active: Tensor, factors: Any, near: Tensor
) -> Tensor:  # (batch,)
    """Whether curvature is positive along the constraints or, where it vanishes, f does not fall; asked where near."""
    if not bool(near.any()):
        return torch.ones_like(near)
    sign = factors.curvature()
    good: Tensor = sign > 0
    if bool(((sign < 0) & near).any()):
        faint, direction = _faintest(terms, active)
        rows = ((sign < 0) & near & faint).nonzero().flatten()
        if len(rows):
            falls = _falls(batch, terms, multipliers, active, rows, direction[rows])
            good = good.index_put((rows,), ~falls)
    if bool(((sign == 0) & near).any()):
        problems, directions = factors.flat_directions()
        if not len(problems):
            return good
        falls = _falls(batch, terms, multipliers, active, problems, directions)
        good = good | ((sign == 0) & ~torch.zeros_like(good).index_put((problems,), falls, accumulate=True))
    return good


def _faintest(terms: _Terms, active: Tensor) -> Pair:  # (batch,), (batch, m)
    """Whether the most negative curvature along the constraints is nothing; and its direction.

    It is if it changes f by less than rounding errors, were u to change along it by its largest entry. That happens to
    an unknown that does not matter where the others are, such as an angle at a pole.
    """
    if not isinstance(terms.system, DenseSystem):
        return torch.zeros_like(active.sum(-1), dtype=torch.bool), terms.u
    rows = torch.where(active.unsqueeze(-1), terms.jacobian, 0.0)
    rows = rows / or_one(torch.linalg.vector_norm(rows, dim=-1, keepdim=True))
    eye = torch.eye(rows.shape[-1], dtype=rows.dtype, device=rows.device)
    free = eye - torch.linalg.pinv(rows) @ rows if rows.shape[1] else eye
    values, vectors = torch.linalg.eigh(free @ terms.system.hessian.nan_to_num(0.0, 0.0, 0.0) @ free)
    small = ROUNDING * torch.finfo(values.dtype).eps * terms.energy
    return values[:, 0] * terms.longest.squeeze(-1).square() >= -small, vectors[..., 0]


def _falls(
    batch: Batch, terms: _Terms, multipliers: Tensor, active: Tensor, problems: Tensor, directions: Tensor
) -> Tensor:  # (count,)
    """Whether L falls along a direction without curvature, or is flat to one side of it and rises to the other.

    The second is how the edge of a plateau looks that goes on for ever. Curved constraints are followed: along a
    straight line away from them L may fall at a minimum too.
    """
    part, here, held = batch.select(problems), terms.u[problems], multipliers[problems]
    energy = terms.energy[problems]
    unit = directions / or_one(largest(_ratio(directions.abs(), or_one(here.abs())))).unsqueeze(-1)

    follow = _Follower(part, here, terms.jacobian[problems], active[problems])

    def lagrangian(point: Tensor) -> Pair:
        objective, values = part.values(follow(point))
        pulled = held * values
        return objective - pulled.sum(-1), pulled.abs().sum(-1)

    middle, _ = lagrangian(here)
    fallen, noise = torch.zeros_like(problems, dtype=torch.bool), torch.zeros_like(middle)
    # The edge of a plateau may be as far away as u is large, whatever the size of the entries that change.
    far = directions / or_one(largest(directions.abs())).unsqueeze(-1) * terms.longest[problems]
    for length, way in [*((length, unit) for length in PROBE_LENGTHS), *((length, far) for length in FAR_LENGTHS)]:
        pairs = (lagrangian(here + sign * length * way) for sign in (1.0, -1.0))
        sides, missed = (torch.stack(both) for both in zip(*pairs, strict=True))
        change = (sides - middle).nan_to_num(torch.inf)
        size = torch.maximum(sides.abs().nan_to_num(0.0, 0.0, 0.0), middle.abs()) + energy * length**2
        small = ROUNDING * torch.finfo(here.dtype).eps * size
        one_sided = (change.abs() <= small).any(0) & (change > 1e3 * small).any(0)
        # What is seen over the shortest way may be rounding errors; a real slope does more over a longer one.
        falls = (change < -torch.maximum(small, noise)).any(0) & (way is unit) & (length > PROBE_LENGTHS[0])
        followed = (missed <= torch.maximum(small, noise)).all(0) | (length <= STRAIGHT)
        fallen = fallen | ((falls | one_sided) & followed)
        if length == PROBE_LENGTHS[0]:
            seen = 10 * torch.where(change < torch.inf, change.abs(), 0.0).amax(0)
            noise = torch.minimum(seen, torch.finfo(here.dtype).eps ** 0.5 * middle.abs())  # or nothing could be seen
    return fallen


class _Follower:
    """Brings points back to the active constraints of where they come from, by a few chord steps of least length."""

    def __init__(self, batch: Batch, here: Tensor, jacobian: Tensor, active: Tensor) -> None:
        self.batch, self.active = batch, active
        self.unit, form = or_one(here.abs()), batch.layout.jacobian
        rows = form.scale_columns(form.scale_rows(jacobian, active.to(here.dtype)), self.unit)
        self.back = batch.layout.least_norm(rows.nan_to_num(0.0, 0.0, 0.0)) if batch.k else None

    def __call__(self, point: Tensor) -> Tensor:
        """The point next to this one where the constraints hold that held before."""
        for _ in range(CHORDS):
            if self.back is None:
                break
            missed = torch.where(self.active, self.batch.values(point)[1], 0.0).nan_to_num(0.0, 0.0, 0.0)
            point = point - self.unit * self.back(missed)
        return point


def _without(values: Tensor, noise: Tensor) -> Tensor:
    """The values, less what rounding errors explain."""
    return values.sign() * (values.abs() - noise).clamp(min=0.0)


def _ratio(size: Tensor, unit: Tensor) -> Tensor:
    """size / unit, with 0 / 0 = 0."""
    return torch.where(size == 0, 0.0, size / unit)


def largest(values: Tensor) -> Tensor:
    """The largest entry of each row; zero for an empty row."""
    return values.amax(-1) if values.shape[-1] else values.new_zeros(values.shape[:-1])
