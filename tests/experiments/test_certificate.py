"""The command about certificates: what it leaves, and what it says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from experiments.certificate import costs, run
from experiments.certificate.figures import picture
from experiments.shared.files import read_csv
from tests.support.experiments import command


def row(decided: float, ratio: float, steps: float = 1.0) -> dict[str, Any]:
    """A family whose proof takes one step."""
    return {
        "family": "cone",
        "size": f"{ratio:g}",
        "cosine": 0.5,
        "decided": decided,
        "steps": steps,
        "exact_over_cheap": 4.0,
        "certificate_over_cheap": 2.0,
        "with_proof_over_exact": ratio,
        "share_by_step": [0.0, decided],
        "instead": [0.5, 0.99],
    }


def counted(false: int) -> dict[str, Any]:
    return {"kind": "a", "rule": "b", "nodes": 10, "early": 1, "decided": 9, "ascending": 3, "false": false}


def test_words_follow_the_data() -> None:
    said = run.sentences([counted(0), counted(2)], [row(1.0, 0.5), row(1.0, 2.0, steps=0.0), row(0.5, 0.5)])
    assert said[0] == "2 false certificates for 20 gradients of three cheap rules, 6 of which ascend."
    assert said[1].startswith("In 2 of 3 families all problems are decided")
    assert said[1].endswith("takes less than the exact one in 1 (cone, 0.5).")
    assert said[2] == "In 1 of them no step is needed: the cosine of the cheap gradient is above 0.50."
    assert said[3].startswith("In the other 1 the steps are")
    assert "at least 0.9900" in said[3]
    assert len(run.sentences([counted(0)], [row(0.5, 0.5)])) == 2
    assert run.cost_line(row(1.0, 0.5)) == [
        *("cone", "0.5", "0.500", "100%", "1"),
        *("4.00", "2.00", "0.50", "0.99000"),
    ]
    assert run.join([[counted(1)], [counted(2)]]) == [
        counted(3) | {"nodes": 20, "early": 2, "decided": 18, "ascending": 6}
    ]


def test_a_false_certificate_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "search", lambda *_: ([counted(1)], "one is false"))
    monkeypatch.setattr(run, "families", lambda _: ())
    monkeypatch.setattr(run, "write_pictures", lambda *_: None)
    assert command(tmp_path, "certificate", "--quick") == 1


def test_the_command_leaves_tables_and_a_figure(tmp_path: Path) -> None:
    assert command(tmp_path, "certificate", "--quick") == 0
    place = tmp_path / "certificate"
    nodes, found = read_csv(place / "nodes.csv"), read_csv(place / "costs.csv")
    assert {line["false"] for line in nodes} == {"0"}
    assert sum(int(line["nodes"]) for line in nodes) == 3 * 500
    assert [line["family"] for line in found] == ["transport", "linear constraints"]
    assert (place / "certificate.png").read_bytes().startswith(b"\x89PNG")
    assert "false certificates" in (place / "certificate.html").read_text(encoding="utf-8")
    assert not (place / "pieces").exists()


def test_conjugate_gradients_get_there_with_the_work_of_a_proof() -> None:
    """The linear family's exact gradient, from the node, is what they end at."""
    (family,) = (one for one in costs.families(quick=True) if one.name == "linear constraints")
    found, words = costs.measure(family.label, True, lambda _: None)
    assert words == "100% decided"
    assert found["instead"][0] == pytest.approx(found["cosine"])  # none: the cheap gradient
    assert found["instead"][-1] == pytest.approx(1.0)
    assert found["share_by_step"] == sorted(found["share_by_step"])
    assert picture([found]).render().startswith(b"\x89PNG")
