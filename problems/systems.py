"""Linear systems with structure, for the backward passes of the ready-made layers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial

import torch
from torch import Tensor

from declarative.linear import times
from declarative.linear.contract import Pair, Solve, System

REFINEMENTS = 2  # of the solution by factors that a forward solver has left


def largest(x: Tensor) -> Tensor:  # (batch, ...) -> (batch,)
    """The largest absolute value of each problem; 1 where all are zero, so that one can divide by it."""
    size = x.reshape(x.shape[0], -1).abs().amax(-1)
    return torch.where(size > 0, size, 1.0)


def thin_product(matrix: Tensor, thin: Tensor) -> Tensor:  # (batch, m, n), (batch, n, k) -> (batch, m, k)
    """The matrix times few columns. A batch of these is several times faster with the columns as rows."""
    return torch.bmm(thin.mT, matrix.mT).mT


class DiagonalSystem(System):
    """A diagonal Hessian without constraint rows, given by its inverse w: z / w = r, s = 0."""

    def __init__(self, inverse: Tensor) -> None:  # (batch, m)
        super().__init__(inverse)
        self.inverse = inverse

    def multiply(self, z: Tensor, s: Tensor) -> Pair:
        return z / self.inverse, s

    def factorise(self) -> Solve:
        def solve(r: Tensor, t: Tensor) -> Pair:
            return self.inverse * r, torch.zeros_like(t)

        return solve


class OneConstraintSystem(System):
    """A diagonal Hessian with one constraint: [diag(h) a; a' 0] [z; s] = [r; t], solved by the Schur complement.

    h is given with its inverse, by which the system is solved: a formula for that may keep digits that one for h has
    lost. It is h that is differentiated. A problem whose constraint is not active has s = 0 and z = r / h.
    """

    def __init__(self, hessian: Tensor, inverse: Tensor, normal: Tensor, active: Tensor) -> None:  # active: (batch, 1)
        super().__init__(hessian, inverse, normal, active)
        self.hessian = hessian
        self.inverse = inverse
        self.normal = normal
        self.active = active

    def multiply(self, z: Tensor, s: Tensor) -> Pair:
        mask = self.active.to(z.dtype)
        normal = mask * self.normal
        return self.hessian * z + normal * s, (normal * z).sum(-1, keepdim=True) - (1 - mask) * s

    def factorise(self) -> Solve:
        # In units in which both the normal and the inverse are of size 1, so that no product of them underflows.
        length, size = largest(self.normal).unsqueeze(-1), largest(self.inverse).unsqueeze(-1)
        normal = torch.where(self.active, self.normal / length, 0.0)
        weighted = self.inverse / size * normal
        complement = torch.where(self.active, (normal * weighted).sum(-1, keepdim=True), 1.0)

        def solve(r: Tensor, t: Tensor) -> Pair:
            gap = torch.where(self.active, t / length / size, 0.0)
            s = ((weighted * r).sum(-1, keepdim=True) - gap) / complement
            return self.inverse * (r - normal * s), s / length

        return solve


@dataclass(frozen=True)
class Reduction:
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
    def of(cls, hessian: Tensor, rows: Tensor) -> Reduction:  # (batch, m, m), (batch, k, m)
        """Factorise."""
        factor, info = torch.linalg.cholesky_ex(hessian)
        half = torch.linalg.solve_triangular(factor, rows.mT, upper=False)
        return cls((info == 0) & _well_conditioned(factor), factor, half)

    def product(self) -> Tensor:
        """C H^-1 C', (batch, k, k), in memory of its own."""
        return self.half.mT @ self.half

    @cached_property
    def complement(self) -> Tensor:
        """The same, once for all."""
        return self.product()

    def take(self, rows: Tensor) -> Reduction:
        """Those of the problems at these positions."""
        return Reduction(self.sound[rows], self.factor[rows], self.half[rows])

    def factorise(self, diagonal: Tensor) -> tuple[Solve, Tensor]:  # (batch, k)
        """The solution for D = diag(diagonal), and for which problems it can be relied on."""
        scale, small, good = _scaled_factor(self.complement.clone(), diagonal)
        column = scale.unsqueeze(-1)
        multipliers = lambda right: column * torch.cholesky_solve(column * right, small)  # noqa: E731
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
        """(z, s) with H z + C' s = r, where s, as a column, is a function of C H^-1 r - t."""
        first = self.start(r)
        s = multipliers(thin_product(self.half.mT, first) - t.unsqueeze(-1))
        return self.end(first, s), s.squeeze(-1)

    def start(self, r: Tensor) -> Tensor:  # (batch, m) -> (batch, m, 1)
        """L^-1 r."""
        first: Tensor = torch.linalg.solve_triangular(self.factor, r.unsqueeze(-1), upper=False)
        return first

    def end(self, first: Tensor, s: Tensor) -> Tensor:  # (batch, m, 1), (batch, k, 1) -> (batch, m)
        """z = H^-1 (r - C' s) from L^-1 r."""
        right = torch.baddbmm(first.mT, s.mT, self.half.mT, alpha=-1).mT
        z: Tensor = torch.linalg.solve_triangular(self.factor.mT, right, upper=True).squeeze(-1)
        return z


def _scaled_factor(matrix: Tensor, diagonal: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """d and the Cholesky factor of diag(d) (matrix + diagonal) diag(d), overwritten, and where it is well conditioned.

    Scaled to a diagonal of ones, so that neither units nor a large diagonal make it look singular.
    """
    torch.diagonal(matrix, dim1=-2, dim2=-1).add_(diagonal)
    scale = torch.diagonal(matrix, dim1=-2, dim2=-1).rsqrt()
    small, info = torch.linalg.cholesky_ex(matrix.mul_(scale.unsqueeze(-1)).mul_(scale.unsqueeze(-2)))
    return scale, small, (info == 0) & _well_conditioned(small)


def _well_conditioned(factor: Tensor) -> Tensor:
    """Whether a Cholesky factor leaves half of the digits; one that is not finite does not."""
    if not factor.shape[-1]:
        return torch.ones(len(factor), dtype=torch.bool, device=factor.device)
    diagonal = torch.diagonal(factor, dim1=-2, dim2=-1)
    result: Tensor = (diagonal.amin(-1) / diagonal.amax(-1)).square() > torch.finfo(factor.dtype).eps ** 0.5
    return result


@dataclass(frozen=True)
class Left:
    """The factorisation of a dense system with active rows, that a forward solver leaves for the backward pass.

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
    reduction: Reduction
    inverse: Tensor
    sound: Tensor
    size: Tensor | float = 1.0
    lengths: Tensor | float = 1.0

    @classmethod
    def of(cls, hessian: Tensor, rows: Tensor, active: Tensor, reduction: Reduction) -> Left:
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
        return self.reduction.solve(partial(thin_product, self.inverse), r, t)

    def refine(self, z: Tensor, s: Tensor, r: Tensor, t: Tensor) -> Pair:
        """(z, s) with a step of refinement."""
        change = self.solve(r - times(self.hessian, z) - times(self.rows.mT, s), t - times(self.rows, z))
        return z + change[0], s + change[1]

    def put(self, rows: Tensor, other: Left) -> Left:
        """That of the others at these positions, of the same systems."""
        names = ("active", "inverse", "sound")
        return replace(self, **{x: getattr(self, x).index_copy(0, rows, getattr(other, x)) for x in names})


class LeftSystem(System):
    """A system whose factorisation is there already; its solution is not differentiable."""

    def __init__(self, left: Left) -> None:
        super().__init__()
        self.left = left

    def multiply(self, z: Tensor, s: Tensor) -> Pair:
        left = self.left
        s = torch.where(left.active, s / left.lengths, -s)
        top = times(left.hessian, z) + times(left.rows.mT, torch.where(left.active, s, 0.0))
        return left.size * top, torch.where(left.active, times(left.rows, z) * left.size / left.lengths, s)

    def factorise(self) -> Solve:
        return self.left

    def solve(self, r: Tensor, t: Tensor) -> Pair:
        return self.left(r, t)
