"""The verdict where there is nothing to doubt: without a decision by values, called or replayed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from ..problem import Batch
from ..structure import Structure, stores_hessian
from .assessment import Assessment
from .conditions import EXACT, Terms, optimality_tolerance
from .residuals import Measured, Residuals, conclusion, measured

CERTAIN = 4  # of what is seen does not follow from a system that may be singular


@dataclass(frozen=True)
class QuickVerdict:
    """What is seen of a batch of points without a decision by values.

    By name: ``u`` and ``given``, the points and multipliers; ``moved``: whether a point was moved before;
    ``conclusive``: whether there is nothing else to be said, the point is a solution to the last digits; ``trusted``:
    whether the step is Newton's to a minimum; ``step`` and ``change``, of the multipliers with the opposite sign; the
    verdict; and what was measured and looked at.
    """

    batch: Batch
    travel: Tensor | None
    seen: Sequence[Tensor]

    def __getitem__(self, name: str) -> Tensor:
        return self.seen[SEEN.index(name)]

    def assessment(self) -> Assessment:
        """The verdict, where it is conclusive."""
        return Assessment(
            self["kept"],
            self["holding"],
            self["kinks"],
            self["stationarity"],
            self["violation"],
            self["residual"],
            self["step"],
            -self["change"],
            self["jacobian"],
            self["hessian"] if bool(self["consistent"].all()) else None,
        )

    def residuals(self) -> Residuals:
        """What was looked at."""
        terms, here = ({name: self[name] for name in names} for names in (OF_TERMS, OF_RESIDUALS))
        everywhere = torch.ones_like(self["given"], dtype=torch.bool)
        system: Any = self.batch.layout.system(self["hessian"], terms["jacobian"], everywhere)
        whole = Terms(
            system=system,
            u=self["u"],
            form=self.batch.layout.jacobian,
            multipliers=self["given"],
            p=self.batch.p,
            travel=self.travel,
            **terms,
        )
        return Residuals(whole, **here)


OF_TERMS = ("gradient", "values", "jacobian", "force", "terms")
OF_RESIDUALS = tuple(one.name for one in fields(Residuals) if one.name != "terms")
VERDICT = ("kept", "holding", "kinks", "residual", "consistent")
SEEN = (
    *("u", "given", "moved", "conclusive", "trusted", "step", "change"),
    *VERDICT,
    *Measured._fields,
    *("hessian", *OF_TERMS, *OF_RESIDUALS),
)
Moved = tuple[Tensor, Tensor, Tensor]  # points, multipliers, and which are others than they were


def quick_verdict(
    batch: Batch,
    u: Tensor,
    given: Tensor,
    dtype: torch.dtype,
    travel: Tensor | None,
    structure: Structure = "auto",
    move: Callable[[Batch, Tensor, Tensor, Tensor | None], Moved] | None = None,
) -> QuickVerdict | None:
    """What is seen of the points; None where H is not stored.

    Everything is a function of each problem by itself, called or replayed. ``move`` may change the points before.
    """
    if not stores_hessian(batch, structure):
        return None

    def look_at(batch: Batch, u: Tensor, given: Tensor, travel: Tensor | None) -> tuple[Tensor, ...]:
        moved = torch.zeros_like(u[:, 0], dtype=torch.bool)
        if move is not None:
            u, given, moved = move(batch, u, given, travel)
        batch = batch.without_constants()  # the verdict is by what the functions are at these points
        here = Residuals.at(batch, u, given, dtype, structure, travel)
        hessian = here.terms.system.stored_hessian()
        assert hessian is not None
        right = (-here.left, -here.gap)
        step, change, trusted = batch.layout.solve_active(hessian, here.terms.jacobian, here.active, right)
        found = measured(here, step, change, dtype)
        exact = found.distance <= EXACT * torch.finfo(step.dtype).eps
        balanced = found.stationarity <= optimality_tolerance(step.dtype)
        doubtful = here.cancelling | here.spurious | here.is_short_by_energy_alone(step, dtype).any(-1)
        conclusive = trusted & exact & balanced & ~doubtful
        if travel is not None:
            conclusive = conclusive & here.is_short_by_itself(step, dtype)
        parts = (
            getattr(part, name) for part, names in ((here.terms, OF_TERMS), (here, OF_RESIDUALS)) for name in names
        )
        verdict = conclusion(here, found, dtype)
        return u, given, moved, conclusive, trusted, step, change, *verdict, *found, hessian, *parts

    name = ("quick verdict", dtype, structure, move)
    certain = 0 if move else CERTAIN
    seen = batch.evaluate(name, look_at, u, given, travel, by_problem=True, compared=certain, lazy=True)
    return QuickVerdict(batch.without_constants(), travel, seen)
