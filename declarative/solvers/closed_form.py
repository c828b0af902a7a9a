"""A solution by formula."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..arguments import require_flags
from ..problem import Batch
from ..solution import RawSolution, Status
from ..torchside import versions
from ..user.messages import IN_PLACE
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

    def points(self, xs: Sequence[Tensor], in_dims: Sequence[int | None], size: int, dtype: torch.dtype) -> Tensor:
        """What the function returns for the batch, (size, *shape of u).

        Raises:
            TypeError, ValueError: that is not one solution for each problem, or the function has changed its inputs.
        """
        before = versions(xs)
        y: object = self.function(*xs)
        if versions(xs) != before:
            raise ValueError(f"the closed form {IN_PLACE}")
        if not isinstance(y, Tensor):
            several = (
                "; for several unknowns, tell their shapes with start=" if isinstance(y, dict | tuple | list) else ""
            )
            raise TypeError(f"the closed form must return a tensor, but returned {type(y).__name__}{several}.")
        if all(dim is None for dim in in_dims):
            y = y.unsqueeze(0)
        if y.dim() == 0 or y.shape[0] != size:
            raise ValueError(
                f"the closed form must return one solution per problem, shape ({size}, ...), but returned "
                f"{tuple(y.shape)}."
            )
        if not y.is_floating_point():
            raise TypeError(f"the closed form must return a floating-point tensor, but returned {y.dtype}.")
        if 0 in y.shape[1:]:
            raise ValueError(f"the closed form returned shape {tuple(y.shape)}: u must have at least one entry.")
        return y.to(dtype, copy=True)  # a formula may return one of its inputs

    def solve(self, batch: Batch, start: Tensor) -> RawSolution:
        """Accept ``start``, which the node has obtained from the function."""
        raw = RawSolution.unsolved(start)
        if not self.polish:
            return raw
        raw = polish(batch, raw, minimum=not self.stationary)
        rough = [f"ClosedForm: too far off to be polished, which takes a Newton step below {CLOSE:g}", ""]
        return replace(raw, messages=tuple(rough[code == Status.CONVERGED] for code in raw.codes.tolist()))
