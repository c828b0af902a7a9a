"""Verdicts on the paper's claims follow the data, both ways."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.paper.claims import CLAIMS, Claim, judge, judge_all
from experiments.paper.curves import Curves
from experiments.shared.rules import NAMES
from tests.support.experiments import CONFIRMING, ITERATIONS, REFUTING, REPEATS

each_claim = pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.name)


@each_claim
def test_each_claim_can_come_out_both_ways(claim: Claim) -> None:
    good, bad = judge(claim, CONFIRMING), judge(claim, REFUTING)
    assert good.holds is True, good.parts
    assert bad.holds is False, bad.parts
    assert all(not part.holds for part in bad.parts.values())
    assert set(good.parts) == set(claim.panels)


@each_claim
def test_one_bad_panel_is_enough(claim: Claim) -> None:
    panel = claim.panels[-1]
    mixed = CONFIRMING | {name: REFUTING[name] for name in (panel, f"float32/{panel}")}
    assert judge(claim, mixed).holds is False


@pytest.mark.filterwarnings("ignore:invalid value")
@each_claim
def test_broken_runs_confirm_nothing(claim: Claim) -> None:
    nothing = np.full((len(NAMES), REPEATS, ITERATIONS), np.nan)
    broken = {name: Curves(one.panel, NAMES, *[nothing] * 4) for name, one in CONFIRMING.items()}
    assert judge(claim, broken).holds is False


def test_what_was_not_run_is_not_judged() -> None:
    one_rule = {"eigen-all": CONFIRMING["eigen-all"].of("exact")}
    for some in ({}, {"projection-under": CONFIRMING["projection-under"]}, one_rule):
        assert {verdict.holds for verdict in judge_all(some)} == {None}
    assert judge_all({"projection-under": REFUTING["projection-under"]})[0].holds is False


def test_a_claim_that_the_published_code_decides_otherwise_depends_on_the_experiment() -> None:
    name = "transport-over"
    (claim,) = (one for one in CLAIMS if one.name == "worse late")
    for text, code in ((REFUTING, CONFIRMING), (CONFIRMING, REFUTING), (CONFIRMING, CONFIRMING)):
        part = judge(claim, {name: text[name], f"published/{name}": code[name]}).parts[name]
        assert part.holds == (text is CONFIRMING)  # the text's experiment decides
        assert part.evidence.startswith("DEPENDS ON THE EXPERIMENT") == (text is not code)
        said = "it holds: " if code is CONFIRMING else "it does not hold: "
        assert f"As in the published code (the distance of the whole batch, not squared) {said}" in part.evidence
    assert "published" not in judge(claim, {name: CONFIRMING[name]}).parts[name].evidence


def test_evidence_gives_the_numbers() -> None:
    parts = judge_all(CONFIRMING)[0].parts
    assert {panel: part.evidence for panel, part in parts.items()} == {
        "projection-under": "minimum cosine 0.5",
        "projection-over": "minimum cosine 0.5",
    }
