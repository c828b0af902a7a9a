"""Random cone programs whose solutions are known by construction, or that have none."""

from __future__ import annotations

import torch
from torch import Tensor

from problems import Cones

DOUBLE = torch.float64
OF_EACH_KIND = {
    "zero": Cones(zero=3),
    "nonnegative": Cones(nonnegative=8),
    "second-order": Cones(second_order=(3, 3, 4)),
    "semidefinite": Cones(semidefinite=(3, 2, 3)),
    "exponential": Cones(exponential=4),
    "power": Cones(power=(0.3, 0.5, 0.8)),
    "all": Cones(1, 2, (3,), (2,), 2, (0.4,)),
}


def matrix(x: Tensor, n: int) -> Tensor:
    """The symmetric matrix of a lower triangle, column by column, with the entries off the diagonal times sqrt(2)."""
    X = torch.zeros(n, n, dtype=x.dtype)
    i, j = torch.triu_indices(n, n)  # of the transpose, row by row
    X[i, j] = x * torch.where(i == j, 1.0, torch.tensor(0.5, dtype=x.dtype).sqrt())
    return X.triu() + X.triu(1).T


def triangle(X: Tensor) -> Tensor:
    """The entries of a symmetric matrix, as above."""
    i, j = torch.triu_indices(len(X), len(X))
    return X[i, j] * torch.where(i == j, 1.0, torch.tensor(2.0, dtype=X.dtype).sqrt())


def complementary(cones: Cones, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """(s, z) with s in K, z in K*, s' z = 0 and s + z inside: on all kinds of faces."""

    def randn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=DOUBLE)

    def rand() -> Tensor:
        return torch.rand((), generator=generator, dtype=DOUBLE)

    s, z = [torch.zeros(cones.zero, dtype=DOUBLE)], [randn(cones.zero)]
    w = randn(cones.nonnegative)
    s, z = [*s, w.clamp(min=0)], [*z, (-w).clamp(min=0)]
    for d in cones.second_order:
        v = torch.nn.functional.normalize(randn(d - 1), dim=0)
        first, one = randn(1), torch.ones(1, dtype=DOUBLE)
        kind = rand()
        if kind < 0.6:
            s, z = [*s, (0.5 + rand()) * torch.cat([one, v])], [*z, (0.5 + rand()) * torch.cat([one, -v])]
        else:
            inside = torch.cat([1.5 + first.abs(), v])
            s, z = [*s, inside * (kind < 0.8)], [*z, inside * (kind >= 0.8)]
    for n in cones.semidefinite:
        Q = torch.linalg.qr(randn(n, n)).Q
        values = randn(n)
        values = values + 0.3 * values.sign()
        s = [*s, triangle(Q @ values.clamp(min=0).diag() @ Q.T)]
        z = [*z, triangle(Q @ (-values).clamp(min=0).diag() @ Q.T)]
    for _ in range(cones.exponential):
        x, y = randn(1), 0.5 + randn(1).abs()
        height = y * (x / y).exp()
        kind = rand()
        if kind < 0.7:
            s = [*s, torch.cat([x, y, height])]
            z = [*z, (0.5 + rand()) * torch.cat([-height / y, (x / y - 1) * height / y, torch.ones(1, dtype=DOUBLE)])]
        else:
            s = [*s, torch.cat([x, y, height + 1]) * (kind < 0.85)]
            z = [*z, torch.tensor([-1.0, 0.5, 1.5], dtype=DOUBLE) * (kind >= 0.85)]
    for a in cones.power:
        x, y = 0.5 + randn(1).abs(), 0.5 + randn(1).abs()
        height = x**a * y ** (1 - a)
        kind = rand()
        if kind < 0.7:
            s = [*s, torch.cat([x, y, height])]
            z = [*z, (0.5 + rand()) * torch.cat([a * height / x, (1 - a) * height / y, -torch.ones(1, dtype=DOUBLE)])]
        else:
            s = [*s, torch.cat([x, y, height / 3]) * (kind < 0.85)]
            z = [*z, torch.cat([a * x, (1 - a) * y, height / 3]) * (kind >= 0.85)]
    return torch.cat(s), torch.cat(z)


def solvable(cones: Cones, m: int, count: int, seed: int = 0) -> tuple[tuple[Tensor, ...], Tensor, Tensor]:
    """(P, q, A, b), and the solutions and multipliers; P is definite, so that the solutions are unique."""
    generator = torch.Generator().manual_seed(seed)
    pairs = [complementary(cones, generator) for _ in range(count)]
    s, z = (torch.stack(column) for column in zip(*pairs, strict=True))
    root = torch.randn(count, m, m, generator=generator, dtype=DOUBLE)
    P = root @ root.mT / m + 0.1 * torch.eye(m, dtype=DOUBLE)
    A = torch.randn(count, cones.rows, m, generator=generator, dtype=DOUBLE)
    u = torch.randn(count, m, generator=generator, dtype=DOUBLE)
    q = -torch.einsum("bij,bj->bi", P, u) - torch.einsum("bki,bk->bi", A, z)
    return (P, q, A, torch.einsum("bki,bi->bk", A, u) + s), u, z


def interior(cones: Cones) -> Tensor:
    """A point inside of K and, with its entries for equations, of K*."""
    of_second_order = [torch.tensor([2.0] + [0.3] * (d - 1), dtype=DOUBLE) for d in cones.second_order]
    of_semidefinite = [triangle(torch.eye(n, dtype=DOUBLE)) for n in cones.semidefinite]
    parts = [
        torch.ones(cones.zero + cones.nonnegative, dtype=DOUBLE),
        *of_second_order,
        *of_semidefinite,
        *[torch.tensor([-1.0, 0.6, 1.3], dtype=DOUBLE)] * cones.exponential,
        *[torch.tensor([1.0, 1.0, 0.2], dtype=DOUBLE)] * len(cones.power),
    ]
    return torch.cat(parts)


def infeasible(cones: Cones, m: int, count: int, seed: int = 0) -> tuple[Tensor, ...]:
    """(P, q, A, b) with A' z = 0 and b' z < 0 for a z inside of K*."""
    (P, q, A, b), _, _ = solvable(cones, m, count, seed)
    z = torch.nn.functional.normalize(interior(cones), dim=0)
    A = A - torch.einsum("k,l,bli->bki", z, z, A)
    return P, q, A, b - ((b @ z + 1.0).unsqueeze(-1) * z)


def unbounded(cones: Cones, m: int, count: int, seed: int = 0) -> tuple[Tensor, ...]:
    """(P, q, A, b) with P d = 0, -A d inside of K and q' d < 0 for a direction d, and a feasible point."""
    (P, q, A, b), _, _ = solvable(cones, m, count, seed)
    generator = torch.Generator().manual_seed(seed + 1)
    d = torch.nn.functional.normalize(torch.randn(m, generator=generator, dtype=DOUBLE), dim=0)
    across = torch.eye(m, dtype=DOUBLE) - torch.outer(d, d)
    inside = interior(cones)
    inside[: cones.zero] = 0.0
    A = A @ across - torch.einsum("k,i->ki", inside, d)
    return across @ P @ across, q - ((q @ d + 1.0).unsqueeze(-1) * d), A, b
