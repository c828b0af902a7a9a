"""Which entries of H = D^2_UU L and of A = D_U c can differ from zero, for all values of x, u and the multipliers l.

Both are read off one function. The slope of the Lagrangian, D_U L(x, u, l) = D_U f - A' l, depends on u through H, and
on l through A': so the function is traced once, with its reverse pass, and the index sets of its operations are
followed from (u, l) to the slope. What autodiff computes is what is looked at, custom derivatives included.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import scipy.sparse
import torch
from torch import Tensor

from .entries import Entries
from .trace import follow

LIMIT = 30_000_000  # members of the index sets of one tensor: more than that is not sparse

Function = Callable[..., Tensor]


@dataclass(frozen=True, eq=False)
class Pattern:
    """Where the derivatives of a problem with m unknowns and k constraints can differ from zero."""

    hessian: Entries  # (m, m), on and below the diagonal
    jacobian: Entries  # (k, m)
    without_rule: tuple[str, ...] = ()  # operations that were taken as dense between their operands

    @classmethod
    def given(cls, hessian: Any, jacobian: Any, m: int, k: int) -> Pattern:
        """A pattern that the user knows: two matrices, dense or sparse, which are not zero where a derivative is not.

        Args:
            hessian: (m, m); symmetric, or one of its triangles.
            jacobian: (k, m), the rows of equalities before those of inequalities; None without constraints.

        Raises:
            ValueError: a shape is wrong.
        """
        jacobian = scipy.sparse.csr_matrix((0, m), dtype=bool) if jacobian is None else jacobian
        curved, sloped = Entries.of(hessian), Entries.of(jacobian)
        for name, entries, shape in (("hessian", curved, (m, m)), ("jacobian", sloped, (k, m))):
            if entries.shape != shape:
                raise ValueError(f"the pattern of the {name} has shape {entries.shape}; expected {shape}")
        return cls(Entries.of(curved.csr + curved.csr.T).lower(), sloped)


def find_pattern(
    objective: Function,
    constraints: Function | None,
    xs: Sequence[Tensor],
    u: Tensor,
    limit: int = LIMIT,
) -> Pattern:
    """The pattern of a problem, from its functions of ``(*xs, u)`` for one problem.

    Tensors that the functions capture count as constants, zeros included, unless they require a gradient.

    Args:
        objective: returns a scalar.
        constraints: returns a tensor of any shape, or None.
        xs: an example of the inputs, without a batch dimension; only shapes and types matter.
        u: an example of the unknowns, likewise.
        limit: how many entries may be met on the way.

    Raises:
        NoPattern: the derivatives are not sparse, or the functions cannot be traced.

    Example:
        >>> import torch
        >>> from declarative.linear.sparse import find_pattern
        >>> pattern = find_pattern(
        ...     lambda x, u: (u - x).square().sum(), lambda x, u: u[1:] * u[:-1], [torch.zeros(3)], torch.zeros(3)
        ... )
        >>> pattern.jacobian.csr.todense().astype(int)
        matrix([[1, 1, 0],
                [0, 1, 1]])
    """
    rows = torch.zeros(0) if constraints is None else constraints(*xs, u).reshape(-1)

    def slope(flat: Tensor, multipliers: Tensor, *xs: Tensor) -> Tensor:
        def lagrangian(flat: Tensor) -> Tensor:
            value = objective(*xs, flat.view(u.shape))
            if constraints is None:
                return value
            return value - (multipliers * constraints(*xs, flat.view(u.shape)).reshape(-1)).sum()

        result: Tensor = torch.func.grad(lagrangian)(flat)
        return result

    multipliers = torch.ones(len(rows), dtype=u.dtype, device=u.device)
    return pattern_of_slope(slope, u.detach().reshape(-1), multipliers, xs, limit)


def pattern_of_slope(
    slope: Function,
    u: Tensor,  # (m,)
    multipliers: Tensor,  # (k,)
    xs: Sequence[Tensor],
    limit: int = LIMIT,
) -> Pattern:
    """The pattern of a problem, from the function ``(u, multipliers, *xs)`` -> D_U L (m,) for one problem."""
    m, k = len(u), len(multipliers)
    sets, without_rule = follow(slope, u, multipliers, xs, limit)
    curved = sets[:, :m]
    both = curved.multiply(curved.T)  # H is symmetric: what only one of two twins can be is zero
    return Pattern(Entries.of(both).lower(), Entries.of(sets[:, m : m + k].T), without_rule)
