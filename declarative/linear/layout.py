"""How the derivatives of a batch of problems are stored, and what a method asks of them: the contract of a layout.

H and A are tensors of values, batch first. A form says which entries these are, and multiplies, scales and compares
with them; a layout is the forms of H and A, and solves the system of a Newton step with them:

    [ H + diag(primal)   A'         ] [z]   [r]
    [ A                 -diag(dual) ] [s] = [t]

with a dual of zero for equalities. Dense and sparse layouts differ in nothing else.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ..torchside import map_rows
from .contract import KktSystem, Pair
from .forms import Form, SymmetricForm

Product = Callable[[Tensor], Tensor]  # of matrices with vectors


class StepMatrix(NamedTuple):
    """The matrix of a Newton step: the values of H and A, and what is added to the diagonal."""

    hessian: Tensor
    jacobian: Tensor
    primal: Tensor  # (batch, m)
    dual: Tensor  # (batch, k), zero for equalities
    p: int  # the number of equalities, which come first
    weight: Tensor  # of A'A of these, which changes nothing in the solution, (batch,)
    damping: Tensor | None = None  # of these, relative, (batch,)


class KktSolution(NamedTuple):
    """The solution of the system of a Newton step, and what is to be said of its matrix."""

    z: Tensor  # (batch, m)
    s: Tensor  # (batch, k)
    convex: Tensor  # whether H + diag(primal) is positive definite along the constraints, (batch,)
    independent: Tensor  # whether the equalities are independent, (batch,)
    room: Tensor  # what elimination leaves of the diagonal of H at least, relatively, (batch,)


class ActiveSolution(NamedTuple):
    """The solution of the system of the active constraints, and for which problems all about it is as it should be."""

    z: Tensor  # (batch, m)
    s: Tensor  # (batch, k)
    trusted: Tensor  # H clearly definite along them, which are independent, and no digits lost, (batch,)


class Layout(abc.ABC):
    """The forms of H and A, and the system of a Newton step."""

    hessian: SymmetricForm
    jacobian: Form
    weights_help = False  # whether a weight of A'A may make H definite where it is so along the constraints

    @abc.abstractmethod
    def hessian_values(self, pull: Product, u: Tensor) -> Tensor:
        """H at u (..., m), from a function that multiplies it with vectors."""

    @abc.abstractmethod
    def jacobian_values(self, pull: Product, transpose: Callable[[], Product], u: Tensor, k: int) -> Tensor:
        """A at u (..., m), from a function that multiplies its transpose with vectors (..., k), or its transpose."""

    @abc.abstractmethod
    def solve_kkt(self, matrix: StepMatrix, right: Pair) -> KktSolution:  # (batch, m), (batch, k)
        """Factor and solve, without a decision by values."""

    @abc.abstractmethod
    def solve_active(
        self,
        hessian: Tensor,
        jacobian: Tensor,
        active: Tensor,  # (batch, k)
        right: Pair,  # (batch, m), (batch, k)
    ) -> ActiveSolution:
        """Solve :meth:`system` without a decision by values, where that is easy."""

    @abc.abstractmethod
    def least_curvature(
        self, hessian: Tensor, jacobian: Tensor, dual: Tensor, size: Tensor, p: int, rough: bool = False
    ) -> Pair:
        """The least curvature of H + G' dual^-1 G along the first p rows, relative to a size (batch, m) of H.

        If its order of magnitude is enough, ``rough`` may be faster.

        Returns:
            The curvature (batch,) and its direction (batch, m). Rows with hardly any dual are so stiff that they count
            as equalities.
        """

    @abc.abstractmethod
    def least_norm(self, jacobian: Tensor) -> Callable[[Tensor], Tensor]:
        """The function right (batch, k) -> z (batch, m), the shortest with A z = right."""

    @abc.abstractmethod
    def least_squares(self, jacobian: Tensor, right: Tensor) -> Tensor:  # (batch, m) -> (batch, k)
        """The least-squares, least-norm solution of A' l = right, for rows of A of unit length, or zero."""

    @abc.abstractmethod
    def quick_least_squares(self, jacobian: Tensor, right: Tensor) -> Tensor:  # (batch, m) -> (batch, k)
        """The same without a decision by values; not finite where the rows depend on each other."""

    @abc.abstractmethod
    def system(self, hessian: Tensor, jacobian: Tensor, active: Tensor) -> KktSystem:
        """The system at a point, of which solutions can be differentiated."""


def rows_of(pull: Product, u: Tensor, count: int) -> Tensor:  # (..., count, m)
    """The rows of Jacobians, by reverse passes with the unit vectors, all at once."""
    return products(pull, torch.eye(count, dtype=u.dtype, device=u.device), u)


def products(pull: Product, vectors: Tensor, u: Tensor) -> Tensor:  # (count, n) -> (..., count, m)
    """What a linear function to the space of u, of each of the problems at u (..., m), makes of these vectors."""
    if not len(vectors):
        return u.new_zeros(*u.shape[:-1], 0, u.shape[-1])
    spread = vectors.view(len(vectors), *(1,) * (u.dim() - 1), -1).expand(-1, *u.shape[:-1], -1)
    (found,) = map_rows(lambda row: (pull(row),), (0,), spread)
    return found.movedim(0, -2)
