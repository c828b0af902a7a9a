"""The page about all results: one file, with everything in it."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from ..applications import common as applications
from ..applications import decision_report, sorting_report
from ..paper import figures, store
from ..paper.claims import Verdict, judge_all
from ..paper.panels import BATCH, NARROW, PANELS, WIDE, M
from ..paper.store import Finished
from ..paper.training import LEARNING_RATE
from .markup import badge, csv_table, mark, picture, read, scrolling, table, uri
from .page import page

RULES = {
    "exact": "the derivative of the solution",
    "unconstrained": "the paper's approximation: as if there were no constraints",
    "curvature": "ours: drops the constraints but keeps their curvature",
    "adaptive": "ours: cheap while a probe now and then finds it in line with the exact gradient, exact after that",
}
TABLES = {"Comparison with independent layers": "compare", "Speed": "bench"}  # what other commands leave


def write(out: Path) -> Path:
    """Write ``index.html`` from what is in the directory, and return where it is.

    Raises:
        ValueError: neither a panel nor an application is finished there.
    """
    double, single = (store.load(out, dtype) for dtype in store.DTYPES)
    if not double and not single and not any(applications.load(out, name) for name in applications.TITLES):
        raise ValueError(f"there are no results in {out} yet: python -m experiments run all --out {out}")
    store.write_tables(out)
    place = out / "index.html"
    store.write(place, build(double, single, out))
    return place


def build(double: dict[str, Finished], single: dict[str, Finished], out: Path) -> str:
    """The page as a string."""
    data = {name: one.curves for name, one in double.items()}
    data |= {f"float32/{name}": one.curves for name, one in single.items()}
    verdicts = judge_all(data)
    panels = [name for name in PANELS if name in double or name in single]
    sections = [
        _introduction(),
        _overview(verdicts),
        *(_panel(name, double.get(name), single.get(name), verdicts) for name in panels),
        _precision(bool(single)),
        *_applications(out),
        *_theory(out / "theory"),
        *_other_tables(out),
        _reproduce(double | {f"float32/{name}": one for name, one in single.items()}),
    ]
    return page("Cheap gradients through optimisation layers", "\n".join(sections))


# Sections.


def _introduction() -> str:
    rules = "".join(
        f'<li><span class="swatch" style="background:{figures.STYLES[name].colour}"></span>'
        f"<b>{name}</b>: {escape(text)}</li>"
        for name, text in RULES.items()
    )
    return f"""<section id="what">
<h2>What this is</h2>
<p>A small network turns data into the input of an optimisation problem, a layer solves that problem, and the network
learns to make the solution match a target. To learn, the gradient must pass through the solution of the problem.
Doing that exactly costs a linear system with the constraints in it. Gould, Xu, Xu and Liu (2023) asked what happens
if one just leaves the constraints out. These are their experiments again, with two rules of ours beside:</p>
<ul class="rules">{rules}</ul>
<p>Each panel is one problem of size {M}: batches of {BATCH}, a three-layer network that is as wide as its output,
AdamW with a learning rate of {LEARNING_RATE:g}, and data of dimension {NARROW}, or {WIDE} where it says
<i>over-parameterised</i>. All rules start from the same data and weights.</p>
<p><b>How to read a figure.</b> Above: the loss, each repeat light, their mean dark. Below: the cosine of the angle
between a rule's gradient and the exact one at the input of the layer, at each point of the rule's own curve. The line
is the mean, the shade reaches down to the lowest single problem. Above 0 the rule goes downhill, at 1
it is the exact direction.</p>
</section>"""


def _overview(verdicts: Sequence[Verdict]) -> str:
    def rows(by: str) -> str:
        return "".join(
            f"<tr><td>{badge(one.holds)}</td><td>{escape(one.claim.text)} "
            f'<span class="why">{escape(one.claim.why)}</span>{_parts(one)}</td></tr>'
            for one in verdicts
            if one.claim.by == by
        )

    return f"""<section id="claims">
<h2>What holds, and what does not</h2>
<p>{_count(verdicts)} Every verdict is computed from the data of this run; a claim about several panels must hold on
each of them. In italics: why one would expect it.</p>
<h3>The paper's claims, in our words</h3>
<table class="claims">{rows("paper")}</table>
<h3>What we add</h3>
<table class="claims">{rows("ours")}</table>
</section>"""


def _count(verdicts: Sequence[Verdict]) -> str:
    counts = []
    for by, whose in (("paper", "the paper's"), ("ours", "our own")):
        mine = [one.holds for one in verdicts if one.claim.by == by]
        counts.append(f"{mine.count(True)} of {len(mine)} of {whose} claims hold")
    return f"Here {' and '.join(counts)}."


def _parts(verdict: Verdict) -> str:
    if not verdict.parts:
        return '<ul class="evidence"><li>not run</li></ul>'
    lines = "".join(
        f'<li>{mark(part.holds)} <a href="#{panel}">{panel}</a>: {escape(part.evidence)}</li>'
        for panel, part in verdict.parts.items()
    )
    return f'<ul class="evidence">{lines}</ul>'


def _panel(name: str, double: Finished | None, single: Finished | None, verdicts: Sequence[Verdict]) -> str:
    runs = [(label, one) for label, one in (("float64", double), ("float32", single)) if one is not None]
    pictures = "".join(picture(name, label, one.curves) for label, one in runs)
    said = "".join(
        f"<li>{badge(one.parts[name].holds)} <span>{escape(one.claim.text)} "
        f'<span class="evidence">{escape(one.parts[name].evidence)}</span></span></li>'
        for one in verdicts
        if name in one.parts
    )
    tables = "".join(f"<h4>{label}</h4>{_results(one)}" for label, one in runs)
    return f"""<section id="{name}">
<h2>{escape(PANELS[name].title)} <code>{name}</code></h2>
<div class="figures">{pictures}</div>
<ul class="verdicts">{said}</ul>
{tables}
</section>"""


def _precision(shown: bool) -> str:
    beside = (
        "The runs in float32 stand beside those in float64 above."
        if shown
        else "To see it, run the panels in float32 too: <code>python -m experiments run all --dtype both</code>."
    )
    return f"""<section id="precision">
<h2>About precision</h2>
<p>The published curves of the eigenvectors were computed in float32, with a pseudo-inverse that cuts off at a fixed
10<sup>-9</sup>. That is below what float32 can resolve, so that part of what they show is round-off: once the network
has nearly learned, noise is divided by an eigenvalue next to zero. Here the default is float64, with a cut-off that is
scaled to the precision and to the spectrum of each matrix; and the matrix of <code>eigen-rank2</code> is really of
rank 2. {beside} A loss slightly below zero, which occurs in float32, is round-off too.</p>
</section>"""


def _theory(place: Path) -> list[str]:
    rows = read(place / "theory_expectations.csv")
    bounds = read(place / "theory_worst_case.csv")
    if not rows or not bounds:
        return []
    good, total = sum(row["inside"] == "True" for row in rows + bounds), len(rows) + len(bounds)
    pictures = "".join(
        f'<img class="plain" alt="{escape(path.stem.replace("_", " "))}" src="{uri(path.read_bytes())}">'
        for path in sorted(place.glob("*.png"))
    )
    return [
        f"""<section id="theory">
<h2>The theory against simulation</h2>
<p>{badge(good == total)} {good} of {total} predictions of the paper's propositions and of our extensions hold.</p>
<div class="figures">{pictures}</div>
<details><summary>All expectations</summary>{csv_table(rows)}</details>
<details><summary>All worst cases</summary>{csv_table(bounds)}</details>
</section>"""
    ]


def _applications(out: Path) -> list[str]:
    """What came of them, or how to find out."""
    sections = []
    for name, build_section in (("sorting", sorting_report.section), ("decision", decision_report.section)):
        record = applications.load(out, name)
        missing = (
            f'<section id="{name}"><h2>{applications.TITLES[name]} <code>{name}</code></h2>'
            f"<p>Not run yet: <code>python -m experiments {name}</code>.</p></section>"
        )
        sections.append(missing if record is None else build_section(record))
    return sections


def _other_tables(out: Path) -> list[str]:
    """What other commands left: a piece of a page or, without one, tables."""
    sections = []
    for title, name in TABLES.items():
        piece = out / name / f"{name}.html"
        if piece.exists():
            content = scrolling(piece.read_text(encoding="utf-8"))
        else:
            files = sorted((out / name).glob("*.csv"))
            content = "".join(
                f"<h3>{escape(path.stem.replace('_', ' '))}</h3>{csv_table(read(path))}" for path in files
            )
        if content:
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
    machine = store.describe_machine()
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    told = {text: count for one in runs.values() for text, count in one.warnings.items()}
    warned = "".join(f"<li>{escape(text)} ({count} times)</li>" for text, count in told.items())
    return f"""<section id="reproduce">
<h2>How to reproduce</h2>
<pre>python -m experiments run all
python -m experiments run all --dtype float32
python -m experiments sorting
python -m experiments decision
python -m experiments theory
python -m experiments compare
python -m experiments bench
python -m experiments report</pre>
<p>The same seed gives the same curves, bit for bit, on the same machine. All rules and repeats of a panel train at
once: <i>per rule</i> is the time of the panel divided by the number of its rules.</p>
{table(head, rows)}
<p>Page written with {escape(versions)}; {escape(machine["machine"]["system"])}, {machine["machine"]["cores"]} cores.
The curves are in <code>curves.csv</code> of each panel, the settings in <code>run.json</code>.</p>
{f"<p>Numerical warnings:</p><ul>{warned}</ul>" if warned else "<p>There were no numerical warnings.</p>"}
</section>"""


def _results(one: Finished) -> str:
    rows = []
    for row in store.summarise(one):
        got = dict(zip(store.SUMMARY, row, strict=True))
        spread = f"{got['final_loss_min']:.2g} to {got['final_loss_max']:.2g}"
        cosines = [f"{got['cosine_mean']:.3f}", f"{got['cosine_min']:.3f}", f"{got['cosine_positive']:.0%}"]
        cheap = "" if got["cheap_share"] == "" else f"{got['cheap_share']:.0%}"
        rows.append([got["rule"], f"{got['final_loss_mean']:.3g}", spread, *cosines, cheap])
    return table(["rule", "final loss", "range", "mean cosine", "lowest", "downhill", "cheap steps"], rows)
