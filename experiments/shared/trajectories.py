"""Control problems, written once for torch and once more for CasADi by the same formulas."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from problems import OptimalControl

DT, GRAVITY = 0.05, 9.81
CART, POLE, LENGTH = 1.0, 0.2, 0.5  # masses, and half of the pole
Entries = Sequence[Any]  # numbers, tensors or symbols


@dataclass(frozen=True)
class Model:
    """Dynamics and a cost: sum of weights * x^2 and price * u^2, over all states and controls, abs(u) <= limit.

    Attributes:
        name: for the claims.
        step: (entries of x, u, sin, cos) -> entries of the next x.
        weights: of the states.
        price: of the control.
        limit: of the control.
        first: the initial state of problem i.
    """

    name: str
    step: Callable[[Entries, Any, Any, Any], list[Any]]
    weights: tuple[float, ...]
    price: float
    limit: float
    first: Callable[[float], list[float]]

    @property
    def size(self) -> int:
        """The number of states."""
        return len(self.weights)

    def initial(self, batch: int) -> Tensor:  # (batch, size)
        """The initial states of a batch."""
        return torch.tensor([self.first(i % 64) for i in range(batch)], dtype=torch.float64)

    def cost(self, x: Entries) -> Any:
        """Of a state."""
        return sum(weight * entry * entry for weight, entry in zip(self.weights, x, strict=True))

    def next(self, x: Tensor, u: Tensor) -> Tensor:  # (..., size), (..., 1) -> (..., size)
        """The next states."""
        return torch.stack(self.step(x.unbind(-1), u[..., 0], torch.sin, torch.cos), -1)

    def layer(self, steps: int, **options: Any) -> OptimalControl:
        """Ours."""
        return OptimalControl(
            self.next,
            lambda x, u: self.cost(x.unbind(-1)) + self.price * u.square().sum(),
            lambda x: self.cost(x.unbind(-1)),
            steps=steps,
            controls=1,
            control_bounds=(-self.limit, self.limit),
            **options,
        )


def swing(x: Entries, u: Any, sin: Any, cos: Any, length: Any = 1.0) -> list[Any]:  # noqa: ARG001
    """A pendulum: the angle from upright, and its speed."""
    return [x[0] + DT * x[1], x[1] + DT * (GRAVITY / length * sin(x[0]) + u)]


def balance(x: Entries, u: Any, sin: Any, cos: Any, length: Any = LENGTH) -> list[Any]:
    """A pole on a cart that is pushed: its place, the angle from upright, and their speeds."""
    place, angle, speed, turn = x
    total = CART + POLE
    push = (u + POLE * length * turn * turn * sin(angle)) / total
    inertia = length * (4 / 3 - POLE * cos(angle) * cos(angle) / total)
    turning = (GRAVITY * sin(angle) - cos(angle) * push) / inertia
    moving = push - POLE * length * turning * cos(angle) / total
    return [place + DT * speed, angle + DT * turn, speed + DT * moving, turn + DT * turning]


PENDULUM = Model("pendulum", swing, (1.0, 1.0), 0.1, 15.0, lambda i: [0.6 + 0.01 * i, 0.01 * i])
CART_POLE = Model(
    "cart-pole", balance, (1.0, 5.0, 0.1, 0.1), 0.01, 8.0, lambda i: [0.01 * i, 0.3 + 0.005 * i, 0.0, 0.0]
)


def flat(y: dict[str, Tensor]) -> Tensor:  # (batch, steps * (size + 1))
    """A trajectory as one row: states, then controls."""
    return torch.cat([y["states"].flatten(1), y["controls"].flatten(1)], 1)


class Transcription:
    """The same problem as functions of a row, for solvers that take such: f(row, initial), g(row, initial) = 0."""

    def __init__(self, model: Model, steps: int) -> None:
        self.model, self.steps = model, steps
        self.rows = steps * model.size
        self.bound = torch.cat([torch.full((self.rows,), math.inf), torch.full((steps,), model.limit)]).double()

    def split(self, row: Tensor) -> tuple[Tensor, Tensor]:
        return row[: self.rows].view(self.steps, -1), row[self.rows :].view(self.steps, 1)

    def objective(self, row: Tensor, initial: Tensor) -> Tensor:  # noqa: ARG002
        states, controls = self.split(row)
        total: Tensor = self.model.cost(states.unbind(-1)).sum() + self.model.price * controls.square().sum()
        return total

    def equations(self, row: Tensor, initial: Tensor) -> Tensor:
        states, controls = self.split(row)
        before = torch.cat([initial.unsqueeze(0), states[:-1]])
        return (states - self.model.next(before, controls)).reshape(-1)

    def start(self, initial: Tensor) -> Tensor:  # (batch, size) -> (batch, rows + steps)
        """Where the layer starts too."""
        return torch.cat([initial.repeat(1, self.steps), initial.new_zeros(len(initial), self.steps)], 1)


def symbolic(model: Model, steps: int, casadi: Any) -> dict[str, Any]:
    """The same problem in CasADi's symbols."""
    states, controls = casadi.SX.sym("x", model.size, steps), casadi.SX.sym("u", 1, steps)
    initial, before, rows, total = casadi.SX.sym("p", model.size), None, [], 0
    for t in range(steps):
        before = initial if before is None else states[:, t - 1]
        after = model.step(casadi.vertsplit(before), controls[t], casadi.sin, casadi.cos)
        rows.append(states[:, t] - casadi.vertcat(*after))
        total += model.cost(casadi.vertsplit(states[:, t])) + model.price * controls[t] ** 2
    row = casadi.vertcat(casadi.vec(states), casadi.vec(controls))
    return {"x": row, "p": initial, "f": total, "g": casadi.vertcat(*rows)}


MODELS = (PENDULUM, CART_POLE)
