"""The report: the page is whole, and says what the data say."""

from __future__ import annotations

import base64
import functools
import io
import re
from pathlib import Path
from typing import Any

import pytest
from matplotlib.image import imread

from experiments.paper import store
from experiments.paper.claims import CLAIMS
from experiments.paper.curves import Curves
from experiments.paper.figures import picture
from experiments.paper.panels import PANELS
from experiments.paper.training import Outcome, Settings
from experiments.report import panels
from experiments.report.build import write_page
from experiments.shared import html
from experiments.shared.drawing import STYLES, Picture
from experiments.shared.rules import NAMES
from tests.support.experiments import CONFIRMING, ITERATIONS, REFUTING, REPEATS, Page


@functools.cache
def drawn(*how: Any) -> bytes:
    """One figure for all panels: to draw takes most of the time."""
    return RENDER(picture(CONFIRMING["eigen-all"], "float64"), *how)


RENDER, PACKED = Picture.render, functools.cache(html._pack)


def page_of(data: dict[str, Curves], out: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The page of these results."""
    monkeypatch.setattr(Picture, "render", lambda _, *how: drawn(*how))
    monkeypatch.setattr(html, "_pack", PACKED)
    for name, curves in data.items():
        dtype = "float32" if name.startswith("float32/") else "float64"
        outcome = Outcome(curves, (), 0.25, {"a <strange> matrix": 2}, 1.5)
        store.save(out, Settings(REPEATS, ITERATIONS, dtype=dtype), outcome, {})
    return write_page(out).read_text(encoding="utf-8")


def test_the_page_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("compare", "bench"):
        (tmp_path / name).mkdir()
    (tmp_path / "bench" / "bench.html").write_text("<p>cvx &amp; co</p>")
    (tmp_path / "bench" / "growth.png").write_bytes(drawn())
    (tmp_path / "compare" / "compare.html").write_text("<table><tr><td>as it was left</td></tr></table>")
    data = {name: CONFIRMING[name] for name in (*PANELS, "float32/eigen-negative")}
    text = page_of(data, tmp_path, monkeypatch)
    reader = Page(text)
    assert not reader.open
    assert set(PANELS) <= set(reader.ids)
    assert len(reader.ids) == len(set(reader.ids))
    assert all(link.startswith("#") and link[1:] in reader.ids for link in reader.links)
    assert len(reader.images) == 2 * (len(PANELS) + 1) + 1  # by day and by night, and the one that was left
    for image in reader.images[:3]:
        picture = base64.b64decode(image.removeprefix("data:image/png;base64,"), validate=True)
        assert min(imread(io.BytesIO(picture)).shape[:2]) > 300
    assert all(image.startswith("data:image/png;base64,iVBOR") for image in reader.images)
    assert not re.search(r"https?://|@import|url\(|<script", text)
    assert "prefers-color-scheme: dark" in text
    assert "width=device-width" in text
    assert f"a &lt;strange&gt; matrix ({2 * len(data)} times)" in text
    assert "cvx &amp; co" in text
    assert '<div class="scroll"><table><tr><td>as it was left</td></tr></table></div>' in text
    assert "✗" not in text
    assert text.count("✓ yes") > len(CLAIMS)


def test_false_data_makes_the_page_say_no(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("projection-under", "projection-over", "eigen-negative")
    text = page_of({name: REFUTING[name] for name in names}, tmp_path, monkeypatch)
    row = re.search(r"<tr><td>([^/]*)</span></td><td>Projection: ignoring the constraint", text)
    assert row is not None
    assert "✗ no" in row[1]
    assert "minimum cosine -0.1" in text
    assert "✓" not in text
    assert "--dtype" in text  # how to get the missing runs


def test_theory_is_shown_as_it_came_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "theory"
    place.mkdir()
    (place / "theory_expectations.csv").write_text("proposition,mean,inside\n2.3,1.23456e-9,True\n2.4,2.5,False\n")
    (place / "theory_worst_case.csv").write_text("condition,inside\n3.0,True\n")
    text = page_of({"eigen-all": CONFIRMING["eigen-all"]}, tmp_path, monkeypatch)
    assert "2 of 3 predictions" in text
    assert "1.235e-09" in text
    assert '<span class="badge no">✗ no</span> 2 of 3' in text


def test_more_repeats_are_judged_by_themselves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = {"transport-over": CONFIRMING["transport-over"]}
    assert "Asked again" not in page_of(few, tmp_path, monkeypatch)
    many = REFUTING["transport-over"]
    store.save(tmp_path / "full", Settings(REPEATS, ITERATIONS), Outcome(many, (), None, {}, 1.5), {})
    text = page_of(few, tmp_path, monkeypatch)
    again = text[text.index('<section id="again">') :].partition("</section>")[0]
    assert f"Asked again, with {REPEATS} repeats" in again
    assert "tends to only work well in early stages" in again
    assert f"above it in 0 of {REPEATS} repeats" in again
    assert "✓ yes" not in again
    assert "float64" not in again


def test_rules_keep_their_colours() -> None:
    assert set(STYLES) - {"unrolled", "SPO+", "differences", "LQR"} == set(NAMES) == set(panels.RULES)
    assert len({style.colour for style in STYLES.values()}) == len(STYLES)
    first, again = (picture(CONFIRMING["eigen-all"], "float64").render(kind="svg") for _ in range(2))
    assert first == again
    assert all(STYLES[name].colour.lower() in first.decode() for name in NAMES)
