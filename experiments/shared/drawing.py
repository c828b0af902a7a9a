"""What all figures have in common: colours, line styles, bright and dark pages, and a canvas without a display."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from .files import write
from .statistics import interval

# Okabe and Ito's colours, which the colour-blind can tell apart.
BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"
GREY, BROWN = "#8A8A8A", "#8C510A"
COLOURS = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY)


@dataclass(frozen=True)
class Style:
    """How a rule is drawn, in every figure."""

    colour: str
    line: str
    width: float


# Curves that coincide still show by their dashes.
STYLES = {
    "exact": Style(BLUE, "-", 3.2),
    "unconstrained": Style(VERMILION, "-", 2.0),
    "curvature": Style(GREEN, "--", 2.0),
    "adaptive": Style(PURPLE, ":", 2.6),
    "unrolled": Style(ORANGE, "-.", 2.0),
    "SPO+": Style(SKY, "-", 2.4),
    "differences": Style(GREY, "--", 2.0),
    "LQR": Style(BROWN, "-.", 2.2),
}


@dataclass(frozen=True)
class Theme:
    """The colours of everything but the curves."""

    paper: str
    ink: str
    grid: str


LIGHT = Theme("#ffffff", "#1a1a1a", "#d9d9d9")
DARK = Theme("#17191c", "#e6e6e6", "#3a3d42")


@dataclass(frozen=True)
class Picture:
    """A figure that is yet to be drawn."""

    name: str  # of its file
    size: tuple[float, float]  # inches
    draw: Callable[[Figure, Theme], None]  # into an empty figure
    alt: str = ""  # what it shows, for those who cannot see it
    caption: str = ""
    wide: bool = False  # has it a line of its own?

    def render(self, theme: Theme = LIGHT, dpi: int = 150, kind: str = "png") -> bytes:
        """The content of a ``png`` or ``svg`` file; the same drawing gives the same file."""
        inked = ("axes.edgecolor", "text.color", "axes.labelcolor", "xtick.color", "ytick.color")
        options: Any = {"font.size": 11, "svg.hashsalt": self.alt, **dict.fromkeys(inked, theme.ink)}
        with mpl.rc_context(options):
            figure = Figure(figsize=self.size, layout="constrained", facecolor=theme.paper)
            FigureCanvasAgg(figure)  # no pyplot: nothing global, no display
            self.draw(figure, theme)
            file = io.BytesIO()
            figure.savefig(file, format=kind, dpi=dpi, metadata={"Date": None} if kind == "svg" else {"Software": None})
        return file.getvalue()


def write_pictures(place: Path, pictures: Iterable[Picture], dpi: int = 150) -> None:
    """Each as a PNG file of its name."""
    for picture in pictures:
        write(place / f"{picture.name}.png", picture.render(LIGHT, dpi))


def plain(ax: Any, theme: Theme = LIGHT) -> None:
    """Axes with a light grid and no frame."""
    ax.set_facecolor(theme.paper)
    ax.grid(color=theme.grid, linewidth=0.6)
    ax.spines[["top", "right"]].set_visible(False)


def legend(ax: Any, **options: Any) -> None:
    """Without a frame."""
    ax.legend(**{"frameon": False, "fontsize": 9.5} | options)


def draw_runs(
    ax: Any, rule: str, runs: Sequence[Any], places: Sequence[Any] | None = None, *, label: str = "", band: bool = False
) -> None:
    """The curves of a rule over these places, or over the iterations: each run light, their mean dark.

    With a band: the 95 % interval of the mean, no further down than the lowest run, where an axis may be logarithmic.
    """
    style = STYLES[rule]
    places = places or [range(len(run)) for run in runs]
    for place, run in zip(places, runs, strict=True):
        ax.plot(place, run, color=style.colour, alpha=0.22, linewidth=0.8, zorder=2)
    middle = [np.mean(np.array(lines), 0) for lines in (places, runs)]
    ax.plot(*middle, color=style.colour, linestyle=style.line, linewidth=style.width, label=label or rule, zorder=3)
    if band and len(runs) > 1:
        low, high = interval(np.array(runs))
        low = np.maximum(low, np.min(runs, 0))
        ax.fill_between(middle[0], low, high, color=style.colour, alpha=0.15, linewidth=0, zorder=1)
