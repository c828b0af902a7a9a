"""The comparison with cvxpylayers: it holds, it writes what it promises, and it can fail."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from declarative import DeclarativeNode, compare
from experiments.compare import run as experiment
from experiments.compare.judge import judge_case
from experiments.shared.files import read_csv
from experiments.shared.inputs import Draw
from experiments.shared.reference_cases import Case, layer_cases, node_cases, transport_cases
from problems.reference import MissingReferenceError, Statement
from tests.support.experiments import command

pytest.importorskip("cvxpylayers", reason="the reference is an extra")
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # NumPy's, to cvxpylayers

WORDS = ("compare", "--sizes", "2", "--batch", "2", "--seconds", "0")
X = torch.tensor([[3.0, 4.0], [1.0, -1.0], [0.2, 0.7]], dtype=torch.float64)


def small_cases(batch: int = 2) -> list[Case]:
    draw = Draw(batch, torch.Generator().manual_seed(1))
    return [*transport_cases(3, draw), *layer_cases(draw), *node_cases(draw)]


@pytest.mark.parametrize("case", small_cases(), ids=lambda case: case.name)
def test_the_experiment_holds_at_small_sizes(case: Case) -> None:
    """Against the optimum, finite differences, the literal Proposition 2.1; nodes of callables alone, too."""
    report = compare(case.node, case.build(), *case.xs.values(), seconds=0)
    for row in judge_case(case, report):
        assert row.holds == "yes", row


def test_the_command_writes_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(experiment, "all_cases", lambda *_: small_cases()[:2])
    assert command(tmp_path, *WORDS) == 0
    rows = read_csv(tmp_path / "compare" / "compare.csv")
    assert [row["input"] for row in rows] == ["M", "M", "r", "c"]
    assert all(float(row["to_optimum"]) < 1e-8 and row["holds"] == "yes" for row in rows)
    assert {path.name for path in (tmp_path / "compare").iterdir()} == {
        "compare.csv",
        "compare_speed.csv",
        "compare.txt",
        "compare.html",
    }
    assert "4 of 4 comparisons hold" in capsys.readouterr().out


NODE = DeclarativeNode(lambda x, u: (u - x).square().sum(), lambda _, u: u.sum() - 1, start=2)


def plane(cp: Any, first: float, *_: Tensor) -> Statement:
    u, x = cp.Variable(2), cp.Parameter(2)
    return Statement(cp.sum_squares(u - x), [first * u[0] + u[1] == 1], [x], u)


def run_cases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *cases: Case) -> int:
    monkeypatch.setattr(experiment, "all_cases", lambda *_: cases)
    return command(tmp_path, *WORDS)


def test_another_statement_of_the_reference_fails_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_cases(tmp_path, monkeypatch, Case.own("other", NODE, lambda cp, *_: plane(cp, 0.5), x=X)) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "FAILED other, x: the reference states another problem"


def test_a_reference_that_breaks_fails_nothing_and_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(_: Tensor) -> Tensor:
        raise RuntimeError("out of order")

    assert run_cases(tmp_path, monkeypatch, Case("broken", NODE, {"x": X}, lambda: broken)) == 0
    assert "cvxpylayers failed: broken: RuntimeError: out of order" in capsys.readouterr().out


def test_a_node_that_breaks_fails_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hopeless = DeclarativeNode(lambda x, u: (u - x).square().sum(), lambda _, u: u.square().sum() + 1, start=2)
    case = Case.own("hopeless", hopeless, lambda cp, *_: plane(cp, 1.0), x=X)
    assert run_cases(tmp_path, monkeypatch, case) == 1
    assert capsys.readouterr().out.splitlines()[-1].startswith("FAILED hopeless: SolverError")


class Rough(torch.nn.Module):
    """The projection onto the line, off by a little, with a gradient that is off too."""

    def forward(self, x: Tensor) -> Tensor:
        return 1.0001 * x + (1 - x.sum(-1, keepdim=True)) / 2


def test_an_inaccurate_reference_fails_nothing_and_is_told() -> None:
    case = Case("rough", NODE, {"x": X}, Rough)
    (row,) = judge_case(case, compare(case.node, Rough(), X, seconds=0))
    assert row.holds == "yes"
    assert 1e-5 < row.reference_to_optimum < 1e-3
    assert 1e-5 < row.reference_to_differences < 1e-3
    assert row.reference == (
        f"solution off by {row.reference_to_optimum:.1e}; gradient off by {row.reference_to_differences:.1e}"
    )


@pytest.mark.parametrize(
    ("off", "words"), [((1e-6, 0.0), "to optimum"), ((0.0, 1e-6), "to differences")], ids=["solution", "gradient"]
)
def test_ours_is_judged_by_its_own_error(off: tuple[float, float], words: str) -> None:
    """A solution or a gradient that is wrong by more than rounding fails, although it is nearer than the reference."""
    case = Case("ours", NODE, {"x": X}, Rough)
    report = compare(case.node, Rough(), X, seconds=0)
    y, grads = report.node.y * (1 + off[0]), {0: report.node.gradients[0] * (1 + off[1])}
    (row,) = judge_case(case, dataclasses.replace(report, node=dataclasses.replace(report.node, y=y, gradients=grads)))
    assert words in row.holds


def test_without_cvxpylayers_there_is_a_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing() -> None:
        raise MissingReferenceError("pip install 'declarative-nodes[reference]'")

    monkeypatch.setattr(experiment, "load", missing)
    assert command(tmp_path, *WORDS) == 2
    assert "declarative-nodes[reference]" in capsys.readouterr().err
