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
H (:func:`schur_complement`), for transport from the plan's smallest entry. :func:`probable_floor` is right only with a
probability. Without a floor nothing is ever certified.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..linear import DiagonalHessianSystem, HessianSystem
from ..linear.contract import rank_tolerance, times
from ..structure import Point

Map = Callable[[Tensor], Tensor]
STEPS = 30  # of conjugate gradients, at most
ROUNDING = 64  # units in the last place that a sum may lose


@dataclass(frozen=True)
class SchurComplement:
    """S = A H^-1 A' of a batch of problems, as far as a certificate needs it: nothing is formed.

    All maps take tensors (..., batch, m) or (..., batch, p) with any leading dimensions.

    Attributes:
        inverse: H^-1 z.
        rows: A z.
        columns: A' s.
        floor: a number below all eigenvalues of S on its range, zero where none is known; (batch,).
        adapt: c of the node's constraints -> c of the rows that A has here, which may be others or have other units.
    """

    inverse: Map
    rows: Map
    columns: Map
    floor: Tensor
    adapt: Map = lambda c: c

    def __call__(self, s: Tensor) -> Tensor:
        return self.rows(self.inverse(self.columns(s)))


@dataclass(frozen=True)
class Certificate:
    """What is proven of the problems of a batch, one entry each.

    Attributes:
        descends: g'g_hat is above the threshold.
        ascends: it is below.
        lower, upper: the bounds of g'g_hat when the iteration was left.
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
    b, c = point.batch.pushforward(point.u, point.multipliers, tuple(g_hat), wanted)
    active = point.active.to(v.dtype)
    q, free = complement.inverse(torch.stack([b, v]))
    known = (q * v).sum(-1)
    promised = share * torch.stack([grad.reshape(len(v), -1).square().sum(-1) for grad in g_hat]).sum(0)
    w = complement.rows(q) - complement.adapt(c * active)
    size = (q * v).abs().sum(-1) + promised.abs()
    return decide(complement, known - promised, size, w, complement.rows(free), steps)


def decide(
    complement: SchurComplement, known: Tensor, size: Tensor, w: Tensor, r: Tensor, steps: int = STEPS
) -> Certificate:
    """The sign of known - w'S^-1 r, for (batch,), (batch, p) and (batch, p); size is of the terms of what is known."""
    # In these units both have the same length, for which the bounds are closest.
    lengths = r.norm(dim=-1), w.norm(dim=-1)
    unit = torch.where(torch.minimum(*lengths) > 0, _ratio(*lengths), 1.0).sqrt().unsqueeze(-1)
    r, w = r / unit, w * unit
    bounds = QuadraticForms(complement, torch.stack([r + w, r - w]), r.norm(dim=-1) + w.norm(dim=-1))
    taken = torch.full_like(known, steps)
    decided = torch.zeros_like(known, dtype=torch.bool)
    for step in range(steps + 1):
        low, high = bounds.lower, bounds.upper
        lower, upper = known - (high[0] - low[1]) / 4, known - (low[0] - high[1]) / 4
        margin = torch.finfo(known.dtype).eps ** 0.5 * (size + low.sum(0) / 4)
        descends, ascends = lower > margin, upper < -margin
        taken = torch.where((descends | ascends) & ~decided, step, taken)
        decided = descends | ascends
        if step == steps or bool(decided.all()):
            break
        bounds.step()
    return Certificate(descends, ascends, lower, upper, taken)


class QuadraticForms:
    """Bounds of b'S^-1 b by conjugate gradients for S x = b, (..., batch, p); the floor of S must be one.

    What the residual has of rounding errors may lie in the direction in which S^-1 is largest, and belongs to the upper
    bound. They are some multiple of the precision, of the terms that b was computed from (their size is given) and of
    all that was taken away from it.
    """

    def __init__(self, complement: SchurComplement, b: Tensor, size: Tensor) -> None:
        self.complement = complement
        self.residual, self.direction = b, b
        self.squared = b.square().sum(-1)
        self.precision = ROUNDING * torch.finfo(b.dtype).eps
        self.noise = self.precision * size.expand_as(self.squared)  # of the length of the residual
        self.lower = torch.zeros_like(self.squared)
        self.floor = complement.floor.expand_as(self.squared)
        self.radau = 1 / self.floor  # gamma_mu; infinite where there is no floor
        self.sound = torch.ones_like(self.squared, dtype=torch.bool)

    @property
    def upper(self) -> Tensor:
        """Infinite where there is no floor, or where it has turned out not to be one."""
        left = ((self.radau * self.squared).sqrt() + self.noise / self.floor.sqrt()).square()
        return torch.where(self.sound & (self.floor > 0), self.lower + left, torch.inf)

    def step(self) -> None:
        """Bring the bounds closer."""
        product = self.complement(self.direction)
        curvature = (self.direction * product).sum(-1)
        running = self.squared.sqrt() > self.noise
        self.sound = self.sound & ((curvature > 0) | ~running)
        gamma = torch.where(running, _ratio(self.squared, curvature), 0.0)
        self.residual = self.residual - gamma.unsqueeze(-1) * product
        self.noise = self.noise + self.precision * gamma * product.norm(dim=-1)
        before, self.squared = self.squared, self.residual.square().sum(-1)
        self.lower = self.lower + gamma * before
        grown = torch.where(running, _ratio(self.squared, before), 0.0)
        self.direction = self.residual + grown.unsqueeze(-1) * self.direction
        # gamma_mu > gamma as long as mu is below the spectrum: anything else is evidence that it is not.
        beyond = self.radau - gamma
        self.sound = self.sound & ((beyond > 0) | ~running)
        self.radau = torch.where(running, _ratio(beyond, self.floor * beyond + grown), self.radau)


def schur_complement(point: Point) -> SchurComplement:
    """That of a node without a structure of its own, with a floor wherever H is positive definite.

    S >= A A' / ||H||, so that a floor is the smallest eigenvalue of A A' over a bound of the largest of H. To find the
    former takes about as long as the exact gradient; where A is the same in all calls, do it once (``floor_of_rows``)
    and keep it.
    """
    jacobian = point.rows()
    lengths = torch.linalg.vector_norm(jacobian, dim=-1)
    weights = torch.where(point.active & (lengths > 0), 1 / lengths, 0.0)  # the units of a constraint do not matter
    rows = jacobian * weights.unsqueeze(-1)
    inverse, size, definite = _inverse_hessian(dataclasses.replace(point, builder=None, factors=None))
    floor = torch.where(definite, floor_of_rows(rows) / size, 0.0)
    return SchurComplement(inverse, lambda z: times(rows, z), lambda s: times(rows.mT, s), floor, lambda c: c * weights)


def floor_of_rows(rows: Tensor) -> Tensor:  # (batch, p, m) -> (batch,)
    """The smallest eigenvalue of A A', less rounding errors, without rows that are zero; 0 for dependent rows.

    Example:
        >>> floor_of_rows(torch.tensor([[[3.0, 4.0], [0.0, 0.0]], [[1.0, 0.0], [2.0, 0.0]]])).round(decimals=2)
        tensor([25.,  0.])
    """
    if not rows.shape[-2]:
        return rows.new_ones(rows.shape[:-2])
    gram = rows @ rows.mT
    largest = torch.diagonal(gram, dim1=-2, dim2=-1).sum(-1)
    empty = ~rows.any(-1)
    values = torch.linalg.eigvalsh(gram + torch.diag_embed(empty * largest.clamp(min=1.0).unsqueeze(-1)))
    floor: Tensor = (values[..., 0] - rank_tolerance(rows) * values[..., -1]).clamp(min=0.0)
    return floor


def _inverse_hessian(point: Point) -> tuple[Map, Tensor, Tensor]:
    """H^-1, a bound of the largest eigenvalue of H, and whether H is positive definite to working precision."""
    system = point.system("curvature")
    if isinstance(system, DiagonalHessianSystem):
        diagonal = system.diagonal
        size = diagonal.abs().amax(-1)
        definite = diagonal.amin(-1) > rank_tolerance(diagonal) * size
        safe = torch.where(definite.unsqueeze(-1), diagonal, 1.0)
        return lambda z: z / safe, size, definite
    assert isinstance(system, HessianSystem)  # a point without a builder has no other
    hessian = system.hessian
    size = hessian.abs().sum(-1).amax(-1)
    factor, info = torch.linalg.cholesky_ex(hessian)
    pivots = torch.diagonal(factor, dim1=-2, dim2=-1)
    definite = (info == 0) & (pivots.square().amin(-1) > rank_tolerance(hessian) * size)
    identity = torch.eye(hessian.shape[-1], dtype=hessian.dtype, device=hessian.device)
    factor = torch.where(definite[:, None, None], factor, identity)
    return lambda z: torch.cholesky_solve(z.unsqueeze(-1), factor).squeeze(-1), size, definite


def probable_floor(complement: SchurComplement, like: Tensor, steps: int, risk: float) -> Tensor:
    """A floor of S that is one with a probability of 1 - risk for each problem, over a random start of Lanczos' method.

    After k steps from a random start, the largest Ritz value is below (1 - e) times the largest eigenvalue with a
    probability of at most 1.648 sqrt(p) exp(-(2k - 1) sqrt(e)) (Kuczynski and Wozniakowski, 1992). Used for S and for
    ||S|| I - S, each with half of the risk. It is zero where that is not enough to tell S from a singular matrix, which
    takes about as many steps as solving with S does. S must be regular.

    Args:
        complement: S; its floor is not used.
        like: (batch, p).
        steps: k.
        risk: the probability that it is none.
    """
    ritz = _ritz_values(complement, like, steps)
    error = (math.log(1.648 * like.shape[-1] ** 0.5 * 2 / risk) / (2 * steps - 1)) ** 2
    if error >= 1:
        return torch.zeros_like(ritz[:, 0])
    largest = ritz[:, -1] / (1 - error)
    return ((ritz[:, 0] - error * largest) / (1 - error)).clamp(min=0.0)


def _ritz_values(matrix: Map, like: Tensor, steps: int) -> Tensor:  # (batch, p) -> (batch, steps)
    """Of Lanczos' method from a random start, with all vectors kept orthogonal."""
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(like.shape, generator=generator, dtype=torch.float64).to(like)
    basis = [start / start.norm(dim=-1, keepdim=True)]
    projected = []
    for _ in range(steps):
        product = matrix(basis[-1])
        projected.append(product)
        for vector in 2 * basis:  # twice is enough
            product = product - (product * vector).sum(-1, keepdim=True) * vector
        basis.append(product / product.norm(dim=-1, keepdim=True).clamp(min=torch.finfo(like.dtype).tiny))
    vectors, images = (torch.stack(list_, -1) for list_ in (basis[:-1], projected))
    values: Tensor = torch.linalg.eigvalsh(vectors.mT @ images)
    return values


def _ratio(x: Tensor, y: Tensor) -> Tensor:
    """x / y, and 1 where y is not positive."""
    return torch.where(y > 0, x / torch.where(y > 0, y, 1.0), 1.0)
