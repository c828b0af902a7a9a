"""The paper's propositions against simulation, through real nodes.

Each expectation of g'g_hat is estimated by Monte Carlo: a node is stated whose Hessians, constraints and multipliers
are chosen, the incoming gradients are v = H w with w ~ N(0, I), and the gradients come from the node's own backward
passes. The prediction of the proposition must lie within the confidence interval of the estimate, the estimate must
have the sign that Proposition 2.6 claims, and the worst case of Proposition 2.2 lie within its bounds; otherwise the
run reports a failure and its exit code is 1.

The intervals have a joint level of 99.9 % (Bonferroni's correction over all estimates of the run), so that a run in
which everything is right fails by chance with a probability below 0.1 %, and with a fixed seed always or never.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist

import torch
from torch import Tensor

from declarative import DeclarativeNode, Derivatives
from declarative.table import as_text
from declarative.theory.descent import (
    expected_curvature,
    expected_linear,
    expected_normalised,
    normalised_case,
    sharp_upper_bound,
    worst_case,
    worst_case_bounds,
)

from . import plots as theory_plots

LEVEL = 0.999  # of all intervals together
NORMALISED = "extension, norm"  # the name of the extension under the normalisation constraint
SAMPLES = 3000
CONDITIONS = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
CONSTRAINTS = 300  # random ones for each condition number
SPECTRUM = (1.0, 5.0)  # of H_hat under the normalisation constraint, or of -H_hat for the mirrored cases
MULTIPLIERS = (-4.0, -2.5, -1.0, 0.0, 0.5, 0.9, 1.2, 2.0, 3.0, 4.5, 5.5, 7.0, 9.0, 11.0)
MIRRORED = (-7.0, -0.5, 4.0)
LINEAR = ((4, 1), (4, 3), (12, 1), (12, 6))  # (m, p)
CURVED = ((4, 1), (8, 2), (12, 4))


@dataclass(frozen=True)
class Estimate:
    """One Monte-Carlo estimate of E[g'g_hat] and its prediction."""

    proposition: str
    rule: str
    m: int
    p: int
    condition: float  # of H_hat
    multiplier: float  # of the normalisation constraint; NaN for others
    case: int  # the sign that Proposition 2.6 claims; 0: none
    predicted: float
    mean: float
    error: float  # standard error of the mean
    half_width: float = float("nan")  # of the interval
    inside: bool = False


@dataclass(frozen=True)
class WorstCase:
    """Proposition 2.2 for one condition number and many random constraints."""

    condition: float
    lowest: float
    highest: float
    searched: float  # by maximising over w for the worst constraint, without the formula
    lower: float
    upper: float
    sharp: float
    inside: bool


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command line."""
    parser.add_argument("--samples", type=int, default=SAMPLES, help="incoming gradients for each estimate")
    parser.add_argument("--seed", type=int, default=0, help="of the random numbers")


def run(out: Path, samples: int = SAMPLES, seed: int = 0) -> int:
    """Simulate, print a table, write it and the plots to a directory; 1 if a prediction failed, else 0."""
    if samples < 1000:
        raise ValueError(f"samples must be at least 1000 for the intervals to be valid, but is {samples}.")
    out.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(seed)
    with _one_thread():
        worst = [measure_worst_case(condition, generator) for condition in CONDITIONS]
        estimates = judge([*simulate_linear(samples, generator), *simulate_normalised(samples, generator)])
    _write(out / "theory_expectations.csv", estimates)
    _write(out / "theory_worst_case.csv", worst)
    theory_plots.draw(out, estimates, worst, SPECTRUM)
    print(_tables(estimates, worst))
    failed = sum(not row.inside for row in (*estimates, *worst))
    total = len(estimates) + len(worst)
    print(f"\n{total - failed} of {total} predictions hold (joint level {LEVEL:.1%}). Tables and plots are in {out}.")
    return int(failed > 0)


# Problems with chosen derivatives.


@dataclass(frozen=True)
class Posed:
    """min x'u + u'H_hat u / 2 subject to u'S_i u / 2 + b_i'u = c_i, with x and c such that y is stationary."""

    node: DeclarativeNode
    x: Tensor
    derivatives: Derivatives

    @classmethod
    def at(cls, y: Tensor, multipliers: Tensor, hessian_hat: Tensor, curvature: Tensor, slope: Tensor) -> Posed:
        """The problem with this solution, these multipliers, S = curvature (p, m, m) and b = slope (p, m)."""
        jacobian = curvature @ y + slope
        level = 0.5 * (curvature @ y) @ y + slope @ y

        def objective(x: Tensor, u: Tensor) -> Tensor:
            return x @ u + 0.5 * u @ hessian_hat @ u

        def equality(x: Tensor, u: Tensor) -> Tensor:  # noqa: ARG001
            return 0.5 * (curvature @ u) @ u + slope @ u - level

        node = DeclarativeNode(objective, equality, solver=lambda x: y.expand(x.shape[0], -1))
        x = multipliers @ jacobian - hessian_hat @ y
        return cls(node, x, node.derivatives(x.unsqueeze(0)))

    def products(self, rule: str, samples: int, generator: torch.Generator) -> Tensor:  # (samples,)
        """g'g_hat for incoming gradients v = H w with w ~ N(0, I)."""
        v = _normal(generator, samples, len(self.x)) @ self.derivatives.H[0]
        x = self.x.expand(samples, -1).clone().requires_grad_()
        g, g_hat = (
            torch.autograd.grad(self.node.with_gradient(name)(x), x, v, materialize_grads=True)[0]
            for name in ("exact", rule)
        )
        return (g * g_hat).sum(-1)


def estimate(
    posed: Posed,
    proposition: str,
    rule: str,
    condition: float,
    samples: int,
    generator: torch.Generator,
    note: str = "",
) -> Estimate:
    """Simulate one expectation, and predict it from the derivatives of the node."""
    d = posed.derivatives
    shift = torch.diagonal(d.H_hat - d.H, dim1=-2, dim2=-1).mean(-1)
    normalised = proposition in ("2.5", "2.6", NORMALISED)
    if rule == "curvature":
        predicted = expected_curvature(d.H, d.A)
    elif normalised:
        predicted = expected_normalised(d.H_hat, shift, d.A[:, 0])
    else:
        predicted = expected_linear(d.H, d.A)
    values = posed.products(rule, samples, generator)
    return Estimate(
        proposition=proposition + note,
        rule=rule,
        m=d.H.shape[-1],
        p=d.A.shape[-2],
        condition=condition,
        multiplier=shift.item() if normalised else float("nan"),
        case=int(normalised_case(d.H_hat, shift)) if normalised and rule == "unconstrained" else 0,
        predicted=predicted.item(),
        mean=values.mean().item(),
        error=values.std().item() / samples**0.5,
    )


# The simulations.


def simulate_linear(samples: int, generator: torch.Generator) -> Iterator[Estimate]:
    """m - p for linear constraints (2.3, 2.4), and for curved ones if their curvature is kept (the extension)."""
    for table, curved in ((LINEAR, False), (CURVED, True)):
        for m, p in table:
            for condition in (1.0, 10.0, 1000.0):
                curvature = _symmetric(generator, p, m) if curved else torch.zeros(p, m, m, dtype=torch.float64)
                posed = Posed.at(
                    y=_normal(generator, m),
                    multipliers=0.3 * _normal(generator, p),
                    hessian_hat=_definite(generator, m, 1.0, condition),
                    curvature=curvature,
                    slope=_normal(generator, p, m),
                )
                name = "extension" if curved else ("2.3" if p == 1 else "2.4")
                rule = "curvature" if curved else "unconstrained"
                yield estimate(posed, name, rule, condition, samples, generator)


def simulate_normalised(samples: int, generator: torch.Generator, m: int = 6) -> Iterator[Estimate]:
    """Under ||u|| = 1 the expectation changes its sign with the multiplier, unless the curvature is kept."""
    y = torch.nn.functional.normalize(_normal(generator, m), dim=0)
    hessian_hat = _definite(generator, m, *SPECTRUM)
    identity = torch.eye(m, dtype=torch.float64).unsqueeze(0)
    condition = SPECTRUM[1] / SPECTRUM[0]
    for sign, multipliers in ((1, MULTIPLIERS), (-1, MIRRORED)):
        for multiplier in multipliers:
            shift = torch.tensor([multiplier], dtype=torch.float64)
            posed = Posed.at(y, shift, sign * hessian_hat, identity, torch.zeros(1, m, dtype=torch.float64))
            name = "2.6" if normalised_case(sign * hessian_hat, shift[0]) else "2.5"
            mirrored = "" if sign > 0 else ", H_hat < 0"
            yield estimate(posed, name, "unconstrained", condition, samples, generator, mirrored)
            yield estimate(posed, NORMALISED, "curvature", condition, samples, generator, mirrored)


def measure_worst_case(condition: float, generator: torch.Generator, m: int = 5) -> WorstCase:
    """The worst case of random constraints: within its bounds, and found again by a search over w."""
    hessian = _definite(generator, m, 1.0, condition, CONSTRAINTS)
    a = _normal(generator, CONSTRAINTS, m)
    values = worst_case(hessian, a.unsqueeze(-2))
    (lower, upper), sharp = worst_case_bounds(hessian), sharp_upper_bound(hessian)
    slack = 1e-9 * upper
    within = (values >= lower - slack) & (values <= sharp + slack) & (sharp <= upper + slack)
    hardest = int(values.argmax())
    searched = search_worst_case(hessian[hardest], a[hardest], generator)
    found = abs(searched - values[hardest].item()) < 1e-4 * values[hardest].item()
    return WorstCase(
        condition=condition,
        lowest=values.min().item(),
        highest=values.max().item(),
        searched=searched,
        lower=1.0,
        upper=upper[0].item(),
        sharp=sharp[0].item(),
        inside=bool(within.all()) and found,
    )


def search_worst_case(hessian: Tensor, a: Tensor, generator: torch.Generator) -> float:
    """Maximise w'(aa'H^-1 / a'H^-1 a)w over the unit sphere by shifted power iterations from random starts."""
    b = torch.linalg.solve(hessian, a)
    matrix = torch.outer(a, b) / (a @ b)
    matrix = 0.5 * (matrix + matrix.mT)
    shifted = matrix + matrix.norm() * torch.eye(len(a), dtype=torch.float64)  # so that the largest one dominates
    for _ in range(10):  # squaring, 1024 iterations
        shifted = shifted @ shifted
        shifted = shifted / shifted.norm()
    w = torch.nn.functional.normalize(shifted @ _normal(generator, len(a), 20), dim=0)
    return (w * (matrix @ w)).sum(0).max().item()


def judge(estimates: list[Estimate]) -> list[Estimate]:
    """Give every estimate its interval, at a joint level for all of them."""
    quantile = NormalDist().inv_cdf(1 - (1 - LEVEL) / (2 * len(estimates)))
    judged = []
    for row in estimates:
        half = quantile * row.error
        inside = abs(row.mean - row.predicted) <= half and row.case * row.mean >= 0
        judged.append(dataclasses.replace(row, half_width=half, inside=inside))
    return judged


# Random matrices and output.


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """The matrices are small: on a busy machine more threads would mostly wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _normal(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def _symmetric(generator: torch.Generator, *shape: int) -> Tensor:
    x = _normal(generator, *shape, shape[-1])
    return 0.25 * (x + x.mT)


def _definite(generator: torch.Generator, m: int, low: float, high: float, *batch: int) -> Tensor:
    """Positive definite matrices with random eigenvectors and eigenvalues from low to high."""
    basis = torch.linalg.qr(_normal(generator, *batch, m, m)).Q
    return basis @ torch.diag(torch.logspace(0, 1, m, base=high / low, dtype=torch.float64) * low) @ basis.mT


def _write(path: Path, rows: list[Estimate] | list[WorstCase]) -> None:
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [field.name for field in dataclasses.fields(rows[0])])
        writer.writeheader()
        writer.writerows(dataclasses.asdict(row) for row in rows)


def _tables(estimates: list[Estimate], worst: list[WorstCase]) -> str:
    head = ["proposition", "rule", "m", "p", "cond(H_hat)", "multiplier", "predicted", "estimate", "+-", "holds"]
    rows = [
        [
            row.proposition,
            row.rule,
            *(str(x) for x in (row.m, row.p)),
            f"{row.condition:g}",
            "" if math.isnan(row.multiplier) else f"{row.multiplier:.2f}",
            *(f"{x:.3f}" for x in (row.predicted, row.mean, row.half_width)),
            "yes" if row.inside else "NO",
        ]
        for row in estimates
    ]
    bounds = ["cond(H)", "lower bound", "smallest", "largest", "search", "sharp bound", "paper's bound", "holds"]
    lines = [
        [f"{x:.4g}" for x in (row.condition, row.lower, row.lowest, row.highest, row.searched, row.sharp, row.upper)]
        + ["yes" if row.inside else "NO"]
        for row in worst
    ]
    return "\n".join(
        [
            "E[g'g_hat] over H^-1 v ~ N(0, I): prediction and Monte-Carlo estimate",
            as_text(head, rows),
            f"\nProposition 2.2: the worst case over {CONSTRAINTS} random constraints for each condition number",
            as_text(bounds, lines),
        ]
    )
