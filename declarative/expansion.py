"""Values, first and second derivatives of a batch of problems at plain tensors, by ``torch.autograd``.

Problems are independent, so the derivatives of the sum over the batch are those of each problem: only the functions
themselves are mapped. That costs half of what nested transforms of ``torch.func`` do, and is the same; but it cannot
be differentiated further, nor traced, for which the methods of :class:`~declarative.problem.Batch` are there.

Of small dense problems each row of H and A is the derivative of a copy of the problem by itself, so that all of them
take one reverse pass, without a map over it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from .linear.layout import DenseLayout, Layout, Product
from .torchside import without_vmap_warnings

COPIED = 10_000  # numbers that copies of problems may take: with more, mapping is the lesser effort


class Problems(Protocol):
    """What is needed of a batch."""

    @property
    def xs(self) -> tuple[Tensor, ...]:
        """The inputs."""
        ...

    @property
    def in_dims(self) -> tuple[int | None, ...]:
        """Which of them (None) all problems share."""
        ...

    @property
    def k(self) -> int:
        """The number of constraints."""
        ...

    @property
    def layout(self) -> Layout:
        """How H and A are stored."""
        ...

    def mapped_values(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """f (size,) and c (size, k) at u (size, m)."""
        ...

    def repeated(self, count: int) -> Problems:
        """The same problems so many times."""
        ...


def slopes(batch: Problems, u: Tensor, multipliers: Tensor | None) -> tuple[Tensor, ...]:
    """f, D_U L, c and A."""
    return _derivatives(batch, u, multipliers, second=False)


def expand(batch: Problems, u: Tensor, multipliers: Tensor | None) -> tuple[Tensor, ...]:
    """f, D_U L, c, A and D^2_UU L."""
    return _derivatives(batch, u, multipliers, second=True)


def _derivatives(batch: Problems, u: Tensor, multipliers: Tensor | None, second: bool) -> tuple[Tensor, ...]:
    if _is_small(batch, u, second):
        return _of_copies(batch, u, multipliers, second)
    with torch.enable_grad(), without_vmap_warnings():
        u = u.detach().requires_grad_()
        objective, values = batch.mapped_values(u)
        weighted = objective if multipliers is None else objective - (multipliers * values).sum(-1)
        slope = _gradient(weighted.sum(), u, create_graph=second)
        found = [objective, slope, values, _jacobian(batch.layout, values, u)]
        if second:
            found.append(batch.layout.hessian_values(lambda w: _gradient(slope, u, w), u))
    return tuple(x.detach() for x in found)


def _is_small(batch: Problems, u: Tensor, second: bool) -> bool:
    """Whether a copy of the problems for each row of their derivatives is no great effort."""
    if not isinstance(batch.layout, DenseLayout) or not u.numel():
        return False
    rows = batch.k + second * u.shape[-1]
    size = u.numel() + sum(x.numel() for x, dim in zip(batch.xs, batch.in_dims, strict=True) if dim is not None)
    return 0 < rows * size <= COPIED


def _of_copies(batch: Problems, u: Tensor, multipliers: Tensor | None, second: bool) -> tuple[Tensor, ...]:
    """The same, with a copy of the problems for each row of A and H."""
    (size, m), k = u.shape, batch.k
    count = k + second * m
    with torch.enable_grad(), without_vmap_warnings():
        copies = u.detach().expand(count, size, m).flatten(0, 1).requires_grad_()
        objective, values = batch.repeated(count).mapped_values(copies)
        weighted = objective.view(count, size)
        if multipliers is not None and k:
            weighted = weighted - (multipliers * values.view(count, size, k)).sum(-1)
        slope = _gradient(weighted.sum(), copies, create_graph=second)
        chosen = torch.eye(count, dtype=u.dtype, device=u.device).unsqueeze(1).expand(-1, size, -1).flatten(0, 1)
        found = [objective[:size], slope[:size], values[:size]]
        pairs = [(values, chosen[:, :k]), (slope, chosen[:, k:])][: 1 + second]
        rows = _gradient_of_sum(pairs, copies)
        if second and not math.isfinite(rows.sum().item()):
            # What is infinite in second derivatives must not reach the first ones, not even times zero.
            first, last = (_gradient_of_sum([pair], copies) for pair in pairs)
            rows = torch.cat([first[: k * size], last[k * size :]])
        rows = rows.view(count, size, m).transpose(0, 1)
        found += [rows[:, :k], rows[:, k:]][: 1 + second]
    return tuple(x.detach() for x in found)


def _gradient(y: Tensor, u: Tensor, w: Tensor | None = None, create_graph: bool = False) -> Tensor:
    """The derivative of w' y; zero where y does not depend on u."""
    return _gradient_of_sum([(y, w)], u, create_graph)


def _gradient_of_sum(pairs: Sequence[tuple[Tensor, Tensor | None]], u: Tensor, create_graph: bool = False) -> Tensor:
    """The derivative of the sum of all w' y."""
    some = [pair for pair in pairs if pair[0].requires_grad]
    if not some:
        return torch.zeros_like(u)
    ys, ws = zip(*some, strict=True)
    (found,) = torch.autograd.grad(
        ys, u, ws, retain_graph=True, create_graph=create_graph, allow_unused=True, materialize_grads=True
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
