"""Each way in which a problem can be wrong has its line, and nothing is raised."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from declarative import Adaptive, DeclarativeNode, Newton, check
from declarative.linear import HessianSystem
from declarative.linear.contract import Solve
from declarative.optimality import optimality_tolerance
from declarative.reports.check import CheckError, CheckResult, Grade
from problems import Eigenvectors, OptimalTransport, SphereProjection
from tests.support.helpers import DOUBLE, Case, case, cases, half_square


def grades(result: CheckResult) -> dict[str, Grade]:
    return {line.name: line.grade for line in result.lines}


@pytest.mark.parametrize("case", cases())
def test_sound_problems_pass(case: Case) -> None:
    result = check(case.node("closed form"), *case.xs())
    assert result.passed, str(result)
    assert result.raise_if_failed() is result
    found = grades(result)
    assert {"callables", "captured parameters", "dtype", "solved", "feasible", "stationary"} <= found.keys()
    assert {"rank of A", "minimum", "conditioning", "gradient of input 0"} <= found.keys()
    assert ("strict complementarity" in found) == (case.inequality is not None)
    warned = {name for name, grade in found.items() if grade is not Grade.PASS}
    assert warned == ({"rank of A", "conditioning"} if case.redundant else set()), str(result)


@pytest.mark.parametrize("name", ["sphere", "several constraints", "box"])
def test_float32_and_an_iterative_solver_pass(name: str) -> None:
    problem = case(name)
    result = check(problem.node("scipy"), *problem.xs(dtype=torch.float32))
    assert set(grades(result).values()) == {Grade.PASS}, str(result)


def test_a_wrong_shape_is_a_line_with_the_message() -> None:
    result = check(DeclarativeNode(lambda x, u: (u - x).square(), start=3), torch.ones(2, 3))
    assert grades(result) == {"callables": Grade.FAIL}
    assert "must return a scalar" in result["callables"].value


def test_an_exception_of_the_callables_is_a_line_with_its_context() -> None:
    result = check(DeclarativeNode(lambda x, u: (u - x[:2]).square().sum(), start=3), torch.ones(2, 3))
    assert grades(result) == {"callables": Grade.FAIL}
    assert "called under torch.vmap for one problem" in result["callables"].advice


def test_a_captured_parameter_is_named() -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    result = check(DeclarativeNode(lambda x, u: (u - weight * x).square().sum(), start=3), torch.ones(2, 3))
    assert grades(result) == {"captured parameters": Grade.FAIL}
    assert "(weight)" in result["captured parameters"].value


@pytest.mark.parametrize("xs", [(), (3.0,), (torch.ones(()),), (torch.ones(0, 3),)])
def test_wrong_inputs_are_a_line(xs: tuple[Tensor, ...]) -> None:
    result = check(DeclarativeNode(half_square, start=3), *xs)
    assert grades(result) == {"callables": Grade.FAIL}


def test_an_unsolved_problem_fails_with_advice() -> None:
    result = check(DeclarativeNode(lambda x, u: x @ u, solver="scipy", start=3), torch.ones(2, 3))
    found = grades(result)
    assert found["solved"] is Grade.FAIL
    assert "falls without limit" in result["solved"].advice
    assert found["stationary"] is Grade.FAIL
    assert found["gradient"] is Grade.SKIP


def test_the_solved_part_of_a_batch_is_tested() -> None:
    x = torch.randn(4, 4, dtype=DOUBLE)
    x[1] = torch.nan
    result = check(case("sphere").node("closed form"), x)
    found = grades(result)
    assert found["solved"] is Grade.FAIL
    assert "3 of 4" in result["solved"].value
    assert found["gradient of input 0"] is Grade.PASS


def test_a_wrong_closed_form_is_not_stationary() -> None:
    result = check(DeclarativeNode(half_square, solver=lambda x: x + 0.1), torch.ones(2, 3))
    assert grades(result)["stationary"] is Grade.FAIL
    assert not result.passed


def test_an_infeasible_point_fails() -> None:
    node = DeclarativeNode(half_square, lambda _, u: u.sum(), solver=lambda x: x)
    assert grades(check(node, torch.ones(2, 3)))["feasible"] is Grade.FAIL


def test_a_saddle_is_told_from_a_minimum() -> None:
    node = DeclarativeNode(
        half_square, lambda _, u: u.square().sum() - 1, solver=lambda x: -torch.nn.functional.normalize(x)
    )
    result = check(node, torch.randn(3, 4, dtype=DOUBLE))
    assert grades(result)["minimum"] is Grade.FAIL
    assert "3 point(s) are saddles" in result["minimum"].advice
    with pytest.raises(CheckError, match="saddles"):
        result.raise_if_failed()


def test_a_flat_objective_is_singular() -> None:
    node = DeclarativeNode(lambda x, u: (u.sum() - x.sum()).square(), solver=lambda x: x)
    found = grades(check(node, torch.randn(3, 4, dtype=DOUBLE)))
    assert found["minimum"] is Grade.WARN
    assert found["conditioning"] is Grade.FAIL


def test_no_curvature_at_all_is_singular() -> None:
    """The KKT matrix is zero, and so is every eigenvalue: their ratio is no number."""
    node = DeclarativeNode(lambda x, u: (u - x).pow(4).sum(), solver=lambda x: x)
    result = check(node, torch.randn(3, 4, dtype=DOUBLE))
    assert result["conditioning"].grade is Grade.FAIL
    assert "nan" not in str(result)


def test_derivatives_that_are_not_finite_have_a_line() -> None:
    node = DeclarativeNode(lambda x, u: (u - x).abs().pow(1.5).sum(), solver=lambda x: x)
    result = check(node, torch.randn(3, 4, dtype=DOUBLE))
    assert grades(result)["second order"] is Grade.FAIL
    assert result["second order"].value == "derivatives of 3 of 3 problems are not finite"
    assert not result.passed


def test_corners_are_mentioned_where_a_problem_was_given_up_on() -> None:
    node = DeclarativeNode(
        lambda x, u: (u - x).abs().sum() + u.abs().sum() / 2, solver=Newton(max_iterations=20), start=3
    )
    result = check(node, torch.randn(2, 3, dtype=DOUBLE))
    assert result["solved"].grade is Grade.FAIL
    assert "corners or jumps (abs in objective)" in result["solved"].advice


def test_a_check_without_gradients_still_finds_captured_parameters() -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    with torch.no_grad():
        result = check(DeclarativeNode(lambda x, u: (u - weight * x).square().sum(), start=3), torch.ones(2, 3))
    assert grades(result) == {"captured parameters": Grade.FAIL}


def test_what_was_recorded_is_compared_with_what_is_called() -> None:
    x = torch.randn(3, 2, dtype=DOUBLE)
    node = DeclarativeNode(half_square, solver=lambda x: x, record=True)
    assert check(node, x)["recorded equals called"].grade is Grade.PASS
    assert "recorded equals called" not in grades(check(node.with_plan(recordings=None, sizes=None), x))


@pytest.mark.parametrize("wrong", ["solution", "gradient"])
def test_a_recording_that_differs_fails(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same node with other functions stands for a recording that has become wrong."""
    node = DeclarativeNode(half_square, solver=lambda x: x, record=True)
    objective, solver = {
        "solution": (lambda x, u: (u - 1.001 * x).square().sum(), lambda x: 1.001 * x),
        "gradient": (lambda x, u: (u - x.detach() - 0.5 * (x - x.detach())).square().sum(), lambda x: x),
    }[wrong]
    other = DeclarativeNode(objective, solver=solver, record=False)
    with_plan = DeclarativeNode.with_plan
    monkeypatch.setattr(
        DeclarativeNode,
        "with_plan",
        lambda self, **changes: other if "recordings" in changes else with_plan(self, **changes),
    )
    line = check(node, torch.randn(3, 2, dtype=DOUBLE))["recorded equals called"]
    assert line.grade is Grade.FAIL
    assert "not pure" in line.advice
    assert ("0.0e+00 of the solutions" in line.value) == (wrong == "gradient")


def test_the_comparison_with_a_recording_leaves_out_what_failed_in_both() -> None:
    node = DeclarativeNode(half_square, solver=lambda x: x, record=True, on_failure="mask")
    x = torch.randn(3, 2, dtype=DOUBLE)
    x[1] = torch.nan
    found = check(node, x)["recorded equals called"]
    assert found.grade is Grade.PASS, found.value


def test_bad_scaling_is_a_warning() -> None:
    weights = torch.tensor([1.0, 1e-9], dtype=DOUBLE)
    node = DeclarativeNode(lambda x, u: (weights * (u - x).square()).sum(), solver=lambda x: x)
    assert grades(check(node, torch.randn(3, 2, dtype=DOUBLE)))["conditioning"] is Grade.WARN


def test_a_kink_is_a_warning() -> None:
    node = DeclarativeNode(half_square, inequality=lambda _, u: u - 1, solver=lambda x: x.clamp(max=1.0))
    x = torch.tensor([[1.0, 0.0], [2.0, 0.0]], dtype=DOUBLE)
    result = check(node, x)
    assert grades(result)["strict complementarity"] is Grade.WARN
    assert result["strict complementarity"].value.startswith("1 of 2 problems")
    gradient = result["gradient of input 0"]
    assert gradient.grade is Grade.WARN
    assert "3 time(s) there is none to compare with: the solution has a kink" in gradient.advice
    assert "in 3 comparisons" in gradient.value


@pytest.mark.parametrize("distance", [0.0, 1e-6, -1e-6])
def test_at_a_kink_there_is_no_gradient_to_compare_with(distance) -> None:
    node = DeclarativeNode(half_square, inequality=lambda _, u: u - 1, solver=lambda x: x.clamp(max=1.0))
    result = check(node, torch.tensor([[1.0 + distance, 0.0]], dtype=DOUBLE))
    assert result["gradient of input 0"].grade is Grade.SKIP
    assert "has a kink here" in result["gradient of input 0"].value
    assert result.passed


def test_an_input_without_entries_has_no_gradient_line() -> None:
    node = DeclarativeNode(lambda x, c, u: (u - x).square().sum() + c.sum(), start=2)
    result = check(node, torch.randn(3, 2, dtype=DOUBLE), torch.zeros(3, 0, dtype=DOUBLE))
    assert result.passed
    assert "gradient of input 1" not in grades(result)


def test_a_line_that_is_not_there() -> None:
    result = check(DeclarativeNode(half_square, solver=lambda x: x), torch.ones(2, 3))
    with pytest.raises(KeyError, match=r"there is no line 'rank', but .*'rank of A'"):
        result["rank"]


def test_a_solver_that_is_right_at_one_point_only_is_a_warning() -> None:
    here = torch.tensor([[0.3, -0.2]], dtype=DOUBLE)
    result = check(DeclarativeNode(half_square, solver=lambda x: here + 0 * x), here)
    assert grades(result)["solved"] is Grade.PASS
    assert grades(result)["gradient of input 0"] is Grade.WARN
    assert "has no solution" in result["gradient of input 0"].advice


def test_a_gradient_that_is_not_that_of_the_solver_fails() -> None:
    """A structured system with a wrong factor: everything about the solution is right, but not its derivative."""

    class Doubled(HessianSystem):
        def factorise(self) -> Solve:
            right = super().factorise()
            return lambda r, t: (2 * right(r, t)[0], t)

    node = DeclarativeNode(
        half_square,
        solver=lambda x: x,
        system=lambda point, _: Doubled(point.batch.hessian(point.u, point.multipliers)),
    )
    result = check(node, torch.randn(3, 2, dtype=DOUBLE))
    assert [line.name for line in result.lines if line.grade is Grade.FAIL] == ["gradient of input 0"]


def test_an_inexact_solver_shows_in_the_gradient() -> None:
    """An error below the tolerance passes for a solution, but ruins the difference of two that are as close."""
    error = 0.1 * optimality_tolerance(DOUBLE)

    def truth(x: Tensor) -> Tensor:
        return 1 + 1e4 * error * x

    def rough(x: Tensor) -> Tensor:
        return truth(x) + error * torch.sin(1e6 * x)

    shaky = DeclarativeNode(lambda x, u: (u - truth(x)).square().sum(), solver=rough)
    result = check(shaky, torch.randn(3, 2, dtype=DOUBLE))
    assert grades(result)["solved"] is Grade.PASS
    assert grades(result)["gradient of input 0"] is Grade.FAIL


def test_a_jumping_solver_is_a_warning() -> None:
    """Both signs solve the problem, and the solver chooses by the last digits of x."""
    node = DeclarativeNode(
        lambda x, u: -0.5 * u @ x @ u,
        lambda _, u: u.square().sum() - 1,
        solver=lambda x: (
            torch.linalg.eigh(0.5 * (x + x.mT)).eigenvectors[..., -1] * (1e9 * x[:, 0, 0]).sin().sign()[:, None]
        ),
    )
    result = check(node, torch.randn(6, 3, 3, dtype=DOUBLE))
    assert grades(result)["gradient of input 0"] is Grade.WARN
    assert "jumped" in result["gradient of input 0"].advice


def test_constants_of_another_dtype_are_a_warning() -> None:
    weights = torch.ones(3, dtype=DOUBLE)
    node = DeclarativeNode(lambda x, u: (weights * (u - x).square()).sum(), solver=lambda x: x)
    result = check(node, torch.ones(2, 3))
    assert grades(result)["dtype"] is Grade.WARN
    assert "objective returns torch.float64" in result["dtype"].value


def test_callables_that_cannot_do_float64_are_tested_in_their_own() -> None:
    rows = torch.randn(2, 3)
    closed = DeclarativeNode(
        half_square, lambda _, u: rows @ u, solver=lambda x: x - x @ torch.linalg.pinv(rows) @ rows
    )
    result = check(closed, torch.randn(2, 3))
    assert grades(result)["gradient of input 0"] is Grade.PASS, str(result)


@pytest.mark.parametrize("rule", ["unconstrained", "identity", Adaptive("unconstrained")])
def test_an_approximate_rule_is_mentioned_and_not_mistaken_for_an_error(rule: str | Adaptive) -> None:
    problem = case("sphere")
    result = check(problem.node("closed form", gradient=rule), *problem.xs())
    assert result.passed
    assert "by choice" in result["gradient rule"].value
    if isinstance(rule, Adaptive):
        assert rule.calls == 0  # a check leaves no trace in the state of the rule


def test_an_ascending_rule_is_a_warning() -> None:
    problem = case("eigenvector")
    result = check(problem.node("closed form", gradient="unconstrained"), *problem.xs(batch=10))
    assert result["gradient rule"].grade is Grade.WARN
    assert "node.descent" in result["gradient rule"].advice


def test_prints_for_terminals_and_notebooks() -> None:
    result = check(DeclarativeNode(lambda x, u: (u - x).square(), start=3), torch.ones(2, 3))
    assert "FAIL  callables" in str(result)
    assert str(result).endswith("1 fail")
    assert max(map(len, str(result).splitlines())) <= 120
    assert "<td>FAIL</td>" in result._repr_html_()


@pytest.mark.parametrize(
    ("layer", "shape"),
    [(SphereProjection(), (4,)), (OptimalTransport(), (4, 3)), (Eigenvectors(k=1), (4, 4))],
    ids=["sphere", "transport", "eigenvectors"],
)
def test_ready_made_layers_pass(layer: DeclarativeNode, shape: tuple[int, ...]) -> None:
    result = check(layer, torch.rand(3, *shape, dtype=DOUBLE))
    assert set(grades(result).values()) == {Grade.PASS}, str(result)


@pytest.mark.parametrize("structure", ["dense", "sparse", "diagonal"])
def test_where_nothing_was_solved_no_line_passes_by_chance(structure: str) -> None:
    node = DeclarativeNode(
        lambda x, u: (u - x).square().sum(),
        lambda x, u: u[1:] * u[:-1] - x[1:] ** 2,
        solver=lambda x: x.clone(),
        structure=structure,
    )
    result = check(node, torch.rand(2, 128, dtype=DOUBLE))
    assert result["feasible"].grade is Grade.FAIL
    assert result["stationary"].grade is Grade.SKIP
    assert "could not be tested" not in str(result)
    assert result["rank of A"].value == "127 of 127 active constraint(s) independent"
