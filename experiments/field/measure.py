"""What one cell costs: run in a process of its own, on one thread."""

from __future__ import annotations

import contextlib
import io
import re
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..shared.memory import peak, reset_peak
from ..shared.timing import no_collections, timed
from .cases import Answer, Case, Forward, Solved

LEAST, MOST = 3, 25  # repeats
SHARE = 0.2  # of the time limit, after which nothing is repeated again
ALMOST = 0.9  # of the time limit, within which a repeat must be expected to end
# What a library prints or warns of counts as a doubt about its answer if it has one of these words.
DOUBT = re.compile(r"converge|inaccura|incorrect|maximum number of iter|max_?iter|infeasib|numerical error|fail", re.I)


@dataclass(frozen=True)
class Times:
    """Seconds of the processor, and bytes."""

    first: float  # the first call, forward and backward, with all that is done once
    forward: float  # the median of the repeats
    backward: float
    low: float  # of forward and backward together: the first and the last quarter of the repeats
    high: float
    repeats: int
    memory: int  # how much the first call rises above what was in use before


def measure(forward: Forward, case: Case, budget: float, limit: float) -> tuple[Times, Answer]:
    """Call once, then repeat for so many seconds, and at least so many times if the limit allows it."""
    before = reset_peak()
    with _listening() as said:
        first, solved, gradients = _once(forward)
    memory = peak() - before
    answer = Answer(
        np.asarray(solved.y).reshape(case.batch, -1),
        {name: np.asarray(gradients[name]) for name in case.inputs},
        np.ones(case.batch, bool) if solved.claims is None else np.asarray(solved.claims(), bool),
        next(iter(said), ""),
    )
    pairs: list[tuple[float, float]] = []
    with no_collections():
        began = time.perf_counter()
        last = sum(first)
        while len(pairs) < MOST and _goes_on(len(pairs), time.perf_counter() - began, last, budget, limit):
            pairs.append(_once(forward)[0])
            last = sum(pairs[-1])
    seconds = np.array(pairs or [first])
    of_forward, of_backward = np.median(seconds, 0).tolist()
    low, high = np.quantile(seconds.sum(-1), [0.25, 0.75]).tolist()
    return Times(sum(first), of_forward, of_backward, low, high, len(pairs), max(memory, 0)), answer


def _goes_on(done: int, elapsed: float, last: float, budget: float, limit: float) -> bool:
    """One repeat unless the limit is near: the first call may have compiled something, and the next be short."""
    if time.process_time() + last > ALMOST * limit:  # the process was split off for this cell: all of it counts
        return False
    return done == 0 or (elapsed < SHARE * limit and (done < LEAST or elapsed < budget))


@contextlib.contextmanager
def _listening() -> Iterator[list[str]]:
    """What is warned of or printed meanwhile, if it is a doubt."""
    said: list[str] = []
    with warnings.catch_warnings(record=True) as caught, contextlib.redirect_stdout(io.StringIO()) as printed:
        warnings.simplefilter("always")
        yield said
    lines = [*(str(one.message) for one in caught), *printed.getvalue().splitlines()]
    said += [" ".join(line.split())[:200] for line in lines if DOUBT.search(line)]


def _once(forward: Forward) -> tuple[tuple[float, float], Solved, Any]:
    ahead, solved = timed(forward)
    back, gradients = timed(solved.backward)
    return (ahead, back), solved, gradients
