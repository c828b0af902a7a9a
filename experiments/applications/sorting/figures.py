"""The figures of learning to sort."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import PercentFormatter

from ...shared.drawing import VERMILION, Picture, Theme, draw_runs, legend, on_canvas, plain
from .findings import Record, cases
from .training import RULES

SHOWN = ("exact", "unconstrained")  # the rules whose sorted sequences are shown
SIDE, GAP = 8, 3  # pixels of a digit, and between two


def pictures(record: Record) -> list[Picture]:
    """For each case its learning curves, then for each case some sorted sequences."""
    found = [(case, f"n{case.n}{'_centred' if case.centred else ''}") for case in cases(record)]
    curves = [
        Picture(
            f"curves_{file}",
            f"Accuracy in training, {case.name}",
            f"{case.name}: seeds light, mean dark",
            partial(accuracy_curves, case.runs),
        )
        for case, file in found
    ]
    sequences = [
        Picture(
            f"sorted_{file}",
            f"Sorted test sequences, {case.name}",
            f"{case.name}: the first test sequences of the first seed, wrong places framed",
            partial(sorted_sequences, example),
        )
        for (case, file), example in zip(found, record["cases"], strict=True)
    ]
    return curves + sequences


def accuracy_curves(runs: Sequence[Record], theme: Theme, dpi: int) -> bytes:
    """The share of the test sequences in order, by step and by time."""

    def draw(figure: Figure) -> None:
        axes = figure.subplots(1, 2, sharey=True)
        for ax, x in zip(axes, ("step", "seconds"), strict=True):
            for rule in RULES:
                curves = [one["curve"] for one in runs if one["rule"] == rule]
                draw_runs(ax, rule, [curve["whole"] for curve in curves], [curve[x] for curve in curves])
            ax.set_xlabel({"step": "training step", "seconds": "seconds of training"}[x])
            ax.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
            ax.set_ylim(bottom=0)
            plain(ax, theme)
        axes[0].set_ylabel("test sequences wholly in order")
        legend(axes[0])

    return on_canvas(draw, (9.0, 3.9), "png", theme, dpi)


def sorted_sequences(example: Record, theme: Theme, dpi: int) -> bytes:
    """Test sequences as they came and as each rule sorts them, with wrong places framed."""
    images, labels = np.array(example["images"]), np.array(example["labels"])
    count, n = labels.shape
    lines = 1 + len(SHOWN)

    def draw(figure: Figure) -> None:
        for k, (ax,) in enumerate(figure.subplots(count, 1, squeeze=False)):
            orders = [np.arange(n), *(np.argsort(example["scores"][rule][k], kind="stable") for rule in SHOWN)]
            for line, order in enumerate(orders):
                wrong = labels[k][order] != np.sort(labels[k]) if line else np.zeros(n, bool)
                for column, (item, bad) in enumerate(zip(order, wrong, strict=True)):
                    _draw_digit(ax, images[k, item], line, column, bad)
            ax.set(xlim=(-1, n * (SIDE + GAP)), ylim=(lines * (SIDE + GAP), -1), aspect="equal", facecolor=theme.paper)
            ax.set_yticks([line * (SIDE + GAP) + SIDE / 2 for line in range(lines)], ["as given", *SHOWN])
            ax.tick_params(length=0, labelsize=9.5)
            ax.set_xticks([])
            ax.spines[:].set_visible(False)

    return on_canvas(draw, (1.4 + 0.5 * n, 0.58 * lines * count), "png", theme, dpi)


def _draw_digit(ax: Any, image: Any, line: int, column: int, wrong: bool) -> None:
    x, y = column * (SIDE + GAP), line * (SIDE + GAP)
    ax.imshow(image, cmap="gray_r", vmin=0, vmax=16, extent=(x, x + SIDE, y + SIDE, y))
    if wrong:
        ax.add_patch(Rectangle((x, y), SIDE, SIDE, fill=False, edgecolor=VERMILION, linewidth=2.5))
