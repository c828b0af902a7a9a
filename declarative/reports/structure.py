"""Where the derivatives of a problem can differ from zero, what that makes of its linear systems, and a drawing."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from typing import Any

import numpy as np
from torch import Tensor

from ..forward import Call, outlined
from ..linear import DENSE
from ..linear.sparse import NoPattern, SparseLayout
from ..problem import Batch
from ..structure import MATRIX_FREE_FROM, MAX_FILL, SPARSE_FROM, Structure, fill_ratio, sparse_layout
from .table import as_html

INCHES = 4.0  # of a panel of the drawing
FINEST = 0.6  # points: a smaller mark would not be seen
Panel = tuple[str, tuple[int, int], Any, Any]  # a title, the shape of a matrix, the rows and columns of its entries


@dataclass(frozen=True)
class StructureReport:
    """What is known of the derivatives of a problem before it is solved. Prints as a table.

    Attributes:
        unknowns: m.
        equalities: how many.
        inequalities: how many, without bounds.
        bounds: how many.
        chosen: how H and A are stored: ``"sparse"``, ``"dense"``, ``"diagonal"``, ``"matrix-free"``, or by the layer.
        reason: for that choice.
        layout: the entries that can differ from zero and the analysis of the factor; None if that is not known.
        unknown: why, then.
    """

    unknowns: int
    equalities: int
    inequalities: int
    bounds: int
    chosen: str
    reason: str
    layout: SparseLayout | None
    unknown: str = ""

    def lines(self) -> list[tuple[str, str]]:
        """What there is to say, by name."""
        counts = {"equalities": self.equalities, "inequalities": self.inequalities, "bounds": self.bounds}
        constraints = ", ".join(f"{count:,} {name}" for name, count in counts.items() if count) or "none"
        size = [("unknowns", f"{self.unknowns:,}"), ("constraints", constraints)]
        found = [("pattern", f"not known: {self.unknown}")] if self.layout is None else _lines_of(self.layout)
        return [*size, *found, *self._dependent(), ("chosen", f"{self.chosen}, because {self.reason}")]

    def _dependent(self) -> list[tuple[str, str]]:
        unpaired = () if self.layout is None else self.layout.kkt.symbolic.unpaired
        count = sum(int(row) < self.equalities for row in unpaired)
        return [("dependent", f"{count:,} of the equalities have no unknown left to satisfy them")] if count else []

    def __str__(self) -> str:
        lines = self.lines()
        width = max(len(name) for name, _ in lines)
        return "\n".join(f"{name:<{width}}  {value}" for name, value in lines)

    def _repr_html_(self) -> str:
        return as_html(["", "structure"], [list(line) for line in self.lines()])

    def plot(self, path: str | PathLike[str]) -> None:
        """Save a drawing of the entries of H, of A, and of the factor in the order of elimination, as PNG.

        Args:
            path: of the file.

        Raises:
            ValueError: the pattern is not known.
            ImportError: Matplotlib is not installed.
        """
        if self.layout is None:
            raise ValueError(f"there is nothing to draw, the pattern is not known: {self.unknown}.")
        try:
            from matplotlib.figure import Figure
        except ImportError as error:
            raise ImportError("a drawing needs Matplotlib: pip install matplotlib.") from error
        panels = _panels(self.layout)
        figure = Figure(figsize=(INCHES * len(panels), INCHES + 0.6), layout="constrained")
        for axes, panel in zip(np.atleast_1d(figure.subplots(1, len(panels))), panels, strict=True):
            _draw(axes, *panel)
        figure.savefig(path, dpi=120, format="png")


def report_structure(call: Call, xs: tuple[Tensor, ...]) -> StructureReport:
    """Look at the functions of a call, without solving anything."""
    batch, u = outlined(call, xs)
    bounds = 0 if batch.problem.bounds is None else batch.problem.bounds.count(batch.m)
    layout, unknown = None, "there are no problems to look at"
    if batch.size:
        try:
            layout = sparse_layout(batch, u)
        except NoPattern as error:
            unknown = str(error)
    chosen, reason = _choice(call, batch, u, layout, unknown)
    return StructureReport(
        batch.m, batch.p, batch.q - bounds, bounds, chosen, reason, layout, "" if layout else unknown
    )


def _choice(call: Call, batch: Batch, u: Tensor, layout: SparseLayout | None, unknown: str) -> tuple[str, str]:
    """How the derivatives of a call are stored, and why."""
    structure: Structure = call.plan.structure
    if call.plan.layouts is None:
        return "the layer's own system", "it was made for this problem"
    if structure != "auto":
        return structure, f"structure={structure!r} was asked for"
    share = "" if layout is None else f"{100 * MAX_FILL[layout.kkt.kernel]:.0f} % of the entries of a dense one"
    if layout is not None and call.plan.layouts.find(batch, u, structure) is not DENSE:
        return "sparse", f"the factor has less than {share}"
    if batch.m + batch.k < SPARSE_FROM:
        return "dense", f"there are fewer than {SPARSE_FROM} unknowns and constraints"
    reason = unknown if layout is None else f"the factor has more than {share}"
    return ("dense, but first without a matrix" if batch.m > MATRIX_FREE_FROM else "dense"), reason


def _lines_of(layout: SparseLayout) -> list[tuple[str, str]]:
    """The entries of H, of A and of the factor, and what has made them many."""
    hessian, jacobian, symbolic = layout.pattern.hessian, layout.pattern.jacobian, layout.kkt.symbolic
    k, m = jacobian.shape
    entries = int((hessian.rows != hessian.columns).sum()) + len(jacobian)
    added, share = symbolic.fill - entries, 100 * fill_ratio(layout)
    lines = [
        ("H", _described(len(hessian), m * (m + 1) // 2, "entries of a triangle", layout.hessian_recipe.count)),
        ("A", _described(len(jacobian), k * m, "entries", layout.jacobian_recipe.count)),
        (
            "factor",
            f"{symbolic.fill:,} entries below the diagonal, {added:,} of them fill; {share:.2g} % of a dense one",
        ),
    ]
    if layout.pattern.without_rule:
        names = ", ".join(layout.pattern.without_rule)
        lines.append(("taken as dense", f"{names}: what they depend on is not known in detail"))
    return lines if k else [lines[0], *lines[2:]]


def _described(count: int, total: int, entries: str, colours: int) -> str:
    return f"{count:,} of {total:,} {entries} can differ from zero, {colours} colour{'s' * (colours != 1)}"


def _panels(layout: SparseLayout) -> list[Panel]:
    """H, A if there are constraints, and L, each with its entries."""
    hessian, jacobian, symbolic = layout.pattern.hessian, layout.pattern.jacobian, layout.kkt.symbolic
    below = hessian.rows != hessian.columns
    both = (
        np.concatenate([hessian.rows, hessian.columns[below]]),
        np.concatenate([hessian.columns, hessian.rows[below]]),
    )
    diagonal = np.arange(symbolic.size)
    factor = np.concatenate([symbolic.rows, diagonal]), np.concatenate([symbolic.columns, diagonal])
    panels: list[Panel] = [
        (f"H: {len(both[0]):,} entries", hessian.shape, *both),
        (f"A: {len(jacobian):,} entries", jacobian.shape, jacobian.rows, jacobian.columns),
        (f"factor of the KKT matrix: {len(factor[0]):,} entries", (symbolic.size, symbolic.size), *factor),
    ]
    return [panel for panel in panels if panel[1][0]]


def _draw(axes: Any, title: str, shape: tuple[int, int], rows: Any, columns: Any) -> None:
    side = max(FINEST, 0.8 * 72 * INCHES / max(shape))
    axes.plot(columns, rows, linestyle="none", marker="s", markersize=side, markeredgewidth=0, color="#1f4e9c")
    axes.set_xlim(-0.5, shape[1] - 0.5)
    axes.set_ylim(shape[0] - 0.5, -0.5)
    axes.set_aspect("equal" if max(shape) < 4 * min(shape) else "auto")
    axes.set_title(title, fontsize=10)
