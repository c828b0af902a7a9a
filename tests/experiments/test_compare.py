"""The comparison with cvxpylayers: it holds, it writes what it promises, and it can fail."""

from __future__ import annotations

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
    """Also finite differences, the literal Proposition 2.1, and nodes that are given by callables alone."""
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
    assert all(float(row["gradient"]) < 5e-6 and row["holds"] == "yes" for row in rows)
    assert {path.name for path in (tmp_path / "compare").iterdir()} == {
        "compare.csv",
        "compare_speed.csv",
        "compare.txt",
        "compare.html",
    }
    assert "4 of 4 comparisons hold" in capsys.readouterr().out


def test_a_disagreement_fails_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    node = DeclarativeNode(lambda x, u: (u - x).square().sum(), lambda _, u: u.sum() - 1, start=2)

    def other_plane(cp: Any, *_: Tensor) -> Statement:
        u, x = cp.Variable(2), cp.Parameter(2)
        return Statement(cp.sum_squares(u - x), [u[0] + 2 * u[1] == 1], [x], u)

    def broken(_: Tensor) -> Tensor:
        raise RuntimeError("out of order")

    cases = [Case.own("wrong", node, other_plane, x=X), Case("broken", node, {"x": X}, lambda: broken)]
    monkeypatch.setattr(experiment, "all_cases", lambda *_: cases)
    assert command(tmp_path, *WORDS) == 1
    told = capsys.readouterr().out
    assert "FAILED wrong, x: solution" in told
    assert "FAILED broken: RuntimeError: out of order" in told


def test_without_cvxpylayers_there_is_a_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing() -> None:
        raise MissingReferenceError("pip install 'declarative-nodes[reference]'")

    monkeypatch.setattr(experiment, "load", missing)
    assert command(tmp_path, *WORDS) == 2
    assert "declarative-nodes[reference]" in capsys.readouterr().err
