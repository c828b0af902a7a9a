"""What came of learning to sort, in words, a table and pictures; every sentence is computed from the record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import PercentFormatter

from ...shared.application import Record
from ...shared.drawing import VERMILION, Picture, Theme, draw_runs, legend, plain
from ..words import by_seed, consistency, in_layer, mean, most_that_can_be_saved, spread
from .data import SPLIT
from .training import EXAMPLES, ONCE, RULES, UNROLLED, name_of

SHARE = 0.95  # of the exact rule's final accuracy: the mark by which times are compared
CHEAP = ("unconstrained", "adaptive")
HEAD: tuple[str, ...] = (
    "case",
    "rule",
    "in order",
    "places right",
    "seconds",
    "in the layer",
    "to the mark",
    "cheap steps",
)
SHOWN = ("exact", "unconstrained")  # the rules whose sorted sequences are shown
SIDE, GAP, LABEL = 8, 3, 31  # pixels of a digit, between two, and for the names of the lines


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
        return by_seed(self.runs, rule=rule)

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
    kinds = record["settings"]["cases"]
    return [Case(n, centred, by_seed(record["runs"], n=n, centred=centred)) for n, centred in kinds]


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
                    in_layer(case.of(rule)),
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
        *(f"{case.name}: {most_that_can_be_saved(case.of('exact'))}" for case in found),
        curvature(record),
        *(against_exact(case, rule) for case in found for rule in (*CHEAP, UNROLLED)),
    ]


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


def curvature(record: Record) -> str:
    """That it is the other cheap rule."""
    apart = max(one["curvature_apart"] for one in record["cases"])
    same = "the same rule" if apart == 0 else f"the same up to {apart:.1g} in the score of a test image"
    return f"curvature and unconstrained, trained on the same seed, are {same}: the constraints are linear."


def describe(settings: Record) -> str:
    """The task, the methods and what is measured, for a page."""
    equal = " of the exact rule, and as many as fit into the same time of the others" if settings["equal_time"] else ""
    return f"""<p>Scikit-learn's digits, 8 by 8 pixels. A small convolutional network gives each of n images a score
between -1 and 1; the transport plan between scores and ranks is a soft permutation, which training brings close to the
sorting one, from the order alone. {SPLIT["train"]} images for training, {SPLIT["validation"]} for validation,
{SPLIT["test"]} for testing; none serves twice. Gamma is {settings["gamma"]:g}, the learning rate begins at
{settings["learning_rate"]:g}. Digits repeat in a sequence, and equal digits may come in any order: places are right if
the digits read off there are.</p>
<p>All rules see the same sequences from the same weights, in {settings["steps"]} steps of {settings["batch"]}
sequences{equal}, on {settings["seeds"]} seeds, each with its own split, with images that are
turned, slanted, scaled and shifted a little and a learning rate that comes down to zero; {UNROLLED} is plain autograd
through {settings["iterations"]} iterations of Sinkhorn. Adding a number to all scores of a sequence does not change the
plan, which a cheap gradient does not know: in the case <i>centred</i> the mean of a sequence is subtracted from its
scores. Times are seconds of the processor in training, on one thread, without tests; <i>in the layer</i>, forward +
backward. The mark is {SHARE:.0%} of the accuracy that the exact rule ends with on the same seed; its time is the mean
over seeds, if all of them reach it.</p>"""


def pictures(record: Record) -> list[Picture]:
    """For each case its learning curves, then for each case some sorted sequences."""
    found = [(case, f"n{case.n}{'_centred' if case.centred else ''}") for case in cases(record)]
    pictures = []
    for case, file in found:
        alt, caption = f"Accuracy in training, {case.name}", f"{case.name}: seeds light, mean dark"
        draw = partial(accuracy_curves, case.runs)
        pictures.append(Picture(f"curves_{file}", (9.0, 3.9), draw, alt, caption, wide=True))
    for (case, file), example in zip(found, record["cases"], strict=True):
        caption = f"{case.name}: the first test sequences of the first seed, wrong places framed"
        size, draw = (1.4 + 0.5 * case.n, 0.58 * (1 + len(SHOWN)) * EXAMPLES), partial(sorted_sequences, example)
        pictures.append(Picture(f"sorted_{file}", size, draw, f"Sorted test sequences, {case.name}", caption))
    return pictures


def accuracy_curves(runs: Sequence[Record], figure: Figure, theme: Theme) -> None:
    """The share of the test sequences in order, by step and by time."""
    axes = figure.subplots(1, 2, sharey=True)
    for ax, x in zip(axes, ("step", "seconds"), strict=True):
        for rule in RULES:
            curves = [one["curve"] for one in runs if one["rule"] == rule]
            draw_runs(ax, rule, [curve["whole"] for curve in curves], [curve[x] for curve in curves])
        ax.set_xlabel({"step": "training step", "seconds": "seconds of training"}[x])
        ax.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        ax.set_ylim(bottom=0)
        plain(ax, theme)
    axes[0].set_ylabel("test sequences wholly in order")
    legend(axes[0])


def sorted_sequences(example: Record, figure: Figure, _: Theme) -> None:
    """Test sequences as they came and as each rule sorts them, with wrong places framed."""
    images, labels = np.array(example["images"]), np.array(example["labels"])
    count, n = labels.shape
    for k, (ax,) in enumerate(figure.subplots(count, 1, squeeze=False)):
        orders = [np.arange(n), *(np.argsort(example["scores"][rule][k], kind="stable") for rule in SHOWN)]
        for line, (name, order) in enumerate(zip(("as given", *SHOWN), orders, strict=True)):
            ax.text(-GAP, line * (SIDE + GAP) + SIDE / 2, name, ha="right", va="center", fontsize=9.5)
            wrong = labels[k][order] != np.sort(labels[k]) if line else np.zeros(n, bool)
            for column, (item, bad) in enumerate(zip(order, wrong, strict=True)):
                _draw_digit(ax, images[k, item], line, column, bad)
        ax.set(xlim=(-LABEL, n * (SIDE + GAP)), ylim=((1 + len(SHOWN)) * (SIDE + GAP), -1), aspect="equal")
        ax.set_axis_off()


def _draw_digit(ax: Any, image: Any, line: int, column: int, wrong: bool) -> None:
    x, y = column * (SIDE + GAP), line * (SIDE + GAP)
    ax.imshow(image, cmap="gray_r", vmin=0, vmax=16, extent=(x, x + SIDE, y + SIDE, y))
    if wrong:
        ax.add_patch(Rectangle((x, y), SIDE, SIDE, fill=False, edgecolor=VERMILION, linewidth=2.5))
