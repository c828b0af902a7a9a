"""Other people's solvers for sparse problems as sides of a comparison, each at settings that make it accurate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..shared.trajectories import Model, Transcription, symbolic
from .peers import load
from .timing import Side

EXACT = {"tol": 1e-10, "bound_relax_factor": 0.0, "print_level": 0}  # else bounds are missed by 1e-8, relatively
TIGHTEST = 1e-14  # of piqp, which reaches it, and needs it where many constraints are almost active
FOURTH_ORDER = ((1, 8 / 12), (-1, -8 / 12), (2, -1 / 12), (-2, 1 / 12))  # central differences
Solve = Callable[[Tensor], Tensor]  # (batch, size) -> (batch, unknowns)


@cache
def ipopt(model: Model, steps: int) -> Solve:
    """IPOPT with CasADi's derivatives, for one problem after the other."""
    casadi = load("casadi")
    transcription = Transcription(model, steps)
    bound = transcription.bound.numpy()
    options = {"print_time": False, "ipopt": {**EXACT, "sb": "yes"}}
    solver = casadi.nlpsol("solver", "ipopt", symbolic(model, steps, casadi), options)

    def solve(initial: Tensor) -> Tensor:
        starts = transcription.start(initial).numpy()
        pairs = zip(initial.numpy(), starts, strict=True)
        found = [solver(x0=start, p=p, lbx=-bound, ubx=bound, lbg=0, ubg=0)["x"] for p, start in pairs]
        return torch.from_numpy(np.stack([np.array(one)[:, 0] for one in found]))

    return solve


def pounce(model: Model, steps: int, initial: Tensor) -> Side:
    """A translation of IPOPT that takes torch functions, colours their derivatives and solves a batch."""
    made = Transcription(model, steps)
    problem = load("pounce.torch").TorchProblem(
        f=made.objective,
        g=made.equations,
        n=len(made.bound),
        m=made.rows,
        p_example=initial[0],
        lb=-made.bound.numpy(),
        ub=made.bound.numpy(),
        cl=np.zeros(made.rows),
        cu=np.zeros(made.rows),
        options=EXACT,
        sparse=True,
    )
    start = made.start(initial)
    return Side(lambda: (problem.batched_solve(initial, start),))


def differences(solve: Solve, initial: Tensor, v: Tensor, step: float = 1e-3) -> Sequence[Tensor]:
    """The gradient of sum(v * solution) in the initial states, by differences of solutions."""
    columns = []
    for direction in torch.eye(initial.shape[-1], dtype=initial.dtype):
        terms = [w * (v * solve(initial + i * step * direction)).sum(-1) for i, w in FOURTH_ORDER]
        columns.append(torch.stack(terms).sum(0) / step)
    return (torch.stack(columns, -1),)


def piqp() -> Callable[..., Any]:
    """Quadratic programs with sparse matrices, as a function of P, c, G and the bounds of G u."""
    library = load("piqp")

    def solve(P: Any, c: Any, G: Any, low: Any, high: Any) -> Any:
        solver = library.SparseSolver()
        solver.settings.eps_abs = solver.settings.eps_rel = TIGHTEST
        solver.settings.eps_duality_gap_abs = solver.settings.eps_duality_gap_rel = TIGHTEST
        solver.setup(P, c, None, None, G, low, high)
        solver.solve()
        return np.array(solver.result.x)

    return solve
