"""Runs of several seeds in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def by_seed(runs: Sequence[dict[str, Any]], **which: Any) -> list[dict[str, Any]]:
    """The runs that have these entries, seed after seed."""
    chosen = [one for one in runs if all(one[name] == value for name, value in which.items())]
    return sorted(chosen, key=lambda one: one["seed"])


def mean(values: Sequence[float]) -> float:
    """The plain mean."""
    return sum(values) / len(values)


def spread(values: Sequence[float], form: str) -> str:
    """The mean, and the range if there is one."""
    if len(values) == 1:
        return format(values[0], form)
    return f"{mean(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def consistency(differences: Sequence[float], better: str, worse: str) -> str:
    """Whether differences between paired runs, positive if better, have the same sign on every seed."""
    count = len(differences)
    for word, agree in (
        ("the same", [x == 0 for x in differences]),
        (better, [x > 0 for x in differences]),
        (worse, [x < 0 for x in differences]),
    ):
        if all(agree):
            return (
                word if word == "the same" and count == 1 else f"{word} on {'every' if count > 1 else 'the only'} seed"
            )
    return f"{better} on {sum(x > 0 for x in differences)} of {count} seeds"


def in_layer(runs: Sequence[dict[str, Any]]) -> str:
    """The seconds in the layer, forward and backward."""
    return " + ".join(f"{mean([one[name] for one in runs]):.1f}" for name in ("layer_forward", "layer_backward"))


def most_that_can_be_saved(runs: Sequence[dict[str, Any]]) -> str:
    """The share of the backward pass of exact runs, which bounds what any cheaper gradient can save."""
    names = ("seconds", "layer_forward", "layer_backward")
    total, forward, backward = (mean([one[name] for one in runs]) for name in names)
    return (
        f"with the exact rule the layer's backward pass takes {backward / total:.0%} of the training time and its "
        f"solver {forward / total:.0%}; the former is the most that a cheaper gradient can save of a step."
    )
