"""Numbers of several seeds in words."""

from __future__ import annotations

from collections.abc import Sequence


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
