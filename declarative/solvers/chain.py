"""Solvers one after the other: each gets what those before it left unsolved."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..linear import DENSE
from ..optimality import assess
from ..problem import Batch
from ..solution import RawSolution
from .base import Solver
from .certificate import LARGE, proves_infeasible, proves_unbounded
from .newton import Newton
from .scipy import Scipy


@dataclass(frozen=True)
class Chain(Solver):
    """Try several solvers; ``Solution.solvers`` says which one finished which problem.

    By default the batched Newton method, then SciPy's SLSQP and trust-constr for the problems that it leaves unsolved,
    except those that are shown to be infeasible (which can be done if the constraints are convex where they pull).
    A problem that none of them solves keeps the first one's point and status, which says most about what is wrong.

    Example:
        >>> import torch
        >>> from declarative import DeclarativeNode
        >>> node = DeclarativeNode(lambda x, u: (u - x).square().sum(), lambda x, u: u.sum() - 1, start=3)
        >>> node.solve(torch.zeros(2, 3)).solvers
        ['Newton', 'Newton']
    """

    solvers: tuple[Solver, ...] = (
        Newton(),
        Scipy(method="SLSQP", options={"maxiter": 300}),
        Scipy(method="trust-constr", options={"maxiter": 300}),
    )

    def __post_init__(self) -> None:
        solvers: object = self.solvers
        if not isinstance(solvers, tuple | list) or not solvers or not all(isinstance(one, Solver) for one in solvers):
            raise TypeError(f"solvers must be a tuple of at least one Solver, but is {solvers!r}.")
        object.__setattr__(self, "solvers", tuple(solvers))

    @property
    def name(self) -> str:
        """The names of the solvers, in their order."""
        return " then ".join(dict.fromkeys(one.name for one in self.solvers))

    def solve(self, batch: Batch, start: Tensor) -> RawSolution:
        """Solve with the first solver, and hand on what is left."""
        best = self.solvers[0].solve(batch, start)
        if len(self.solvers) == 1 or (batch.layout is not DENSE and batch.m + batch.k > LARGE):
            return best
        rows = _worth_trying(batch, best, start)
        for solver in self.solvers[1:]:
            if not len(rows):
                break
            new = solver.solve(batch.select(rows).dense(), start[rows])
            solved = torch.ones(len(rows), dtype=torch.bool, device=rows.device)
            solved[_unsolved(batch.select(rows), new, start[rows])] = False
            best = best.put(rows[solved], new.take(solved))
            rows = rows[~solved]
        return best


def _worth_trying(batch: Batch, raw: RawSolution, start: Tensor) -> Tensor:
    """The positions of the problems that the first solver left, without those that have no solution for sure."""
    rows = _unsolved(batch, raw, start)
    if not len(rows):
        return rows
    part, u, first = batch.select(rows), raw.y[rows], start[rows]
    return rows[~(proves_unbounded(part, u, first) | proves_infeasible(part, u, first))]


def _unsolved(batch: Batch, raw: RawSolution, start: Tensor) -> Tensor:
    """The positions of the problems that a solver left; one that it gave up on may be solved all the same."""
    found = raw.assessment
    if found is None:
        found = assess(batch, raw.y, raw.multipliers, travel=raw.y - start)
    return (~found.solved(raw.y.dtype)).nonzero().flatten()
