"""A solution by formula."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import Tensor

from ..arguments import require_flags
from ..problem import Batch
from ..solution import RawSolution, Status
from .base import Solver
from .polish import CLOSE, polish


@dataclass(frozen=True)
class ClosedForm(Solver):
    """A function ``(*xs) -> y`` of the whole batch (batch dimension first) that returns the solutions.

    It needs no gradient of its own. What it returns is checked against the problem's optimality conditions.

    Args:
        function: the formula, or any solver of your own. For an unbatched node it sees unbatched inputs.
        polish: finish what it returns by Newton steps on the optimality conditions, for a formula that is approximate.
        stationary: accept saddle points and maxima too: the formula is for a stationary point, such as any eigenvector.

    Example:
        >>> import torch
        >>> from declarative import ClosedForm, DeclarativeNode
        >>> mean = DeclarativeNode(lambda x, u: (x - u).square().sum(), solver=ClosedForm(lambda x: x.mean(-1)))
        >>> mean(torch.tensor([[1.0, 2.0, 6.0]]))
        tensor([3.])
    """

    function: Callable[..., Tensor]
    polish: bool = False
    stationary: bool = False

    needs_start = False

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise TypeError(f"function must be a function of (*xs), but is {type(self.function).__name__}.")
        require_flags(polish=self.polish, stationary=self.stationary)

    def solve(self, batch: Batch, start: Tensor) -> RawSolution:
        """Accept ``start``, which the node has obtained from the function."""
        raw = RawSolution.unsolved(start)
        if not self.polish:
            return raw
        raw = polish(batch, raw, minimum=not self.stationary)
        rough = [f"ClosedForm: too far off to be polished, which takes a Newton step below {CLOSE:g}", ""]
        return replace(raw, messages=tuple(rough[code == Status.CONVERGED] for code in raw.codes.tolist()))
