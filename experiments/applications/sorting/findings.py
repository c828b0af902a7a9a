"""What came of learning to sort, in words and tables; every sentence is computed from the record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from declarative.table import as_text

from ..words import consistency, mean, spread
from .training import ONCE, RULES, UNROLLED, name_of

SHARE = 0.95  # of the exact rule's final accuracy: the mark by which times are compared
CHEAP = ("unconstrained", "adaptive")
HEAD = (
    *("case", "rule", "in order", "places right", "seconds", "in the layer"),
    *("to the mark", "cheap steps"),
)

Record = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """The runs of one length, with centred scores or not."""

    n: int
    centred: bool
    runs: list[Record]

    @property
    def name(self) -> str:
        """For readers."""
        return name_of(self.n, self.centred)

    def of(self, rule: str) -> list[Record]:
        """The runs of a rule, by seed."""
        return sorted((one for one in self.runs if one["rule"] == rule), key=lambda one: one["seed"])

    def values(self, rule: str, name: str) -> list[float]:
        """A number of every seed; those of a curve are its last ones."""
        return [one["curve"][name][-1] if name in ("whole", "places") else one[name] for one in self.of(rule)]

    def reaches_mark(self, rule: str) -> list[tuple[float, float] | None]:
        """The step and the seconds at which each seed first reaches the mark; None if never.

        The mark is a share of the accuracy that the exact rule ends with on the same seed.
        """
        found = []
        for one in self.of(rule):
            (exact,) = (other for other in self.of("exact") if other["seed"] == one["seed"])
            mark, curve = SHARE * exact["curve"]["whole"][-1], one["curve"]
            looks = zip(curve["step"], curve["seconds"], curve["whole"], strict=True)
            found.append(next(((step, time) for step, time, value in looks if value >= mark), None))
        return found

    def to_mark(self, rule: str) -> tuple[float, float] | None:
        """The means over seeds; None unless every seed reaches the mark."""
        reached = [one for one in self.reaches_mark(rule) if one is not None]
        if len(reached) < len(self.of(rule)):
            return None
        step, seconds = zip(*reached, strict=True)
        return mean(step), mean(seconds)

    def is_worth_it(self, rule: str) -> bool:
        """Whether the rule reaches the mark on every seed, in less time than the exact one on average."""
        exact, cheap = (self.to_mark(name) for name in ("exact", rule))
        return exact is not None and cheap is not None and cheap[1] < exact[1]


def cases(record: Record) -> list[Case]:
    """One for each length, and for centred scores or not."""
    return [
        Case(n, centred, [one for one in record["runs"] if (one["n"], one["centred"]) == (n, centred)])
        for n, centred in record["settings"]["cases"]
    ]


def rows(record: Record) -> list[list[str]]:
    """The table: a line for each case and rule."""
    lines = []
    for case in cases(record):
        for rule in (*RULES, ONCE):
            reached, count = case.to_mark(rule), sum(one is not None for one in case.reaches_mark(rule))
            lines.append(
                [
                    *(case.name, rule if rule != ONCE else f"{ONCE} (one seed)"),
                    *(spread(case.values(rule, name), ".1%") for name in ("whole", "places")),
                    spread(case.values(rule, "seconds"), ".1f"),
                    " + ".join(f"{mean(case.values(rule, name)):.1f}" for name in ("layer_forward", "layer_backward")),
                    f"{count} of {len(case.of(rule))} seeds" if reached is None else f"{reached[1]:.1f}",
                    f"{mean(case.values(rule, 'cheap_share')):.0%}" if rule == "adaptive" else "",
                ]
            )
    return lines


def sentences(record: Record) -> list[str]:
    """What the numbers say."""
    found = cases(record)
    return [
        summary(found),
        *(verdict(case, rule) for case in found for rule in CHEAP),
        *map(most_that_can_be_saved, found),
        curvature(record),
    ]


def differences(record: Record) -> list[str]:
    """The other rules against the exact one, in words."""
    return [against_exact(case, rule) for case in cases(record) for rule in (*CHEAP, UNROLLED)]


def summary(found: Sequence[Case]) -> str:
    """How often the cheap gradient is worth it."""
    good = [case.name for case in found if case.is_worth_it("unconstrained")]
    where = f": for {' and for '.join(good)}" if good else ""
    return f"The cheap gradient is worth it in {len(good)} of {len(found)} cases{where}."


def verdict(case: Case, rule: str) -> str:
    """Is the rule worth it?"""
    exact, cheap = (case.to_mark(name) for name in ("exact", rule))
    assert exact is not None  # the mark is below where it ends
    start = f"{case.name}: exact reaches the mark after {exact[1]:.1f} s (step {exact[0]:.0f}), {rule} "
    if cheap is None:
        count, least = len(case.of(rule)), min(case.values(rule, "whole"))
        missed = case.reaches_mark(rule).count(None)
        return f"{start}misses it on {missed} of {count} seeds and ends as low as {least:.1%}. Not worth it."
    worth, more = ("Worth it", "less") if case.is_worth_it(rule) else ("Not worth it", "more")
    share = abs(1 - cheap[1] / exact[1])
    return f"{start}after {cheap[1]:.1f} s (step {cheap[0]:.0f}). {worth}: {share:.0%} {more} time."


def against_exact(case: Case, rule: str) -> str:
    """Accuracy and time of all steps against those of the exact rule, seed by seed."""
    accuracy, times = (
        [ours - exact for ours, exact in zip(case.values(rule, name), case.values("exact", name), strict=True)]
        for name in ("whole", "seconds")
    )
    share = mean(times) / mean(case.values("exact", "seconds"))
    return (
        f"{case.name}, {rule} after all steps: {100 * mean(accuracy):+.1f} points of accuracy against exact, "
        f"{consistency(accuracy, 'better', 'worse')}; {mean(times):+.1f} s ({share:+.0%})."
    )


def most_that_can_be_saved(case: Case) -> str:
    """The share of the backward pass, which bounds what any cheaper gradient can save."""
    total, forward, backward = (
        mean(case.values("exact", name)) for name in ("seconds", "layer_forward", "layer_backward")
    )
    return (
        f"{case.name}: with the exact rule the layer's backward pass takes {backward / total:.0%} of the training time "
        f"and its solver {forward / total:.0%}; the former is the most that a cheaper gradient can save of a step."
    )


def curvature(record: Record) -> str:
    """That it is the other cheap rule."""
    apart = max(one["curvature_apart"] for one in record["cases"])
    same = "the same rule" if apart == 0 else f"the same up to {apart:.1g} in the score of a test image"
    return f"curvature and unconstrained, trained on the same seed, are {same}: the constraints are linear."


def text(record: Record) -> str:
    """Table and sentences for a terminal."""
    return "\n".join([as_text(HEAD, rows(record)), "", *sentences(record), *differences(record)])
