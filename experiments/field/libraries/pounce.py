"""pounce: quadratic programs as its layer, nonlinear ones as a TorchProblem."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from ..cases import Case, Forward, Programme, Quadratic, Simplex
from ..formulas import torch_operations
from .library import Library, quadratic_through_torch, through_torch

VARIANTS = {
    "default": "solve_qp (_batch where matrices are shared), TorchProblem(sparse=True).batched_solve, as they come",
    "tight": "tol 1e-10 (quadratic: 1e-12), bounds that are not relaxed",
    "to the bar": "tol 1e-8 (quadratic: 1e-9), bounds that are not relaxed",
}
SETTINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "tight": {"tol": 1e-10, "bound_relax_factor": 0.0},
    "to the bar": {"tol": 1e-8, "bound_relax_factor": 0.0},
}
QUADRATIC_TOLERANCES = {"default": None, "tight": 1e-12, "to the bar": 1e-9}


def build(case: Case, variant: str) -> Forward:
    """The batch at once where it has a way for that."""
    if isinstance(case.statement, Programme):
        return _programme(case, case.statement, variant)
    return _quadratic(case, variant)


def _quadratic(case: Case, variant: str) -> Forward:
    torch, module = importlib.import_module("torch"), importlib.import_module("pounce.torch")
    tol = QUADRATIC_TOLERANCES[variant]

    def together(Q: Any, q: Any, A: Any, b: Any, G: Any, h: Any) -> Any:
        return module.solve_qp_batch(P=Q[0], c=q, A=A[0], b=b, G=G[0], h=h, tol=tol)

    def one_by_one(*data: Any) -> Any:
        rows = zip(*data, strict=True)
        return torch.stack([module.solve_qp(P=Q, c=q, A=A, b=b, G=G, h=h, tol=tol) for Q, q, A, b, G, h in rows])

    return quadratic_through_torch(case, together if case.quadratic().sparse else one_by_one)


def _programme(case: Case, programme: Programme, variant: str) -> Forward:
    torch, module = importlib.import_module("torch"), importlib.import_module("pounce.torch")
    functions = programme.functions(torch_operations())
    parts = [one for one in (functions.equality, functions.inequality) if one is not None]
    start, p = torch.tensor(programme.start), torch.tensor(programme.p)
    counts = [0 if one is None else len(one(p[0], start[0])) for one in (functions.equality, functions.inequality)]
    problem = module.TorchProblem(
        f=lambda u, p: functions.objective(p, u),
        g=(lambda u, p: torch.cat([one(p, u) for one in parts])) if parts else None,
        n=start.shape[1],
        m=sum(counts),
        p_example=p[0],
        lb=np.maximum(programme.lower, -2e19),
        ub=np.minimum(programme.upper, 2e19),
        cl=np.r_[np.zeros(counts[0]), np.full(counts[1], -2e19)],
        cu=np.zeros(sum(counts)),
        options={"print_level": 0, **SETTINGS[variant]},
        sparse=True,
    )
    return through_torch(case, lambda xs: problem.batched_solve(xs["p"], start))


POUNCE = Library("pounce", "pounce-solver", "pounce.torch", (Quadratic, Simplex, Programme), VARIANTS, build)
