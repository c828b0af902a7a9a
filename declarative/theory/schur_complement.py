"""The Schur complement S = A H^-1 A' of problems at their solutions, and numbers below its spectrum."""

from __future__ import annotations

import dataclasses
import math
import secrets
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..linear import DiagonalHessianSystem, HessianSystem
from ..linear.contract import rank_tolerance, times
from ..structure import Point
from .matrices import length_of, random_like

Map = Callable[[Tensor], Tensor]


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
        ceiling: a number above ||A||^2 ||H^-1||, for some units of the unknowns, by which rounding errors are judged;
            (batch,). Without it they are judged by the results of products, which may be smaller than the terms of
            these: give one if S is ill-conditioned.
    """

    inverse: Map
    rows: Map
    columns: Map
    floor: Tensor
    adapt: Map = lambda c: c
    ceiling: Tensor | None = None

    def __call__(self, s: Tensor) -> Tensor:
        return self.rows(self.inverse(self.columns(s)))


def schur_complement(point: Point) -> SchurComplement:
    """That of a node without a structure of its own, with a floor wherever H is positive definite.

    In units of the unknowns in which the diagonal of H is 1, S >= A A' / ||H||, so that a floor is the smallest
    eigenvalue of A A' over a bound of the largest of H. To find the former takes about as long as the exact gradient;
    where A is the same in all calls, do it once (``floor_of_rows``) and keep it. There is no floor where H is not
    positive definite, or its condition number is above the inverse of the square root of the precision. What is sparse
    is made dense.
    """
    batch = point.batch.dense()
    jacobian = point.rows() if point.batch.layout is batch.layout else None
    point = dataclasses.replace(point, batch=batch, jacobian=jacobian, hessian=None, builder=None, factors=None)
    hessian = _equilibrated(point)
    scaled = point.rows() * hessian.units.unsqueeze(-2)
    lengths = length_of(scaled)
    weights = torch.where(point.active & (lengths > 0), 1 / lengths, 0.0)  # the units of a constraint do not matter
    rows, scaled = (matrix * weights.unsqueeze(-1) for matrix in (point.rows(), scaled))
    usable = hessian.definite & scaled.isfinite().all(-1).all(-1) & rows.isfinite().all(-1).all(-1)
    rows, scaled = (torch.where(usable[:, None, None], matrix, 0.0) for matrix in (rows, scaled))
    floor = torch.where(usable, floor_of_rows(scaled) / hessian.largest, 0.0)
    ceiling = scaled.square().sum((-2, -1)) / hessian.smallest
    return SchurComplement(
        hessian.inverse,
        lambda z: times(rows, z),
        lambda s: times(rows.mT, s),
        floor,
        lambda c: torch.where(usable.unsqueeze(-1), c * weights, 0.0),
        ceiling,
    )


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


@dataclass(frozen=True)
class _Equilibrated:
    """H of a batch of problems, in units of the unknowns in which its diagonal is 1."""

    inverse: Map  # of H in its own units
    units: Tensor  # (batch, m)
    smallest: Tensor  # a number below all eigenvalues in these units, (batch,)
    largest: Tensor  # and above
    definite: Tensor  # whether H is positive definite, and its inverse is known to half of the digits


def _equilibrated(point: Point) -> _Equilibrated:
    """Read off H; where it is not definite, its inverse is that of another matrix."""
    system = point.system("curvature")
    is_diagonal = isinstance(system, DiagonalHessianSystem)
    if isinstance(system, DiagonalHessianSystem):
        hessian = diagonal = system.diagonal
    else:
        assert isinstance(system, HessianSystem)  # a dense point without a builder has no other
        hessian, diagonal = system.hessian, torch.diagonal(system.hessian, dim1=-2, dim2=-1)
    definite = diagonal.amin(-1) > rank_tolerance(hessian) * diagonal.abs().amax(-1)  # neither if it is NaN
    units = torch.where(definite.unsqueeze(-1), diagonal, 1.0).rsqrt()
    one = torch.ones_like(diagonal[:, 0])
    if is_diagonal:
        return _Equilibrated(lambda z: z * units * units, units, one, one, definite)
    identity = torch.eye(hessian.shape[-1], dtype=hessian.dtype, device=hessian.device)
    scaled = units.unsqueeze(-1) * hessian * units.unsqueeze(-2)
    scaled = torch.where(definite[:, None, None], scaled, identity)
    factor, info = torch.linalg.cholesky_ex(scaled)
    factor = torch.where((info == 0)[:, None, None], factor, identity)
    # The trace of the inverse is above its largest eigenvalue; pivots can be large where that is too.
    inverted = torch.linalg.solve_triangular(factor, identity.expand_as(factor), upper=False)
    smallest, largest = 1 / inverted.square().sum((-2, -1)), scaled.abs().sum(-1).amax(-1)
    definite = definite & (info == 0) & (smallest > torch.finfo(hessian.dtype).eps ** 0.5 * largest)

    def inverse(z: Tensor) -> Tensor:
        return units * torch.cholesky_solve((units * z).unsqueeze(-1), factor).squeeze(-1)

    return _Equilibrated(inverse, units, torch.where(definite, smallest, one), largest, definite)


def probable_floor(complement: SchurComplement, like: Tensor, steps: int, risk: float) -> Tensor:
    """A floor of S that is one with a probability of 1 - risk for each problem, over a random start of Lanczos' method.

    Each call draws a start of its own from the randomness of the machine: the same one every time would be wrong for
    the same problems every time. torch's own random numbers are not touched.

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
    start = random_like(like, secrets.randbits(63))
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
