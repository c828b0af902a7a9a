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

The solver is Sinkhorn's for transport, and a projected gradient method for the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from declarative import Rule
from declarative.gradients import as_rule

from ..shared.iteration import conjugate_gradients
from .families import Elimination, Family, Iteration

FEW, LAST = 3, 5
METHODS = ("exact", "unconstrained", "curvature", "identity", f"{FEW} CG steps", "one step", f"{LAST} steps")
Choice = tuple[Tensor, Tensor]


def make_method(name: str, family: Family) -> Rule | None:
    """The rule; None where it would be the same as another one, or makes no sense."""
    steps = {"one step": 1, METHODS[6]: LAST}.get(name)
    if name == "curvature" and not family.curved:
        return None
    if name in METHODS[:4]:
        return as_rule(name)
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
