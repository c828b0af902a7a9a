"""Draw the pictures of the gallery: a solution of each problem, and an input that is learned through it.

The problems are those of the page: its blocks are run in order. For each one the first input is moved away, and found
again by gradient descent through the problem from nothing but the solution that is wanted.

    python docs/pictures/gallery.py FOLDER     # writes a light and a dark picture of every problem into FOLDER
"""

from __future__ import annotations

import math
import re
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from theme import ARROW, FILL, INK, POINT, THEMES, svg
from torch import Tensor

from declarative import NumericalWarning

PAGE = Path(__file__).parents[1] / "gallery.md"
BLOCK = re.compile(r"^## (.*?)$.*?```python\n(.*?)```", re.DOTALL | re.MULTILINE)
ROLES = ("wanted", "before", "after")
STEPS = 60


@dataclass(frozen=True)
class Brush:
    """The axes of a picture, and the colour and strokes of one of its three roles."""

    axes: Axes
    role: str
    theme: str

    @property
    def first(self) -> bool:
        """Whether this is drawn first: scenery belongs here, once."""
        return self.role == "wanted"

    @property
    def ink(self) -> str:
        """The colour of text and scenery."""
        return INK[self.theme]

    @property
    def stroke(self) -> dict[str, Any]:
        """Keyword arguments of a line."""
        wide = {"color": POINT[self.theme], "linewidth": 6, "alpha": 0.35, "solid_capstyle": "round"}
        return {
            "wanted": wide,
            "before": {"color": INK[self.theme], "linewidth": 1, "linestyle": (0, (3, 2)), "alpha": 0.7},
            "after": {"color": ARROW[self.theme], "linewidth": 1.6},
        }[self.role]

    def line(self, xs: Sequence[float], ys: Sequence[float], marker: str | None = None) -> None:
        """A line in the manner of the role."""
        self.axes.plot(xs, ys, label=self.role, marker=marker, markersize=4, **self.stroke)

    def bars(self, values: Tensor, names: Sequence[str]) -> None:
        """One short horizontal stroke over each name."""
        for i, value in enumerate(values.tolist()):
            self.axes.plot([i - 0.3, i + 0.3], [value, value], label=self.role if i == 0 else None, **self.stroke)
        if self.first:
            self.axes.set_xticks(range(len(names)), names)
            self.axes.set_xlim(-0.6, len(names) - 0.4)
            self.axes.axhline(0, color=self.ink, linewidth=0.5)

    def scatter(self, points: Tensor, marker: str = "o") -> None:
        """Points of the plane in the colour of the role; those that are wanted are large."""
        size = 60 if self.role == "wanted" else 16
        self.axes.scatter(*points.T.tolist(), s=size, marker=marker, color=self.stroke["color"], alpha=0.6, linewidth=0)

    def plane(self) -> None:
        """Both axes in one scale, without ticks."""
        self.axes.set_aspect("equal", adjustable="datalim")
        self.axes.set(xticks=[], yticks=[])


Namespace = dict[str, Any]
Draw = Callable[[Brush, Sequence[Tensor], Tensor, Namespace], None]


def _bars(*names: str, scale: str = "") -> Draw:
    """One number of the solution under each name."""

    def draw(brush: Brush, _: Sequence[Tensor], y: Tensor, __: Namespace) -> None:
        brush.bars(y[0], names)
        brush.axes.set_ylabel(scale)

    return draw


def _series(xlabel: str, ylabel: str, readings: bool = False) -> Draw:
    """The solution over its index; the input that led to it as points, where it is a series as well."""

    def draw(brush: Brush, inputs: Sequence[Tensor], y: Tensor, _: Namespace) -> None:
        values = y[0].flatten().tolist()
        if readings and brush.role == "after":
            brush.axes.scatter(range(len(values)), inputs[0][0].tolist(), s=14, facecolor="none", edgecolor=brush.ink)
        brush.line(range(len(values)), values)
        brush.axes.set(xlabel=xlabel, ylabel=ylabel)

    return draw


def _control(brush: Brush, _: Sequence[Tensor], y: Tensor, __: Namespace) -> None:
    force = y[0, :, 0].tolist()
    brush.axes.stairs(force, baseline=None, label=brush.role, **_without_caps(brush.stroke))
    brush.axes.set(xlabel="step", ylabel="force, at most 1")


def _pose(brush: Brush, inputs: Sequence[Tensor], y: Tensor, _: Namespace) -> None:
    angle, shift = y[0, 0], y[0, 1:]
    turn = torch.stack([angle.cos(), angle.sin(), -angle.sin(), angle.cos()]).view(2, 2)
    corners = inputs[0][0] @ turn + shift
    brush.line(*torch.cat([corners, corners[:1]]).T.tolist())
    if brush.first:
        brush.axes.scatter(*inputs[1][0].T.tolist(), s=14, facecolor="none", edgecolor=brush.ink)
    brush.plane()


def _chain(brush: Brush, _: Sequence[Tensor], y: Tensor, names: Namespace) -> None:
    ends = names["ENDS"]
    brush.line(*torch.cat([ends[:1], y[0], ends[1:]]).T.tolist(), marker="o")
    brush.plane()


def _bodies(brush: Brush, inputs: Sequence[Tensor], _: Tensor, names: Namespace) -> None:
    found = names["near"](*inputs)
    turns = torch.linspace(0, 2 * math.pi, 100)
    brush.line(*(inputs[0][0] + inputs[1][0] * torch.stack([turns.cos(), turns.sin()], -1)).T.tolist())
    brush.axes.plot(*torch.stack([found["a"][0], found["b"][0]]).T.tolist(), **brush.stroke)
    if brush.first:
        brush.axes.fill([-1, 1, 1, -1], [-1, -1, 1, 1], facecolor=FILL[brush.theme], edgecolor=brush.ink, zorder=0)
    brush.plane()


def _arm(brush: Brush, _: Sequence[Tensor], y: Tensor, __: Namespace) -> None:
    turns = y[0].cumsum(0)
    joints = torch.cat([torch.zeros(1, 2), torch.stack([turns.cos(), turns.sin()], -1).cumsum(0)])
    brush.line(*joints.T.tolist(), marker="o")
    brush.plane()


def _margin(brush: Brush, inputs: Sequence[Tensor], _: Tensor, names: Namespace) -> None:
    found = names["svm"](*inputs)
    w, b = found["w"][0], found["b"][0]
    middle, along = -b * w / (w @ w), torch.stack([-w[1], w[0]]) / w.norm()
    brush.line(*torch.stack([middle - 2 * along, middle + 2 * along]).T.tolist())
    for label, marker in ((1.0, "o"), (-1.0, "s")):
        brush.scatter(inputs[0][0][names["LABELS"] == label], marker)
    brush.plane()


def _line_fit(brush: Brush, inputs: Sequence[Tensor], y: Tensor, names: Namespace) -> None:
    times = names["times"]
    brush.line(times.tolist(), (y[0, 0] * times + y[0, 1]).tolist())
    brush.scatter(torch.stack([times, inputs[0][0]], -1))
    brush.axes.set(xlabel="time", ylabel="reading")


def _ball(brush: Brush, inputs: Sequence[Tensor], y: Tensor, _: Namespace) -> None:
    sides, room = inputs[0][0], inputs[1][0]
    pairs = ((0, 1), (1, 2), (2, 0))
    corners = torch.stack([torch.linalg.solve(sides[list(two)], room[list(two)]) for two in pairs])
    brush.line(*torch.cat([corners, corners[:1]]).T.tolist())
    turns = torch.linspace(0, 2 * math.pi, 100)
    circle = y[0, :2] + y[0, 2] * torch.stack([turns.cos(), turns.sin()], -1)
    brush.axes.plot(*circle.T.tolist(), **brush.stroke)
    brush.plane()


def _path(brush: Brush, _: Sequence[Tensor], y: Tensor, __: Namespace) -> None:
    places = torch.tensor([[0.0, 0.0], [1.0, 0.7], [1.0, -0.7], [2.0, 0.0]])
    for (start, end), flow in zip(((0, 1), (0, 2), (1, 2), (1, 3), (2, 3)), y[0].tolist(), strict=True):
        offset = {"wanted": 0.0, "before": -0.06, "after": 0.06}[brush.role]
        stroke = {**brush.stroke, "linewidth": (9 if brush.first else 4) * flow + 0.1}
        brush.axes.plot(*(places[[start, end]] + torch.tensor([0.0, offset])).T.tolist(), **stroke)
    if brush.first:
        brush.axes.scatter(*places.T.tolist(), s=90, color=brush.ink, zorder=3)
    brush.axes.plot([], [], label=brush.role, **brush.stroke)
    brush.plane()


def _without_caps(stroke: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in stroke.items() if name != "solid_capstyle"}


# How a problem is drawn, what its first input is called, and how far that is moved away at first.
PICTURES: dict[str, tuple[Draw, str, float]] = {
    "Portfolio": (_bars("a", "b", "c", "d", scale="weight"), "returns", 0.3),
    "Control": (_control, "start", 0.5),
    "Pose from points": (_pose, "points", 0.3),
    "Hanging chain": (_chain, "lengths", 0.15),
    "Power flow": (_bars("angle 1", "angle 2", "size 1", "size 2"), "power", 0.4),
    "Hyper-parameters": (_bars("first", "second", "third", scale="weight"), "penalties", 1.5),
    "Entmax": (_bars("a", "b", "c", "d", scale="attention"), "scores", 0.5),
    "Isotonic regression": (_series("index", "value", readings=True), "readings", 0.3),
    "A market": (_bars("good 1", "good 2", scale="price"), "budgets", 0.5),
    "Distance of two bodies": (_bodies, "centre", 0.8),
    "Inverse kinematics": (_arm, "reach", 0.5),
    "Support vectors": (_margin, "points", 0.5),
    "Denoising": (_series("index", "value", readings=True), "readings", 0.4),
    "A network as energy": (_bars("a", "b", "c", scale="share"), "features", 1.5),
    "L1 fit": (_line_fit, "readings", 0.6),
    "Group lasso": (_bars("first", "second", scale="coefficient"), "weight", 0.5),
    "Hinge": (_series("index", "value", readings=True), "readings", 0.6),
    "Total variation": (_series("index", "value", readings=True), "readings", 0.5),
    "Chebyshev centre": (_ball, "sides", 0.2),
    "A shortest path": (_path, "costs", 0.8),
}


@dataclass(frozen=True)
class Lesson:
    """A problem's three solutions, each with the inputs that led to it, and the loss at each step between them."""

    inputs: dict[str, tuple[Tensor, ...]]
    solutions: dict[str, Tensor]
    losses: list[float]


def learn(problem: Callable[..., Tensor], inputs: Sequence[Tensor], moved: float) -> Lesson:
    """Move the first input away, and learn it again from the solution that is wanted."""
    wanted = problem(*inputs).detach()
    noise = torch.randn(inputs[0].shape, generator=torch.Generator().manual_seed(3))
    first = (inputs[0] + moved * noise.clamp(-1, 1)).requires_grad_()
    before = first.detach().clone()
    optimiser, losses = torch.optim.Adam([first], lr=0.06), []
    for _ in range(STEPS):
        optimiser.zero_grad()
        loss = (problem(first, *inputs[1:]) - wanted).square().sum()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    rest, after = tuple(inputs[1:]), first.detach()
    all_inputs = {"wanted": tuple(inputs), "before": (before, *rest), "after": (after, *rest)}
    with torch.no_grad():
        solutions = {role: problem(*xs) for role, xs in all_inputs.items()}
    return Lesson(all_inputs, solutions, losses)


def draw(name: str, lesson: Lesson, names: Namespace, theme: str) -> str:
    """A picture as SVG: the three solutions on the left, the loss on the right."""
    draw_solution, learned, _ = PICTURES[name]
    figure, (left, right) = plt.subplots(1, 2, figsize=(7.2, 2.5), width_ratios=(2.2, 1), layout="constrained")
    for role in ROLES:
        draw_solution(Brush(left, role, theme), lesson.inputs[role], lesson.solutions[role], names)
    left.set_title("solution", fontsize=9)
    right.semilogy(lesson.losses, color=ARROW[theme], linewidth=1.6)
    right.set_title(f"loss while learning the {learned}", fontsize=9)
    right.set_xlabel("step")
    left.legend(frameon=False, fontsize=7, labelcolor=INK[theme], loc="best")
    for axes in (left, right):
        axes.tick_params(colors=INK[theme], labelsize=7, which="both")
        for text in (axes.title, axes.xaxis.label, axes.yaxis.label):
            text.set_color(INK[theme])
        axes.xaxis.label.set_size(8)
        axes.yaxis.label.set_size(8)
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color(INK[theme])
    return svg(figure, name)


def file_name(name: str, theme: str) -> str:
    """Where the picture of a problem is, below the folder of the pictures."""
    return f"gallery-{name.lower().replace(' ', '-')}-{theme}.svg"


def alternative_text(name: str) -> str:
    """What the picture shows, for those who cannot see it."""
    learned = PICTURES[name][1]
    return (
        f"{name}: the solution that is wanted, the one with other {learned}, and the one after learning the {learned} "
        "from the wanted solution; beside them the loss over the steps."
    )


def pictures(page: str) -> dict[str, str]:
    """Every picture of the gallery by file name, as SVG, from the page's own blocks."""
    names: Namespace = {}
    found = {}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NumericalWarning)  # of kinks that the learning passes
            for name, code in BLOCK.findall(page):
                exec(compile(code, name, "exec"), names)
                torch.set_default_dtype(torch.float64)  # the page's last block sets it back
                lesson = learn(names["problem"], names["inputs"], PICTURES[name][2])
                found |= {file_name(name, theme): draw(name, lesson, names, theme) for theme in THEMES}
    finally:
        torch.set_default_dtype(torch.float32)
    return found


if __name__ == "__main__":
    for file, text in pictures(PAGE.read_text()).items():
        (Path(sys.argv[1]) / file).write_text(text)
