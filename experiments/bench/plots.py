"""Time against size, with the slopes in the legend, and what the cheap gradient of transport saves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, ScalarFormatter

from .problems import CHEAP, EXACT, FORWARD, PLOT
from .rows import FITTED, Point, slope

COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#1a1a1a"]  # of Okabe and Ito
MARKERS = "osD^vP*"


def draw(out: Path, points: Sequence[Point]) -> list[Path]:
    """A picture for each plot with at least two sizes; where they are."""
    paths = []
    for plot in dict.fromkeys(point.plot for point in points):
        mine = [point for point in points if point.plot == plot]
        if len({point.size for point in mine}) > 1:
            paths.append(_save(_times(plot, mine), out / f"{_name(plot)}.png"))
            if plot == PLOT and {EXACT, CHEAP, FORWARD} <= {point.side for point in mine}:
                paths.append(_save(_savings(mine), out / f"{_name(plot)}-savings.png"))
    return paths


def _times(plot: str, points: Sequence[Point]) -> Figure:
    figure, ax = _figure(f"{plot}\nforward and backward, unless the name says otherwise")
    for (side, sizes, values), colour, marker in zip(_lines(points), COLOURS, MARKERS, strict=False):
        label = f"{side}, slope {slope(sizes, values):.1f}"
        ax.plot(sizes, values, color=colour, marker=marker, markersize=5, linewidth=1.8, label=label)
    ax.set_yscale("log")
    ax.set_ylabel("ms of processor time")
    ax.legend(frameon=False, fontsize=9, title=f"slope: the largest {FITTED} sizes", title_fontsize=9)
    _finish(ax, points)
    return figure


def _savings(points: Sequence[Point]) -> Figure:
    """Exact over unconstrained, and over forward alone."""
    figure, ax = _figure("transport n x n\nwhat the cheap gradient saves of forward and backward")
    lines = {side: dict(zip(sizes, values, strict=True)) for side, sizes, values in _lines(points)}
    exact = lines[EXACT]
    for (side, words), colour, marker in zip(
        {CHEAP: "exact / unconstrained", FORWARD: "exact / forward alone"}.items(),
        COLOURS,
        MARKERS,
        strict=False,
    ):
        ratios = [exact[n] / lines[side][n] for n in exact]
        ax.plot(list(exact), ratios, color=colour, marker=marker, linewidth=1.8, label=words)
    ax.axhline(1, color="#1a1a1a", linewidth=1)
    ax.set_ylim(bottom=0)
    ax.set_ylabel("ratio of times")
    ax.legend(frameon=False, fontsize=9)
    _finish(ax, points)
    return figure


def _lines(points: Sequence[Point]) -> list[tuple[str, list[int], list[float]]]:
    """The sides with more than one size."""
    lines = []
    for side in dict.fromkeys(point.side for point in points):
        mine = sorted((point.size, point.ms) for point in points if point.side == side)
        if len(mine) > 1:
            lines.append((side, [size for size, _ in mine], [ms for _, ms in mine]))
    return lines


def _figure(title: str) -> tuple[Figure, Any]:
    figure = Figure(figsize=(6.0, 4.6), layout="constrained")
    FigureCanvasAgg(figure)  # no pyplot: nothing global, no display
    ax = figure.subplots()
    ax.set_title(title, fontsize=11)
    return figure, ax


def _finish(ax: Any, points: Sequence[Point]) -> None:
    sizes = sorted({point.size for point in points})
    ax.set_xscale("log")
    ax.set_xticks(sizes)
    ax.xaxis.set_major_formatter(ScalarFormatter())
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.set_xlabel("n")
    ax.grid(color="#d9d9d9", linewidth=0.6)
    ax.spines[["top", "right"]].set_visible(False)


def _save(figure: Figure, path: Path) -> Path:
    figure.savefig(path, dpi=110, metadata={"Software": None})
    return path


def _name(plot: str) -> str:
    return plot.replace(" ", "-")
