"""A node that replays a recording of its functions against the same node that calls them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..linear import by_rows
from ..node import DeclarativeNode
from ..solution import Status


@dataclass(frozen=True)
class ReplayGap:
    """The largest differences between recorded and called, relative to the largest entry; infinite if one failed."""

    solution: float
    gradient: float

    @property
    def worst(self) -> float:
        """The larger one."""
        return max(self.solution, self.gradient)


def compare_replay(node: DeclarativeNode, xs: Sequence[Tensor]) -> ReplayGap:
    """Solve and differentiate with the node's own recording, perhaps an old one, and by calling its functions."""
    given = [x.detach() for x in xs]
    recorded, called = _results(node, given), _results(node.with_plan(recordings=None, sizes=None), given)
    return ReplayGap(_difference(recorded[:1], called[:1]), _difference(recorded[1:], called[1:]))


def _results(node: DeclarativeNode, xs: Sequence[Tensor]) -> list[Tensor]:
    """The solutions, and the gradients for an irregular incoming gradient; failed problems are NaN."""
    leaves = [x.clone().requires_grad_() if x.is_floating_point() else x.clone() for x in xs]
    wanted = [x for x in leaves if x.requires_grad]
    with torch.enable_grad():
        solution = node.evaluate(leaves).solution
        y = solution.y
        v = torch.linspace(1.0, 2.0, y.numel(), dtype=torch.float64, device="cpu").sin().view(y.shape).to(y)
        grads = torch.autograd.grad(y, wanted, v, allow_unused=True) if wanted else ()
    failed = solution.codes != Status.CONVERGED
    rows = torch.where(by_rows(failed, y), torch.nan, y.detach())
    return [rows, *(torch.zeros_like(x) if g is None else g for x, g in zip(wanted, grads, strict=True))]


def _difference(ones: Sequence[Tensor], others: Sequence[Tensor]) -> float:
    return max((_relative(one, other) for one, other in zip(ones, others, strict=True) if one.numel()), default=0.0)


def _relative(one: Tensor, other: Tensor) -> float:
    """Relative to the largest entry; what is below the square root of the precision may be rounding of zero."""
    gap = torch.where(one.isnan() & other.isnan(), 0.0, (one - other).abs()).amax()
    size = other.nan_to_num(0.0, 0.0, 0.0).abs().amax().clamp(min=torch.finfo(other.dtype).eps ** 0.5)
    return (gap / size).nan_to_num(torch.inf).item()
