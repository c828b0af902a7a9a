"""The regularisation of the Hessian: with it, steps of problems that are not convex lead to minima."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from ...linear import DenseLayout, KktSolution, Pair
from ...linear.dense_layout import NOTHING
from ...optimality import largest
from .iteration import newton_step
from .parameters import FIRST_SHIFT, HEAVIER, LEAST_SIZE, MORE_SHIFT, STRAY, TINY_SHIFT
from .state import Model, State

ATTEMPTS = 40  # of ever larger weights and shifts
DAMPINGS = (1e-10, 1e-7, 1e-4, 1e-2, 1.0)  # of the step towards equalities that depend on each other


def with_finite_rows(model: Model) -> Model:
    """The model with problems that are not finite blanked out: they have ended, and must not stop others."""
    finite = model.finite()
    if bool(finite.all()):
        return model
    blank: dict[str, Any] = {name: torch.zeros_like(x) for name, x in model.tensors().items()}
    ones = {"s": torch.ones_like(model.s), "y": torch.ones_like(model.y)}
    return model.where(finite, dataclasses.replace(model, **{**blank, **ones}))


def regularised(model: Model, state: State, wanted: Tensor, reach: Tensor) -> tuple[Model, State, Tensor]:
    """The model and its least regularisation with which a step leads to a minimum, and the damping of equalities."""
    shift, weight = state.shift, state.weight
    damping = torch.zeros_like(shift)
    unit = _weight_unit(model)

    def look() -> KktSolution:
        return newton_step(model, shift, weight, state.barrier, model.residual, damping)[1]

    found, dense = look(), isinstance(model.layout, DenseLayout)
    if bool((wanted & ~found.convex).any()):
        # Where all curvature along the constraints is positive, a larger weight is all that is missing.
        curvature = least_curvature(model, rough=True)[0]
        down = wanted & ~found.convex & (curvature <= NOTHING)
        # Far from feasible, second derivatives say little about where to go: a shift makes all of the step shorter.
        astray = down & ((largest(model.violation.abs()) > STRAY) | (not dense))
        needed = torch.where(astray, -2 * curvature, 0.0).clamp(min=TINY_SHIFT)
        shift = torch.where(down, torch.maximum(shift, needed), shift)
        model = reflected(model, state.barrier, reach, down & ~astray)
        found = look()
    for attempt in range(ATTEMPTS):
        bad = wanted & ~found.convex
        if not bool(bad.any()):
            break
        if attempt < 2 and model.p and model.layout.weights_help:  # a larger weight may be all that is missing
            weight = torch.where(bad, torch.where(weight == 0, unit, torch.maximum(weight, HEAVIER * unit)), weight)
        else:
            shift = torch.where(bad, (MORE_SHIFT * shift).clamp(min=TINY_SHIFT if dense else FIRST_SHIFT), shift)
        found = look()
    for least in DAMPINGS:
        dependent = wanted & ~found.independent
        if not bool(dependent.any()):
            break
        damping = torch.where(dependent, least, damping)
        found = look()
    return model, dataclasses.replace(state, shift=shift, weight=weight), damping


def _weight_unit(model: Model) -> Tensor:  # (batch,)
    """A weight of A'A that is worth as much as H."""
    size = largest(model.hessian.abs().flatten(1)).clamp(min=LEAST_SIZE)
    if not model.p:
        return torch.zeros_like(size)
    equality = (torch.arange(model.y.shape[-1], device=size.device) < model.p).to(size.dtype).expand_as(model.y)
    return size / model.layout.jacobian.multiply_transposed(model.jacobian.square(), equality).amax(-1).clamp(
        min=LEAST_SIZE
    )


def least_curvature(model: Model, rough: bool = False) -> Pair:  # (batch,), (batch, m)
    """The least curvature along the constraints, relative to the size of H; and its direction."""
    return model.layout.least_curvature(model.hessian, model.jacobian, model.dual, model.diagonal_size, model.p, rough)


def reflected(model: Model, barrier: Tensor, reach: Tensor, which: Tensor) -> Model:
    """The model with curvature along the constraints made positive, for these problems; steps stay within reach."""
    if not isinstance(model.layout, DenseLayout):
        return model
    slope, p = model.slope, model.p
    if model.s.shape[-1]:
        force = (model.y_g * model.values[:, p:] + barrier.unsqueeze(-1)) / model.s
        forces = torch.cat([torch.zeros_like(model.y[:, :p]), force], -1)
        slope = slope + model.layout.jacobian.multiply_transposed(model.jacobian, forces)
    hessian = model.layout.turned(model.hessian, model.jacobian, model.dual, model.diagonal_size, p, slope, reach)
    chosen = which.view(-1, *(1,) * (hessian.dim() - 1))
    return dataclasses.replace(model, hessian=torch.where(chosen, hessian, model.hessian))
