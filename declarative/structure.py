"""The linear system of a batch of problems at a point, as the structure of its Hessian suggests.

A diagonal Hessian is recognised, or declared, and never assembled; a large one is tried without a matrix first.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from .linear import DenseSystem, DiagonalHessianSystem, DiagonalSystem, HessianSystem, MatrixFreeSystem, System
from .linear.directions import unforeseeable
from .problem import Batch, Expansion
from .torchside import value_is_hidden

General = DenseSystem | DiagonalSystem | MatrixFreeSystem  # the systems of no problem in particular
Kind = Literal["full", "curvature", "objective"]
Structure = Literal["auto", "dense", "diagonal", "matrix-free"]
LARGE = 2000  # variables, from which a dense Hessian is the last resort
WORTH = 32  # variables, from which it pays to look for a diagonal Hessian
PROBES = 2  # directions along which a diagonal Hessian has to behave like one


@dataclass(frozen=True)
class Place:
    """A batch of problems at points, with multipliers and the constraints that count as equalities there.

    Attributes:
        batch: the problems.
        u: the points, (batch, m).
        multipliers: stacked, following L = f - multipliers' c, (batch, k).
        active: which constraints hold with equality, (batch, k).
        structure: what is known of the Hessian.
        jacobian: A, if it is known already, in the form of the batch.
        hessian: H, likewise, or its diagonal if that is all of it.
    """

    batch: Batch
    u: Tensor
    multipliers: Tensor
    active: Tensor
    structure: Structure = "auto"
    jacobian: Tensor | None = None
    hessian: Tensor | None = None

    def rows(self) -> Tensor:  # (batch, k, m)
        """A."""
        return self.batch.jacobian(self.u) if self.jacobian is None else self.jacobian

    def system(self, kind: Kind = "full") -> System:
        """The linear system of a rule: ``full`` has H and A, ``curvature`` H alone, ``objective`` H_hat alone."""
        if kind == "full":
            return self.full()
        multipliers = None if kind == "objective" else self.multipliers
        diagonal = self._diagonal(multipliers)
        if diagonal is not None:
            return DiagonalHessianSystem(diagonal)
        return HessianSystem(self.batch.hessian(self.u, multipliers))

    def full(self) -> General:
        """The system of H and A."""
        if self.hessian is not None:
            kind = DiagonalSystem if self.hessian.shape == self.u.shape else DenseSystem
            return kind(self.hessian, self.rows(), self.active)
        diagonal = self._diagonal(self.multipliers)
        if diagonal is not None:
            return DiagonalSystem(diagonal, self.rows(), self.active)
        large = self.structure == "matrix-free" or (self.structure == "auto" and self.batch.m > LARGE)
        return self._matrix_free() if large and self._is_plain() else self.dense()

    def expanded(self) -> tuple[General, Expansion]:
        """The full system, and the values and first derivatives that go with it."""
        if self.batch.m < WORTH or self.structure == "dense":
            here = self.batch.expand(self.u, self.multipliers)
            return DenseSystem(here.curvature, here.jacobian, self.active), here
        objective, gradient, values, jacobian = self.batch.slopes(self.u, self.multipliers)
        here = Expansion(objective, gradient, values, jacobian, gradient.new_zeros(0))
        return dataclasses.replace(self, jacobian=jacobian).full(), here

    def dense(self) -> DenseSystem:
        """The full system with its matrices assembled."""
        here = self.batch.expand(self.u, self.multipliers)
        return DenseSystem(here.curvature, here.jacobian, self.active)

    def _is_plain(self) -> bool:
        """Whether decisions may depend on values, and only the values of the solution count, not its derivatives."""
        return not torch.is_grad_enabled() and not value_is_hidden(self.u)

    def _may_be_diagonal(self) -> bool:
        """Whether it is worth while to look.

        That a Hessian is diagonal at a point says nothing about its derivative, so a pass that is itself differentiated
        takes the user's word or the dense matrix.
        """
        if self.structure != "auto":
            return self.structure == "diagonal"
        return self.batch.m >= WORTH and self._is_plain()

    def _diagonal(self, multipliers: Tensor | None) -> Tensor | None:  # (batch, m)
        """The diagonal of the Hessian, if that is all of it."""
        if not self._may_be_diagonal():
            return None
        diagonal, regular = _probed(self.batch, self.u, multipliers)
        if self._is_plain() and not bool(regular):
            if self.structure == "diagonal":
                raise ValueError("structure='diagonal' was declared, but the Hessian is not diagonal here.")
            return None
        return diagonal

    def _matrix_free(self) -> MatrixFreeSystem:
        def curvature(z: Tensor) -> Tensor:
            return self.batch.product(self.u, self.multipliers, z, torch.zeros_like(self.multipliers))

        def probe(directions: Tensor) -> Tensor:
            return self.batch.curvatures(self.u, self.multipliers, directions)

        required = self.structure == "matrix-free"
        return MatrixFreeSystem(curvature, probe, self.rows(), self.active, self.dense, required=required)


def _probed(batch: Batch, u: Tensor, multipliers: Tensor | None) -> tuple[Tensor, Tensor]:  # (batch, m), ()
    """The Hessian times ones, and whether that is its diagonal: H r = (H 1) * r for directions r without a pattern."""
    directions = torch.cat([u.new_ones(1, batch.m), unforeseeable(PROBES, u)])
    products = batch.curvatures(u, multipliers, directions.expand(batch.size, *directions.shape))
    diagonal = products[:, 0]
    expected = diagonal.unsqueeze(1) * directions
    rounding = 50 * torch.finfo(u.dtype).eps * torch.maximum(expected.abs(), products.abs())
    return diagonal, ((products - expected).abs() <= rounding).all()
