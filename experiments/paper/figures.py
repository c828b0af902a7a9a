"""The figure of a panel: learning curves above, cosines below."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from .curves import Array, Curves
from .panels import PANELS


@dataclass(frozen=True)
class Style:
    """How a rule is drawn, in every figure."""

    colour: str
    line: str
    width: float


# Okabe and Ito's colours, which the colour-blind can tell apart. Curves that coincide still show by their dashes.
STYLES = {
    "exact": Style("#0072B2", "-", 3.2),
    "unconstrained": Style("#D55E00", "-", 2.0),
    "curvature": Style("#009E73", "--", 2.0),
    "adaptive": Style("#CC79A7", ":", 2.6),
}


@dataclass(frozen=True)
class Theme:
    """The colours of everything but the curves."""

    paper: str
    ink: str
    grid: str


LIGHT = Theme("#ffffff", "#1a1a1a", "#d9d9d9")
DARK = Theme("#17191c", "#e6e6e6", "#3a3d42")


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


def on_canvas(
    draw: Callable[[Figure], None],
    size: tuple[float, float],
    kind: str,
    theme: Theme = LIGHT,
    dpi: int = 150,
    salt: str = "",
) -> bytes:
    """What is drawn into a figure of this size, as the content of a file; the same drawing gives the same file."""
    options: Any = {
        "font.size": 11,
        "svg.hashsalt": salt,
        "axes.edgecolor": theme.ink,
        "text.color": theme.ink,
        "axes.labelcolor": theme.ink,
        "xtick.color": theme.ink,
        "ytick.color": theme.ink,
    }
    with mpl.rc_context(options):
        figure = Figure(figsize=size, layout="constrained", facecolor=theme.paper)
        FigureCanvasAgg(figure)  # no pyplot: nothing global, no display
        draw(figure)
        file = io.BytesIO()
        figure.savefig(file, format=kind, dpi=dpi, metadata={"Date": None} if kind == "svg" else {"Software": None})
    return file.getvalue()


def plain(ax: Any, theme: Theme) -> None:
    """Axes with a light grid and no frame."""
    ax.set_facecolor(theme.paper)
    ax.grid(color=theme.grid, linewidth=0.6)
    ax.spines[["top", "right"]].set_visible(False)


def _draw_losses(ax: Any, curves: Curves) -> None:
    log_scale = PANELS[curves.panel].log_scale
    for rule, values in zip(curves.rules, curves.loss, strict=True):
        _draw_repeats(ax, rule, values)
    if log_scale:
        ax.set_yscale("log")
    ax.set_ylabel("loss (log scale)" if log_scale else "loss")
    ax.legend(frameon=False, ncols=2, fontsize=9.5)


def _draw_cosines(ax: Any, curves: Curves, theme: Theme) -> None:
    lowest = 0.0
    for rule, mean, low in zip(curves.rules, curves.cosine_mean, curves.cosine_min, strict=True):
        if rule == "exact":  # with itself it is 1
            continue
        _draw_repeats(ax, rule, mean)
        floor, middle = low.min(0), mean.mean(0)
        ax.fill_between(np.arange(len(floor)), floor, middle, color=STYLES[rule].colour, alpha=0.13, linewidth=0)
        lowest = min(lowest, float(np.nanmin(floor)))
    ax.axhline(0, color=theme.ink, linewidth=1)
    ax.set_ylim(max(-1.05, lowest - 0.05), 1.05)
    ax.set_ylabel("cosine with exact gradient\n(shade: to the lowest problem)")
    ax.set_xlabel("iteration")


def _draw_repeats(ax: Any, rule: str, values: Array) -> None:
    """Each repeat light, their mean dark."""
    style = STYLES[rule]
    for repeat in values:
        ax.plot(repeat, color=style.colour, alpha=0.22, linewidth=0.8, zorder=2)
    ax.plot(values.mean(0), color=style.colour, linestyle=style.line, linewidth=style.width, label=rule, zorder=3)
