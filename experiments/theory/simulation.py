"""The paper's propositions against simulation, through real nodes.

Each expectation of g'g_hat is estimated by Monte Carlo: a node is stated whose Hessians, constraints and multipliers
are chosen, the incoming gradients are v = H w with w ~ N(0, I), and the gradients come from the node's own backward
passes. The prediction of the proposition must lie within the confidence interval of the estimate, the estimate must
have the sign that Proposition 2.6 claims, and the worst case of Proposition 2.2 lie within its bounds.

The intervals have a joint level of 99.9 % (Bonferroni's correction over all estimates of the run), so that a run in
which everything is right fails by chance with a probability below 0.1 %, and with a fixed seed always or never.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from statistics import NormalDist

import torch
from torch import Tensor

from declarative import ClosedForm, DeclarativeNode, Derivatives
from declarative.theory.propositions import (
    expected_curvature,
    expected_linear,
    expected_normalised,
    normalised_case,
    sharp_upper_bound,
    worst_case,
    worst_case_bounds,
)

from ..shared.inputs import normal
from ..shared.jobs import Tick

LEVEL = 0.999  # of all intervals together
NORMALISED = "extension, norm"  # the name of the extension under the normalisation constraint
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


def simulate(samples: int, seed: int, tick: Tick) -> tuple[list[Estimate], list[WorstCase]]:
    """Everything, from one seed."""
    generator = torch.Generator().manual_seed(seed)
    worst = [measure_worst_case(condition, generator) for condition in CONDITIONS]
    estimates: list[Estimate] = []
    count = 3 * (len(LINEAR) + len(CURVED)) + 2 * (len(MULTIPLIERS) + len(MIRRORED))
    for case in chain(linear_cases(generator), normalised_cases(generator)):
        estimates.append(estimate(*case, samples, generator))
        tick(len(estimates) / count)
    return judge(estimates), worst


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

        node = DeclarativeNode(objective, equality, solver=ClosedForm(lambda x: y.expand(len(x), -1), stationary=True))
        x = multipliers @ jacobian - hessian_hat @ y
        return cls(node, x, node.derivatives(x.unsqueeze(0)))

    def products(self, rule: str, samples: int, generator: torch.Generator) -> Tensor:  # (samples,)
        """g'g_hat for incoming gradients v = H w with w ~ N(0, I)."""
        v = normal(generator, samples, len(self.x)) @ self.derivatives.H[0]
        g, g_hat = both_gradients(self.node, self.x, rule, v)
        return (g * g_hat).sum(-1)


def both_gradients(node: DeclarativeNode, x: Tensor, rule: str, v: Tensor) -> tuple[Tensor, Tensor]:
    """The exact gradient in x and that of a rule, for many incoming ones: (count, m) -> (count, n) each."""
    x = x.expand(len(v), -1).clone().requires_grad_()
    exact, cheap = (
        torch.autograd.grad(node.with_gradient(name)(x), x, v, materialize_grads=True)[0] for name in ("exact", rule)
    )
    return exact, cheap


def quantile(level: float, count: int) -> float:
    """Of the normal distribution, for intervals on both sides that have this level together (Bonferroni)."""
    return NormalDist().inv_cdf(1 - (1 - level) / (2 * count))


Case = tuple[Posed, str, str, float]  # with the proposition, the rule, and the condition number of H_hat


def estimate(
    posed: Posed, proposition: str, rule: str, condition: float, samples: int, generator: torch.Generator
) -> Estimate:
    """Simulate one expectation, and predict it from the derivatives of the node."""
    d = posed.derivatives
    shift = torch.diagonal(d.H_hat - d.H, dim1=-2, dim2=-1).mean(-1)
    normalised = proposition.startswith(("2.5", "2.6", NORMALISED))
    if rule == "curvature":
        predicted = expected_curvature(d.H, d.A)
    elif normalised:
        predicted = expected_normalised(d.H_hat, shift, d.A[:, 0])
    else:
        predicted = expected_linear(d.H, d.A)
    values = posed.products(rule, samples, generator)
    return Estimate(
        proposition=proposition,
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


def linear_cases(generator: torch.Generator) -> Iterator[Case]:
    """m - p for linear constraints (2.3, 2.4), and for curved ones if their curvature is kept (the extension)."""
    for table, curved in ((LINEAR, False), (CURVED, True)):
        for m, p in table:
            for condition in (1.0, 10.0, 1000.0):
                curvature = _symmetric(generator, p, m) if curved else torch.zeros(p, m, m, dtype=torch.float64)
                posed = Posed.at(
                    y=normal(generator, m),
                    multipliers=0.3 * normal(generator, p),
                    hessian_hat=_definite(generator, m, 1.0, condition),
                    curvature=curvature,
                    slope=normal(generator, p, m),
                )
                name = "extension" if curved else ("2.3" if p == 1 else "2.4")
                yield posed, name, "curvature" if curved else "unconstrained", condition


def normalised_cases(generator: torch.Generator, m: int = 6) -> Iterator[Case]:
    """Under ||u|| = 1 the expectation changes its sign with the multiplier, unless the curvature is kept."""
    y = torch.nn.functional.normalize(normal(generator, m), dim=0)
    hessian_hat = _definite(generator, m, *SPECTRUM)
    identity = torch.eye(m, dtype=torch.float64).unsqueeze(0)
    condition = SPECTRUM[1] / SPECTRUM[0]
    for sign, multipliers in ((1, MULTIPLIERS), (-1, MIRRORED)):
        for multiplier in multipliers:
            shift = torch.tensor([multiplier], dtype=torch.float64)
            posed = Posed.at(y, shift, sign * hessian_hat, identity, torch.zeros(1, m, dtype=torch.float64))
            name = "2.6" if normalised_case(sign * hessian_hat, shift[0]) else "2.5"
            mirrored = "" if sign > 0 else ", H_hat < 0"
            yield posed, name + mirrored, "unconstrained", condition
            yield posed, NORMALISED + mirrored, "curvature", condition


def measure_worst_case(condition: float, generator: torch.Generator, m: int = 5) -> WorstCase:
    """The worst case of random constraints: within its bounds, and found again by a search over w."""
    hessian = _definite(generator, m, 1.0, condition, CONSTRAINTS)
    a = normal(generator, CONSTRAINTS, m)
    values = worst_case(hessian, a.unsqueeze(-2))
    (lower, upper), sharp = worst_case_bounds(hessian), sharp_upper_bound(hessian)
    slack = 1e-9 * upper
    within = (values >= lower - slack) & (values <= sharp + slack) & (sharp <= upper + slack)
    hardest = int(values.argmax())
    searched = search_worst_case(hessian[hardest], a[hardest], generator)
    found = abs(searched - values[hardest].item()) < 1e-4 * values[hardest].item()
    lowest, highest, most, sharpest = (float(x) for x in (values.min(), values.max(), upper[0], sharp[0]))
    return WorstCase(condition, lowest, highest, searched, 1.0, most, sharpest, bool(within.all()) and found)


def search_worst_case(hessian: Tensor, a: Tensor, generator: torch.Generator) -> float:
    """Maximise w'(aa'H^-1 / a'H^-1 a)w over the unit sphere by shifted power iterations from random starts."""
    b = torch.linalg.solve(hessian, a)
    matrix = torch.outer(a, b) / (a @ b)
    matrix = 0.5 * (matrix + matrix.mT)
    shifted = matrix + matrix.norm() * torch.eye(len(a), dtype=torch.float64)  # so that the largest one dominates
    for _ in range(10):  # squaring, 1024 iterations
        shifted = shifted @ shifted
        shifted = shifted / shifted.norm()
    w = torch.nn.functional.normalize(shifted @ normal(generator, len(a), 20), dim=0)
    found: float = (w * (matrix @ w)).sum(0).max().item()
    return found


def judge(estimates: list[Estimate]) -> list[Estimate]:
    """Give every estimate its interval, at a joint level for all of them."""
    judged, factor = [], quantile(LEVEL, len(estimates))
    for row in estimates:
        half = factor * row.error
        inside = abs(row.mean - row.predicted) <= half and row.case * row.mean >= 0
        judged.append(dataclasses.replace(row, half_width=half, inside=inside))
    return judged


def _symmetric(generator: torch.Generator, *shape: int) -> Tensor:
    x = normal(generator, *shape, shape[-1])
    return 0.25 * (x + x.mT)


def _definite(generator: torch.Generator, m: int, low: float, high: float, *batch: int) -> Tensor:
    """Positive definite matrices with random eigenvectors and eigenvalues from low to high."""
    basis = torch.linalg.qr(normal(generator, *batch, m, m)).Q
    spectrum = low * torch.logspace(0, 1, m, base=high / low, dtype=torch.float64)
    matrices: Tensor = basis @ torch.diag(spectrum) @ basis.mT
    return matrices
