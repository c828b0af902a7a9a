"""The layers against cvxpylayers, finite differences and the literal formula of Proposition 2.1.

Every problem is stated twice, once for this library and once in CVXPY. Solutions and gradients must agree with those of
cvxpylayers, at settings that make it tight; the gradients also with finite differences of the solutions and with the
dense formula, as a third and a fourth opinion. The gradient that leaves the constraints out must differ. Otherwise the
run fails, and its exit code is 1; it is 2 if cvxpylayers is not installed.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from declarative import DeclarativeNode, compare
from declarative.reports.compare import ComparisonReport, Difference, gradient_floor
from declarative.table import as_html, as_text
from problems import Layer
from problems.reference import MissingReferenceError, load

from .cases import Case, all_cases

TOLERANCE = 5e-6  # relative, to cvxpylayers
FINITE_TOLERANCE = 1e-7  # to finite differences
FORMULA_TOLERANCE = 1e-9  # to Proposition 2.1
APPROXIMATE = 1e-3  # the gradient without the constraints must be further off than this
STEP = 1e-5  # of finite differences, relative to the largest entry of an input; small, so as not to meet a kink
STENCIL = ((1, 8 / 12), (-1, -8 / 12), (2, -1 / 12), (-2, 1 / 12))  # of fourth order
FAST = 100  # what the speed-up of transport is held against


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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command line."""
    parser.add_argument("--sizes", type=int, nargs="+", default=[5, 10, 15], help="of transport (%(default)s)")
    parser.add_argument("--batch", type=int, default=10, help="problems of each kind (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the random inputs (%(default)s)")
    parser.add_argument("--seconds", type=float, default=2.0, help="to repeat a call for its time (%(default)s)")


def run(args: argparse.Namespace) -> int:
    """Compare, print tables and write them to ``compare`` in the directory of results."""
    try:
        load()
    except MissingReferenceError as error:
        print(error, file=sys.stderr)
        return 2
    if min(args.batch, *args.sizes) < 1:
        raise ValueError("batch and sizes must be at least 1.")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the matrices are small
    try:
        rows, speeds, failures = measure(all_cases(tuple(args.sizes), args.batch, args.seed), args.seconds)
    finally:
        torch.set_num_threads(threads)
    out = Path(args.out) / "compare"
    write(out, rows, speeds, failures)
    print(f"\n{(out / 'compare.txt').read_text(encoding='utf-8')}\nTables are in {out}.")
    return int(bool(failures))


def measure(cases: Iterable[Case], seconds: float) -> tuple[list[Row], list[Speed], list[str]]:
    """All cases; what did not hold, in words."""
    rows: list[Row] = []
    speeds: list[Speed] = []
    failures: list[str] = []
    for case in cases:
        print(f"{case.name} ...", file=sys.stderr, flush=True)
        try:
            report = compare(case.node, case.build(), *case.xs.values(), seconds=seconds)
            found = judge_case(case, report)
        except Exception as error:  # either side may fail to solve a problem, in its own way
            failures.append(f"{case.name}: {type(error).__name__}: {error}")
            continue
        rows += found
        speeds.append(speed_of(case, report))
        failures += [f"{row.problem}, {row.input}: {row.holds}" for row in found if row.holds not in ("yes", "")]
    return rows, speeds, failures


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
    completed = node.prepare(*leaves) if isinstance(node, Layer) else tuple(leaves)
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


def _far(a: Tensor, b: Tensor, floor: float) -> float:
    return Difference.between("", a, b, floor).relative.max().item()


# Output.

HEAD = {
    "problem": "problem",
    "input": "input",
    "solution": "solution",
    "gradient": "gradient",
    "to_differences": "to differences",
    "reference_to_differences": "cvxpylayers to differences",
    "to_formula": "to Proposition 2.1",
    "unconstrained": "unconstrained",
    "lowest_cosine": "lowest cosine",
    "mean_cosine": "mean cosine",
    "holds": "holds",
}


def write(out: Path, rows: list[Row], speeds: list[Speed], failures: list[str]) -> None:
    """``compare.csv``, ``compare_speed.csv``, and both as text and as a piece of a page."""
    out.mkdir(parents=True, exist_ok=True)
    _write_csv(out / "compare.csv", Row, rows)
    _write_csv(out / "compare_speed.csv", Speed, speeds)
    tables = [
        (
            "Solutions and gradients, the largest relative difference to cvxpylayers (exact rule; and the rule "
            "`unconstrained` with its cosine), to finite differences and to Proposition 2.1",
            list(HEAD.values()),
            [[_cell(name, getattr(row, name)) for name in HEAD] for row in rows],
        ),
        (
            "Times in milliseconds (one thread for either, the shortest of several calls), and the largest violation",
            [field.name.replace("_", " ") for field in dataclasses.fields(Speed)],
            [[_cell(name, value) for name, value in dataclasses.asdict(speed).items()] for speed in speeds],
        ),
    ]
    words = summary(rows, speeds, failures)
    text = "\n\n".join(f"{title}\n{as_text(head, body)}" for title, head, body in tables)
    (out / "compare.txt").write_text("\n".join([text, "", *words, ""]), encoding="utf-8")
    page = "".join(f"<h3>{title}</h3>{as_html(head, body)}" for title, head, body in tables)
    (out / "compare.html").write_text(as_html(["summary"], [[line] for line in words]) + page, encoding="utf-8")


def summary(rows: list[Row], speeds: list[Speed], failures: list[str]) -> list[str]:
    """What it comes to."""
    judged = [row for row in rows if row.holds]
    good = sum(row.holds == "yes" for row in judged)
    lines = [f"{good} of {len(judged)} comparisons hold (tolerance {TOLERANCE:.0e} to cvxpylayers)."]
    for speed in speeds:
        if speed.problem.startswith("transport 10 x 10") and speed.problem.count(",") == 1:
            fast = min(speed.forward_speed_up, speed.backward_speed_up) >= FAST
            lines.append(
                f"{speed.problem}, batch {speed.batch}: {speed.forward_speed_up:.0f} times faster forward and "
                f"{speed.backward_speed_up:.0f} times backward (at least {FAST}: {'yes' if fast else 'no'})."
            )
    return [*lines, *(f"FAILED {failure}" for failure in failures)]


def _cell(name: str, value: float | str) -> str:
    if isinstance(value, str | int):
        return str(value)
    if math.isnan(value):
        return ""
    return f"{value:.4f}" if "cosine" in name else f"{value:.1e}" if value < 1e-3 else f"{value:.3g}"


def _write_csv(path: Path, kind: type, rows: Sequence[Any]) -> None:
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [field.name for field in dataclasses.fields(kind)])
        writer.writeheader()
        writer.writerows(dataclasses.asdict(row) for row in rows)
