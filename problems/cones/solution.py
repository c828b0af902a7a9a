"""Solutions of cone programs: interior points first, then the faces of the cones."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from declarative import Status
from declarative.optimality import optimality_tolerance

from .conic import ConicProgram
from .embedding import solve_embedding
from .surface import polish

GOAL, RIDGE = 1e-8, 4e-16  # of the interior-point method
FINE_GOAL, LARGE_RIDGE = 1e-12, 1e-12  # for what stalls, or cannot be polished


@dataclass(frozen=True)
class ConicSolution:
    """Points and multipliers of equilibrated programs, or certificates of size 1 that there are none."""

    u: Tensor  # (batch, m)
    z: Tensor  # (batch, k)
    states: Tensor  # (batch, cones), on which face of its cone each slack lies
    codes: Tensor  # (batch,)
    residual: Tensor  # (batch,), infinite where there is no solution
    iterations: Tensor  # (batch,)

    def put(self, rows: Tensor, other: ConicSolution) -> ConicSolution:
        """The other solutions at these positions."""
        names = [one.name for one in fields(self)]
        return ConicSolution(*(getattr(self, name).index_copy(0, rows, getattr(other, name)) for name in names))

    def select(self, rows: Tensor) -> ConicSolution:
        """The solutions at these positions."""
        return ConicSolution(*(getattr(self, one.name)[rows] for one in fields(self)))


def solve_polished(program: ConicProgram, limit: int) -> ConicSolution:
    """The solutions of equilibrated programs, to rounding where strict complementarity holds."""
    found = _solve(program, limit, GOAL, RIDGE)
    rows = (found.codes == Status.STALLED).nonzero().flatten()
    if len(rows):
        again = _solve(program.select(rows), limit, FINE_GOAL, LARGE_RIDGE)
        better = again.residual < found.residual[rows]
        better = better | (again.codes == Status.INFEASIBLE) | (again.codes == Status.UNBOUNDED)
        found = found.put(rows[better], again.select(better))
    return found


def _solve(program: ConicProgram, limit: int, goal: float, ridge: float) -> ConicSolution:
    cones, near = program.cones, solve_embedding(program, limit, goal, ridge)
    u, z, states = near.u, near.z, cones.states(near.s, near.z)
    residual = torch.full_like(u[:, 0], torch.inf)
    rows = ((near.codes != Status.INFEASIBLE) & (near.codes != Status.UNBOUNDED)).nonzero().flatten()
    if len(rows):
        found = polish(program.select(rows), u[rows], near.s[rows], z[rows])
        u[rows], z[rows], states[rows], residual[rows] = found.u, found.z, found.states, found.residual
    good = residual <= optimality_tolerance(u.dtype)
    codes = torch.where((near.codes == Status.CONVERGED) & ~good, int(Status.STALLED), near.codes)
    return ConicSolution(u, z, states, torch.where(good, int(Status.CONVERGED), codes), residual, near.iterations)
