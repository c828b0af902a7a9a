"""Ways to choose z in the gradient -B'z, from exact to Jacobian-free.

| method        | z                                                                                                |
|---------------|--------------------------------------------------------------------------------------------------|
| exact         | [H A'; A 0] [z; s] = [v; 0]                                                                      |
| unconstrained | H_hat z = v: the paper's; without curvature of the constraints the same as `curvature`           |
| curvature     | H z = v                                                                                          |
| identity      | z = v: Jacobian-free                                                                             |
| 3 CG steps    | H z = v - A's, with s from three conjugate-gradient steps: none is `curvature`, many are exact   |
| one step      | the last iteration of a solver differentiated (Bolte, Pauwels and Vaiter, 2023)                  |
| 5 steps       | the last five: a Neumann series that is cut off                                                  |
| penalty       | (H + r A'A) z = v: the constraints replaced by a quadratic penalty, r from none to infinity      |
| LPGD          | (u(x moved by v) - u(x)) / step, where x is the linear term of the objective: a finite step      |
| smoothed      | the exact ones at the barrier 0.1                                                                |
| adaptive      | unconstrained, for as long as probes find it in line                                             |
| bounds / equality dropped | the exact ones of the problem without one kind of its constraints                    |

The solver is Sinkhorn's for transport, and a projected gradient method for the others. LPGD is that of Paulus, Martius
and Musil (2024) without their proximal term, and for a linear program the interpolation of Vlastelica et al. (2020).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from declarative import Adaptive, Rule, Smoothed
from declarative.gradients import as_rule

from ..shared.iteration import conjugate_gradients
from .families import Elimination, Family, Iteration, Parts

FEW, LAST = 3, 5
STIFF = 10.0  # times the mean eigenvalue of (A H^-1 A')^-1: the penalty
STEP, FAR_STEP = 0.1, 1.0  # of LPGD, relative to x; the second one for linear programs, whose solutions jump
BARRIER = 0.1
METHODS = (
    *("exact", "unconstrained", "curvature", "identity", f"{FEW} CG steps", "one step", f"{LAST} steps"),
    *("penalty", "LPGD", "smoothed", "adaptive", "bounds dropped", "equality dropped"),
)
# What is known beforehand, for a page; what is measured stands beside it.
PROVEN = {
    "exact": "the derivative; of a linear program it is zero",
    "unconstrained": "always downhill on the sphere; for linear constraints on average, if H⁻¹v is isotropic",
    "curvature": "exact for eigenvectors; else as unconstrained",
    "identity": "downhill where H is near enough to a multiple of I on the constraints",
    f"{FEW} CG steps": "exact after as many steps as there are constraints; the error falls geometrically in √κ(S)",
    "one step": "the error is at most the rate of the solver",
    f"{LAST} steps": "the error is at most that rate to the power of the steps",
    "penalty": "the error is of order one over the penalty",
    "LPGD": "exact as the step goes to zero",
    "smoothed": "exact as the barrier goes to zero",
    "adaptive": "nothing between two probes",
    "bounds dropped": "as unconstrained, of the problem with the equality alone",
    "equality dropped": "as unconstrained, of the problem with the bounds alone",
}
Choice = tuple[Tensor, Tensor]


def make_method(name: str, family: Family) -> Rule | None:
    """The rule; None where it would be the same as another one, or makes no sense."""
    steps = {"one step": 1, METHODS[6]: LAST}.get(name)
    if name == "curvature" and not family.curved:
        return None
    if name in ("unconstrained", "adaptive") and family.flat:
        return None  # without curvature there is nothing to invert
    if name in METHODS[:4]:
        return as_rule(name)
    if name == "adaptive":
        return Adaptive()
    if name == "smoothed":
        return (
            Smoothed(BARRIER) if family.flat else None
        )  # elsewhere the exact gradient says which way things are going
    if name == "LPGD":
        return None if family.slope is None else FiniteStep(family, family.slope, FAR_STEP if family.flat else STEP)
    if name.endswith("dropped"):
        return None if family.parts is None else Dropped(family.parts, name.split()[0])
    if name == "penalty":
        return None if family.elimination is None else Penalty(family.elimination, STIFF)
    if steps is not None and family.iteration is not None:
        return LastSteps(family.iteration, steps)
    if family.elimination is None:
        return None
    return (
        FewSteps(family.elimination, FEW) if steps is None else LastSweeps(family.elimination, family.shape[0], steps)
    )


@dataclass(frozen=True)
class FewSteps(Rule):
    """The exact rule with s found by a few steps of conjugate gradients, from zero."""

    of: Elimination
    steps: int

    def solve(self, point: Any, v: Tensor, w: Tensor) -> Choice:
        u, of = point.u, self.of

        def schur(s: Tensor) -> Tensor:
            return of.rows(u, of.inverse(u, of.columns(u, s)))

        s = conjugate_gradients(schur, of.rows(u, of.inverse(u, v)), self.steps)
        return of.inverse(u, v - of.columns(u, s)), torch.zeros_like(w)


@dataclass(frozen=True)
class Penalty(Rule):
    """(H + r A'A) z = v by (A H^-1 A' + I / r) s = A H^-1 v and H z = v - A's."""

    of: Elimination
    stiff: float  # r, times the mean of the diagonal of A H^-1 A'

    def solve(self, point: Any, v: Tensor, w: Tensor) -> Choice:
        u, of = point.u, self.of
        right = of.rows(u, of.inverse(u, v))
        units = torch.eye(right.shape[-1], dtype=v.dtype)
        columns = [of.rows(u, of.inverse(u, of.columns(u, unit.expand_as(right)))) for unit in units]
        schur = torch.stack(columns, -1)
        softness = schur.diagonal(dim1=-2, dim2=-1).mean(-1)[:, None, None] / self.stiff
        s = torch.linalg.solve(schur + softness * units, right)
        return of.inverse(u, v - of.columns(u, s)), torch.zeros_like(w)


@dataclass(frozen=True)
class FiniteStep(Rule):
    """How the solution moves if the linear term of the objective moves by a finite step along v."""

    family: Family
    slope: float
    step: float  # relative to x

    def solve(self, point: Any, v: Tensor, w: Tensor) -> Choice:
        """-z = (u(x + t v / slope) - u(x)) / t, for B = slope I."""
        x = next(x for x in point.batch.xs if x.shape == (len(v), *self.family.shape))
        length = v.norm(dim=-1, keepdim=True)
        size = x.flatten(1).norm(dim=-1, keepdim=True) / torch.where(length > 0, length, 1.0)
        t = (self.step * abs(self.slope) * size).clamp(min=torch.finfo(v.dtype).tiny)
        moved = self.family.layer(self.family.node, x + (t * v / self.slope).view(x.shape)).flatten(1)
        return (point.u - moved) / t, torch.zeros_like(w)


@dataclass(frozen=True)
class Dropped(Rule):
    """The exact rule without the bounds, or without the equality."""

    of: Parts
    what: str

    def solve(self, point: Any, v: Tensor, w: Tensor) -> Choice:
        a = self.of.normal
        free = v - a * (v @ a / (a @ a)).unsqueeze(-1) if self.what == "bounds" else v * self.of.inside(point.u)
        return free / self.of.curvature, torch.zeros_like(w)


@dataclass(frozen=True)
class LastSweeps(Rule):
    """The last sweeps of Sinkhorn's iteration, whose transposed derivative is a Gauss-Seidel iteration for s."""

    of: Elimination
    n: int
    steps: int

    def solve(self, point: Any, v: Tensor, w: Tensor) -> Choice:
        plan = point.u.unflatten(-1, (self.n, self.n))
        right, marginals = self.of.rows(point.u, point.u * v), self.of.rows(point.u, point.u)
        (b, d), (r, c) = (x.split(self.n, -1) for x in (right, marginals))
        rows = torch.zeros_like(b)
        for _ in range(self.steps):  # the iteration updates the columns last, so that its transpose begins with them
            columns = (d - (plan.mT @ rows.unsqueeze(-1)).squeeze(-1)) / c
            rows = (b - (plan @ columns.unsqueeze(-1)).squeeze(-1)) / r
        free = v - self.of.columns(point.u, torch.cat([rows, columns], -1))
        return self.of.inverse(point.u, free), torch.zeros_like(w)


@dataclass(frozen=True)
class LastSteps(Rule):
    """The last steps of a projected gradient method."""

    of: Iteration
    steps: int

    def solve(self, point: Any, v: Tensor, w: Tensor) -> Choice:
        x, u, of = point.batch.xs[0], point.u, self.of
        rate = of.rate(x, u)
        z = rate * of.project(u, v)
        for _ in range(self.steps - 1):
            z = of.project(u, z + rate * (v - of.hessian(x, u, z)))
        return z, torch.zeros_like(w)
