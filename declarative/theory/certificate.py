"""A proof that a cheap gradient descends, without the exact one.

With (b, c) = -(B g_hat, C g_hat), one forward-mode pass, and the Schur complement S = A H^-1 A', the exact gradient of
Proposition 2.1 has

    g'g_hat = v'H^-1 b - w'S^-1 r,    r = A H^-1 v,    w = A H^-1 b - c,

for the g_hat of any rule, with constraints that see the input (C != 0) or not; active inequalities are rows of A. Only
w'S^-1 r is dear. It is polarised, w'S^-1 r = ((r + w)'S^-1 (r + w) - (r - w)'S^-1 (r - w)) / 4, and each quadratic form
lies between two numbers that every step of conjugate gradients brings closer (Golub and Meurant, 1994; Meurant and
Tichy, 2013):

    Gauss, from below:         sum of gamma_j ||residual_j||^2 over the steps so far,
    Gauss-Radau, from above:   the same plus gamma_mu ||residual||^2, for a mu below the spectrum of S.

As soon as the bounds of g'g_hat are on the same side of the threshold, it is decided.

**What it needs**: H positive definite, which is tested, and a number mu > 0 that is known to be below the spectrum of
S on its range, which is not for free: for fixed linear constraints it comes from A alone and the largest eigenvalue of
H (:mod:`.schur_complement`), for transport from the plan's smallest entry. ``probable_floor`` is right only with a
probability. Without a floor nothing is ever certified.

**Rounding errors** are counted at their worst. In the norm ||z||_H = (z'H z)^1/2 nothing that S^-1 does to a vector A z
makes it longer, so that errors of H^-1 v and H^-1 b, relative to their lengths in that norm, are errors of g'g_hat
relative to the product of these lengths: a margin of the square root of the precision is enough if the condition
number of H is below the inverse of that square root, and nothing is certified if it is not. Errors of r, w and of
products with S may lie where S^-1 is largest, and are divided by mu. Nothing depends on units: v, g_hat, r and w are
brought to a length of about 1, or their squares would underflow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..gradients import as_rows
from ..structure import Point
from .matrices import length_of
from .schur_complement import SchurComplement, schur_complement

STEPS = 30  # of conjugate gradients, at most
ROUNDING = 64  # units in the last place that a sum may lose


@dataclass(frozen=True)
class Certificate:
    """What is proven of the problems of a batch, one entry each.

    Attributes:
        descends: g'g_hat is above the threshold, share * ||g_hat||^2.
        ascends: it is below.
        lower, upper: the bounds of (g'g_hat - share * ||g_hat||^2) / (||v|| ||g_hat||) when the iteration was left,
            with what rounding errors may be. Whatever the lengths of v and g_hat are, these numbers neither under- nor
            overflow for that; where a length is zero, it counts as 1.
        steps: after how many steps it was decided; the limit if it was not.
    """

    descends: Tensor
    ascends: Tensor
    lower: Tensor
    upper: Tensor
    steps: Tensor

    @property
    def decided(self) -> Tensor:
        """Either of the two."""
        return self.descends | self.ascends


def certify(
    point: Point,
    v: Tensor,  # (batch, m)
    g_hat: Sequence[Tensor],
    wanted: Sequence[int],
    complement: SchurComplement | None = None,
    *,
    share: float = 0.0,
    steps: int = STEPS,
) -> Certificate:
    """Prove on which side of share * ||g_hat||^2 the product g'g_hat is.

    ||g_hat||^2 is the decrease that the cheap gradient promises for each unit of a step, and g'g_hat what is kept of
    the promise; a share of zero asks for its sign alone. The verdicts are right up to rounding errors, for which a
    margin of the square root of the precision is left.

    Args:
        point: the problems at their solutions, none of whose inputs the batch shares.
        v: the incoming gradient.
        g_hat: the gradient that some rule gives each of the wanted inputs.
        wanted: their positions.
        complement: that of the problems, if more is known of it than :func:`schur_complement` finds out.
        share: of the promise.
        steps: of conjugate gradients, at most.
    """
    complement = schur_complement(point) if complement is None else complement
    v, of_v = _normalised(v)
    flat, of_g = _normalised(as_rows(g_hat, v))
    parts = flat.split([grad.shape[1:].numel() for grad in g_hat], -1)
    tangents = tuple(part.reshape(grad.shape) for part, grad in zip(parts, g_hat, strict=True))
    b, c = point.batch.pushforward(point.u, point.multipliers, tangents, wanted)
    active = point.active.to(v.dtype)
    q, free = complement.inverse(torch.stack([b, v]))
    known = (q * v).sum(-1)
    promised = share * flat.square().sum(-1) * (of_g / of_v)
    seen = complement.adapt(c * active)
    w, r = complement.rows(q) - seen, complement.rows(free)
    lengths = [(x * y).sum(-1).clamp(min=0.0).sqrt() for x, y in ((q, b), (free, v))]  # in the norm of H
    size = lengths[0] * lengths[1] + (q * v).abs().sum(-1) + promised.abs()
    terms = length_of(w), length_of(r)
    if complement.ceiling is not None:
        root = complement.ceiling.sqrt()
        terms = terms[0] + root * lengths[0] + length_of(seen), terms[1] + root * lengths[1]
    return decide(complement, known - promised, size, w, r, steps, terms)


def decide(
    complement: SchurComplement,
    known: Tensor,
    size: Tensor,
    w: Tensor,
    r: Tensor,
    steps: int = STEPS,
    terms: tuple[Tensor, Tensor] | None = None,
) -> Certificate:
    """The sign of known - w'S^-1 r and its bounds, for (batch,), (batch, p) and (batch, p).

    The size is that of the terms of what is known, and terms are the lengths of the terms that w and r were computed
    from, (batch,) each, if they are longer than w and r.
    """
    terms = (length_of(w), length_of(r)) if terms is None else terms
    (w, of_w), (r, of_r) = _normalised(w), _normalised(r)  # both have the same length: bounds are closest
    known, size = (x / of_w / of_r for x in (known, size))
    bounds = QuadraticForms(complement, torch.stack([r + w, r - w]), terms[0] / of_w + terms[1] / of_r)
    taken = torch.full_like(known, steps)
    decided = torch.zeros_like(known, dtype=torch.bool)
    for step in range(steps + 1):
        low, high = bounds.least, bounds.upper
        lower, upper = known - (high[0] - low[1]) / 4, known - (low[0] - high[1]) / 4
        margin = torch.finfo(known.dtype).eps ** 0.5 * (size + low.sum(0) / 4)
        lower, upper = lower - margin, upper + margin
        descends, ascends = lower > 0, upper < 0
        taken = torch.where((descends | ascends) & ~decided, step, taken)
        decided = descends | ascends
        if step == steps or bool(decided.all()):
            break
        bounds.step()
    lower, upper = (_times_lengths(bound, of_w, of_r) for bound in (lower, upper))
    return Certificate(descends, ascends, lower, upper, taken)


class QuadraticForms:
    """Bounds of b'S^-1 b by conjugate gradients for S x = b, (..., batch, p); the floor of S must be one.

    What b and the residual have of rounding errors may lie in the direction in which S^-1 is largest, and belongs to
    the bounds. They are some multiple of the precision, of the terms that b was computed from (their size is given) and
    of those of all that was taken away from it.
    """

    def __init__(self, complement: SchurComplement, b: Tensor, size: Tensor) -> None:
        self.complement = complement
        self.residual, self.direction = b, b
        self.squared = b.square().sum(-1)
        self.precision = ROUNDING * torch.finfo(b.dtype).eps
        self.noise = self.precision * size.expand_as(self.squared)  # of the length of the residual
        self.lower = torch.zeros_like(self.squared)
        information = torch.finfo(b.dtype)
        floor = torch.where(complement.floor > information.tiny / information.eps, complement.floor, 0.0)
        self.floor = floor.expand_as(self.squared)
        self.radau = 1 / self.floor  # gamma_mu; infinite where there is no floor
        self.sound = torch.ones_like(self.squared, dtype=torch.bool)

    @property
    def error(self) -> Tensor:
        """What rounding errors can be of the root of the form."""
        return self.noise / self.floor.sqrt()

    @property
    def least(self) -> Tensor:
        """The lower bound, less rounding errors."""
        return (self.lower.sqrt() - self.error).clamp(min=0.0).square()

    @property
    def upper(self) -> Tensor:
        """Infinite where there is no floor, or where it has turned out not to be one."""
        most = ((self.lower + self.radau * self.squared).sqrt() + self.error).square()
        return torch.where(self.sound & (self.floor > 0), most, torch.inf)

    def step(self) -> None:
        """Bring the bounds closer."""
        product = self.complement(self.direction)
        curvature = (self.direction * product).sum(-1)
        running = self.squared.sqrt() > self.noise
        self.sound = self.sound & ((curvature > 0) | ~running)
        gamma = torch.where(running, _ratio(self.squared, curvature), 0.0)
        self.residual = self.residual - gamma.unsqueeze(-1) * product
        self.noise = self.noise + self.precision * gamma * self._terms(product)
        before, self.squared = self.squared, self.residual.square().sum(-1)
        self.lower = self.lower + gamma * before
        grown = torch.where(running, _ratio(self.squared, before), 0.0)
        self.direction = self.residual + grown.unsqueeze(-1) * self.direction
        # gamma_mu > gamma as long as mu is below the spectrum: anything else is evidence that it is not.
        beyond = self.radau - gamma
        self.sound = self.sound & ((beyond > 0) | ~running)
        self.radau = torch.where(running, _ratio(beyond, self.floor * beyond + grown), self.radau)

    def _terms(self, product: Tensor) -> Tensor:
        """The length of the terms of S times the direction."""
        ceiling = self.complement.ceiling
        length: Tensor = product.norm(dim=-1) if ceiling is None else ceiling * self.direction.norm(dim=-1)
        return length


def _ratio(x: Tensor, y: Tensor) -> Tensor:
    """x / y, and 1 where y is not positive."""
    return torch.where(y > 0, x / torch.where(y > 0, y, 1.0), 1.0)


def _times_lengths(bound: Tensor, one: Tensor, other: Tensor) -> Tensor:
    """The product of all three, whose sign does not get lost: what would underflow is the smallest number there is."""
    large, small = torch.maximum(one, other), torch.minimum(one, other)
    product, least = bound * large * small, torch.finfo(bound.dtype).tiny
    product = torch.where(product.isfinite(), product, bound * small * large)
    return torch.where((product == 0) & (bound != 0), bound.sign() * least, product)


def _normalised(x: Tensor) -> tuple[Tensor, Tensor]:  # (batch, n) -> (batch, n), (batch,)
    """The vectors at length 1, and their lengths; 1 for one that is zero."""
    length = length_of(x)
    unit = torch.where(length > 0, length, 1.0)
    return x / unit.unsqueeze(-1), unit
