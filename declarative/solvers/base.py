"""The contract of a solver."""

from __future__ import annotations

import abc

from torch import Tensor

from ..optimality import Assessment
from ..problem import Batch
from ..solution import RawSolution


class Solver(abc.ABC):
    """Finds solutions for a batch of problems, without gradients.

    A solver is frozen configuration: it keeps nothing of a call. It never raises for a problem that it cannot solve,
    but gives it a status. What it reports as converged is checked by the node against the optimality conditions.

    Example:
        >>> import torch
        >>> from declarative import DeclarativeNode, Solver
        >>> from declarative.solution import RawSolution
        >>> class OneStep(Solver):
        ...     "Newton's step from the start, which solves a quadratic problem without constraints."
        ...     def solve(self, batch, start):
        ...         step = torch.linalg.solve(batch.hessian(start), batch.gradient(start))
        ...         return RawSolution.unsolved(start - step)
        >>> node = DeclarativeNode(lambda x, u: (u - x).square().sum(), solver=OneStep(), start=2)
        >>> node(torch.tensor([[3.0, 4.0]]))
        tensor([[3., 4.]])
    """

    needs_start = True
    stationary = False  # whether it is to find stationary points that need not be minima

    @property
    def name(self) -> str:
        """What it is called where a node is printed."""
        return type(self).__name__

    @abc.abstractmethod
    def solve(self, batch: Batch, start: Tensor) -> RawSolution:  # start: (batch, m)
        """Solve every problem of the batch, in the dtype of ``start``."""

    def assess(self, batch: Batch, raw: RawSolution) -> Assessment | None:  # noqa: ARG002
        """Test what :meth:`solve` found without dense derivatives; None (the default) leaves it to the node."""
        return None

    def solve_plainly(self, batch: Batch, start: Tensor) -> tuple[Tensor, Tensor] | None:  # noqa: ARG002
        """The solutions, (batch, m), and how far from one they are at most, relatively, (batch,), and nothing else.

        For calls of which nothing else is asked, where that saves something; None (the default): it does not.
        """
        return None
