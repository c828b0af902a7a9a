"""Products of cones: what a user states, and the groups of cones that it consists of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import torch
from torch import Tensor

from .cone import Cone
from .exponential import Exponential
from .orthant import Orthant, Zero
from .power import Power
from .second_order import SecondOrder
from .semidefinite import Semidefinite


@dataclass(frozen=True)
class Cones:
    """The cones in which the slacks s = b - A u lie, in this order; the rows of A and b follow it.

    Attributes:
        zero: the number of equations, s = 0.
        nonnegative: the number of inequalities, s >= 0.
        second_order: the sizes of second-order cones: s_0 >= |(s_1, ..., s_d)|.
        semidefinite: the orders n of semidefinite cones. A matrix is its lower triangle, column by column, with the
            entries off the diagonal times sqrt(2): n (n + 1) / 2 rows.
        exponential: the number of exponential cones, three rows each: s_1 exp(s_0 / s_1) <= s_2, s_1 > 0.
        power: the exponents a, between 0 and 1, of power cones, three rows each: s_0^a s_1^(1 - a) >= |s_2|.

    Example:
        >>> from problems import Cones
        >>> Cones(zero=1, second_order=(3, 4), semidefinite=(2,)).rows
        11
    """

    zero: int = 0
    nonnegative: int = 0
    second_order: Sequence[int] = ()
    semidefinite: Sequence[int] = ()
    exponential: int = 0
    power: Sequence[float] = ()
    groups: tuple[Cone, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("zero", "nonnegative", "exponential"):
            _require_count(name, getattr(self, name), 0)
        for name in ("second_order", "semidefinite", "power"):
            values = getattr(self, name)
            if not isinstance(values, Sequence) or isinstance(values, str):
                raise TypeError(f"{name} must be a sequence with an entry for each cone, but is {values!r}.")
            object.__setattr__(self, name, tuple(values))
        for name in ("second_order", "semidefinite"):
            for value in getattr(self, name):
                _require_count(f"an entry of {name}", value, 1)
        for a in self.power:
            if not isinstance(a, float) or not 0 < a < 1:
                raise ValueError(f"an entry of power must be a number between 0 and 1, but is {a!r}.")
        object.__setattr__(self, "groups", tuple(self._groups()))

    def _groups(self) -> Iterator[Cone]:
        if self.zero:
            yield Zero(self.zero, 1)
        if self.nonnegative:
            yield Orthant(self.nonnegative, 1)
        for size, same in groupby(self.second_order):
            yield SecondOrder(len(list(same)), size)
        for n, same in groupby(self.semidefinite):
            yield Semidefinite(len(list(same)), n * (n + 1) // 2)
        if self.exponential:
            yield Exponential(self.exponential, 3)
        if self.power:
            yield Power(len(self.power), 3, tuple(self.power))

    @property
    def rows(self) -> int:
        """The number of rows of A and b."""
        return sum(cone.count * cone.size for cone in self.groups)

    @property
    def count(self) -> int:
        """The number of cones, each row of the first two kinds being one."""
        return sum(cone.count for cone in self.groups)

    @property
    def degree(self) -> int:
        """Of the barrier."""
        return sum(cone.degree for cone in self.groups)

    @property
    def symmetric(self) -> bool:
        """Whether all cones are symmetric."""
        return all(cone.symmetric for cone in self.groups)

    def parts(self, x: Tensor) -> list[Tensor]:  # (batch, rows, ...) -> (batch, count, size, ...)
        """The rows of each group."""
        sizes = [cone.count * cone.size for cone in self.groups]
        parts = zip(self.groups, x.split(sizes, 1) if sizes else (), strict=True)
        return [part.unflatten(1, (cone.count, cone.size)) for cone, part in parts]

    def of_cones(self, x: Tensor) -> list[Tensor]:  # (batch, cones) -> (batch, count)
        """The entries of each group, where there is one for each cone."""
        return list(x.split([cone.count for cone in self.groups], 1)) if self.groups else []

    def repeated(self, x: Tensor) -> Tensor:  # (batch, cones) -> (batch, rows)
        """The entry of a cone for each of its rows."""
        parts = zip(self.groups, self.of_cones(x), strict=True)
        return joined([part.unsqueeze(-1).expand(-1, -1, cone.size) for cone, part in parts], x)

    def each(self, function: Callable[..., Tensor], *xs: Tensor) -> Tensor:
        """A function (cone, *parts) -> (batch, count) of every group, as (batch, cones)."""
        columns = zip(self.groups, *(self.parts(x) for x in xs), strict=True)
        found = [function(*column) for column in columns]
        return torch.cat(found, 1) if found else xs[0].new_zeros(len(xs[0]), 0)

    def states(self, s: Tensor, z: Tensor) -> Tensor:  # (batch, cones)
        """On which kind of face each slack lies."""
        return self.each(lambda cone, *parts: cone.states(*parts), s, z)

    def active(self, states: Tensor) -> Tensor:  # (batch, rows)
        """Which rows of the constraints of these faces apply."""
        parts = zip(self.groups, self.of_cones(states), strict=True)
        return joined([cone.active(part) for cone, part in parts], states.bool())

    def is_weak(self, s: Tensor, z: Tensor, states: Tensor, small: Tensor) -> Tensor:  # (batch, cones)
        """Where strict complementarity fails."""
        columns = zip(self.groups, self.parts(s), self.parts(z), self.of_cones(states), strict=True)
        found = [cone.is_weak(x, y, kinds, small) for cone, x, y, kinds in columns]
        return torch.cat(found, 1) if found else states.bool()

    def unit(self, like: Tensor) -> Tensor:  # (rows,)
        """A point of the central path with mu = 1; zero for equations."""
        found = [cone.unit(like).reshape(-1) for cone in self.groups]
        return torch.cat(found) if found else like.new_zeros(0)


def joined(parts: Sequence[Tensor], like: Tensor) -> Tensor:  # (batch, count, size, ...) -> (batch, rows, ...)
    """The inverse of ``Cones.parts``."""
    return torch.cat([part.flatten(1, 2) for part in parts], 1) if parts else like[:, :0]


def _require_count(name: str, value: object, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} must be an int of at least {least}, but is {value!r}.")
