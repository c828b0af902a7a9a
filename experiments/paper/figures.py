"""The figure of a panel: learning curves above, cosines below."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from ..shared.drawing import STYLES, Picture, Theme, draw_runs, legend, plain
from .criteria import early
from .curves import Curves
from .panels import PANELS


def picture(curves: Curves, label: str) -> Picture:
    """The figure, also for the page."""
    alt = f"Learning curves and cosines of {curves.panel} in {label}"
    return Picture("figure", (5.4, 6.0), partial(_draw, curves), alt, label)


def _draw(curves: Curves, figure: Figure, theme: Theme) -> None:
    figure.suptitle(PANELS[curves.panel].title, fontsize=11)
    above, below = figure.subplots(2, 1, sharex=True)
    _draw_losses(above, curves, theme)
    _draw_cosines(below, curves, theme)
    for ax in (above, below):
        plain(ax, theme)


def _draw_losses(ax: Any, curves: Curves, theme: Theme) -> None:
    log_scale = PANELS[curves.panel].log_scale
    for i, (rule, values) in enumerate(zip(curves.rules, curves.loss, strict=True)):
        same = [other for other, before in zip(curves.rules[:i], curves.loss, strict=False) if coincide(before, values)]
        draw_runs(ax, rule, values, label=f"{rule} (the same as {same[0]})" if same else rule, band=True)
    if log_scale:
        ax.set_yscale("log")
    ax.axvline(early(curves), color=theme.ink, linewidth=0.8, linestyle=":")
    ax.annotate(
        "early, as we put it", (early(curves), 0.02), (-3, 0), xycoords=("data", "axes fraction"),
        textcoords="offset points", ha="right", fontsize=8, rotation=90,
    )  # fmt: skip
    ax.set_ylabel("loss (log scale)" if log_scale else "loss")
    legend(ax, ncols=2 if all(len(text) < 20 for text in ax.get_legend_handles_labels()[1]) else 1)


def coincide(one: Any, other: Any) -> bool:
    """Whether two curves cannot be told apart in a figure."""
    return bool(np.allclose(one, other, rtol=1e-3, atol=1e-9))


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
