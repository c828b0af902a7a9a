"""CasADi's solvers for nonlinear programmes, and their parametric sensitivities."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from ..cases import Array, Case, Forward, Programme, Solved
from ..conditions import Conditions
from .library import Library

VARIANTS = {
    "default": "nlpsol with IPOPT as it comes, one problem after the other, clip_inactive_lam (without, all bounds "
    "count as active), the reverse derivative of nlpsol, in which an equality without a multiplier does not count",
    "tight": "IPOPT with tol 1e-10 and bounds that are not relaxed",
    "map": "the same, as one function of the whole batch, mapped over it",
    "SQP": "sqpmethod with qrqp, CasADi's own: the active set is exact, tol 1e-8",
    "compiled": "tight, its forward pass with functions compiled by a C compiler (jit), which is not timed",
}
OPTIONS = {"print_time": False, "error_on_fail": False, "bound_consistency": True}
# Multipliers of an interior point are never zero: without clipping, every bound would count as active.
IPOPT = {"clip_inactive_lam": True}
QUIET = {"print_level": 0, "sb": "yes"}
TIGHT = {"tol": 1e-10, "bound_relax_factor": 0.0}
SQP = {
    "qpsol": "qrqp",
    "qpsol_options": {"print_iter": False, "print_header": False, "print_info": False, "error_on_fail": False},
    "convexify_strategy": "regularize",
    **dict.fromkeys(("print_header", "print_iteration", "print_status"), False),
    **dict.fromkeys(("tol_pr", "tol_du"), 1e-8),
    "max_iter": 200,
}
COMPILER = {"jit": True, "compiler": "shell", "jit_options": {"flags": "-O2", "verbose": False}}


def build(case: Case, variant: str) -> Forward:
    """A solver, and the function that is its reverse derivative."""
    casadi = importlib.import_module("casadi")
    programme = case.statement
    assert isinstance(programme, Programme)
    made = Conditions(programme)
    ipopt = QUIET if variant == "default" else QUIET | TIGHT
    name, options = ("sqpmethod", SQP) if variant == "SQP" else ("ipopt", IPOPT | {"ipopt": ipopt})
    options = OPTIONS | options
    options |= {"error_on_fail": True} if variant == "map" else {}
    solver = casadi.nlpsol("solver", "sqpmethod" if variant == "SQP" else "ipopt", made.symbols, options)
    low = np.r_[np.zeros(made.equalities), np.full(made.count - made.equalities, -np.inf)]
    bounds = {"lbx": programme.lower, "ubx": programme.upper, "lbg": low, "ubg": np.zeros(made.count)}
    solver = casadi.nlpsol("solver", name, made.symbols, options)
    if variant == "map":
        return _together(case, programme, solver, bounds)
    reverse = solver.reverse(1)
    if variant == "compiled":  # what is compiled has no derivatives: those are of the other one
        solver = casadi.nlpsol("compiled", name, made.symbols, options | COMPILER)
    return _one_by_one(case, programme, solver, reverse, bounds)


def _one_by_one(case: Case, programme: Programme, solver: Any, reverse: Any, bounds: dict[str, Array]) -> Forward:
    def forward() -> Solved:
        found, solved = [], []
        for p, start in zip(programme.p, programme.start, strict=True):
            found.append(solver(x0=start, p=p, **bounds))
            solved.append(solver.stats()["success"])
        y = np.stack([np.array(one["x"])[:, 0] for one in found])
        return Solved(y, lambda: {"p": np.stack([pull(i, found[i]) for i in range(len(found))])}, lambda: solved)

    def pull(i: int, found: dict[str, Any]) -> Any:
        inputs = {"x0": programme.start[i], "p": programme.p[i], **bounds}
        return np.array(_pulled(reverse, inputs, found, case.cotangent[i])).ravel()

    return forward


def _together(case: Case, programme: Programme, solver: Any, bounds: dict[str, Array]) -> Forward:
    """By columns; a failure of one problem is one of the batch, since a mapped function says no more."""
    mapped = solver.map(case.batch)
    reverse = mapped.reverse(1)
    every = {name: np.repeat(bound[:, None], case.batch, 1) for name, bound in bounds.items()}
    inputs = {"x0": programme.start.T, "p": programme.p.T, **every}

    def forward() -> Solved:
        found = mapped(**inputs)
        pull: Callable[[], Any] = lambda: {"p": np.array(_pulled(reverse, inputs, found, case.cotangent.T)).T}  # noqa: E731
        return Solved(np.array(found["x"]).T, pull)

    return forward


def _pulled(reverse: Any, inputs: dict[str, Any], found: dict[str, Any], v: Array) -> Any:
    outputs = {f"out_{name}": value for name, value in found.items()}
    return reverse(**inputs, lam_x0=0, lam_g0=0, **outputs, adj_x=v)["adj_p"]


CASADI = Library("casadi", "casadi", "casadi", (Programme,), VARIANTS, build)
