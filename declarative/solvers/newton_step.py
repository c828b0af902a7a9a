"""One step of the batched Newton method: everything that happens if all goes well, without a decision by value.

Notation, here and in ``newton.py``: L = f + y' c with c = [h; g], slacks s > 0 for the inequalities, so that the
constraint residual is [h; g + s] and the multipliers y_g of inequalities are positive. Everything is in scaled units,
in which the gradients of objective and constraints have size 1 at the start.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from ..linear import Pair, or_one, times
from ..optimality import largest
from ..problem import Batch

PIVOT = 1e-15  # a pivot that cancelled to less than this fraction of what it was is zero
BOUNDARY = (0.99, 0.999)  # the fraction of the way to s = 0 that a step may go, at least and at most
NOTHING = 1e-12  # curvature that is less than this part of the largest may be none
STIFF = 1e4  # an inequality whose barrier curves this much more than H is as good as an equality
FILTER = 24  # points that a step has to improve on, at the most
# The constants of the filter method of Wächter and Biegler (2006), under their names there.
GAMMA_THETA, GAMMA_PHI, ETA, S_THETA, S_PHI, DELTA = 1e-5, 1e-8, 1e-8, 1.1, 2.3, 1.0


class Rows:
    """A dataclass of tensors with one row per problem."""

    def take(self, rows: Tensor) -> Self:
        """The problems at these positions."""
        return type(self)(**{name: x[rows] for name, x in vars(self).items()})

    def put(self, rows: Tensor, part: Self) -> Self:
        """The same, with these problems replaced."""
        return type(self)(**{name: x.index_copy(0, rows, getattr(part, name)) for name, x in vars(self).items()})

    def where(self, chosen: Tensor, other: Self) -> Self:
        """Itself where chosen, the other elsewhere."""
        mixed = {}
        for name, x in vars(self).items():
            y = getattr(other, name)
            mixed[name] = x if x is y else torch.where(chosen.view(-1, *(1,) * (x.dim() - 1)), x, y)
        return type(self)(**mixed)


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


@dataclass(frozen=True)
class Model(Rows):
    """The problem's values and derivatives at the current point."""

    objective: Tensor  # (batch,)
    gradient: Tensor  # of f, (batch, m)
    values: Tensor  # c, (batch, k)
    jacobian: Tensor  # (batch, k, m)
    hessian: Tensor  # of L, (batch, m, m)
    y: Tensor  # (batch, k)
    s: Tensor  # (batch, q)

    @property
    def p(self) -> int:
        """The number of equalities."""
        return self.y.shape[-1] - self.s.shape[-1]

    def slope(self) -> Tensor:  # (batch, m)
        """D_U L."""
        return self.gradient + times(self.jacobian.mT, self.y)

    def residual(self) -> Tensor:  # (batch, k)
        """[h; g + s]."""
        return residual_of(self.values, self.s)

    def violated(self) -> Tensor:  # (batch, k)
        """h, and g where it is positive."""
        return torch.cat([self.values[:, : self.p], self.values[:, self.p :].clamp(min=0.0)], -1)

    def stationarity(self) -> Tensor:
        """|D_U L| relative to the forces that balance in it."""
        force = largest(times(self.jacobian.mT.abs(), self.y.abs()))
        return largest(self.slope().abs()) / torch.maximum(largest(self.gradient.abs()), force).clamp(min=1.0)

    def complementarity(self, barrier: Tensor) -> Tensor:
        """The largest deviation of s y from the barrier parameter, relative to large y."""
        y = self.y[:, self.p :]
        return largest((self.s * y - barrier.unsqueeze(-1)).abs()) / (largest(y) / 100).clamp(min=1.0)

    def span(self, u: Tensor) -> Tensor:  # (batch, q)
        """The size of the terms of each inequality: its slack is small or large beside that."""
        return times(self.jacobian[:, self.p :].abs(), u.abs()).clamp(min=1.0)

    def gap(self, u: Tensor) -> Tensor:
        """The largest s y, relative to large y and to the terms of an inequality."""
        y = self.y[:, self.p :]
        return largest(self.s * y / self.span(u)) / (largest(y) / 100).clamp(min=1.0)

    def finite(self) -> Tensor:
        """Whether all values and first and second derivatives are numbers: if one is not, neither is their sum."""
        total = self.objective + self.gradient.sum(-1) + self.values.sum(-1)
        return (total + self.jacobian.sum((-2, -1)) + self.hessian.sum((-2, -1))).isfinite()


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


@dataclass(frozen=True)
class Factors(Rows):
    """Cholesky factors of the condensed Hessian and of the Schur complement of the equalities."""

    whole: Tensor  # of H + shift D + G' (Y/S) G + weight A'A, (batch, m, m)
    half: Tensor  # whole^-1 A', (batch, m, p)
    small: Tensor  # of A (...)^-1 A', (batch, p, p)
    weight: Tensor  # (batch,)
    good: Tensor  # whether the first is one, (batch,)
    independent: Tensor  # whether the second is, (batch,)

    def solve(self, model: Model, barrier: Tensor, residual: Tensor) -> Step:
        """The Newton step for a given value of the constraint residual [h; g + s]."""
        p = model.p
        rows, pull = model.jacobian[:, :p], model.jacobian[:, p:]
        right = -model.slope() - times(rows.mT, self.weight.unsqueeze(-1) * residual[:, :p])
        y, s = model.y[:, p:], model.s
        inner = residual[:, p:] - s + barrier.unsqueeze(-1) / y  # g + barrier / y
        if s.shape[-1]:
            right = right - times(pull.mT, y / s * inner)
        first = torch.linalg.solve_triangular(self.whole, right.unsqueeze(-1), upper=False)
        dy = torch.cholesky_solve(self.half.mT @ first + residual[:, :p].unsqueeze(-1), self.small)
        du = torch.linalg.solve_triangular(self.whole.mT, first - self.half @ dy, upper=True).squeeze(-1)
        if not s.shape[-1]:
            return Step(du, s, dy.squeeze(-1))
        change = times(pull, du)
        return Step(u=du, s=-residual[:, p:] - change, y=torch.cat([dy.squeeze(-1), y / s * (change + inner)], -1))


@dataclass(frozen=True)
class KktFactors(Rows):
    """The last factors of a problem without inequalities: those of its KKT matrix, in scaled units."""

    whole: Tensor
    half: Tensor
    small: Tensor
    weight: Tensor
    objective_scale: Tensor  # (batch,)
    row_scale: Tensor  # (batch, p)

    def __call__(self, r: Tensor, t: Tensor) -> Pair:
        """[H A'; A 0] [z; s] = [r; t], in the problem's own units."""
        scale = self.objective_scale.unsqueeze(-1)
        right, target = (scale * r).unsqueeze(-1), (self.row_scale * t).unsqueeze(-1)
        first = torch.linalg.solve_triangular(self.whole, right, upper=False)
        first = first + self.weight[:, None, None] * (self.half @ target)
        s = torch.cholesky_solve(self.half.mT @ first - target, self.small)
        z = torch.linalg.solve_triangular(self.whole.mT, first - self.half @ s, upper=True)
        return z.squeeze(-1), s.squeeze(-1) * self.row_scale / scale


def factorise(model: Model, shift: Tensor, weight: Tensor, damping: Tensor | None = None) -> Factors:
    """Factor the step's system with a given regularisation; whether it leads towards a minimum is told.

    H + weight A'A is positive definite for a large weight if and only if H is so along A u = 0, and adding the weight
    changes nothing in the solution: Cholesky can test what an inertia count would.
    """
    p = model.p
    rows, pull = model.jacobian[:, :p], model.jacobian[:, p:]
    matrix = model.hessian + torch.diag_embed(shift.unsqueeze(-1) * diagonal_size(model))
    if model.s.shape[-1]:
        matrix = matrix + pull.mT @ ((model.y[:, p:] / model.s).unsqueeze(-1) * pull)
    if p:
        matrix = torch.baddbmm(matrix, rows.mT * weight[:, None, None], rows)
    whole, good = _cholesky(matrix)
    half = torch.linalg.solve_triangular(whole, rows.mT, upper=False)
    complement = half.mT @ half
    if damping is not None and p:
        size = torch.diagonal(complement, dim1=-2, dim2=-1)
        complement = complement + torch.diag_embed(damping.unsqueeze(-1) * size.amax(-1, keepdim=True).expand_as(size))
    small, independent = _cholesky(complement)
    return Factors(whole, half, small, weight, good, independent)


def _cholesky(matrix: Tensor) -> Pair:
    """The factor (of the identity where there is none), and whether it is one; units do not matter."""
    factor, info = torch.linalg.cholesky_ex(matrix)
    if not matrix.shape[-1]:
        return factor, info == 0
    pivots, before = (torch.diagonal(x, dim1=-2, dim2=-1) for x in (factor, matrix))
    good = (info == 0) & (pivots.square() > PIVOT * before).all(-1)
    eye = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    return torch.where(good[:, None, None], factor, eye), good


def least_curvature(model: Model) -> Pair:  # (batch,), (batch, m)
    """The least curvature along the constraints, relative to the size of H; and its direction."""
    values, vectors, size = spectrum(model)
    return values[:, 0], vectors[..., 0] * size


def turned_hessian(model: Model, barrier: Tensor, reach: Tensor) -> Tensor:  # (batch, m, m)
    """H with curvature along the constraints turned positive, at least such that a step stays within reach.

    Along an eigenvector with curvature c < 0 the step is that of |c|: downhill, with the length of Newton's method.
    """
    values, vectors, size = spectrum(model)
    p = model.p
    y, s, pull = model.y[:, p:], model.s, model.jacobian[:, p:]
    slope = model.slope()
    if s.shape[-1]:
        slope = slope + times(pull.mT, (y * model.values[:, p:] + barrier.unsqueeze(-1)) / s)
    along = times(vectors.mT, slope * size).abs()
    longest = (vectors * size.unsqueeze(-1)).abs().amax(-2)  # of an entry of u, for a unit along a direction
    wanted = torch.maximum(values.abs(), along * longest / reach.unsqueeze(-1))
    wanted = torch.maximum(wanted, NOTHING * values.abs().amax(-1, keepdim=True))  # what is less is rounding
    back = vectors / size.unsqueeze(-1)
    return model.hessian + (back * (wanted - values).unsqueeze(-2)) @ back.mT


def spectrum(model: Model) -> tuple[Tensor, Tensor, Tensor]:  # (batch, m), (batch, m, m), (batch, m)
    """Curvatures along the constraints, relative to the size of H, their directions, and the units of u in these.

    Inequalities with hardly any room are so stiff by their barrier that they count as equalities.
    """
    p = model.p
    size = diagonal_size(model).rsqrt()
    rows, pull = (x * size.unsqueeze(-2) for x in (model.jacobian[:, :p], model.jacobian[:, p:]))
    matrix = model.hessian * size.unsqueeze(-1) * size.unsqueeze(-2)
    if model.s.shape[-1]:
        stiffness = model.y[:, p:] / model.s
        stiff = stiffness * pull.square().sum(-1) > STIFF
        matrix = matrix + pull.mT @ (torch.where(stiff, 0.0, stiffness).unsqueeze(-1) * pull)
        rows = torch.cat([rows, pull * stiff.unsqueeze(-1)], -2)
    if rows.shape[-2]:
        rows = rows / or_one(torch.linalg.vector_norm(rows, dim=-1, keepdim=True))
        onto = torch.linalg.pinv(rows, rtol=1e-10) @ rows
        free = torch.eye(rows.shape[-1], dtype=rows.dtype, device=rows.device) - onto
        matrix = free @ matrix @ free + matrix.abs().sum(-1).amax(-1)[:, None, None] * onto
    values, vectors = torch.linalg.eigh(matrix)
    return values, vectors, size


def diagonal_size(model: Model) -> Tensor:  # (batch, m)
    """The size of the Hessian's diagonal, entry by entry; where it vanishes, a part of the largest or of the slope."""
    diagonal = torch.diagonal(model.hessian, dim1=-2, dim2=-1).abs()
    least = torch.maximum(1e-6 * diagonal.amax(-1, keepdim=True), 1e-3 * model.slope().abs().amax(-1, keepdim=True))
    return torch.maximum(diagonal, least).clamp(min=1e-8)


def model_at(batch: Batch, scales: Scales, u: Tensor, s: Tensor, y: Tensor) -> Model:
    """The model at a point."""
    stacked = -y * scales.rows / scales.objective.unsqueeze(-1)  # in the convention of the batch, L = f - stacked' c
    here = batch.expand_at_once(u, stacked)
    return Model(
        objective=here.objective * scales.objective,
        gradient=(here.gradient + times(here.jacobian.mT, stacked)) * scales.objective.unsqueeze(-1),
        values=scaled_values(here.values, scales),
        jacobian=here.jacobian * scales.rows.unsqueeze(-1),
        hessian=here.curvature * scales.objective[:, None, None],
        y=y,
        s=s,
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
    return torch.where(ds < 0, -fraction * s / torch.where(ds < 0, ds, 1.0), 1.0).amin(-1).clamp(max=1.0)


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


def lowered_barrier(state: State, model: Model, least: float, tolerance: float) -> tuple[State, Tensor]:
    """The barrier of each problem that has solved its present one well enough, lowered; the filter starts anew.

    It never becomes so small that rounding errors of the slacks matter, unless the tolerance on the gap asks for it.
    """
    if not state.s.shape[-1]:
        return state, torch.zeros_like(state.stored, dtype=torch.bool)
    barrier = state.barrier
    y = model.y[:, model.p :]
    lowest = least * largest(y * model.span(state.u)).clamp(min=1.0)
    lowest = torch.minimum(lowest, 0.2 * tolerance * (largest(y) / 100).clamp(min=1.0))
    rest = torch.maximum(model.stationarity(), largest(model.residual().abs()))
    for _ in range(3):
        solved = torch.maximum(rest, model.complementarity(barrier)) <= 10 * barrier
        barrier = torch.where(solved, torch.maximum(torch.minimum(0.2 * barrier, barrier**1.5), lowest), barrier)
    barrier = torch.minimum(barrier, state.barrier)
    lower = barrier < state.barrier
    fresh = torch.where(lower[:, None, None], torch.inf, state.filter)
    return replace(state, barrier=barrier, filter=fresh, stored=torch.where(lower, 0, state.stored)), lower


def acceptable(
    state: State, model: Model, step: Step, length: Tensor, theta: Tensor, phi: Tensor
) -> tuple[Tensor, Tensor]:
    """Whether a trial point with (theta, phi) makes progress, and whether it does so by the objective alone."""
    old_theta, old_phi = merit(model.objective, model.residual(), model.s, state.barrier)
    slope = (model.gradient * step.u).sum(-1)
    if state.s.shape[-1]:
        slope = slope - state.barrier * (step.s / model.s).sum(-1)
    rounding = 10 * torch.finfo(phi.dtype).eps * old_phi.abs()
    least = 1e-4 * (state.largest / 1e4)
    descent = (-slope).clamp(min=0.0)
    by_objective = (old_theta <= least) & (slope < 0) & (length * descent**S_PHI > DELTA * old_theta**S_THETA)
    armijo = phi - old_phi <= ETA * length * slope + rounding
    better = (theta <= (1 - GAMMA_THETA) * old_theta) | (phi - old_phi <= -GAMMA_PHI * old_theta + rounding)
    free = ((theta.unsqueeze(-1) < state.filter[:, :, 0]) | (phi.unsqueeze(-1) < state.filter[:, :, 1])).all(-1)
    good = torch.where(by_objective, armijo, better) & free & (theta < state.largest) & (theta + phi).isfinite()
    return good, by_objective & armijo


def remembered(state: State, model: Model, which: Tensor) -> State:
    """The state with the model's (theta, phi) stored in the filter, for these problems."""
    theta, phi = merit(model.objective, model.residual(), model.s, state.barrier)
    pair = torch.stack([(1 - GAMMA_THETA) * theta, phi - GAMMA_PHI * theta], -1)
    places = torch.arange(FILTER, device=which.device)
    place = (places == (state.stored % FILTER).unsqueeze(-1)) & which.unsqueeze(-1)
    filled = torch.where(place.unsqueeze(-1), pair.unsqueeze(1), state.filter)
    return replace(state, filter=filled, stored=state.stored + which)


def nearness(model: Model, step: Step, u: Tensor, start: Tensor) -> Tensor:  # (batch,)
    """The length of a step relative to u, the largest over its entries.

    What is tiny beside the way from the start, or beside the change that costs as much energy as there is, is nothing.
    """
    bend = torch.diagonal(model.hessian, dim1=-2, dim2=-1)
    force = model.gradient.abs() + bend.abs() * u.abs()
    energy = (force * u.abs()).sum(-1, keepdim=True)
    reach = torch.where(bend > 0, energy / torch.where(bend > 0, bend, 1.0), 0.0).sqrt()
    return largest(step.u.abs() / or_one(u.abs() + 1e-3 * (u - start).abs() + 1e-3 * reach))
