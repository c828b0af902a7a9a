"""SciPy's minimisers, one problem after the other, with exact derivatives from autograd."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import NonlinearConstraint, OptimizeResult, minimize
from torch import Tensor

from ..arguments import require_flags, require_tolerances
from ..problem import Batch
from ..solution import RawSolution, Status
from .base import Solver
from .polish import polish

Array = NDArray[np.float64]

CONSTRAINED = ("SLSQP", "trust-constr", "COBYQA", "COBYLA")
TAKES_HESSIAN = ("trust-constr", "Newton-CG", "dogleg", "trust-ncg", "trust-krylov", "trust-exact")
TAKES_GRADIENT = ("SLSQP", "BFGS", "L-BFGS-B", "CG", "TNC", *TAKES_HESSIAN)
METHODS = (*dict.fromkeys((*CONSTRAINED, *TAKES_GRADIENT, "Nelder-Mead", "Powell")),)
LARGEST = 1e8  # a point beyond this is brought back along its way
FAR = 1e10  # an unsolved point beyond this, in u or in -f, is called unbounded


@dataclass(frozen=True)
class Scipy(Solver):
    """``scipy.optimize.minimize`` for every problem of the batch, in double precision.

    Args:
        method: a method of ``scipy.optimize.minimize``; by default SLSQP with constraints and BFGS without.
        tolerance: SciPy's ``tol``; by default tight.
        options: SciPy's ``options``.
        polish: finish each solution by Newton steps on the optimality conditions.

    Example:
        >>> import torch
        >>> from declarative import DeclarativeNode, Scipy
        >>> node = DeclarativeNode(lambda x, u: (u - x).square().sum(), inequality=lambda x, u: u.sum() - 1,
        ...                        solver=Scipy(method="trust-constr"), start=2)
        >>> node(torch.tensor([[2.5, 2.5], [-1.0, 0.5]])).round(decimals=3)
        tensor([[ 0.5000,  0.5000],
                [-1.0000,  0.5000]])
    """

    method: str | None = None
    tolerance: float | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    polish: bool = True

    def __post_init__(self) -> None:
        if self.method is not None and (not isinstance(self.method, str) or self.method not in METHODS):
            raise ValueError(f"method must be one of {', '.join(METHODS)}, but is {self.method!r}.")
        require_tolerances(tolerance=self.tolerance)
        if not isinstance(self.options, Mapping) or not all(isinstance(name, str) for name in self.options):
            raise TypeError(f"options must be a dictionary with SciPy's names as keys, but is {self.options!r}.")
        require_flags(polish=self.polish)

    def solve(self, batch: Batch, start: Tensor) -> RawSolution:
        """Solve one problem after the other; the first guess of a failed one is kept if it is all there is."""
        method = self.method or ("SLSQP" if batch.k else "BFGS")
        if batch.k and method not in CONSTRAINED:
            raise ValueError(f"method {method!r} takes no constraints: use one of {', '.join(CONSTRAINED)}.")
        (double, work), first = batch.in_double(start.dtype), start.to(torch.float64)
        rows = torch.arange(batch.size, device=first.device).split(1)
        results = [self._solve_one(double.select(row), work, first[i], method) for i, row in enumerate(rows)]
        y = torch.from_numpy(np.stack([np.asarray(result.x, dtype=np.float64) for result in results])).to(first.device)
        raw = RawSolution(
            y=_within_reach(y, first),
            multipliers=_multipliers(results, y, batch.k),
            codes=torch.tensor([_status(result, method) for result in results], device=first.device),
            iterations=torch.tensor([int(result.get("nit", 0)) for result in results], device=first.device),
            messages=tuple(f"{method}: {result.message}" for result in results),
        )
        if self.polish:
            raw = polish(double, raw.to(work), first.to(work), start.dtype)
        return raw.to(start.dtype)

    def _solve_one(self, batch: Batch, work: torch.dtype, start: Tensor, method: str) -> OptimizeResult:
        first = start.numpy(force=True)
        one = _OneProblem(batch, work, first)
        if not one.finite_at(start):
            return OptimizeResult(x=first, status=-1, success=False, nit=0, message="not finite at the start")
        limit, loose = "maxfun" if method == "TNC" else "maxiter", ("COBYLA", "COBYQA", "Nelder-Mead", "Powell")
        arguments: dict[str, Any] = {
            "options": {limit: 1000, **self.options},
            "tol": self.tolerance or (1e-8 if method in loose else 1e-10),
        }
        if method in TAKES_GRADIENT:
            arguments["jac"] = one.gradient
        if method in TAKES_HESSIAN:
            arguments["hess"] = one.hessian
        if batch.k:
            arguments["constraints"] = one.constraints(method)
        with np.errstate(all="ignore"), _quiet:
            try:
                result = minimize(one.objective, first, method=method, **arguments)
            except (ValueError, np.linalg.LinAlgError) as error:
                if one.error is not None:  # the user's own
                    raise
                result = OptimizeResult(x=first, status=99, success=False, message=str(error))
        result.lowest = one.lowest
        return result


class _Quiet:
    """Silences SciPy's and NumPy's own warnings while a thread is inside; those of the user's functions go through.

    What they say, such as that a Jacobian is singular, is no news: the solution is judged by the node. The filters are
    those of the whole process, so that the first thread that comes in sets them, and the last one out restores them.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._filters = warnings.catch_warnings()

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._filters = warnings.catch_warnings()
                self._filters.__enter__()
                warnings.filterwarnings("ignore", module=r"(scipy|numpy)\.")
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                self._filters.__exit__(None, None, None)


_quiet = _Quiet()


def _within_reach(y: Tensor, first: Tensor) -> Tensor:  # (batch, m)
    """The points that SciPy ended at; where one has run away, a point on its way, from which that can be seen."""
    way = y - first
    length = way.abs().amax(-1, keepdim=True)
    near = torch.where(length > LARGEST, first + way * (LARGEST / length), y)
    return torch.where(near.isfinite().all(-1, keepdim=True), near, first)


def _multipliers(results: list[OptimizeResult], y: Tensor, k: int) -> Tensor | None:
    """trust-constr stops inside its barrier, far from the constraints, but it knows their multipliers: L = f + v' c."""
    if not k or any("v" not in result for result in results):
        return None
    rows = [np.concatenate([np.ravel(part) for part in result.v]) for result in results]
    return -torch.from_numpy(np.stack(rows)).to(y)


def _status(result: OptimizeResult, method: str) -> Status:
    """What SciPy's result means; whether the point is a solution is checked elsewhere."""
    if result.status == -1:
        return Status.NOT_FINITE
    if result.success:
        return Status.CONVERGED
    if np.abs(result.x).max(initial=0.0) > FAR or result.lowest < -FAR:
        return Status.UNBOUNDED
    if not np.isfinite(result.x).all():
        return Status.NOT_FINITE
    if method == "SLSQP":
        return {4: Status.INFEASIBLE, 9: Status.ITERATION_LIMIT, 5: Status.SINGULAR, 6: Status.SINGULAR}.get(
            result.status, Status.STALLED
        )
    limits = {"trust-constr": 0, "BFGS": 1, "L-BFGS-B": 1, "CG": 1, "Newton-CG": 1, "TNC": 3}
    return Status.ITERATION_LIMIT if result.status == limits.get(method, 1) else Status.STALLED


class _OneProblem:
    """One problem as functions of a NumPy vector."""

    def __init__(self, batch: Batch, work: torch.dtype, start: Array) -> None:
        self.start = start
        self.shape = batch.shape
        self.p = batch.p
        self.xs = [x.detach() if dim is None else x.detach()[0] for x, dim in zip(batch.xs, batch.in_dims, strict=True)]
        self.device = self.xs[0].device if self.xs else torch.device("cpu")
        self.dtype = work  # that the functions are evaluated in
        self.problem = batch.problem
        self.error: Exception | None = None  # that one of the user's functions raised
        self.lowest = np.inf  # of all the objective values that the solver has seen

    def _variable(self, u: Array) -> Tensor:
        return torch.from_numpy(np.array(u, dtype=np.float64)).to(self.device).requires_grad_()

    def _value(self, function: Callable[..., Tensor], u: Tensor) -> Tensor:
        try:
            return function(*self.xs, u.view(self.shape).to(self.dtype)).reshape(-1).to(torch.float64)
        except Exception as error:
            self.error = error
            raise

    def finite_at(self, start: Tensor) -> bool:
        functions = (self.problem.objective, self.problem.equality, self.problem.inequality)
        with torch.no_grad():
            values = [self._value(f, start) for f in functions if f is not None]
        return all(bool(value.isfinite().all()) for value in (start, *values))

    def objective(self, u: Array) -> float:
        with torch.no_grad():
            value = float(self._value(self.problem.objective, self._variable(u)))
        self.lowest = min(self.lowest, value)
        return value

    def gradient(self, u: Array) -> Array:
        return self._jacobian(self.problem.objective, u).reshape(-1)

    def hessian(self, u: Array) -> Array:
        return self._hessian(self.problem.objective, u, np.ones(1))

    def constraints(self, method: str) -> list[Any]:
        kinds = [(self.problem.equality, "eq"), (self.problem.inequality, "ineq"), (self._bounds(), "ineq")]
        return [self._constraint(f, kind, method) for f, kind in kinds if f is not None and self._has_rows(f)]

    def _has_rows(self, function: Callable[..., Tensor]) -> bool:
        """Whether it returns anything: SciPy takes no constraint without entries."""
        with torch.no_grad():
            return bool(self._value(function, self._variable(self.start)).numel())

    def _bounds(self) -> Callable[..., Tensor] | None:
        """Bounds as inequalities, so that their multipliers come back like those of others."""
        bounds = self.problem.bounds
        return None if bounds is None else lambda *given: bounds.rows(given[:-1], given[-1].reshape(-1), self.shape)

    def _constraint(self, function: Callable[..., Tensor], kind: str, method: str) -> Any:
        def value(u: Array) -> Array:
            with torch.no_grad():
                result: Array = self._value(function, self._variable(u)).numpy(force=True)
            return result

        if method == "SLSQP":  # which wants inequalities the other way round
            sign = -1.0 if kind == "ineq" else 1.0
            return {"type": kind, "fun": lambda u: sign * value(u), "jac": lambda u: sign * self._jacobian(function, u)}
        return NonlinearConstraint(
            value,
            -np.inf if kind == "ineq" else 0.0,
            0.0,
            jac=lambda u: self._jacobian(function, u),
            hess=lambda u, weights: self._hessian(function, u, weights),
        )

    def _jacobian(self, function: Callable[..., Tensor], u: Array) -> Array:
        with torch.enable_grad():
            variable = self._variable(u)
            return _derivative(self._value(function, variable), variable)

    def _hessian(self, function: Callable[..., Tensor], u: Array, weights: Array) -> Array:
        with torch.enable_grad():
            variable = self._variable(u)
            value = self._value(function, variable)
            value = value @ torch.from_numpy(np.array(weights, dtype=np.float64)).to(self.device)
            if not value.requires_grad:
                return np.zeros((len(u), len(u)))
            (gradient,) = torch.autograd.grad(value, variable, create_graph=True)
            return _derivative(gradient, variable)


def _derivative(value: Tensor, variable: Tensor) -> Array:  # (n,), (m,) -> (n, m)
    """Of a vector by a vector; zero where it depends on nothing of it."""
    rows = None
    if value.requires_grad:
        basis = torch.eye(len(value), dtype=value.dtype, device=value.device)
        (rows,) = torch.autograd.grad(value, variable, basis, is_grads_batched=True, allow_unused=True)
    result: Array = np.zeros((len(value), len(variable))) if rows is None else rows.numpy(force=True)
    return result
