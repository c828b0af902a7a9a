"""A pendulum and a pole on a cart, and somebody who keeps them upright with the least cost.

What he pays for the states, in units of what he pays for the control, and the length of what he balances are to be
learned from what he does. The control has a limit, and is often at it.

Who looks at a pendulum in every step need not know its length: what a wrong plan leaves to be done, the next one does,
and no parameter matters. So one looks at it but every quarter of a second.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.func import jvp

from problems import OptimalControl

from ...shared.inputs import normal
from ...shared.trajectories import DT, GRAVITY, balance

PRICE = 0.1  # of the squared control: the unit of the cost
END = 20.0  # times the cost of a state, for the last one of a plan
UNLIKE = 0.2  # by which the logarithms of the truth differ from seed to seed
UPRIGHT = 0.1  # radians: where a plan must end, or nobody could have done it
WRONG = 1.0, 0.4  # by which the logarithms of weights and length are wrong before training, up or down

Plan = dict[str, Tensor]  # states (batch, horizon, size) and controls (batch, horizon, 1)


@dataclass(frozen=True)
class System:
    """What is to be balanced."""

    name: str
    step: Callable[[Any, Any, Any, Any, Any], list[Any]]  # (entries of x, u, sin, cos, length) -> entries of the next x
    weights: tuple[float, ...]  # of the squared states
    length: float
    limit: float  # of the control
    reach: tuple[float, ...]  # of the initial states, on both sides
    angle: int  # which of the states it is
    blind: int = 1  # steps from one look to the next: so much of a plan is done

    def next(self, x: Tensor, u: Tensor, length: Tensor) -> Tensor:  # (..., size), (..., 1), () -> (..., size)
        """The next states."""
        return torch.stack(self.step(x.unbind(-1), u[..., 0], torch.sin, torch.cos, length), -1)

    def linear(self, x: Tensor, u: Tensor, length: Tensor) -> Tensor:
        """The next states as the tangent at rest has it."""
        rest = torch.zeros_like(x), torch.zeros_like(u)
        found: Tensor = jvp(lambda a, b: self.next(a, b, length), rest, (x, u))[1]
        return found

    def planner(self, horizon: int) -> OptimalControl:
        """(initial states, weights and length) -> the cheapest plan within the limit."""
        return _planner(self.next, horizon, (-self.limit, self.limit))

    def regulator(self, horizon: int) -> OptimalControl:
        """The same without limit, for the linear system: the linear-quadratic regulator."""
        return _planner(self.linear, horizon, None)

    def truth(self, generator: torch.Generator) -> Tensor:  # (size + 1,)
        """Weights and length of a seed."""
        usual = torch.tensor([*self.weights, self.length], dtype=torch.float64)
        return usual * (UNLIKE * normal(generator, len(usual))).exp()

    def guess(self, truth: Tensor, generator: torch.Generator) -> Tensor:  # (size + 1,)
        """What is believed before anything was seen."""
        signs = 2.0 * torch.randint(2, truth.shape, generator=generator) - 1
        wrong = torch.tensor([*[WRONG[0]] * len(self.weights), WRONG[1]], dtype=torch.float64)
        return truth * (signs * wrong).exp()

    def initial(self, count: int, generator: torch.Generator) -> Tensor:  # (count, size)
        """States to begin with."""
        reach = torch.tensor(self.reach, dtype=torch.float64)
        return reach * (2 * torch.rand(count, len(reach), generator=generator, dtype=torch.float64) - 1)

    def is_upright(self, plan: Plan) -> Tensor:  # bool (batch,)
        """Whether plans end upright: the limit makes that impossible from some initial states."""
        return plan["states"][:, -1, self.angle].abs() < UPRIGHT

    def scaled(self, plan: Plan) -> Tensor:  # (batch, horizon, size + 1)
        """States and controls in units of the reach and of the limit."""
        reach = torch.tensor(self.reach, dtype=torch.float64)
        return torch.cat([plan["states"] / reach, plan["controls"] / self.limit], -1)


def swing(x: Sequence[Any], u: Any, sin: Any, _: Any, length: Any) -> list[Any]:
    """A pendulum that a torque turns: the angle from upright, and its speed. A longer one is heavier to turn."""
    return [x[0] + DT * x[1], x[1] + DT * (GRAVITY / length * sin(x[0]) + u / length**2)]


def state_cost(x: Tensor, parameters: Tensor) -> Tensor:  # (..., size), (size + 1,) -> (...)
    """Of a state, by the weights among the parameters."""
    return (parameters[:-1] * x.square()).sum(-1)


def _planner(
    step: Callable[[Tensor, Tensor, Tensor], Tensor], horizon: int, bounds: tuple[float, float] | None
) -> OptimalControl:
    return OptimalControl(
        lambda x, u, parameters: step(x, u, parameters[-1]),
        lambda x, u, parameters: state_cost(x, parameters) + PRICE * u.square().sum(),
        lambda x, parameters: END * state_cost(x, parameters),
        steps=horizon,
        controls=1,
        control_bounds=bounds,
        in_dims=(0, None),
        record=True,
    )


SYSTEMS = {
    one.name: one
    for one in (
        System("pendulum", swing, (10.0, 1.0), 1.0, 3.0, (0.4, 0.8), 0, blind=5),
        System("cart-pole", balance, (1.0, 20.0, 0.5, 0.5), 0.5, 4.0, (0.5, 0.4, 0.3, 0.7), 1),
    )
}
