"""How two ways to compute the same thing are timed: in turns, on one thread, warm, the shortest time of each.

The time is that of the processor, all threads together: on an idle machine it is the time on the wall, on a busy one
it does not count what others do, and a side that uses more threads than it is told has no advantage.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from declarative import DeclarativeNode

from ..shared.timing import no_collections, timed

BURST = 0.02  # seconds of calls of one side before it is the other's turn
BUDGET = 1.5  # seconds for a comparison, if the least number of turns fits in
TURNS = 4  # at least
Of = Callable[[Any], Tensor]  # which part of what a layer returns
LONG = 4.0  # a call of more seconds than this is not repeated: what its first call adds is not seen in it


@dataclass(frozen=True)
class Side:
    """One way to compute something."""

    run: Callable[[], Sequence[Tensor]]  # is timed; what it returns is compared with that of the other side
    check: Callable[[], Sequence[Tensor]] | None = None  # is compared instead, where that does not return it
    clock: Callable[[], float] | None = None  # the seconds of one call, where this process cannot measure them


def both(function: Callable[..., Any], xs: Sequence[Tensor], v: Tensor, of: Of = lambda y: y) -> Callable[[], Side]:
    """Builds a side: forward and backward from v to all inputs that require a gradient, of a tensor of the result."""
    wanted = [x for x in xs if x.requires_grad]
    return partial(_warm, function, lambda: torch.autograd.grad(of(function(*xs)), wanted, v))


def forward(function: Callable[..., Any], xs: Sequence[Tensor], of: Of = lambda y: y) -> Callable[[], Side]:
    """Builds a side: forward, without a gradient."""
    inputs = [x.detach() for x in xs]
    return partial(_warm, function, lambda: (of(function(*inputs)),))


def _warm(function: Callable[..., Any], run: Callable[[], Sequence[Tensor]]) -> Side:
    if isinstance(function, DeclarativeNode):
        run()  # the call that records is no measure of the others
    return Side(run)


@dataclass(frozen=True)
class Timed:
    """What a side took, and what it returned."""

    seconds: float
    result: Sequence[Tensor]


def measure(sides: Mapping[str, Side], budget: float = BUDGET, turns: int = TURNS) -> dict[str, Timed]:
    """The shortest time of each side, all sides in turns: for so many seconds, and at least so many turns."""
    results, best = {}, {}
    for name, side in sides.items():
        first, results[name] = timed(side.run)
        best[name] = first if first > LONG else float("inf")
    todo = [name for name, known in best.items() if known == float("inf")]
    began, done = time.perf_counter(), 0
    with no_collections():
        while todo and (done < turns or time.perf_counter() - began < budget):
            for name in todo:
                best[name] = min(best[name], _burst(sides[name]))
            done += 1
    for name, side in sides.items():
        if side.check is not None:
            results[name] = side.check()
    return {name: Timed(best[name], [x.detach() for x in results[name]]) for name in sides}


def difference(a: Sequence[Tensor], b: Sequence[Tensor]) -> float:
    """The largest difference of two results, relative to the largest entry of the second."""
    pairs = list(zip(a, b, strict=True))
    return max(float((x - y).abs().max() / y.abs().max().clamp(min=torch.finfo(y.dtype).tiny)) for x, y in pairs)


def _burst(side: Side) -> float:
    """The shortest of as many calls as fit into a burst, at least one."""
    clock = side.clock or (lambda: timed(side.run)[0])
    start, best = time.perf_counter(), float("inf")
    while True:
        best = min(best, clock())
        if time.perf_counter() - start > BURST:
            return best
