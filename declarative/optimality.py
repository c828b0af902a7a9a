"""Is this point a solution? Multipliers, active constraints and the scaled residual of the optimality conditions.

All measures are relative, so that they do not change with the units of objective and constraints: gradients are
compared with the size of the objective's gradient and curvature, constraint values with the distance in u that they
stand for.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .linear import factorise_dense, or_one, times
from .problem import Batch


def optimality_tolerance(dtype: torch.dtype) -> float:
    """A point with a larger residual than this is not a solution: rather more than half of the digits."""
    return float(torch.finfo(dtype).eps ** 0.55)  # 2e-9 in double, 2e-4 in single precision


def kink_tolerance(dtype: torch.dtype) -> float:
    """A constraint whose slack and multiplier are both below this is on the edge between active and inactive."""
    return float(torch.finfo(dtype).eps ** 0.8)


@dataclass(frozen=True)
class Assessment:
    """What the optimality conditions say about a batch of points.

    Attributes:
        multipliers: stacked, zero where inactive, (batch, k).
        active: which constraints hold with equality; all equalities, (batch, k).
        weak: inequalities with neither slack nor multiplier, where the solution has a kink, (batch, k).
        stationarity, violation, residual: relative; the residual is the largest of all the conditions', (batch,).
    """

    multipliers: Tensor
    active: Tensor
    weak: Tensor
    stationarity: Tensor
    violation: Tensor
    residual: Tensor


def assess(batch: Batch, u: Tensor, multipliers: Tensor | None = None) -> Assessment:
    """Test a batch of points; without multipliers, estimate them by least squares over the tight constraints."""
    here = batch.expand(u)
    gradient, values = here.gradient, here.values
    jacobian, change = here.jacobian_and_curvature(scaled_direction(u))
    distance = values / constraint_scale(jacobian, u)  # how far in u a constraint is from holding with equality
    equality = torch.zeros_like(values, dtype=torch.bool)
    equality[:, : batch.p] = True
    if multipliers is None:
        tight = equality | (distance.abs() < optimality_tolerance(u.dtype))
        multipliers = estimate_multipliers(gradient, jacobian, tight)

    slopes = gradient_scale(gradient, change)
    strength = (jacobian.abs() / slopes.unsqueeze(1)).amax(-1)  # of a constraint, in the entries that it touches
    pull = multipliers * strength  # how hard a constraint pulls; that of an inequality is not positive
    slack = -distance
    active = equality | (-pull > slack.clamp(min=0.0))
    small = kink_tolerance(u.dtype)
    weak = ~equality & (pull.abs() <= small) & (slack.abs() <= small)
    active = active & ~weak
    multipliers = torch.where(active, multipliers, 0.0)

    left = gradient - times(jacobian.mT, multipliers)
    force = times(jacobian.mT.abs(), multipliers.abs())
    stationarity = (left / torch.maximum(slopes, force)).abs().amax(-1)
    violation = largest(torch.where(equality, distance.abs(), distance.clamp(min=0.0)))
    wrong_sign = largest(torch.where(equality, 0.0, pull.clamp(min=0.0)))
    complementarity = largest(torch.where(equality, 0.0, torch.minimum(-pull, slack).abs()))
    residual = torch.stack([stationarity, violation, wrong_sign, complementarity]).amax(0)
    finite = u.isfinite().all(-1) & gradient.isfinite().all(-1) & values.isfinite().all(-1)
    residual = torch.where(finite & residual.isfinite(), residual, torch.inf)
    return Assessment(multipliers, active, weak, stationarity, violation, residual)


def estimate_multipliers(gradient: Tensor, jacobian: Tensor, tight: Tensor) -> Tensor:  # (batch, k)
    """The least-squares, least-norm solution of A' l = D_U f over the tight constraints."""
    if not tight.shape[-1]:
        return torch.zeros_like(tight, dtype=gradient.dtype)
    mask = tight.to(gradient.dtype)
    length = or_one(torch.linalg.vector_norm(jacobian, dim=-1))
    rows = jacobian * (mask / length).unsqueeze(-1)
    usable = rows.isfinite().all(-1).all(-1) & gradient.isfinite().all(-1)
    rows = torch.where(usable[:, None, None], rows, 0.0)
    gradient = torch.where(usable[:, None], gradient, 0.0)
    gram = rows @ rows.mT + torch.diag_embed(1 - mask)
    nothing = gram.new_zeros(gram.shape[0], 0)
    solve = factorise_dense(gram, nothing[:, :, None].expand(-1, 0, gram.shape[-1]), nothing.bool(), None)
    result = torch.zeros_like(mask)
    for _ in range(2):  # the second pass makes up for the squared condition number of the Gram matrix
        left = gradient - times(rows.mT, result)
        result = result + solve(times(rows, left), nothing)[0]
    return result * mask / length


def gradient_scale(gradient: Tensor, change: Tensor) -> Tensor:  # (batch, m)
    """The size that each entry of D_U f has in these problems: here, or in its change over the scale of u.

    Entry by entry, so that a steep direction cannot hide a slope in another one; but not below rounding errors of the
    largest, since at a degenerate minimum an entry may vanish together with its own scale.
    """
    scale = torch.maximum(gradient.abs(), change.abs().nan_to_num(0.0))
    return or_one(torch.maximum(scale, 1e-8 * scale.amax(-1, keepdim=True)))


def constraint_scale(jacobian: Tensor, u: Tensor) -> Tensor:  # (batch, k)
    """The change of each constraint when the variables that it depends on change by their own size, at least 1."""
    return or_one(times(jacobian.abs(), u.abs().clamp(min=1.0)))


def scaled_direction(u: Tensor) -> Tensor:
    """The direction over which the change of the gradient is measured: every entry by about its own size."""
    return irregular(u) * u.abs().clamp(min=1.0)


def irregular(u: Tensor) -> Tensor:
    """A fixed direction with no pattern that a problem could share, with entries up to 1; like u in shape."""
    steps = torch.arange(1, u.shape[-1] + 1, dtype=u.dtype, device=u.device)
    return torch.cos(0.7 * steps.square()).expand_as(u)


def largest(values: Tensor) -> Tensor:
    """The largest entry of each row; zero for an empty row."""
    return values.amax(-1) if values.shape[-1] else values.new_zeros(values.shape[:-1])
