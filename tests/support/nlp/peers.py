"""Other people's solvers on the table, with exact derivatives: SciPy's SLSQP, and IPOPT where ``pounce`` is installed.

``pip install pounce-solver`` brings a translation of IPOPT with the interface of ``cyipopt``, which also serves.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from math import inf

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from torch import Tensor

from .programme import Programme, stack

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Answer:
    point: Array
    claims_success: bool
    words: str
    iterations: int


class Compiled:
    """A programme as functions of NumPy arrays; equalities first, bounds apart. Its methods have IPOPT's names."""

    def __init__(self, programme: Programme) -> None:
        start = torch.tensor(programme.start, dtype=torch.float64)
        self.n, self.p = len(start), len(programme.equality_rows(start))
        self.low, self.high = (bound.numpy() for bound in programme.bounds or (start * 0 - inf, start * 0 + inf))
        self._objective = programme.objective
        self._rows: Callable[[Tensor], Tensor] = lambda u: stack(
            [programme.equality_rows(u), *(programme.inequality(u) if programme.inequality else [])], u
        )
        self.m = len(self._rows(start))
        self._gradient = torch.func.grad(programme.objective)
        self._jacobian = torch.func.jacrev(self._rows)
        self._hessian = torch.func.hessian(lambda u, factor, y: factor * programme.objective(u) + y @ self._rows(u))

    def objective(self, x: Array) -> float:
        return self._objective(_tensor(x)).item()

    def gradient(self, x: Array) -> Array:
        return self._gradient(_tensor(x)).numpy()

    def constraints(self, x: Array) -> Array:
        return self._rows(_tensor(x)).numpy()

    def jacobian(self, x: Array) -> Array:
        return self._jacobian(_tensor(x)).numpy().reshape(-1)

    def jacobianstructure(self) -> tuple[Array, Array]:
        return tuple(np.indices((self.m, self.n)).reshape(2, -1))

    def hessian(self, x: Array, multipliers: Array, factor: float) -> Array:
        return self._hessian(_tensor(x), _tensor(factor), _tensor(multipliers)).numpy()[self.hessianstructure()]

    def hessianstructure(self) -> tuple[Array, Array]:
        return np.tril_indices(self.n)


def _tensor(x: Array | float) -> Tensor:
    return torch.tensor(np.asarray(x, dtype=np.float64))


def slsqp(programme: Programme, start: Array) -> Answer:
    """SLSQP, or BFGS without constraints and bounds."""
    problem = Compiled(programme)

    def rows(kind: str, which: slice, sign: float) -> dict:
        return {
            "type": kind,
            "fun": lambda x: sign * problem.constraints(x)[which],
            "jac": lambda x: sign * problem.jacobian(x).reshape(problem.m, problem.n)[which],
        }

    kinds = [("eq", slice(problem.p), 1.0), ("ineq", slice(problem.p, None), -1.0)]
    constraints = [rows(*kind) for kind, count in zip(kinds, (problem.p, problem.m - problem.p), strict=True) if count]
    free = programme.category == "unconstrained"
    result = minimize(
        problem.objective,
        start,
        jac=problem.gradient,
        method="BFGS" if free else "SLSQP",
        constraints=constraints,
        bounds=None if free else list(zip(problem.low, problem.high, strict=True)),
        tol=1e-10 if free else 1e-14,
        options={"maxiter": 3000},
    )
    return Answer(result.x, bool(result.success), str(result.message), int(result.nit))


def ipopt(programme: Programme, start: Array) -> Answer:
    os.environ.setdefault("RUST_LOG", "off")
    library = import_module("pounce" if find_spec("pounce") else "cyipopt")
    problem = Compiled(programme)
    lower = np.concatenate([np.zeros(problem.p), np.full(problem.m - problem.p, -inf)])
    solver = library.Problem(
        n=problem.n,
        m=problem.m,
        problem_obj=problem,
        lb=np.maximum(problem.low, -2e19),
        ub=np.minimum(problem.high, 2e19),
        cl=np.maximum(lower, -2e19),
        cu=np.zeros(problem.m),
    )
    options = {"print_level": 0, "sb": "yes", "tol": 1e-10, "max_iter": 1000, "bound_relax_factor": 0.0}
    for name, value in options.items():
        solver.add_option(name, value)
    point, info = solver.solve(x0=start)
    words = info["status_msg"]
    return Answer(
        np.asarray(point), info["status"] == 0, words.decode() if isinstance(words, bytes) else words,
        int(info.get("iter_count", -1)),
    )  # fmt: skip
