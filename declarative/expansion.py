"""Values, first and second derivatives of a batch of problems at plain tensors, by ``torch.autograd``.

Problems are independent, so the derivatives of the sum over the batch are those of each problem: only the functions
themselves are mapped. That costs half of what nested transforms of ``torch.func`` do, and is the same; but it cannot
be differentiated further, nor traced, for which the methods of :class:`~declarative.problem.Batch` are there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from .linear.layout import Layout, Product
from .torchside import in_dispatch_mode, transformed, without_vmap_warnings


class Problems(Protocol):
    """What is needed of a batch."""

    @property
    def layout(self) -> Layout:
        """How H and A are stored."""
        ...

    def mapped_values(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """f (size,) and c (size, k) at u (size, m)."""
        ...


def is_plain(tensors: Sequence[Tensor | None]) -> bool:
    """Whether nobody transforms, traces or differentiates what is computed from these tensors."""
    if transformed() or in_dispatch_mode() or torch.is_inference_mode_enabled():
        return False
    return not (torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors))


def slopes(batch: Problems, u: Tensor, multipliers: Tensor | None) -> tuple[Tensor, ...]:
    """f, D_U L, c and A."""
    return _derivatives(batch, u, multipliers, second=False)


def expand(batch: Problems, u: Tensor, multipliers: Tensor | None) -> tuple[Tensor, ...]:
    """f, D_U L, c, A and D^2_UU L."""
    return _derivatives(batch, u, multipliers, second=True)


def _derivatives(batch: Problems, u: Tensor, multipliers: Tensor | None, second: bool) -> tuple[Tensor, ...]:
    with torch.enable_grad(), without_vmap_warnings():
        u = u.detach().requires_grad_()
        objective, values = batch.mapped_values(u)
        weighted = objective if multipliers is None else objective - (multipliers * values).sum(-1)
        slope = _gradient(weighted.sum(), u, create_graph=second)
        found = [objective, slope, values, _jacobian(batch.layout, values, u)]
        if second:
            found.append(batch.layout.hessian_values(lambda w: _gradient(slope, u, w), u))
    return tuple(x.detach() for x in found)


def _gradient(y: Tensor, u: Tensor, w: Tensor | None = None, create_graph: bool = False) -> Tensor:
    """The derivative of w' y; zero where y does not depend on u."""
    if not y.requires_grad:
        return torch.zeros_like(u)
    (found,) = torch.autograd.grad(
        y, u, w, retain_graph=True, create_graph=create_graph, allow_unused=True, materialize_grads=True
    )
    return found


def _jacobian(layout: Layout, values: Tensor, u: Tensor) -> Tensor:
    def pull(w: Tensor) -> Tensor:
        return _gradient(values, u, w)

    def transpose() -> Product:  # A v is the derivative of w -> A' w, transposed
        w = torch.zeros_like(values).requires_grad_()
        pulled = _gradient(values, u, w, create_graph=True)
        return lambda v: _gradient(pulled, w, v)

    return layout.jacobian_values(pull, transpose, u, values.shape[-1])
