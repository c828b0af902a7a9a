"""The optimality conditions of a nonlinear programme, with CasADi's derivatives and plain linear algebra."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.linalg
import scipy.sparse
import scipy.sparse.linalg
from numpy.typing import NDArray

from .cases import Array, Programme
from .formulas import casadi_operations

TIGHT = 1e-11  # asked of the solver that finds the active set
ROUNDS = 30  # of Newton's method, and of changes of the active set
DOUBT = 1e-9  # a slack and a multiplier both below this: the gradient may not exist
DIGITS = 1e-10  # relative: by how much the last refinement of a gradient may change it
DENSE = 400  # unknowns, up to which the curvature is proved


class NoTruthError(Exception):
    """The optimality conditions could not be met to rounding, or a constraint is in doubt."""


# Linear algebra: one system, solved to the last digits.


class Refined:
    """A factorised matrix, dense or sparse, whose solutions are refined with residuals in extended precision."""

    def __init__(self, matrix: Any) -> None:
        self._matrix = matrix
        try:
            if scipy.sparse.issparse(matrix):
                self._apply = scipy.sparse.linalg.splu(matrix.tocsc()).solve
            else:
                self._apply = _factorised(matrix)
            self._matrix = matrix.astype(np.longdouble)
        except (RuntimeError, np.linalg.LinAlgError) as error:
            raise NoTruthError("more constraints are active than are independent") from error

    def solve(self, right: Array) -> Array:
        return self._refined(right)[0]

    def proved(self, right: Array) -> Array:
        """The same, if the last refinement says that it is right to many digits.

        Raises:
            NoTruthError: it does not.
        """
        solution, change = self._refined(right)
        if not change <= DIGITS * abs(solution).max(initial=0.0):
            raise NoTruthError("the linear system is too badly conditioned")
        return solution

    def _refined(self, right: Array) -> tuple[Array, float]:
        solution, change = self._apply(right), np.zeros(1)
        for _ in range(2):
            change = self._apply((right - self._matrix @ solution).astype(np.float64))
            solution = solution + change
        return solution.astype(np.float64), float(abs(change).max(initial=0.0))


def _factorised(matrix: Array) -> Any:
    factor = scipy.linalg.lu_factor(matrix)
    if not abs(factor[0].diagonal()).min() > np.finfo(float).eps * abs(matrix).max():
        raise np.linalg.LinAlgError("singular")
    return lambda right: scipy.linalg.lu_solve(factor, right)


def kkt(H: Any, rows: Any) -> Any:
    """[H rows'; rows 0], sparse if H is."""
    if scipy.sparse.issparse(H):
        return scipy.sparse.block_array([[H, rows.T], [rows, None]], format="csc") if rows.shape[0] else H.tocsc()
    return np.block([[H, rows.T], [rows, np.zeros((len(rows), len(rows)))]])


# Nonlinear programmes.


@dataclass(frozen=True)
class KktPoint:
    """A solution, its active rows, the multipliers (zero for the others), and the factorised system."""

    u: Array
    rows: NDArray[np.intp]  # active: equalities always
    fixed: NDArray[np.intp]  # unknowns at a bound
    multipliers: Array
    matrix: Refined


class Conditions:
    """grad f + J' dual + bounds' multipliers = 0, and so on, of a programme: rows are equalities, then inequalities."""

    def __init__(self, programme: Programme) -> None:
        casadi = importlib.import_module("casadi")
        self.programme = programme
        functions = programme.functions(casadi_operations())
        u, p = casadi.SX.sym("u", programme.start.shape[1]), casadi.SX.sym("p", programme.p.shape[1])
        parts = [casadi.SX(0, 1) if one is None else one(p, u) for one in (functions.equality, functions.inequality)]
        rows, objective = casadi.vertcat(*parts), functions.objective(p, u)
        self.equalities, self.count = parts[0].shape[0], rows.shape[0]
        self.symbols = {"x": u, "p": p, "f": objective, "g": rows}
        dual, z, s = (casadi.SX.sym(name, n) for name, n in (("l", self.count), ("z", u.shape[0]), ("s", self.count)))
        slope = casadi.gradient(objective + casadi.dot(dual, rows), u)
        self._state = casadi.Function("state", [u, p, dual], [slope, rows])
        self._matrices = casadi.Function(
            "matrices", [u, p, dual], [casadi.jacobian(slope, u), casadi.jacobian(rows, u)]
        )
        pulled = casadi.gradient(casadi.dot(z, slope) + casadi.dot(s, rows), p)
        self._pull = casadi.Function("pull", [u, p, dual, z, s], [pulled])
        self._ipopt = {
            warm: casadi.nlpsol("solver", "ipopt", self.symbols, {"print_time": False, "ipopt": _options(warm)})
            for warm in (False, True)
        }

    def solve(self, p: Array, start: Array, warm: bool = False) -> KktPoint:
        """The local solution to which IPOPT goes from here; a warm start stays near, where it can.

        Raises:
            NoTruthError: the point could not be refined, or is no strict minimum, or a constraint is in doubt.
        """
        lower, upper = self.programme.lower, self.programme.upper
        floor = np.r_[np.zeros(self.equalities), np.full(self.count - self.equalities, -np.inf)]
        found = self._ipopt[warm](x0=start, p=p, lbx=lower, ubx=upper, lbg=floor, ubg=0)
        u, dual, of_bounds, g = (np.array(found[name]).ravel() for name in ("x", "lam_g", "lam_x", "g"))
        slack = np.minimum(u - lower, upper - u)
        fixed = (abs(of_bounds) > slack).nonzero()[0]
        rows = (np.arange(self.count) < self.equalities) | (dual > -g)
        return self._refine(p, u, dual, rows.nonzero()[0], fixed)

    def gradient(self, p: Array, point: KktPoint, v: Array) -> Array:
        """Of v'u in p."""
        n, rest = len(point.u), len(point.rows) + len(point.fixed)
        solution = point.matrix.proved(np.r_[v, np.zeros(rest)])
        s = np.zeros(self.count)
        s[point.rows] = solution[n : n + len(point.rows)]
        return -np.array(self._pull(point.u, p, point.multipliers, solution[:n], s)).ravel()

    def _refine(self, p: Array, u: Array, dual: Array, rows: Any, fixed: Any) -> KktPoint:
        """Newton's method with the active set as it is."""
        bound = np.where(
            u - self.programme.lower < self.programme.upper - u, self.programme.lower, self.programme.upper
        )
        dual = np.where(np.isin(np.arange(self.count), rows), dual, 0.0)
        of_bounds, before = np.zeros(len(fixed)), np.inf
        for _ in range(ROUNDS):
            slope, values = (np.array(x).ravel() for x in self._state(u, p, dual))
            slope[fixed] += of_bounds
            residual = np.r_[slope, values[rows], (u - bound)[fixed]]
            matrix, H, active = self._system(u, p, dual, rows, fixed)
            step = matrix.solve(-residual)
            size = abs(step[: len(u)]).max() / (1 + abs(u).max())
            if not np.isfinite(size):
                break
            u, of_bounds = u + step[: len(u)], of_bounds + step[len(u) + len(rows) :]
            dual[rows] += step[len(u) : len(u) + len(rows)]
            if size < 1e-13 or (size < 1e-9 and size >= before / 2):
                self._require_strict(u, p, dual, rows, fixed, of_bounds, H, active)
                return KktPoint(u, rows, fixed, dual, self._system(u, p, dual, rows, fixed)[0])
            before = size
        raise NoTruthError("Newton's method did not converge from IPOPT's point")

    def _system(self, u: Array, p: Array, dual: Array, rows: Any, fixed: Any) -> tuple[Refined, Any, Any]:
        H, J = (x.sparse() for x in self._matrices(u, p, dual))
        units = scipy.sparse.csr_array((np.ones(len(fixed)), (np.arange(len(fixed)), fixed)), (len(fixed), len(u)))
        active = scipy.sparse.vstack([scipy.sparse.csr_array(J)[rows], units], format="csr")
        H = scipy.sparse.csc_array(H)
        small = len(u) <= DENSE
        return Refined(kkt(H.toarray(), active.toarray()) if small else kkt(H, active)), H, active

    def _require_strict(
        self, u: Array, p: Array, dual: Array, rows: Any, fixed: Any, of_bounds: Array, H: Any, active: Any
    ) -> None:
        """The signs of the multipliers, feasibility, and curvature along the constraints."""
        programme, values = self.programme, np.array(self._state(u, p, dual)[1]).ravel()
        inequalities = rows[rows >= self.equalities]
        idle = np.setdiff1d(np.arange(self.equalities, self.count), rows)
        free = np.setdiff1d(np.arange(len(u)), fixed)
        at_lower = (u - programme.lower < programme.upper - u)[fixed]
        slacks = np.r_[-values[idle], (u - programme.lower)[free], (programme.upper - u)[free]]
        signs = np.r_[dual[inequalities], np.where(at_lower, -of_bounds, of_bounds)]
        if (slacks < DOUBT).any() or (signs < DOUBT).any():
            raise NoTruthError("a constraint is just active or violated: the gradient may not exist")
        if len(u) <= DENSE:
            basis = scipy.linalg.null_space(active.toarray()) if active.shape[0] else np.eye(len(u))
            curvature = np.linalg.eigvalsh(basis.T @ H.toarray() @ basis) if basis.size else np.ones(1)
            if curvature.min() < 1e-10 * max(1.0, curvature.max()):
                raise NoTruthError("no strict minimum")


def _options(warm: bool) -> dict[str, Any]:
    """Of IPOPT: bounds are met, not missed by a little."""
    near = {
        "warm_start_init_point": "yes",
        "mu_init": 1e-8,
        "warm_start_bound_push": 1e-10,
        "warm_start_bound_frac": 1e-10,
    }
    options: dict[str, Any] = {"tol": TIGHT, "bound_relax_factor": 0.0, "print_level": 0, "sb": "yes", "max_iter": 1000}
    return options | near if warm else options
