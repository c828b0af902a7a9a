"""The gate: what is lost fails, what is noise does not, and a loss is accepted with a reason or not at all."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch

from experiments.bench import gate
from experiments.bench.gate import KEPT, SHARE, WATCHED, Watched
from experiments.bench.timing import Side
from experiments.shared.files import read_json
from tests.support.experiments import command


def side(seconds: Iterable[float]) -> Side:
    """Takes as long as it is told, call by call; the last of these for ever."""
    given = list(seconds)
    times = itertools.chain(given, itertools.repeat(given[-1]))
    return Side(lambda: (torch.zeros(1),), clock=lambda: next(times))


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """One row, of which a ratio of 2 is kept."""
    path = tmp_path / "kept.json"
    path.write_text(json.dumps({"ratios": {"row": 2.0}, "accepted": []}))
    monkeypatch.setattr(gate, "KEPT", path)
    monkeypatch.setattr(gate, "BUDGET", 0.0)
    monkeypatch.setattr("experiments.bench.timing.BURST", 0.0)
    return path


def watch(monkeypatch: pytest.MonkeyPatch, ours: Iterable[float], other: Iterable[float] = (2.0,)) -> None:
    row = Watched("row", "something else", lambda: {"ours": side(ours), "other": side(other)})
    monkeypatch.setattr(gate, "WATCHED", [row])


@pytest.mark.parametrize(
    ("ours", "lost", "word"),
    [(1.0, False, "holds"), (1.3, False, "holds"), (1.5, True, "LOST"), (0.5, False, "faster")],
)
def test_a_ratio_below_the_share_of_what_is_kept_fails(
    ours: float, lost: bool, word: str, kept: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    watch(monkeypatch, [ours])
    before = kept.read_text()
    assert command(KEPT.parent, "bench", "--gate") == int(lost)
    printed = capsys.readouterr().out
    assert word in printed
    assert ("Lost: row." in printed) == lost
    assert kept.read_text() == before


@pytest.mark.usefixtures("kept")
def test_a_slow_moment_is_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    watch(monkeypatch, [9.0] * 3 + [1.0])
    assert command(KEPT.parent, "bench", "--gate") == 0


@pytest.mark.usefixtures("kept")
def test_a_moment_in_which_the_other_is_slow_excuses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    watch(monkeypatch, [1.5], [2.0, 9.0, 9.0, 9.0])
    assert command(KEPT.parent, "bench", "--gate") == 1


def test_a_row_that_is_not_kept_fails(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept.unlink()
    watch(monkeypatch, [1.0])
    assert command(KEPT.parent, "bench", "--gate") == 1


def test_a_loss_is_accepted_with_a_reason(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watch(monkeypatch, [4.0])
    assert command(KEPT.parent, "bench", "--accept", "it is right now") == 0
    record = read_json(kept)
    assert record is not None
    assert record["ratios"] == {"row": 0.5}
    assert [one["reason"] for one in record["accepted"]] == ["it is right now"]
    assert record["accepted"][0]["changes"] == {"row": [2.0, 0.5]}
    assert command(KEPT.parent, "bench", "--gate") == 0


def test_without_a_reason_nothing_is_accepted(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watch(monkeypatch, [4.0])
    before = kept.read_text()
    assert command(KEPT.parent, "bench", "--accept", " ") == 2
    assert kept.read_text() == before


def test_what_is_kept_is_what_is_watched() -> None:
    record = read_json(KEPT)
    assert record is not None
    assert set(record["ratios"]) == {one.name for one in WATCHED}
    assert all(ratio > 0 for ratio in record["ratios"].values())
    assert all(one["reason"] for one in record["accepted"])
    assert 0 < SHARE < 1


@pytest.mark.parametrize("name", ["closed form layer", "small node, called", "verdict", "transport 100 x 100"])
def test_both_sides_of_a_row_can_be_run(name: str) -> None:
    pair = next(one for one in WATCHED if one.name == name).pair()
    assert set(pair) == {"ours", "other"}
    assert all(x.isfinite().all() for side in pair.values() for x in side.run())
