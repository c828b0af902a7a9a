"""The optimality conditions at a batch of points, and the sizes of what is summed up in each of them.

A slope or a constraint value is small or large beside the terms that cancel in it, and u beside what a change of it
does: nothing here depends on the units of f, c or u.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor

from ..linear import Form, KktSystem, Layout, by_rows, or_one, total
from ..problem import Batch
from ..structure import Point, Structure

ROUNDING = 50  # units in the last place of the terms of a sum: below that, a sum is zero
SOLVED = 1e4  # units in the last place that a linear system may be left unsolved by
EXACT = 64  # units in the last place: a distance below that needs no second look
EVEN = 0.1  # of each other: slack and multiplier, relatively, if it is not clear which of them vanishes
FURTHEST = 1e3  # times the largest entry of u, or of the way there: no entry of u changes by more
TRIES = 3  # of which inequalities are tight


def optimality_tolerance(dtype: torch.dtype) -> float:
    """A point further from a solution than this, relatively, is none: rather more than half of the digits."""
    return float(torch.finfo(dtype).eps ** 0.55)  # 2e-9 in double, 2e-4 in single precision


def kink_tolerance(dtype: torch.dtype) -> float:
    """A multiplier below this is none; without slack either, a constraint is between active and inactive."""
    return float(torch.finfo(dtype).eps ** 0.8)  # 3e-13 in double precision


@dataclass(frozen=True)
class Terms:
    """The conditions at a batch of points, and the sizes of what is summed up in each of them."""

    system: KktSystem
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
    ) -> Terms:
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
        return self.u.abs() if self.travel is None else torch.maximum(self.u.abs(), self.travel.abs())

    @property
    def longest(self) -> Tensor:  # (batch, 1)
        """The largest entry of it."""
        return self.way.amax(-1, keepdim=True)

    @property
    def energy(self) -> Tensor:  # (batch,)
        """What the terms of D_U L change L by, were u to change by its size."""
        return (self.force * self.u.abs()).sum(-1)

    def pulls(self) -> Tensor:  # (batch, m)
        """What the constraints exert, all in the same direction."""
        return self.form.multiply_transposed(self.jacobian.abs(), self.multipliers.abs())

    def violation(self, scale: Tensor) -> Tensor:  # (batch, k)
        """By how much constraints are violated, beside what they change by if u changes by its scale."""
        violated = torch.where(self.equality, self.values.abs(), self.values.clamp(min=0.0))
        return ratio(violated, self.form.multiply(self.jacobian.abs(), scale) + self.terms)

    def left(self, multipliers: Tensor) -> Tensor:  # (batch, m)
        """D_U L."""
        return self.gradient - self.form.multiply_transposed(self.jacobian, multipliers)

    def active_set(self, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Which constraints hold with equality: multipliers, active, weak, and weak for being lost alone.

        At a solution either slack or multiplier vanishes. Which one does is seen by comparing them, relative to what
        the constraint changes by with u, and to the forces that it acts against.
        """
        if self.p == self.values.shape[-1]:
            everywhere = torch.ones_like(self.multipliers, dtype=torch.bool)
            return self.multipliers, everywhere, ~everywhere, ~everywhere
        pull, slack = -self.multipliers, -self.values  # both not negative at a solution
        noise, tolerance = ROUNDING * torch.finfo(dtype).eps, optimality_tolerance(dtype)
        size = self.reach()
        # A multiplier that does nothing: it is small beside the other forces or, with room to move, by its energy.
        energy = self.energy.unsqueeze(-1)
        length = self.form.multiply(self.jacobian.abs(), self.longest.expand_as(self.u))
        idle = (slack > tolerance * size) & (pull.abs() * length <= tolerance * energy)
        pull = torch.where((self.effect(pull) <= noise) | idle, 0.0, pull)
        touching = (slack.abs() <= noise * self.terms) & (pull > 0)
        effect, share = self.effect(pull), ratio(slack, size)
        more, less = torch.maximum(effect, share.abs()), torch.minimum(effect, share.abs())
        undecided = (more <= tolerance) & (less > EVEN * more)  # the point is not good enough to tell
        weak = (effect <= kink_tolerance(dtype)) & (slack.abs() <= tolerance * size)
        weak = ~self.equality & (weak | undecided)
        lost = ~self.equality & ~weak & self.is_lost_in_rounding()
        weak = weak | lost
        pushes = pull.sign() * effect > share
        active = self.equality | ((pushes | touching) & ~weak)
        return torch.where(active, self.multipliers, 0.0), active, weak, lost

    def is_solved_by(
        self, system: KktSystem, step: Tensor, change: Tensor, left: Tensor, gap: Tensor, scale: Tensor, noise: float
    ) -> Tensor:  # (batch,)
        """Whether a step solves the linearised conditions: not if these contradict each other, or nothing curves."""
        top, bottom = system.multiply(step, change)
        size = self.jacobian.abs()
        force = self.force + system.magnitude(step) + self.form.multiply_transposed(size, change.abs())
        force = force + noise * force.amax(-1, keepdim=True)
        reach = self.terms + self.form.multiply(size, scale + step.abs())
        exact = max(SOLVED * torch.finfo(self.u.dtype).eps, ROUNDING * noise)
        unsolved = top.isfinite() & ((top + left).abs() > exact * force)
        rounding = EXACT * noise * self.terms
        if self.travel is not None:
            rounding = rounding + EXACT * torch.finfo(self.u.dtype).eps * self.form.multiply(size, self.travel.abs())
        return ~(unsolved.any(-1) | ((bottom + gap).abs() > exact * reach + rounding).any(-1))

    def effect(self, multipliers: Tensor, force: Tensor | None = None) -> Tensor:  # (batch, k)
        """How much multipliers do, beside the other forces; nothing, if they are zero where there are no forces."""
        strength = self.form.largest_effect(self.jacobian, self.force if force is None else force)
        return torch.where(multipliers == 0, 0.0, multipliers.abs() * strength)

    def is_lost_in_rounding(self) -> Tensor:  # (batch, k)
        """Where slack and multiplier are what is left of the way that a solver has come: rounding errors, both."""
        if self.travel is None:
            return torch.zeros_like(self.values, dtype=torch.bool)
        small = EXACT * torch.finfo(self.u.dtype).eps
        near = self.values.abs() <= small * self.form.multiply(self.jacobian.abs(), self.travel.abs())
        return near & (self.effect(self.multipliers, self.system.magnitude(self.travel.abs())) <= small)

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

    def fitted_multipliers(self, layout: Layout, near: float, quick: bool = False) -> tuple[Tensor, Tensor]:
        """The constraints with a slack below ``near``, relatively, and their least-squares multipliers, (batch, k)."""
        tight = self.equality | (-self.values <= near * self.reach())
        return tight, fitted_multipliers(layout, self.gradient, self.jacobian, tight, self.gradient_unit(), quick)

    def with_sign(self, multipliers: Tensor) -> Tensor:  # (batch, k)
        """Zero instead of those of inequalities that have the wrong one."""
        return torch.where(self.equality, multipliers, multipliers.clamp(max=0.0))

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
    terms = Terms.at(batch, u, u.new_zeros(batch.size, batch.k), structure)
    tight, multipliers = terms.fitted_multipliers(batch.layout, near)
    for _ in range(TRIES):  # leaving out those that would pull
        wrong = ~terms.equality & (multipliers > 0)
        if not bool(wrong.any()):
            break
        tight = tight & ~wrong
        multipliers = fitted_multipliers(batch.layout, terms.gradient, terms.jacobian, tight, terms.gradient_unit())
    return terms.with_sign(multipliers)


def quick_multipliers(batch: Batch, u: Tensor, near: float, structure: Structure) -> Tensor:  # (batch, k)
    """The same without a decision by values: not what is wanted where constraints pull, or depend on each other.

    Equalities are tight whatever curvature says: then slopes alone tell nearly as much, at a fraction of the cost.
    """
    if batch.q:
        terms = Terms.at(batch, u, u.new_zeros(batch.size, batch.k), structure)
        return terms.with_sign(terms.fitted_multipliers(batch.layout, near, quick=True)[1])
    _, gradient, values, jacobian = batch.slopes(u)
    unit = or_one(largest((gradient * u).abs())).unsqueeze(-1) / or_one(u.abs())
    everywhere = torch.ones_like(values, dtype=torch.bool)
    return fitted_multipliers(batch.layout, gradient, jacobian, everywhere, unit, quick=True)


def fitted_multipliers(
    layout: Layout,
    gradient: Tensor,  # (batch, m)
    jacobian: Tensor,  # (batch, k, m), or as the layout says
    tight: Tensor,  # (batch, k)
    unit: Tensor | None = None,  # of the gradient's entries, (batch, m)
    quick: bool = False,
) -> Tensor:  # (batch, k)
    """The least-squares, least-norm solution of A' l = D_U f over the tight constraints.

    The ``quick`` one is decided without a look at values, and not finite where constraints depend on each other.
    """
    form = layout.jacobian
    if not tight.shape[-1]:
        return torch.zeros_like(tight, dtype=gradient.dtype)
    if unit is not None:
        gradient, jacobian = gradient / or_one(unit), form.scale_columns(jacobian, 1 / or_one(unit))
    usable = (total(jacobian) + gradient.sum(-1)).isfinite()
    gradient = torch.where(usable[:, None], gradient, 0.0)
    jacobian = torch.where(by_rows(usable, jacobian), jacobian, 0.0)
    length = or_one(form.row_lengths(jacobian))
    solve = layout.quick_least_squares if quick else layout.least_squares
    return solve(form.scale_rows(jacobian, tight / length), gradient) / length


def ratio(size: Tensor, unit: Tensor) -> Tensor:
    """size / unit, with 0 / 0 = 0."""
    return torch.where(size == 0, 0.0, size / unit)


def largest(values: Tensor) -> Tensor:
    """The largest entry of each row; zero for an empty row."""
    return values.amax(-1) if values.shape[-1] else values.new_zeros(values.shape[:-1])
