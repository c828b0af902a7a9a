"""What came of learning from plans, in words, a table and pictures; every sentence is computed from the record."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from matplotlib.figure import Figure

from ...shared.application import Record
from ...shared.drawing import BLUE, BROWN, ORANGE, VERMILION, Picture, Theme, draw_runs, legend, plain
from ...shared.trajectories import DT
from ..words import by_seed, consistency, mean, spread
from .data import SYSTEMS
from .training import (
    BEFORE,
    BEFORE_LENGTH,
    BEFORE_WEIGHTS,
    CHEAP,
    DIFFERENCES,
    EXACT,
    EXPERT,
    KNOWN,
    METHODS,
    REGULATOR,
)

SHOWN = {  # how drives are drawn
    EXPERT: ("expert", "", "-", 4.5),
    BEFORE: ("before training", ORANGE, "--", 1.8),
    EXACT: ("after training", BLUE, "-", 1.8),
    REGULATOR: ("LQR after training", BROWN, ":", 2.4),
    CHEAP: ("after training without constraints", VERMILION, "-.", 1.6),
}
LINES = (BEFORE, BEFORE_LENGTH, BEFORE_WEIGHTS, *METHODS, KNOWN)
HEAD: tuple[str, ...] = (
    "system",
    "method",
    "closed-loop cost",
    "fallen",
    "length wrong by",
    "weights wrong by",
    "plans apart",
    "seconds",
)


def systems(record: Record) -> list[str]:
    """Those that were run."""
    names: list[str] = record["settings"]["systems"]
    return names


def values(record: Record, system: str, method: str, name: str) -> list[float]:
    """A number of every seed."""
    return [one[name] for one in by_seed(record["runs"], system=system, method=method)]


def rows(record: Record) -> list[list[str]]:
    """The table: a line for each system and method."""
    return [
        [
            *(system, method, spread(values(record, system, method, "cost"), ".3f")),
            f"{mean(values(record, system, method, 'fallen')):.0%}",
            *(spread(values(record, system, method, name), ".2f") for name in ("length_wrong", "weights_wrong")),
            spread(values(record, system, method, "plans_apart"), ".3f"),
            f"{mean(values(record, system, method, 'seconds')):.2g}" if method in METHODS else "",
        ]
        for system in systems(record)
        for method in LINES
    ]


def sentences(record: Record) -> list[str]:
    """What the numbers say."""
    return [
        said
        for system in systems(record)
        for said in (
            learned(record, system),
            what_counts(record, system),
            against_differences(record, system),
            *(against_exact(record, system, method) for method in (BEFORE, REGULATOR, CHEAP)),
            unlearnable(record, system),
        )
    ]


def learned(record: Record, system: str) -> str:
    """From where to where training led."""
    limit = mean(values(record, system, EXACT, "at_limit"))
    (cost, apart) = (
        " to ".join(format(mean(values(record, system, method, name)), form) for method in (BEFORE, EXACT))
        for name, form in (("cost", ".3f"), ("plans_apart", ".3f"))
    )
    return (
        f"{system}: with the control at its limit in {limit:.0%} of the steps that were seen, training brings the "
        f"closed-loop cost from {cost} times the expert's, and the distance of held-out plans from {apart}."
    )


def what_counts(record: Record, system: str) -> str:
    """Which of the parameters one must know in order to drive."""
    length, weights = (
        spread(values(record, system, method, "cost"), ".3f") for method in (BEFORE_WEIGHTS, BEFORE_LENGTH)
    )
    return (
        f"{system}: with the length alone still wrong, the closed-loop cost is {length} times the expert's; with the "
        f"weights alone, {weights}."
    )


def against_differences(record: Record, system: str) -> str:
    """Same steps, another price."""
    exact, slow = (mean(values(record, system, method, "seconds")) for method in (EXACT, DIFFERENCES))
    return (
        f"{system}: finite differences take {slow / exact:.1f} times as long as the exact gradient for the same steps, "
        f"after which lengths differ by at most {lengths_apart(record, system, EXACT, DIFFERENCES):.1g}."
    )


def against_exact(record: Record, system: str, method: str) -> str:
    """The closed-loop cost of another method, seed by seed."""
    costs = [values(record, system, one, "cost") for one in (method, EXACT)]
    less = [b - a for a, b in zip(*costs, strict=True)]
    return (
        f"{system}, {method} against {EXACT}: closed-loop cost {-mean(less):+.3f}, "
        f"{consistency(less, 'lower', 'higher')}; length wrong by "
        f"{mean(values(record, system, method, 'length_wrong')):.2f} instead of "
        f"{mean(values(record, system, EXACT, 'length_wrong')):.2f} (in logarithms)."
    )


def unlearnable(record: Record, system: str) -> str:
    """What the gradient without constraints cannot see."""
    return (
        f"{system}: the length occurs in the constraints alone, and the gradient without them moved its logarithm by "
        f"{lengths_apart(record, system, CHEAP, BEFORE):.1g}."
    )


def lengths_apart(record: Record, system: str, *methods: str) -> float:
    """The largest difference of what two methods make of the length, seed by seed, in logarithms."""
    pairs = zip(*(values(record, system, method, "length_wrong") for method in methods), strict=True)
    apart: float = max(abs(a - b) for a, b in pairs)
    return apart


def describe(settings: Record) -> str:
    """The task, the methods and what is measured, for a page."""
    return f"""<p>Somebody keeps a pendulum, or a pole on a cart, upright by the plan of least cost over
{settings["horizon"]} steps, with a limit on the control that he often meets. {settings["count"]} of his plans are seen,
through noise of {settings["noise"]:.0%} of their size. What a squared state costs him, in units of the squared control,
and the length of the pendulum or pole are unknown: they are parameters of an optimal-control layer, whose plans are
brought close to his by {settings["steps"]} steps of Adam. <i>{DIFFERENCES}</i> has the same layer with central
differences for a gradient, <i>{CHEAP}</i> the paper's approximation, for which the dynamics are constraints too;
<i>{REGULATOR}</i> is a layer that knows no limit and takes the system for linear, and <i>{KNOWN}</i> is the
same with the true parameters.</p>
<p>Then each drives the true system for {settings["drive"]} steps from {settings["count"]} states that are held out: it
plans, does the first step, and plans again; at the pendulum it looks but every {SYSTEMS["pendulum"].blind * DT:g}
seconds, and does so much of a plan. (Who looks at it in every step drives within some per cent of the expert whatever
he believes, as each plan makes up for the one before.) Costs count by the true parameters, relative to the expert's,
who drives in the same way; as plans end sooner than drives, his cost is not the least that is possible. <i>Wrong
by</i> is the mean difference of logarithms from the truth; <i>plans apart</i> the root of the mean squared difference
from the expert's plans, in units of the limit and of the initial states; <i>{BEFORE}</i> is where all begin, also with
the truth about some of the parameters. {settings["seeds"]} seeds,
each with its own truth. Times are seconds of the processor, on one thread, without what a layer records when it is
first called.</p>"""


def pictures(record: Record) -> list[Picture]:
    """Drives before and after, and the course of training."""
    drives = "Angle and control of a held-out problem: expert, before and after training"
    courses = "The distance of held-out plans in training, by seconds"
    return [
        Picture(
            "drives",
            (9.0, 5.2),
            partial(drive_figure, record),
            drives,
            f"{drives}, in which the expert is longest at the limit (dotted)",
            wide=True,
        ),
        Picture(
            "courses",
            (9.0, 3.9),
            partial(course_figure, record),
            courses,
            f"{courses}; seeds light, mean dark",
            wide=True,
        ),
    ]


def drive_figure(record: Record, figure: Figure, theme: Theme) -> None:
    """A column for each system: the angle above, the control below."""
    axes = figure.subplots(2, len(record["cases"]), squeeze=False, sharex="col")
    for (above, below), case in zip(axes.T, record["cases"], strict=True):
        for method, (label, colour, line, width) in SHOWN.items():
            for ax, what in ((above, "angle"), (below, "control")):
                style = {"color": colour or theme.grid, "linestyle": line, "linewidth": width}
                ax.plot(case["drives"][method][what], label=label, **style)
        angles = case["drives"][EXPERT]["angle"]
        above.set_ylim(-1.2 * max(map(abs, angles)), 1.2 * max(map(abs, angles)))
        above.set_title(case["system"], fontsize=11)
        for sign in (-1, 1):
            below.axhline(sign * case["limit"], color=theme.ink, linewidth=0.8, linestyle=":")
        below.set_xlabel("step")
        plain(above, theme)
        plain(below, theme)
    axes[0, 0].set_ylabel("angle from upright")
    axes[1, 0].set_ylabel("control")
    named = axes[0, 0].get_legend_handles_labels()
    figure.legend(*named, loc="outside upper center", ncols=3, frameon=False, fontsize=9.5)


def course_figure(record: Record, figure: Figure, theme: Theme) -> None:
    """The mean squared distance of held-out plans against the time of training."""
    (axes,) = figure.subplots(1, len(systems(record)), squeeze=False)
    for ax, system in zip(axes, systems(record), strict=True):
        for method in METHODS:
            curves: Sequence[Record] = values(record, system, method, "curve")  # type: ignore[assignment]
            draw_runs(ax, method, *([curve[name] for curve in curves] for name in ("held_out", "seconds")))
        ax.set(xscale="log", yscale="log", xlabel="seconds of training")
        ax.set_title(system, fontsize=11)
        plain(ax, theme)
    axes[0].set_ylabel("squared distance of held-out plans")
    legend(axes[0])
