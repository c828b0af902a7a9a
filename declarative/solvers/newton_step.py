"""One step of the batched Newton method: everything that happens if all goes well, without a decision by value.

Notation, here and in ``newton.py``: L = f + y' c with c = [h; g], slacks s > 0 for the inequalities, so that the
constraint residual is [h; g + s] and the multipliers y_g of inequalities are positive. Everything is in scaled units,
in which the gradients of objective and constraints have size 1 at the start.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from ..conditions import largest
from ..linear import DenseLayout, KktSolution, Layout, Pair, StepMatrix, or_one, total
from ..problem import Batch, Expansion

BOUNDARY = (0.99, 0.999)  # the fraction of the way to s = 0 that a step may go, at least and at most
LOWERINGS = 3  # of the barrier at once
CENTRED = 1e-3  # of the last barrier, if it is not zero: how far slack times multiplier may be from it
FILTER = 24  # points that a step has to improve on, at the most
BACKTRACKS = 30  # how often a step is shortened
FIRST_SHIFT = 1e-2  # the first regularisation of H, relative to its diagonal
MORE_SHIFT = 8.0  # the factor by which it grows
LESS_SHIFT = 0.1  # the factor by which the regularisation of H becomes smaller, at most
LEAST_SHIFT = 1e-8  # below that, none is needed any more
STRAY = 1e-2  # a point that is violated by more is far from feasible
REACH = 3.0  # sizes of u: no step along a direction of negative curvature is longer
TINY_SHIFT = 1e-12  # makes flat definite
LEAST = 1e-8  # of the largest theta that is allowed: below that, progress is asked of the objective
# The constants of the filter method of Wächter and Biegler (2006), under their names there.
GAMMA_THETA, GAMMA_PHI, ETA, S_THETA, S_PHI, DELTA = 1e-5, 1e-8, 1e-8, 1.1, 2.3, 1.0
MODEL = ("objective", "gradient", "values", "jacobian", "hessian")  # what a model adds to a state
LOWERED = ("barrier", "filter", "stored")  # what a lower barrier changes in it

Tolerances = tuple[float, float, float]  # of feasibility, stationarity and complementarity


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
    largest: Tensor  # theta that is allowed at all, (batch,)
    last: Tensor  # the barrier to end with, (batch, 1); (batch, 0): as small as rounding errors allow


@dataclass(frozen=True)
class Model(Rows):
    """The problem's values and derivatives at the current point."""

    objective: Tensor  # (batch,)
    gradient: Tensor  # of f, (batch, m)
    values: Tensor  # c, (batch, k)
    jacobian: Tensor  # of c, in the form that the layout says
    hessian: Tensor  # of L, likewise
    u: Tensor  # (batch, m)
    y: Tensor  # (batch, k)
    s: Tensor  # (batch, q)
    layout: Layout

    @property
    def p(self) -> int:
        """The number of equalities."""
        return self.y.shape[-1] - self.s.shape[-1]

    @cached_property
    def slope(self) -> Tensor:  # (batch, m)
        """D_U L."""
        return self.gradient + self.layout.jacobian.multiply_transposed(self.jacobian, self.y)

    @cached_property
    def bend(self) -> Tensor:  # (batch, m)
        """The size of H's diagonal, entry by entry; where it vanishes, a part of the largest or of the slope."""
        diagonal = self.layout.hessian.diagonal(self.hessian).abs()
        least = torch.maximum(1e-6 * diagonal.amax(-1, keepdim=True), 1e-3 * self.slope.abs().amax(-1, keepdim=True))
        return torch.maximum(diagonal, least).clamp(min=1e-8)

    @cached_property
    def residual(self) -> Tensor:  # (batch, k)
        """[h; g + s]."""
        return residual_of(self.values, self.s)

    @cached_property
    def violated(self) -> Tensor:  # (batch, k)
        """h, and g where it is positive."""
        return torch.cat([self.values[:, : self.p], self.values[:, self.p :].clamp(min=0.0)], -1)

    @cached_property
    def stationarity(self) -> Tensor:
        """|D_U L| relative to the forces that balance in it."""
        force = largest(self.layout.jacobian.multiply_transposed(self.jacobian.abs(), self.y.abs()))
        return largest(self.slope.abs()) / torch.maximum(largest(self.gradient.abs()), force).clamp(min=1.0)

    @cached_property
    def pull(self) -> Tensor:  # (batch, q)
        """The multipliers of inequalities."""
        return self.y[:, self.p :]

    @cached_property
    def large(self) -> Tensor:
        """What products of slacks and multipliers are relative to: 1, or more if multipliers are large."""
        return (largest(self.pull) / 100).clamp(min=1.0)

    @cached_property
    def span(self) -> Tensor:  # (batch, q)
        """The size of the terms of each inequality: its slack is small or large beside that."""
        return self.layout.jacobian.multiply(self.jacobian.abs(), self.u.abs())[:, self.p :].clamp(min=1.0)

    @cached_property
    def gap(self) -> Tensor:
        """The largest s y, relative to large y and to the terms of an inequality."""
        return largest(self.s * self.pull / self.span) / self.large

    def finite(self) -> Tensor:
        """Whether all values and first and second derivatives are numbers: if one is not, neither is their sum."""
        small = self.objective + self.gradient.sum(-1) + self.values.sum(-1)
        return (small + total(self.jacobian) + total(self.hessian)).isfinite()


def residual_of(values: Tensor, s: Tensor) -> Tensor:  # (batch, k)
    """[h; g + s]."""
    p = values.shape[-1] - s.shape[-1]
    return torch.cat([values[:, :p], values[:, p:] + s], -1) if s.shape[-1] else values


@dataclass(frozen=True)
class Step(Rows):
    """A change of u, s and y."""

    u: Tensor
    s: Tensor
    y: Tensor


def newton_step(
    model: Model,
    shift: Tensor,  # (batch,)
    weight: Tensor,  # (batch,)
    barrier: Tensor,  # (batch,)
    residual: Tensor,  # [h; g + s], (batch, k)
    damping: Tensor | None = None,  # (batch,)
) -> tuple[Step, KktSolution]:
    """The step for a given regularisation and value of the constraints, and what is to be said of its matrix."""
    p, q = model.p, model.s.shape[-1]
    y, s = model.pull, model.s
    primal = shift.unsqueeze(-1) * model.bend
    if not q:
        none = torch.zeros_like(residual)
        matrix = StepMatrix(model.hessian, model.jacobian, primal, none, p, weight, damping)
        found = model.layout.solve_kkt(matrix, (-model.slope, -residual))
        return Step(found.z, s, found.s), found
    dual = torch.cat([torch.zeros_like(model.y[:, :p]), s / y], -1)
    inner = residual[:, p:] - s + barrier.unsqueeze(-1) / y  # g + barrier / y
    right = (-model.slope, -torch.cat([residual[:, :p], inner], -1))
    matrix = StepMatrix(model.hessian, model.jacobian, primal, dual, p, weight, damping)
    found = model.layout.solve_kkt(matrix, right)
    # From the last row: G du = s / y dy - (g + barrier / y), which costs no product with G.
    change = dual[:, p:] * found.s[:, p:] - inner
    return Step(u=found.z, s=-residual[:, p:] - change, y=found.s), found


def least_curvature(model: Model, rough: bool = False) -> Pair:  # (batch,), (batch, m)
    """The least curvature along the constraints, relative to the size of H; and its direction."""
    return model.layout.least_curvature(model.hessian, model.jacobian, _dual(model), model.bend, model.p, rough)


def turned(model: Model, barrier: Tensor, reach: Tensor, which: Tensor) -> Model:
    """The model with curvature along the constraints turned positive, for these problems; steps stay within reach."""
    if not isinstance(model.layout, DenseLayout):
        return model
    slope, p = model.slope, model.p
    if model.s.shape[-1]:
        force = (model.y[:, p:] * model.values[:, p:] + barrier.unsqueeze(-1)) / model.s
        slope = slope + model.layout.jacobian.multiply_transposed(
            model.jacobian, torch.cat([torch.zeros_like(model.y[:, :p]), force], -1)
        )
    hessian = model.layout.turned(model.hessian, model.jacobian, _dual(model), model.bend, p, slope, reach)
    chosen = which.view(-1, *(1,) * (hessian.dim() - 1))
    return replace(model, hessian=torch.where(chosen, hessian, model.hessian))


def _dual(model: Model) -> Tensor:  # (batch, k)
    """What relaxes each constraint in a step: nothing for equalities."""
    return torch.cat([torch.zeros_like(model.y[:, : model.p]), model.s / model.y[:, model.p :]], -1)


def model_at(batch: Batch, scales: Scales, u: Tensor, s: Tensor, y: Tensor) -> Model:
    """The model at a point."""
    stacked = -y * scales.rows / scales.objective.unsqueeze(-1)  # in the convention of the batch, L = f - stacked' c
    here = batch.expand(u, stacked)
    slope = here.gradient + batch.layout.jacobian.multiply_transposed(here.jacobian, stacked)
    return scaled_model(batch.layout, scales, dataclasses.replace(here, gradient=slope), u, s, y)


def scaled_model(layout: Layout, scales: Scales, here: Expansion, u: Tensor, s: Tensor, y: Tensor) -> Model:
    """The model from derivatives, the gradient that of f alone."""
    return Model(
        objective=here.objective * scales.objective,
        gradient=here.gradient * scales.objective.unsqueeze(-1),
        values=scaled_values(here.values, scales),
        jacobian=layout.jacobian.scale_rows(here.jacobian, scales.rows),
        hessian=here.curvature * scales.objective.view(-1, *(1,) * (here.curvature.dim() - 1)),
        u=u,
        y=y,
        s=s,
        layout=layout,
    )


def scaled_values(values: Tensor, scales: Scales) -> Tensor:
    """Constraint values in scaled units; a bound at infinity is merely far away."""
    return values.clamp(min=-1e20) * scales.rows


def values_at(batch: Batch, scales: Scales, u: Tensor) -> Pair:
    """f and c, scaled."""
    objective, values = batch.values(u)
    return objective * scales.objective, scaled_values(values, scales)


def merit(objective: Tensor, residual: Tensor, s: Tensor, barrier: Tensor) -> Pair:
    """(theta, phi): the violation, and the objective with its barrier."""
    phi = objective - barrier * s.log().sum(-1) if s.shape[-1] else objective
    return residual.abs().sum(-1), phi


def room(s: Tensor, ds: Tensor, barrier: Tensor) -> Tensor:  # (batch,)
    """The longest step that keeps s positive."""
    if not s.shape[-1]:
        return torch.ones_like(barrier)
    fraction = (1 - barrier).clamp(*BOUNDARY).unsqueeze(-1)
    return torch.where(ds < 0, -fraction * s / ds, 1.0).amin(-1).clamp(max=1.0)


def moved(state: State, step: Step, length: Tensor) -> State:
    """The state after a step of this length; multipliers of inequalities go their own way."""
    q = state.s.shape[-1]
    p = state.y.shape[-1] - q
    long = length.unsqueeze(-1)
    u = state.u + long * step.u
    if not q:
        return replace(state, u=u, y=state.y + long * step.y)
    s = state.s + long * step.s
    y_h = state.y[:, :p] + long * step.y[:, :p]
    y_g = state.y[:, p:] + room(state.y[:, p:], step.y[:, p:], state.barrier).unsqueeze(-1) * step.y[:, p:]
    centre = state.barrier.unsqueeze(-1) / s  # keep s y within sight of the barrier, so that no pair is lost
    y_g = torch.maximum(torch.minimum(y_g, 1e10 * centre), 1e-10 * centre)
    return replace(state, u=u, s=s, y=torch.cat([y_h, y_g], -1))


def widened(state: State, values: Tensor) -> State:
    """The state with slacks no smaller than the room there is: both the violation and the barrier are lower then."""
    if not state.s.shape[-1]:
        return state
    p = values.shape[-1] - state.s.shape[-1]
    return replace(state, s=torch.maximum(state.s, -values[:, p:]).where(values[:, p:].isfinite(), state.s))


def lowered_barrier(state: State, model: Model, least: float, tolerance: float) -> State:
    """The barrier of each problem that has solved its present one well enough, lowered; the filter starts anew.

    It never becomes so small that rounding errors of the slacks matter, unless the tolerance on the gap asks for it.
    """
    if not state.s.shape[-1]:
        return state
    barrier = state.barrier
    lowest = least * largest(model.pull * model.span).clamp(min=1.0)
    lowest = torch.minimum(lowest, 0.2 * tolerance * model.large)
    if state.last.shape[-1]:
        lowest = torch.maximum(lowest, state.last[:, 0])
    rest = torch.maximum(model.stationarity, largest(model.residual.abs()))
    # A barrier is solved well enough if no s y exceeds it by more than ten times, nor the rest.
    enough = torch.maximum(rest / 10, largest(model.s * model.pull) / (1 + 10 * model.large))
    for _ in range(LOWERINGS):
        lower = torch.maximum(torch.minimum(0.2 * barrier, barrier**1.5), lowest)
        barrier = torch.where(barrier >= enough, torch.minimum(lower, barrier), barrier)
    lowered = barrier < state.barrier
    fresh = torch.where(lowered[:, None, None], torch.inf, state.filter)
    return replace(state, barrier=barrier, filter=fresh, stored=torch.where(lowered, 0, state.stored))


def ended(model: Model, state: State, tolerance: float) -> Tensor:  # (batch,)
    """Whether slacks and multipliers are where they are to end."""
    if not state.last.shape[-1]:
        return model.gap <= tolerance
    off = largest((model.s * model.pull - state.last).abs()) / model.large
    return off <= (CENTRED * state.last[:, 0]).clamp(max=tolerance)


def acceptable(
    state: State, model: Model, before: Pair, step: Step, length: Tensor, theta: Tensor, phi: Tensor
) -> Pair:
    """Whether (theta, phi) is progress over what they were before, and whether it is so by the objective alone."""
    old_theta, old_phi = before
    slope = (model.gradient * step.u).sum(-1)
    if state.s.shape[-1]:
        slope = slope - state.barrier * (step.s / model.s).sum(-1)
    # Where the slope is not negative, the second comparison fails.
    by_objective = (old_theta <= LEAST * state.largest) & (
        length * (-slope).clamp(min=0.0) ** S_PHI > DELTA * old_theta**S_THETA
    )
    change = phi - old_phi - 10 * torch.finfo(phi.dtype).eps * old_phi.abs()  # but for rounding errors
    armijo = change <= ETA * length * slope
    better = (theta <= (1 - GAMMA_THETA) * old_theta) | (change <= -GAMMA_PHI * old_theta)
    free = (torch.stack([theta, phi], -1).unsqueeze(1) < state.filter).any(-1).all(-1)
    good = torch.where(by_objective, armijo, better) & free & (theta < state.largest) & phi.isfinite()
    return good, by_objective & armijo


def remembered(state: State, before: Pair, which: Tensor) -> State:
    """The state with (theta, phi) stored in the filter, for these problems."""
    theta, phi = before
    pair = torch.stack([(1 - GAMMA_THETA) * theta, phi - GAMMA_PHI * theta], -1)
    places = torch.arange(FILTER, device=which.device)
    place = (places == (state.stored % FILTER).unsqueeze(-1)) & which.unsqueeze(-1)
    filled = torch.where(place.unsqueeze(-1), pair.unsqueeze(1), state.filter)
    return replace(state, filter=filled, stored=state.stored + which)


def nearness(model: Model, step: Step, start: Tensor) -> Tensor:  # (batch,)
    """The length of a step relative to u, the largest over its entries.

    What is tiny beside the way from the start, or beside the change that costs as much energy as there is, is nothing.
    """
    bend, size = model.layout.hessian.diagonal(model.hessian), model.u.abs()
    energy = ((model.gradient.abs() + bend.abs() * size) * size).sum(-1, keepdim=True)
    reach = torch.where(bend > 0, energy / bend, 0.0).sqrt()
    return largest(step.u.abs() / or_one(size + 1e-3 * ((model.u - start).abs() + reach)))
