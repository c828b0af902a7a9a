"""What is measured of a case, and whether it holds.

Solutions and gradients must agree with those of cvxpylayers, at settings that make it tight; the gradients also with
finite differences of the solutions and with the dense formula, as a third and a fourth opinion. The gradient that
leaves the constraints out must differ.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from declarative import DeclarativeNode
from declarative.reports.comparison import ComparisonReport, Difference, gradient_floor

from ..shared.reference_cases import Case

TOLERANCE = 5e-6  # relative, to cvxpylayers
FINITE_TOLERANCE = 1e-7  # to finite differences
FORMULA_TOLERANCE = 1e-9  # to Proposition 2.1
APPROXIMATE = 1e-3  # the gradient without the constraints must be further off than this
STEP = 1e-5  # of finite differences, relative to the largest entry of an input; small, so as not to meet a kink
STENCIL = ((1, 8 / 12), (-1, -8 / 12), (2, -1 / 12), (-2, 1 / 12))  # of fourth order


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
    times = 1e3 * ours.forward, 1e3 * theirs.forward, forward, 1e3 * ours.backward, 1e3 * theirs.backward, backward
    return Speed(case.name, len(ours.y), *times, ours.violation.max().item(), theirs.violation.max().item())


def _far(a: Tensor, b: Tensor, floor: float) -> float:
    return Difference.between("", a, b, floor).relative.max().item()


# Further opinions on a gradient.


def gradients(node: DeclarativeNode, xs: Sequence[Tensor], v: Tensor) -> list[Tensor]:
    """By the node's own backward pass."""
    leaves = [x.detach().requires_grad_() for x in xs]
    return list(torch.autograd.grad(node(*leaves), leaves, v, materialize_grads=True))


def finite_differences(node: DeclarativeNode, xs: Sequence[Tensor], i: int, v: Tensor) -> Tensor:
    """The gradient of v'y to input i by differences of fourth order, all in one batch of problems."""
    x = xs[i].detach()
    batch, n = x.shape[0], x[0].numel()
    step = STEP * x.abs().max().item()
    moves = step * torch.eye(n, dtype=x.dtype).view(n, 1, *x.shape[1:])
    slope = torch.zeros(n, batch, dtype=x.dtype)
    for offset, weight in STENCIL:
        inputs = [other.detach().expand(n, *other.shape).flatten(0, 1) for other in xs]
        inputs[i] = (x + offset * moves).flatten(0, 1)
        with torch.no_grad():
            y = node(*inputs).view(n, batch, -1)
        slope += weight / step * (y * v.reshape(batch, -1)).sum(-1)
    return slope.mT.reshape(x.shape)


def formula_gradients(node: DeclarativeNode, xs: Sequence[Tensor], v: Tensor) -> list[Tensor]:
    """Proposition 2.1 as it is printed, with all its matrices, for one problem after another."""
    leaves = [x.detach().requires_grad_() for x in xs]
    completed = node.prepare(*leaves)
    d = node.derivatives(*(x.detach() for x in leaves))
    flat = []
    for k in range(len(v)):
        A, C = (torch.cat([h[k], g[k][d.active[k]]]) for h, g in ((d.A, d.G), (d.C, d.G_X)))  # with active rows
        H_inverse, B = torch.linalg.inv(d.H[k]), d.B[k]
        Dy = H_inverse @ A.mT @ torch.linalg.inv(A @ H_inverse @ A.mT) @ (A @ H_inverse @ B - C) - H_inverse @ B
        flat.append(v[k].flatten() @ Dy)
    parts = torch.stack(flat).split([x[0].numel() for x in completed], -1)
    shaped = [part.view(x.shape) for part, x in zip(parts, completed, strict=True)]
    used = [(x, g) for x, g in zip(completed, shaped, strict=True) if x.requires_grad]
    return list(torch.autograd.grad([x for x, _ in used], leaves, [g for _, g in used]))
