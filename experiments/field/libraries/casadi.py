"""CasADi with IPOPT, one problem after the other, and its parametric sensitivities."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from ..cases import Case, Forward, Programme, Solved
from ..conditions import Conditions
from .library import Library

VARIANTS = {
    "default": "nlpsol with IPOPT as it comes, clip_inactive_lam (without, all bounds count as active), the reverse "
    "derivative of nlpsol, in which an equality without a multiplier does not count",
    "tight": "IPOPT with tol 1e-10 and bounds that are not relaxed",
}
# Multipliers of an interior point are never zero: without clipping, every bound would count as active.
OPTIONS = {"print_time": False, "error_on_fail": False, "clip_inactive_lam": True, "bound_consistency": True}
SETTINGS: dict[str, dict[str, Any]] = {"default": {}, "tight": {"tol": 1e-10, "bound_relax_factor": 0.0}}


def build(case: Case, variant: str) -> Forward:
    """A solver, and the function that is its reverse derivative."""
    casadi = importlib.import_module("casadi")
    programme = case.statement
    assert isinstance(programme, Programme)
    made = Conditions(programme)
    options = OPTIONS | {"ipopt": {"print_level": 0, "sb": "yes"} | SETTINGS[variant]}
    solver = casadi.nlpsol("solver", "ipopt", made.symbols, options)
    reverse = solver.reverse(1)
    low = np.r_[np.zeros(made.equalities), np.full(made.count - made.equalities, -np.inf)]
    bounds = {"lbx": programme.lower, "ubx": programme.upper, "lbg": low, "ubg": np.zeros(made.count)}

    def forward() -> Solved:
        found, solved = [], []
        for p, start in zip(programme.p, programme.start, strict=True):
            found.append(solver(x0=start, p=p, **bounds))
            solved.append(solver.stats()["success"])
        y = np.stack([np.array(one["x"])[:, 0] for one in found])
        return Solved(y, lambda: {"p": np.stack([pull(i, found[i]) for i in range(len(found))])}, lambda: solved)

    def pull(i: int, found: dict[str, Any]) -> Any:
        inputs = {"x0": programme.start[i], "p": programme.p[i], "lam_x0": 0, "lam_g0": 0, **bounds}
        outputs = {f"out_{name}": value for name, value in found.items()}
        return np.array(reverse(**inputs, **outputs, adj_x=case.cotangent[i])["adj_p"]).ravel()

    return forward


CASADI = Library("casadi", "casadi", "casadi", (Programme,), VARIANTS, build)
