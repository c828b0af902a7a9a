"""Every row of the comparison with cvxpylayers as a ratio of times: called and recorded, in small and large batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from declarative import DeclarativeNode
from declarative.recording import Recordings
from problems import Layer
from problems.reference import MissingReferenceError

from ..shared.reference_cases import Case, all_cases
from .peers import TIGHT_PEER, MissingPeerError
from .rows import Comparison, Pair, Study, Target
from .timing import Side, both

BATCHES = {10: (1.0, 2.0), 128: (10.0, 10.0)}  # how many times as fast nodes are, called and recorded
OTHER = "cvxpylayers"


def studies(quick: bool) -> Iterator[Study]:
    """All of them, one after the other."""
    for batch, least in {2: (0.0, 0.0)}.items() if quick else BATCHES.items():
        for case in all_cases((3,) if quick else (10,), batch, 0):
            if case.tight and (not quick or case.name in ("simplex", "node: box")):
                yield beside(case, batch, *least)


def beside(case: Case, batch: int, called: float, recorded: float) -> Comparison:
    """Forward and backward to all inputs; the functions of a ready-made layer are recorded anyway."""
    xs = tuple(x.detach().clone().requires_grad_() for x in case.xs.values())
    v = torch.randn(case.node(*xs).shape, dtype=xs[0].dtype, generator=torch.Generator().manual_seed(0))
    sides: dict[str, Callable[[], Side]] = {"called": both(case.node, xs, v), OTHER: partial(_reference, case, xs, v)}
    pairs = [_pair(f"{case.name}, batch {batch}", "called", called)]
    if isinstance(case.node, Layer):
        pairs = [_pair(f"{case.name}, batch {batch}", "called", recorded)]
    else:
        sides["recorded"] = both(_recorded(case.node), xs, v)
        pairs.append(_pair(f"{case.name}, batch {batch}, recorded", "recorded", recorded))
    return Comparison(sides, pairs)


def _pair(words: str, ours: str, least: float) -> Pair:
    return Pair(f"{words}: cvxpylayers", ours, OTHER, Target(at_least=least), TIGHT_PEER)


def _recorded(node: DeclarativeNode) -> DeclarativeNode:
    recordings = Recordings(False)
    return node.with_plan(recordings=recordings, sizes=recordings.sizes)


def _reference(case: Case, xs: tuple[Tensor, ...], v: Tensor) -> Side:
    try:
        return both(case.build(), xs, v)()
    except MissingReferenceError as error:
        raise MissingPeerError("cvxpylayers is not installed") from error
