"""What is measured: comparisons of several sides, growth with the size, and memory, each as rows of the table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from ..shared.processes import output_of
from .peers import MissingPeerError
from .timing import BUDGET, TURNS, Side, Timed, difference, measure

NAN = float("nan")
CLOSE = 1e-6  # gradients that differ more than this, relatively, are told apart in a note
FITTED = 3  # the largest sizes to which a slope is fitted; below, what a call costs whatever its size shows


@dataclass(frozen=True)
class Target:
    """What a ratio should be, if anything."""

    at_least: float | None = None
    at_most: float | None = None

    def __str__(self) -> str:
        if self.at_least is not None:
            return f"at least {self.at_least:g}"
        return "" if self.at_most is None else f"at most {self.at_most:g}"

    def met(self, ratio: float) -> str:
        """The verdict in a word."""
        if self.at_least is None and self.at_most is None:
            return ""
        if ratio != ratio:
            return "skipped"
        good = ratio >= self.at_least if self.at_least is not None else ratio <= (self.at_most or 0.0)
        return "yes" if good else "MISSED"


NO_TARGET = Target()


@dataclass(frozen=True)
class Row:
    """One claim. The ratio says how many times as long the other takes, or what share of its time we do: see ``of``."""

    claim: str
    ours: str
    ours_value: float
    other: str
    other_value: float
    unit: str
    ratio: float
    of: str
    target: str
    met: str  # yes, MISSED, skipped, or nothing where there is no target
    difference: float  # of the gradients (or solutions, where forward alone is timed), relative
    note: str

    @classmethod
    def of_values(
        cls, claim: str, names: tuple[str, str], values: tuple[float, ...], ratio: float, of: str, target: Target,
        note: str, unit: str = "ms", difference: float = NAN,
    ) -> Row:  # fmt: skip
        """The names and values of ours and the other, and what that comes to."""
        pairs = names[0], values[0], names[1], values[1]
        return cls(claim, *pairs, unit, ratio, of, str(target), target.met(ratio), difference, note)


@dataclass(frozen=True)
class Point:
    """A time for a plot."""

    plot: str
    side: str
    size: int
    ms: float


@dataclass(frozen=True)
class Run:
    """What is wanted of a run, and what it has gathered for the plots."""

    only: str = ""  # a part of the claims that are wanted
    budget: float = BUDGET  # seconds for the repeats of a comparison, if its least number of turns fits in
    turns: int = TURNS  # that number
    points: list[Point] = field(default_factory=list)  # so far


class Study(Protocol):
    """Something that gives rows, and perhaps points for a plot."""

    def rows(self, run: Run) -> Iterator[Row]:
        """The rows whose claims are wanted."""
        ...


@dataclass(frozen=True)
class Pair:
    """A row to be: two sides by their names."""

    claim: str
    ours: str
    other: str
    target: Target = NO_TARGET
    note: str = ""
    slower: str = ""  # the reason, where ours is the slower one
    share: bool = False  # is the ratio our share of the other's time, or how many times as long the other takes?
    same: bool = True  # must both give the same gradient?


Sides = Mapping[str, Callable[[], Side]]  # by name; a side is built when it is needed


@dataclass(frozen=True)
class Comparison:
    """Several sides, measured in turns; one whose peer is missing is skipped."""

    sides: Sides
    pairs: Sequence[Pair]
    plot: str = ""
    size: int = 0

    def rows(self, run: Run) -> Iterator[Row]:
        pairs = [pair for pair in self.pairs if run.only in pair.claim]
        if not pairs:
            return
        names = {name for pair in pairs for name in (pair.ours, pair.other)}
        built: dict[str, Side] = {}
        missing: dict[str, str] = {}
        for name in filter(names.__contains__, self.sides):
            try:
                built[name] = self.sides[name]()
            except MissingPeerError as error:
                missing[name] = str(error)
        timed = measure(built, run.budget, run.turns)
        if self.plot:
            run.points.extend(Point(self.plot, name, self.size, 1e3 * one.seconds) for name, one in timed.items())
        for pair in pairs:
            yield _row(pair, timed, missing)


def _row(pair: Pair, timed: Mapping[str, Timed], missing: Mapping[str, str]) -> Row:
    names = pair.ours, pair.other
    ours, other = values = tuple(1e3 * timed[name].seconds if name in timed else NAN for name in names)
    of, ratio = ("ours / other", ours / other) if pair.share else ("other / ours", other / ours)
    absent = sorted({missing[name] for name in names if name in missing})
    apart = difference(*(timed[name].result for name in names)) if pair.same and not absent else NAN
    notes = [
        f"skipped: {' and '.join(absent)}" if absent else pair.note,
        pair.slower if ours > other else "",
        f"NOT THE SAME to {CLOSE:g}" if apart > CLOSE else "",
    ]
    return Row.of_values(pair.claim, names, values, ratio, of, pair.target, "; ".join(filter(None, notes)), "ms", apart)


@dataclass(frozen=True)
class Growth:
    """The slope of a side in its plot, from what was measured before."""

    claim: str
    plot: str
    side: str
    target: Target = NO_TARGET

    def rows(self, run: Run) -> Iterator[Row]:
        mine = sorted((one.size, one.ms) for one in run.points if (one.plot, one.side) == (self.plot, self.side))
        if run.only not in self.claim or len(mine) < 2:
            return
        (small, before), (large, after) = mine[-min(FITTED, len(mine))], mine[-1]
        found = slope([x[0] for x in mine], [x[1] for x in mine])
        names, note = (f"{self.side}, size {large}", f"size {small}"), "the slope of log time against log size"
        yield Row.of_values(self.claim, names, (after, before), found, "slope", self.target, note)


def slope(sizes: Sequence[int], values: Sequence[float]) -> float:
    """Of the logarithms, fitted to the largest sizes."""
    logs = np.log(np.array([sizes[-FITTED:], values[-FITTED:]], dtype=float))
    return float(np.polyfit(logs[0], logs[1], 1)[0])


def memory_of(kind: str, size: int) -> float:
    """The megabytes that forward and backward take at most, in a process of their own."""
    return int(output_of("experiments.bench.memory", kind, size)) / 1e6


@dataclass(frozen=True)
class Memory:
    """What forward and backward take at most, in a process of their own, beside another number of megabytes."""

    claim: str
    kind: str  # of problem
    size: int
    names: tuple[str, str]
    other: Callable[[], float]
    target: Target
    note: Callable[[float], str]  # of the megabytes

    def rows(self, run: Run) -> Iterator[Row]:
        if run.only not in self.claim:
            return
        taken, other = memory_of(self.kind, self.size), self.other()
        rest = taken / other, "ours / other", self.target, self.note(taken), "MB"
        yield Row.of_values(self.claim, self.names, (taken, other), *rest)
