"""Small linear algebra that the theory's functions share, on batched tensors."""

from __future__ import annotations

import torch
from torch import Tensor

from ..linear.contract import rank_tolerance


def oblique_projector(hessian: Tensor, jacobian: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """P = A'(A H^-1 A')^-1 A H^-1, the rank of A, and where both inverses exist (redundant rows are counted once)."""
    rows = unit_rows(jacobian)
    inverse, regular = inverse_of(hessian)
    middle = rows @ inverse @ rows.mT
    values, vectors = torch.linalg.eigh(0.5 * (middle + middle.mT))
    size = torch.linalg.matrix_norm(inverse, 2).unsqueeze(-1)
    used = values.abs() > rank_tolerance(hessian) * size
    half = torch.where(used, 1 / torch.where(used, values, 1.0), 0.0)
    pseudo = vectors @ (half.unsqueeze(-1) * vectors.mT)
    rank = rank_of_rows(jacobian)
    return rows.mT @ pseudo @ rows @ inverse, rank, regular & (used.sum(-1) == rank)


def rank_of_rows(jacobian: Tensor) -> Tensor:  # (..., p, m) -> (...)
    """The number of independent rows, each brought to unit length first."""
    if not jacobian.shape[-2]:
        return torch.zeros(jacobian.shape[:-2], dtype=torch.int64, device=jacobian.device)
    values = torch.linalg.svdvals(unit_rows(jacobian))
    result: Tensor = (values > rank_tolerance(jacobian) * values.amax(-1, keepdim=True)).sum(-1)
    return result


def free_directions(jacobian: Tensor) -> tuple[Tensor, Tensor]:  # (..., p, m) -> (..., m, m), (..., m)
    """A basis of the null space of A, as columns, with zeros in the place of other directions, and which these are."""
    rows = unit_rows(jacobian)
    values, vectors = torch.linalg.eigh(rows.mT @ rows)
    fixed = values > rank_tolerance(jacobian) * values.amax(-1, keepdim=True).clamp(min=1.0)
    return torch.where(fixed.unsqueeze(-2), 0.0, vectors), fixed


def reduced_hessian(hessian: Tensor, free: Tensor, fixed: Tensor, curvature: Tensor) -> Tensor:  # (..., m, m)
    """H on the free directions; the fixed ones get this curvature, (...), instead."""
    return free.mT @ hessian @ free + torch.diag_embed(fixed * curvature.unsqueeze(-1))


def inverse_of(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """The inverse of a symmetric matrix, and where there is one; the identity elsewhere."""
    values, vectors = torch.linalg.eigh(matrix)
    regular = regular_spectrum(values)
    safe = torch.where(regular.unsqueeze(-1), values, 1.0)
    return vectors @ (vectors.mT / safe.unsqueeze(-1)), regular


def regular_spectrum(values: Tensor, scale: Tensor | None = None) -> Tensor:
    """Whether no eigenvalue is zero to working precision."""
    size = (values if scale is None else scale).abs().amax(-1)
    result: Tensor = values.abs().amin(-1) > rank_tolerance(values) * size
    return result


def definite_sign(values: Tensor) -> Tensor:
    """1 where all are positive, -1 where all are negative, 0 elsewhere."""
    return (values > 0).all(-1).long() - (values < 0).all(-1).long()


def definite_condition(hessian: Tensor) -> Tensor:
    """The condition number; NaN where the matrix is neither positive nor negative definite."""
    values = torch.linalg.eigvalsh(hessian)
    size = values.abs()
    return nan_unless((definite_sign(values) != 0) & regular_spectrum(values), size.amax(-1) / size.amin(-1))


def unit_rows(jacobian: Tensor) -> Tensor:
    """Rows of length 1; those of length 0 stay so."""
    return over(jacobian, norm(jacobian))


def norm(x: Tensor) -> Tensor:
    """Of vectors."""
    result: Tensor = torch.linalg.vector_norm(x, dim=-1)
    return result


def length_of(x: Tensor) -> Tensor:
    """The norm of the last dimension, whose squares do not underflow."""
    largest = x.abs().amax(-1) if x.shape[-1] else x.new_zeros(x.shape[:-1])
    unit = torch.where((largest > 0) & (largest < torch.inf), largest, 1.0)
    length: Tensor = unit * torch.linalg.vector_norm(x / unit.unsqueeze(-1), dim=-1)
    return length


def over(x: Tensor, size: Tensor) -> Tensor:
    """Vectors divided by numbers; by 1 instead of 0."""
    return x / torch.where(size > 0, size, 1.0).unsqueeze(-1)


def random_like(x: Tensor, seed: int = 0) -> Tensor:
    """Irregular numbers, the same ones in every call and on every device."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(x.shape, generator=generator, dtype=torch.float64, device="cpu").to(x)


def nan_unless(valid: Tensor, value: Tensor) -> Tensor:
    """The value where it is one."""
    return torch.where(valid, value, torch.nan)
