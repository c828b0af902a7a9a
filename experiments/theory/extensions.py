"""The theory beyond the paper against nodes: active inequalities, any B, singular H.

As in :mod:`.simulation` the gradients come from the nodes' own backward passes. An expectation is estimated from random
incoming gradients; a worst case is found from the gradients of all unit vectors, as the extreme eigenvalue of the form
that they define.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from declarative import ClosedForm, DeclarativeNode, Derivatives
from declarative.theory.extensions import (
    active_rows,
    expected_singular,
    expected_weighted,
    expected_weighted_bounds,
    singular_worst_case,
    weighted_upper_bound,
    weighted_worst_case,
)
from declarative.theory.propositions import expected_curvature, worst_case

from ..shared.inputs import normal
from .simulation import both_gradients, quantile

ACTIVE, WEIGHTED, SINGULAR = "active inequalities", "B B' not a multiple of I", "singular H"
SIZES = ((6, 2), (12, 4))  # m and the number of rows
CLOSE = 1e-6  # of a worst case that is found, relative
# The expectation and the worst case, of H, A with the active rows, and B B'.
PREDICTIONS: dict[str, tuple[Callable[..., Tensor], Callable[..., Tensor]]] = {
    ACTIVE: (lambda H, A, _: expected_curvature(H, A), lambda H, A, _: worst_case(H, A)),
    WEIGHTED: (lambda *of: expected_weighted(*of), lambda *of: weighted_worst_case(*of)),
    SINGULAR: (lambda H, A, _: expected_singular(H, A), lambda H, A, _: singular_worst_case(H, A)),
}


@dataclass(frozen=True)
class Extension:
    """A prediction, and what came of it."""

    result: str
    quantity: str  # an expectation, or a worst case
    m: int
    rows: int  # that are active
    predicted: float
    lower: float  # by the spectra alone; NaN: no such bound
    upper: float
    found: float
    error: float  # half of the interval of an estimate; of a worst case, what is allowed
    inside: bool


@dataclass(frozen=True)
class Posed:
    """A node at a known solution, with the matrices that were chosen, and the directions in which H is flat."""

    result: str
    node: DeclarativeNode
    x: Tensor
    derivatives: Derivatives
    null: Tensor  # (count, m)

    @property
    def rows(self) -> Tensor:
        """A with the active inequalities, (1, rows, m)."""
        d = self.derivatives
        return active_rows(d.A, d.G, d.active)

    def gradients(self, v: Tensor) -> tuple[Tensor, Tensor]:  # (count, m) -> (count, n) each
        """The exact gradient and that of ``curvature``, for many incoming ones."""
        return both_gradients(self.node, self.x, "curvature", v)


def simulate_extensions(samples: int, seed: int, level: float) -> list[Extension]:
    """All of them; the intervals have this joint level."""
    generator = torch.Generator().manual_seed(seed)
    posed = [one for m, p in SIZES for one in poses(generator, m, p)]
    factor = quantile(level, len(posed))
    return [row for one in posed for row in (expectation(one, samples, generator, factor), extreme(one))]


def poses(generator: torch.Generator, m: int, p: int) -> Iterator[Posed]:
    """A node for each of the results: min (B x)'u + u'H u / 2 subject to A u = A y and, perhaps, some u_i >= y_i."""
    eye, none = torch.eye(m, dtype=torch.float64), torch.zeros(0, m, dtype=torch.float64)
    A = normal(generator, p, m)
    H, _ = semidefinite(generator, m, 0)
    yield pose(ACTIVE, H, A[: p - 1], eye, p, none, generator)
    yield pose(WEIGHTED, H, A, normal(generator, m, m + 2), 0, none, generator)
    H, null = semidefinite(generator, m, p - 1)
    yield pose(SINGULAR, H, torch.cat([null, A[:1]]), eye, 0, null, generator)


def pose(result: str, H: Tensor, A: Tensor, B: Tensor, active: int, null: Tensor, generator: torch.Generator) -> Posed:
    """The node with this H, A and B, so many active inequalities out of twice as many, and its solution y."""
    m = len(H)
    y, count = normal(generator, m), 2 * active
    room = torch.cat([torch.zeros(active), torch.ones(count - active)]).double()
    multipliers = torch.cat(
        [0.5 + torch.rand(active, generator=generator).double(), torch.zeros(count - active).double()]
    )
    push = normal(generator, len(A)) @ A + torch.nn.functional.pad(multipliers, (0, m - count))
    x = torch.linalg.lstsq(B, push - H @ y).solution  # so that H y + B x = A'l + the multipliers of the inequalities
    node = DeclarativeNode(
        lambda x, u: (B @ x) @ u + u @ H @ u / 2,
        lambda x, u: A @ (u - y),  # noqa: ARG005
        (lambda x, u: (y - u)[:count] - room) if count else None,  # noqa: ARG005
        solver=ClosedForm(lambda x: y.expand(len(x), -1)),
    )
    return Posed(result, node, x, node.derivatives(x.unsqueeze(0)), null)


def expectation(posed: Posed, samples: int, generator: torch.Generator, factor: float) -> Extension:
    """For H^+ v ~ N(0, I) on the range of H, and any other part."""
    d, null, m = posed.derivatives, posed.null, posed.derivatives.H.shape[-1]
    w = normal(generator, samples, m)
    v = w @ d.H[0] + 3 * normal(generator, samples, len(null)) @ null
    g, g_hat = posed.gradients(v)
    products = (g * g_hat).sum(-1)
    gram = d.B @ d.B.mT
    predicted = PREDICTIONS[posed.result][0](d.H, posed.rows, gram)
    bounds = expected_weighted_bounds(d.H, posed.rows, gram) if posed.result == WEIGHTED else None
    half = factor * products.std().item() / samples**0.5
    return _row(posed, "E[g'g_hat]", predicted, bounds, products.mean().item(), half)


def extreme(posed: Posed) -> Extension:
    """The largest 1 - g'g_hat / ||B'w||^2 over w = H^+ v, from the gradients of all unit vectors."""
    d, m = posed.derivatives, posed.derivatives.H.shape[-1]
    g, g_hat = posed.gradients(torch.eye(m, dtype=torch.float64))
    gram = d.B[0] @ d.B[0].mT
    values, basis = torch.linalg.eigh(d.H[0])
    basis = basis[:, values > 1e-9 * values[-1]]
    form = basis.mT @ d.H[0] @ g @ g_hat.mT @ d.H[0] @ basis
    factor = torch.linalg.cholesky(basis.mT @ gram @ basis)
    inner = torch.linalg.solve(factor, torch.linalg.solve(factor, (form + form.mT) / 2).mT)
    predicted = PREDICTIONS[posed.result][1](d.H, posed.rows, gram.unsqueeze(0))
    bounds = None
    if posed.result == WEIGHTED:
        bounds = torch.ones(1, dtype=torch.float64), weighted_upper_bound(d.H, gram.unsqueeze(0))
    found = 1 - torch.linalg.eigvalsh((inner + inner.mT) / 2)[0].item()
    return _row(posed, "worst case", predicted, bounds, found, CLOSE * abs(found))


def _row(
    posed: Posed, quantity: str, predicted: Tensor, bounds: tuple[Tensor, Tensor] | None, found: float, error: float
) -> Extension:
    lower, upper = (float("nan"),) * 2 if bounds is None else (bound.item() for bound in bounds)
    value = predicted.item()
    inside = abs(found - value) <= error and (bounds is None or lower - error <= value <= upper + error)
    active = int(posed.rows.any(-1).sum())
    m = posed.derivatives.H.shape[-1]
    return Extension(posed.result, quantity, m, active, value, lower, upper, found, error, inside)


def semidefinite(generator: torch.Generator, m: int, flat: int) -> tuple[Tensor, Tensor]:
    """A matrix with eigenvalues from 1 to 10, but for so many that are 0, and the directions of these."""
    basis = torch.linalg.qr(normal(generator, m, m)).Q
    values = torch.logspace(0, 1, m, dtype=torch.float64)
    values[:flat] = 0.0
    return basis @ torch.diag(values) @ basis.mT, basis[:, :flat].mT
