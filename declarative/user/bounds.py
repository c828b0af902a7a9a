"""Bounds on the unknowns: inequalities of one unknown each, of which more is known than of others."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor

from ..torchside import fixed, flatten_tree, match_tree
from .unknowns import Nesting

PUSH = 1e-2  # how far inside a start is moved: relative to the bound, and to the distance of the two bounds
WARM_PUSH = 1e-6  # the same for a start that is the solution of a problem nearby, multipliers included
PAIRS = (
    "bounds has a pair for each unknown, as SciPy's have. Here it is one pair, (lower, upper), of numbers for all "
    "unknowns or tensors of u's shape, such as bounds=(torch.zeros(3), torch.ones(3))."
)
ONE = "a number, a tensor of u's shape, None, or a function (*xs) of the inputs of one problem"


@dataclass(frozen=True)
class Side:
    """The lower (sign -1) or the upper (sign 1) bound: sign * (u - bound) <= 0.

    Attributes:
        sign: which side.
        value: a number, a tensor, or a function of the inputs of one problem.
        places: which entries of u are bounded, if it is not all of them.
        nesting: how several unknowns are nested.
        passed: how many inputs a function takes, those that the user passes; tensors of modules come after these.
    """

    sign: int
    value: Any
    places: Tensor | None = None
    nesting: Nesting | None = None
    passed: int | None = None

    @property
    def name(self) -> str:
        return "lower" if self.sign < 0 else "upper"

    def entries(self, xs: Sequence[Tensor], shape: torch.Size, like: Tensor) -> Tensor:  # (m,)
        """The bound of every entry of u, for one problem."""
        value = self.value(*xs[: self.passed]) if callable(self.value) else self.value
        if self.nesting is not None:
            return self._joined(value, like)
        if not isinstance(value, Tensor):
            value = like.new_tensor(self._number(value))
        try:
            return value.to(like.dtype).expand(shape).reshape(-1)
        except RuntimeError:
            raise ValueError(
                f"the {self.name} bound has shape {tuple(value.shape)}, which does not fit u of shape {tuple(shape)}."
            ) from None

    def _number(self, value: object) -> float:
        if value is None:
            return self.sign * math.inf
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise TypeError(_misfit(self, value))
        return float(value)

    def _joined(self, value: object, like: Tensor) -> Tensor:
        assert self.nesting is not None
        nesting = self.nesting
        try:
            parts = match_tree(value, nesting.tree)
        except ValueError:
            if isinstance(value, int | float) or value is None:
                return like.new_full((nesting.size,), self._number(value))
            raise ValueError(
                f"the {self.name} bound must be a number, or nested like the unknowns, {nesting}."
            ) from None
        plain = dataclasses.replace(self, nesting=None)
        rows = [
            dataclasses.replace(plain, value=part).entries((), shape, like)
            for part, shape in zip(parts, nesting.shapes, strict=True)
        ]
        return torch.cat(rows)

    def resolved(self, shape: torch.Size, device: torch.device) -> Side | None:
        """The same for u of this shape: which entries are bounded; None if no entry is.

        Raises:
            ValueError: the bound does not fit u, or is NaN.
        """
        if callable(self.value):
            return self
        like = torch.zeros((), dtype=torch.float64, device=device)
        value = self.entries((), shape, like)
        if bool(value.isnan().any()) or bool((value == -self.sign * torch.inf).any()):
            raise ValueError(
                f"the {self.name} bound has an entry that no number satisfies: NaN, or the wrong infinity."
            )
        places = fixed(value.isfinite().nonzero().flatten())
        if not len(places):
            return None
        own = value.clone(memory_format=torch.contiguous_format)  # which is filled anew if a tensor changes
        value = own if self.tensors() else fixed(own)
        return Side(self.sign, value, None if len(places) == len(value) else places)

    def tensors(self) -> list[Tensor]:
        """The tensors that a constant bound is made of."""
        return [] if callable(self.value) else [x for x in flatten_tree(self.value)[0] if isinstance(x, Tensor)]

    def limit(self, xs: Sequence[Tensor], in_dims: Sequence[int | None], u: Tensor) -> Tensor:  # (size, *shape)
        """The bound of every entry of u, for a batch."""
        shape = u.shape[1:]
        if not callable(self.value):
            return self.entries((), torch.Size([shape.numel()]), u).view(shape).expand_as(u)
        if all(dim is None for dim in in_dims):
            return self.entries(xs, shape, u).view(shape).expand_as(u)
        values: Tensor = torch.vmap(lambda *xs: self.entries(xs, shape, u), in_dims=tuple(in_dims))(*xs)
        return values.view(u.shape)

    def count(self, m: int) -> int:
        """How many entries of u are bounded."""
        return m if self.places is None else len(self.places)

    def rows(self, xs: Sequence[Tensor], u: Tensor, shape: torch.Size) -> Tensor:
        """sign * (u - bound) for one problem, u flat."""
        excess = self.sign * (u - self.entries(xs, shape if callable(self.value) else u.shape, u))
        return excess if self.places is None else excess.index_select(0, self.places)

    def spread(self, rows: Tensor, m: int) -> Tensor:  # (batch, count) -> (batch, m)
        """What belongs to bounds as what belongs to entries of u; zero where there is no bound."""
        if self.places is None:
            return rows
        return rows.new_zeros(len(rows), m).index_copy(1, self.places, rows)


@dataclass(frozen=True)
class Bounds:
    """Bounds on the unknowns of one problem, one side or both."""

    sides: tuple[Side, ...]
    known: dict[Hashable, Bounds | None] = field(default_factory=dict, compare=False, repr=False)  # a cache, by shape
    seen: list[Tensor] = field(default_factory=list, compare=False, repr=False)  # what constant bounds were, then

    @classmethod
    def of(cls, bounds: object) -> Bounds | None:
        """What the user has given: ``(lower, upper)``.

        Raises:
            TypeError, ValueError: that cannot be bounds.
        """
        if bounds is None:
            return None
        pairs = [isinstance(one, tuple | list) and len(one) == 2 for one in bounds] if isinstance(bounds, list) else []
        if pairs and all(pairs):
            raise TypeError(PAIRS)
        if not isinstance(bounds, tuple | list) or len(bounds) != 2:
            raise TypeError(f"bounds must be a pair (lower, upper), each {ONE}, but is {bounds!r}.")
        sides = [Side(sign, value) for sign, value in zip((-1, 1), bounds, strict=True) if value is not None]
        for side in sides:
            _check(side)
        return cls(tuple(sides)) if sides else None

    def bound(self, nesting: Nesting | None, passed: int) -> Bounds:
        """For several unknowns, and for calls with the tensors of modules."""
        sides = tuple(dataclasses.replace(side, nesting=nesting, passed=passed) for side in self.sides)
        return dataclasses.replace(self, sides=sides)

    def resolved(self, shape: torch.Size, device: torch.device) -> Bounds | None:
        """The same for u of this shape."""
        key = (shape, device, *(side.nesting for side in self.sides))
        self._follow()
        if key not in self.known:
            self.known[key] = self._resolved(shape, device)
        return self.known[key]

    def _follow(self) -> None:
        """Bring what is known of constant bounds to the values that their tensors have now.

        Raises:
            ValueError: another entry is bounded now, so that there are other constraints.
        """
        now = [part for side in self.sides for part in side.tensors()]
        if not self.seen:
            self.seen[:] = [x.clone() for x in now]
        if all(map(torch.equal, self.seen, now)):
            return
        for key, before in self.known.items():
            shape, device, *nestings = cast("tuple[Any, ...]", key)
            sides = zip(self.sides, nestings, strict=True)
            one = Bounds(tuple(dataclasses.replace(side, nesting=nesting) for side, nesting in sides))
            if not _copied(before, one._resolved(shape, device)):
                raise ValueError(
                    "a bound has become finite, or infinite, since the node was first called, so that there are other "
                    "constraints: make a new node."
                )
        self.seen[:] = [x.clone() for x in now]

    def _resolved(self, shape: torch.Size, device: torch.device) -> Bounds | None:
        sides = tuple(one for side in self.sides if (one := side.resolved(shape, device)) is not None)
        constant = [side.value for side in sides if not callable(side.value)]
        if len(constant) == 2 and bool((constant[0] > constant[1]).any()):
            raise ValueError("a lower bound exceeds its upper bound.")
        return Bounds(sides) if sides else None

    def count(self, m: int) -> int:
        """How many bounds there are."""
        return sum(side.count(m) for side in self.sides)

    def rows(self, xs: Sequence[Tensor], u: Tensor, shape: torch.Size) -> Tensor:
        """lower - u and u - upper for one problem, u flat; not positive at a solution."""
        return torch.cat([side.rows(xs, u, shape) for side in self.sides])

    def multipliers(self, rows: Tensor, m: int) -> tuple[Tensor, Tensor]:  # (batch, count) -> (batch, m) twice
        """Those of the lower and of the upper bounds."""
        found = {-1: rows.new_zeros(len(rows), m), 1: rows.new_zeros(len(rows), m)}
        parts = rows.split([side.count(m) for side in self.sides], -1)
        for side, part in zip(self.sides, parts, strict=True):
            found[side.sign] = side.spread(part, m)
        return found[-1], found[1]

    def clamp(self, xs: Sequence[Tensor], in_dims: Sequence[int | None], u: Tensor) -> Tensor:  # (size, *shape)
        """Solutions without the rounding errors by which they miss a bound."""
        lower, upper = self._limits(xs, in_dims, u)
        return torch.minimum(torch.maximum(u, lower), upper)

    def inside(
        self, xs: Sequence[Tensor], in_dims: Sequence[int | None], u: Tensor, push: float = PUSH
    ) -> Tensor:  # (size, *shape)
        """Starts moved strictly inside the bounds."""
        lower, upper = self._limits(xs, in_dims, u)
        room = push * (upper - lower).clamp(min=0.0)
        above = lower + torch.minimum(push * lower.abs().clamp(min=1.0), room)
        below = upper - torch.minimum(push * upper.abs().clamp(min=1.0), room)
        u = torch.where(lower.isfinite(), torch.maximum(u, above), u)
        return torch.where(upper.isfinite(), torch.minimum(u, below), u)

    def _limits(self, xs: Sequence[Tensor], in_dims: Sequence[int | None], u: Tensor) -> tuple[Tensor, Tensor]:
        """The lower and the upper bound of every entry of u, infinite where there is none."""
        limits = {sign: u.new_full((), sign * torch.inf).expand_as(u) for sign in (-1, 1)}
        for side in self.sides:
            limits[side.sign] = side.limit(xs, in_dims, u)
        return limits[-1], limits[1]


def _copied(before: Bounds | None, now: Bounds | None) -> bool:
    """Fill bounds with other values, in place, which recordings read; whether the same entries are bounded."""
    if before is None or now is None:
        return before is now
    if len(before.sides) != len(now.sides):
        return False
    for one, other in zip(before.sides, now.sides, strict=True):
        if callable(one.value):
            continue
        if not torch.equal(one.value.isfinite(), other.value.isfinite()):
            return False
        one.value.copy_(other.value)
    return True


def _check(side: Side) -> None:
    value = side.value
    if isinstance(value, Tensor) and value.requires_grad:
        raise ValueError(
            f"the {side.name} bound requires a gradient, which would be lost: make it an input of the node, and the "
            f"bound a function of it, such as bounds=(lambda x, low: low, None)."
        )
    if not (callable(value) or isinstance(value, Tensor | int | float | dict | tuple)) or isinstance(value, bool):
        raise TypeError(_misfit(side, value))


def _misfit(side: Side, value: object) -> str:
    """What is wrong with a bound that is none of what it may be."""
    remedy = "" if isinstance(value, str | bool) else " torch.tensor(...) makes a tensor of numbers."
    return f"the {side.name} bound must be {ONE}, but is {value!r}.{remedy}"
