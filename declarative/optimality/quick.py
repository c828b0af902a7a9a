"""The verdict where there is nothing to doubt: without a decision by values, called or replayed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from ..problem import Batch
from ..structure import Structure, stores_hessian
from .assessment import Assessment
from .conditions import EXACT, Terms, optimality_tolerance
from .residuals import Measured, Residuals, conclusion, measured

CERTAIN = 4  # of what is seen does not follow from a system that may be singular
BEYOND = 10  # steps, from where the next one leads back
LINEAR = 0.5  # of it, relatively, may be something else


@dataclass(frozen=True)
class QuickVerdict:
    """What is seen of a batch of points without a decision by values.

    By name: ``u`` and ``given``, the points and multipliers; ``moved``: whether a point was moved before; ``exact``:
    whether it is a solution to the last digits, unless curvature deceives; ``trusted``: whether the step is Newton's to
    a minimum; ``step`` and ``change``, of the multipliers with the opposite sign; ``faint``: which steps are short
    beside what changes f alone; the verdict; and what was measured and looked at.

    ``conclusive``: whether there is nothing else to be said, (batch,).
    """

    batch: Batch
    travel: Tensor | None
    seen: Sequence[Tensor]
    conclusive: Tensor

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
    *("u", "given", "moved", "exact", "trusted", "step", "change", "faint"),
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
        near = found.distance <= EXACT * torch.finfo(step.dtype).eps
        balanced = found.stationarity <= optimality_tolerance(step.dtype)
        exact = trusted & near & balanced & ~(here.cancelling | here.spurious)
        if travel is not None:
            exact = exact & here.is_short_by_itself(step, dtype)
        faint = here.is_short_by_energy_alone(step, dtype)
        parts = (
            getattr(part, name) for part, names in ((here.terms, OF_TERMS), (here, OF_RESIDUALS)) for name in names
        )
        verdict = conclusion(here, found, dtype)
        return u, given, moved, exact, trusted, step, change, faint, *verdict, *found, hessian, *parts

    name = ("quick verdict", dtype, structure, move)
    certain = 0 if move else CERTAIN
    seen = batch.evaluate(name, look_at, u, given, travel, by_problem=True, compared=certain, lazy=True)
    found = QuickVerdict(batch.without_constants(), travel, seen, seen[SEEN.index("exact")])
    doubtful = found["faint"].any(-1)
    if not bool((found.conclusive & doubtful).any()):
        return replace(found, conclusive=found.conclusive & ~doubtful)
    return replace(found, conclusive=found.conclusive & (~doubtful | _leads_back(found)))


def _leads_back(seen: QuickVerdict) -> Tensor:  # (batch,)
    """Whether slopes change as curvature says far beyond the faint steps, so that the minimum lies where these lead.

    A term that dies away for ever, such as an exponential, has short steps too where it is below the rounding errors
    of others, but all of them lead onward. Where an unknown is zero, whatever rounding errors have left of it, the next
    step from ten steps ahead leads nine back.
    """
    names = ("u", "multipliers", "step", "change", "hessian", "jacobian", "active", "faint")
    rows = [seen[name] for name in names]
    back: Tensor = seen.batch.evaluate("leads back", _next_leads_back, *rows, compared=0, by_problem=True)
    return back


def _next_leads_back(batch: Batch, u: Tensor, *rest: Tensor) -> Tensor:
    multipliers, step, change, hessian, jacobian, active, faint = rest
    _, left, values, _ = batch.slopes(u + BEYOND * step, multipliers - change)
    right = (-left, -torch.where(active, values, 0.0))
    onward, _, trusted = batch.layout.solve_active(hessian, jacobian, active, right)
    expected = (1 - BEYOND) * step
    back = (onward - expected).abs() <= LINEAR * expected.abs()
    return trusted & (back | ~faint).all(-1)
