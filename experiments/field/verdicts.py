"""Who wins, by how much, and who failed silently: all computed from the rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from .rows import Row

OURS = "ours"
LEVELS = {"to 1e-6": 1e-6, "to 1e-2": 1e-2}  # of the worst gradient of a batch: what counts as equally accurate
MAIN = "to 1e-6"
SMOOTH = ("nonlinear", "control")
SHARE_SMOOTH, SHARE_QUADRATIC = 0.8, 0.5
BATCHED, LARGE = 32, 50


@dataclass(frozen=True)
class Contest:
    """The fastest of ours and of the others among those that are accurate, on the same problems."""

    shape: tuple[str, int, int]
    kind: str
    ours: Row | None
    other: Row | None
    rough: Row | None = None  # the fastest of the others that are not accurate

    @property
    def factor(self) -> float:
        """How many times as long the other takes; infinite if there is no other, zero if ours is missing."""
        if self.ours is None:
            return 0.0
        return float("inf") if self.other is None else self.other.total / self.ours.total

    @property
    def won(self) -> bool:
        """Are we at least as fast?"""
        return self.factor >= 1

    @property
    def close(self) -> bool:
        """Do the middle halves of the repeats of both overlap?"""
        if self.ours is None or self.other is None:
            return False
        return self.ours.low <= self.other.high and self.other.low <= self.ours.high

    @property
    def short(self) -> str:
        """Of a loss: where, how often, to whom."""
        _, size, batch = self.shape
        by = "not accurate" if self.ours is None else f"{1 / self.factor:.3g} times"
        return f"{size} x {batch}: {by}" + ("" if self.other is None else f", {self.other.library}")

    def __str__(self) -> str:
        family, size, batch = self.shape
        place = f"{family} {size} x {batch}"
        if self.ours is None:
            best = "" if self.other is None else f"; {self.other.name} takes {self.other.total:.3g} ms"
            return f"{place}: ours is not accurate enough or not in time{best}"
        ours = f"ours ({self.ours.variant}) {self.ours.total:.3g} ms"
        if self.other is None:
            near = self.rough
            nearest = "" if near is None else f" ({near.name} takes {near.total:.3g} ms, {near.flaw})"
            return f"{place}: nobody else is accurate in time{nearest}; {ours}"
        pair = f"{ours}, {self.other.name} {self.other.total:.3g} ms"
        ratio = max(self.factor, 1 / self.factor)
        close = ", within the spread" if self.close else ""
        return f"{place}: {'won' if self.won else 'lost'} {ratio:.3g} times ({pair}{close})"


def contests(rows: Sequence[Row], level: float) -> list[Contest]:
    """All problems that somebody solves accurately, and that both we and others were asked to solve."""
    found = []
    for shape in dict.fromkeys(row.shape for row in rows):
        here = [row for row in rows if row.shape == shape and row.attempted]
        mine = [row for row in here if row.accurate(level)]
        if mine and len({row.library == OURS for row in here}) == 2:
            ours, others = ([x for x in mine if (x.library == OURS) == us] for us in (True, False))
            rough = [row for row in here if row.library != OURS and row.timed and not row.accurate(level)]
            found.append(Contest(shape, mine[0].kind, fastest(ours), fastest(others), fastest(rough)))
    return found


def fastest(rows: Iterable[Row]) -> Row | None:
    """By forward and backward together."""
    return min(rows, key=lambda row: row.total, default=None)


@dataclass(frozen=True)
class Criterion:
    """Something that should hold, and whether it does; None where nothing was measured."""

    words: str
    holds: bool | None
    evidence: str


def criteria(rows: Sequence[Row]) -> list[Criterion]:
    """What this library should reach at equal accuracy."""
    found = contests(rows, LEVELS[MAIN])
    silent = sum(row.silent for row in rows if row.library == OURS)
    ours = [row for row in rows if row.library == OURS and row.attempted]
    return [
        Criterion(
            "no silent failure of ours in any cell", silent == 0 if ours else None, f"{silent} in {len(ours)} cells"
        ),
        _share("ours is fastest in at least 80 % of the nonlinear and control cells", found, SHARE_SMOOTH,
               lambda one: one.kind in SMOOTH),
        _share("in at least half of the quadratic cells at batch 32 and above", found, SHARE_QUADRATIC,
               lambda one: one.kind == "quadratic" and one.shape[2] >= BATCHED),
        _share("in all transport cells from 50 x 50 on", found, 1.0,
               lambda one: one.kind == "transport" and one.shape[1] >= LARGE),
    ]  # fmt: skip


def _share(words: str, found: Sequence[Contest], least: float, counts: Callable[[Contest], bool]) -> Criterion:
    mine = [one for one in found if counts(one)]
    won = sum(one.won for one in mine)
    alone = sum(one.won and one.other is None for one in mine)
    unopposed = f"; {alone} of them because nobody else is accurate in time" if alone else ""
    return Criterion(words, won >= least * len(mine) if mine else None, f"{won} of {len(mine)} ({MAIN}{unopposed})")


@dataclass(frozen=True)
class Verdict:
    """Of a family."""

    family: str
    lost: list[Contest]
    won: list[Contest]
    silent: dict[str, int]  # how many problems, by library and variant

    @property
    def sentences(self) -> list[str]:
        """Losses first."""
        lines = [str(one) for one in sorted(self.lost, key=lambda one: one.factor)]
        lines += [str(one) for one in sorted(self.won, key=lambda one: -one.factor)]
        return lines + [f"silently wrong: {name}, {count} problems" for name, count in self.silent.items()]

    @property
    def summary(self) -> str:
        """In a line."""
        total = len(self.lost) + len(self.won)
        return f"won {len(self.won)} of {total}" if total else "not compared"


def verdict(family: str, rows: Sequence[Row], level: float = LEVELS[MAIN]) -> Verdict:
    """From the rows of all families."""
    mine = [row for row in rows if row.family == family]
    found = contests(mine, level)
    names = dict.fromkeys(row.name for row in mine if row.silent)
    silent = {name: sum(row.silent for row in mine if row.name == name) for name in names}
    return Verdict(family, [one for one in found if not one.won], [one for one in found if one.won], silent)


@dataclass(frozen=True)
class Standing:
    """Of a library in a family: on how many batches it was tried, accurate and fastest, how slow, and how wrong."""

    attempted: int
    accurate: int
    fastest: int
    slower: float  # than the fastest, the geometric mean over the batches where it is accurate; not a number if nowhere
    silent: int


def standings(rows: Sequence[Row], level: float = LEVELS[MAIN]) -> dict[tuple[str, str], Standing]:
    """By family and library, each by its fastest accurate use."""
    by_shape: dict[tuple[str, int, int], list[Row]] = {}
    for row in rows:
        if row.attempted:
            by_shape.setdefault(row.shape, []).append(row)
    found: dict[tuple[str, str], list[tuple[float, int]]] = {}
    for (family, _, _), here in by_shape.items():
        best = fastest(row for row in here if row.accurate(level))
        for library in dict.fromkeys(row.library for row in here):
            own = [row for row in here if row.library == library]
            mine = fastest(row for row in own if row.accurate(level))
            ratio = float("nan") if mine is None or best is None else mine.total / best.total
            found.setdefault((family, library), []).append((ratio, max(row.silent for row in own)))
    return {key: _standing(pairs) for key, pairs in found.items()}


def _standing(pairs: Sequence[tuple[float, int]]) -> Standing:
    ratios = [ratio for ratio, _ in pairs if ratio == ratio]
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else float("nan")
    won = sum(ratio == 1 for ratio in ratios)
    return Standing(len(pairs), len(ratios), won, mean, sum(silent for _, silent in pairs))
