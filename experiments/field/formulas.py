"""The operations of formulas, in torch, JAX and CasADi: a formula takes one of these and vectors of its kind.

Vectors have one dimension; + - * / and powers act entry by entry, and so do slices. All else is here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


class TorchOperations:
    """For functions of torch tensors."""

    def __init__(self) -> None:
        import torch

        self._torch = torch
        self.sin, self.cos, self.exp, self.log, self.sqrt = torch.sin, torch.cos, torch.exp, torch.log, torch.sqrt
        self.log1p = torch.log1p

    def array(self, values: Any) -> Any:
        """A constant vector or matrix."""
        return self._torch.as_tensor(np.asarray(values, dtype=np.float64))

    def concat(self, parts: Sequence[Any]) -> Any:
        """Vectors and scalars as one vector."""
        return self._torch.cat([part.reshape(-1) for part in parts])

    def total(self, vector: Any) -> Any:
        """The sum of the entries."""
        return vector.sum()

    def times(self, matrix: Any, vector: Any) -> Any:
        """A matrix times a vector."""
        return matrix @ vector

    def softplus(self, vector: Any) -> Any:
        """log(1 + exp(v))."""
        return self._torch.nn.functional.softplus(vector)

    def logsumexp(self, vector: Any) -> Any:
        """log(sum(exp(v)))."""
        return self._torch.logsumexp(vector, 0)


class JaxOperations:
    """For functions of JAX arrays."""

    def __init__(self) -> None:
        import jax
        import jax.numpy as jnp

        self._jnp, self._jax = jnp, jax
        self.sin, self.cos, self.exp, self.log, self.sqrt = jnp.sin, jnp.cos, jnp.exp, jnp.log, jnp.sqrt
        self.log1p = jnp.log1p

    def array(self, values: Any) -> Any:
        """A constant vector or matrix."""
        return self._jnp.asarray(np.asarray(values, dtype=np.float64))

    def concat(self, parts: Sequence[Any]) -> Any:
        """Vectors and scalars as one vector."""
        return self._jnp.concatenate([part.reshape(-1) for part in parts])

    def total(self, vector: Any) -> Any:
        """The sum of the entries."""
        return vector.sum()

    def times(self, matrix: Any, vector: Any) -> Any:
        """A matrix times a vector."""
        return matrix @ vector

    def softplus(self, vector: Any) -> Any:
        """log(1 + exp(v))."""
        return self._jax.nn.softplus(vector)

    def logsumexp(self, vector: Any) -> Any:
        """log(sum(exp(v)))."""
        return self._jax.scipy.special.logsumexp(vector)


class CasadiOperations:
    """For CasADi's symbols: vectors are columns."""

    def __init__(self) -> None:
        import casadi

        self._casadi = casadi
        self.sin, self.cos, self.exp, self.log, self.sqrt = casadi.sin, casadi.cos, casadi.exp, casadi.log, casadi.sqrt
        self.log1p = casadi.log1p

    def array(self, values: Any) -> Any:
        """A constant vector or matrix."""
        return self._casadi.DM(np.asarray(values, dtype=np.float64))

    def concat(self, parts: Sequence[Any]) -> Any:
        """Vectors and scalars as one vector."""
        return self._casadi.vertcat(*parts)

    def total(self, vector: Any) -> Any:
        """The sum of the entries."""
        return self._casadi.sum1(vector)

    def times(self, matrix: Any, vector: Any) -> Any:
        """A matrix times a vector."""
        return self._casadi.mtimes(matrix, vector)

    def softplus(self, vector: Any) -> Any:
        """log(1 + exp(v)), without overflow."""
        return self._casadi.fmax(vector, 0) + self._casadi.log1p(self._casadi.exp(-self._casadi.fabs(vector)))

    def logsumexp(self, vector: Any) -> Any:
        """log(sum(exp(v)))."""
        return self._casadi.logsumexp(vector)
