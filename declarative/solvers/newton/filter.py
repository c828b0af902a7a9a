"""Whether a step is progress: the filter of Wächter and Biegler (2006), without a decision by values."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ...linear import Pair
from .parameters import DELTA, ETA, FILTER, GAMMA_PHI, GAMMA_THETA, LEAST, ROUNDING, S_PHI, S_THETA
from .state import Model, State, Step, reset_slacks, residual_of


def merit(objective: Tensor, residual: Tensor, s: Tensor, barrier: Tensor) -> Pair:
    """(theta, phi): the violation, and the objective with its barrier."""
    phi = objective - barrier * s.log().sum(-1) if s.shape[-1] else objective
    return residual.abs().sum(-1), phi


def judge(
    state: State,
    model: Model,
    before: Pair,
    step: Step,
    length: Tensor,
    trial: State,
    objective: Tensor,
    values: Tensor,
) -> tuple[State, Tensor]:
    """The trial state, with its slacks reset and the filter augmented; and whether it is progress over (theta, phi)."""
    trial = reset_slacks(trial, values)
    after = merit(objective, residual_of(values, trial.s), trial.s, state.barrier)
    good, by_objective = is_acceptable(state, model, before, step, length, *after)
    return augment_filter(trial, before, good & ~by_objective), good


def is_acceptable(
    state: State, model: Model, before: Pair, step: Step, length: Tensor, theta: Tensor, phi: Tensor
) -> Pair:
    """Whether (theta, phi) is progress over what they were before, and whether it is so by the objective alone."""
    old_theta, old_phi = before
    slope = (model.gradient * step.u).sum(-1)
    if state.s.shape[-1]:
        slope = slope - state.barrier * (step.s / model.s).sum(-1)
    # Where the slope is not negative, the second comparison fails.
    by_objective = (old_theta <= LEAST * state.theta_max) & (
        length * (-slope).clamp(min=0.0) ** S_PHI > DELTA * old_theta**S_THETA
    )
    change = phi - old_phi - ROUNDING * torch.finfo(phi.dtype).eps * old_phi.abs()
    armijo = change <= ETA * length * slope
    better = (theta <= (1 - GAMMA_THETA) * old_theta) | (change <= -GAMMA_PHI * old_theta)
    free = (torch.stack([theta, phi], -1).unsqueeze(1) < state.filter).any(-1).all(-1)
    good = torch.where(by_objective, armijo, better) & free & (theta < state.theta_max) & phi.isfinite()
    return good, by_objective & armijo


def augment_filter(state: State, before: Pair, which: Tensor) -> State:
    """The state with (theta, phi) stored in the filter, for these problems."""
    theta, phi = before
    pair = torch.stack([(1 - GAMMA_THETA) * theta, phi - GAMMA_PHI * theta], -1)
    places = torch.arange(FILTER, device=which.device)
    place = (places == (state.stored % FILTER).unsqueeze(-1)) & which.unsqueeze(-1)
    filled = torch.where(place.unsqueeze(-1), pair.unsqueeze(1), state.filter)
    return replace(state, filter=filled, stored=state.stored + which)
