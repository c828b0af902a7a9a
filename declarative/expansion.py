"""Values, first and second derivatives of a batch of problems at plain tensors, by ``torch.autograd``.

Problems are independent, so the derivatives of the sum over the batch are those of each problem: only the functions
themselves are mapped. That costs half of what nested transforms of ``torch.func`` do, and is the same; but it cannot
be differentiated further, nor traced, for which the methods of :class:`~declarative.problem.Batch` are there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from .linear.contract import Pair
from .linear.dense_layout import DenseLayout
from .linear.layout import Layout, Product, rows_of
from .linearity import is_affine, watched
from .torchside import without_vmap_warnings

AT_ONCE = 100_000  # numbers: with more of them, two reverse passes are less effort than one for all rows of A and H
ALONE = 100_000  # numbers that one row needs: with more of them, a row each is less effort than copies of them for all
UNUSED_IS_ZERO: dict[str, Any] = {"allow_unused": True, "materialize_grads": True}  # the derivative by what is not used


@dataclass(frozen=True)
class Expansion:
    """A batch of problems at a point: values, first and second derivatives."""

    objective: Tensor  # (size,)
    gradient: Tensor  # of the Lagrangian, (size, m)
    values: Tensor  # c, (size, k)
    jacobian: Tensor  # A, (size, k, m)
    curvature: Tensor  # H, (size, m, m)


class Constants(NamedTuple):
    """What is known of constraints that are affine, c = A u + values, and of an objective that is quadratic.

    The values are those at u = 0, so that rounding errors of c are those of its terms at u and nowhere else.
    f and D_U f are evaluated: they may cancel to much less than their terms, as where a residual is squared.
    """

    jacobian: Tensor  # A
    values: Tensor  # c at 0, (size, k)
    hessian: Tensor | None = None  # H, whatever the multipliers are; None: the objective is not known to be quadratic

    def values_at(self, layout: Layout, u: Tensor) -> Tensor:  # (size, k)
        """c."""
        return self.values + layout.jacobian.multiply(self.jacobian, u)

    def take(self, rows: Tensor) -> Constants:
        """Those of some problems."""
        return Constants(self.jacobian[rows], self.values[rows], None if self.hessian is None else self.hessian[rows])


class Problems(Protocol):
    """What is needed of a batch."""

    @property
    def xs(self) -> tuple[Tensor, ...]:
        """The inputs."""

    @property
    def in_dims(self) -> tuple[int | None, ...]:
        """Which of them (None) all problems share."""

    @property
    def k(self) -> int:
        """The number of constraints."""

    @property
    def layout(self) -> Layout:
        """How H and A are stored."""

    @property
    def constants(self) -> Constants | None:
        """Derivatives that need not be evaluated."""

    def mapped_values(self, u: Tensor) -> Pair:
        """f (size,) and c (size, k) at u (size, m)."""

    def mapped_objective(self, u: Tensor) -> Tensor:
        """f alone."""

    def mapped_constraints(self, u: Tensor) -> Tensor:
        """c alone."""


def slopes(batch: Problems, u: Tensor, multipliers: Tensor | None) -> tuple[Tensor, ...]:
    """f, D_U L, c and A."""
    return _derivatives(batch, u, multipliers, second=False)


def expand(batch: Problems, u: Tensor, multipliers: Tensor | None) -> Expansion:
    """f, D_U L, c, A and D^2_UU L."""
    return Expansion(*_derivatives(batch, u, multipliers, second=True))


def product(batch: Problems, u: Tensor, multipliers: Tensor | None, z: Tensor, s: Tensor) -> Tensor:  # (size, m)
    """H z + A' s."""
    with torch.enable_grad(), without_vmap_warnings():
        u = u.detach().requires_grad_()
        objective, values = batch.mapped_values(u)
        weighted = objective if multipliers is None else objective - (multipliers * values).sum(-1)
        paired = (z * _slope(weighted, u, create_graph=True)).sum() + (s * values).sum()
        return _gradient(paired, u).detach()


def find_constants(batch: Problems, u: Tensor) -> Constants | None:
    """What is proved at u to hold at every other point, if anything is."""
    with torch.enable_grad(), without_vmap_warnings():
        u = u.detach().requires_grad_()
        values, tracked = watched(batch.mapped_constraints, u)
        if not (tracked and is_affine(values, u)):
            return None
        objective, tracked = watched(batch.mapped_objective, u)
        slope = _slope(objective, u, create_graph=tracked)
        if not (tracked and is_affine(slope, u)):
            found = [_jacobian(batch.layout, values, u)]
        else:
            found = _rows(batch, values, slope, u)
        if not all(math.isfinite(x.sum().item()) for x in found):
            return None
        jacobian, *hessian = (x.detach() for x in found)
        return Constants(jacobian, batch.mapped_constraints(torch.zeros_like(u)), *hessian)


def _derivatives(batch: Problems, u: Tensor, multipliers: Tensor | None, second: bool) -> tuple[Tensor, ...]:
    if batch.constants is not None:
        return _with_constants(batch, batch.constants, u, multipliers, second)
    with torch.enable_grad(), without_vmap_warnings():
        u = u.detach().requires_grad_()
        objective, values = batch.mapped_values(u)
        weighted = objective if multipliers is None else objective - (multipliers * values).sum(-1)
        slope = _slope(weighted, u, create_graph=second)
        rows = _rows(batch, values, slope, u) if second else [_jacobian(batch.layout, values, u)]
    return tuple(x.detach() for x in (objective, slope, values, *rows))


def _with_constants(
    batch: Problems, known: Constants, u: Tensor, multipliers: Tensor | None, second: bool
) -> tuple[Tensor, ...]:
    """The same, with what is known of it."""
    layout, hessian = batch.layout, known.hessian
    with torch.enable_grad(), without_vmap_warnings():
        place = u.detach().requires_grad_()
        objective = batch.mapped_objective(place)
        slope = _slope(objective, place, create_graph=second and hessian is None)
        if second and hessian is None:
            hessian = layout.hessian_values(lambda w: _gradient(slope, place, w), place)
    objective, slope = objective.detach(), slope.detach()
    if multipliers is not None:
        slope = slope - layout.jacobian.multiply_transposed(known.jacobian, multipliers)
    found = objective, slope, known.values_at(layout, u), known.jacobian
    return (*found, hessian.detach()) if second and hessian is not None else found


def _rows(batch: Problems, values: Tensor, slope: Tensor, u: Tensor) -> list[Tensor]:
    """A and H."""
    if isinstance(batch.layout, DenseLayout):
        size = _inputs_of_a_row(batch, u)
        if 0 < (batch.k + u.shape[-1]) * size <= AT_ONCE:
            return list(_rows_at_once(values, slope, u))
        if size > ALONE:
            return [_rows_alone(values, u), _rows_alone(slope, u)]
    hessian = batch.layout.hessian_values(lambda w: _gradient(slope, u, w), u)
    return [_jacobian(batch.layout, values, u), hessian]


def _inputs_of_a_row(batch: Problems, u: Tensor) -> int:
    """How many numbers a reverse pass for one row of A and H begins with."""
    return u.numel() + sum(x.numel() for x, dim in zip(batch.xs, batch.in_dims, strict=True) if dim is not None)


def _rows_at_once(values: Tensor, slope: Tensor, u: Tensor) -> Pair:
    """The rows of A and H in one reverse pass, if they are finite.

    What is infinite in second derivatives must not reach the first ones, not even times zero.
    """
    k = values.shape[-1]
    both = torch.cat([values, slope], -1)
    rows = rows_of(lambda w: _gradient(both, u, w), u, both.shape[-1])
    if math.isfinite(rows.sum().item()):
        return rows[:, :k], rows[:, k:]
    return rows_of(lambda w: _gradient(values, u, w), u, k), rows_of(lambda w: _gradient(slope, u, w), u, u.shape[-1])


def _rows_alone(values: Tensor, u: Tensor) -> Tensor:  # (size, count), (size, m) -> (size, count, m)
    """The rows of a Jacobian, each by a reverse pass of its own."""
    eye = torch.eye(values.shape[-1], dtype=values.dtype, device=values.device)
    rows = [_gradient(values, u, row.expand_as(values)) for row in eye]
    return torch.stack(rows, -2) if rows else u.new_zeros(*values.shape, u.shape[-1])


def _slope(y: Tensor, u: Tensor, create_graph: bool) -> Tensor:
    """The derivative of each y, of one problem, by its own u."""
    return _gradient(y, u, torch.ones_like(y), create_graph)


def _gradient(y: Tensor, u: Tensor, w: Tensor | None = None, create_graph: bool = False) -> Tensor:
    """The derivative of w' y; zero where y does not depend on u."""
    if not y.requires_grad:
        return torch.zeros_like(u)
    (found,) = torch.autograd.grad(y, u, w, retain_graph=True, create_graph=create_graph, **UNUSED_IS_ZERO)
    return found


def _jacobian(layout: Layout, values: Tensor, u: Tensor) -> Tensor:
    def pull(w: Tensor) -> Tensor:
        return _gradient(values, u, w)

    def transpose() -> Product:  # A v is the derivative of w -> A' w, transposed
        w = torch.zeros_like(values).requires_grad_()
        pulled = _gradient(values, u, w, create_graph=True)
        return lambda v: _gradient(pulled, w, v)

    return layout.jacobian_values(pull, transpose, u, values.shape[-1])
