"""Draw what dropping the constraints from a backward pass means: steps of a solution along a curve, and off it.

    python docs/pictures/geometry.py     # writes geometry-light.svg and geometry-dark.svg beside this file

The problem is the nearest point of a circle. The exact gradient moves x along the tangent at y, the only way in which y
can go; the unconstrained one moves x as if y could leave the circle, and what it moves across the tangent is lost.
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

X = torch.tensor([1.45, 0.95], dtype=torch.float64)
TARGETS = ((-0.35, "the wanted point is near"), (2.6, "the wanted point is on the far side"))
STEP = 0.5

circle = DeclarativeNode(
    lambda x, u: (u - x).square().sum() / 2, lambda x, u: (u.square().sum() - 1) / 2, start=torch.tensor([0.6, 0.8])
)


def gradient(rule: str, target: Tensor) -> Tensor:  # (2,) -> (2,)
    """The gradient in x of half the squared distance of y(x) to a target, by a rule."""
    x = X.clone().requires_grad_()
    loss = (circle.with_gradient(rule)(x[None])[0] - target).square().sum() / 2
    (found,) = torch.autograd.grad(loss, x)
    return found


def draw(theme: str) -> str:
    """Both targets, as SVG."""
    figure, panels = plt.subplots(1, 2, figsize=(9, 4.2), layout="constrained")
    for axes, (angle, title) in zip(panels, TARGETS, strict=True):
        target = torch.tensor([math.cos(angle), math.sin(angle)], dtype=torch.float64)
        _draw_panel(axes, target, theme)
        axes.set_title(title, color=INK[theme], fontsize=9.5, y=0.9)
    names = panels[0].get_legend_handles_labels()
    figure.legend(*names, frameon=False, fontsize=9, labelcolor=INK[theme], loc="outside lower center", ncols=2)
    return svg(figure, "geometry")


def _draw_panel(axes: Axes, target: Tensor, theme: str) -> None:
    ink = INK[theme]
    axes.set(aspect="equal", xlim=(-1.3, 2.3), ylim=(-1.25, 1.75), xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
    turns = torch.linspace(0, 2 * math.pi, 200, dtype=torch.float64)
    axes.fill(turns.cos().tolist(), turns.sin().tolist(), facecolor=FILL[theme], edgecolor=ink, linewidth=1.2, zorder=0)
    y = circle(X[None])[0]
    axes.plot(*torch.stack([X, y]).T.tolist(), color=ink, linewidth=0.8, alpha=0.6)
    axes.scatter(*X.tolist(), s=30, facecolor="none", edgecolor=POINT[theme])
    axes.scatter(*y.tolist(), s=30, color=POINT[theme], zorder=3)
    axes.scatter(*target.tolist(), s=110, marker="*", color=POINT[theme], zorder=3)
    for name, point, way in (("x", X, (8, 0)), ("y(x)", y, (-24, -4)), ("wanted", target, (8, -10))):
        axes.annotate(name, point.tolist(), way, textcoords="offset points", color=ink, fontsize=9)
    for rule, colour in (("exact", POINT[theme]), ("unconstrained", ARROW[theme])):
        step = -STEP * gradient(rule, target)
        after = circle((X + step)[None])[0]
        arrow = {"arrowstyle": "-|>", "color": colour, "linewidth": 1.8, "shrinkA": 0, "shrinkB": 0}
        axes.annotate("", (X + step).tolist(), X.tolist(), arrowprops=arrow)
        axes.plot(*torch.stack([X + step, after]).T.tolist(), color=colour, linewidth=0.8, linestyle=(0, (3, 2)))
        axes.plot([], [], color=colour, label=f"step of x by the {rule} gradient")
        axes.scatter(*after.tolist(), s=22, color=colour, zorder=4)


if __name__ == "__main__":
    for theme in THEMES:
        (Path(__file__).parent / f"geometry-{theme}.svg").write_text(draw(theme))
