"""Which entries of a batch of matrices are stored, as values with the batch first, and a system of H and A that are."""

from __future__ import annotations

import abc
from typing import Self, cast

import torch
from torch import Tensor

from .contract import KktSystem, Pair, times


class SymmetricForm(abc.ABC):
    """Which entries of a batch of symmetric matrices are stored, as values with the batch first."""

    @abc.abstractmethod
    def multiply(self, values: Tensor, vectors: Tensor) -> Tensor:  # (batch, columns) -> (batch, rows)
        """The matrices times vectors."""

    @abc.abstractmethod
    def diagonal(self, values: Tensor) -> Tensor:  # (batch, m)
        """The diagonal."""

    @abc.abstractmethod
    def least_change(self, values: Tensor, sizes: Tensor) -> Tensor:  # (batch, rows) -> (batch, columns)
        """The smallest change of each column's unknown that changes a row by its size; infinite if none does."""


class Form(SymmetricForm):
    """The same for any matrices."""

    @abc.abstractmethod
    def multiply_transposed(self, values: Tensor, vectors: Tensor) -> Tensor:  # (batch, rows) -> (batch, columns)
        """The transposed matrices times vectors."""

    @abc.abstractmethod
    def scale_rows(self, values: Tensor, factors: Tensor) -> Tensor:
        """The matrices with their rows multiplied by factors (batch, rows)."""

    @abc.abstractmethod
    def scale_columns(self, values: Tensor, factors: Tensor) -> Tensor:
        """The matrices with their columns multiplied by factors (batch, columns)."""

    @abc.abstractmethod
    def row_lengths(self, values: Tensor) -> Tensor:  # (batch, rows)
        """The Euclidean lengths of the rows."""

    @abc.abstractmethod
    def largest_effect(self, values: Tensor, sizes: Tensor) -> Tensor:  # (batch, columns) -> (batch, rows)
        """The largest entry of each row, relative to the size of its column; 0 / 0 is 0."""


class Full(Form):
    """All entries, (batch, rows, columns)."""

    def multiply(self, values: Tensor, vectors: Tensor) -> Tensor:
        return times(values, vectors)

    def multiply_transposed(self, values: Tensor, vectors: Tensor) -> Tensor:
        return times(values.mT, vectors)

    def scale_rows(self, values: Tensor, factors: Tensor) -> Tensor:
        return values * factors.unsqueeze(-1)

    def scale_columns(self, values: Tensor, factors: Tensor) -> Tensor:
        return values * factors.unsqueeze(-2)

    def diagonal(self, values: Tensor) -> Tensor:
        return torch.diagonal(values, dim1=-2, dim2=-1)

    def largest_effect(self, values: Tensor, sizes: Tensor) -> Tensor:
        share = values.abs() / sizes.unsqueeze(-2)
        return torch.where(values == 0, 0.0, share).amax(-1)

    def least_change(self, values: Tensor, sizes: Tensor) -> Tensor:
        if not values.shape[-2]:
            return torch.full_like(values.sum(-2), torch.inf)
        return (sizes.unsqueeze(-1) / values.abs()).nan_to_num(torch.inf).amin(-2)

    def row_lengths(self, values: Tensor) -> Tensor:
        lengths: Tensor = torch.linalg.vector_norm(values, dim=-1)
        return lengths


class Diagonal(SymmetricForm):
    """The diagonal alone, (batch, m)."""

    def multiply(self, values: Tensor, vectors: Tensor) -> Tensor:
        return values * vectors

    def diagonal(self, values: Tensor) -> Tensor:
        return values

    def least_change(self, values: Tensor, sizes: Tensor) -> Tensor:
        return (sizes / values.abs()).nan_to_num(torch.inf)


def kkt_product(curved: Tensor, form: Form, rows: Tensor, dual: Tensor, z: Tensor, s: Tensor) -> Pair:
    """[H A'; A -diag(dual)] times (z, s), from H z (batch, m) and the values of A in its form."""
    return curved + form.multiply_transposed(rows, s), form.multiply(rows, z) - dual * s


class StoredSystem(KktSystem):
    """The system of stored values of H and A, each in its form, and of active (batch, k)."""

    hessian_form: SymmetricForm
    jacobian_form: Form = Full()

    def __init__(self, hessian: Tensor, jacobian: Tensor, active: Tensor) -> None:
        super().__init__(hessian, jacobian, active)
        self.hessian = hessian
        self.jacobian = jacobian
        self.active = active

    def active_rows(self, dtype: torch.dtype) -> Pair:
        """D A, and the diagonal of I - D."""
        mask = self.active.to(dtype)
        return self.jacobian_form.scale_rows(self.jacobian, mask), 1 - mask

    def multiply(self, z: Tensor, s: Tensor) -> Pair:
        curved = self.hessian_form.multiply(self.hessian, z)
        return kkt_product(curved, self.jacobian_form, *self.active_rows(z.dtype), z, s)

    def with_active(self, active: Tensor) -> Self:
        return cast(Self, self.rebuild(self.hessian, self.jacobian, active))

    def stored_hessian(self) -> Tensor | None:
        return self.hessian

    def diagonal_entries(self) -> Tensor:
        return self.hessian_form.diagonal(self.hessian)

    def magnitude(self, z: Tensor) -> Tensor:
        return self.hessian_form.multiply(self.hessian.abs().nan_to_num(0.0, 0.0, 0.0), z.abs())

    def least_change(self, size: Tensor) -> Tensor:
        return self.hessian_form.least_change(self.hessian, size)
