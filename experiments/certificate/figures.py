"""Why a proof seldom pays, in one figure."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from matplotlib.figure import Figure

from ..shared.drawing import BLUE, GREEN, ORANGE, PURPLE, SKY, VERMILION, Picture, Theme, legend, plain

COLOURS = (BLUE, SKY, PURPLE, GREEN, ORANGE, VERMILION, "#1a1a1a", "#8c8c8c")


def picture(costs: Sequence[dict[str, Any]]) -> Picture:
    """The share that is proven after so many steps, and the gradient that the same work would have given."""
    return Picture("certificate", (11.0, 4.2), partial(_draw, costs))


def _draw(costs: Sequence[dict[str, Any]], figure: Figure, theme: Theme) -> None:
    left, right = figure.subplots(1, 2)
    for row, colour in zip(costs, COLOURS, strict=False):
        steps, label = range(len(row["instead"])), f"{row['family']}, {row['size']}"
        left.step(steps, row["share_by_step"], where="post", color=colour, linewidth=2)
        errors = [max(1 - cosine, 1e-8) for cosine in row["instead"]]
        right.semilogy(steps, errors, color=colour, linewidth=2, label=label)
        taken = int(row["steps"])
        if row["decided"] == 1.0:
            right.plot(taken, errors[taken], "o", color=colour)
    left.set_ylabel("share of problems that are decided")
    right.set_ylabel("1 - cosine of conjugate gradients")
    left.set_title("Proof that the cheap gradient descends ...", fontsize=10.5)
    right.set_title("... and the exact one by the same work (dot: decided)", fontsize=10.5)
    for ax in (left, right):
        plain(ax, theme)
        ax.set_xlabel("steps, of two products with S each")
    legend(right, fontsize=8)
