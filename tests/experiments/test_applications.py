"""What the applications have in common: the clock, the commands and what they leave, numbers in words."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from html import escape
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from experiments.applications.control import CONTROL
from experiments.applications.decision import DECISION
from experiments.applications.decision.findings import METHODS
from experiments.applications.knapsack import KNAPSACK
from experiments.applications.sampling import draw_groups, load_bundled
from experiments.applications.sorting import SORTING
from experiments.applications.sorting.training import RULES
from experiments.applications.words import consistency, spread
from experiments.shared import drawing, machine
from experiments.shared.application import Application
from experiments.shared.files import read_csv
from experiments.shared.html import warnings_list
from experiments.shared.training import Clock
from problems import OptimalTransport
from tests.support.experiments import command

each_application = pytest.mark.parametrize(
    "application", [SORTING, DECISION, KNAPSACK, CONTROL], ids=lambda one: one.name
)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the commands leave at small sizes."""
    out = tmp_path_factory.mktemp("results")
    for name in ("sorting", "decision", "knapsack", "control"):
        assert command(out, name, "--quick") == 0
    return out


def record_of(out: Path, application: Application) -> dict[str, Any]:
    record = application.load(out)
    assert record is not None
    return record


def test_no_group_has_a_member_twice() -> None:
    groups = draw_groups(torch.arange(12), 200, 10, torch.Generator().manual_seed(0))
    assert all(len(set(line)) == 10 for line in groups.tolist())


def test_the_clock_counts_the_layer_both_ways() -> None:
    clock, x = Clock(), torch.rand(2, 3, 3, dtype=torch.float64, requires_grad=True)
    y = clock(OptimalTransport(), x)
    assert clock.forward > 0
    assert clock.backward == 0
    y.square().sum().backward()
    assert 0 < clock.backward < 10


def untimed(record: dict[str, Any]) -> Any:
    """Everything but times and dates."""
    timed = ("seconds", "layer_forward", "layer_backward", "finished", "machine")
    if isinstance(record, dict):
        return {name: untimed(value) for name, value in record.items() if name not in timed}
    return [untimed(one) for one in record] if isinstance(record, list) else record


@each_application
def test_the_same_seed_gives_the_same_numbers(application: Application, results: Path) -> None:
    """And a seed does not depend on what runs beside it."""
    calls = application.calls(dataclasses.replace(application.training.QUICK, seeds=1))
    alone = [json.loads(json.dumps(call(lambda _: None)[0])) for call in calls.values()]
    kept = record_of(results, application)
    first = [one for one in kept["runs"] if one["seed"] == 0]
    assert untimed([run for one in alone for run in one["runs"]]) == untimed(first)
    assert [case for one in alone for case in one.get("cases", ())] == kept.get("cases", [])


def test_tables_and_pictures_are_written(results: Path) -> None:
    lines = read_csv(results / "sorting" / "sorting.csv")
    assert {(line["rule"], line["seed"]) for line in lines} == {
        *((rule, seed) for rule in RULES for seed in "01"),
        ("curvature", "0"),
    }
    assert {line["centred"] for line in lines} == {"True", "False"}
    assert all(0 <= float(line["last_whole"]) <= float(line["last_places"]) <= 1 for line in lines)
    curves = read_csv(results / "sorting" / "curves.csv")
    assert [line["step"] for line in curves[:3]] == ["2", "4", "2"]
    lines = read_csv(results / "decision" / "decision.csv")
    assert {line["method"] for line in lines} == set(METHODS)
    assert {line["last_step"] for line in lines} == {"2", ""}  # some methods have no curve
    for path in ("sorting/curves_n3.png", "sorting/sorted_n3_centred.png", "decision/regret.png"):
        assert (results / path).read_bytes().startswith(b"\x89PNG")
    assert not list(results.glob("*/pieces"))


@each_application
def test_what_is_finished_is_kept_unless_forced(
    application: Application, results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (results / application.name / f"{application.name}.json").stat().st_mtime_ns
    assert command(results, application.name, "--quick") == 0
    told = capsys.readouterr()
    assert f"{application.name}: finished before, kept" in told.out
    assert application.findings.sentences(record_of(results, application))[0] in told.out
    assert (results / application.name / f"{application.name}.json").stat().st_mtime_ns == before


def test_list_and_page_know_what_was_run(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    picture = (results / "decision" / "regret.png").read_bytes()  # drawing takes most of the time
    monkeypatch.setattr(drawing.Picture, "render", lambda *_: picture)
    assert command(results, "report") == 0
    assert command(results, "list") == 0
    assert capsys.readouterr().out.count("- finished") == 4
    page = (results / "index.html").read_text(encoding="utf-8")
    for application in (SORTING, DECISION, KNAPSACK, CONTROL):
        assert f'<section id="{application.name}">' in page
        said = application.findings.sentences(record_of(results, application))
        assert len(said) > 3
        assert all(escape(line) in page for line in said)
    only = tmp_path / "sorting"
    only.mkdir()
    (only / "sorting.json").write_text((results / "sorting" / "sorting.json").read_text(encoding="utf-8"))
    assert command(tmp_path, "report") == 0
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert "Not run yet: <code>python -m experiments decision</code>" in page
    assert "Not run yet: <code>python -m experiments sorting</code>" not in page


def test_a_run_at_full_length_is_kept_beside_and_shown(results: Path, tmp_path: Path) -> None:
    short = record_of(results, DECISION)
    names = vars(DECISION.training)
    one = dataclasses.replace(names["QUICK"], seeds=1, seed=1)
    long = dataclasses.replace(DECISION, training=SimpleNamespace(**{**names, "FULL": one}))
    parser = argparse.ArgumentParser()
    long.add_arguments(parser)
    words = {"out": tmp_path, "force": False}
    usual, full = (argparse.Namespace(**vars(parser.parse_args(line)), **words) for line in (["--quick"], ["--full"]))
    for args, seeds in ((full, 1), (usual, 2)):
        assert len(long.jobs(args)) == seeds
        for job in long.jobs(args):
            job.run(lambda _: None)
        assert long.finish(args) == []
        assert long.jobs(args) == []  # each is kept whatever the other has
        assert record_of(tmp_path, long)["settings"]["seed"] == 1
    kept = json.loads((tmp_path / "decision" / "decision.json").read_text(encoding="utf-8"))
    assert untimed(kept["runs"]) == untimed(short["runs"])
    assert (tmp_path / "full" / "decision" / "regret.png").exists()
    with pytest.raises(SystemExit):
        parser.parse_args(["--quick", "--full"])


def test_numbers_in_words() -> None:
    assert spread([0.5], ".1%") == "50.0%"
    assert spread([1.0, 2.0], ".1f") == "1.5 (1.0 to 2.0)"
    assert consistency([0.0, 0.0], "up", "down") == "the same on every seed"
    assert consistency([0.0], "up", "down") == "the same"
    assert consistency([1.0, 2.0], "up", "down") == "up on every seed"
    assert consistency([-1.0], "up", "down") == "down on the only seed"
    assert consistency([1.0, -1.0, 2.0], "up", "down") == "up on 2 of 3 seeds"
    assert warnings_list({}) == ""
    assert "a &lt; b (2 times)" in warnings_list({"a < b": 2})


def test_without_scikit_learn_the_message_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(ValueError, match="scikit-learn"):
        load_bundled("digits")
    assert command(tmp_path, "sorting", "--quick") == 2
    assert "pip install" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@each_application
def test_an_interrupted_command_leaves_nothing_finished(
    application: Application, results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    record = record_of(results, application)
    monkeypatch.setattr(machine, "describe", interrupted)
    monkeypatch.setattr(drawing.Picture, "render", lambda *_: b"")
    with pytest.raises(KeyboardInterrupt):
        application.save(
            tmp_path / application.name,
            application.training.QUICK,
            [{name: record[name] for name in record if name in JOINED}],
        )
    assert application.load(tmp_path) is None


JOINED = ("runs", "cases", "warnings")
