"""cvxpylayers, with each of its solvers on the CPU."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from ..cases import Case, Convex, DoesNotApplyError, Forward, Quadratic, Simplex, Transport
from .library import QUADRATIC, Library, tensors, through_torch

VARIANTS = {
    "diffcp": "CvxpyLayer as it comes: diffcp with SCS or Clarabel at its tolerance",
    "diffcp, tight": "diffcp with Clarabel at 1e-12 and mode='dense', which its maintainers recommend where LSQR, the "
    "default of the backward pass with fixed tolerances, is not accurate (cvxpylayers issue 69, diffcp issue 71)",
    "diffcp, to the bar": "the same with Clarabel at 1e-8",
    "diffcp, LSQR": "diffcp with Clarabel at 1e-12, and LSQR backward",
    "moreau": 'CvxpyLayer(solver="MOREAU") as it comes; bounds of single unknowns, which CVXPY 1.9 takes out of the '
    "constraints, are not handed on by version 1.2",
}


def _clarabel(tolerance: float, mode: str) -> dict[str, Any]:
    tolerances = dict.fromkeys(("tol_gap_abs", "tol_gap_rel", "tol_feas"), tolerance)
    return {"solver_args": {"solve_method": "Clarabel", "mode": mode, **tolerances}}


SETTINGS: dict[str, dict[str, Any]] = {
    "diffcp": {},
    "diffcp, tight": _clarabel(1e-12, "dense"),
    "diffcp, to the bar": _clarabel(1e-8, "dense"),
    "diffcp, LSQR": _clarabel(1e-12, "lsqr"),
    "moreau": {"solver": "MOREAU"},
}
# cvxpylayers 1.2 does not hand on the bounds that CVXPY 1.9 takes out of the constraints for MOREAU: they are lost.
LARGEST = 20_000  # unknowns and rows: a statement in CVXPY beyond takes minutes to be compiled


def build(case: Case, variant: str) -> Forward:
    """The problem in CVXPY."""
    cp, layers = importlib.import_module("cvxpy"), importlib.import_module("cvxpylayers.torch")
    convex = _statement(case)(cp)
    layer = layers.CvxpyLayer(convex.problem, convex.parameters, [convex.variable], **SETTINGS[variant])
    return through_torch(case, lambda xs: layer(*convex.values(xs))[0].flatten(1))


def _statement(case: Case) -> Callable[[Any], Convex]:
    if case.convex is not None:
        return case.convex
    if isinstance(case.statement, Transport):
        return lambda cp: _transport(cp, case)
    program = case.quadratic()
    if sum(x.shape[1] for x in (program.q, program.b, program.h)) > LARGEST:
        raise DoesNotApplyError("CVXPY would take minutes to compile it")
    return (lambda cp: _sparse(cp, case, program)) if program.sparse else (lambda cp: _dense(cp, program))


def _dense(cp: Any, program: Quadratic) -> Convex:
    """All data are parameters; of Q a root, as the rules of CVXPY want it."""
    torch = importlib.import_module("torch")
    parameters = {name: cp.Parameter(getattr(program, name).shape[1:]) for name in QUADRATIC}
    u = cp.Variable(program.q.shape[1])
    root, q, A, b, G, h = parameters.values()
    problem = cp.Problem(cp.Minimize(cp.sum_squares(root @ u) / 2 + q @ u), [A @ u == b, G @ u <= h])
    fixed = tensors({name: getattr(program, name) for name in QUADRATIC})

    def values(xs: Any) -> list[Any]:
        data = fixed | dict(xs)
        return [torch.linalg.cholesky(data["Q"]).mT, *(data[name] for name in QUADRATIC[1:])]

    return Convex(problem, list(parameters.values()), u, values)


def _sparse(cp: Any, case: Case, program: Quadratic) -> Convex:
    """Matrices are constants, and the vectors that are no inputs too, if they are the same for all problems."""
    vectors = {name: getattr(program, name) for name in ("q", "b", "h")}
    moving = [name for name, x in vectors.items() if name in case.inputs or np.ptp(x, 0).max(initial=0) > 0]
    symbols = {name: cp.Parameter(x.shape[1]) if name in moving else x[0] for name, x in vectors.items()}
    u = cp.Variable(program.q.shape[1])
    rows = [program.A @ u == symbols["b"]] if program.b.shape[1] else []
    objective = cp.quad_form(u, program.Q, assume_PSD=True) / 2 + symbols["q"] @ u
    problem = cp.Problem(cp.Minimize(objective), [*rows, program.G @ u <= symbols["h"]])
    fixed = tensors({name: vectors[name] for name in moving})
    return Convex(
        problem, [symbols[name] for name in moving], u, lambda xs: [(fixed | dict(xs))[name] for name in moving]
    )


def _transport(cp: Any, case: Case) -> Convex:
    statement = case.statement
    assert isinstance(statement, Transport)
    n = statement.M.shape[-1]
    if n > 50:
        raise DoesNotApplyError("thousands of exponential cones")
    M, P = cp.Parameter((n, n)), cp.Variable((n, n))
    objective = cp.sum(cp.multiply(M, P)) - cp.sum(cp.entr(P)) / statement.gamma
    problem = cp.Problem(cp.Minimize(objective), [cp.sum(P, 1) == 1 / n, cp.sum(P, 0) == 1 / n])
    return Convex(problem, [M], P, lambda xs: [xs["M"]])


CVXPYLAYERS = Library(
    "cvxpylayers", "cvxpylayers", "cvxpylayers.torch", (Quadratic, Simplex, Transport), VARIANTS, build, convex=True
)
