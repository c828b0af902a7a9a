"""Is a stationary point a minimum? By curvature along the constraints or, where it vanishes, by looking about."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..linear import DenseSystem, Pair, or_one
from ..problem import Batch
from .conditions import ROUNDING, Terms, largest, ratio

TINY = 1e-12  # of the largest unknown, or of the way to it: what is less is as good as zero
CHORDS = 3  # steps back to curved constraints
STRAIGHT = 1e-4  # sizes of u: nearer than this a curved constraint can be followed for sure
FAR_LENGTHS = (0.1, 1.0, 2.0)  # likewise, in sizes of the largest entry of u
MOST_UNKNOWNS = 16  # of a problem that are looked along one by one
BEYOND = 100.0  # steps lead beyond a solution that is near: fifty would if f were like u^50
STEP_LENGTHS = (1.0, 10.0, BEYOND, 1e3, 1e4)
# Along a direction without curvature, in sizes of u. An exponential is to be seen between rounding errors and overflow,
# over lengths that differ by a factor of some 40: what is further apart could miss it.
PROBE_LENGTHS = (1e-10, *(10.0**exponent for exponent in range(-8, 1)))


def is_minimum(
    batch: Batch, terms: Terms, multipliers: Tensor, active: Tensor, factors: Any, near: Tensor
) -> Tensor:  # (batch,)
    """Whether curvature is positive along the constraints or, where it vanishes, f does not fall; asked where near."""
    if not bool(near.any()):
        return torch.ones_like(near)
    sign = factors.curvature()
    good: Tensor = sign > 0
    if bool(((sign < 0) & near).any()):
        faint, direction = _least_curvature(terms, active)
        rows = ((sign < 0) & near & faint).nonzero().flatten()
        if len(rows):
            falls = _falls(batch, terms, multipliers, active, rows, direction[rows])
            good = good.index_put((rows,), ~falls)
    good = good & ~_falls_from_zero(batch, terms, multipliers, active, good & near)
    if bool(((sign == 0) & near).any()):
        problems, directions = factors.flat_directions()
        if not len(problems):
            return good
        directions = directions.to(terms.u.dtype)  # systems are solved in double precision, functions may not be
        falls = _falls(batch, terms, multipliers, active, problems, directions)
        falls = falls | _hides_slope(batch, terms, multipliers, problems, directions)
        level = (sign == 0) & ~_descended_to_plateau(batch, terms, active, (sign == 0) & near)
        good = good | (level & ~torch.zeros_like(good).index_put((problems,), falls, accumulate=True))
    return good


def _falls_from_zero(batch: Batch, terms: Terms, multipliers: Tensor, active: Tensor, asked: Tensor) -> Tensor:
    """Whether L falls to a side of a free unknown that is as good as zero, if that is the first thing to be seen of it.

    Newton's method comes to an inflection point, too, by ever shorter steps: if that is at zero, u gets as small as one
    likes, and any curvature is positive that is left on that side.
    """
    reach = terms.way.amax(-1, keepdim=True)
    held = terms.form.multiply_transposed(terms.jacobian.abs(), active.to(terms.u.dtype)) > 0
    bend = terms.system.diagonal_entries().abs()
    tiny = asked.unsqueeze(-1) & (terms.u.abs() <= TINY * reach) & ~held & (bend > 0)
    if not bool(tiny.any()):
        return torch.zeros_like(asked)
    rows = tiny.any(-1).nonzero().flatten()
    part, here, fixed = batch.select(rows), terms.u[rows], multipliers[rows]
    least = torch.where(tiny, bend, torch.inf)[rows].argmin(-1)
    way = torch.zeros_like(here).scatter(1, least.unsqueeze(-1), reach[rows])

    def lagrangian(point: Tensor) -> Tensor:
        objective, values = part.values(point)
        return objective - (fixed * values).sum(-1)

    middle = lagrangian(here)
    falls = torch.zeros_like(rows, dtype=torch.bool)
    for side in (1.0, -1.0):
        seen = torch.zeros_like(falls)
        for length in PROBE_LENGTHS[:-2]:
            there = lagrangian(here + side * length * way)
            size = torch.maximum(torch.maximum(there.abs(), middle.abs()), terms.energy[rows])
            small = ROUNDING * torch.finfo(here.dtype).eps * size
            change = (there - middle).nan_to_num(torch.inf)
            falls = falls | (~seen & (change < -small))
            seen = seen | (change.abs() > small)
    return torch.zeros_like(asked).index_put((rows,), falls)


def _least_curvature(terms: Terms, active: Tensor) -> Pair:  # (batch,), (batch, m)
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
    batch: Batch,
    terms: Terms,
    multipliers: Tensor,
    active: Tensor,
    problems: Tensor,
    directions: Tensor,  # (count, m)
    steps: Tensor | None = None,  # (count, m)
) -> Tensor:  # (count,)
    """Whether L falls along a direction without curvature, or is flat to one side of it and rises to the other.

    The second is how the edge of a plateau looks that goes on for ever. Where there is curvature, and so a step, L may
    fall to there, and has to rise a hundred steps away. Curved constraints are followed: along a straight line away
    from them L may fall at a minimum too.
    """
    part, here, held = batch.select(problems), terms.u[problems], multipliers[problems]
    energy = terms.energy[problems]
    unit = directions / or_one(largest(ratio(directions.abs(), or_one(here.abs())))).unsqueeze(-1)

    follow = _Follower(part, here, terms.jacobian[problems], active[problems])

    def lagrangian(point: Tensor) -> Pair:
        objective, values = part.values(follow(point))
        pulled = held * values
        return objective - pulled.sum(-1), pulled.abs().sum(-1)

    middle, _ = lagrangian(here)
    fallen, noise = torch.zeros_like(problems, dtype=torch.bool), torch.zeros_like(middle)
    # The edge of a plateau may be as far away as u is large, whatever the size of the entries that change.
    far = directions / or_one(largest(directions.abs())).unsqueeze(-1) * terms.longest[problems]
    probes = [*((length, unit) for length in PROBE_LENGTHS), *((length, far) for length in FAR_LENGTHS)]
    if steps is not None:
        probes += [(length, steps) for length in STEP_LENGTHS]
    for length, way in probes:
        pairs = (lagrangian(here + sign * length * way) for sign in (1.0, -1.0))
        sides, missed = (torch.stack(both) for both in zip(*pairs, strict=True))
        change = (sides - middle).nan_to_num(torch.inf)
        size = torch.maximum(sides.abs().nan_to_num(0.0, 0.0, 0.0), middle.abs())
        size = size + energy * min(length, FAR_LENGTHS[-1]) ** 2
        small = ROUNDING * torch.finfo(here.dtype).eps * size
        one_sided = (change.abs() <= small).any(0) & (change > 1e3 * small).any(0)
        # What is seen over the shortest way may be rounding errors; a real slope does more over a longer one.
        beyond = length == BEYOND if way is steps else steps is None and way is unit and length > PROBE_LENGTHS[0]
        falls = (change < -torch.maximum(small, noise)).any(0) & beyond
        followed = (missed <= torch.maximum(small, noise)).all(0) | (length <= STRAIGHT)
        fallen = fallen | ((falls | one_sided) & followed)
        if length == PROBE_LENGTHS[0]:
            seen = 10 * torch.where(change < torch.inf, change.abs(), 0.0).amax(0)
            noise = torch.minimum(seen, torch.finfo(here.dtype).eps ** 0.5 * middle.abs())  # or nothing could be seen
    return fallen


def nears_infimum(
    batch: Batch, terms: Terms, multipliers: Tensor, active: Tensor, step: Tensor, asked: Tensor
) -> Tensor:  # (batch,)
    """Whether L rises on one side of an unknown and is level on the other, further away than curvature tells.

    Asked of unknowns, (batch, m), whose Newton step is short beside what changes f, and not beside their own size: that
    is how zero looks, and how a term looks that dies away for ever, such as an exponential, once it is beyond rounding.
    """
    none = torch.zeros_like(terms.energy, dtype=torch.bool)
    if not bool(asked.any()):
        return none
    lengths = torch.where(asked, step.abs() / or_one(terms.way), 0.0)
    entries = lengths.topk(min(MOST_UNKNOWNS, asked.shape[-1]), dim=-1).indices
    problems, which = asked.gather(-1, entries).nonzero(as_tuple=True)
    axes = torch.nn.functional.one_hot(entries[problems, which], asked.shape[-1]).to(step.dtype)
    falls = _falls(batch, terms, multipliers, active, problems, axes, step[problems] * axes)
    return none.index_put((problems,), falls, accumulate=True)


def _descended_to_plateau(batch: Batch, terms: Terms, active: Tensor, asked: Tensor) -> Tensor:  # (batch,)
    """Whether a solver came down, along a way without curvature, to where all is level and goes on so.

    As from a bump that vanishes far out: nothing that is near the point tells of it.
    """
    if terms.travel is None:
        return torch.zeros_like(asked)
    way = terms.travel
    curved, size = (
        way * terms.system.multiply(way, torch.zeros_like(terms.values))[0],
        terms.system.magnitude(way.abs()),
    )
    noise = ROUNDING * torch.finfo(way.dtype).eps
    straight = curved.sum(-1).abs() <= noise * (way.abs() * size).sum(-1)
    rows = (asked & straight & ~active.any(-1)).nonzero().flatten()
    if not len(rows):
        return torch.zeros_like(asked)
    part = batch.select(rows)
    before, here, beyond = (part.objective(terms.u[rows] + share * way[rows]) for share in (-1.0, 0.0, 1.0))
    rises = before - here > 1e3 * noise * torch.maximum(before.abs(), here.abs())
    level = (beyond - here).abs() <= noise * torch.maximum(beyond.abs(), here.abs())
    return torch.zeros_like(asked).index_put((rows,), rises & level)


def _hides_slope(
    batch: Batch, terms: Terms, multipliers: Tensor, problems: Tensor, directions: Tensor
) -> Tensor:  # (count,)
    """Whether L slopes along a flat direction further back, by less than rounding errors let be seen at the point.

    That is how a point looks that ran away until the slope, which nothing balances, was lost in its large terms.
    """
    part, here, held = batch.select(problems), terms.u[problems], multipliers[problems]
    weight = or_one(here.abs()).square().reciprocal()
    along = (weight * here * directions).sum(-1) / or_one((weight * directions.square()).sum(-1))
    back = here - along.unsqueeze(-1) * directions
    slope = part.slopes(back, held)[1]
    curved, pulls = (x[problems] for x in (terms.system.magnitude(terms.u), terms.pulls()))
    share = largest(ratio(back.abs(), here.abs())).unsqueeze(-1)
    there = slope.abs() + pulls + share * curved
    seen = (slope * directions).sum(-1).abs()
    noise, before = (
        ROUNDING * torch.finfo(here.dtype).eps * (force * directions.abs()).sum(-1)
        for force in (terms.force[problems], there)
    )
    return (seen > 10 * before) & (seen <= noise)


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
