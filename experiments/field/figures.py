"""Time against size, and accuracy against time: two panels for each family."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from ..shared.drawing import COLOURS, Picture, Theme, legend, plain
from .families import FAMILIES
from .libraries import LIBRARIES
from .rows import Row
from .verdicts import LEVELS, MAIN, fastest

MARKERS = "osD^vP*X<>dph8"
FLOOR = 1e-16  # errors below are drawn there


def look(library: str) -> dict[str, Any]:
    """The same for a library in all figures; ours is the thick blue line."""
    number = list(LIBRARIES).index(library)
    return {"color": COLOURS[number % len(COLOURS)], "marker": MARKERS[number % len(MARKERS)]}


def picture(family: str, rows: Sequence[Row]) -> Picture:
    """Both panels."""
    mine = [row for row in rows if row.family == family and row.timed]
    title = FAMILIES[family].title
    return Picture(
        family,
        (11.0, 4.4),
        partial(_draw, mine, FAMILIES[family].ordered),
        f"{title}: time against size, and accuracy against time",
        f"Left: the fastest accurate use of each library ({MAIN}; hollow where it has none). Right: every use of each, "
        "one batch: down is more accurate, left is faster.",
        wide=True,
    )


def _draw(rows: Sequence[Row], ordered: bool, figure: Figure, theme: Theme) -> None:
    left, right = figure.subplots(1, 2)
    _growth(left, rows, ordered)
    _accuracy(right, rows)
    for ax in (left, right):
        plain(ax, theme)
    legend(right, labelcolor=theme.ink, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))


def axis(rows: Sequence[Row]) -> tuple[str, str, int]:
    """What varies most: the size at a fixed batch, or the batch at a fixed size; (varies, fixed, its value)."""
    shapes = {(row.size, row.batch) for row in rows}
    of_batch, of_size = (Counter(shape[i] for shape in shapes).most_common(1)[0] for i in (1, 0))
    return ("size", "batch", of_batch[0]) if of_batch[1] >= of_size[1] else ("batch", "size", of_size[0])


def _growth(ax: Any, rows: Sequence[Row], ordered: bool) -> None:
    """Over sizes, or over problems side by side that are only numbered."""
    varies, fixed, value = axis(rows)
    mine = [row for row in rows if getattr(row, fixed) == value]
    values = sorted({getattr(row, varies) for row in mine})
    places = {x: x if ordered else i for i, x in enumerate(values)}
    for library in dict.fromkeys(row.library for row in mine):
        points = {}
        for x in values:
            here = [row for row in mine if row.library == library and getattr(row, varies) == x]
            best = fastest([row for row in here if row.accurate(LEVELS[MAIN])]) or fastest(here)
            if best is not None:
                points[places[x]] = best
        _line(ax, library, points, joined=ordered)
    ax.set_yscale("log")
    if ordered:
        ax.set_xscale("log")
        ax.xaxis.set_minor_formatter(NullFormatter())
    ax.set_xticks(list(places.values()), [f"{x:,}" for x in values])
    ax.tick_params(axis="x", labelsize=9 if ordered else 7)
    ax.set_xlabel(f"{varies if ordered else 'number of the problem'} ({fixed} {value})")
    ax.set_ylabel("forward and backward, ms")


def _line(ax: Any, library: str, points: dict[int, Row], joined: bool) -> None:
    style, width = look(library), 3.0 if library == "ours" else 1.4
    bars = [[one.total - one.low for one in points.values()], [one.high - one.total for one in points.values()]]
    spread = [[max(x, 0.0) for x in side] for side in bars]
    totals = [one.total for one in points.values()]
    line = {"linewidth": width} if joined else {"linestyle": "", "elinewidth": width}
    ax.errorbar(list(points), totals, yerr=spread, markersize=0, color=style["color"], alpha=0.8, **line)
    for x, one in points.items():
        face = style["color"] if one.accurate(LEVELS[MAIN]) else "none"
        ax.plot([x], [one.total], linestyle="", markersize=6, markerfacecolor=face, **style)


def _accuracy(ax: Any, rows: Sequence[Row]) -> None:
    shapes = Counter((row.batch, row.size) for row in rows)
    most = max(shapes.values())
    batch, size = max(shape for shape, count in shapes.items() if count >= 0.7 * most)
    for library in dict.fromkeys(row.library for row in rows):
        mine = [row for row in rows if row.library == library and (row.batch, row.size) == (batch, size)]
        errors = [max(row.gradient_error, FLOOR) for row in mine]
        ax.plot([row.total for row in mine], errors, linestyle="", markersize=7, label=library, **look(library))
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.axhline(LEVELS[MAIN], color="#888888", linewidth=0.8, linestyle="--")
    ax.set_xlabel(f"forward and backward, ms (size {size}, batch {batch})")
    ax.set_ylabel("worst relative error of the gradient")
