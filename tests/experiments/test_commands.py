"""The command line: what it writes, what it keeps, and what it says when it cannot."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from experiments import cli
from experiments.paper import run, store
from experiments.paper.curves import Curves
from experiments.paper.panels import PANELS, Panel
from experiments.paper.training import Outcome, train
from experiments.shared import drawing
from experiments.shared.rules import NAMES
from tests.support.experiments import command

WORDS = ["--repeats", "2", "--iterations", "3"]


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing takes most of the time."""
    monkeypatch.setattr(drawing.Picture, "render", lambda *_, **__: b"")


def test_run_writes_what_it_promises(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(tmp_path, "run", "projection-under", "eigen-all", *WORDS) == 0
    for name in ("projection-under", "eigen-all"):
        assert (tmp_path / name / "figure.png").read_bytes().startswith(b"\x89PNG")
        assert "</svg>" in (tmp_path / name / "figure.svg").read_text(encoding="utf-8")
        with open(tmp_path / name / "curves.csv", encoding="utf-8") as file:
            assert Curves.from_csv(file).loss.shape == (4, 2, 3)
    with open(tmp_path / "summary.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [(row["panel"], row["rule"]) for row in rows] == [
        (panel, rule) for panel in ("projection-under", "eigen-all") for rule in NAMES
    ]
    assert all(float(row["final_loss_min"]) <= float(row["final_loss_mean"]) for row in rows)
    about = json.loads((tmp_path / "run.json").read_text(encoding="utf-8"))
    assert about["versions"]["torch"] == torch.__version__
    assert about["panels"]["float64"]["eigen-all"]["settings"]["seed"] == 0
    assert {"date", "machine"} <= about.keys()
    told = capsys.readouterr().err.splitlines()
    assert told[0] == "[1/2] eigen-all float64 ..."  # the longest first
    assert "final loss exact" in told[1]
    assert command(tmp_path, "list") == 0
    assert "finished in float64" in capsys.readouterr().out


@pytest.mark.usefixtures("undrawn")
def test_finished_panels_are_kept_unless_forced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["run", "eigen-rank2", *WORDS]
    assert command(tmp_path, *words) == 0
    before = (tmp_path / "eigen-rank2" / "panel.json").stat().st_mtime_ns
    assert command(tmp_path, *words) == 0
    assert "kept (--force redoes it)" in capsys.readouterr().out
    assert (tmp_path / "eigen-rank2" / "panel.json").stat().st_mtime_ns == before
    assert command(tmp_path, *words, "--seed", "7") == 2
    assert "seed 0 instead of 7: use --force" in capsys.readouterr().err
    assert command(tmp_path, *words, "--seed", "7", "--force") == 0
    assert store.settings_of(tmp_path, "float64", "eigen-rank2")["seed"] == 7


@pytest.mark.usefixtures("undrawn")
def test_interruption_keeps_what_is_finished_and_says_how_to_continue(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["projection-under", "projection-over"]

    def train_once(panel: Panel, *rest: Any) -> Outcome:
        if panel.name == names[1]:
            raise KeyboardInterrupt
        return train(panel, *rest)

    with monkeypatch.context() as patched:
        patched.setattr(run, "train", train_once)
        assert command(tmp_path, "run", *names, *WORDS) == 130
    told = capsys.readouterr().err
    assert f"python -m experiments run projection-under projection-over {' '.join(WORDS)} --out" in told
    assert not (tmp_path / names[1]).exists()
    assert not list(tmp_path.rglob(".*"))
    assert (tmp_path / names[0] / "panel.json").exists()
    assert command(tmp_path, "run", *names, *WORDS) == 0
    assert "[1/1] projection-over" in capsys.readouterr().err


def test_interruption_while_saving_leaves_an_unfinished_panel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> bytes:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(drawing.Picture, "render", interrupted)
        assert command(tmp_path, "run", "projection-under", *WORDS) == 130
    assert store.settings_of(tmp_path, "float64", "projection-under") is None
    assert command(tmp_path, "run", "projection-under", *WORDS) == 0
    assert store.settings_of(tmp_path, "float64", "projection-under") is not None


def test_wrong_words_are_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(tmp_path, "run", "eigen", *WORDS) == 2
    told = capsys.readouterr().err
    assert all(name in told for name in ("'eigen'", *PANELS))
    with pytest.raises(SystemExit):
        command(tmp_path, "run", "all", "--repeats", "0")
    assert "must be at least 1" in capsys.readouterr().err
    assert command(tmp_path, "run", "all", "--device", "nowhere") == 2
    assert "--device nowhere cannot be used" in capsys.readouterr().err
    assert command(tmp_path / "nothing", "report") == 2
    assert "run all" in capsys.readouterr().err


@pytest.mark.usefixtures("undrawn")
def test_single_precision_is_kept_beside(tmp_path: Path) -> None:
    assert command(tmp_path, "run", "projection-under", *WORDS, "--dtype", "both", "--rules", "exact", "curvature") == 0
    assert (tmp_path / "projection-under" / "curves.csv").exists()
    assert (tmp_path / "float32" / "projection-under" / "curves.csv").exists()
    assert (tmp_path / "float32" / "summary.csv").exists()
    assert store.load(tmp_path, "float32")["projection-under"].curves.rules == ("exact", "curvature")


def test_all_does_the_jobs_of_every_experiment_and_writes_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One schedule, then every experiment is finished; a failed check shows in the exit code and the last line."""
    events: list[str] = []

    class Fake:
        def __init__(self, name: str, wrong: list[str]) -> None:
            self.name, self.wrong = name, wrong

        def jobs(self, args: Any) -> list[str]:
            place = tmp_path / "full" if getattr(args, "repeats", None) == 40 else tmp_path  # more repeats stand apart,
            place = place / "published" if getattr(args, "published", False) else place  # and so do other losses
            assert (args.out, args.workers, args.force) == (place, 1, False)
            return [self.name]

        def finish(self, _: Any) -> list[str]:
            events.append(f"finish {self.name}")
            return self.wrong

        def add_arguments(self, parser: Any) -> None:
            cli.EXPERIMENTS[self.name][0].add_arguments(parser)

    parse = cli.build_parser().parse_args

    class Parser:
        def parse_args(self, words: list[str]) -> Any:
            args = parse(words)
            args.experiment = Fake(words[0], ["theory: a prediction"] if words[0] == "theory" else [])
            return args

    monkeypatch.setattr(cli, "run_jobs", lambda jobs, workers: events.append(f"{len(jobs)} jobs, {workers} worker"))
    monkeypatch.setattr(cli, "write_page", lambda out: out / "index.html")
    args = parse(["all", "--quick", "--out", str(tmp_path), "--workers", "1"])
    monkeypatch.setattr(cli, "build_parser", Parser)
    assert cli.run_all(args) == 1
    assert events == ["10 jobs, 1 worker", *(f"finish {line.split()[0]}" for line in cli.ALL), "finish run"]
    told = capsys.readouterr().out
    assert "index.html" in told
    assert told.splitlines()[-1] == "FAILED theory: a prediction"
    events.clear()
    args = parse(["all", "--full", "--out", str(tmp_path), "--workers", "1"])
    assert cli.run_all(args) == 0
    assert events == ["7 jobs, 1 worker", *(f"finish {one.name}" for one in cli.APPLICATIONS), *["finish run"] * 2]
