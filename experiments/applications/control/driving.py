"""Model predictive control: plan, do the first steps of the plan, look where they led, and plan again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from problems import OptimalControl

from .data import PRICE, Plan, System, state_cost

FALLEN = 1.5  # radians from upright


@dataclass(frozen=True)
class Drive:
    """What became of some initial states."""

    states: Tensor  # (batch, steps + 1, size)
    controls: Tensor  # (batch, steps, 1)
    costs: Tensor  # (batch,), by the true parameters


def drive(
    system: System, planner: OptimalControl, believed: Tensor, truth: Tensor, initial: Tensor, steps: int
) -> Drive:
    """Drive the true system by plans with the parameters that are believed; it is the limit that stops a control."""
    x, plan = initial, Plan()
    states, controls, costs = [x], [], torch.zeros(len(x), dtype=x.dtype)
    for done in range(steps):
        ahead = done % system.blind
        if ahead == 0:
            with torch.no_grad():
                start = _shifted(plan, system.blind) if plan else None
                plan = cast(Plan, planner.solve(x, believed, start=start).y)
        u = plan["controls"][:, ahead].clamp(-system.limit, system.limit)
        costs = costs + state_cost(x, truth) + PRICE * u.square().sum(-1)
        x = system.next(x, u, truth[-1])
        states.append(x)
        controls.append(u)
    return Drive(torch.stack(states, 1), torch.stack(controls, 1), costs + state_cost(x, truth))


def fallen(system: System, done: Drive) -> float:
    """The share of the problems whose angle was lost on the way."""
    return (done.states[..., system.angle].abs() > FALLEN).any(-1).double().mean().item()


def _shifted(plan: Plan, steps: int) -> Plan:
    """The rest of a plan; its last step again and again."""
    return {name: torch.cat([one[:, steps:], one[:, -1:].expand(-1, steps, -1)], 1) for name, one in plan.items()}
