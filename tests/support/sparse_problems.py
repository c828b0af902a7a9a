"""Problems with a structure that is known, and ways to look at all of their derivatives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from declarative.linear.sparse import Entries, Pattern, find_pattern

DOUBLE = torch.float64


@dataclass(frozen=True)
class Structured:
    """minimise objective subject to constraints, with derivatives that are not zero exactly where stated."""

    name: str
    m: int
    objective: Callable[[Tensor, Tensor], Tensor]
    constraints: Callable[[Tensor, Tensor], Tensor] | None
    hessian: np.ndarray  # (m, m)
    jacobian: np.ndarray  # (k, m)
    inputs: int = 4

    @property
    def k(self) -> int:
        return len(self.jacobian)

    def pattern(self) -> Pattern:
        return find_pattern(self.objective, self.constraints, [self.x(0)], torch.zeros(self.m, dtype=DOUBLE))

    def x(self, seed: int) -> Tensor:
        return torch.randn(self.inputs, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)

    def point(self, seed: int) -> tuple[Tensor, Tensor]:
        """u and multipliers."""
        generator = torch.Generator().manual_seed(100 + seed)
        return torch.randn(self.m, generator=generator, dtype=DOUBLE), torch.randn(
            self.k, generator=generator, dtype=DOUBLE
        )

    def slope(self, x: Tensor, u: Tensor, multipliers: Tensor) -> Tensor:
        return torch.func.grad(self.lagrangian, 1)(x, u, multipliers)

    def lagrangian(self, x: Tensor, u: Tensor, multipliers: Tensor) -> Tensor:
        value = self.objective(x, u)
        return value if self.constraints is None else value - multipliers @ self.rows(x, u)

    def rows(self, x: Tensor, u: Tensor) -> Tensor:
        return u.new_zeros(0) if self.constraints is None else self.constraints(x, u).reshape(-1)

    def dense(self, seed: int) -> tuple[Tensor, Tensor]:
        """H and A at a point, by dense autodiff."""
        x, (u, multipliers) = self.x(seed), self.point(seed)
        hessian = torch.func.jacrev(lambda u: self.slope(x, u, multipliers))(u)
        jacobian = torch.func.jacrev(lambda u: self.rows(x, u))(u) if self.k else u.new_zeros(0, self.m)
        return hessian, jacobian

    def __str__(self) -> str:
        return self.name


def symmetric(entries: Entries) -> np.ndarray:
    """The whole matrix of ones, from its lower triangle."""
    below = entries.csr.toarray()
    return below | below.T


def _band(size: int, *offsets: int) -> np.ndarray:
    return sum(np.eye(size, k=offset, dtype=bool) for offset in offsets)


def _grid_graph(n: int) -> np.ndarray:
    line = _band(n, -1, 0, 1)
    return np.kron(np.eye(n, dtype=bool), line) | np.kron(line, np.eye(n, dtype=bool))


def _smooth(x: Tensor, u: Tensor, n: int) -> Tensor:
    image = u.view(n, n)
    return (image.diff(dim=0) ** 4).sum() + (image.diff(dim=1) ** 4).sum() + (u * x[0]).square().sum()


def _block(size: int, width: int) -> np.ndarray:
    return np.kron(np.eye(size // width, dtype=bool), np.ones((width, width), dtype=bool))


def _pendulum(steps: int) -> Structured:
    h = 0.05

    def objective(_: Tensor, u: Tensor) -> Tensor:
        angle, speed, push = u.view(steps, 3).unbind(-1)
        return (angle.square() + speed.square() + 0.1 * push.square()).sum()

    def constraints(x: Tensor, u: Tensor) -> Tensor:
        angle, speed, push = u.view(steps, 3).unbind(-1)
        before, slower = torch.cat([x[:1], angle[:-1]]), torch.cat([x[1:2], speed[:-1]])
        return torch.cat([angle - before - h * slower, speed - slower - h * (9.81 * before.sin() + push)])

    jacobian = np.zeros((2 * steps, 3 * steps), dtype=bool)
    for t in range(steps):
        jacobian[t, 3 * t] = jacobian[steps + t, 3 * t + 1] = jacobian[steps + t, 3 * t + 2] = True
        if t:
            jacobian[[t, t, steps + t, steps + t], [3 * t - 3, 3 * t - 2, 3 * t - 3, 3 * t - 2]] = True
    return Structured(f"pendulum {steps}", 3 * steps, objective, constraints, np.eye(3 * steps, dtype=bool), jacobian)


def _arrow(m: int) -> np.ndarray:
    matrix = np.eye(m, dtype=bool)
    matrix[-1] = matrix[:, -1] = True
    return matrix


def _with_rows(*rows: np.ndarray) -> np.ndarray:
    return np.concatenate([np.atleast_2d(row) for row in rows])


def _part(m: int, *which: int) -> np.ndarray:
    row = np.zeros(m, dtype=bool)
    row[list(which)] = True
    return row


def _two_parts() -> np.ndarray:
    """A chain of six and one of four, the last of which stands alone."""
    first, second = _band(6, -1, 0, 1), _band(4, -1, 0, 1)
    second[3, 2] = second[2, 3] = False
    return np.block([[first, np.zeros((6, 4), dtype=bool)], [np.zeros((4, 6), dtype=bool), second]])


PROBLEMS = [
    Structured(
        "banded",
        12,
        lambda x, u: ((u[1:] - u[:-1].square()).square() + (x[0] - u[:-1]).square()).sum() + u[-1].square(),
        lambda x, u: u[2:] * u[:-2] - x[1],
        _band(12, -2, -1, 0, 1, 2),
        (np.eye(12, dtype=bool) | np.eye(12, k=2, dtype=bool))[:10],
    ),
    Structured(
        "arrow",
        9,
        lambda x, u: (u[:-1] * u[-1]).square().sum() + x[0] * u.square().sum(),
        None,
        _arrow(9),
        np.zeros((0, 9), dtype=bool),
    ),
    Structured(
        "blocks",
        12,
        lambda _, u: torch.linalg.vector_norm(u.view(4, 3), dim=1).sum() + u.view(4, 3).prod(1).sum(),
        lambda x, u: u.view(4, 3).sum(1) - x,
        _block(12, 3),
        np.repeat(np.eye(4, dtype=bool), 3, 1),
    ),
    Structured(
        "grid",
        16,
        lambda x, u: _smooth(x, u, 4),
        lambda _, u: u.view(4, 4).cos().sum(1),
        _grid_graph(4),
        np.repeat(np.eye(4, dtype=bool), 4, 1),
    ),
    Structured(
        "empty rows",
        6,
        lambda x, u: u[0].exp() + (x[0] * u).sum(),
        lambda x, u: torch.stack([u[0] * u[1], x[1], x[2] * u[2]]),
        np.outer([1, 1, 0, 0, 0, 0], [1, 1, 0, 0, 0, 0]).astype(bool) & ~np.diag([0, 1, 0, 0, 0, 0]).astype(bool),
        _with_rows(_part(6, 0, 1), _part(6), _part(6, 2)),
    ),
    Structured(
        "dense row",
        20,
        lambda x, u: (u * u.roll(1))[1:].sum() + x[0] * u.pow(4).sum(),
        lambda x, u: torch.cat([u.sum().reshape(1) - x[0], u[1:] - 2 * u[:-1], u[::2].sin()]),
        _band(20, -1, 0, 1),
        _with_rows(
            np.ones(20, dtype=bool),
            (np.eye(20, dtype=bool) | np.eye(20, k=1, dtype=bool))[:19],
            np.eye(20, dtype=bool)[::2],
        ),
    ),
    Structured(
        "disconnected",
        10,
        lambda x, u: u[:6].diff().pow(4).sum() + u[6:9].diff().pow(4).sum() + u[9].cosh() * x[0],
        lambda x, u: torch.stack([u[:3].sum(), u[6] * x[1]]),
        _two_parts(),
        _with_rows(_part(10, 0, 1, 2), _part(10, 6)),
    ),
    _pendulum(4),
    _pendulum(30),
]
