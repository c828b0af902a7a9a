"""Problems as data: what every library is given, in whatever form it takes, and what it answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.float64]
Gradients: TypeAlias = dict[str, Array]  # of v'y in the inputs, by their names, batch first
DENSE_LIMIT = 3e7  # entries of all matrices of a batch: beyond, who takes dense matrices only is not asked


class DoesNotApplyError(Exception):
    """A library is not for a problem; the message says why, in a few words."""


@dataclass(frozen=True)
class Quadratic:
    """minimise u'Qu/2 + q'u subject to Au = b and Gu <= h.

    The matrices are dense with a batch dimension, or sparse and shared by the batch.
    """

    Q: Any  # (batch, n, n), or sparse (n, n)
    q: Array  # (batch, n)
    A: Any  # (batch, p, n), or sparse (p, n); p may be 0
    b: Array  # (batch, p)
    G: Any  # (batch, count, n), or sparse (count, n)
    h: Array  # (batch, count)

    @property
    def sparse(self) -> bool:
        """Are the matrices sparse and shared?"""
        return bool(scipy.sparse.issparse(self.Q))

    @property
    def batch(self) -> int:
        """How many problems there are."""
        return len(self.q)

    def dense(self) -> Quadratic:
        """The same with dense matrices, one for each problem.

        Raises:
            DoesNotApplyError: that would be too large.
        """
        if not self.sparse:
            return self
        rows = sum(matrix.shape[0] for matrix in (self.Q, self.A, self.G))
        if self.batch * rows * self.q.shape[1] > DENSE_LIMIT:
            raise DoesNotApplyError("takes dense matrices only, and these would be too large")
        Q, A, G = (np.repeat(matrix.toarray()[None], self.batch, 0) for matrix in (self.Q, self.A, self.G))
        return Quadratic(Q, self.q, A, self.b, G, self.h)

    def one(self, i: int) -> tuple[Any, ...]:
        """Q, q, A, b, G, h of a problem."""
        matrices = (self.Q, self.A, self.G) if self.sparse else (self.Q[i], self.A[i], self.G[i])
        Q, A, G = matrices
        return Q, self.q[i], A, self.b[i], G, self.h[i]


@dataclass(frozen=True)
class Functions:
    """Of the parameters p and the unknowns u of one problem; equality = 0, inequality <= 0."""

    objective: Callable[[Any, Any], Any]
    equality: Callable[[Any, Any], Any] | None = None
    inequality: Callable[[Any, Any], Any] | None = None


@dataclass(frozen=True)
class Programme:
    """A nonlinear programme by formulas that torch, JAX and CasADi evaluate alike: see ``formulas``."""

    functions: Callable[[Any], Functions]  # of the operations
    p: Array  # (batch, parameters)
    start: Array  # (batch, n)
    lower: Array  # (n,), may be infinite
    upper: Array  # (n,)
    constrained: bool = True  # by rows or bounds

    @property
    def bounded(self) -> bool:
        """Is any unknown?"""
        return bool(np.isfinite(self.lower).any() or np.isfinite(self.upper).any())


@dataclass(frozen=True)
class Transport:
    """Entropic transport with uniform marginals: minimise sum(P * M) + sum(P log P) / gamma."""

    M: Array  # (batch, n, n)
    gamma: float


@dataclass(frozen=True)
class Eigen:
    """The eigenvector of the largest eigenvalue of a symmetric matrix, its largest entry positive."""

    X: Array  # (batch, n, n)


@dataclass(frozen=True)
class Simplex:
    """The nearest point of the probability simplex."""

    x: Array  # (batch, n)

    def quadratic(self) -> Quadratic:
        """As a quadratic program whose q is -x."""
        batch, n = self.x.shape
        eye = scipy.sparse.eye_array(n, format="csc")
        ones = scipy.sparse.csc_array(np.ones((1, n)))
        return Quadratic(eye, -self.x, ones, np.ones((batch, 1)), (-eye).tocsc(), np.zeros((batch, n)))


Statement: TypeAlias = Quadratic | Programme | Transport | Eigen | Simplex


@dataclass(frozen=True)
class Convex:
    """The same in CVXPY: parameters by the names of the inputs they stand for, and the variable."""

    problem: Any
    parameters: Sequence[Any]
    variable: Any
    values: Callable[[Mapping[str, Any]], Sequence[Any]]  # of the inputs as tensors: those of the parameters


@dataclass(frozen=True)
class Case:
    """A batch of problems: the statement, the inputs whose gradient is wanted, and what comes in from above."""

    statement: Statement
    inputs: dict[str, Array]  # batch first; also part of the statement
    cotangent: Array  # (batch, n): v
    convex: Callable[[Any], Convex] | None = None  # of the module cvxpy

    @property
    def batch(self) -> int:
        """How many problems there are."""
        return len(self.cotangent)

    def quadratic(self) -> Quadratic:
        """The statement as a quadratic program.

        Raises:
            DoesNotApplyError: it is none.
        """
        if isinstance(self.statement, Simplex):
            return self.statement.quadratic()
        if isinstance(self.statement, Quadratic):
            return self.statement
        raise DoesNotApplyError("takes quadratic programs only")


@dataclass(frozen=True)
class Answer:
    """What a library says of a batch."""

    y: Array  # (batch, n)
    gradients: Gradients
    solved: NDArray[np.bool_]  # which problems it claims to have solved
    warned: str = ""  # what it said of the batch, if that is a doubt


@dataclass(frozen=True)
class Solved:
    """A forward pass that is done, and the backward pass to follow."""

    y: Any
    backward: Callable[[], Any]
    claims: Callable[[], Any] | None = None  # which problems are solved; all, where it does not say


Forward: TypeAlias = Callable[[], Solved]
