"""The plots of the theory experiment."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields
from functools import partial
from typing import Any

from matplotlib.figure import Figure

from ..shared.drawing import BLUE, ORANGE, SKY, VERMILION, Picture, Theme
from .simulation import SPECTRUM, Estimate, WorstCase

ESTIMATE = "estimate, joint 99.9 % interval"


def pictures(estimates: Sequence[Estimate], worst: Sequence[WorstCase]) -> list[Picture]:
    """All plots."""
    plots = {
        "theory_worst_case": partial(_draw_worst_case, worst),
        "theory_normalisation": partial(_draw_normalisation, estimates),
        "theory_m_minus_p": partial(_draw_degrees_of_freedom, estimates),
    }
    return [Picture(name, (7, 4.5), draw) for name, draw in plots.items()]


def _draw_worst_case(worst: Sequence[WorstCase], figure: Figure, _: Theme) -> None:
    ax = figure.subplots()
    of = {field.name: [getattr(row, field.name) for row in worst] for field in fields(WorstCase)}
    condition, random = of["condition"], "random constraints, closed form"
    ax.plot(condition, of["upper"], color=VERMILION, ls="--", label="paper's upper bound (1 + cond) / 2")
    ax.plot(condition, of["sharp"], color=ORANGE, label="sharp upper bound, grows like sqrt(cond)")
    ax.fill_between(condition, of["lowest"], of["highest"], color=SKY, alpha=0.5, label=random)
    ax.plot(condition, of["searched"], "o", color=BLUE, label="the largest, found by search over w")
    ax.plot(condition, of["lower"], color="black", ls=":", label="lower bound 1")
    ax.set(
        xscale="log", yscale="log", xlabel="condition number of H", ylabel="max over |w| = 1 of w'(aa'H⁻¹ / a'H⁻¹a)w"
    )
    ax.set_title("Proposition 2.2: above 1, some incoming gradient turns descent into ascent", fontsize=10)
    ax.legend(fontsize=8)


def _draw_normalisation(estimates: Sequence[Estimate], figure: Figure, _: Theme) -> None:
    ax = figure.subplots()
    ax.axhline(0, color="black", lw=0.8)
    ax.axvspan(*SPECTRUM, color="0.9", label="λ within the spectrum of Ĥ: the sign is open")
    for rule, colour, marker in (("unconstrained", VERMILION, "o"), ("curvature", BLUE, "s")):
        rows = [row for row in estimates if row.rule == rule and not math.isnan(row.multiplier)]
        rows = [row for row in rows if "H_hat < 0" not in row.proposition]
        below = [row for row in rows if row.multiplier < SPECTRUM[0]]
        above = [row for row in rows if row.multiplier > SPECTRUM[1]]
        between = [row for row in rows if SPECTRUM[0] < row.multiplier < SPECTRUM[1]]
        for part, style, label in ((below, "-", f"{rule}: prediction"), (above, "-", None), (between, "x", None)):
            ax.plot([row.multiplier for row in part], [row.predicted for row in part], style, color=colour, label=label)
        _intervals(ax, [row.multiplier for row in rows], rows, f"{rule}: {ESTIMATE}", colour, marker)
    ax.text(0.02, 0.03, "below 0: ascends on average", transform=ax.transAxes, fontsize=9, style="italic")
    ax.text(0.98, 0.93, "above 0: descends on average", transform=ax.transAxes, fontsize=9, style="italic", ha="right")
    ax.set(xlabel="multiplier λ of the normalisation constraint", ylabel="E[g'ĝ]")
    ax.set_title("Propositions 2.5 and 2.6: ignoring the constraint's curvature can turn the sign", fontsize=10)
    ax.legend(fontsize=8, loc="lower left", bbox_to_anchor=(0.0, 0.08))


def _draw_degrees_of_freedom(estimates: Sequence[Estimate], figure: Figure, _: Theme) -> None:
    ax = figure.subplots()
    plain = [row for row in estimates if math.isnan(row.multiplier)]
    free = sorted({row.m - row.p for row in plain})
    ax.hlines(free, [x - 0.45 for x in free], [x + 0.45 for x in free], color="black", lw=1, label="prediction m - p")
    conditions = sorted({row.condition for row in plain})
    for rule, label, colour, marker, offset in (
        ("unconstrained", "linear constraints, unconstrained (2.3, 2.4)", VERMILION, "o", -0.3),
        ("curvature", "curved constraints, curvature (extension)", BLUE, "s", 0.1),
    ):
        rows = [row for row in plain if row.rule == rule]
        places = [row.m - row.p + offset + 0.1 * conditions.index(row.condition) for row in rows]
        _intervals(ax, places, rows, f"{label}: {ESTIMATE}", colour, marker)
    listed = ", ".join(f"{condition:g}" for condition in conditions)
    ax.set(xlabel=f"free directions m - p (side by side: cond(Ĥ) = {listed})", ylabel="E[g'ĝ]")
    ax.set_title("On average the approximation descends by as much as there are free directions", fontsize=10)
    ax.legend(fontsize=8)


def _intervals(
    ax: Any, places: Sequence[float], rows: Sequence[Estimate], label: str, colour: str, marker: str
) -> None:
    means, widths = [row.mean for row in rows], [row.half_width for row in rows]
    ax.errorbar(places, means, widths, fmt=marker, color=colour, ms=4, capsize=3, label=label)
