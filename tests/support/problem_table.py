"""The ready-made layers with inputs at which they are smooth: the conformance tests run over this table."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from declarative import DeclarativeNode
from problems import (
    BallProjection,
    ConeProgram,
    Cones,
    Eigenvectors,
    EntropicSimplex,
    EqualityQP,
    LeastSquares,
    OptimalTransport,
    QuadraticProgram,
    RobustPooling,
    RotationProjection,
    SimplexProjection,
    SphereProjection,
)

RULES = ("exact", "curvature", "unconstrained", "identity")


@dataclass(frozen=True)
class Case:
    name: str
    layer: DeclarativeNode
    draw: Callable[[torch.Generator], tuple[Tensor, ...]]

    def inputs(self, dtype: torch.dtype = torch.float64, seed: int = 3) -> tuple[Tensor, ...]:
        """The same numbers in every precision."""
        xs = self.draw(torch.Generator().manual_seed(seed))
        return tuple(x.to(dtype).requires_grad_() for x in xs)


def randn(*shape: int) -> Callable[[torch.Generator], tuple[Tensor, ...]]:
    return lambda generator: (torch.randn(*shape, generator=generator, dtype=torch.float64),)


def spread(generator: torch.Generator) -> tuple[Tensor, ...]:
    """Some problems with active constraints, and one without."""
    (x,) = randn(4, 5)(generator)
    return (x * torch.tensor([2.0, 1.0, 3.0, 0.1], dtype=x.dtype).unsqueeze(-1),)


def marginal(generator: torch.Generator, *shape: int) -> Tensor:
    x = torch.rand(*shape, generator=generator, dtype=torch.float64) + 0.5
    return x / x.sum(-1, keepdim=True)


def transport(m: int, n: int) -> Callable[[torch.Generator], tuple[Tensor, ...]]:
    def draw(generator: torch.Generator) -> tuple[Tensor, ...]:
        M = torch.rand(2, m, n, generator=generator, dtype=torch.float64)
        return M, marginal(generator, 2, m), marginal(generator, n)

    return draw


def program(m: int, p: int, n: int) -> Callable[[torch.Generator], tuple[Tensor, ...]]:
    """Feasible by construction; without inequalities if n is zero."""

    def draw(generator: torch.Generator) -> tuple[Tensor, ...]:
        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64)

        root, q, A, G, inside = normal(2, m, m), normal(2, m), normal(2, p, m), normal(2, n, m), normal(2, m, 1)
        Q = root @ root.mT / m + 0.3 * torch.eye(m, dtype=q.dtype)
        h = (G @ inside).squeeze(-1) + torch.rand(2, n, generator=generator, dtype=q.dtype)
        xs = (Q, q, A, (A @ inside).squeeze(-1), G, h)
        return xs if n else xs[:4]

    return draw


def cone_program(generator: torch.Generator) -> tuple[Tensor, ...]:
    Q, q, A, b, G, h = program(3, 1, 3)(generator)
    return Q, q, torch.cat([A, G], -2), torch.cat([b, h], -1)


def regression(generator: torch.Generator) -> tuple[Tensor, ...]:
    A = torch.randn(2, 4, 2, generator=generator, dtype=torch.float64)
    b = torch.randn(2, 4, generator=generator, dtype=torch.float64)
    return A, b, torch.rand(4, generator=generator, dtype=torch.float64) + 0.2


def outliers(generator: torch.Generator) -> tuple[Tensor, ...]:
    (x,) = randn(2, 4)(generator)
    return (torch.cat([x, x[:, :1] + 9], -1),)


TABLE = [
    Case("sphere", SphereProjection(), randn(3, 4)),
    Case("sphere-m1", SphereProjection(), randn(3, 1)),
    Case("transport", OptimalTransport(3.0), transport(3, 2)),
    Case("transport-wide", OptimalTransport(1.0), transport(2, 3)),
    Case("transport-row", OptimalTransport(2.0), transport(1, 4)),
    Case("transport-column", OptimalTransport(2.0), transport(4, 1)),
    Case("transport-uniform", OptimalTransport(5.0), lambda generator: transport(3, 4)(generator)[:1]),
    Case("eigen", Eigenvectors(), randn(2, 4, 4)),
    Case("eigen-largest", Eigenvectors(k=1), randn(2, 4, 4)),
    Case("eigen-smallest", Eigenvectors(k=2, largest=False), randn(2, 4, 4)),
    Case("simplex", SimplexProjection(), spread),
    Case("entropic", EntropicSimplex(0.7), randn(3, 4)),
    Case("ball", BallProjection(1.5), spread),
    Case("box", BallProjection(0.8, norm=math.inf), spread),
    Case("equality-qp", EqualityQP(), program(3, 1, 0)),
    Case("qp", QuadraticProgram(), program(3, 1, 3)),
    Case("qp-inequality", QuadraticProgram(), program(2, 0, 3)),
    Case("cone-program", ConeProgram(Cones(zero=1, nonnegative=3)), cone_program),
    Case("least-squares", LeastSquares(), regression),
    Case("ridge", LeastSquares(0.3), lambda generator: regression(generator)[:2]),
    Case("rotation-2", RotationProjection(), randn(2, 2, 2)),
    Case("rotation-3", RotationProjection(), randn(2, 3, 3)),
    *(
        Case(f"pooling-{penalty}", RobustPooling(penalty), outliers)
        for penalty in ("quadratic", "pseudo-huber", "huber", "welsch", "truncated")
    ),
]
