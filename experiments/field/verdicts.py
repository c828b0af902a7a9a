"""Who wins, by how much, and who failed silently: all computed from the rows."""

from __future__ import annotations

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

    def __str__(self) -> str:
        family, size, batch = self.shape
        place = f"{family} {size} x {batch}"
        if self.ours is None:
            best = "" if self.other is None else f"; {self.other.name} takes {self.other.total:.3g} ms"
            return f"{place}: ours is not accurate enough or not in time{best}"
        if self.other is None:
            return f"{place}: nobody else"
        pair = f"ours ({self.ours.variant}) {self.ours.total:.3g} ms, {self.other.name} {self.other.total:.3g} ms"
        ratio = max(self.factor, 1 / self.factor)
        return f"{place}: {'won' if self.won else 'lost'} {ratio:.3g} times ({pair})"


def contests(rows: Sequence[Row], level: float) -> list[Contest]:
    """All problems that somebody solves accurately, and that not we alone were asked to solve."""
    found = []
    for shape in dict.fromkeys(row.shape for row in rows if row.library != OURS):
        mine = [row for row in rows if row.shape == shape and row.accurate(level)]
        if mine:
            ours, others = ([x for x in mine if (x.library == OURS) == us] for us in (True, False))
            found.append(Contest(shape, mine[0].kind, fastest(ours), fastest(others)))
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
    ours = [row for row in rows if row.library == OURS]
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
    return Criterion(words, won >= least * len(mine) if mine else None, f"{won} of {len(mine)} ({MAIN})")


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
        return f"won {len(self.won)} of {total}" if total else "nobody is accurate"


def verdict(family: str, rows: Sequence[Row], level: float = LEVELS[MAIN]) -> Verdict:
    """From the rows of all families."""
    mine = [row for row in rows if row.family == family]
    found = contests(mine, level)
    names = dict.fromkeys(row.name for row in mine if row.silent)
    silent = {name: sum(row.silent for row in mine if row.name == name) for name in names}
    return Verdict(family, [one for one in found if not one.won], [one for one in found if one.won], silent)
