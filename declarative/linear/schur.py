"""Dense systems [H C'; C -D] with a definite H, reduced to the multipliers: s follows from C H^-1 C' + D, z from s."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial

import torch
from torch import Tensor

from .contract import Pair, Solve, System, times

REFINEMENTS = 2  # of the solution by an explicit inverse


@dataclass(frozen=True)
class SchurReduction:
    """The systems [H C'; C -D] with H = L L', reduced to the multipliers: D may change, the rest is factored once.

    Attributes:
        sound: for which problems H is definite and well conditioned; for the others nothing here means anything.
        factor: L, (batch, m, m).
        half: L^-1 C', (batch, m, k).
    """

    sound: Tensor
    factor: Tensor
    half: Tensor

    @classmethod
    def of(cls, hessian: Tensor, rows: Tensor) -> SchurReduction:  # (batch, m, m), (batch, k, m)
        """Factorise."""
        factor, info = torch.linalg.cholesky_ex(hessian)
        largest = torch.diagonal(factor, dim1=-2, dim2=-1).square().amax(-1, keepdim=True)
        return cls.from_factor(factor, rows, (info == 0) & leaves_digits(factor, largest))

    @classmethod
    def from_factor(cls, factor: Tensor, rows: Tensor, sound: Tensor) -> SchurReduction:
        """With H = L L' factored already."""
        return cls(sound, factor, torch.linalg.solve_triangular(factor, rows.mT, upper=False))

    def product(self) -> Tensor:
        """C H^-1 C', (batch, k, k), in memory of its own."""
        return self.half.mT @ self.half

    @cached_property
    def complement(self) -> Tensor:
        """The same, once for all."""
        return self.product()

    def take(self, rows: Tensor) -> SchurReduction:
        """Those of the problems at these positions."""
        return SchurReduction(self.sound[rows], self.factor[rows], self.half[rows])

    def factorise(self, diagonal: Tensor) -> tuple[Solve, Tensor]:  # (batch, k)
        """The solution for D = diag(diagonal), and for which problems it can be relied on."""
        scale, small, good = _scaled_factor(self.complement.clone(), diagonal)
        multipliers = lambda right: scale * solve_factored(small, scale * right)  # noqa: E731
        return partial(self.solve, multipliers), self.sound & good

    def invert(self, active: Tensor) -> tuple[Tensor, Tensor]:  # (batch, k) -> (batch, k, k), (batch,)
        """(C H^-1 C')^-1 of the active rows, zero in the others, and for which problems it can be relied on."""
        mask = active.to(self.complement.dtype)
        matrix = self.complement * mask.unsqueeze(-1) * mask.unsqueeze(-2)
        scale, small, good = _scaled_factor(matrix, 1 - mask)
        scale = scale * mask
        eye = torch.eye(mask.shape[-1], dtype=mask.dtype, device=mask.device)
        safe = torch.where(good[:, None, None], small, eye)
        return scale.unsqueeze(-1) * torch.cholesky_inverse(safe) * scale.unsqueeze(-2), self.sound & good

    def solve(self, multipliers: Callable[[Tensor], Tensor], r: Tensor, t: Tensor) -> Pair:
        """(z, s) with H z + C' s = r, where s is a function of C H^-1 r - t."""
        first = self.start(r)
        s = multipliers(times(self.half.mT, first) - t)
        return self.end(first, s), s

    def start(self, r: Tensor) -> Tensor:  # (batch, m)
        """L^-1 r."""
        first: Tensor = torch.linalg.solve_triangular(self.factor, r.unsqueeze(-1), upper=False)
        return first.squeeze(-1)

    def end(self, first: Tensor, s: Tensor) -> Tensor:  # (batch, m), (batch, k) -> (batch, m)
        """z = H^-1 (r - C' s) from L^-1 r."""
        right = (first - times(self.half, s)).unsqueeze(-1)
        z: Tensor = torch.linalg.solve_triangular(self.factor.mT, right, upper=True)
        return z.squeeze(-1)


def solve_factored(factor: Tensor, right: Tensor) -> Tensor:  # (batch, n, n), (batch, n)
    """The solution by a Cholesky factor."""
    return torch.cholesky_solve(right.unsqueeze(-1), factor).squeeze(-1)


def _scaled_factor(matrix: Tensor, diagonal: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """d and the Cholesky factor of diag(d) (matrix + diagonal) diag(d), overwritten, and where it is well conditioned.

    Scaled to a diagonal of ones, so that neither units nor a large diagonal make it look singular.
    """
    torch.diagonal(matrix, dim1=-2, dim2=-1).add_(diagonal)
    scale = torch.diagonal(matrix, dim1=-2, dim2=-1).rsqrt()
    small, info = torch.linalg.cholesky_ex(matrix.mul_(scale.unsqueeze(-1)).mul_(scale.unsqueeze(-2)))
    return scale, small, (info == 0) & leaves_digits(small, torch.ones_like(scale))


def leaves_digits(factor: Tensor, before: Tensor, eps: float | None = None) -> Tensor:  # (batch, n, n), (batch, n)
    """Whether elimination leaves half of the digits of the sizes before it in every pivot of a Cholesky factor.

    Past that, another way is safer. A factor that is not finite does not.
    """
    if not factor.shape[-1]:
        return torch.ones(len(factor), dtype=torch.bool, device=factor.device)
    eps = torch.finfo(factor.dtype).eps if eps is None else eps
    pivots = torch.diagonal(factor, dim1=-2, dim2=-1)
    result: Tensor = (pivots.square() > eps**0.5 * before).all(-1)
    return result


@dataclass(frozen=True)
class ActiveFactorisation:
    """The factorisation of a dense system with active rows: of a forward solver, for the backward pass too.

    Attributes:
        hessian, rows, active: H (batch, m, m), C (batch, k, m) and which rows hold, (batch, k).
        reduction: what does not depend on the active rows.
        inverse: (C H^-1 C')^-1 of the active rows, zero elsewhere, (batch, k, k).
        sound: for which problems the solution can be relied on.
        size, lengths: the system is that of ``size`` H, (batch, 1), and of rows times ``size / lengths``, (batch, k).
    """

    hessian: Tensor
    rows: Tensor
    active: Tensor
    reduction: SchurReduction
    inverse: Tensor
    sound: Tensor
    size: Tensor | float = 1.0
    lengths: Tensor | float = 1.0

    @classmethod
    def of(cls, hessian: Tensor, rows: Tensor, active: Tensor, reduction: SchurReduction) -> ActiveFactorisation:
        """Factorise."""
        return cls(hessian, rows, active, reduction, *reduction.invert(active))

    def __call__(self, r: Tensor, t: Tensor) -> Pair:
        """(z, s) with H z + C' s = r and C z = t in the active rows, refined: an explicit inverse loses digits."""
        r, t = r / self.size, torch.where(self.active, t * self.lengths / self.size, 0.0)
        z, s = self.solve(r, t)
        for _ in range(REFINEMENTS):
            z, s = self.refine(z, s, r, t)
        return z, s * self.lengths

    def solve(self, r: Tensor, t: Tensor) -> Pair:
        """The same for H and C as they are, without refinement."""
        return self.reduction.solve(partial(times, self.inverse), r, t)

    def refine(self, z: Tensor, s: Tensor, r: Tensor, t: Tensor) -> Pair:
        """(z, s) with a step of refinement."""
        change = self.solve(r - times(self.hessian, z) - times(self.rows.mT, s), t - times(self.rows, z))
        return z + change[0], s + change[1]

    def put(self, rows: Tensor, other: ActiveFactorisation) -> ActiveFactorisation:
        """That of the others at these positions, of the same systems."""
        names = ("active", "inverse", "sound")
        return replace(self, **{x: getattr(self, x).index_copy(0, rows, getattr(other, x)) for x in names})


class FactorisedSystem(System):
    """A system whose factorisation is there already; its solution is not differentiable."""

    def __init__(self, factors: ActiveFactorisation) -> None:
        super().__init__()
        self.factors = factors

    def multiply(self, z: Tensor, s: Tensor) -> Pair:
        factors, active = self.factors, self.factors.active
        s = torch.where(active, s / factors.lengths, -s)
        top = times(factors.hessian, z) + times(factors.rows.mT, torch.where(active, s, 0.0))
        return factors.size * top, torch.where(active, times(factors.rows, z) * factors.size / factors.lengths, s)

    def factorise(self) -> Solve:
        return self.factors

    def solve(self, r: Tensor, t: Tensor) -> Pair:
        return self.factors(r, t)
