"""Problems with known solutions, and the ways to solve them; the tests are products over these tables.

Every truth is a torch function of the inputs that does not use the library: its derivative, by plain autograd, is the
truth for gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from declarative import DeclarativeNode

DOUBLE = torch.float64


@dataclass(frozen=True)
class Case:
    name: str
    objective: Callable[..., Tensor]
    truth: Callable[..., Tensor]  # (*xs) -> y for the batch
    inputs: Callable[[int, torch.Generator], tuple[Tensor, ...]]  # (batch, generator) -> xs
    equality: Callable[..., Tensor] | None = None
    inequality: Callable[..., Tensor] | None = None
    start: Any = None
    options: dict[str, Any] = field(default_factory=dict)
    redundant: bool = False  # constraints depend on each other: one of many multipliers, of which no gradient speaks
    not_for: tuple[str, ...] = ()  # solvers that cannot do it
    sign_free: bool = False  # y and -y are both solutions

    def node(self, solver: Any = None, **options: Any) -> DeclarativeNode:
        solver = self.truth if solver == "closed form" else solver
        given = {"solver": solver, "start": self.start, **self.options, **options}
        return DeclarativeNode(self.objective, self.equality, self.inequality, **given)

    def xs(self, batch: int = 3, dtype: torch.dtype = DOUBLE, seed: int = 0) -> tuple[Tensor, ...]:
        generator = torch.Generator().manual_seed(1000 + seed)  # not the seed of the cotangents
        return tuple(x.to(dtype).requires_grad_() for x in self.inputs(batch, generator))

    def __str__(self) -> str:
        return self.name


def normal(*shape: int) -> Callable[[int, torch.Generator], tuple[Tensor, ...]]:
    return lambda batch, g: (torch.randn(batch, *shape, generator=g, dtype=DOUBLE),)


def half_square(x: Tensor, u: Tensor) -> Tensor:
    return 0.5 * (u - x).square().sum()


def unit(_: Tensor, u: Tensor) -> Tensor:
    """Zero on the unit sphere."""
    return u.square().sum() - 1


def normalise(x: Tensor) -> Tensor:
    return x / x.norm(dim=-1, keepdim=True)


PLANE = torch.tensor([1.0, 2.0, -1.0, 0.5], dtype=DOUBLE)
PLANES = torch.tensor([[1.0, 2.0, -1.0, 0.5, 0.0], [0.0, 1.0, 1.0, -2.0, 1.0]], dtype=DOUBLE)
Q = torch.tensor([[3.0, 1.0, 0.0, 0.2], [1.0, 2.0, 0.5, 0.0], [0.0, 0.5, 1.5, 0.1], [0.2, 0.0, 0.1, 1.0]], dtype=DOUBLE)


def quadratic_truth(x: Tensor) -> Tensor:
    """min u'Qu/2 - x'u subject to PLANE'u = 1, from its KKT system."""
    q, plane = Q.to(x.dtype), PLANE.to(x.dtype)
    matrix = torch.zeros(5, 5, dtype=x.dtype)
    matrix[:4, :4], matrix[:4, 4], matrix[4, :4] = q, plane, plane
    right = torch.cat([x, torch.ones_like(x[:, :1])], -1)
    return torch.linalg.solve(matrix, right.mT).mT[:, :4]


def onto_planes(x: Tensor) -> Tensor:
    planes = PLANES.to(x.dtype)
    gap = x @ planes.mT - 1.0
    return x - torch.linalg.solve(planes @ planes.mT, gap.mT).mT @ planes


def simplex_truth(x: Tensor) -> Tensor:
    """Projection onto the probability simplex by sorting."""
    ordered = x.sort(-1, descending=True).values
    count = torch.arange(1, x.shape[-1] + 1, dtype=x.dtype, device=x.device)
    threshold = (ordered.cumsum(-1) - 1) / count
    size = (ordered > threshold).sum(-1, keepdim=True)
    return (x - threshold.gather(-1, size - 1)).clamp(min=0.0)


def largest_eigenvector(x: Tensor) -> Tensor:
    y = torch.linalg.eigh(0.5 * (x + x.mT)).eigenvectors[..., -1]
    return y * y.detach()[..., :1].sign()


def ball_inputs(batch: int, g: torch.Generator) -> tuple[Tensor, ...]:
    """Radii below and above 1 in turn, so that the constraint is active for some problems and not for others."""
    direction = normalise(torch.randn(batch, 3, generator=g, dtype=DOUBLE))
    return (direction * torch.tensor([0.4, 2.5], dtype=DOUBLE).repeat(batch)[:batch, None],)


def shared_inputs(batch: int, g: torch.Generator) -> tuple[Tensor, ...]:
    return torch.randn(batch, 3, generator=g, dtype=DOUBLE), torch.randn(3, generator=g, dtype=DOUBLE)


def positive(*shape: int) -> Callable[[int, torch.Generator], tuple[Tensor, ...]]:
    return lambda batch, g: (0.5 + torch.rand(batch, *shape, generator=g, dtype=DOUBLE),)


def onto_shared_plane(x: Tensor, a: Tensor) -> Tensor:
    return x - (x @ a - 1).unsqueeze(-1) * a / a.square().sum()


CASES = [
    Case("sphere", half_square, normalise, normal(4), lambda _, u: (u.square().sum() - 1) / 2, start=lambda x: x),
    Case(
        "linear-equality quadratic",
        lambda x, u: 0.5 * u @ Q.to(u.dtype) @ u - x @ u,
        quadratic_truth,
        normal(4),
        lambda _, u: PLANE.to(u.dtype) @ u - 1,
        start=4,
    ),
    Case(
        "input only in the constraint",
        lambda _, u: 0.5 * u.square().sum(),
        lambda x: x[:, None] * PLANE.to(x.dtype) / PLANE.to(x.dtype).square().sum(),
        normal(),
        lambda x, u: PLANE.to(u.dtype) @ u - x,
        start=4,
    ),
    Case(
        "nonlinear constraint with the input in it",
        lambda _, u: u.square().sum(),
        lambda x: x.sqrt()[:, None].expand(-1, 2),
        positive(),
        lambda x, u: u[0] * u[1] - x,
        start=torch.ones(2),
    ),
    Case(
        "several constraints",
        half_square,
        onto_planes,
        normal(5),
        lambda _, u: PLANES.to(u.dtype) @ u - 1,
        start=5,
    ),
    Case(
        "eigenvector: singular H, regular KKT matrix",
        lambda x, u: -0.5 * u @ x @ u,
        largest_eigenvector,
        normal(4, 4),
        lambda _, u: (u.square().sum() - 1) / 2,
        start=4,
        sign_free=True,
    ),
    Case("unconstrained", lambda x, u: (u.exp() - x * u).sum(), torch.log, positive(3), start=3),
    Case(
        "inequality active",
        half_square,
        lambda x: x - (x.sum(-1, keepdim=True) + 5) / 3,
        normal(3),
        inequality=lambda _, u: u.sum() + 5,
        start=3,
    ),
    Case(
        "inequality inactive", half_square, lambda x: x + 0.0, normal(3), inequality=lambda _, u: u.sum() - 50, start=3
    ),
    Case(
        "box: a mixture of active and inactive",
        half_square,
        lambda x: x.clamp(-0.5, 0.5),
        normal(4),
        inequality=lambda _, u: torch.cat([u - 0.5, -0.5 - u]),
        start=torch.zeros(4),
    ),
    Case(
        "ball: nonlinear, active for some problems only",
        half_square,
        lambda x: x / x.norm(dim=-1, keepdim=True).clamp(min=1.0),
        ball_inputs,
        inequality=lambda _, u: u.square().sum() - 1,
        start=torch.tensor([0.1, 0.2, 0.3]),
    ),
    Case(
        "simplex: equality and inequality",
        half_square,
        simplex_truth,
        normal(5),
        lambda _, u: u.sum() - 1,
        lambda _, u: -u,
        start=torch.full((5,), 0.2),
    ),
    Case(
        "redundant constraints",
        half_square,
        onto_planes,
        normal(5),
        lambda _, u: torch.cat([PLANES.to(u.dtype) @ u - 1, (PLANES.to(u.dtype) @ u - 1).sum(0, keepdim=True)]),
        start=5,
        redundant=True,
        not_for=("scipy",),  # SLSQP stops at a singular constraint matrix
    ),
    Case(
        "u a matrix",
        lambda x, u: 0.5 * (u - x).square().sum(),
        lambda x: x - (x.sum(-2, keepdim=True) - 1) / 2,
        normal(2, 3),
        lambda _, u: u.sum(0) - 1,
        start=(2, 3),
    ),
    Case(
        "two inputs, one shared",
        lambda x, a, u: 0.5 * (u - x).square().sum() + 0.0 * a.sum(),
        onto_shared_plane,
        shared_inputs,
        lambda _, a, u: a @ u - 1,
        start=3,
        options={"in_dims": (0, None)},
    ),
    Case("u a scalar", lambda x, u: (x - u).square().sum(), lambda x: x.mean(-1), normal(5), start=()),
    Case(
        "as many constraints as unknowns",
        lambda _, u: u.square().sum(),
        torch.log,
        positive(2),
        lambda x, u: u.exp() - x,
        start=2,
    ),
]
REGULAR = [case for case in CASES if not case.redundant]
SOLVERS = ["closed form", "newton", "scipy"]
RULES = ["exact", "unconstrained", "curvature", "identity"]


def cases(table: list[Case] = CASES) -> list[Any]:
    import pytest

    return [pytest.param(case, id=case.name) for case in table]


def solved_cases(solvers: list[str] = SOLVERS, table: list[Case] = CASES) -> list[Any]:
    """Every problem with every solver that can do it."""
    import pytest

    pairs = [(case, solver) for case in table for solver in solvers if solver not in case.not_for]
    return [pytest.param(case, solver, id=f"{case.name}-{solver}") for case, solver in pairs]


def case(name: str) -> Case:
    return next(c for c in CASES if c.name.startswith(name))


def up_to_sign(y: Tensor, truth: Tensor) -> Tensor:
    """y, turned to the side of the truth (for eigenvectors)."""
    return y * (y * truth).sum(-1, keepdim=True).detach().sign()


def gradients(y: Tensor, xs: tuple[Tensor, ...], v: Tensor) -> tuple[Tensor, ...]:
    grads = torch.autograd.grad(y, xs, v.to(y.dtype), allow_unused=True)
    return tuple(torch.zeros_like(x) if g is None else g for x, g in zip(xs, grads, strict=True))


def relative(value: Tensor, truth: Tensor) -> float:
    """The largest difference, relative to the largest entry of the truth (absolute where that is zero)."""
    size = float(truth.detach().abs().max())
    return float((value - truth).detach().abs().max()) / (size or 1.0)


def in_threads(work: Callable[[Any], Any], arguments: Sequence[Any]) -> list[Any]:
    """What a function returns for each of them, in as many threads at once; an error in one of them is raised here."""
    with ThreadPoolExecutor(len(arguments)) as pool:
        return list(pool.map(work, arguments))
