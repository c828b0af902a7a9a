"""The figure of a panel: learning curves above, cosines below."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from ..shared.drawing import LIGHT, STYLES, Picture, Theme, draw_runs, legend, on_canvas, plain
from .curves import Curves
from .panels import PANELS


def picture(curves: Curves, label: str) -> Picture:
    """The figure for the page."""
    alt = f"Learning curves and cosines of {curves.panel} in {label}"
    return Picture("figure", alt, label, lambda theme, dpi: render(curves, "png", theme, dpi))


def render(curves: Curves, kind: str, theme: Theme = LIGHT, dpi: int = 150) -> bytes:
    """The figure as the content of a ``png`` or ``svg`` file; the same curves give the same file."""

    def draw(figure: Figure) -> None:
        figure.suptitle(PANELS[curves.panel].title, fontsize=11)
        above, below = figure.subplots(2, 1, sharex=True)
        _draw_losses(above, curves)
        _draw_cosines(below, curves, theme)
        for ax in (above, below):
            plain(ax, theme)

    return on_canvas(draw, (5.4, 6.0), kind, theme, dpi, salt=curves.panel)


def _draw_losses(ax: Any, curves: Curves) -> None:
    log_scale = PANELS[curves.panel].log_scale
    for rule, values in zip(curves.rules, curves.loss, strict=True):
        draw_runs(ax, rule, values)
    if log_scale:
        ax.set_yscale("log")
    ax.set_ylabel("loss (log scale)" if log_scale else "loss")
    legend(ax, ncols=2)


def _draw_cosines(ax: Any, curves: Curves, theme: Theme) -> None:
    lowest = 0.0
    for rule, mean, low in zip(curves.rules, curves.cosine_mean, curves.cosine_min, strict=True):
        if rule == "exact":  # with itself it is 1
            continue
        draw_runs(ax, rule, mean)
        floor, middle = low.min(0), mean.mean(0)
        ax.fill_between(np.arange(len(floor)), floor, middle, color=STYLES[rule].colour, alpha=0.13, linewidth=0)
        lowest = min(lowest, float(np.nanmin(floor)))
    ax.axhline(0, color=theme.ink, linewidth=1)
    ax.set_ylim(max(-1.05, lowest - 0.05), 1.05)
    ax.set_ylabel("cosine with exact gradient\n(shade: to the lowest problem)")
    ax.set_xlabel("iteration")
