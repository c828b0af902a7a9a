"""What an Adaptive rule has seen: its probes, as a state, a table and a drawing."""

from __future__ import annotations

import csv
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any


@dataclass(frozen=True)
class Probe:
    """One comparison of the cheap gradient with the exact one.

    Attributes:
        call: the backward pass in which it was made, from 0.
        lowest: of the cosines of the problems of the batch.
        median: likewise.
        mean: likewise.
        agreeing: the share of the problems whose cosine is at least the threshold.
        cheap: whether the cheap gradient is used from here on.
    """

    call: int
    lowest: float
    median: float
    mean: float
    agreeing: float
    cheap: bool


def as_probes(history: object) -> list[Probe]:
    """The probes of a state.

    Raises:
        ValueError: it is something else.
    """
    names = {entry.name for entry in dataclasses.fields(Probe)}
    for one in history if isinstance(history, list) else [history]:
        values = list(one.values()) if isinstance(one, dict) and one.keys() == names else [None]
        if not all(isinstance(x, int | float) for x in values):
            raise ValueError(f"history must be a list of probes, as state_dict() returns it, but there is {one!r}.")
    return [Probe(**one) for one in history]  # type: ignore[attr-defined]


def write_probes(path: str | PathLike[str], probes: Sequence[Probe]) -> None:
    """Write a table with one line per probe."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [entry.name for entry in dataclasses.fields(Probe)])
        writer.writeheader()
        writer.writerows(map(dataclasses.asdict, probes))


def draw_probes(history: Sequence[Probe], threshold: float, ax: Any = None) -> Any:
    """Draw the cosines of probes and the threshold into matplotlib axes, which are returned."""
    if ax is None:
        import matplotlib.pyplot as plt

        ax = plt.subplots()[1]
    calls = [probe.call for probe in history]
    ax.plot(calls, [probe.median for probe in history], color="#0072B2", marker="o", label="median of the batch")
    ax.plot(calls, [probe.lowest for probe in history], color="#56B4E9", marker=".", label="lowest of the batch")
    ax.axhline(threshold, color="#D55E00", linestyle="--", label="threshold")
    switched = [probe.call for probe in history if not probe.cheap]
    if switched:
        ax.axvline(switched[0], color="black", linestyle=":", label="exact from here")
    ax.set_xlabel("backward pass")
    ax.set_ylabel("cosine of cheap and exact gradient")
    ax.legend()
    return ax
