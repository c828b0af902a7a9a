"""One nonlinear programme with what is known about it, and how the library is given it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from math import inf
from pathlib import Path

import torch
from torch import Tensor

from declarative import DeclarativeNode

Rows = Callable[[Tensor], Sequence[Tensor]]
SOLUTIONS = Path(__file__).with_name("solutions.json")


@dataclass(frozen=True)
class Programme:
    """Minimise objective(u) such that equality(u) = 0, inequality(u) <= 0 and lower <= u <= upper.

    ``optimum`` is the published optimal value. Where the publication was wrong or rounded, it is the value on which two
    independent solvers agree. ``others`` are the values at further local minima: right answers, though not the best.
    A programme is ``regular`` if its constraints qualify at the solution: multipliers exist and are bounded. Values are
    compared in units of ``unit``, or of the optimum where that is larger.
    """

    name: str
    objective: Callable[[Tensor], Tensor]
    start: Sequence[float]
    optimum: float
    equality: Rows | None = None
    inequality: Rows | None = None
    lower: float | Sequence[float] | None = None
    upper: float | Sequence[float] | None = None
    others: Sequence[float] = ()
    regular: bool = True
    unit: float = 1.0

    @cached_property
    def bounds(self) -> tuple[Tensor, Tensor] | None:
        """The lower and upper bounds, infinite where there is none; None if there is none at all."""
        if self.lower is None and self.upper is None:
            return None
        return self._bound(self.lower, -inf), self._bound(self.upper, inf)

    def _bound(self, bound: float | Sequence[float] | None, otherwise: float) -> Tensor:
        values = torch.tensor(otherwise if bound is None else bound, dtype=torch.float64)
        return values.expand(len(self.start)).contiguous()

    @property
    def category(self) -> str:
        if self.equality is not None:
            return "equality" if self.inequality is None and self.bounds is None else "mixed"
        if self.inequality is not None:
            return "inequality"
        return "unconstrained" if self.bounds is None else "bounds"

    @property
    def solutions(self) -> list[Tensor]:
        """Points with the optimal value and with each of the other values, from independent solvers."""
        return [numbers(point) for point in _solutions().get(self.name, [])]

    def inequality_rows(self, u: Tensor) -> Tensor:
        """The inequalities, and after them the bounds, as rows that must not be positive."""
        rows = [] if self.inequality is None else list(self.inequality(u))
        return stack([*rows, *self._bound_rows(u)], u)

    def _bound_rows(self, u: Tensor) -> list[Tensor]:
        return [sign * (u[where] - bound.to(u)) for sign, where, bound in self._finite_bounds]

    @cached_property
    def _finite_bounds(self) -> list[tuple[float, Tensor, Tensor]]:
        """Sign, places and values of the lower bounds and of the upper ones."""
        signed = [] if self.bounds is None else zip((-1.0, 1.0), self.bounds, strict=True)
        places = [(sign, bound.isfinite().nonzero().flatten(), bound) for sign, bound in signed]
        return [(sign, where, bound[where]) for sign, where, bound in places if len(where)]

    def equality_rows(self, u: Tensor) -> Tensor:
        return stack([] if self.equality is None else self.equality(u), u)

    def violation(self, u: Tensor) -> float:
        """By how much the worst constraint is violated, in units of the terms that add up to it, or of 1."""

        def rows(u: Tensor) -> Tensor:
            return torch.cat([self.equality_rows(u), -self.equality_rows(u), self.inequality_rows(u)])

        size = torch.func.jacrev(rows)(u).abs() @ u.abs()
        return (rows(u) / size.clamp(min=1)).clamp(min=0).max().item() if len(size) else 0.0

    def excess(self, value: float, over: float | None = None) -> float:
        """How far a value is above the optimum, or above another value, relative to it."""
        right = self.optimum if over is None else over
        return (value - right) / max(self.unit, abs(right))

    def is_right(self, value: float) -> bool:
        """Whether a value is that of the solution or of another local minimum."""
        return any(abs(self.excess(value, right)) <= self.tolerance for right in (self.optimum, *self.others))

    @property
    def tolerance(self) -> float:
        """Where the constraints do not qualify, the value changes like a root of the violation."""
        return 1e-6 if self.regular else 1e-3

    def node(self, **options) -> DeclarativeNode:
        """The programme as a layer whose input is a factor on the objective, 1 in the published problem."""
        bounded = self.inequality is not None or self.bounds is not None
        return DeclarativeNode(
            lambda x, u: x * self.objective(u),
            None if self.equality is None else lambda _, u: self.equality_rows(u),
            (lambda _, u: self.inequality_rows(u)) if bounded else None,
            **{"start": torch.tensor(self.start, dtype=torch.float64), **options},
        )


def componentwise(
    name: str,
    objective: Callable[..., Tensor],
    start: Sequence[float],
    optimum: float,
    equality: Callable[..., Sequence[Tensor]] | None = None,
    inequality: Callable[..., Sequence[Tensor]] | None = None,
    **more,
) -> Programme:
    """A programme whose functions are written with one argument for each component of u, as in print."""

    def of_vector(function):
        return None if function is None else lambda u: function(*u)

    return Programme(name, of_vector(objective), start, optimum, of_vector(equality), of_vector(inequality), **more)


def stack(rows: Sequence[Tensor], u: Tensor) -> Tensor:
    """Numbers and vectors one after the other in one vector."""
    return torch.cat([row.reshape(-1) for row in rows]) if rows else u.new_zeros(0)


def numbers(values) -> Tensor:
    """Data of a programme, in double precision."""
    return torch.tensor(values, dtype=torch.float64)


def readings(text: str) -> Tensor:
    """Data as they are printed."""
    return numbers([float(word) for word in text.split()])


@cache
def _solutions() -> dict[str, list[list[float]]]:
    return json.loads(SOLUTIONS.read_text())
