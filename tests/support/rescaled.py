"""The same problem in other units: of the objective, of every row of the constraints and of every entry of u.

    u = unknowns * w + shift,    minimise  objective * f(x, u) + constant,    equality * h = 0,    inequality * g <= 0

is the problem of x with the unknown w. The units are inputs, so that one batch holds a problem in many units at once.
Nothing that is computed in it cancels: what is right in one system of units is right in all of them, to rounding.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from math import prod
from typing import Any

import torch
from torch import Tensor

from declarative import DeclarativeNode
from tests.support.helpers import Case

Function = Callable[..., Tensor]


@dataclass(frozen=True)
class Units:
    """One system of units for each problem of a batch."""

    objective: Tensor  # (batch,)
    constant: Tensor  # (batch,)
    equality: Tensor  # (batch, p)
    inequality: Tensor  # (batch, q)
    unknowns: Tensor  # (batch, *shape of u)
    shift: Tensor  # (batch, *shape of u)

    def tensors(self) -> tuple[Tensor, ...]:
        return tuple(getattr(self, field.name) for field in dataclasses.fields(self))

    def to_u(self, w: Tensor) -> Tensor:
        return self.unknowns * w + self.shift

    def to_w(self, u: Tensor) -> Tensor:
        return (u - self.shift) / self.unknowns


COUNT = len(dataclasses.fields(Units))


def split(arguments: Sequence[Tensor]) -> tuple[tuple[Tensor, ...], Units]:
    """The inputs of the problem itself, and the units, which come last."""
    return tuple(arguments[:-COUNT]), Units(*arguments[-COUNT:])


def rescaled(function: Function, unit: Callable[[Units, Tensor], Tensor]) -> Function:
    """A function of (*xs, u) as one of (*xs, *units, w)."""

    def of_w(*arguments: Tensor) -> Tensor:
        xs, units = split(arguments[:-1])
        return unit(units, function(*xs, units.to_u(arguments[-1])))

    return of_w


def rescaled_node(
    objective: Function,
    equality: Function | None,
    inequality: Function | None,
    *,
    solver: Any = None,  # a closed form is one of (*xs), in the units of u
    start: Function | None = None,  # of (*xs) for one problem, in the units of u
    in_dims: Sequence[int | None] = (0,),
    **options: Any,
) -> DeclarativeNode:
    """A node of (*xs, *units) whose solution is w."""

    def in_units(formula: Function) -> Function:
        def of_w(*arguments: Tensor) -> Tensor:
            xs, units = split(arguments)
            return units.to_w(formula(*xs))

        return of_w

    return DeclarativeNode(
        rescaled(objective, lambda units, value: units.objective * value + units.constant),
        equality and rescaled(equality, lambda units, value: units.equality * value.reshape(-1)),
        inequality and rescaled(inequality, lambda units, value: units.inequality * value.reshape(-1)),
        solver=in_units(solver) if callable(solver) else solver,
        start=start and in_units(start),
        in_dims=(*in_dims, *(0,) * COUNT),
        **options,
    )


@dataclass(frozen=True)
class Change:
    """A system of units, whatever the problem: rows and unknowns take theirs in turn."""

    name: str
    objective: float = 1.0
    constant: float = 0.0  # in the new units of the objective
    rows: tuple[float, ...] = (1.0,)
    unknowns: tuple[float, ...] = (1.0,)

    def __str__(self) -> str:
        return self.name


ONE_AT_A_TIME = [
    Change("as given"),
    *(Change(f"f {unit:.0e}", objective=unit) for unit in (1e-8, 1e-4, 1e4, 1e8)),
    *(Change(f"rows {unit:.0e}", rows=(unit,)) for unit in (1e-8, 1e-4, 1e4, 1e8)),
    *(Change(f"u {unit:.0e}", unknowns=(unit,)) for unit in (1e-8, 1e-4, 1e4, 1e8)),
]
EACH_ITS_OWN = [
    Change("rows in turn", rows=(1e-8, 1e8, 1.0)),
    Change("u in turn", unknowns=(1e-8, 1e8)),
    Change("u in turn, the other way", unknowns=(1e8, 1e-8)),
    Change("u, three of them", unknowns=(1e4, 1.0, 1e-6)),
]
TOGETHER = [
    Change("f up, rows down, u in turn", 1e8, 0.0, (1e-8, 1e-3), (1e-8, 1e8)),
    Change("f down, rows up, u in turn", 1e-8, 0.0, (1e8, 1e2), (1e8, 1.0, 1e-8)),
    Change("everything up", 1e8, 0.0, (1e8,), (1e8,)),
    Change("everything down", 1e-8, 0.0, (1e-8,), (1e-8,)),
]
CONSTANTS = [
    *(Change(f"constant {constant:+.0e}", constant=constant) for constant in (1e8, -1e8, 1e4, -1e4)),
    Change("constant -1, f 1e-08", 1e-8, -1e8),
    Change("constant +1, f 1e-08, u in turn", 1e-8, 1e8, (1e8,), (1e-8, 1e8)),
]


def units_of(changes: Sequence[Change], shape: Sequence[int], p: int, q: int, dtype: torch.dtype) -> Units:
    """A batch with one problem for each change."""

    def taken(values: tuple[float, ...], count: int, skipped: int = 0) -> list[float]:
        return list(islice(cycle(values), skipped, skipped + count))

    def tensor(rows: list[Any]) -> Tensor:
        return torch.tensor(rows, dtype=dtype)

    m, size = prod(shape), len(changes)
    return Units(
        tensor([change.objective for change in changes]),
        tensor([change.objective * change.constant for change in changes]),
        tensor([taken(change.rows, p) for change in changes]).view(size, p),
        tensor([taken(change.rows, q, p) for change in changes]).view(size, q),
        tensor([taken(change.unknowns, m) for change in changes]).view(size, *shape),
        torch.zeros(size, *shape, dtype=dtype),
    )


@dataclass(frozen=True)
class RescaledCase:
    """A problem of the table of known solutions, each of its inputs in every one of several systems of units."""

    case: Case
    changes: tuple[Change, ...]
    problems: int = 2  # in each system of units

    def inputs(self, dtype: torch.dtype) -> tuple[tuple[Tensor, ...], Units]:
        """The inputs, one problem after the other in the first units, and so on."""
        xs = self.case.xs(self.problems, dtype)
        one = [x.detach() if dim is None else x.detach()[0] for x, dim in zip(xs, self._dims(), strict=True)]
        y = self.case.truth(*(x.detach() for x in xs))[0]
        p, q = (0 if f is None else f(*one, y).numel() for f in (self.case.equality, self.case.inequality))
        units = units_of(self.changes, y.shape, p, q, dtype)
        units = Units(*(unit.repeat_interleave(self.problems, 0) for unit in units.tensors()))
        return tuple(
            x if dim is None else x.repeat(len(self.changes), *(1,) * (x.dim() - 1)).detach().requires_grad_()
            for x, dim in zip(xs, self._dims(), strict=True)
        ), units

    def node(self, solver: Any, **options: Any) -> DeclarativeNode:
        case = self.case
        given = {"in_dims": self._dims(), **{k: v for k, v in case.options.items() if k != "in_dims"}, **options}
        return rescaled_node(
            case.objective,
            case.equality,
            case.inequality,
            solver=case.truth if solver == "closed form" else solver,
            start=None if solver == "closed form" else self._start,
            **given,
        )

    def names(self, rows: Tensor) -> list[str]:
        """In which units the problems of these rows are."""
        return list(dict.fromkeys(self.changes[row // self.problems].name for row in rows.tolist()))

    def _dims(self) -> tuple[int | None, ...]:
        given = self.case.options.get("in_dims", 0)
        return tuple(given) if isinstance(given, tuple) else (given,)

    def _start(self, *xs: Tensor) -> Tensor:
        start = self.case.start
        if callable(start):
            return start(*xs)
        if isinstance(start, Tensor):
            return start.to(xs[0])
        shape = (start,) if isinstance(start, int) else tuple(start)
        return 0.5 * (1.0 + torch.arange(prod(shape), dtype=xs[0].dtype)).cos().view(shape)  # irregular
