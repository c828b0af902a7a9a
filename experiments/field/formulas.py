"""The operations of formulas, in torch, JAX and CasADi: a formula takes one of these and vectors of its kind.

Vectors have one dimension; + - * / and powers act entry by entry, and so do slices. All else is here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse

SPARSE = 2  # a matrix with one entry in so many is multiplied entry by entry
EACH = ("sin", "cos", "exp", "log", "sqrt", "log1p")  # entry by entry, and of the same name everywhere
Operation = Callable[..., Any]


@dataclass(frozen=True)
class Operations:
    """What formulas are made of.

    Attributes:
        array: a constant vector or matrix, from numbers.
        concat: a list of vectors and scalars as one vector.
        total: the sum of the entries.
        times: a matrix times a vector.
        softplus: log(1 + exp(v)), without overflow.
        logsumexp: log(sum(exp(v))).
    """

    sin: Operation
    cos: Operation
    exp: Operation
    log: Operation
    sqrt: Operation
    log1p: Operation
    array: Operation
    concat: Operation
    softplus: Operation
    logsumexp: Operation
    total: Operation = lambda vector: vector.sum()
    times: Operation = lambda matrix, vector: matrix @ vector


def _doubles(values: Any) -> Any:
    return np.asarray(values, dtype=np.float64)


@dataclass(frozen=True)
class TorchMatrix:
    """A constant matrix by its entries that are not zero: a function of torch would multiply by the zeros too."""

    values: Any
    rows: Any
    columns: Any
    count: int  # of rows

    @classmethod
    def of(cls, matrix: Any) -> TorchMatrix:
        """From a matrix of SciPy."""
        import torch

        coo = matrix.tocoo()
        rows, columns = (torch.tensor(x, dtype=torch.long) for x in (coo.row, coo.col))
        return cls(torch.tensor(coo.data), rows, columns, matrix.shape[0])

    def __matmul__(self, vector: Any) -> Any:
        products = self.values * vector.index_select(0, self.columns)
        return vector.new_zeros(self.count).index_add(0, self.rows, products)


def _torch_array(values: Any) -> Any:
    """As a tensor, or, if it is a matrix of zeros for the most part, by its entries."""
    import torch

    numbers = _doubles(values)
    if numbers.ndim == 2 and SPARSE * np.count_nonzero(numbers) <= numbers.size:
        return TorchMatrix.of(scipy.sparse.coo_array(numbers))
    return torch.as_tensor(numbers)


def torch_operations() -> Operations:
    """For functions of torch tensors."""
    import torch

    return Operations(
        **{name: getattr(torch, name) for name in EACH},
        array=_torch_array,
        concat=lambda parts: torch.cat([part.reshape(-1) for part in parts]),
        softplus=torch.nn.functional.softplus,
        logsumexp=lambda vector: torch.logsumexp(vector, 0),
    )


def jax_operations() -> Operations:
    """For functions of JAX arrays."""
    import jax
    import jax.numpy as jnp

    return Operations(
        **{name: getattr(jnp, name) for name in EACH},
        array=lambda values: jnp.asarray(_doubles(values)),
        concat=lambda parts: jnp.concatenate([part.reshape(-1) for part in parts]),
        softplus=jax.nn.softplus,
        logsumexp=jax.scipy.special.logsumexp,
    )


def casadi_operations() -> Operations:
    """For CasADi's symbols: vectors are columns."""
    import casadi

    return Operations(
        **{name: getattr(casadi, name) for name in EACH},
        array=lambda values: casadi.DM(_doubles(values)),
        concat=lambda parts: casadi.vertcat(*parts),
        softplus=lambda vector: casadi.fmax(vector, 0) + casadi.log1p(casadi.exp(-casadi.fabs(vector))),
        logsumexp=casadi.logsumexp,
        total=casadi.sum1,
        times=casadi.mtimes,
    )
