"""Solve the whole table, one problem after the other: ``python -m tests.support.nlp.run --solver newton --time 20``.

A problem is *solved* if the solver says so at a feasible point with the best known value, *local* if that is another
known minimum, *wrong* if the solver says so anywhere else, *below* if the point is feasible and better than the best
known one (then the table is wrong), *failed* if the solver does not claim success, and *late* if the time is over.
"""

from __future__ import annotations

import argparse
import signal
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch

from declarative import Scipy
from declarative.solution import Solution

from . import TABLE
from .peers import Answer, ipopt, slsqp
from .programme import Programme

VERDICTS = ("solved", "local", "wrong", "below", "failed", "late")
CATEGORIES = ("unconstrained", "bounds", "equality", "inequality", "mixed")
FEASIBLE = 1e-6


class LateError(BaseException):
    """Not an ``Exception``, so that nobody handles it."""


@dataclass(frozen=True)
class Outcome:
    programme: Programme
    verdict: str
    words: str = ""
    iterations: int = 0
    value: float = float("nan")
    seconds: float = 0.0


def library(solver: object) -> Callable[[Programme], Answer]:
    """The solver of the library; None for its default."""

    def solve(programme: Programme) -> Answer:
        node = programme.node(solver=solver, on_failure="mask")
        solution: Solution = node.solve(torch.ones(1, dtype=torch.float64))
        status = solution.status[0].name
        return Answer(solution.y[0].detach().numpy(), bool(solution.converged), status, int(solution.iterations))

    return solve


def peer(solver: Callable[[Programme, np.ndarray], Answer]) -> Callable[[Programme], Answer]:
    return lambda programme: solver(programme, np.array(programme.start, dtype=np.float64))


SOLVERS = {
    "newton": library("newton"),
    "default": library(None),
    "slsqp": library(Scipy()),
    "scipy": peer(slsqp),
    "ipopt": peer(ipopt),
}


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    def ring(*_: object) -> None:
        raise LateError

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def attempt(programme: Programme, solve: Callable[[Programme], Answer], limit: float) -> Outcome:
    """Solve it, whatever happens."""
    began = time.perf_counter()
    try:
        with limited(limit):
            answer = solve(programme)
    except LateError:
        return Outcome(programme, "late", seconds=limit)
    except Exception as error:  # a crash is a result here
        words = f"{type(error).__name__}: {error}".splitlines()[0]
        return Outcome(programme, "failed", words, seconds=time.perf_counter() - began)
    seconds = time.perf_counter() - began
    point = torch.from_numpy(answer.point)
    value = programme.objective(point).item()
    return Outcome(programme, *judge(programme, point, value, answer), answer.iterations, value, seconds)


def judge(programme: Programme, point: torch.Tensor, value: float, answer: Answer) -> tuple[str, str]:
    violation = programme.violation(point)
    feasible = violation <= FEASIBLE
    if not answer.claims_success:
        return "failed", answer.words + (" at a solution" if feasible and programme.is_right(value) else "")
    if not feasible:
        return "wrong", f"violated by {violation:.1e}"
    if abs(programme.excess(value)) <= programme.tolerance:
        return "solved", ""
    if programme.is_right(value):
        return "local", ""
    if programme.excess(value) < 0:
        return "below", f"feasible to {violation:.1e}"
    return "wrong", f"above the best by {programme.excess(value):.1e}"


def line(outcome: Outcome) -> str:
    programme = outcome.programme
    return (
        f"{programme.name:28}{programme.category:14}{outcome.verdict:8}{outcome.iterations:5d}{outcome.seconds:8.2f} s"
        f"{outcome.value:18.10g}  {outcome.words}"
    )


def summary(outcomes: list[Outcome]) -> str:
    rows = [f"{'':14}" + "".join(f"{verdict:>9}" for verdict in (*VERDICTS, "all", "seconds"))]
    for category in (*CATEGORIES, "all"):
        chosen = [one for one in outcomes if category in ("all", one.programme.category)]
        counts = Counter(one.verdict for one in chosen)
        numbers = [*(counts[verdict] for verdict in VERDICTS), len(chosen), round(sum(one.seconds for one in chosen))]
        rows.append(f"{category:14}" + "".join(f"{number:9d}" for number in numbers))
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="problems or categories; by default all")
    parser.add_argument("--solver", choices=list(SOLVERS), default="default")
    parser.add_argument("--time", type=float, default=20.0, help="seconds for each problem")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # the verdict says it
    chosen = [p for p in TABLE if not options.names or {p.name, p.category} & set(options.names)]
    outcomes = []
    for programme in chosen:
        outcomes.append(attempt(programme, SOLVERS[options.solver], options.time))
        print(line(outcomes[-1]), flush=True)
    print(summary(outcomes))


if __name__ == "__main__":
    main()
