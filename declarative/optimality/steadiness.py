"""Are the derivatives at a solution those of the solution? Not where they change by as much as they are near it.

A derivative of the solution is made from H and A at a point that is a solution only nearly. If u moves by its estimated
distance to the solution, or by its rounding errors, and the slopes then change by something else than H and A say, it
is not known: as at the minimum of u^4, where the true one is infinite. And where H vanishes along some direction, the
point is a solution to second order only, unless the direction leads to other solutions.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..linear import Pair, or_one
from ..linear.directions import irregular
from ..problem import Batch
from ..structure import Structure
from .conditions import ROUNDING, Terms, largest

BLUR = 1e3  # units in the last place that u may be off by, whatever a step says
UNEVEN = 0.2  # of a change: what H and A do not account for, if they are known
FURTHER = 100.0  # times as far: where rounding errors alone change the slopes, they are small beside this
ASIDE = 1e-3  # of the size of u: how far other solutions are looked for
CHORDS = 3  # towards them
QUICK_ITERATIONS = 25  # of a solver that converges as it should, at most
EXACT_STEP = 8  # units in the last place of u: a step that is no longer is rounding


def asks_for_a_look(u: Tensor, step: Tensor | None, iterations: Tensor) -> Tensor:  # (batch,)
    """Whether a solver came slowly to a point, or a step leads further than rounding errors would."""
    slow = iterations > QUICK_ITERATIONS
    if step is None:
        return slow
    return slow | (largest(step.abs()) > EXACT_STEP * torch.finfo(u.dtype).eps * largest(u.abs()))


def is_unsteady(
    batch: Batch,
    u: Tensor,  # (batch, m)
    multipliers: Tensor,  # (batch, k)
    active: Tensor,  # (batch, k)
    step: Tensor,  # (batch, m)
    dtype: torch.dtype,
    structure: Structure = "auto",
) -> Tensor:  # (batch,)
    """Whether H or A change by as much as they are within the distance to a solution, or H vanishes there alone.

    Example:
        >>> import torch
        >>> from declarative.problem import Batch, Problem
        >>> power = torch.tensor([2.0, 4.0], dtype=torch.float64)
        >>> batch = Batch(Problem(lambda n, u: u.abs() ** n), (power,), (0,), 2, torch.Size([]), 0, 0)
        >>> u, none = torch.full((2, 1), 1e-9, dtype=torch.float64), power.new_zeros(2, 0)
        >>> is_unsteady(batch, u, none, none.bool(), -u / (power - 1).unsqueeze(-1), power.dtype)
        tensor([False,  True])
    """
    terms = Terms.at(batch, u, multipliers, structure)
    factors = terms.system.with_active(active).factorise(warn=False)
    nothing = torch.finfo(u.dtype).eps ** 2 * largest(u.abs()).unsqueeze(
        -1
    )  # beside the others: an unknown at a bound of 0
    left, gap = terms.left(multipliers), torch.where(active, terms.values, 0.0)
    noise = ROUNDING * torch.finfo(u.dtype).eps

    def conditions(point: Tensor) -> Pair:
        _, slope, values, _ = batch.slopes(point, multipliers)
        return slope, torch.where(active, values, 0.0)

    # As far as rounding errors of the conditions may have led aside: many times what they make of one more look.
    blur = factors(noise * terms.force * irregular(terms.force), noise * terms.terms * irregular(terms.terms))[0]
    move = step + blur + BLUR * torch.finfo(dtype).eps * u.abs() * irregular(u).sign()

    def uneven_by(move: Tensor) -> Tensor:
        there = conditions(u + move)
        seen, _ = factors(there[0] - left, there[1] - gap)
        size = or_one(torch.maximum(u.abs(), move.abs()).maximum(nothing))
        return largest((seen - move).abs() / size) > UNEVEN * largest(move.abs() / size)

    uneven = uneven_by(move)
    if bool(uneven.any()):  # what cancels inside of a function is seen as well, but does not grow with the move
        uneven &= uneven_by(FURTHER * move)
    sign = factors.curvature()
    unsteady = uneven & (sign != 0)
    if bool((sign == 0).any()):
        problems, directions = factors.flat_directions()
        directions = directions.to(u.dtype)  # systems are solved in double precision, functions may not be
        way = torch.zeros_like(u).index_add(0, problems, directions / or_one(largest(directions.abs())).unsqueeze(-1))
        point = u + ASIDE * or_one(terms.longest) * way
        before = after = conditions(point)
        for _ in range(CHORDS):
            point = point - factors(*after)[0]
            after = conditions(point)
        slopes = ((way * slope).sum(-1).abs() for slope, _ in (before, after))
        first, rest = slopes
        alone = (rest > UNEVEN * first) & (rest > noise * (terms.force * way.abs()).sum(-1))
        unsteady = unsteady | ((sign == 0) & alone)
    return unsteady
