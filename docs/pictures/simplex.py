"""Draw the picture of the front page: a batch projected onto the simplex, and the gradient through the projection.

    python docs/pictures/simplex.py     # writes simplex-light.svg and simplex-dark.svg beside this file

Points of the plane u1 + u2 + u3 = 1 are drawn in two coordinates, in which the simplex is a triangle.
"""

from __future__ import annotations

import math
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from theme import ARROW, FILL, INK, POINT, THEMES, svg
from torch import Tensor

from declarative import DeclarativeNode

# Orthonormal axes of the plane, (2, 3), and the corners of the simplex in them, (3, 2).
AXES = torch.tensor([[-1.0, 1.0, 0.0], [-1.0, -1.0, 2.0]], dtype=torch.float64)
AXES = AXES / AXES.norm(dim=1, keepdim=True)
CENTRE = torch.full((3,), 1 / 3, dtype=torch.float64)
CORNERS = AXES.T - CENTRE @ AXES.T
TARGET = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)

project = DeclarativeNode(
    lambda x, u: (u - x).square().sum(),
    equality=lambda x, u: u.sum() - 1,
    inequality=lambda x, u: -u,
    start=3,
)


def in_space(points: Tensor) -> Tensor:  # (batch, 2) -> (batch, 3)
    """Points of the plane as vectors of three entries."""
    return CENTRE + points @ AXES


def in_plane(vectors: Tensor) -> Tensor:  # (batch, 3) -> (batch, 2)
    """Vectors of three entries in the plane's coordinates."""
    return (vectors - CENTRE) @ AXES.T


def around(count: int = 12, seed: int = 4) -> Tensor:  # (count, 2)
    """A batch of points around the simplex."""
    noise = torch.rand(count, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    angle = 2 * math.pi * (torch.arange(count) + 0.6 * noise[:, 0]) / count
    return (0.62 + 0.5 * noise[:, 1:]) * torch.stack([angle.cos(), angle.sin()], -1)


def grid(side: int = 11, reach: float = 1.1) -> Tensor:  # (side^2, 2)
    """Where the gradient is drawn."""
    ticks = torch.linspace(-reach, reach, side, dtype=torch.float64)
    return torch.cartesian_prod(ticks, ticks)


def descent(points: Tensor) -> Tensor:  # (batch, 2) -> (batch, 2)
    """The way down for x, where the loss is |y(x) - target|^2."""
    x = in_space(points).requires_grad_()
    loss = (project(x) - TARGET).square().sum()
    (gradient,) = torch.autograd.grad(loss, x)
    return -gradient @ AXES.T


def draw(theme: str, path: Path) -> None:
    """Both panels, in the colours of a light or a dark page."""
    ink = INK[theme]
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 4.6), layout="constrained")
    for axes, title in (
        (left, "forward: from x (hollow) to the nearest point of the simplex"),
        (right, "backward: how x should move to bring y to the star"),
    ):
        axes.set(aspect="equal", xlim=(-1.3, 1.3), ylim=(-1.35, 1.42), xticks=[], yticks=[])
        axes.text(0, 1.3, title, color=ink, fontsize=9.5, ha="center", va="bottom")
        axes.spines[:].set_visible(False)
        axes.fill(*CORNERS.T.tolist(), facecolor=FILL[theme], edgecolor=ink, linewidth=1.2, zorder=0)
    _draw_forward(left, theme)
    _draw_backward(right, theme)
    path.write_text(svg(figure, "simplex"))


def _draw_forward(axes: Axes, theme: str) -> None:
    points = around()
    found = in_plane(project(in_space(points)))
    for x, y in zip(points.tolist(), found.tolist(), strict=True):
        axes.annotate("", y, x, arrowprops={"arrowstyle": "-", "color": INK[theme], "linewidth": 0.8, "alpha": 0.6})
    axes.scatter(*points.T.tolist(), s=26, facecolor="none", edgecolor=POINT[theme], linewidth=1.2)
    axes.scatter(*found.T.tolist(), s=26, color=POINT[theme], zorder=3)


def _draw_backward(axes: Axes, theme: str) -> None:
    points = grid()
    step = descent(points)
    moves = step.norm(dim=1) > 1e-9
    axes.quiver(*points[moves].T.tolist(), *step[moves].T.tolist(), color=ARROW[theme], width=0.005, scale=14, zorder=2)
    axes.scatter(*points[~moves].T.tolist(), s=5, color=INK[theme], alpha=0.5)
    axes.scatter(*in_plane(TARGET[None]).T.tolist(), s=110, marker="*", color=POINT[theme], zorder=3)
    note = "beside an edge it runs along the edge; beside a corner (dots) it is zero"
    axes.text(0, -1.33, note, color=INK[theme], fontsize=8, ha="center", va="bottom")


if __name__ == "__main__":
    for theme in THEMES:
        draw(theme, Path(__file__).parent / f"simplex-{theme}.svg")
