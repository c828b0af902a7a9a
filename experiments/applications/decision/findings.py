"""What came of the allocation of treatment, in words and a table; every sentence is computed from the record."""

from __future__ import annotations

import math
from statistics import stdev
from typing import Any

from declarative.table import as_text

from ..words import consistency, mean, spread
from .training import MORE, RULES, SAME, TWO_STAGE

METHODS = (SAME, TWO_STAGE, *RULES, MORE)
HEAD = (
    *("method", "regret", "of the best worth", "R² of predictions", "seconds", "in the layer"),
    "cheap steps",
)

Record = dict[str, Any]


def values(record: Record, method: str, name: str) -> list[Any]:
    """What every seed has under this name."""
    return [one[name] for one in sorted(record["runs"], key=lambda one: one["seed"]) if one["method"] == method]


def rows(record: Record) -> list[list[str]]:
    """The table: a line for each method."""
    lines = []
    for method in METHODS:
        regret, best = values(record, method, "regret"), values(record, method, "best")
        in_layer = [values(record, method, name) for name in ("layer_forward", "layer_backward")]
        lines.append(
            [
                method,
                spread(regret, ".3f"),
                f"{mean(regret) / mean(best):.1%}",
                spread(values(record, method, "explained"), ".2f"),
                f"{mean(values(record, method, 'seconds')):.1f}",
                " + ".join(f"{mean(times):.1f}" for times in in_layer) if method in RULES else "",
                f"{mean(values(record, method, 'cheap_share')):.0%}" if method == "adaptive" else "",
            ]
        )
    return lines


def sentences(record: Record) -> list[str]:
    """What the numbers say."""
    forward, backward, total = (
        mean(values(record, "exact", name)) for name in ("layer_forward", "layer_backward", "seconds")
    )
    slower = total / mean(values(record, TWO_STAGE, "seconds"))
    return [
        verdict(record),
        *(compare(record, rule, TWO_STAGE) for rule in RULES),
        *(compare(record, rule, "exact") for rule in RULES if rule != "exact"),
        compare(record, MORE, TWO_STAGE),
        f"Decision-focused training with the exact rule takes {total:.1f} s, {slower:.0f} times as long as two-stage "
        "training, the choice on validation patients included for both.",
        f"With the exact rule the layer's backward pass takes {backward / total:.0%} of the time and its solver "
        f"{forward / total:.0%}: the former is the most that a cheaper gradient can save of a step.",
        adaptive(record),
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
    return f"{start}; the mean difference, {-mean(gains):+.3f}, is {clear} two standard errors ({error:.3f} each)."


def adaptive(record: Record) -> str:
    """How much of the training the adaptive rule found the cheap gradient good for."""
    share = mean(values(record, "adaptive", "cheap_share"))
    return f"The adaptive rule used the cheap gradient in {share:.0%} of its steps."


def text(record: Record) -> str:
    """Table and sentences for a terminal."""
    return "\n".join([as_text(HEAD, rows(record)), "", *sentences(record)])
