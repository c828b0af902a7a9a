"""The map: what each method saves and what it ends with after the same time, in words, a table and one figure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from ..shared.application import Record
from ..shared.drawing import BLUE, SKY, VERMILION, Picture, Theme
from ..shared.html import table
from ..shared.statistics import LEVEL, holm, interval, p_value
from .methods import FEW, LAST, METHODS, PROVEN
from .training import QUANTILES, RATES, REGIMES

HEAD: tuple[str, ...] = (
    *("family", "method", "backward", "step", "cosine, 10 %", "median", "90 %", "downhill"),
    *(f"{regime}: loss / exact (95 %)" for regime in REGIMES),
)
CHEAP = "unconstrained"
FAR = 10.0  # times the loss of the exact gradient, where the colours end
STILL = 0.1  # of the loss
SOLVED, LOST = (
    1e-12,
    1e6,
)  # times the loss at the start: below, all is learned; above, or where it has no value, nothing
STRONG = 0.6  # colours on which white is read best


@dataclass(frozen=True)
class Cell:
    """A method on a family in a regime, against the exact gradient; one entry per seed, each with its own best rate."""

    label: str
    regime: str
    method: str
    runs: list[Record]
    exact: list[Record]
    certain: bool = False  # is the difference more than chance, among all cells of the table?

    @property
    def differences(self) -> list[float]:
        """The logarithms of the loss after the same time over that of the exact gradient on the same seed."""
        pairs = zip(self.runs, self.exact, strict=True)
        return [math.log(ended(ours) / ended(theirs)) for ours, theirs in pairs]

    @property
    def ratio(self) -> float:
        """The geometric mean of the ratios."""
        return math.exp(float(np.mean(self.differences)))

    @property
    def lower(self) -> bool:
        """Is it certainly below the exact gradient?"""
        return self.certain and self.ratio < 1

    @property
    def higher(self) -> bool:
        """Is it certainly above?"""
        return self.certain and self.ratio > 1

    @property
    def saved(self) -> float:
        """The share of a step of the exact gradient."""
        return 1 - 1 / self.faster("seconds")

    @property
    def backward(self) -> float:
        """The share of a step that the layer's backward pass takes."""
        return self.mean("layer_backward") / self.mean("seconds")

    def faster(self, what: str) -> float:
        """How many times as long the exact gradient takes, in all steps of all seeds."""
        return float(np.sum([run[what] for run in self.exact]) / np.sum([run[what] for run in self.runs]))

    def mean(self, name: str) -> float:
        """Over the seeds."""
        return float(np.mean([run[name] for run in self.runs]))


def ended(run: Record) -> float:
    """The last loss, within the limits of what means something."""
    first, last = run["curve"]["loss"][0], run["curve"]["loss"][-1]
    return float(np.clip(last, SOLVED * first, LOST * first)) if last == last else LOST * first


def tuned(runs: Sequence[Record]) -> list[Record]:
    """For each seed the run at the rate that is best for the others: nobody chooses by what it is judged by."""
    found: dict[int, dict[float, Record]] = {}
    for run in runs:
        found.setdefault(run["seed"], {})[run["rate"]] = run
    chosen = []
    for seed, of_seed in found.items():
        others = [one for other, one in found.items() if other != seed] or [of_seed]
        loss = {rate: sum(math.log(ended(one[rate])) for one in others) for rate in of_seed}
        chosen.append(of_seed[min(loss, key=loss.__getitem__)])
    return chosen


def cells(record: Record) -> dict[tuple[str, str, str], Cell]:
    """By family, regime and method, in the order of the record."""
    groups: dict[tuple[str, str, str], list[Record]] = {}
    for run in record["runs"]:
        key = (f"{run['family']}, {run['size']}", run["regime"], run["method"])
        groups.setdefault(key, []).append(run)
    chosen = {key: tuned(runs) for key, runs in groups.items()}
    found = {key: Cell(*key, runs, chosen[*key[:2], "exact"]) for key, runs in chosen.items()}
    others = [key for key in found if key[2] != "exact"]
    certain = holm([p_value(found[key].differences) for key in others])
    return found | {key: replace(found[key], certain=yes) for key, yes in zip(others, certain, strict=True)}


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
                cosines = [
                    _number(float(np.mean([cell.mean(f"cosine_{share}") for cell in both]))) for share in (10, 50, 90)
                ]
                down = _number(float(np.mean([cell.mean("downhill") for cell in both])), ".0%")
                lines.append([label, method, *speed, *cosines, down, *(with_interval(cell) for cell in both)])
    return lines


def _number(value: float, form: str = ".2f") -> str:
    """Of cosines; none where the exact gradient is zero."""
    return format(value, form) if value == value else "-"


def in_words(ratio: float) -> str:
    """A ratio of losses, as far as it means something."""
    return f"< {1 / FAR:g}" if ratio < 1 / FAR else f"> {FAR:g}" if ratio > FAR else f"{ratio:.2f}"


def with_interval(cell: Cell) -> str:
    """The ratio of losses, its interval, and an arrow if it is certainly not 1."""
    low, high = (in_words(math.exp(min(end, 50.0))) for end in interval(cell.differences))
    arrow = " \u2193" if cell.lower else " \u2191" if cell.higher else ""
    return f"{in_words(cell.ratio)} ({low} to {high}){arrow}"


def sentences(record: Record) -> list[str]:
    """What the numbers say."""
    found = cells(record)
    cheap = [cell for cell in found.values() if cell.method == CHEAP]
    saved = sorted((cell.saved, cell.label) for cell in cheap)
    share = sorted(cell.backward for cell in found.values() if cell.method == "exact")
    slower = dict.fromkeys(cell.label for cell in cheap if cell.faster("layer_backward") < 1)
    return [
        worth_it(found),
        f"The backward pass of the exact rule takes {share[0]:.0%} to {share[-1]:.0%} of a step, the most that any "
        f"other can save. Dropping the constraints saves {saved[0][0]:.0%} ({saved[0][1]}) to {saved[-1][0]:.0%} "
        f"({saved[-1][1]}) of a step, in the middle {saved[len(saved) // 2][0]:.0%}.",
        f"Its backward pass takes longer than the exact one, which uses what the solver has factored, for: "
        f"{'; '.join(slower) or 'none'}.",
        *(verdict(regime, found) for regime in REGIMES),
        unsettled(found),
        *(of_family(label, found) for label in labels(record)),
    ]


def unsettled(found: dict[tuple[str, str, str], Cell]) -> str:
    """Whether the training was long enough to speak of its end."""
    exact = [run for cell in found.values() if cell.method == "exact" for run in cell.runs]
    falling = sum(run["curve"]["loss"][-1] < (1 - STILL) * run["curve"]["loss"][-2] for run in exact)
    return (
        f"The exact gradient's loss was still falling, by more than {STILL:.0%} in the last quarter of its time, in "
        f"{falling} of {len(exact)} runs: of these the table shows the beginning of training, not its end."
    )


def of_family(label: str, found: dict[tuple[str, str, str], Cell]) -> str:
    """Which methods end certainly below the exact gradient, and which above, in each regime."""
    parts = []
    for regime in REGIMES:
        mine = [cell for cell in found.values() if (cell.label, cell.regime) == (label, regime)]
        mine = sorted((cell for cell in mine if cell.method != "exact"), key=lambda cell: cell.ratio)
        lower, higher = ([x for x in mine if getattr(x, side)] for side in ("lower", "higher"))
        below, above = (
            ", ".join(f"{x.method} ({in_words(x.ratio)})" for x in some) or "none" for some in (lower, higher)
        )
        parts.append(f"With {regime}, below the exact gradient: {below}; above it: {above}.")
    return f"{label}. {' '.join(parts)}"


def worth_it(found: dict[tuple[str, str, str], Cell]) -> str:
    """Where dropping the constraints certainly ends lower: in all regimes, or in one."""
    lower: dict[str, list[str]] = {}
    for cell in found.values():
        if cell.method == CHEAP:
            lower.setdefault(cell.label, []).extend([cell.regime] if cell.lower else [])
    groups = {
        "Dropping the constraints is worth it whatever the targets are": [*REGIMES],
        **{f"With {regime} alone": [regime] for regime in REGIMES},
        "In neither case": [],
    }
    said = [
        f"{words}: {_together([x for x, where in lower.items() if where == these])}" for words, these in groups.items()
    ]
    return (
        f"{'. '.join(said)}. (After the same time lower than the exact gradient, by paired tests; the chance of one "
        f"false verdict in the whole table is {LEVEL:.0%}.)"
    )


def _together(labels: list[str]) -> str:
    """The sizes of each family in brackets."""
    sizes: dict[str, list[str]] = {}
    for label in labels:
        name, size = label.split(", ", 1)
        sizes.setdefault(name, []).append(size)
    return ", ".join(f"{name} ({'; '.join(these)})" for name, these in sizes.items()) or "none"


def verdict(regime: str, found: dict[tuple[str, str, str], Cell]) -> str:
    """How often each method certainly ends lower and higher than the exact gradient."""
    counts = []
    for method in METHODS[1:]:
        mine = [cell for cell in found.values() if (cell.method, cell.regime) == (method, regime)]
        lower, higher = sum(cell.lower for cell in mine), sum(cell.higher for cell in mine)
        counts += [f"{method} {lower} and {higher} of {len(mine)}"] if mine else []
    return (
        f"With {regime}, in how many families a method is certainly below the exact gradient after the same time, and "
        f"in how many above: {'; '.join(counts)}."
    )


def describe(settings: Record) -> str:
    """The task, the methods and what is measured, for a page."""
    can, cannot = REGIMES.values()
    return f"""<p>A linear network turns data into the input of a layer, and shall make its solution match a random
target, entry by entry with random weights. Data of dimension {can} can meet the {settings["batch"]} targets,
those of dimension {cannot} cannot. The exact gradient trains for {settings["steps"]} steps or
{settings["seconds"]:g} seconds of the processor, and every other method for exactly as long, in turns, from the same
weights, {settings["seeds"]} seeds. Each method is tuned on its own: Adam at {", ".join(f"{rate:g}" for rate in RATES)},
and for each seed the rate counts that is best on the other seeds. Intervals are those of Student's distribution for the
mean logarithm of the ratio on the same seed; an arrow, or bold, means that it is not 1 by Holm's test over the whole
table. <i>unconstrained</i> is the paper's approximation,
<i>curvature</i> keeps that of the constraints, <i>identity</i> is Jacobian-free, <i>{FEW} CG steps</i> is the exact
gradient with its linear system left after so many steps of conjugate gradients, <i>one step</i> and <i>{LAST}
steps</i> differentiate the last iterations of a solver alone (of Sinkhorn's, or of a projected gradient method),
<i>penalty</i> replaces the constraints by a quadratic one, <i>LPGD</i> compares with the solution at an input moved
along the incoming gradient, <i>smoothed</i> differentiates at a barrier, <i>adaptive</i> is cheap while probes agree,
and two more drop one kind of constraints. A <i>QP by a map</i> has a forward pass that is one product of matrices. The
exact gradient of a <i>linear</i> program is zero: there a ratio below 1 means that anything is learned at all.</p>
{table(["method", "what is proven"], [[*pair] for pair in PROVEN.items()])}
<p>Why an approximation can be better than the truth: the derivative of a solution is an inverse Hessian, restricted
to the constraints. The exact gradient of a squared distance goes through it a second time, which squares its
condition number; a gradient that leaves it out goes through it once. While targets can be met, that is all that
counts, and for softmax with equal weights it is the gradient of the cross-entropy. Where they cannot, a wrong
gradient ends at a wrong point.</p>"""


def pictures(record: Record) -> list[Picture]:
    """The map."""
    alt = (
        "Families of layers: how many times as long the exact gradient takes, how well the direction without "
        "constraints agrees with it, and the loss of each method after the same time"
    )
    caption = (
        "Where is it worth dropping the constraints? Where it is blue on the right. First: how many times as long the "
        "exact gradient takes as the one without constraints, in the backward pass of the layer (ring) and in a whole "
        "step of training (dot); left of 1 it is faster. Second: the cosine of the two over the training, from 10 to "
        "90 % of all problems, thick from 25 to 75 %, with the median; dark where targets can be met, light where they "
        "cannot; right of 0 it goes downhill. Right: the loss after equal time, exact = 1. Blue is lower, so worth it; "
        "orange is higher; bold is more than chance (Holm's test over the whole table); a point is a method that the "
        "layer does not have. "
        "Without curvature of the constraints, unconstrained and curvature are the same and share a cell"
    )
    size = 17.0, 2.2 + 0.36 * len(labels(record))
    return [Picture("approximations", size, partial(draw_map, record), alt, caption, wide=True)]


def draw_map(record: Record, figure: Figure, theme: Theme) -> None:
    """Families by what is saved, by the cosine, and by methods in each regime."""
    found, families = cells(record), labels(record)
    figure.get_layout_engine().set(w_pad=0.12)  # type: ignore[union-attr, call-arg]
    axes = figure.subplots(1, 2 + len(REGIMES), sharey=True, width_ratios=[1.3, 1.1, *[3.3 for _ in REGIMES]])
    cheap = [
        [found[label, regime, CHEAP] for regime in REGIMES if (label, regime, CHEAP) in found] for label in families
    ]
    _draw_savings(axes[0], cheap, theme)
    _draw_cosines(axes[1], cheap, theme)
    for ax, regime in zip(axes[2:], REGIMES, strict=True):
        _draw_losses(ax, {key: cell for key, cell in found.items() if cell.regime == regime}, families, theme)
        ax.set_title(f"loss after the same time,\n{regime}", fontsize=10.5)
    axes[0].set_yticks(range(len(families)), families)
    axes[0].set_ylim(len(families) - 0.5, -0.5)


def _draw_savings(ax: Any, cheap: list[list[Cell]], theme: Theme) -> None:
    """How many times as long the exact gradient takes: a ring for the backward pass, a dot for a step."""
    places = [i for i, row in enumerate(cheap) if row]
    cheap = [row for row in cheap if row]
    backward, step = (
        [math.exp(np.mean([math.log(cell.faster(what)) for cell in row])) for row in cheap]
        for what in ("layer_backward", "seconds")
    )
    ax.hlines(places, step, backward, color=theme.grid, linewidth=1.5)
    ax.plot(backward, places, "o", markerfacecolor=theme.paper, markeredgecolor=theme.ink, label="backward pass")
    colours = [BLUE if ratio > 1 else VERMILION for ratio in step]
    ax.scatter(step, places, 42, colours, zorder=3, label="whole step")
    ax.axvline(1, color=theme.ink, linewidth=0.8)
    ax.set_xscale("log")
    ends = min([0.5, *backward, *step]), max([2.0, *backward, *step])
    ax.set_xlim(ends[0] / 1.2, ends[1] * 1.2)
    ticks = [tick for tick in (0.25, 0.5, 1, 2, 4, 8, 16, 32) if ends[0] / 1.2 <= tick <= ends[1] * 1.2]
    ax.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    ax.set_xticks([], minor=True)
    ax.set_title("time of the exact gradient\n/ that without constraints", fontsize=10.5)
    ax.set_xlabel("ring: backward pass\ndot: whole step", fontsize=9.5)
    _bare(ax, theme)


def _draw_cosines(ax: Any, cheap: list[list[Cell]], theme: Theme) -> None:
    """The distribution of the cosine in each regime: dark in the first, light in the second."""
    for i, row in enumerate(cheap):
        for j, (cell, colour) in enumerate(zip(row, (BLUE, SKY), strict=False)):  # no cells of a linear program
            at = i + 0.24 * (2 * j - 1)
            lowest, low, middle, high, highest = (cell.mean(f"cosine_{share}") for share in QUANTILES)
            ax.plot([lowest, highest], [at, at], color=colour, linewidth=1.2)
            ax.plot([low, high], [at, at], color=colour, linewidth=4.5, solid_capstyle="butt")
            ax.plot(middle, at, "o", markersize=3.5, color=theme.ink, zorder=3)
    ax.axvline(0, color=theme.ink, linewidth=0.8)
    ax.set_xlim(-1.05, 1.05)
    ax.set_xticks([-1, 0, 1])
    ax.set_title("cosine of the two\nover the training", fontsize=10.5)
    ax.set_xlabel("10, 25, 50, 75, 90 %\nof the problems", fontsize=9.5)
    _bare(ax, theme)


def _draw_losses(ax: Any, found: dict[tuple[str, str, str], Cell], families: list[str], theme: Theme) -> None:
    """A cell for each method, coloured by the ratio of losses."""
    colours = LinearSegmentedColormap.from_list("losses", [BLUE, theme.paper, VERMILION])
    own = {(cell.label, cell.method): cell for cell in found.values()}
    for i, label in enumerate(families):
        shared = (label, "curvature") not in own
        for j, method in enumerate(METHODS[1:]):
            cell, width = own.get((label, method)), 2 if method == CHEAP and shared else 1
            if cell is not None:
                strength = float(np.clip(math.log(cell.ratio, FAR), -1, 1))
                place = (j - 0.5, i - 0.5)
                ax.add_patch(Rectangle(place, width, 1, facecolor=colours((strength + 1) / 2), edgecolor=theme.paper))
                ink, weight = "#ffffff" if abs(strength) > STRONG else theme.ink, "bold" if cell.certain else "normal"
                middle = j + (width - 1) / 2
                ax.text(middle, i, in_words(cell.ratio), ha="center", va="center", size=8, color=ink, weight=weight)
            elif not (method == "curvature" and shared):
                ax.text(j, i, "·", ha="center", va="center", color=theme.ink)
    ax.set_xticks(range(len(METHODS) - 1), METHODS[1:], rotation=35, ha="right", fontsize=9.5)
    ax.set_xlim(-0.5, len(METHODS) - 1.5)
    _bare(ax, theme)


def _bare(ax: Any, theme: Theme) -> None:
    ax.set_facecolor(theme.paper)
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
