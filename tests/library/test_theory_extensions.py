"""The theory beyond the paper, against matrices that are inverted in the plain way and against random searches."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from declarative import DeclarativeNode
from declarative.theory.extensions import (
    active_rows,
    expected_singular,
    expected_weighted,
    expected_weighted_bounds,
    singular_worst_case,
    weighted_upper_bound,
    weighted_worst_case,
)
from declarative.theory.propositions import expected_curvature, sharp_upper_bound, worst_case
from tests.support.helpers import DOUBLE

M, P = 6, 2


@pytest.fixture
def random() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def normal(random: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=random, dtype=DOUBLE)


def definite(random: torch.Generator, *batch: int, spread: float = 2.0) -> Tensor:
    basis = torch.linalg.qr(normal(random, *batch, M, M)).Q
    values = 10 ** (spread * torch.rand(*batch, M, generator=random, dtype=DOUBLE))
    return basis @ (values.unsqueeze(-1) * basis.mT)


def map_of(H: Tensor, A: Tensor) -> Tensor:
    """v -> z, the upper left block of the inverse KKT matrix."""
    p = A.shape[-2]
    zero = H.new_zeros(*H.shape[:-2], p, p)
    matrix = torch.cat([torch.cat([H, A.mT], -1), torch.cat([A, zero], -1)], -2)
    return torch.linalg.inv(matrix)[..., :M, :M]


def test_expectation_for_any_inputs(random: torch.Generator) -> None:
    """E[w'H K M w] is a trace, with K from the KKT matrix."""
    H, A, B = definite(random, 20), normal(random, 20, P, M), normal(random, 20, M, M + 2)
    gram = B @ B.mT
    expected = (H @ map_of(H, A) @ gram).diagonal(dim1=-2, dim2=-1).sum(-1)
    torch.testing.assert_close(expected_weighted(H, A, gram), expected)
    identity = torch.eye(M, dtype=DOUBLE).expand(20, M, M)
    torch.testing.assert_close(expected_weighted(H, A, 3 * identity), 3 * expected_curvature(H, A))


def test_bounds_of_the_expectation_hold_and_meet(random: torch.Generator) -> None:
    H, A = definite(random, 500), normal(random, 500, P, M)
    B = normal(random, 500, M, M + 2)
    gram = B @ B.mT
    value, (low, high) = expected_weighted(H, A, gram), expected_weighted_bounds(H, A, gram)
    assert ((low <= value) & (value <= high)).all()
    identity = torch.eye(M, dtype=DOUBLE)
    low, high = expected_weighted_bounds(H, A, 3 * identity.expand_as(H))
    torch.testing.assert_close(low, high)
    # For H = I the two ends are the sums of the smallest and the largest eigenvalues that Ky Fan's theorem names.
    gram = torch.diag(torch.tensor([1.0, 2.0, 2.0, 2.0, 2.0, 3.0], dtype=DOUBLE))
    for row, end in ((0, 1), (-1, 0)):
        value = expected_weighted(identity, identity[[row]], gram)
        torch.testing.assert_close(value, expected_weighted_bounds(identity, identity[[row]], gram)[end])


def test_worst_case_for_any_inputs(random: torch.Generator) -> None:
    """The largest w'Q'Mw / w'Mw, by the generalised eigenvalues of the two forms; and no random w is worse."""
    H, A, B = definite(random, 30), normal(random, 30, P, M), normal(random, 30, M, M + 2)
    gram = B @ B.mT
    form = (torch.eye(M, dtype=DOUBLE) - H @ map_of(H, A)) @ gram  # Q'M
    values = torch.linalg.eigvals(torch.linalg.solve(gram, (form + form.mT) / 2)).real.amax(-1)
    found = weighted_worst_case(H, A, gram)
    torch.testing.assert_close(found, values, rtol=1e-6, atol=0)
    w = normal(random, 1000, 30, M, 1)
    ratios = (w.mT @ form @ w) / (w.mT @ gram @ w)
    assert (ratios.squeeze() <= found * (1 + 1e-9)).all()
    assert (found <= weighted_upper_bound(H, gram) * (1 + 1e-9)).all()
    torch.testing.assert_close(weighted_worst_case(H, A, torch.eye(M, dtype=DOUBLE).expand_as(H)), worst_case(H, A))


def test_the_upper_bound_for_any_inputs_is_attained(random: torch.Generator) -> None:
    H, B = definite(random), normal(random, M, M)
    gram = B @ B.mT
    factor = torch.linalg.cholesky(gram)
    inner = torch.linalg.solve(factor, torch.linalg.solve(factor, H).mT)
    values, vectors = torch.linalg.eigh(inner)
    row = (values[0].sqrt() * vectors[:, 0] + values[-1].sqrt() * vectors[:, -1]) @ factor.mT
    torch.testing.assert_close(weighted_worst_case(H, row.unsqueeze(0), gram), weighted_upper_bound(H, gram))
    torch.testing.assert_close(weighted_upper_bound(H, torch.eye(M, dtype=DOUBLE)), sharp_upper_bound(H))
    assert weighted_upper_bound(H, torch.zeros(M, M, dtype=DOUBLE)).isnan()
    torch.testing.assert_close(weighted_upper_bound(7 * gram, gram).item(), 1.0)


def singular(random: torch.Generator, dimension: int) -> tuple[Tensor, Tensor]:
    """A Hessian with so many flat directions, and those."""
    basis = torch.linalg.qr(normal(random, M, M)).Q
    values = torch.cat([torch.zeros(dimension), 1 + 5 * torch.rand(M - dimension, generator=random)]).double()
    return basis @ torch.diag(values) @ basis.mT, basis[:, :dimension].mT


@pytest.mark.parametrize("dimension", [0, 1, 2])
def test_expectation_of_a_singular_hessian(dimension: int, random: torch.Generator) -> None:
    """By simulation of v = H w + (anything in the null space)."""
    H, null = singular(random, dimension)
    A = normal(random, P, M)
    K = map_of(H, A)
    w = normal(random, 200_000, M)
    w = w - (w @ null.mT) @ null
    v = w @ H + 3 * normal(random, 200_000, dimension) @ null
    products = ((v @ K) * w).sum(-1)
    expected = expected_singular(H, A)
    assert expected == M - P
    error = products.std() / len(products) ** 0.5
    assert (products.mean() - expected).abs() < 4 * error
    assert expected_singular(H, A[:0]).isnan() == (dimension > 0)


@pytest.mark.parametrize("dimension", [0, 1, 2])
def test_worst_case_of_a_singular_hessian(dimension: int, random: torch.Generator) -> None:
    H, null = singular(random, dimension)
    A = torch.cat([null, normal(random, 1, M)])  # the flat directions are among the rows
    form = torch.eye(M, dtype=DOUBLE) - map_of(H, A) @ H
    w = normal(random, 50_000, M)
    w = torch.nn.functional.normalize(w - (w @ null.mT) @ null, dim=-1)
    ratios = ((w @ form) * w).sum(-1)
    found = singular_worst_case(H, A)
    assert found >= ratios.max() * (1 - 1e-9)
    assert found <= ratios.max() * 1.1
    if dimension:
        assert singular_worst_case(H, normal(random, P, M)).isinf()
        assert singular_worst_case(H, null) == 0
    else:
        torch.testing.assert_close(found, worst_case(H, A))


def test_active_inequalities_count(random: torch.Generator) -> None:
    """Through a node whose bounds are active for some: the expectation over incoming gradients."""
    H, A = definite(random, spread=1.0), normal(random, 1, M)
    node = DeclarativeNode(
        lambda x, u: x @ u + u @ H @ u / 2,
        lambda x, u: A @ u,  # noqa: ARG005
        lambda x, u: -0.1 - u,  # noqa: ARG005
        start=M,
    )
    x = normal(random, M)
    d = node.derivatives(x.unsqueeze(0))
    count = int(d.active.sum())
    assert 0 < count < M - 1
    expected = expected_curvature(d.H, active_rows(d.A, d.G, d.active))
    assert expected.item() == M - 1 - count
    inputs = x.expand(3000, M).clone().requires_grad_()
    v = normal(random, 3000, M) @ H
    g, g_hat = (torch.autograd.grad(node.with_gradient(rule)(inputs), inputs, v)[0] for rule in ("exact", "curvature"))
    products = (g * g_hat).sum(-1)
    assert (products.mean() - expected).abs() < 4 * products.std() / 3000**0.5


def test_the_report_knows_singular_hessians() -> None:
    """u_1 occurs in the constraint alone, or is tied to u_2 by it."""

    def curved(x: Tensor, u: Tensor) -> Tensor:
        return x @ u + u[1:].square().sum()

    x = torch.ones(1, 3, dtype=DOUBLE)
    for rows, worst in ((torch.tensor([1.0, 0.0, 0.0]), 0.0), (torch.tensor([1.0, 1.0, 0.0]), torch.inf)):
        a = rows.double()
        node = DeclarativeNode(curved, lambda x, u, a=a: a @ u - 1, start=3)  # noqa: ARG005
        found = node.descent(x, torch.ones_like(x))["curvature"]
        assert found.expectation.tolist() == [2.0]
        assert found.worst_case.tolist() == [worst]
