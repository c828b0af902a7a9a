"""What is measured of a case, and whether it holds.

Solutions and gradients must agree with those of cvxpylayers, at settings that make it tight; the gradients also with
finite differences of the solutions and with the dense formula, as a third and a fourth opinion. The gradient that
leaves the constraints out must differ.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from torch import Tensor

from declarative.reports.compare import ComparisonReport, Difference, gradient_floor

from .cases import Case
from .opinions import finite_differences, formula_gradients, gradients

TOLERANCE = 5e-6  # relative, to cvxpylayers
FINITE_TOLERANCE = 1e-7  # to finite differences
FORMULA_TOLERANCE = 1e-9  # to Proposition 2.1
APPROXIMATE = 1e-3  # the gradient without the constraints must be further off than this


@dataclass(frozen=True)
class Row:
    """One input of one case; all differences are relative, the largest of the batch. NaN: not measured."""

    problem: str
    input: str
    solution: float  # ours to cvxpylayers'
    gradient: float  # likewise, with the exact rule
    to_differences: float  # our gradient to finite differences
    reference_to_differences: float  # that of cvxpylayers
    to_formula: float  # ours to Proposition 2.1
    unconstrained: float  # the approximate gradient to that of cvxpylayers
    lowest_cosine: float  # of the approximate gradient
    mean_cosine: float
    holds: str


@dataclass(frozen=True)
class Speed:
    """What a case took, in milliseconds, the shortest of several calls."""

    problem: str
    batch: int
    forward: float
    cvxpylayers_forward: float
    forward_speed_up: float
    backward: float
    cvxpylayers_backward: float
    backward_speed_up: float
    violation: float
    cvxpylayers_violation: float


def judge_case(case: Case, report: ComparisonReport) -> list[Row]:
    """A row for each input."""
    xs = tuple(case.xs.values())
    exact, theirs = report.node.gradients, report.reference.gradients
    approximate = gradients(case.node.with_gradient("unconstrained"), xs, report.v)
    formula = formula_gradients(case.node, xs, report.v)
    rows = []
    for i, name in enumerate(case.xs):
        slopes = finite_differences(case.node, xs, i, report.v)
        floor = gradient_floor(report.v, report.node.y, xs[i])
        cheap = Difference.between("", theirs[i], approximate[i], floor)
        row = Row(
            problem=case.name,
            input=name,
            solution=report.solution.relative.max().item(),
            gradient=report.gradients[i].relative.max().item(),
            to_differences=_far(exact[i], slopes, floor),
            reference_to_differences=_far(theirs[i], slopes, floor),
            to_formula=_far(exact[i], formula[i], floor),
            unconstrained=cheap.relative.max().item(),
            lowest_cosine=cheap.cosine.min().item(),
            mean_cosine=cheap.cosine.mean().item(),
            holds="",
        )
        rows.append(row)
    different = any(row.unconstrained > APPROXIMATE for row in rows)
    return [dataclasses.replace(row, holds=verdict(row, case, different)) for row in rows]


def verdict(row: Row, case: Case, different: bool) -> str:
    """``yes``, or what is wrong; nothing for a reference that is not judged."""
    if not case.judged:
        return ""
    limits = {
        "solution": TOLERANCE,
        "gradient": TOLERANCE,
        "to_differences": FINITE_TOLERANCE,
        "to_formula": FORMULA_TOLERANCE,
    }
    wrong = [
        f"{name.replace('_', ' ')} {getattr(row, name):.1e} > {limit:.0e}"
        for name, limit in limits.items()
        if not getattr(row, name) <= limit
    ]
    if case.constrained and not different:
        wrong.append("the gradient without constraints is the same")
    if not case.constrained and not row.unconstrained <= TOLERANCE:
        wrong.append("there are no constraints, but leaving them out changes the gradient")
    return "; ".join(wrong) or "yes"


def speed_of(case: Case, report: ComparisonReport) -> Speed:
    """In milliseconds."""
    ours, theirs = report.node, report.reference
    forward, backward = report.speed_up
    return Speed(
        problem=case.name,
        batch=len(ours.y),
        forward=1e3 * ours.forward,
        cvxpylayers_forward=1e3 * theirs.forward,
        forward_speed_up=forward,
        backward=1e3 * ours.backward,
        cvxpylayers_backward=1e3 * theirs.backward,
        backward_speed_up=backward,
        violation=ours.violation.max().item(),
        cvxpylayers_violation=theirs.violation.max().item(),
    )


def _far(a: Tensor, b: Tensor, floor: float) -> float:
    return Difference.between("", a, b, floor).relative.max().item()
