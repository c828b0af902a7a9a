"""Time against size, with the slopes in the legend, and what the cheap gradient of transport saves."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, ScalarFormatter

from ..shared.drawing import COLOURS, LIGHT, Picture, Theme, legend, plain
from .layers import CHEAP, EXACT, FORWARD, PLOT
from .rows import FITTED, Point, slope

LOOKS = tuple((*look, style) for style in ("-", "--") for look in zip((*COLOURS, LIGHT.ink), "osD^vP*", strict=True))
SIZE = (6.0, 4.6)


def pictures(points: Sequence[Point]) -> list[Picture]:
    """One for each plot with at least two sizes."""
    found = []
    for plot in dict.fromkeys(point.plot for point in points):
        mine = [point for point in points if point.plot == plot]
        if len({point.size for point in mine}) > 1:
            name = plot.replace(" ", "-")
            found.append(Picture(name, SIZE, partial(_times, plot, mine)))
            if plot == PLOT and {EXACT, CHEAP, FORWARD} <= {point.side for point in mine}:
                found.append(Picture(f"{name}-savings", SIZE, partial(_savings, mine)))
    return found


def _times(plot: str, points: Sequence[Point], figure: Figure, theme: Theme) -> None:
    ax = figure.subplots()
    ax.set_title(f"{plot}\nforward and backward, unless the name says otherwise", fontsize=11)
    for i, (side, sizes, values) in enumerate(_lines(points)):
        colour, marker, style = LOOKS[i]
        label = f"{side}, slope {slope(sizes, values):.1f}"
        ax.plot(sizes, values, color=colour, marker=marker, markersize=5, linewidth=1.8, linestyle=style, label=label)
    ax.set_yscale("log")
    ax.set_ylabel("ms of processor time")
    legend(ax, title=f"slope: the largest {FITTED} sizes", title_fontsize=9)
    _finish(ax, points, theme)


def _savings(points: Sequence[Point], figure: Figure, theme: Theme) -> None:
    """Exact over unconstrained, and over forward alone."""
    ax = figure.subplots()
    ax.set_title("transport n x n\nwhat the cheap gradient saves of forward and backward", fontsize=11)
    lines = {side: dict(zip(sizes, values, strict=True)) for side, sizes, values in _lines(points)}
    exact, named = lines[EXACT], {CHEAP: "exact / unconstrained", FORWARD: "exact / forward alone"}
    for (side, words), (colour, marker, _) in zip(named.items(), LOOKS, strict=False):
        ratios = [exact[n] / lines[side][n] for n in exact]
        ax.plot(list(exact), ratios, color=colour, marker=marker, linewidth=1.8, label=words)
    ax.axhline(1, color=theme.ink, linewidth=1)
    ax.set_ylim(bottom=0)
    ax.set_ylabel("ratio of times")
    legend(ax)
    _finish(ax, points, theme)


def _lines(points: Sequence[Point]) -> list[tuple[str, list[int], list[float]]]:
    """The sides with more than one size."""
    lines = []
    for side in dict.fromkeys(point.side for point in points):
        mine = sorted((point.size, point.ms) for point in points if point.side == side)
        if len(mine) > 1:
            lines.append((side, [size for size, _ in mine], [ms for _, ms in mine]))
    return lines


def _finish(ax: Any, points: Sequence[Point], theme: Theme) -> None:
    sizes = sorted({point.size for point in points})
    ax.set_xscale("log")
    ax.set_xticks(sizes)
    ax.xaxis.set_major_formatter(ScalarFormatter())
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.set_xlabel("n")
    plain(ax, theme)
