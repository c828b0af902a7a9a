"""What a warm start saves on a problem that changes slowly, in iterations and time: from a point, from a solution."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from declarative import DeclarativeNode

from .rows import Comparison, Pair, Row, Run, Study, Target
from .timing import Side

COLD, POINT, SOLUTION = "cold", "from the last point", "from the last solution"
CHANGES = (1e-2, 1e-3, 1e-4)  # of the inputs from one problem to the next, relative to their size


@dataclass(frozen=True)
class WarmStart:
    """A program with m unknowns, an equality, 2m inequalities and bounds, solved before and after a change."""

    size: int
    batch: int
    change: float

    def words(self) -> str:
        size = f"m = {self.size}, batch {self.batch}"
        return f"program with {2 * self.size} inequalities and bounds, {size}, inputs change by {self.change:g}"

    def rows(self, run: Run) -> Iterator[Row]:
        if "warm start" not in run.only and run.only:
            return
        node, before, after = self._problem()
        last = node.solve(before)
        starts = {COLD: None, POINT: last.y, SOLUTION: last}
        counts = {
            name: float(node.solve(after, start=start).iterations.double().mean()) for name, start in starts.items()
        }
        for other in (COLD, POINT):
            names, values = (SOLUTION, other), (counts[SOLUTION], counts[other])
            claim, ratio = f"warm start: iterations beside {other}, {self.words()}", values[0] / values[1]
            yield Row.of_values(claim, names, values, ratio, "ours / other", Target(), "on average", "iterations")
        sides = {name: lambda start=start: Side(lambda: (node(after, start=start),)) for name, start in starts.items()}
        target = Target(at_most=0.7) if self.change <= 1e-4 else Target()
        claim = "warm start: time beside {}, " + self.words()
        slower = "where other constraints become active, the first steps were in vain"
        pairs = [
            Pair(claim.format(COLD), SOLUTION, COLD, target, share=True, slower=slower),
            Pair(claim.format(POINT), SOLUTION, POINT, share=True, slower=slower),
        ]
        yield from Comparison(sides, pairs).rows(run)

    def _problem(self) -> tuple[DeclarativeNode, Tensor, Tensor]:
        generator = torch.Generator().manual_seed(0)
        x, direction = torch.randn(2, self.batch, self.size, dtype=torch.float64, generator=generator)
        return _program(self.size), x, x + self.change * direction


@cache
def _program(size: int) -> DeclarativeNode:
    generator = torch.Generator().manual_seed(1)
    sides = torch.randn(2 * size, size, dtype=torch.float64, generator=generator)
    return DeclarativeNode(
        lambda x, u: u.square().sum() / 2 - x @ u + 0.1 * u.pow(4).sum(),
        lambda _, u: u.sum() - 1,
        lambda _, u: sides @ u - 0.5,
        bounds=(-0.4, None),
        start=size,
    )


def studies(quick: bool) -> Iterator[Study]:
    """From small changes to large ones."""
    for change in CHANGES:
        yield WarmStart(4, 2, change) if quick else WarmStart(20, 32, change)
