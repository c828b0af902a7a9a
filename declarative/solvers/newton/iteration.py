"""One iteration of the batched Newton method if all goes well, without a decision by values."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ...linear import KktSolution, StepMatrix, or_one
from ...optimality import largest
from ...problem import Batch
from .filter import judge, merit
from .parameters import BOUNDARY, CENTRAL, CENTRED, FLAT, LEAST_SHIFT, LESS_SHIFT, LOWERINGS, Tolerances
from .state import Model, Scales, State, Step, model_at


def newton_step(
    model: Model,
    shift: Tensor,  # (batch,)
    weight: Tensor,  # (batch,)
    barrier: Tensor,  # (batch,)
    residual: Tensor,  # [h; g + s], (batch, k)
    damping: Tensor | None = None,  # (batch,)
) -> tuple[Step, KktSolution]:
    """The step for a given regularisation and value of the constraints, and what is to be said of its matrix."""
    p, s, dual, primal = model.p, model.s, model.dual, shift.unsqueeze(-1) * model.diagonal_size
    matrix = StepMatrix(model.hessian, model.jacobian, primal, dual, p, weight, damping)
    if not s.shape[-1]:
        found = model.layout.solve_kkt(matrix, (-model.slope, -residual))
        return Step(found.z, s, found.s), found
    inner = residual[:, p:] - s + barrier.unsqueeze(-1) / model.y_g  # g + barrier / y
    found = model.layout.solve_kkt(matrix, (-model.slope, -torch.cat([residual[:, :p], inner], -1)))
    # From the last row: G du = s / y dy - (g + barrier / y), which costs no product with G.
    change = dual[:, p:] * found.s[:, p:] - inner
    return Step(u=found.z, s=-residual[:, p:] - change, y=found.s), found


def length_to_boundary(s: Tensor, ds: Tensor, barrier: Tensor) -> Tensor:  # (batch,)
    """The longest step that keeps s positive."""
    if not s.shape[-1]:
        return torch.ones_like(barrier)
    fraction = (1 - barrier).clamp(*BOUNDARY).unsqueeze(-1)
    return torch.where(ds < 0, -fraction * s / ds, 1.0).amin(-1).clamp(max=1.0)


def moved(state: State, step: Step, length: Tensor) -> State:
    """The state after a step of this length; multipliers of inequalities go their own way."""
    q = state.s.shape[-1]
    p = state.y.shape[-1] - q
    long = length.unsqueeze(-1)
    u = state.u + long * step.u
    if not q:
        return replace(state, u=u, y=state.y + long * step.y)
    s = state.s + long * step.s
    y_h = state.y[:, :p] + long * step.y[:, :p]
    y_g, dy_g = state.y[:, p:], step.y[:, p:]
    y_g = y_g + length_to_boundary(y_g, dy_g, state.barrier).unsqueeze(-1) * dy_g
    centre = state.barrier.unsqueeze(-1) / s
    y_g = torch.maximum(torch.minimum(y_g, CENTRAL[1] * centre), CENTRAL[0] * centre)
    return replace(state, u=u, s=s, y=torch.cat([y_h, y_g], -1))


def lowered_barrier(state: State, model: Model, tolerances: Tolerances) -> State:
    """The barrier of each problem that has solved its present one well enough, lowered; the filter starts anew.

    It never becomes so small that rounding errors of the slacks matter, unless the tolerance on the gap asks for it.
    """
    if not state.s.shape[-1]:
        return state
    barrier = state.barrier
    lowest = tolerances.barrier * largest(model.y_g * model.span).clamp(min=1.0)
    lowest = torch.minimum(lowest, 0.2 * tolerances.complementarity * model.large)
    if state.last_barrier.shape[-1]:
        lowest = torch.maximum(lowest, state.last_barrier[:, 0])
    rest = torch.maximum(model.stationarity, largest(model.residual.abs()))
    # A barrier is solved well enough if no s y exceeds it by more than ten times, nor the rest.
    enough = torch.maximum(rest / 10, largest(model.s * model.y_g) / (1 + 10 * model.large))
    for _ in range(LOWERINGS):
        lower = torch.maximum(torch.minimum(0.2 * barrier, barrier**1.5), lowest)
        barrier = torch.where(barrier >= enough, torch.minimum(lower, barrier), barrier)
    lowered = barrier < state.barrier
    fresh = torch.where(lowered[:, None, None], torch.inf, state.filter)
    return replace(state, barrier=barrier, filter=fresh, stored=torch.where(lowered, 0, state.stored))


def is_complementary(model: Model, state: State, tolerance: float) -> Tensor:  # (batch,)
    """Whether slacks and multipliers are where they are to end."""
    if not state.last_barrier.shape[-1]:
        return model.gap <= tolerance
    off = largest((model.s * model.y_g - state.last_barrier).abs()) / model.large
    return off <= (CENTRED * state.last_barrier[:, 0]).clamp(max=tolerance)


def relative_step(model: Model, step: Step, start: Tensor) -> Tensor:  # (batch,)
    """The length of a step relative to u, the largest over its entries.

    What is tiny beside the way from the start, or beside the change that costs as much energy as there is, is nothing.
    """
    diagonal, size = model.layout.hessian.diagonal(model.hessian), model.u.abs()
    energy = ((model.gradient.abs() + diagonal.abs() * size) * size).sum(-1, keepdim=True)
    reach = torch.where(diagonal > 0, energy / diagonal, 0.0).sqrt()
    return largest(step.u.abs() / or_one(size + 1e-3 * ((model.u - start).abs() + reach)))


def iterate_once(
    batch: Batch, scales: Scales, model: Model, state: State, tolerances: Tolerances
) -> tuple[State, Model, State, Tensor]:
    """An iteration as it should be: where the step leads, the model there, the state that it is from, and flags.

    The flags are: solved, factored, accepted, flat (a direction of H may be).
    """
    state = lowered_barrier(state, model, tolerances)
    step, found = newton_step(model, state.shift, state.weight, state.barrier, model.residual)
    length = length_to_boundary(state.s, step.s, state.barrier)
    trial = moved(state, step, length)
    there = model_at(batch, scales, trial.u, trial.s, trial.y)
    before = merit(model.objective, model.residual, model.s, state.barrier)
    trial, good = judge(state, model, before, step, length, trial, there.objective, there.values)
    shift = trial.shift * trial.shift.clamp(max=LESS_SHIFT)
    trial = replace(trial, shift=torch.where(shift >= LEAST_SHIFT, shift, 0.0))
    solved = (
        (largest(model.violation.abs()) <= tolerances.feasibility)
        & (model.stationarity <= tolerances.stationarity)
        & is_complementary(model, state, tolerances.complementarity)
        & (relative_step(model, step, scales.start) <= tolerances.step)
    )
    flags = torch.stack([solved, found.convex & found.independent, good, ~(found.room > FLAT)], -1)
    return trial, replace(there, s=trial.s), state, flags
