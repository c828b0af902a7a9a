"""Problems without a solution: the objective falls for ever, or nears a value that it never takes.

Each comes with the reason: a path of feasible points along which the objective falls without end. So no point of it is
a solution, whoever finds it, in whatever precision and units.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from declarative import DeclarativeNode

Function = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Hopeless:
    """x is (a factor on the objective, where on the path to start)."""

    name: str
    objective: Function  # of u alone
    path: Callable[[Tensor], list[Tensor]]  # of t >= 0
    equality: Function | None = None
    inequality: Function | None = None

    def point(self, x: Tensor) -> Tensor:
        return torch.stack(self.path(x[1]))

    def node(self, solver: Any, **options: Any) -> DeclarativeNode:
        """A node that starts on the path or, as a closed form, returns the point of the path."""

        def of_both(function: Function | None) -> Callable[[Tensor, Tensor], Tensor] | None:
            return None if function is None else lambda _, u: function(u)

        closed = solver == "closed form"
        return DeclarativeNode(
            lambda x, u: x[0] * self.objective(u),
            of_both(self.equality),
            of_both(self.inequality),
            solver=torch.vmap(self.point) if closed else solver,
            start=None if closed else self.point,
            on_failure="mask",
            **options,
        )

    def __str__(self) -> str:
        return self.name


DEFICIENT = [[1.0, 2.0, 3.0], [2.0, -1.0, 1.0]]
TILT = [1.0, 1.0, -1.0]  # the null space of DEFICIENT
POINTS = [[1.0, 2.0], [1.5, -0.3], [0.4, 0.9], [-1.0, -1.2], [-0.7, 0.2], [-2.0, 0.5]]
LABELS = [1.0, 1.0, 1.0, -1.0, -1.0, -1.0]  # the sign of the first coordinate


def like(u: Tensor, values: list[Any]) -> Tensor:
    return torch.tensor(values, dtype=u.dtype)


def logistic_loss(u: Tensor) -> Tensor:
    return torch.nn.functional.softplus(-like(u, LABELS) * (like(u, POINTS) @ u)).sum()


def tilted_least_squares(u: Tensor) -> Tensor:
    return (like(u, DEFICIENT) @ u - like(u, [1.0, -2.0])).square().sum() + 0.1 * like(u, TILT) @ u


NAMED = [
    Hopeless("a valley with a tilt", lambda u: 6.5 * (u[0] + u[1]) ** 2 - (u[0] - u[1]), lambda t: [t + 0.3, 0.4 - t]),
    Hopeless("rank-deficient least squares with a tilt", tilted_least_squares, lambda t: [0.1 - t, 0.2 - t, 0.3 + t]),
    Hopeless("linear", lambda u: u[0], lambda t: [-t]),
    Hopeless("cubic", lambda u: u[0] ** 3, lambda t: [-t]),
    Hopeless("minus a logarithm", lambda u: -u[0].log(), lambda t: [1 + t], inequality=lambda u: 1e-2 - u),
    Hopeless("tanh", lambda u: u[0].tanh(), lambda t: [-t]),
    Hopeless("exponential", lambda u: (-u[0]).exp(), lambda t: [t]),
    Hopeless("separable logistic regression", logistic_loss, lambda t: [t + 0.1, 0.1 + 0.0 * t]),
    Hopeless("reciprocal", lambda u: 1 / u[0], lambda t: [1 + t], inequality=lambda u: 1 - u),
]
OTHERS = [
    Hopeless("a steep valley with a slight tilt", lambda u: 1e5 * (u[0] + u[1]) ** 2 - 1e-3 * u[0], lambda t: [t, -t]),
    Hopeless("one entry square, one linear", lambda u: u[0] ** 2 - u[1], lambda t: [0.0 * t, t]),
    Hopeless("concave", lambda u: -(u[0] ** 2), lambda t: [t]),
    Hopeless("a saddle of squares", lambda u: u[0] ** 2 - 1e-3 * u[1] ** 2, lambda t: [0.0 * t, t]),
    Hopeless("minus the fourth power", lambda u: -(u[0] ** 4), lambda t: [t]),
    Hopeless("cubic and square", lambda u: u[0] ** 3 + u[1] ** 2, lambda t: [-t, 0.0 * t]),
    Hopeless("a monkey's saddle", lambda u: u[0] ** 3 - 3 * u[0] * u[1] ** 2, lambda t: [t, 2 * t]),
    Hopeless("minus a square root", lambda u: -u[0].sqrt(), lambda t: [1 + t], inequality=lambda u: 1e-2 - u),
    Hopeless("linear on a line", lambda u: u[0] + 2 * u[1], lambda t: [1 - t, -t], lambda u: u[0] - u[1] - 1),
    Hopeless("linear in a corner", lambda u: -u.sum(), lambda t: [t, t], inequality=lambda u: -u),
    Hopeless("arctangent", lambda u: u[0].atan(), lambda t: [-t]),
    Hopeless("exponential and square", lambda u: (-u[0]).exp() + (u[1] - 1) ** 2, lambda t: [t, 1 + 0.0 * t]),
    Hopeless("softplus", lambda u: torch.nn.functional.softplus(-u[0]), lambda t: [t]),
    Hopeless("a hill", lambda u: 1 / (1 + u[0] ** 2), lambda t: [t]),
    Hopeless("a crest", lambda u: (u[0] * u[1] - 1) ** 2 + u[0] ** 2, lambda t: [1 / (1 + t), 1 + t]),
    Hopeless("a hyperbola", lambda u: u[0], lambda t: [1 / (1 + t), 1 + t], lambda u: u[0] * u[1] - 1, lambda u: -u[0]),
    Hopeless("exponential on a line", lambda u: (-u.sum()).exp(), lambda t: [2 * t, t], lambda u: u[0] - 2 * u[1]),
]
TABLE = NAMED + OTHERS
