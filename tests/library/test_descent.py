"""The paper's results against brute force and Monte Carlo, and the report that applies them to a node."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from declarative import Adaptive, ClosedForm, DeclarativeNode, NumericalWarning, check
from declarative.theory import descent, propositions
from declarative.theory.assumptions import LARGE
from problems import Eigenvectors, OptimalTransport, SphereProjection
from tests.support.helpers import DOUBLE, Case, case, cases, gradients

SAMPLES = 200_000


def symmetric(m: int, low: float, high: float, batch: int = 1) -> Tensor:
    """Random symmetric matrices with eigenvalues spread evenly (geometrically) over [low, high]."""
    basis = torch.linalg.qr(torch.randn(batch, m, m, dtype=DOUBLE)).Q
    values = torch.logspace(math.log10(low), math.log10(high), m, dtype=DOUBLE)
    return basis @ (values.unsqueeze(-1) * basis.mT)


def projector(hessian: Tensor, rows: Tensor) -> Tensor:
    """A'(A H^-1 A')^-1 A H^-1, by the book."""
    inverse = torch.linalg.inv(hessian)
    return rows.mT @ torch.linalg.inv(rows @ inverse @ rows.mT) @ rows @ inverse


def sample_mean(matrix: Tensor) -> tuple[float, float]:
    """The mean of w'Mw over w ~ N(0, I), and five standard errors of it."""
    w = torch.randn(SAMPLES, matrix.shape[-1], dtype=DOUBLE)
    values = ((w @ matrix) * w).sum(-1)
    return values.mean().item(), 5 * values.std().item() / SAMPLES**0.5


# Lemmas.


@pytest.mark.parametrize("m", [2, 3, 7])
def test_lemma_1_eigenvalues_and_eigenvectors_of_a_symmetric_product(m: int) -> None:
    a, b = torch.randn(2, 20, m, dtype=DOUBLE)
    values, vectors = propositions.symmetric_product(a, b)
    matrix = a.unsqueeze(-1) * b.unsqueeze(-2) + b.unsqueeze(-1) * a.unsqueeze(-2)
    truth = torch.linalg.eigvalsh(matrix)
    torch.testing.assert_close(values, truth[:, [0, -1]])
    torch.testing.assert_close(matrix @ vectors, vectors * values.unsqueeze(-2))
    torch.testing.assert_close(vectors.mT @ vectors, torch.eye(2, dtype=DOUBLE).expand(20, 2, 2))


def test_lemma_1_parallel_vectors_have_one_eigenvector() -> None:
    a = torch.tensor([1.0, 2.0, 2.0], dtype=DOUBLE)
    values, vectors = propositions.symmetric_product(a, 2 * a)
    torch.testing.assert_close(values, torch.tensor([0.0, 36.0], dtype=DOUBLE))
    assert vectors[:, 0].isnan().all()
    torch.testing.assert_close(vectors[:, 1], a / 3)


@pytest.mark.parametrize("m", [2, 3, 7])
def test_lemma_2_spectrum_of_a_projection(m: int) -> None:
    a, b = torch.randn(2, 20, m, dtype=DOUBLE)
    low, high = propositions.projection_spectrum(a, b)
    matrix = a.unsqueeze(-1) * b.unsqueeze(-2) / (a * b).sum(-1)[:, None, None]
    truth = torch.linalg.eigvalsh(0.5 * (matrix + matrix.mT))
    torch.testing.assert_close(torch.stack([low, high], -1), truth[:, [0, -1]])
    torch.testing.assert_close(truth[:, 1:-1], torch.zeros(20, m - 2, dtype=DOUBLE), atol=1e-9, rtol=0)
    torch.testing.assert_close(low + high, torch.ones(20, dtype=DOUBLE))


def test_lemma_3_no_direction_exceeds_the_maximum_and_one_attains_it() -> None:
    a, b = torch.randn(2, 3, dtype=DOUBLE)
    high = propositions.projection_spectrum(a, b)[1]
    x = torch.nn.functional.normalize(torch.randn(SAMPLES, 3, dtype=DOUBLE))
    values = (x @ a) * (x @ b) / (a @ b)
    assert values.max() <= high
    assert values.max() > high - 1e-2 * high.abs()


def test_lemma_2_does_not_apply_to_orthogonal_vectors() -> None:
    low, high = propositions.projection_spectrum(torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0]))
    assert low.isnan()
    assert high.isnan()


def test_lemma_4_expected_quadratic() -> None:
    matrix, root = torch.randn(2, 4, 4, dtype=DOUBLE)
    mean = torch.randn(4, dtype=DOUBLE)
    x = torch.randn(SAMPLES, 4, dtype=DOUBLE) @ root.mT + mean
    values = ((x @ matrix.mT) * x).sum(-1)
    predicted = propositions.expected_quadratic(matrix, root @ root.mT, mean)
    assert abs(values.mean() - predicted) < 5 * values.std() / SAMPLES**0.5


# Proposition 2.2.


@pytest.mark.parametrize("p", [1, 2, 4, 5])
def test_worst_case_is_the_largest_eigenvalue(p: int) -> None:
    hessian, rows = symmetric(5, 0.1, 10, batch=30), torch.randn(30, p, 5, dtype=DOUBLE)
    matrix = projector(hessian, rows)
    truth = torch.linalg.eigvalsh(0.5 * (matrix + matrix.mT))[:, -1]
    torch.testing.assert_close(propositions.worst_case(hessian, rows), truth)


def test_worst_case_of_one_constraint_is_the_papers_formula() -> None:
    hessian, a = symmetric(4, 0.1, 10), torch.randn(1, 4, dtype=DOUBLE)
    solved = torch.linalg.solve(hessian, a)
    formula = 0.5 + a.norm() * solved.norm() / (2 * (a * solved).sum().abs())
    torch.testing.assert_close(propositions.worst_case(hessian, a.unsqueeze(-2)).squeeze(), formula)


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("condition", [1.0, 10.0, 1e4])
def test_worst_case_lies_within_its_bounds(sign: float, condition: float) -> None:
    hessian = sign * symmetric(4, 1, condition, batch=500)
    worst = propositions.worst_case(hessian, torch.randn(500, 1, 4, dtype=DOUBLE))
    lower, upper = propositions.worst_case_bounds(hessian)
    torch.testing.assert_close(upper, torch.full_like(upper, (1 + condition) / 2), rtol=1e-9, atol=0)
    assert (worst >= lower - 1e-12).all()
    assert (worst <= propositions.sharp_upper_bound(hessian) + 1e-9).all()
    assert (propositions.sharp_upper_bound(hessian) <= upper + 1e-9).all()


def test_sharp_bound_is_attained() -> None:
    """By the constraint that mixes the two extreme eigenvectors as in Kantorovich's inequality."""
    condition = 50.0
    hessian = torch.diag(torch.tensor([1.0, 7.0, condition], dtype=DOUBLE))
    a = torch.tensor([[1.0, 0.0, condition**0.5]], dtype=DOUBLE)
    torch.testing.assert_close(propositions.worst_case(hessian, a), propositions.sharp_upper_bound(hessian))


def test_upper_bound_fails_for_indefinite_hessians() -> None:
    """Where the paper's statement asks too little: the bound does not apply, and would be wrong."""
    hessian = torch.diag(torch.tensor([1.0, -1.0], dtype=DOUBLE))
    worst = propositions.worst_case(hessian, torch.tensor([[1.0, 0.9]], dtype=DOUBLE))
    assert worst > 4 * (1 + 1) / 2  # cond(H) = 1
    assert propositions.worst_case_bounds(hessian)[1].isnan()
    assert propositions.sharp_upper_bound(hessian).isnan()


# Propositions 2.3 and 2.4, and the extension.


@pytest.mark.parametrize(("m", "p"), [(4, 1), (6, 3), (3, 3)])
@pytest.mark.parametrize("definite", [True, False])
def test_expectation_with_constraints_in_both_hessians_is_m_minus_p(m: int, p: int, definite: bool) -> None:
    hessian = symmetric(m, 0.2, 5)[0]
    if not definite:
        hessian = hessian - 0.7 * torch.eye(m, dtype=DOUBLE)
    rows = torch.randn(p, m, dtype=DOUBLE)
    mean, error = sample_mean(torch.eye(m, dtype=DOUBLE) - projector(hessian, rows))
    for expected in (propositions.expected_linear, propositions.expected_curvature):
        assert expected(hessian, rows).item() == m - p
        assert abs(mean - (m - p)) <= error + 1e-9


def test_redundant_constraints_count_once() -> None:
    rows = torch.randn(2, 6, dtype=DOUBLE)
    redundant = torch.cat([rows, rows.sum(0, keepdim=True), torch.zeros(1, 6, dtype=DOUBLE)])
    hessian = symmetric(6, 0.5, 2)[0]
    assert propositions.expected_linear(hessian, redundant).item() == 4
    torch.testing.assert_close(propositions.worst_case(hessian, redundant), propositions.worst_case(hessian, rows))


def test_expectation_does_not_apply_to_singular_matrices() -> None:
    hessian = torch.diag(torch.tensor([1.0, 2.0, 0.0], dtype=DOUBLE))
    rows = torch.tensor([[0.0, 0.0, 1.0]], dtype=DOUBLE)
    for function in (propositions.expected_linear, propositions.expected_curvature, propositions.expected_identity):
        assert function(hessian, rows).isnan()
    indefinite = torch.diag(torch.tensor([1.0, -1.0], dtype=DOUBLE))  # a'H^-1 a = 0
    assert propositions.expected_linear(indefinite, torch.ones(1, 2, dtype=DOUBLE)).isnan()


def test_expectation_of_the_identity_rule() -> None:
    hessian, rows = symmetric(5, 0.2, 5)[0], torch.randn(2, 5, dtype=DOUBLE)
    mean, error = sample_mean((torch.eye(5, dtype=DOUBLE) - projector(hessian, rows)) @ hessian)
    assert abs(mean - propositions.expected_identity(hessian, rows)) < error


# Propositions 2.5 and 2.6.


@pytest.mark.parametrize("multiplier", [-3.0, 0.5, 2.0, 30.0])
def test_expectation_of_the_normalisation_constraint(multiplier: float) -> None:
    hessian_hat, y = symmetric(5, 1, 10)[0], torch.nn.functional.normalize(torch.randn(5, dtype=DOUBLE), dim=0)
    hessian = hessian_hat - multiplier * torch.eye(5, dtype=DOUBLE)
    inverse, inverse_hat = torch.linalg.inv(hessian), torch.linalg.inv(hessian_hat)
    matrix = inverse_hat @ hessian - torch.outer(y, inverse_hat @ y) / (y @ inverse @ y)
    mean, error = sample_mean(matrix)
    assert abs(mean - propositions.expected_normalised(hessian_hat, torch.tensor(multiplier, dtype=DOUBLE), y)) < error


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_cases_of_the_normalisation_constraint(sign: float) -> None:
    """The spectrum of H_hat is [1, 10], or its mirror; the multiplier is below, inside and above it."""
    hessian_hat, y = sign * symmetric(5, 1, 10, batch=200), torch.randn(200, 5, dtype=DOUBLE)
    for multiplier, expected in ((-4.0, 1), (0.9, 1), (3.0, 0), (10.5, -1), (60.0, -1)):
        shift = torch.full((200,), sign * multiplier, dtype=DOUBLE)
        expectation = propositions.expected_normalised(hessian_hat, shift, y)
        bound = propositions.normalised_bound(hessian_hat, shift)
        assert (propositions.normalised_case(hessian_hat, shift) == expected).all()
        if expected == 1:
            assert (expectation >= bound).all()
            assert (bound >= 0).all()
        elif expected == -1:
            assert (expectation <= bound).all()
            assert (bound <= 0).all()
        else:
            assert bound.isnan().all()


def test_bound_of_the_normalisation_constraint_is_attained() -> None:
    hessian_hat = torch.diag(torch.tensor([1.0, 2.0, 5.0], dtype=DOUBLE))
    for multiplier, axis in ((-1.0, 0), (0.5, 2), (6.0, 0)):
        shift, y = torch.tensor(multiplier, dtype=DOUBLE), torch.eye(3, dtype=DOUBLE)[axis]
        torch.testing.assert_close(
            propositions.expected_normalised(hessian_hat, shift, y), propositions.normalised_bound(hessian_hat, shift)
        )


def test_normalisation_does_not_apply_at_an_eigenvalue() -> None:
    hessian_hat = torch.diag(torch.tensor([1.0, 2.0], dtype=DOUBLE))
    shift, y = torch.tensor(2.0, dtype=DOUBLE), torch.ones(2, dtype=DOUBLE)
    assert propositions.expected_normalised(hessian_hat, shift, y).isnan()
    assert propositions.normalised_case(hessian_hat, shift) == 0


# Equation (2), and the reduced Hessian.


def test_descent_value_is_the_product_of_the_nodes_gradients() -> None:
    problem = case("sphere")
    (x,) = problem.xs(batch=6)
    node, v = problem.node("closed form"), torch.randn(6, 4, dtype=DOUBLE)
    d = node.derivatives(x)
    for rule, hessian_hat in (("unconstrained", d.H_hat), ("curvature", d.H)):
        g, g_hat = (gradients(node.with_gradient(name)(x), (x,), v)[0] for name in ("exact", rule))
        torch.testing.assert_close(propositions.descent_value(d.H, hessian_hat, d.A, v), (g * g_hat).sum(-1))


def test_reduced_curvature_is_that_of_a_null_space_basis() -> None:
    hessian = symmetric(5, 0.1, 10)[0] - 2 * torch.eye(5, dtype=DOUBLE)
    rows = torch.randn(2, 5, dtype=DOUBLE)
    basis = torch.linalg.svd(rows).Vh[2:].mT
    truth = torch.linalg.eigvalsh(basis.mT @ hessian @ basis)[0]
    torch.testing.assert_close(propositions.reduced_curvature(hessian, rows), truth)
    assert propositions.reduced_curvature(hessian, torch.randn(5, 5, dtype=DOUBLE)).isinf()


# The report.


@pytest.mark.parametrize("structure", ["auto", "matrix-free"])
def test_functions_may_branch_on_an_input_that_the_batch_shares(structure: str) -> None:
    """As they may in a call: all reports, and a rule that probes, say what they say without the branch."""
    x, w = torch.randn(4, 3, dtype=DOUBLE), torch.tensor([1.0, 2.0, 0.5], dtype=DOUBLE)
    v = torch.randn(4, 3, dtype=DOUBLE)
    found = []
    for branches in (True, False):

        def objective(x: Tensor, w: Tensor, u: Tensor, branches: bool = branches) -> Tensor:
            factor = 2.0 if not branches or w.sum() > 0 else 1.0
            return factor * (w * (u - x).square()).sum()

        def equality(_: Tensor, w: Tensor, u: Tensor, branches: bool = branches) -> Tensor:
            return (w * u).sum() - 1 if not branches or w.sum() > 0 else u.sum()

        rule = Adaptive("curvature")
        node = DeclarativeNode(
            objective, equality, start=3, in_dims=(0, None), structure=structure, gradient=rule, solver="newton"
        )
        inputs = (x.clone().requires_grad_(), w.clone().requires_grad_())
        report = node.descent(*inputs, v)
        assert check(node, *inputs).passed
        numbers = [x for name in ("curvature", "unconstrained") for x in (report[name].g_hat, report[name].expectation)]
        found.append([report.g, *numbers, *gradients(node(*inputs), inputs, v), torch.tensor(rule.history[0].lowest)])
    for with_branch, without in zip(*found, strict=True):
        torch.testing.assert_close(with_branch, without, equal_nan=True)


@pytest.mark.parametrize("case", cases())
def test_report_compares_the_gradients_of_the_nodes(case: Case) -> None:
    xs = case.xs(batch=4)
    node = case.node("closed form")
    v = torch.randn(node(*xs).shape, dtype=DOUBLE)
    report = node.descent(*xs, v)
    assert torch.equal(report.assumptions.rank > 0, report.assumptions.jacobian.abs().sum((-2, -1)) > 0)
    for name in ("unconstrained", "curvature", "identity"):
        each = [gradients(node.with_gradient(name)(*xs), xs, v)[0].reshape(4, -1)]
        batched = report[name].g_hat[:, : each[0].shape[-1]]
        torch.testing.assert_close(batched, each[0])
        torch.testing.assert_close(report[name].product, (report.g * report[name].g_hat).sum(-1))
        assert torch.equal(report[name].descends, report[name].product >= 0)
        assert report[name].verdict in str(report)
    assert "<table>" in report._repr_html_()


def test_shared_inputs_have_a_gradient_per_problem() -> None:
    problem = case("two inputs")
    x, a = problem.xs(batch=5)
    node, v = problem.node("closed form"), torch.randn(5, 3, dtype=DOUBLE)
    report = node.descent(x, a, v)
    assert report.g.shape == (5, 6)
    torch.testing.assert_close(report.g[:, 3:].sum(0), gradients(node(x, a), (x, a), v)[1])


def test_only_inputs_that_require_a_gradient_count() -> None:
    problem = case("two inputs")
    x, a = problem.xs(batch=5)
    report = problem.node("closed form").descent(x, a.detach(), v=torch.randn(5, 3, dtype=DOUBLE))
    assert report.g.shape == (5, 3)
    assert report.assumptions.applies.all()  # the constraint sees a, but not x
    assert report["unconstrained"].expectation.tolist() == [2.0] * 5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_theory_is_found_where_it_applies(dtype: torch.dtype) -> None:
    for name, p in (("several constraints", 2), ("linear-equality", 1), ("u a matrix", 3), ("sphere", 1)):
        problem = case(name)
        (x,) = problem.xs(batch=3, dtype=dtype)
        node = problem.node("closed form")
        y = node(x)
        report = node.descent(x, torch.randn_like(y))
        m = y[0].numel()
        assert report.assumptions.linear.all() == (name != "sphere")
        assert report.assumptions.normalised.all() == (name == "sphere")
        torch.testing.assert_close(report["curvature"].expectation, torch.full((3,), m - p, dtype=dtype))
        if name == "sphere":
            radius = x.detach().norm(dim=-1)
            torch.testing.assert_close(report["unconstrained"].expectation, (m - 1) * radius)
        else:
            torch.testing.assert_close(report["unconstrained"].expectation, report["curvature"].expectation)


def test_input_scale_enters_the_expectation() -> None:
    node = DeclarativeNode(lambda x, u: (u - 3 * x).square().sum() / 2, lambda _, u: u.sum(), start=4)
    report = node.descent(torch.randn(2, 4, dtype=DOUBLE), torch.randn(2, 4, dtype=DOUBLE))
    torch.testing.assert_close(report["unconstrained"].expectation, torch.full((2,), 27.0, dtype=DOUBLE))


@pytest.mark.parametrize(
    ("name", "why"),
    [("input only in the constraint", "depend on the input"), ("eigenvector", "not a multiple of I")],
)
def test_report_says_where_theory_does_not_apply(name: str, why: str) -> None:
    problem = case(name)
    xs = problem.xs()
    node = problem.node("closed form")
    report = node.descent(*xs, torch.randn_like(node(*xs)))
    for rule in report.rules.values():
        assert rule.expectation.isnan().all()
        assert rule.worst_case.isnan().all()
        assert not rule.favourable.any()
        assert "does not apply" in rule.theory
        assert why in rule.theory


def test_active_inequalities_count_as_equalities() -> None:
    (x,) = case("box").xs(batch=20)
    report = case("box").node("closed form").descent(x, torch.randn(20, 4, dtype=DOUBLE))
    active = (x.detach().abs() > 0.5).sum(-1)
    assert active.unique().numel() > 2
    assert torch.equal(report.assumptions.rank, active)
    assert torch.equal(report["unconstrained"].expectation, 4.0 - active)


def test_curved_inequality_applies_per_problem() -> None:
    problem = case("ball")
    (x,) = problem.xs(batch=4)
    report = problem.node("closed form").descent(x, torch.randn(4, 3, dtype=DOUBLE))
    assert report.assumptions.normalised.tolist() == [False, True, False, True]
    assert report["curvature"].expectation.tolist() == [3.0, 2.0, 3.0, 2.0]


def indefinite_sphere(hessian_hat: Tensor, multiplier: float, y: Tensor) -> tuple[DeclarativeNode, Tensor]:
    """min x'u + u'H_hat u / 2 on the sphere, with x such that y is stationary with this multiplier."""
    node = DeclarativeNode(
        lambda x, u: x @ u + u @ hessian_hat @ u / 2,
        lambda _, u: (u.square().sum() - 1) / 2,
        solver=ClosedForm(lambda x: y.expand(x.shape[0], -1), stationary=True),
    )
    return node, multiplier * y - hessian_hat @ y


def test_verdict_warns_of_a_multiplier_above_the_spectrum() -> None:
    y = torch.nn.functional.normalize(torch.randn(5, dtype=DOUBLE), dim=0)
    node, x = indefinite_sphere(symmetric(5, 1, 3)[0], 20.0, y)
    report = node.descent(x.expand(50, -1), torch.randn(50, 5, dtype=DOUBLE))
    assert (report["unconstrained"].expectation < 0).all()
    assert report["unconstrained"].verdict.startswith("do not use: ascends on ")
    assert "`curvature` does not" in report["unconstrained"].verdict
    assert report["curvature"].descends.all()


def test_verdict_of_a_gradient_that_vanishes() -> None:
    node = DeclarativeNode(
        lambda x, u: x @ u, lambda _, u: u.square().sum() - 1, solver=lambda x: -torch.nn.functional.normalize(x)
    )
    report = node.descent(torch.randn(4, 3, dtype=DOUBLE), torch.randn(4, 3, dtype=DOUBLE))
    assert report["unconstrained"].verdict == (
        "do not use: its gradient is zero on 4 of 4 problems whose exact gradient is not."
    )


def test_round_off_is_not_a_direction() -> None:
    """Along y the exact gradient of a projection onto the sphere is zero, up to rounding."""
    problem = case("sphere")
    (x,) = problem.xs(batch=50)
    node = problem.node("closed form")
    report = node.descent(x, node(x).detach())
    assert (report.g == 0).all()
    assert all(rule.descends.all() for rule in report.rules.values())


def test_unsolved_problems_are_left_out() -> None:
    problem = case("sphere")
    node = problem.node("closed form", on_failure="mask")
    x = torch.randn(4, 4, dtype=DOUBLE)
    x[2] = torch.nan
    with pytest.warns(NumericalWarning, match="1 of 4"):
        report = node.descent(x, torch.randn(4, 4, dtype=DOUBLE))
    assert report.solved.tolist() == [True, True, False, True]
    assert report["curvature"].cosine.isnan().tolist() == [False, False, True, False]
    assert "(1 unsolved, left out)" in str(report)
    assert "nan" not in str(report)


def test_unbatched_and_large_problems() -> None:
    node = DeclarativeNode(
        lambda x, u: (u - x).square().sum() / 2,
        lambda _, u: u.sum(),
        solver=lambda x: x - x.mean(),
        in_dims=None,
    )
    assert node.descent(torch.randn(3), torch.randn(3))["unconstrained"].expectation.tolist() == [2.0]
    report = node.descent(torch.randn(LARGE + 1), torch.randn(LARGE + 1))
    assert report["unconstrained"].expectation.isnan().all()
    assert "not computed for more than" in report["unconstrained"].theory


@pytest.mark.parametrize(
    ("arguments", "message"),
    [((torch.ones(2, 4),), "inputs and the incoming gradient"), ((torch.ones(2, 4), torch.ones(2, 3)), "its shape")],
)
def test_misuse_is_explained(arguments: tuple[Tensor, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        case("sphere").node("closed form").descent(*arguments)


# The ready-made layers.


def report_of(layer: DeclarativeNode, *xs: Tensor) -> descent.DescentReport:
    return layer.descent(*xs, torch.randn_like(layer(*xs)))


@pytest.mark.parametrize("k", [1, None])
def test_eigenvectors_of_general_matrices_need_the_curvature(k: int | None) -> None:
    x = torch.randn(10, 5, 5, dtype=DOUBLE)
    report = report_of(Eigenvectors(k=k), x + x.mT)
    ascending = 10 - int(report["unconstrained"].descends.sum())
    assert 0 < ascending < 10
    assert report["unconstrained"].verdict.startswith(f"do not use: ascends on {ascending} of 10 problems; `curvature`")
    assert report["curvature"].descends.all()
    assert (report["curvature"].cosine > 1 - 1e-9).all()
    assert report["curvature"].verdict.startswith("safe: the same direction as the exact gradient")


@pytest.mark.parametrize(
    ("layer", "x", "p", "word"),
    [
        (SphereProjection(), torch.randn(10, 4, dtype=DOUBLE, generator=torch.Generator().manual_seed(1)), 1, "safe"),
        (
            OptimalTransport(),
            torch.rand(10, 6, 5, dtype=DOUBLE, generator=torch.Generator().manual_seed(1)),
            10,
            "likely",
        ),
    ],
    ids=["sphere", "transport"],
)
def test_the_sphere_is_safe_and_transport_is_not_proven(layer: DeclarativeNode, x: Tensor, p: int, word: str) -> None:
    report = report_of(layer, x)
    m = x[0].numel()
    for name in ("unconstrained", "curvature"):
        assert report[name].descends.all()
        assert report[name].favourable.all()
        assert report[name].verdict.startswith(f"{word}: ")
        assert (report[name].always == (word == "safe")).all()
        assert (report[name].probability > 0.99).all()
    assert (report.assumptions.rank == p).all()
    assert (report["curvature"].expectation == m - p).all()


def test_transport_with_marginals_counts_what_requires_a_gradient() -> None:
    M = torch.rand(4, 3, 3, dtype=DOUBLE, requires_grad=True)
    r = torch.tensor([0.2, 0.3, 0.5], dtype=DOUBLE)
    report = report_of(OptimalTransport(), M, r, r)
    assert report.g.shape == (4, 9)
    assert report["unconstrained"].expectation.tolist() == [4.0] * 4


def test_descent_value_is_the_papers_formula() -> None:
    """With a projector that is not symmetric, H another matrix than H_hat, and two constraints."""
    hessian, hessian_hat = symmetric(5, 0.1, 10, batch=20), symmetric(5, 0.2, 5, batch=20)
    rows, v = torch.randn(20, 2, 5, dtype=DOUBLE), torch.randn(20, 5, 1, dtype=DOUBLE)
    inverse = torch.linalg.inv(hessian)
    along = inverse - inverse @ rows.mT @ torch.linalg.inv(rows @ inverse @ rows.mT) @ rows @ inverse
    truth = (v.mT @ along @ torch.linalg.inv(hessian_hat) @ v).flatten()
    torch.testing.assert_close(propositions.descent_value(hessian, hessian_hat, rows, v.squeeze(-1)), truth)
