"""What is done if a solution of a problem nearby is known, with its multipliers.

Where nearly the same constraints are active, a few Newton steps on the optimality conditions are all there is to do.
For the other problems, an interior-point method starts where it would nearly have ended.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from ..conditions import largest
from ..problem import Batch
from ..solution import RawSolution
from .newton_step import Scales, State, model_at, residual_of
from .polish import polish

BARRIERS = (1e-9, 0.1)  # to start with, at least and at most


def near(batch: Batch, start: Tensor, dtype: torch.dtype) -> RawSolution:
    """Solutions by Newton steps from the start and the multipliers that are known; the steps are iterations."""
    assert batch.guess is not None
    raw = dataclasses.replace(
        RawSolution.unsolved(start), multipliers=batch.guess.to(start.dtype), messages=("Newton",) * batch.size
    )
    return polish(batch, raw, start, dtype, counts=True)


def resumed(batch: Batch, scales: Scales, state: State) -> State:
    """The first state with the multipliers that are known, and a barrier as small as the point is near a solution.

    A solution lies on the boundary, where an interior-point method cannot move: slacks and multipliers are brought to
    the central path of that barrier, the larger of the two as it is.
    """
    assert batch.guess is not None
    p = batch.p
    y = -batch.guess.to(state.u.dtype) * scales.objective.unsqueeze(-1) / scales.rows
    y = torch.cat([y[:, :p], y[:, p:].clamp(min=0.0)], -1)
    model = model_at(batch, scales, state.u, state.s, y)
    room, pull = -model.values[:, p:], y[:, p:]
    off = torch.stack([model.stationarity, largest(model.violated.abs()), largest(torch.minimum(room.abs(), pull))])
    barrier = off.amax(0).clamp(*BARRIERS)
    usable = model.finite() & barrier.isfinite()
    level = barrier.unsqueeze(-1)
    slack = torch.maximum(room, level / torch.maximum(pull, level.sqrt()))
    slack = torch.where(_is_bound(batch, slack) & (room > 0), room, slack)
    y = torch.cat([y[:, :p], torch.maximum(pull, level / slack)], -1)
    theta = residual_of(model.values, slack).abs().sum(-1).clamp(min=1.0)
    warm = dataclasses.replace(state, s=slack, y=y, barrier=barrier, largest=1e4 * theta)
    return warm.where(usable, state)


def _is_bound(batch: Batch, like: Tensor) -> Tensor:  # (q,)
    return torch.arange(batch.q, device=like.device) >= batch.q - batch.bounds
