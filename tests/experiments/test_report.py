"""The report: verdicts follow the data, both ways, and the page is whole."""

from __future__ import annotations

import base64
import functools
import io
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

from experiments.paper import claims, figures, store
from experiments.paper.claims import CLAIMS, PROJECTION, TRANSPORT, judge, judge_all
from experiments.paper.curves import Array, Curves
from experiments.paper.panels import PANELS
from experiments.paper.rules import NAMES
from experiments.paper.training import Outcome, Settings
from experiments.report import build as report

REPEATS, ITERATIONS = 2, 51
TIME = np.linspace(0, 1, ITERATIONS)
FALLING = 10 ** (-2 * TIME)
FAILING = claims.FAILING


def make(panel: str, loss: dict[str, Array], mean: dict[str, float], low: dict[str, float], positive: float) -> Curves:
    """Curves that are the same for each repeat, with constant cosines."""

    def full(values: list[Array | float]) -> Array:
        return np.stack([np.broadcast_to(value, (REPEATS, ITERATIONS)) for value in values])

    cosines = [full([of.get(rule, 1.0) for rule in NAMES]) for of in (mean, low, {"unconstrained": positive})]
    return Curves(panel, NAMES, full([loss.get(rule, FALLING) for rule in NAMES]), *cosines)


def confirming(panel: str, single: bool = False) -> Curves:
    """Data by which every claim holds."""
    if panel in PROJECTION + TRANSPORT:
        slow = 10 ** (-1.8 * TIME)
        loss = {"unconstrained": slow, "curvature": slow if panel in TRANSPORT else 10 ** (-1.9 * TIME)}
        low = {"unconstrained": 0.5, "curvature": 0.5}
        return make(panel, loss, low, low, 1.0)
    if panel in FAILING:
        uphill = panel == "eigen-rank2"
        mean = {"unconstrained": -0.5 if uphill else 0.1}
        return make(panel, {"unconstrained": 1 + 0.1 * TIME}, mean, {"unconstrained": -0.5}, 0.0 if uphill else 0.2)
    cosine = {"unconstrained": 0.5 if single else 0.999}
    return make(panel, {}, cosine, cosine, 1.0)


def refuting(panel: str, single: bool = False) -> Curves:  # noqa: ARG001
    """Data by which none does."""
    late = np.where(TIME <= 0.3, 1.0, 1e-3)
    flat = np.ones(ITERATIONS)
    if panel in PROJECTION + TRANSPORT:
        low = {"unconstrained": -0.1, "curvature": 0.5}
        return make(panel, {"unconstrained": late, "curvature": flat, "adaptive": flat}, low, low, 0.5)
    if panel in FAILING:
        low = {"unconstrained": 0.5, "curvature": 0.5}
        return make(panel, {"adaptive": flat}, low, low, 1.0)
    low = {"unconstrained": -0.5, "curvature": 0.5}
    return make(panel, {"unconstrained": flat, "adaptive": flat}, low, low, 0.0)


def data_of(kind: object) -> dict[str, Curves]:
    both = {name: kind(name) for name in PANELS}
    return both | {f"float32/{name}": kind(name, single=True) for name in PANELS}


CONFIRMING, REFUTING = data_of(confirming), data_of(refuting)


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.name)
def test_each_claim_can_come_out_both_ways(claim: claims.Claim) -> None:
    good, bad = judge(claim, CONFIRMING), judge(claim, REFUTING)
    assert (good.holds, good.word) == (True, "yes"), good.evidence
    assert (bad.holds, bad.word) == (False, "no"), bad.evidence
    assert all(not part.holds for part in bad.parts.values())
    assert set(good.parts) == set(claim.panels)


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.name)
def test_one_bad_panel_is_enough(claim: claims.Claim) -> None:
    panel = claim.panels[-1]
    mixed = CONFIRMING | {name: REFUTING[name] for name in (panel, f"float32/{panel}")}
    assert judge(claim, mixed).holds is False


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.name)
def test_broken_runs_confirm_nothing(claim: claims.Claim) -> None:
    nothing = np.full((len(NAMES), REPEATS, ITERATIONS), np.nan)
    broken = {name: Curves(one.panel, NAMES, *[nothing] * 4) for name, one in CONFIRMING.items()}
    assert judge(claim, broken).holds is False


def test_what_was_not_run_is_not_judged() -> None:
    assert {verdict.word for verdict in judge_all({})} == {"not run"}
    partly = judge_all({"projection-under": CONFIRMING["projection-under"]})
    assert {verdict.word for verdict in partly} == {"not run"}
    assert judge_all({"projection-under": REFUTING["projection-under"]})[0].word == "no"
    one_rule = {"eigen-all": CONFIRMING["eigen-all"].of("exact")}
    assert {verdict.word for verdict in judge_all(one_rule)} == {"not run"}


def test_evidence_gives_the_numbers() -> None:
    assert (
        judge_all(CONFIRMING)[0].evidence == "projection-under: minimum cosine 0.5; projection-over: minimum cosine 0.5"
    )


# The page.


class Reader(HTMLParser):
    """Collects what the tests ask about, and whether every element is closed in order."""

    VOID = ("meta", "img", "source", "br", "link")

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.images: list[str] = []
        self.links: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.images += [found[name] for name in ("src", "srcset") if name in found]
        self.links += [found["href"]] if "href" in found else []
        self.ids += [found["id"]] if "id" in found else []
        assert tag != "img" or found.get("alt"), "a picture without words"
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open
        assert self.open.pop() == tag


def page_of(data: dict[str, Curves], out: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The page of these results, with one figure drawn for all of them: that takes most of the time."""
    draw = functools.cache(lambda kind="png", *how: figures_render(CONFIRMING["eigen-all"], kind, *how))
    figures_render = figures.render
    with monkeypatch.context() as patched:
        patched.setattr(figures, "render", lambda _, *how: draw(*how))
        for name, curves in data.items():
            dtype = "float32" if name.startswith("float32/") else "float64"
            settings = Settings(REPEATS, ITERATIONS, dtype=dtype)
            store.save(out, settings, Outcome(curves, (), 0.25, {"a <strange> matrix": 2}, 1.5))
        return report.write(out).read_text(encoding="utf-8")


def test_the_page_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("compare", "bench"):
        (tmp_path / name).mkdir()
    (tmp_path / "bench" / "bench.csv").write_text("layer,largest_difference\ncvx & co,1.23456789e-09\n")
    (tmp_path / "compare" / "compare.html").write_text("<table><tr><td>as it was left</td></tr></table>")
    data = {name: CONFIRMING[name] for name in (*PANELS, "float32/eigen-negative")}
    page = page_of(data, tmp_path, monkeypatch)
    reader = Reader(page)
    assert not reader.open
    assert set(PANELS) <= set(reader.ids)
    assert len(reader.ids) == len(set(reader.ids))
    assert all(link.startswith("#") and link[1:] in reader.ids for link in reader.links)
    assert len(reader.images) == 2 * (len(PANELS) + 1)  # by day and by night
    for image in reader.images[:3]:
        picture = base64.b64decode(image.removeprefix("data:image/png;base64,"), validate=True)
        assert min(imread(io.BytesIO(picture)).shape[:2]) > 300
    assert all(image.startswith("data:image/png;base64,iVBOR") for image in reader.images)
    assert not re.search(r"https?://|@import|url\(|<script", page)
    assert "prefers-color-scheme: dark" in page
    assert "width=device-width" in page
    assert "a &lt;strange&gt; matrix" in page
    assert "cvx &amp; co" in page
    assert "1.235e-09" in page
    assert '<div class="scroll"><table><tr><td>as it was left</td></tr></table></div>' in page
    assert "✗" not in page
    assert page.count("✓ yes") > len(CLAIMS)


def test_false_data_makes_the_page_say_no(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("projection-under", "projection-over", "eigen-negative")
    page = page_of({name: REFUTING[name] for name in names}, tmp_path, monkeypatch)
    row = re.search(r"<tr><td>([^/]*)</span></td><td>Projection: ignoring the constraint", page)
    assert row is not None
    assert "✗ no" in row[1]
    assert "minimum cosine -0.1" in page
    assert "✓" not in page
    assert "--dtype" in page  # how to get the missing runs


def test_theory_is_shown_as_it_came_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "theory"
    place.mkdir()
    (place / "theory_expectations.csv").write_text("proposition,mean,inside\n2.3,1.5,True\n2.4,2.5,False\n")
    (place / "theory_worst_case.csv").write_text("condition,inside\n3.0,True\n")
    page = page_of({"eigen-all": CONFIRMING["eigen-all"]}, tmp_path, monkeypatch)
    assert "2 of 3 predictions" in page
    assert '<span class="badge no">✗ no</span> 2 of 3' in page


def test_rules_keep_their_colours() -> None:
    assert set(figures.STYLES) == set(NAMES) == set(report.RULES)
    assert len({style.colour for style in figures.STYLES.values()}) == len(NAMES)
    assert figures.render(CONFIRMING["eigen-all"], "svg") == figures.render(CONFIRMING["eigen-all"], "svg")
    text = figures.render(CONFIRMING["eigen-all"], "svg").decode()
    assert all(style.colour.lower() in text for style in figures.STYLES.values())
