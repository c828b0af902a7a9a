"""What is measured of a case, and whether it holds.

Each side is judged by its own measured error, and only ours can fail. Of a solution that is the distance to the
optimum, which a plain Newton method on the optimality conditions is started beside; of a gradient the
difference to finite differences of the solutions and to the dense formula of Proposition 2.1. How accurate the
reference is, is said: it depends on how a processor rounds, and is no fault of ours. A reference that is asked with
other settings and insists on another solution, however, was given another problem, and that fails. The gradient that
leaves the constraints out must differ from the exact one.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from declarative import DeclarativeNode
from declarative.linear.contract import times
from declarative.reports.comparison import ComparisonReport, Difference, gradient_floor
from problems.reference import DEFAULT, Reference

from ..shared.reference_cases import Case

SOLUTION_TOLERANCE = 1e-8  # relative, to the optimum
FINITE_TOLERANCE = 1e-7  # to finite differences
FORMULA_TOLERANCE = 1e-9  # to Proposition 2.1
AGREEMENT = 5e-6  # of the reference, beyond which it is called inaccurate
ACTIVE = 1e-7  # a constraint that is nearer to its bound holds with equality
NEWTON_STEPS = 3
NEAR = 1e-3  # a solution of the same problem, however inaccurate
APPROXIMATE = 1e-3  # the gradient without the constraints must be further off than this
STEPS = (
    1e-5,
    1e-4,
)  # of finite differences, relative to the largest entry of an input; small, so as not to meet a kink
STENCIL = ((1, 8 / 12), (-1, -8 / 12), (2, -1 / 12), (-2, 1 / 12))  # of fourth order


@dataclass(frozen=True)
class Row:
    """One input of one case; all differences are relative, the largest of the batch. NaN: not measured."""

    problem: str
    input: str
    solution: float  # ours to cvxpylayers'
    gradient: float  # ours to cvxpylayers', with the exact rule
    to_optimum: float  # our solution to the optimum
    to_differences: float  # our gradient to finite differences
    to_formula: float  # our gradient to Proposition 2.1
    reference_to_optimum: float  # cvxpylayers' solution to the optimum
    reference_to_differences: float  # cvxpylayers' gradient to finite differences
    unconstrained: float  # the approximate gradient to the exact one
    lowest_cosine: float  # of the approximate gradient
    mean_cosine: float
    holds: str = ""
    reference: str = ""  # how accurate it is, in words


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
    optimum = optimum_near(case.node, xs, report.node.y)
    rows = []
    for i, name in enumerate(case.xs):
        floor = gradient_floor(report.v, report.node.y, xs[i])
        ours, reference = differences_to(case.node, xs, i, report.v, (exact[i], theirs.get(i)), floor)
        cheap = Difference.between("", exact[i], approximate[i], floor)
        row = Row(
            problem=case.name,
            input=name,
            solution=report.solution.relative.max().item(),
            gradient=report.gradients[i].relative.max().item() if i in report.gradients else math.nan,
            to_optimum=_far(report.node.y, optimum),
            to_differences=ours,
            to_formula=_far(exact[i], formula[i], floor),
            reference_to_optimum=_far(report.reference.y, optimum),
            reference_to_differences=reference,
            unconstrained=cheap.relative.max().item(),
            lowest_cosine=cheap.cosine.min().item(),
            mean_cosine=cheap.cosine.mean().item(),
        )
        rows.append(row)
    different = any(row.unconstrained > APPROXIMATE for row in rows)
    other = states_another_problem(case, report)
    return [
        dataclasses.replace(row, holds=verdict(row, case, different, other), reference=accuracy(row)) for row in rows
    ]


def verdict(row: Row, case: Case, different: bool, other: bool = False) -> str:
    """``yes``, or what is wrong with our side of a case."""
    limits = {
        "to_optimum": SOLUTION_TOLERANCE,
        "to_differences": FINITE_TOLERANCE,
        "to_formula": FORMULA_TOLERANCE,
    }
    wrong = [
        f"{name.replace('_', ' ')} {getattr(row, name):.1e} > {limit:.0e}"
        for name, limit in limits.items()
        if not getattr(row, name) <= limit
    ]
    if other:
        wrong.append("the reference states another problem")
    if case.constrained and not different:
        wrong.append("the gradient without constraints is the same")
    if not case.constrained and not row.unconstrained <= FORMULA_TOLERANCE:
        wrong.append("there are no constraints, but leaving them out changes the gradient")
    return "; ".join(wrong) or "yes"


def accuracy(row: Row) -> str:
    """What is to be said of the reference: nothing where it is as accurate as it should be."""
    errors = {"solution": row.reference_to_optimum, "gradient": row.reference_to_differences}
    return "; ".join(f"{name} off by {error:.1e}" for name, error in errors.items() if not error <= AGREEMENT)


def states_another_problem(case: Case, report: ComparisonReport) -> bool:
    """Whether the reference, asked once more with other settings, comes to another solution than ours again.

    An inaccurate solution changes with the settings by about what it is off; that of another problem does not.
    """
    if report.solution.within(NEAR):
        return False
    reference, xs = case.build(), tuple(case.xs.values())
    if not isinstance(reference, Reference):
        return True
    with torch.no_grad():
        again = Reference(reference.statement, DEFAULT)(*xs).reshape(report.reference.y.shape)
    return _far(again, report.reference.y) < 0.1 * report.solution.relative.max().item()


def speed_of(case: Case, report: ComparisonReport) -> Speed:
    """In milliseconds."""
    ours, theirs = report.node, report.reference
    forward, backward = report.speed_up
    times = 1e3 * ours.forward, 1e3 * theirs.forward, forward, 1e3 * ours.backward, 1e3 * theirs.backward, backward
    return Speed(case.name, len(ours.y), *times, ours.violation.max().item(), theirs.violation.max().item())


def _far(a: Tensor, b: Tensor, floor: float = 0.0) -> float:
    return Difference.between("", a, b, floor).relative.max().item()


# Further opinions on a gradient.


def gradients(node: DeclarativeNode, xs: Sequence[Tensor], v: Tensor) -> list[Tensor]:
    """By the node's own backward pass."""
    leaves = [x.detach().requires_grad_() for x in xs]
    return list(torch.autograd.grad(node(*leaves), leaves, v, materialize_grads=True))


def differences_to(
    node: DeclarativeNode, xs: Sequence[Tensor], i: int, v: Tensor, found: Sequence[Tensor | None], floor: float
) -> list[float]:
    """How far gradients to input i are from finite differences; NaN for one that is missing.

    Where a step leaves a doubt another one is tried, and the nearest counts: what differences are off by depends on the
    step, a wrong gradient is near none of them.
    """
    nearest = [math.inf if one is not None else math.nan for one in found]
    for step in STEPS:
        slopes = finite_differences(node, xs, i, v, step)
        nearest = [
            nearest[k] if one is None else min(nearest[k], _far(one, slopes, floor)) for k, one in enumerate(found)
        ]
        if nearest[0] <= FINITE_TOLERANCE:
            break
    return nearest


def finite_differences(
    node: DeclarativeNode, xs: Sequence[Tensor], i: int, v: Tensor, relative: float = STEPS[0]
) -> Tensor:
    """The gradient of v'y to input i by differences of fourth order, all in one batch of problems."""
    x = xs[i].detach()
    batch, n = x.shape[0], x[0].numel()
    step = relative * x.abs().max().item()
    moves = step * torch.eye(n, dtype=x.dtype).view(n, 1, *x.shape[1:])
    slope = torch.zeros(n, batch, dtype=x.dtype)
    for offset, weight in STENCIL:
        inputs = [other.detach().expand(n, *other.shape).flatten(0, 1) for other in xs]
        inputs[i] = (x + offset * moves).flatten(0, 1)
        with torch.no_grad():
            y = node(*inputs).view(n, batch, -1)
        slope += weight / step * (y * v.reshape(batch, -1)).sum(-1)
    return slope.mT.reshape(x.shape)


def optimum_near(node: DeclarativeNode, xs: Sequence[Tensor], y: Tensor) -> Tensor:
    """The optimum of convex problems beside a point, (batch, *shape of u); NaN for a problem that has none there.

    One that satisfies all constraints and, with those that hold with equality at the point, to ACTIVE, the optimality
    conditions, with multipliers of the right sign. Newton's method takes [H A'; A 0] [du; -multipliers] = -[D f; c].
    """
    batch = node.at(*(x.detach() for x in xs)).batch.dense()
    with torch.no_grad():
        u = y.detach().double().flatten(1)
        held = (batch.constraints(u) >= -ACTIVE) | (torch.arange(batch.k) < batch.p)
        for _ in range(NEWTON_STEPS):
            A, slope = batch.jacobian(u) * held.unsqueeze(-1), batch.gradient(u)
            multipliers = times(torch.linalg.pinv(A.mT), slope)
            idle = torch.diag_embed((~held).to(u.dtype))
            K = torch.cat([torch.cat([batch.hessian(u, multipliers), A.mT], -1), torch.cat([A, -idle], -1)], -2)
            right = torch.cat([slope, batch.constraints(u) * held], -1)
            u = u - times(torch.linalg.pinv(K, hermitian=True), right)[:, : batch.m]
        scale = slope.abs().amax(-1, keepdim=True).clamp(min=1.0)
        allowed = (batch.constraints(u) <= ACTIVE) & (multipliers <= ACTIVE * scale)
        allowed[:, : batch.p] = True
    return torch.where(allowed.all(-1, keepdim=True), u, torch.nan).view(y.shape)


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
