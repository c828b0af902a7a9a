"""Nonlinear control, transcribed: states and controls of all steps are unknowns, each entry's steps side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from ..cases import Array, Case, Functions, Programme
from .family import Family, generator

DT, GRAVITY = 0.05, 9.81
CART, POLE, LENGTH = 1.0, 0.2, 0.5  # masses, and half of the pole
ARM, INERTIA = 0.25, 0.02  # of the quadrotor, of mass 1, in a vertical plane
OBSTACLE = (1.0, 0.9, 0.4)  # centre and radius


@dataclass(frozen=True)
class Model:
    """Dynamics, entry by entry: step(m, entries of x, entries of u) -> entries of the next x.

    The cost is the sum of weights * (x - goal)^2 and prices * (u - rest)^2; the controls are within limits.
    """

    name: str
    step: Callable[[Any, Sequence[Any], Sequence[Any]], list[Any]]
    weights: tuple[float, ...]
    prices: tuple[float, ...]
    lower: tuple[float, ...]
    upper: tuple[float, ...]
    first: Callable[[np.random.Generator, int], Array]  # initial states, (batch, states)
    goal: tuple[float, ...] = ()
    rest: tuple[float, ...] = ()
    avoid: Callable[[Sequence[Any]], Any] | None = None  # <= 0 for the entries of x

    def functions(self, steps: int, m: Any) -> Functions:
        """Of the initial state p and of all unknowns u."""
        n, controls = len(self.weights), len(self.prices)
        goal, rest = self.goal or (0.0,) * n, self.rest or (0.0,) * controls

        def entries(u: Any) -> tuple[list[Any], list[Any]]:
            parts = [u[i * steps : (i + 1) * steps] for i in range(n + controls)]
            return parts[:n], parts[n:]

        def objective(p: Any, u: Any) -> Any:  # noqa: ARG001
            x, c = entries(u)
            terms = [w * m.total((a - g) ** 2) for w, a, g in zip(self.weights, x, goal, strict=True)]
            return sum(terms + [w * m.total((a - r) ** 2) for w, a, r in zip(self.prices, c, rest, strict=True)])

        def equality(p: Any, u: Any) -> Any:
            x, c = entries(u)
            before = [m.concat([p[i : i + 1], a[: steps - 1]]) for i, a in enumerate(x)]
            return m.concat([a - b for a, b in zip(x, self.step(m, before, c), strict=True)])

        def inequality(p: Any, u: Any) -> Any:  # noqa: ARG001
            assert self.avoid is not None
            return self.avoid(entries(u)[0])

        return Functions(objective, equality, None if self.avoid is None else inequality)

    def case(self, steps: int, batch: int, seed: int) -> Case:
        """A batch of initial states; the search starts there, with controls at rest."""
        draw = generator(self.name, steps, batch, seed)
        initial = self.first(draw, batch)
        rest = np.tile(self.rest or (0.0,) * len(self.prices), (batch, 1))
        start = np.repeat(np.concatenate([initial, rest], 1), steps, 1)
        free = np.full(len(self.weights) * steps, np.inf)
        lower, upper = np.r_[-free, np.repeat(self.lower, steps)], np.r_[free, np.repeat(self.upper, steps)]
        programme = Programme(partial(self.functions, steps), initial, start, lower, upper)
        return Case(programme, {"p": initial}, draw.standard_normal(start.shape))


def swing(m: Any, x: Sequence[Any], u: Sequence[Any]) -> list[Any]:
    """A pendulum: the angle from upright, and its speed."""
    return [x[0] + DT * x[1], x[1] + DT * (GRAVITY * m.sin(x[0]) + u[0])]


def balance(m: Any, x: Sequence[Any], u: Sequence[Any]) -> list[Any]:
    """A pole on a cart that is pushed: its place, the angle from upright, and their speeds."""
    place, angle, speed, turn = x
    total, s, c = CART + POLE, m.sin(angle), m.cos(angle)
    push = (u[0] + POLE * LENGTH * turn * turn * s) / total
    turning = (GRAVITY * s - c * push) / (LENGTH * (4 / 3 - POLE * c * c / total))
    moving = push - POLE * LENGTH * turning * c / total
    return [place + DT * speed, angle + DT * turn, speed + DT * moving, turn + DT * turning]


def fly(m: Any, x: Sequence[Any], u: Sequence[Any]) -> list[Any]:
    """A quadrotor in a vertical plane: place, height, tilt, their speeds; the thrusts of both sides."""
    place, height, tilt, speed, climb, turn = x
    thrust = u[0] + u[1]
    return [
        place + DT * speed,
        height + DT * climb,
        tilt + DT * turn,
        speed - DT * thrust * m.sin(tilt),
        climb + DT * (thrust * m.cos(tilt) - GRAVITY),
        turn + DT * ARM / INERTIA * (u[0] - u[1]),
    ]


def outside(x: Sequence[Any]) -> Any:
    """Not in the obstacle."""
    across, up, radius = OBSTACLE
    return radius**2 - (x[0] - across) ** 2 - (x[1] - up) ** 2


def hang(m: Any, x: Sequence[Any], u: Sequence[Any]) -> list[Any]:
    """A chain of three masses on springs in a plane, one end at the origin, the other moved by its speed.

    The state: the places (across, up) of two inner masses and of the end, then the speeds of the inner masses.
    """
    places = [(0.0, 0.0), *((x[2 * i], x[2 * i + 1]) for i in range(3))]
    stiff, length, mass = 4.0, 0.4, 0.3
    pulls = []
    for (a, b), (c, d) in pairwise(places):
        across, up = c - a, d - b
        share = stiff * (1 - length / m.sqrt(across**2 + up**2))
        pulls.append((share * across, share * up))
    speeds = [(x[6], x[7]), (x[8], x[9])]
    moved = [x[k] + DT * speeds[k // 2][k % 2] for k in range(4)] + [x[4] + DT * u[0], x[5] + DT * u[1]]
    for i in range(2):
        for k, weight in ((0, 0.0), (1, -GRAVITY)):
            moved.append(speeds[i][k] + DT * ((pulls[i + 1][k] - pulls[i][k]) / mass + weight))
    return moved


def _near(centre: Sequence[float], spread: Sequence[float]) -> Callable[[np.random.Generator, int], Array]:
    return lambda draw, batch: np.array(centre) + np.array(spread) * draw.uniform(-1, 1, (batch, len(centre)))


HOVER = GRAVITY / 2
MODELS = (
    Model("pendulum", swing, (1.0, 1.0), (0.1,), (-15.0,), (15.0,), _near((0.9, 0.3), (0.3, 0.3))),
    Model(
        "cart-pole", balance, (1.0, 5.0, 0.1, 0.1), (0.01,), (-8.0,), (8.0,),
        _near((0.3, 0.45, 0.0, 0.0), (0.3, 0.15, 0.1, 0.1)),
    ),
    Model(
        "quadrotor", fly, (1.0, 1.0, 0.1, 0.1, 0.1, 0.1), (0.02, 0.02), (0.0, 0.0), (12.0, 12.0),
        _near((0.2, 0.2, 0.0, 0.0, 0.0, 0.0), (0.1, 0.1, 0.1, 0.2, 0.2, 0.1)),
        goal=(2.0, 1.5, 0.0, 0.0, 0.0, 0.0), rest=(HOVER, HOVER), avoid=outside,
    ),
    Model(
        "hanging-chain", hang, (0.1, 0.1, 0.1, 0.1, 10.0, 10.0, 1.0, 1.0, 1.0, 1.0), (0.1, 0.1),
        (-1.0, -1.0), (1.0, 1.0),
        _near((0.4, -1.2, 0.9, -1.3, 1.3, -0.3, 0.0, 0.0, 0.0, 0.0), (0.05,) * 4 + (0.2, 0.2) + (0.1,) * 4),
        goal=(0.4, -1.2, 0.8, -1.2, 1.2, 0.0, 0.0, 0.0, 0.0, 0.0),
    ),
)  # fmt: skip
TITLES = {
    "pendulum": "A pendulum",
    "cart-pole": "A pole on a cart",
    "quadrotor": "A quadrotor with an obstacle",
    "hanging-chain": "A hanging chain of masses",
}
SHAPES = {
    "pendulum": ((30, 1), (30, 32), (30, 128), (100, 1), (100, 32), (1000, 1)),
    "cart-pole": ((30, 1), (30, 32), (100, 1)),
    "quadrotor": ((20, 1), (20, 32), (50, 1)),
    "hanging-chain": ((20, 1), (20, 32)),
}
COMPILED = {"pendulum": ((30, 32),)}
FAMILIES = tuple(
    Family(
        model.name, TITLES[model.name], "control", "steps",
        "Transcribed, with bounded controls; the gradient in the initial state; truth: Newton's method on the "
        "optimality conditions with CasADi's derivatives, to rounding.",
        model.case, SHAPES[model.name], ((5, 2),), compiled=COMPILED.get(model.name, ()),
    )
    for model in MODELS
)  # fmt: skip
