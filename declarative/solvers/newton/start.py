"""Where the Newton method starts: units, slacks, multipliers and barrier, for a point that no step led to."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from ...linear import or_one
from ...linear.directions import irregular
from ...optimality import fitted_multipliers, largest
from ...problem import Batch
from .parameters import FILTER
from .state import (
    DERIVATIVES,
    Model,
    Scales,
    State,
    model_at,
    residual_of,
    scaled_model,
    scaled_values,
    violation_of,
)

FIRST_BARRIER, FIRST_SLACK = 0.1, 0.1  # in units in which gradients have size 1; the least slack to start with
WARM_BARRIERS = (1e-9, 0.1)  # to start with where multipliers are known, at least and at most
CERTAIN = 4  # of what is first looked at does not follow from a system that may be singular


def first_state(batch: Batch, u: Tensor) -> tuple[Scales, State, Model]:
    """Units in which gradients at the start have size 1; slacks, multipliers and barrier to start with; the model."""
    found = batch.evaluate("first look", _first_look, u, by_problem=True, compared=CERTAIN)
    objective, rows, theta_max, s, y, *rest = found
    none = u.new_zeros(batch.size)
    counts = torch.zeros(batch.size, dtype=torch.int64, device=u.device)
    filter_, last = u.new_full((batch.size, FILTER, 2), torch.inf), u.new_zeros(batch.size, 0)
    barrier = u.new_full((batch.size,), FIRST_BARRIER)
    state = State(u, s, y, barrier, none, none.clone(), filter_, counts, theta_max, last)
    return Scales(objective, rows, u), state, Model.of(rest, u, s, y, batch.layout)


def _first_look(batch: Batch, u: Tensor) -> tuple[Tensor, ...]:
    """The units of the objective and of the constraints; the largest theta, s, y and the model in these units."""
    here, layout, p = batch.expand(u), batch.layout, batch.p
    bend = layout.hessian.multiply(here.curvature.abs(), irregular(u).abs() * or_one(u.abs()))
    slope = torch.maximum(here.gradient.abs(), bend)
    length = layout.jacobian.row_lengths(here.jacobian)
    usable = (length > 1e-8) & length.isfinite()
    rows = torch.where(usable, 1 / torch.where(usable, length, 1.0), 1.0).clamp(max=1e8)
    scales = Scales(1 / or_one(largest(slope)), rows, u)
    values = scaled_values(here.values, scales)
    s = torch.maximum(-values[:, p:], torch.full_like(values[:, p:], FIRST_SLACK)).nan_to_num(1.0)
    s = _exact_for_bounds(batch, values, s)
    y = torch.cat([torch.zeros_like(values[:, :p]), FIRST_BARRIER / s], -1)
    y = _estimated(batch, scales, y, here.gradient, here.jacobian)
    straight = not batch.k or batch.constants is not None  # H is the same whatever the multipliers are
    model = scaled_model(layout, scales, here, u, s, y) if straight else model_at(batch, scales, u, s, y)
    return scales.objective, rows, _theta_max(values, s), s, y, *(getattr(model, name) for name in DERIVATIVES)


def warm_state(batch: Batch, scales: Scales, state: State) -> State:
    """The first state with the multipliers that are known, and a barrier as small as the point is near a solution.

    A solution lies on the boundary, where an interior-point method cannot move: slacks and multipliers are brought to
    the central path of that barrier, the larger of the two as it is.
    """
    assert batch.guess is not None
    p = batch.p
    y = violation_of(-batch.guess.to(state.u.dtype) * scales.objective.unsqueeze(-1) / scales.rows, p)
    model = model_at(batch, scales, state.u, state.s, y)
    room, y_g = -model.values[:, p:], y[:, p:]
    off = torch.stack([model.stationarity, largest(model.violation.abs()), largest(torch.minimum(room.abs(), y_g))])
    barrier = off.amax(0).clamp(*WARM_BARRIERS)
    usable = model.finite() & barrier.isfinite()
    level = barrier.unsqueeze(-1)
    s = _exact_for_bounds(batch, model.values, torch.maximum(room, level / torch.maximum(y_g, level.sqrt())))
    y = torch.cat([y[:, :p], torch.maximum(y_g, level / s)], -1)
    warm = dataclasses.replace(state, s=s, y=y, barrier=barrier, theta_max=_theta_max(model.values, s))
    return warm.where(usable, state)


def restarted(batch: Batch, scales: Scales, state: State, u: Tensor, slacks: Tensor | None = None) -> State:
    """Slacks (unless they are given) and multipliers for a point that no step led to."""
    p = batch.p
    _, gradient, values, jacobian = batch.slopes(u)
    values = scaled_values(values, scales)
    smallest = torch.sqrt(state.barrier).unsqueeze(-1).clamp(max=0.1).expand_as(state.s)
    if slacks is None:
        slacks = _exact_for_bounds(batch, values, torch.maximum(-values[:, p:], smallest))
    y = torch.cat([state.y[:, :p], state.barrier.unsqueeze(-1) / slacks], -1)
    y = _estimated(batch, scales, y, gradient, jacobian)
    return dataclasses.replace(state, u=u, s=slacks, y=y, shift=torch.zeros_like(state.shift))


def _theta_max(values: Tensor, s: Tensor) -> Tensor:  # (batch,)
    """The largest violation that a step may lead to, from that at the start."""
    return 1e4 * residual_of(values, s).abs().sum(-1).nan_to_num(1.0).clamp(min=1.0)


def _exact_for_bounds(batch: Batch, values: Tensor, s: Tensor) -> Tensor:  # (batch, q)
    """Slacks with those of bounds as they are, where u is inside: as bounds are linear, no step then leaves them."""
    if not batch.bounds:
        return s
    is_bound = torch.arange(batch.q, device=s.device) >= batch.q - batch.bounds
    room = -values[:, batch.p :]
    return torch.where(is_bound & (room > 0), room, s)


def _estimated(batch: Batch, scales: Scales, y: Tensor, gradient: Tensor, jacobian: Tensor) -> Tensor:  # (batch, k)
    """Least-squares multipliers of the equalities, in scaled units; zero where they are too large to be of use."""
    p, layout = batch.p, batch.layout
    if not p:
        return y
    equality = torch.arange(y.shape[-1], device=y.device) < p
    jacobian = layout.jacobian.scale_rows(jacobian, scales.rows)
    gradient = gradient * scales.objective.unsqueeze(-1)
    gradient = gradient + layout.jacobian.multiply_transposed(jacobian, torch.where(equality, 0.0, y))
    guess = -fitted_multipliers(layout, gradient, jacobian, equality.expand_as(y), quick=True)[:, :p]
    usable = guess.isfinite().all(-1, keepdim=True) & (largest(guess.abs()) < 1e3).unsqueeze(-1)
    return torch.cat([torch.where(usable, guess, 0.0), y[:, p:]], -1)
