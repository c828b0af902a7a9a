"""What came of the allocation of treatment, in words, a table and a picture; every sentence is computed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from statistics import stdev
from typing import Any

from matplotlib.figure import Figure

from ...shared.application import Record
from ...shared.drawing import STYLES, Picture, Theme, draw_runs, legend, plain
from ..predicting import RULES, TWO_STAGE
from ..words import by_seed, consistency, in_layer, mean, most_that_can_be_saved, spread
from .data import BUDGET, GROUP, SPLIT
from .training import MORE, SAME

METHODS = (SAME, TWO_STAGE, *RULES, MORE)
HEAD: tuple[str, ...] = (
    "method",
    "regret",
    "of the best worth",
    "R² of predictions",
    "seconds",
    "in the layer",
    "cheap steps",
)


def values(record: Record, method: str, name: str) -> list[Any]:
    """What every seed has under this name."""
    return [one[name] for one in by_seed(record["runs"], method=method)]


def rows(record: Record) -> list[list[str]]:
    """The table: a line for each method."""
    lines = []
    for method in METHODS:
        regret, best = values(record, method, "regret"), values(record, method, "best")
        lines.append(
            [
                method,
                spread(regret, ".3f"),
                f"{mean(regret) / mean(best):.1%}",
                spread(values(record, method, "explained"), ".2f"),
                f"{mean(values(record, method, 'seconds')):.1f}",
                in_layer(by_seed(record["runs"], method=method)) if method in RULES else "",
                f"{mean(values(record, method, 'cheap_share')):.0%}" if method == "adaptive" else "",
            ]
        )
    return lines


def sentences(record: Record) -> list[str]:
    """What the numbers say."""
    total, simple = (mean(values(record, method, "seconds")) for method in ("exact", TWO_STAGE))
    cheap = mean(values(record, "adaptive", "cheap_share"))
    return [
        verdict(record),
        *(compare(record, rule, TWO_STAGE) for rule in RULES),
        *(compare(record, rule, "exact") for rule in RULES if rule != "exact"),
        compare(record, MORE, TWO_STAGE),
        f"Decision-focused training with the exact rule takes {total:.1f} s, {total / simple:.0f} times as long as "
        "two-stage training, the choice on validation patients included for both.",
        most_that_can_be_saved(by_seed(record["runs"], method="exact")).capitalize(),
        f"The adaptive rule used the cheap gradient in {cheap:.0%} of its steps.",
    ]


def verdict(record: Record) -> str:
    """Is the cheap gradient worth it? It must save time, and not cost regret."""
    regret, seconds = (
        mean(values(record, "unconstrained", name)) / mean(values(record, "exact", name)) - 1
        for name in ("regret", "seconds")
    )
    worth = "worth it" if seconds < 0 and regret <= 0 else "not worth it"
    return (
        f"Dropping the constraints from the gradient is {worth}: "
        f"{abs(seconds):.0%} {'less' if seconds < 0 else 'more'} "
        f"time, {abs(regret):.1%} {'less' if regret < 0 else 'more'} regret."
    )


def compare(record: Record, method: str, other: str) -> str:
    """The difference of regrets, seed by seed, and whether it stands out from their scatter."""
    gains = [b - a for a, b in zip(values(record, method, "regret"), values(record, other, "regret"), strict=True)]
    if not any(gains):
        return f"{method} against {other}: the same regret{' on every seed' if len(gains) > 1 else ''}."
    lower = "less" if mean(gains) > 0 else "more"
    share = abs(mean(gains)) / mean(values(record, other, "regret"))
    start = f"{method} against {other}: {share:.1%} {lower} regret on average, {consistency(gains, 'less', 'more')}"
    if len(gains) == 1:
        return f"{start}."
    error = stdev(gains) / math.sqrt(len(gains))
    clear = "more than" if abs(mean(gains)) > 2 * error else "within"
    return f"{start}; the mean difference, {-mean(gains):+.4f}, is {clear} two standard errors ({error:.4f} each)."


def describe(settings: Record) -> str:
    """The task, the methods and what is measured, for a page."""
    return f"""<p>Scikit-learn's diabetes data. {GROUP} patients at a time compete for a drug that lasts for
{BUDGET:g} full doses of the average patient. Each gets a share between none and a full dose, which costs in
proportion to the body mass index; the budget is spent. A share is worth the progression of the disease that it
prevents, less and less for more of it. The progression is known only a year later: a model predicts it, linear in
age, sex, body mass index and blood pressure, and a quadratic program allocates. Regret is what the allocation for the
true progression would have been worth more. <i>{TWO_STAGE}</i> fits the model by least squares; <i>{MORE}</i> also
has the blood tests; <i>{SAME}</i> predicts the same for everyone; the others pass the regret back through the
quadratic program, by three gradient rules (curvature would be the same as unconstrained, as all constraints are
linear). Ridge, learning rate and when to stop are chosen by regret on validation patients. {SPLIT["train"]},
{SPLIT["validation"]} and {SPLIT["test"]} patients for training, validation and testing; {settings["seeds"]}
seeds, each with its own split. Times are seconds of the processor, on one thread; <i>in the layer</i>, forward +
backward.</p>"""


def pictures(record: Record) -> list[Picture]:
    """Regret by method and in training."""
    return [regret_picture(record, METHODS, RULES, "groups")]


def regret_picture(record: Record, methods: Sequence[str], learned: Sequence[str], cases: str) -> Picture:
    """That of :func:`regret_figure`."""
    alt = f"Regret on test {cases} by method, and on validation {cases} in training"
    caption = (
        "Left: a dot for each seed, a bar for the mean. Right: at the chosen learning rate; seeds light, mean dark"
    )
    draw = partial(regret_figure, record, methods, learned, cases)
    return Picture("regret", (9.0, 3.9), draw, alt, caption, wide=True)


def regret_figure(
    record: Record, methods: Sequence[str], learned: Sequence[str], cases: str, figure: Figure, theme: Theme
) -> None:
    """Regret on test cases, seed by seed, and the course of training on validation cases."""
    left, right = figure.subplots(1, 2)
    _draw_seeds(left, {method: values(record, method, "regret") for method in methods}, theme)
    left.set_ylabel(f"regret on test {cases}")
    for rule in learned:
        curves = values(record, rule, "curve")
        draw_runs(right, rule, *([curve[name] for curve in curves] for name in ("validation_regret", "step")))
    right.set_xlabel("training step")
    right.set_ylabel(f"regret on validation {cases}")
    legend(right)
    for ax in (left, right):
        plain(ax, theme)


def _draw_seeds(ax: Any, regrets: dict[str, list[float]], theme: Theme) -> None:
    """A dot for each seed, a bar for the mean, and a line from method to method for each seed."""
    for line in zip(*regrets.values(), strict=True):
        ax.plot(range(len(line)), line, color=theme.grid, linewidth=0.8, zorder=1)
    for i, (name, mine) in enumerate(regrets.items()):
        colour = STYLES[name].colour if name in STYLES else theme.ink
        ax.plot([i] * len(mine), mine, "o", color=colour, markersize=4, alpha=0.7, zorder=2)
        ax.plot([i - 0.3, i + 0.3], [mean(mine)] * 2, color=colour, linewidth=3, zorder=3)
    names = [name.replace(", ", ",\n") for name in regrets]
    ax.set_xticks(range(len(regrets)), names, rotation=30, ha="right", fontsize=9.5)
    ax.set_ylim(bottom=0)
