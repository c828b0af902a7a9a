"""A node and an independent layer beside each other: agreement, disagreement, and what is said about it."""

from __future__ import annotations

import builtins
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from declarative import DeclarativeNode, compare
from declarative.reports.comparison import LISTED, ComparisonReport, Difference
from experiments.shared.inputs import Draw
from problems import BallProjection, OptimalTransport, QuadraticProgram, RobustPooling, SphereProjection
from problems.reference import DEFAULT, STATEMENTS, MissingReferenceError, Reference, Statement, load, reference
from tests.support.problem_table import TABLE, Case

pytest.importorskip("cvxpylayers", reason="the reference is an extra")
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # NumPy's, to cvxpylayers

CONVEX = [
    case
    for case in TABLE
    if isinstance(case.layer, tuple(STATEMENTS)) and case.name not in ("pooling-welsch", "pooling-truncated")
]


def normalise(x: Tensor) -> Tensor:
    return nn.functional.normalize(x, dim=-1)


def sphere(**options: Any) -> DeclarativeNode:
    return DeclarativeNode(
        lambda x, u: (u - x).square().sum(), lambda _, u: u.square().sum() - 1, start=lambda x: x, **options
    )


# How accurate a reference is depends on how the processor rounds. It says whether both state the same problem; how
# accurate ours is, is tested where nothing else rounds: against differences and formulas.
SAME_PROBLEM = 1e-3
X = torch.tensor([[3.0, 4.0], [1.0, -1.0], [0.2, 0.7]], dtype=torch.float64)

# Against cvxpylayers.


@pytest.mark.parametrize("case", CONVEX, ids=lambda case: case.name)
def test_every_convex_layer_agrees_with_cvxpylayers(case: Case) -> None:
    xs = case.inputs()
    report = compare(case.layer, reference(case.layer, *xs), *xs, seconds=0)
    assert report.agrees(SAME_PROBLEM), str(report)
    assert len(report.gradients) == len(xs)
    assert report.node.violation.max() < 1e-12


@pytest.mark.parametrize("case", CONVEX, ids=lambda case: case.name)
def test_single_problems_agree(case: Case) -> None:
    """The layer sees a batch of one, the reference a problem without a batch dimension."""
    xs = tuple(x.detach()[:1] if x.dim() == y.dim() else x.detach() for x, y in zip_prepared(case))
    alone = reference(case.layer, *xs)
    batched = [x.dim() == y.dim() for x, y in zip_prepared(case)]

    def without_batch(*inputs: Tensor) -> Tensor:
        return alone(*(x[0] if has else x for x, has in zip(inputs, batched, strict=True)))

    report = compare(case.layer, without_batch, *xs, seconds=0)
    assert report.agrees(SAME_PROBLEM), str(report)


def zip_prepared(case: Case) -> list[tuple[Tensor, Tensor]]:
    xs = case.inputs()
    return list(zip(xs, case.layer.prepare(*xs)[: len(xs)], strict=True))


def test_float32_agrees_to_its_own_precision() -> None:
    layer, x = OptimalTransport(2.0), torch.rand(2, 3, 4, generator=torch.Generator().manual_seed(0))
    report = compare(layer, reference(layer, x), x, seconds=0)
    assert report.reference.y.dtype == torch.float64
    assert report.node.y.dtype == report.node.gradients[0].dtype == report.reference.gradients[0].dtype == torch.float32
    assert report.tolerance == 1e-3
    assert report.agrees()
    assert report.solution.relative.max() < SAME_PROBLEM


def test_a_cvxpylayer_itself_is_a_reference() -> None:
    cp, layer = load()
    u, point = cp.Variable(2), cp.Parameter(2)
    problem = cp.Problem(cp.Minimize(cp.sum_squares(u - point)), [cp.norm(u, 2) <= 1])
    theirs = layer(problem, parameters=[point], variables=[u])
    report = compare(BallProjection(), theirs, X, seconds=0)
    assert report.agrees(SAME_PROBLEM)
    one = DeclarativeNode(
        lambda x, u: (u - x).square().sum(),
        inequality=lambda _, u: u.square().sum() - 1,
        solver=lambda x: BallProjection()(x.unsqueeze(0))[0],
        in_dims=None,
    )
    assert compare(one, theirs, X[0], seconds=0).agrees(SAME_PROBLEM)


def test_inputs_that_are_none_are_passed_on() -> None:
    draw = Draw(2, torch.Generator().manual_seed(0))
    xs = (draw.definite(3), draw.normal(3), None, None, draw.normal(2, 3), draw.uniform(2))
    layer = QuadraticProgram()
    report = compare(layer, reference(layer, *xs), *xs, seconds=0)
    assert report.agrees(SAME_PROBLEM)
    assert list(report.gradients) == [0, 1, 4, 5]


def test_one_marginal_alone() -> None:
    layer, draw = OptimalTransport(2.0), Draw(2, torch.Generator().manual_seed(0))
    xs = (draw.uniform(3, 4), draw.marginal(3))
    assert compare(layer, reference(layer, *xs), *xs, seconds=0).agrees(SAME_PROBLEM)


def test_the_settings_matter() -> None:
    case = next(case for case in TABLE if case.name == "transport")
    xs = case.inputs()
    tight, default = (
        compare(case.layer, reference(case.layer, *xs, settings=settings), *xs, seconds=0)
        for settings in (None, DEFAULT)
    )
    assert tight.solution.relative.max() < default.solution.relative.max()


def test_problems_that_are_not_convex_have_no_reference() -> None:
    with pytest.raises(TypeError, match="no convex statement of SphereProjection"):
        reference(SphereProjection(), X)
    with pytest.raises(TypeError, match="'welsch' is not convex"):
        reference(RobustPooling("welsch"), X)


# Against anything else.


def test_numbers_are_tensors_with_one_entry_per_problem() -> None:
    report = compare(sphere(), normalise, X, seconds=0)
    assert isinstance(report, ComparisonReport)
    for difference in report.differences:
        assert difference.absolute.shape == difference.relative.shape == difference.cosine.shape == (3,)
    for side in (report.node, report.reference):
        assert side.objective.shape == side.violation.shape == side.residual.shape == (3,)
        assert side.forward > 0
        assert side.backward > 0
    assert report.agrees(1e-9)
    assert all(factor > 0 for factor in report.speed_up)


def test_the_default_v_is_the_same_in_every_call_and_another_is_taken() -> None:
    first, second = (compare(sphere(), normalise, X, seconds=0) for _ in range(2))
    assert torch.equal(first.v, second.v)
    v = torch.ones_like(X)
    x = X.clone().requires_grad_()
    (expected,) = torch.autograd.grad(normalise(x), x, v)
    torch.testing.assert_close(compare(sphere(), normalise, X, v=v).reference.gradients[0], expected)


def test_an_approximate_rule_disagrees_in_the_gradient_only() -> None:
    report = compare(sphere(gradient="unconstrained"), normalise, X, seconds=0)
    assert not report.agrees()
    assert report.agrees(gradients=False)
    assert "The solutions agree, but not the gradient of input 0" in str(report)
    assert report.gradients[0].cosine.min() < 0.99


@pytest.mark.parametrize(
    ("theirs", "words"),
    [
        (lambda x: 1.1 * normalise(x), "node (exact) satisfies the optimality conditions"),
        (lambda x: -normalise(x), "reference does not (inf)"),  # the farthest point is stationary too
    ],
)
def test_who_is_right(theirs: Any, words: str) -> None:
    report = compare(sphere(), theirs, X, seconds=0)
    assert not report.agrees()
    assert words in report.verdict()


def test_the_reference_can_be_the_one_that_is_right() -> None:
    wrong = sphere(on_failure="mask", solver=lambda x: 2 * normalise(x))
    with pytest.warns(match="not solved"):
        report = compare(wrong, normalise, X, seconds=0)
    assert "reference satisfies the optimality conditions" in report.verdict()
    assert report.node.violation.min() > 1


def test_a_reference_without_gradients_agrees_in_the_solution_only() -> None:
    report = compare(sphere(), lambda x: normalise(x).detach(), X, seconds=0)
    assert not report.agrees()
    assert report.agrees(gradients=False)
    assert report.gradients == {}
    assert "not differentiable" in str(report)


def test_a_module_and_a_tuple_are_references_and_a_nan_is_no_agreement() -> None:
    class Tupled(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, str]:
            return normalise(x), "anything"

    assert compare(sphere(), Tupled(), X, seconds=0).agrees(1e-9)
    assert not compare(sphere(), lambda x: normalise(x) * torch.nan, X, seconds=0).agrees(1e9)


def test_shared_inputs_and_other_batch_dimensions() -> None:
    plane = DeclarativeNode(
        lambda x, _, u: (u - x).square().sum(),
        lambda _, a, u: a @ u - 1,
        in_dims=(1, None),
        start=2,
    )

    def theirs(x: Tensor, a: Tensor) -> Tensor:
        return x.mT - ((x.mT @ a - 1) / a.square().sum()).unsqueeze(-1) * a

    report = compare(plane, theirs, X.mT, torch.tensor([1.0, 2.0], dtype=X.dtype), seconds=0)
    assert report.agrees(1e-9)
    assert report.gradients[0].relative.shape == (3,)
    assert report.gradients[1].relative.shape == (1,)
    assert "gradient of input 1" in str(report)


def test_only_inputs_that_require_a_gradient_count_and_the_callers_are_left_alone() -> None:
    node = DeclarativeNode(lambda x, w, u: (w * (u - x).square()).sum(), start=2)
    x = X.clone().requires_grad_()
    report = compare(node, lambda x, w: x * w / w, x, torch.ones_like(X), seconds=0)
    assert list(report.gradients) == [0]
    assert x.grad is None
    with torch.no_grad():
        assert compare(node, lambda x, w: x * w / w, x, torch.ones_like(X), seconds=0).agrees(1e-9)


def test_a_gradient_that_vanishes_agrees_with_rounding() -> None:
    box = BallProjection(0.1, norm=float("inf"))
    report = compare(box, lambda x: 0.1 * x.sign() + 1e-12 * x, X, seconds=0)
    assert report.agrees()
    assert report.gradients[0].cosine.min() == 1
    difference = Difference.between("", torch.zeros(2, 3), torch.ones(2, 3))
    assert not difference.within(0.5)


def test_times_need_not_be_taken() -> None:
    calls = []

    def reference(x: Tensor) -> Tensor:
        calls.append(x)
        return nn.functional.normalize(x)

    report = compare(SphereProjection(), reference, torch.randn(3, 4, dtype=torch.float64), timing=False)
    assert report.agrees()
    assert len(calls) == 1
    assert report.node.forward != report.node.forward  # a NaN
    assert "n/a / n/a" in str(report)
    assert "nan" not in str(report)


def test_it_prints_as_tables() -> None:
    x = torch.randn(LISTED + 5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    layer = SphereProjection()
    report = compare(layer, normalise, x, seconds=0)
    text, page = str(report), report._repr_html_()
    for words in ("node (exact)", "who is right?", "violation", "times faster", "and 5 more problems", "They agree"):
        assert words in text
        assert words in page
    assert page.count("<table>") == 3
    assert "objective of the node" not in str(compare(layer, normalise, x[:1], seconds=0))


@pytest.mark.parametrize(
    ("arguments", "options", "error", "words"),
    [
        ((normalise, normalise, X), {}, TypeError, "node must be a DeclarativeNode"),
        ((sphere(), 3, X), {}, TypeError, "reference must be a layer"),
        ((sphere(), lambda _: None, X), {}, TypeError, "must return a tensor"),
        ((sphere(), lambda x: x[:, :1], X), {}, ValueError, "must return solutions of shape"),
        ((sphere(), normalise, X), {"v": X[:1]}, ValueError, "must have its shape"),
        ((sphere(), normalise, X), {"v": 1.0}, TypeError, "must be a tensor"),
        ((sphere(), normalise, X[:0]), {}, ValueError, "no problems"),
        ((sphere(), normalise), {}, ValueError, "none of the inputs"),
    ],
)
def test_misuse_is_refused(arguments: Any, options: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        compare(*arguments, **options)


def test_without_cvxpylayers_there_is_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any, **options: Any) -> Any:
        if name.startswith("cvxpylayers"):
            raise ImportError(f"No module named {name!r}")
        return real(name, *rest, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingReferenceError, match="pip install"):
        reference(BallProjection(), X)
    with pytest.raises(MissingReferenceError):
        Reference(Statement(None, [], [], None))
