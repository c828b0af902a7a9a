"""Where each problem of a batch is, and its model there: values and derivatives in scaled units."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from ...expansion import Expansion
from ...linear import Layout, Pair, total
from ...optimality import largest
from ...problem import Batch
from .parameters import FARTHEST

DERIVATIVES = ("objective", "gradient", "values", "jacobian", "hessian")  # what a model adds to a state
MOVED = ("u", "s", "y", "shift", "filter", "stored")  # what a step changes in a state
LOWERED = ("barrier", "filter", "stored")  # what a lower barrier changes in it


class Rows:
    """A dataclass of tensors with one row per problem, and perhaps of what all of these have in common."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    def tensors(self) -> dict[str, Tensor]:
        """What each problem has a row of."""
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {name: x for name, x in fields.items() if isinstance(x, Tensor)}

    def take(self, rows: Tensor) -> Self:
        """The problems at these positions."""
        return self._with({name: x[rows] for name, x in self.tensors().items()})

    def put(self, rows: Tensor, part: Self) -> Self:
        """The same, with these problems replaced."""
        return self._with({name: x.index_copy(0, rows, getattr(part, name)) for name, x in self.tensors().items()})

    def where(self, chosen: Tensor, other: Self) -> Self:
        """Itself where chosen, the other elsewhere."""
        mixed = {}
        for name, x in self.tensors().items():
            y = getattr(other, name)
            mixed[name] = x if x is y else torch.where(chosen.view(-1, *(1,) * (x.dim() - 1)), x, y)
        return self._with(mixed)

    def _with(self, tensors: dict[str, Tensor]) -> Self:
        return type(self)(**{name: tensors.get(name, getattr(self, name)) for name in self.__dataclass_fields__})


@dataclass(frozen=True)
class Scales(Rows):
    """The units that a problem is solved in."""

    objective: Tensor  # (batch,)
    rows: Tensor  # (batch, k)
    start: Tensor  # (batch, m)


@dataclass(frozen=True)
class State(Rows):
    """Where each problem is."""

    u: Tensor  # (batch, m)
    s: Tensor  # (batch, q)
    y: Tensor  # (batch, k)
    barrier: Tensor  # (batch,)
    shift: Tensor  # the regularisation of H, relative to its diagonal, (batch,)
    weight: Tensor  # of A'A, which makes H definite and changes nothing in the step, (batch,)
    filter: Tensor  # pairs (theta, phi) that a step has to improve on, (batch, FILTER, 2)
    stored: Tensor  # how many have been stored there, (batch,)
    theta_max: Tensor  # the largest theta that is allowed at all, (batch,)
    last_barrier: Tensor  # the one to end with, (batch, 1); (batch, 0): as small as rounding errors allow


@dataclass(frozen=True)
class Model(Rows):
    """The problem's values and derivatives at the current point."""

    objective: Tensor  # (batch,)
    gradient: Tensor  # of f, (batch, m)
    values: Tensor  # c, (batch, k)
    jacobian: Tensor  # of c, in the form that the layout says
    hessian: Tensor  # of L, likewise
    u: Tensor  # (batch, m)
    s: Tensor  # (batch, q)
    y: Tensor  # (batch, k)
    layout: Layout

    @classmethod
    def of(cls, derivatives: Iterable[Tensor], u: Tensor, s: Tensor, y: Tensor, layout: Layout) -> Model:
        """The model with these values and derivatives, in the order of ``DERIVATIVES``."""
        parts: dict[str, Any] = dict(zip(DERIVATIVES, derivatives, strict=True))
        return cls(**parts, u=u, s=s, y=y, layout=layout)

    @property
    def p(self) -> int:
        """The number of equalities."""
        return self.y.shape[-1] - self.s.shape[-1]

    @cached_property
    def slope(self) -> Tensor:  # (batch, m)
        """D_U L."""
        return self.gradient + self.layout.jacobian.multiply_transposed(self.jacobian, self.y)

    @cached_property
    def diagonal_size(self) -> Tensor:  # (batch, m)
        """The size of H's diagonal, entry by entry; where it vanishes, a part of the largest or of the slope."""
        diagonal = self.layout.hessian.diagonal(self.hessian).abs()
        least = torch.maximum(1e-6 * diagonal.amax(-1, keepdim=True), 1e-3 * self.slope.abs().amax(-1, keepdim=True))
        return torch.maximum(diagonal, least).clamp(min=1e-8)

    @cached_property
    def residual(self) -> Tensor:  # (batch, k)
        """[h; g + s]."""
        return residual_of(self.values, self.s)

    @cached_property
    def violation(self) -> Tensor:  # (batch, k)
        """h, and g where it is positive."""
        return violation_of(self.values, self.p)

    @cached_property
    def stationarity(self) -> Tensor:
        """|D_U L| relative to the forces that balance in it."""
        force = largest(self.layout.jacobian.multiply_transposed(self.jacobian.abs(), self.y.abs()))
        return largest(self.slope.abs()) / torch.maximum(largest(self.gradient.abs()), force).clamp(min=1.0)

    @cached_property
    def y_g(self) -> Tensor:  # (batch, q)
        """The multipliers of inequalities."""
        return self.y[:, self.p :]

    @cached_property
    def dual(self) -> Tensor:  # (batch, k)
        """What relaxes each constraint in a step: [0; s / y_g]."""
        none = torch.zeros_like(self.y[:, : self.p])
        return torch.cat([none, self.s / self.y_g], -1) if self.s.shape[-1] else none

    @cached_property
    def large(self) -> Tensor:
        """What products of slacks and multipliers are relative to: 1, or more if multipliers are large."""
        return (largest(self.y_g) / 100).clamp(min=1.0)

    @cached_property
    def span(self) -> Tensor:  # (batch, q)
        """The size of the terms of each inequality: its slack is small or large beside that."""
        return self.layout.jacobian.multiply(self.jacobian.abs(), self.u.abs())[:, self.p :].clamp(min=1.0)

    @cached_property
    def gap(self) -> Tensor:
        """The largest s y, relative to large y and to the terms of an inequality."""
        return largest(self.s * self.y_g / self.span) / self.large

    def finite(self) -> Tensor:
        """Whether all values and first and second derivatives are numbers: if one is not, neither is their sum."""
        small = self.objective + self.gradient.sum(-1) + self.values.sum(-1)
        return (small + total(self.jacobian) + total(self.hessian)).isfinite()


@dataclass(frozen=True)
class Step(Rows):
    """A change of u, s and y."""

    u: Tensor
    s: Tensor
    y: Tensor


def violation_of(values: Tensor, p: int) -> Tensor:  # (batch, k)
    """h, and g where it is positive."""
    return torch.cat([values[:, :p], values[:, p:].clamp(min=0.0)], -1)


def residual_of(values: Tensor, s: Tensor) -> Tensor:  # (batch, k)
    """[h; g + s]."""
    p = values.shape[-1] - s.shape[-1]
    return torch.cat([values[:, :p], values[:, p:] + s], -1) if s.shape[-1] else values


def model_at(batch: Batch, scales: Scales, u: Tensor, s: Tensor, y: Tensor) -> Model:
    """The model at a point."""
    stacked = -y * scales.rows / scales.objective.unsqueeze(-1)  # in the convention of the batch, L = f - stacked' c
    here = batch.expand(u, stacked)
    slope = here.gradient + batch.layout.jacobian.multiply_transposed(here.jacobian, stacked)
    return scaled_model(batch.layout, scales, dataclasses.replace(here, gradient=slope), u, s, y)


def scaled_model(layout: Layout, scales: Scales, here: Expansion, u: Tensor, s: Tensor, y: Tensor) -> Model:
    """The model from derivatives, the gradient that of f alone."""
    return Model(
        here.objective * scales.objective,
        here.gradient * scales.objective.unsqueeze(-1),
        scaled_values(here.values, scales),
        layout.jacobian.scale_rows(here.jacobian, scales.rows),
        here.curvature * scales.objective.view(-1, *(1,) * (here.curvature.dim() - 1)),
        *(u, s, y, layout),
    )


def scaled_values(values: Tensor, scales: Scales) -> Tensor:
    """Constraint values in scaled units; a bound at infinity is merely far away."""
    return values.clamp(min=-FARTHEST) * scales.rows


def reset_slacks(state: State, values: Tensor) -> State:
    """The state with slacks no smaller than the room there is: both the violation and the barrier are lower then."""
    if not state.s.shape[-1]:
        return state
    p = values.shape[-1] - state.s.shape[-1]
    s = torch.maximum(state.s, -values[:, p:]).where(values[:, p:].isfinite(), state.s)
    return dataclasses.replace(state, s=s)


def values_at(batch: Batch, scales: Scales, u: Tensor) -> Pair:
    """f and c, scaled."""
    objective, values = batch.values(u)
    return objective * scales.objective, scaled_values(values, scales)
