"""The figure of the allocation of treatment."""

from __future__ import annotations

from functools import partial
from typing import Any

from matplotlib.figure import Figure

from ...shared.drawing import STYLES, Picture, Theme, draw_runs, legend, on_canvas, plain
from ..words import mean
from .findings import METHODS, Record, values
from .training import RULES


def pictures(record: Record) -> list[Picture]:
    """Regret by method and in training."""
    return [
        Picture(
            "regret",
            "Regret on test groups by method, and on validation groups in training",
            "Left: a dot for each seed, a bar for the mean. Right: at the chosen learning rate; seeds light, mean dark",
            partial(regret_figure, record),
        )
    ]


def regret_figure(record: Record, theme: Theme, dpi: int) -> bytes:
    """Regret on test groups, seed by seed, and the course of training on validation groups."""

    def draw(figure: Figure) -> None:
        left, right = figure.subplots(1, 2)
        _draw_seeds(left, {method: values(record, method, "regret") for method in METHODS}, theme)
        for rule in RULES:
            curves = values(record, rule, "curve")
            draw_runs(right, rule, *([curve[name] for curve in curves] for name in ("validation_regret", "step")))
        right.set_xlabel("training step")
        right.set_ylabel("regret on validation groups")
        legend(right)
        for ax in (left, right):
            plain(ax, theme)

    return on_canvas(draw, (9.0, 3.9), "png", theme, dpi)


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
    ax.set_ylabel("regret on test groups")
