"""The figures of the two applications."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import PercentFormatter

from ..paper.figures import LIGHT, STYLES, Style, Theme, on_canvas, plain
from .common import mean

LOOKS = STYLES | {"unrolled": Style("#E69F00", "-.", 2.0)}
WRONG = "#D55E00"

Record = dict[str, Any]


def accuracy_curves(runs: Sequence[Record], rules: Sequence[str], theme: Theme = LIGHT, dpi: int = 150) -> bytes:
    """The share of the test sequences in order, by step and by time."""

    def draw(figure: Figure) -> None:
        axes = figure.subplots(1, 2, sharey=True)
        for ax, x in zip(axes, ("step", "seconds"), strict=True):
            for rule in rules:
                _draw_curves(ax, [one["curve"] for one in runs if one["rule"] == rule], x, "whole", rule)
            ax.set_xlabel({"step": "training step", "seconds": "seconds of training"}[x])
            ax.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
            ax.set_ylim(bottom=0)
            plain(ax, theme)
        axes[0].set_ylabel("test sequences wholly in order")
        axes[0].legend(frameon=False, fontsize=9.5)

    return on_canvas(draw, (9.0, 3.9), "png", theme, dpi)


def regret_figure(
    runs: Sequence[Record], methods: Sequence[str], rules: Sequence[str], theme: Theme = LIGHT, dpi: int = 150
) -> bytes:
    """Regret on test groups, seed by seed, and the course of training on validation groups."""

    def draw(figure: Figure) -> None:
        left, right = figure.subplots(1, 2)
        _draw_seeds(left, {name: [one for one in runs if one["method"] == name] for name in methods}, theme)
        for rule in rules:
            _draw_curves(
                right, [one["curve"] for one in runs if one["method"] == rule], "step", "validation_regret", rule
            )
        right.set_xlabel("training step")
        right.set_ylabel("regret on validation groups")
        right.legend(frameon=False, fontsize=9.5)
        for ax in (left, right):
            plain(ax, theme)

    return on_canvas(draw, (9.0, 3.9), "png", theme, dpi)


def sorted_sequences(example: Record, rules: Sequence[str], theme: Theme = LIGHT, dpi: int = 150) -> bytes:
    """Test sequences as they came and as each rule sorts them, with wrong places framed."""
    images, labels = np.array(example["images"]), np.array(example["labels"])
    count, n = labels.shape
    lines = 1 + len(rules)

    def draw(figure: Figure) -> None:
        groups = figure.subfigures(count, 1, hspace=0.06) if count > 1 else [figure]
        for k, group in enumerate(groups):
            group.set_facecolor(theme.paper)
            axes = group.subplots(lines, n, squeeze=False)
            for line, rule in enumerate(("as given", *rules)):
                order = np.arange(n) if line == 0 else np.argsort(example["scores"][rule][k], kind="stable")
                wrong = np.zeros(n, bool) if line == 0 else labels[k][order] != np.sort(labels[k])
                axes[line, 0].set_ylabel(rule, rotation=0, ha="right", va="center", fontsize=9.5)
                for ax, item, bad in zip(axes[line], order, wrong, strict=True):
                    _draw_digit(ax, images[k, item], bad)

    return on_canvas(draw, (1.4 + 0.5 * n, 0.58 * lines * count), "png", theme, dpi)


def _draw_digit(ax: Any, image: Any, wrong: bool) -> None:
    ax.imshow(image, cmap="gray_r", vmin=0, vmax=16)
    ax.set_xticks([])
    ax.set_yticks([])
    ax.spines[:].set_visible(False)
    if wrong:
        ax.add_patch(Rectangle((-0.5, -0.5), 8, 8, fill=False, edgecolor=WRONG, linewidth=2.5))


def _draw_curves(ax: Any, curves: Sequence[Record], x: str, y: str, rule: str) -> None:
    """Each seed light, their mean dark."""
    style = LOOKS[rule]
    for curve in curves:
        ax.plot(curve[x], curve[y], color=style.colour, alpha=0.25, linewidth=0.8)
    middle = [np.mean([curve[name] for curve in curves], 0) for name in (x, y)]
    ax.plot(*middle, color=style.colour, linestyle=style.line, linewidth=style.width, label=rule)


def _draw_seeds(ax: Any, groups: dict[str, list[Record]], theme: Theme) -> None:
    """A dot for each seed, a bar for the mean, and a line from method to method for each seed."""
    values = {
        name: [one["regret"] for one in sorted(runs, key=lambda one: one["seed"])] for name, runs in groups.items()
    }
    for line in zip(*values.values(), strict=True):
        ax.plot(range(len(line)), line, color=theme.grid, linewidth=0.8, zorder=1)
    for i, (name, regrets) in enumerate(values.items()):
        colour = LOOKS[name].colour if name in LOOKS else theme.ink
        ax.plot([i] * len(regrets), regrets, "o", color=colour, markersize=4, alpha=0.7, zorder=2)
        ax.plot([i - 0.3, i + 0.3], [mean(regrets)] * 2, color=colour, linewidth=3, zorder=3)
    ax.set_xticks(
        range(len(values)), [name.replace(", ", ",\n") for name in values], rotation=30, ha="right", fontsize=9.5
    )
    ax.set_ylim(bottom=0)
    ax.set_ylabel("regret on test groups")
