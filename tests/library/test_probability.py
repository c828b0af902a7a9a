"""The probability of descent: against closed forms, simulations, and nodes."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats
from torch import Tensor

from declarative import DeclarativeNode
from declarative.theory.probability import (
    chance_of_positive,
    form_of_curvature,
    form_of_identity,
    form_of_unconstrained,
    least_chance,
    never_negative,
)
from declarative.theory.propositions import worst_case
from problems import EqualityQP, SphereProjection
from tests.support.helpers import DOUBLE

SAMPLES = 200_000


def spread(m: int, condition: float) -> Tensor:
    """Eigenvalues from 1 to the condition number."""
    return torch.logspace(0, math.log10(condition), m, dtype=DOUBLE)


@pytest.mark.parametrize("k", [1, 2, 7, 300])
@pytest.mark.parametrize("n", [1, 3, 200])
@pytest.mark.parametrize("ratio", [1e-8, 0.03, 1.0, 20.0, 1e6])
def test_two_eigenvalues_are_a_quotient_of_chi_squares(k: int, n: int, ratio: float):
    values = torch.cat([torch.ones(k, dtype=DOUBLE), torch.full((n,), -ratio, dtype=DOUBLE)])
    truth = stats.f.sf(ratio * n / k, k, n)
    assert abs(chance_of_positive(7e-9 * values).item() - truth) < 1e-12
    assert abs(chance_of_positive(-values).item() - (1 - truth)) < 1e-12


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE], ids=str)
def test_any_eigenvalues_against_a_simulation(dtype: torch.dtype):
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(12, 6, generator=generator, dtype=DOUBLE) * 10 ** torch.randn(12, 6, generator=generator)
    squares = torch.randn(SAMPLES, 6, generator=generator, dtype=DOUBLE).square()
    found = chance_of_positive(values.to(dtype)).double()
    share = (squares @ values.T > 0).double().mean(0)
    assert ((found - share).abs() < 5 * (share * (1 - share) / SAMPLES).sqrt() + 1e-4).all()
    assert ((share > 0.01) & (share < 0.99)).sum() > 5


def test_forms_without_a_sign_change():
    values = torch.tensor([[1.0, 2.0, 0.0], [-1.0, -2.0, 0.0], [0.0, 0.0, 0.0], [math.nan, 1.0, -1.0]])
    assert chance_of_positive(values)[:3].tolist() == [1.0, 0.0, 1.0]
    assert chance_of_positive(values)[3].isnan()
    assert never_negative(values).tolist() == [True, False, True, False]
    assert chance_of_positive(torch.ones(2, 1)).tolist() == [1.0, 1.0]
    assert chance_of_positive(torch.ones(0, 3)).shape == (0,)


@pytest.mark.parametrize(("m", "p"), [(4, 1), (4, 2), (6, 5), (9, 3)])
def test_the_forms_are_those_of_the_gradients(m: int, p: int):
    """g'g_hat for random v, by the formulas of the rules, is the form with its eigenvalues: trace and largest value."""
    bases = torch.linalg.qr(torch.randn(2, m, m, dtype=DOUBLE))[0]
    H, H_hat = (basis @ spread(m, x).diag() @ basis.T for basis, x in zip(bases, (50.0, 3.0), strict=True))
    A = torch.randn(p, m, dtype=DOUBLE)
    K = torch.zeros(m + p, m + p, dtype=DOUBLE)
    K[:m, :m], K[:m, m:], K[m:, :m] = H, A.T, A
    z = torch.linalg.inv(K)[:m, :m] @ H  # of w
    for found, g_hat in (
        (form_of_curvature(H, A), torch.eye(m, dtype=DOUBLE)),
        (form_of_unconstrained(H, H_hat, A), torch.linalg.inv(H_hat) @ H),
        (form_of_identity(H, A), H),
    ):
        truth = torch.linalg.eigvalsh((z.T @ g_hat + g_hat.T @ z) / 2)
        assert (found - truth).abs().max() < 1e-9 * truth.abs().max()
    assert abs(1 - form_of_curvature(H, A)[0] - worst_case(H, A)) < 1e-9


@pytest.mark.parametrize(("m", "p"), [(2, 1), (4, 1), (5, 2), (5, 3), (6, 5)])
@pytest.mark.parametrize("condition", [3.0, 1e2, 1e4])
def test_no_constraint_is_worse_than_the_bound_and_one_attains_it(m: int, p: int, condition: float):
    generator, pairs = torch.Generator().manual_seed(m), min(p, m - p)
    bound = least_chance(torch.tensor(condition, dtype=DOUBLE), m, p)
    for H in (spread(m, condition).diag(), torch.tensor([1.0] * (m - 1) + [condition], dtype=DOUBLE).diag()):
        A = torch.randn(300, p, m, generator=generator, dtype=DOUBLE) @ H.sqrt() ** 0.5
        assert (chance_of_positive(form_of_curvature(H.expand(300, m, m), A)) >= bound - 1e-9).all()
    values = torch.full((m,), 2.0, dtype=DOUBLE)
    values[:pairs], values[pairs : 2 * pairs] = 1.0, condition
    A = torch.zeros(p, m, dtype=DOUBLE)
    for i in range(pairs):  # Kantorovich's vector in each pair of extreme eigenvectors
        A[i, i], A[i, pairs + i] = 1.0, condition**0.5
    for i in range(pairs, p):  # what is left holds single unknowns
        A[i, pairs + i] = 1.0
    assert abs(chance_of_positive(form_of_curvature(values.diag(), A)) - bound) < 1e-9


@pytest.mark.parametrize("condition", [1.0, 10.0, 1e4])
def test_the_reported_probability_is_the_share_of_directions_that_descend(condition: float):
    """Of 20,000 incoming gradients v = H w of an equality QP with m = 4, by its own gradients."""
    generator = torch.Generator().manual_seed(3)
    H, A = spread(4, condition).diag(), torch.tensor([[1.0, 0.3, -0.2, condition**0.5]], dtype=DOUBLE)
    w = torch.randn(20_000, 4, generator=generator, dtype=DOUBLE)
    q = torch.randn(1, 4, generator=generator, dtype=DOUBLE).expand(20_000, 4).clone().requires_grad_()
    xs = H, q, A, torch.ones(1, dtype=DOUBLE)
    report = EqualityQP().descent(*xs, w @ H)["unconstrained"]
    (chance,) = report.probability.unique().tolist()[:1]
    assert (report.probability - chance).abs().max() < 1e-9
    share = report.descends.double().mean().item()
    assert abs(share - chance) < 5 * max(share * (1 - share) / 20_000, 1e-8) ** 0.5
    assert (chance == 1) == (condition == 1)


def ill_conditioned(m: int = 4, condition: float = 1e4) -> DeclarativeNode:
    H, a = spread(m, condition), torch.ones(m, dtype=DOUBLE)
    a[-1] = condition**0.5
    return DeclarativeNode(lambda x, u: (H * u.square()).sum() / 2 + x @ u, lambda x, u: a @ u - 1, start=m)  # noqa: ARG005


def test_a_batch_that_happens_to_descend_is_not_safe():
    """Half of all directions ascend; those of this batch do not."""
    node, x = ill_conditioned(), torch.zeros(200, 4, dtype=DOUBLE)
    v = torch.randn(200, 4, generator=torch.Generator().manual_seed(0), dtype=DOUBLE) * spread(4, 1e4)
    report = node.descent(x, v)["unconstrained"]
    assert 20 < report.descends.sum() < 180
    lucky = node.descent(x[report.descends], v[report.descends])["unconstrained"]
    assert lucky.descends.all()
    assert (lucky.worst_case > 10).all()
    assert not lucky.always.any()
    assert not lucky.verdict.startswith("safe")
    assert f"probability of {lucky.probability[0]:.2f}" in lucky.verdict


def test_safe_is_what_descends_for_every_direction():
    for node, x in (
        (SphereProjection(), torch.randn(5, 4, dtype=DOUBLE)),
        (ill_conditioned(condition=1.0), torch.zeros(5, 4, dtype=DOUBLE)),
    ):
        v = torch.randn(5, 4, dtype=DOUBLE)
        for name in ("unconstrained", "curvature", "identity"):
            rule = node.descent(x, v)[name]
            assert rule.verdict.startswith("safe: descends for every v")
            assert rule.always.all()
            assert (rule.probability == 1).all()


def test_the_direction_of_the_exact_gradient_for_one_v_alone_is_not_safe():
    """v = H z for a z within the constraint, so that it makes no difference for this v."""
    node, H = ill_conditioned(), spread(4, 1e4)
    z = torch.tensor([[1.0, -1.0, 0.0, 0.0]], dtype=DOUBLE)
    rule = node.descent(torch.zeros(1, 4, dtype=DOUBLE), z * H)["unconstrained"]
    assert rule.cosine.item() > 1 - 1e-9
    assert not rule.verdict.startswith("safe")
