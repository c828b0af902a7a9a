"""The page about all results: one file, with everything in it."""

from __future__ import annotations

from collections import Counter
from html import escape
from pathlib import Path

from ..applications.control import CONTROL
from ..applications.decision import DECISION
from ..applications.knapsack import KNAPSACK
from ..applications.sorting import SORTING
from ..approximations import APPROXIMATIONS
from ..paper import store
from ..paper.claims import AS_PUBLISHED, judge_all
from ..paper.panels import PANELS
from ..paper.store import Finished
from ..shared import machine
from ..shared.application import FULL
from ..shared.files import read_csv, write
from ..shared.html import badge, csv_table, page, plain_pictures, scrolling, table, warnings_list
from .applications import application_section
from .panels import again, introduction, overview, panel_section, precision

APPLICATIONS = (SORTING, DECISION, KNAPSACK, CONTROL, APPROXIMATIONS)
TABLES = {  # what other commands leave
    "Does a proof of descent pay?": "certificate",
    "Comparison with independent layers": "compare",
    "Speed": "bench",
    "Beside other libraries": "field",
}


def write_page(out: Path) -> Path:
    """Write ``index.html`` from what is in the directory, and return where it is.

    Raises:
        ValueError: neither a panel nor an application is finished there.
    """
    double, single = (store.load(out, dtype) for dtype in store.DTYPES)
    if not double and not single and not any(application.load(out) for application in APPLICATIONS):
        raise ValueError(f"there are no results in {out} yet: python -m experiments run all --out {out}")
    store.write_tables(out)
    place = out / "index.html"
    write(place, build(double, single, out))
    return place


def build(double: dict[str, Finished], single: dict[str, Finished], out: Path) -> str:
    """The page as a string."""
    both = double | {f"float32/{name}": one for name, one in single.items()}
    verdicts = judge_all({name: one.curves for name, one in (both | _published(out)).items()})
    panels = [name for name in PANELS if name in double or name in single]
    sections = [
        introduction(),
        overview(verdicts),
        *_again(out / FULL),
        *(panel_section(name, double.get(name), single.get(name), verdicts) for name in panels),
        precision(bool(single)),
        *(application_section(application, application.load(out)) for application in APPLICATIONS),
        *_theory(out / "theory"),
        *_other_tables(out),
        _reproduce(both),
    ]
    return page("Cheap gradients through optimisation layers", "\n".join(sections))


def _published(place: Path) -> dict[str, Finished]:
    """Panels with the losses and targets of the published code."""
    found = store.load(place / store.PUBLISHED, store.DTYPES[0])
    return {f"{store.PUBLISHED}/{name}": one for name, one in found.items()}


def _again(place: Path) -> list[str]:
    """Panels with more repeats, which a run at full length leaves."""
    found = store.load(place, store.DTYPES[0])
    if not found:
        return []
    verdicts = judge_all({name: one.curves for name, one in (found | _published(place)).items()})
    return [again(verdicts, min(one.settings["repeats"] for one in found.values()))]


def _theory(place: Path) -> list[str]:
    rows = read_csv(place / "theory_expectations.csv")
    bounds, beyond = (read_csv(place / f"theory_{name}.csv") for name in ("worst_case", "extensions"))
    if not rows or not bounds:
        return []
    everything = rows + bounds + beyond
    good, total = sum(row["inside"] == "True" for row in everything), len(everything)
    return [
        f"""<section id="theory">
<h2>The theory against simulation</h2>
<p>{badge(good == total)} {good} of {total} predictions of the paper's propositions and of our extensions hold.</p>
{plain_pictures(place)}
<details><summary>All expectations</summary>{csv_table(rows)}</details>
<details><summary>All worst cases</summary>{csv_table(bounds)}</details>
<details><summary>Active inequalities, any B, singular H</summary>{csv_table(beyond)}</details>
</section>"""
    ]


def _other_tables(out: Path) -> list[str]:
    """What other commands left: a piece of a page, and pictures."""
    sections = []
    for title, name in TABLES.items():
        piece = out / name / f"{name}.html"
        if piece.exists():
            content = scrolling(piece.read_text(encoding="utf-8")) + plain_pictures(out / name)
            sections.append(f'<section id="{name}"><h2>{title}</h2>{content}</section>')
    return sections


def _reproduce(runs: dict[str, Finished]) -> str:
    rows = [
        [
            name,
            *(str(one.settings[key]) for key in ("repeats", "iterations", "seed")),
            *(f"{seconds:.1f}" for seconds in (one.seconds, one.seconds / len(one.curves.rules))),
            one.finished,
        ]
        for name, one in runs.items()
    ]
    head = ["panel", "repeats", "iterations", "seed", "seconds", "per rule", "finished"]
    about = machine.describe()
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    warned = warnings_list(sum((Counter(one.warnings) for one in runs.values()), Counter()))
    return f"""<section id="reproduce">
<h2>How to reproduce</h2>
<pre>python -m experiments all</pre>
<p>and, where a longer training would say more, at full length, which takes hours and replaces what is shown here:</p>
<pre>python -m experiments all --full</pre>
<p>or its parts, one by one:</p>
<pre>python -m experiments run all --dtype both
python -m experiments run {" ".join(AS_PUBLISHED)} --published --repeats 10 --out results/published
python -m experiments sorting
python -m experiments decision
python -m experiments knapsack
python -m experiments control
python -m experiments approximations
python -m experiments certificate
python -m experiments theory
python -m experiments compare
python -m experiments bench
python -m experiments field
python -m experiments report</pre>
<p>The same seed gives the same curves, bit for bit, on the same machine. All rules and repeats of a panel train at
once: <i>per rule</i> is the time of the panel divided by the number of its rules.</p>
{table(head, rows)}
<p>Page written with {escape(versions)}; {escape(about["machine"]["system"])}, {about["machine"]["cores"]} cores.
The curves are in <code>curves.csv</code> of each panel, the settings in <code>run.json</code>.</p>
{warned or "<p>There were no numerical warnings.</p>"}
</section>"""
