"""The map: what each method saves and what it ends with after the same time, in words, a table and one figure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from ..shared.application import Record
from ..shared.drawing import BLUE, VERMILION, Picture, Theme, on_canvas
from .methods import METHODS
from .training import REGIMES

HEAD: tuple[str, ...] = ("family", "method", "backward", "step", "cosine, 10 %", "median", *REGIMES)
FAR = 10.0  # times the loss of the exact gradient, where the colours end
STRONG = 0.6  # colours on which white is read best


TITLE = """Loss after the same time, in units of what the exact gradient reaches
behind a family: the share of a step that its exact backward pass takes; grey: the same as another method, or none"""


@dataclass(frozen=True)
class Cell:
    """A method on a family in a regime, against the exact gradient; one entry per seed."""

    label: str
    regime: str
    method: str
    runs: list[Record]
    exact: list[Record]

    @property
    def ratios(self) -> list[float]:
        """The loss after the same time over that of the exact gradient."""
        ends = [[max(run["curve"]["loss"][-1], 1e-300) for run in runs] for runs in (self.runs, self.exact)]
        return [ours / theirs for ours, theirs in zip(*ends, strict=True)]

    @property
    def ratio(self) -> float:
        """Their geometric mean."""
        return math.exp(sum(map(math.log, self.ratios)) / len(self.ratios))

    def faster(self, what: str) -> float:
        """How many times as long the exact gradient takes, in all steps of all seeds."""
        return float(np.sum([run[what] for run in self.exact]) / np.sum([run[what] for run in self.runs]))

    def mean(self, name: str) -> float:
        """Over the seeds."""
        return float(np.mean([run[name] for run in self.runs]))


def cells(record: Record) -> dict[tuple[str, str, str], Cell]:
    """By family, regime and method, in the order of the record."""
    groups: dict[tuple[str, str, str], list[Record]] = {}
    for run in record["runs"]:
        key = (f"{run['family']}, {run['size']}", run["regime"], run["method"])
        groups.setdefault(key, []).append(run)
    return {key: Cell(*key, runs, groups[*key[:2], "exact"]) for key, runs in groups.items()}


def labels(record: Record) -> list[str]:
    """The families."""
    return list(dict.fromkeys(label for label, _, _ in cells(record)))


def rows(record: Record) -> list[list[str]]:
    """A line for each family and method."""
    found, lines = cells(record), []
    for label in labels(record):
        for method in METHODS[1:]:
            both = [found[label, regime, method] for regime in REGIMES if (label, regime, method) in found]
            if both:
                speed = [
                    f"{np.mean([cell.faster(what) for cell in both]):.2f} x" for what in ("layer_backward", "seconds")
                ]
                cosines = [f"{np.mean([cell.mean(name) for cell in both]):.2f}" for name in ("cosine_10", "cosine_50")]
                lines.append([label, method, *speed, *cosines, *(in_words(cell.ratio) for cell in both)])
    return lines


def in_words(ratio: float) -> str:
    """A ratio of losses, as far as it means something."""
    return f"< {1 / FAR:g}" if ratio < 1 / FAR else f"> {FAR:g}" if ratio > FAR else f"{ratio:.2f}"


def sentences(record: Record) -> list[str]:
    """What the numbers say."""
    found = cells(record)
    cheap = [cell for cell in found.values() if cell.method == "unconstrained"]
    saved = sorted((1 - 1 / cell.faster("seconds"), cell.label) for cell in cheap)
    share = sorted(
        cell.mean("layer_backward") / cell.mean("seconds") for cell in found.values() if cell.method == "exact"
    )
    slower = dict.fromkeys(cell.label for cell in cheap if cell.faster("layer_backward") < 1)
    return [
        f"The backward pass of the exact rule takes {share[0]:.0%} to {share[-1]:.0%} of a step, the most that any "
        f"other can save. Dropping the constraints saves {saved[0][0]:.0%} ({saved[0][1]}) to {saved[-1][0]:.0%} "
        f"({saved[-1][1]}) of a step, in the middle {saved[len(saved) // 2][0]:.0%}.",
        f"Its backward pass takes longer than the exact one, which uses what the solver has factored, for: "
        f"{'; '.join(slower) or 'none'}.",
        *(verdict(method, regime, found) for regime in REGIMES for method in METHODS[1:]),
    ]


def verdict(method: str, regime: str, found: dict[tuple[str, str, str], Cell]) -> str:
    """How often a method ends lower and higher than the exact gradient on every seed."""
    mine = [cell for cell in found.values() if (cell.method, cell.regime) == (method, regime)]
    lower = [cell for cell in mine if max(cell.ratios) < 1]
    higher = [cell for cell in mine if min(cell.ratios) > 1]
    where = f" ({'; '.join(cell.label for cell in higher)})" if higher else ""
    return (
        f"With {regime}, after the same time {method} is below exact on every seed in {len(lower)} of {len(mine)} "
        f"cases and above in {len(higher)}{where}."
    )


def pictures(record: Record) -> list[Picture]:
    """The map."""
    alt = "A table of families of layers and methods, coloured by the loss after the same time as the exact gradient"
    caption = "Blue: lower than with the exact gradient, so worth it. Orange: higher"
    return [Picture("worth", alt, caption, partial(draw_map, record), wide=True)]


def draw_map(record: Record, theme: Theme, dpi: int) -> bytes:
    """Families by methods, for each regime."""
    found, families, methods = cells(record), labels(record), METHODS[1:]
    colours = LinearSegmentedColormap.from_list("worth", [BLUE, theme.paper, VERMILION])
    ends = f"{FAR:g}"

    def draw(figure: Figure) -> None:
        axes = figure.subplots(1, len(REGIMES), sharey=True)
        for ax, regime in zip(axes, REGIMES, strict=True):
            values = np.full((len(families), len(methods)), np.nan)
            for (i, family), (j, method) in ((a, b) for a in enumerate(families) for b in enumerate(methods)):
                if (family, regime, method) in found:
                    ratio = found[family, regime, method].ratio
                    values[i, j] = np.clip(math.log(ratio, FAR), -1, 1)
                    ink = "#ffffff" if abs(values[i, j]) > STRONG else theme.ink
                    ax.text(j, i, in_words(ratio), ha="center", va="center", fontsize=8.5, color=ink)
            image = ax.imshow(values, colours, vmin=-1, vmax=1, aspect="auto")
            _label(ax, regime, theme)
        shares = [found[family, next(iter(REGIMES)), "exact"] for family in families]
        names = [f"{one.label}  {one.mean('layer_backward') / one.mean('seconds'):.0%}" for one in shares]
        axes[0].set_yticks(range(len(families)), names)
        bar = figure.colorbar(image, ax=axes, ticks=[-1, 0, 1], shrink=0.5, pad=0.01)
        bar.ax.set_yticklabels([f"{ends} times\nlower", "the same", f"{ends} times\nhigher"])
        figure.suptitle(TITLE, fontsize=11)

    return on_canvas(draw, (11.0, 1.6 + 0.34 * len(families)), "png", theme, dpi)


def _label(ax: Any, title: str, theme: Theme) -> None:
    ax.set_title(title, fontsize=10.5)
    ax.set_xticks(range(len(METHODS) - 1), METHODS[1:], rotation=35, ha="right", fontsize=9.5)
    ax.set_facecolor(theme.grid)  # no such method here
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
