"""Is this point a solution? Multipliers, active constraints and the scaled residual of the optimality conditions.

All measures are relative, so that they do not change with the units of objective and constraints: gradients are
compared with the size of the objective's gradient and curvature, constraint values with the distance in u that they
stand for.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .linear.dense import factorise_gram, or_one, times
from .linear.directions import irregular
from .problem import Batch, Expansion


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
        jacobian: A at the points, for whoever needs it too, (batch, k, m).
    """

    multipliers: Tensor
    active: Tensor
    weak: Tensor
    stationarity: Tensor
    violation: Tensor
    residual: Tensor
    jacobian: Tensor | None = None


def assess(batch: Batch, u: Tensor, multipliers: Tensor | None = None) -> Assessment:
    """Test a batch of points; without multipliers, estimate them by least squares over the tight constraints."""
    if multipliers is None and (batch.q or batch.k > 1):
        here = batch.expand_along(u, scaled_direction(u))
        tight = None
        if batch.q:
            distance = here.values / constraint_scale(here.jacobian, u)
            tight = _equalities(batch, u) | (distance.abs() < optimality_tolerance(u.dtype))
        multipliers = estimate_multipliers(here.gradient, here.jacobian, tight)
        return Assessment(*_conditions(batch, u, multipliers, here))

    def conditions(batch: Batch, u: Tensor, multipliers: Tensor | None) -> tuple[Tensor, ...]:
        here = batch.expand_along(u, scaled_direction(u))
        given = estimate_multipliers(here.gradient, here.jacobian) if multipliers is None else multipliers
        return _conditions(batch, u, given, here)

    return Assessment(*batch.recorded("assessment", conditions, u, multipliers))


def _equalities(batch: Batch, u: Tensor) -> Tensor:  # (batch, k)
    return torch.arange(batch.k, device=u.device).expand(batch.size, -1) < batch.p


def _conditions(batch: Batch, u: Tensor, multipliers: Tensor, here: Expansion) -> tuple[Tensor, ...]:
    """The fields of an assessment."""
    gradient, values, jacobian, change = here.gradient, here.values, here.jacobian, here.curvature
    distance = values / constraint_scale(jacobian, u)  # how far in u a constraint is from holding with equality
    equality = _equalities(batch, u)
    slopes = gradient_scale(gradient, change)
    if batch.q:
        multipliers, active, weak, wrong = _complementarity(equality, distance, multipliers, jacobian, slopes)
        violation = largest(torch.where(equality, distance.abs(), distance.clamp(min=0.0)))
    else:
        active, weak, wrong = equality, ~equality, None
        violation = largest_size(distance)
    left = gradient - times(jacobian.mT, multipliers)
    force = times(jacobian.mT.abs(), multipliers.abs())
    stationarity = largest_size(left / torch.maximum(slopes, force))
    residual = torch.maximum(stationarity, violation)
    residual = residual if wrong is None else torch.maximum(residual, wrong)
    residual = residual + 0.0 * u.sum(-1)  # NaN unless u is finite; what else is not finite shows in the residual
    residual = torch.where(residual < torch.inf, residual, torch.inf)
    return multipliers, active, weak, stationarity, violation, residual, jacobian


def _complementarity(
    equality: Tensor, distance: Tensor, multipliers: Tensor, jacobian: Tensor, slopes: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Which inequalities are active: multipliers, active, weak, and the violation of sign and complementarity."""
    strength = (jacobian.abs() / slopes.unsqueeze(1)).amax(-1)  # of a constraint, in the entries that it touches
    pull = multipliers * strength  # how hard a constraint pulls; that of an inequality is not positive
    slack = -distance
    active = equality | (-pull > slack.clamp(min=0.0))
    small = kink_tolerance(slack.dtype)
    weak = ~equality & (pull.abs() <= small) & (slack.abs() <= small)
    active = active & ~weak
    wrong_sign = torch.where(equality, 0.0, pull.clamp(min=0.0))
    both = torch.where(equality, 0.0, torch.minimum(-pull, slack).abs())  # a slack and a pull
    return torch.where(active, multipliers, 0.0), active, weak, largest(torch.maximum(wrong_sign, both))


def estimate_multipliers(gradient: Tensor, jacobian: Tensor, tight: Tensor | None = None) -> Tensor:  # (batch, k)
    """The least-squares, least-norm solution of A' l = D_U f over the tight constraints (all of them by default)."""
    size, k, _ = jacobian.shape
    if not k:
        return gradient.new_zeros(size, 0)
    length = or_one(torch.linalg.vector_norm(jacobian, dim=-1))
    if k == 1 and tight is None:  # the formula; a row of zeros has the multiplier zero
        row = jacobian[:, 0] / length
        return (row * gradient).sum(-1, keepdim=True).nan_to_num(0.0, 0.0, 0.0) / length
    mask = torch.ones_like(length) if tight is None else tight.to(gradient.dtype)
    rows = jacobian * (mask / length).unsqueeze(-1)
    usable = (rows.sum((-2, -1)) + gradient.sum(-1)).isfinite()
    if not usable.all():
        rows = torch.where(usable[:, None, None], rows, 0.0)
        gradient = torch.where(usable[:, None], gradient, 0.0)
    solve = factorise_gram(rows, mask)
    result = solve(times(rows, gradient))
    # A second pass makes up for the squared condition number of the Gram matrix.
    result = result + solve(times(rows, gradient - times(rows.mT, result)))
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


def largest_size(values: Tensor) -> Tensor:
    """The largest absolute value of each row; zero for an empty row."""
    empty = not values.shape[-1]
    return values.new_zeros(values.shape[:-1]) if empty else torch.linalg.vector_norm(values, torch.inf, -1)


def largest(values: Tensor) -> Tensor:
    """The largest entry of each row; zero for an empty row."""
    return values.amax(-1) if values.shape[-1] else values.new_zeros(values.shape[:-1])
