"""The colours of the pictures, for light and for dark pages, and how a picture becomes a file."""

from __future__ import annotations

import io

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

THEMES = ("light", "dark")
INK = {"light": "#1f2430", "dark": "#e6e8ee"}
FILL = {"light": "#e8ebfa", "dark": "#2a3054"}
POINT = {"light": "#3949ab", "dark": "#9fa8ff"}
ARROW = {"light": "#c2410c", "dark": "#ffab70"}


def svg(figure: Figure, name: str) -> str:
    """The figure as text, which is the same in every run, without a background; the figure is closed."""
    plt.rcParams["svg.hashsalt"] = name
    text = io.StringIO()
    figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
    plt.close(figure)
    return text.getvalue()
