"""The gradient of a node against finite differences of its solver."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor

from ..forward import solve
from ..gradients import RULES, gradient_rows
from ..implicit import Evaluation, without_failures
from ..problem import flat
from ..theory.matrices import norm

DIRECTIONS = 3  # random directions in which an input is moved


@dataclass(frozen=True)
class Comparison:
    """How far the exact gradient is from central differences, over all problems and directions.

    Attributes:
        worst: the largest relative difference.
        tested: how many comparisons there were.
        jumped: how many were left out because the solver went to a solution far away.
        lost: how many were left out because a neighbouring problem was not solved.
        kinks: how many were left out because other constraints are active on one side: there is no derivative between.
    """

    worst: float = 0.0
    tested: int = 0
    jumped: int = 0
    lost: int = 0
    kinks: int = 0

    def merge(self, other: Comparison) -> Comparison:
        """Both together."""
        return Comparison(
            max(self.worst, other.worst),
            self.tested + other.tested,
            self.jumped + other.jumped,
            self.lost + other.lost,
            self.kinks + other.kinks,
        )


def compare_gradient(found: Evaluation, i: int, dtype: torch.dtype) -> Comparison:
    """Move input i in random directions, and compare what the solver does with what the exact gradient says.

    Of a step h, truncation costs h^2 and a solver with an error e costs e / h; with h = eps^(1/4) a solution that is
    good to half of the digits still gives a meaningful comparison.
    """
    call = dataclasses.replace(found.call, work=dtype, differentiable=False)
    xs = tuple(x.to(dtype) if x.is_floating_point() else x for x in found.inputs.xs)
    middle, _ = solve(call, xs)
    good = middle.converged
    if not good.any():
        return Comparison(lost=len(good))
    point = found.spec.point(call, *without_failures(call, xs, middle))
    step = torch.finfo(dtype).eps ** 0.25 * max(1.0, xs[i].nan_to_num(0.0, 0.0, 0.0).abs().max().item())
    generator = torch.Generator().manual_seed(0)
    total = Comparison()
    for _ in range(DIRECTIONS):
        direction, v = (
            torch.randn(like.shape, generator=generator, dtype=torch.float64, device="cpu").to(like)
            for like in (xs[i], point.u)
        )
        ends = [solve(call, (*xs[:i], xs[i] + h * direction, *xs[i + 1 :]))[0] for h in (step, -step)]
        solved = good & ends[0].converged & ends[1].converged
        each = direction.unsqueeze(0) if call.in_dims[i] is None else direction
        predicted = (gradient_rows(RULES["exact"], point, v, [i]) * flat(each)).sum(-1)
        smooth = (ends[0].active == ends[1].active).all(-1)
        result = _compare(point.u, flat(ends[0].y), flat(ends[1].y), step, v, predicted, solved & smooth)
        lost, kinks = (int(rows.sum()) for rows in (good & ~solved, solved & ~smooth))
        total = total.merge(dataclasses.replace(result, lost=lost, kinks=kinks))
    return total


def _compare(
    u: Tensor,  # (batch, m)
    ahead: Tensor,  # (batch, m)
    behind: Tensor,  # (batch, m)
    step: float,
    v: Tensor,  # (batch, m)
    predicted: Tensor,  # (batch,)
    solved: Tensor,  # (batch,)
) -> Comparison:
    reach = norm(u).clamp(min=1.0)
    near = solved & (torch.maximum(norm(ahead - u), norm(behind - u)) < 0.1 * reach)
    if not near.any():
        return Comparison(jumped=int(solved.sum()))
    slope = (ahead - behind) / (2 * step)
    # Relative to what v'slope could be; slopes below the floor are zero as far as differences can tell.
    floor = 0.01 * step * norm(v) * reach
    scale = torch.stack([norm(v) * norm(slope), predicted.abs(), floor]).amax(0)
    error = ((v * slope).sum(-1) - predicted).abs() / scale
    worst = error[near].nan_to_num(torch.inf).max().item()
    return Comparison(worst, int(near.sum()), int((solved & ~near).sum()))
