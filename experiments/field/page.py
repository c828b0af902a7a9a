"""The page about the field: one file, readable on its own."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from ..shared import machine
from ..shared.html import badge, bullets, page, table, themed
from .cells import Plan
from .families import FAMILIES
from .figures import picture
from .judge import WRONG_GRADIENT, WRONG_SOLUTION
from .libraries import LIBRARIES
from .rows import Row
from .verdicts import LEVELS, MAIN, OURS, contests, criteria, verdict

HEAD = (
    "family", "size", "batch", "library", "use", "forward ms", "backward ms", "both ms", "quarters", "first call ms",
    "memory MB", "solution error", "gradient error", "median", "failed", "silent", "elsewhere", "note",
)  # fmt: skip
SORT = """<script>
document.querySelectorAll("table.sortable th").forEach((head, column) => head.addEventListener("click", () => {
  const body = head.closest("table").tBodies[0], key = row => row.cells[column].dataset.value ?? "";
  const sign = head.dataset.sign = head.dataset.sign === "1" ? -1 : 1;
  const plain = (a, b) => isNaN(a) || isNaN(b) ? a.localeCompare(b) : a - b;
  const compare = (a, b) => a === "" ? 1 : b === "" ? -1 : sign * plain(a, b);
  [...body.rows].sort((a, b) => compare(key(a), key(b))).forEach(row => body.append(row));
}));
document.querySelector("#filter").addEventListener("input", event => {
  const words = event.target.value.toLowerCase().split(" ");
  document.querySelectorAll("table.sortable tbody tr").forEach(row =>
    row.hidden = !words.every(word => row.textContent.toLowerCase().includes(word)));
});
</script>
<style>table.sortable th { cursor: pointer; position: sticky; top: 0; background: var(--paper); }
tr.silent { color: var(--no); } tr.ours { font-weight: 600; }</style>"""


def build(rows: Sequence[Row], plan: Plan) -> str:
    """The page as a string."""
    families = [name for name in FAMILIES if any(row.family == name for row in rows)]
    sections = [
        _introduction(rows, plan),
        _losses(rows),
        _silent(rows),
        *(_family(name, rows) for name in families),
        _table(rows),
        _uses(),
        _method(),
    ]
    return page("Optimisation layers, side by side", "\n".join(sections))


def piece(rows: Sequence[Row]) -> str:
    """What the report says of it, with the way to the page."""
    return f'{_criteria(rows)}<p><a href="field/index.html">The benchmark of the field</a>, a page of its own.</p>'


def _criteria(rows: Sequence[Row]) -> str:
    lines = [f"<li>{badge(one.holds)} {escape(one.words)}: {one.evidence}</li>" for one in criteria(rows)]
    return f'<ul class="verdicts">{"".join(lines)}</ul>'


def _introduction(rows: Sequence[Row], plan: Plan) -> str:
    about = machine.describe()
    quick = (
        "<p><b>A quick run: small sizes, to see that it works. The figures mean little.</b></p>" if plan.quick else ""
    )
    shapes = len({row.shape for row in rows})
    return f"""<p>Libraries of differentiable optimisation layers on the same problems: {len(rows)} cells over {shapes}
batches of problems, forward and backward, on one thread of a machine with {about["machine"]["cores"]} cores that may
be shared with others: the times are those of the processor, and the quarters say how they spread.</p>{quick}
<section id="verdict"><h2>Verdict</h2>{_criteria(rows)}
<p>A library <i>wins</i> a cell if it is fastest, forward and backward together, among those that solve every problem
of the batch with gradients {MAIN} (relative, the worst of the batch).</p>{_summary(rows)}</section>"""


def _summary(rows: Sequence[Row]) -> str:
    lines = []
    for name in dict.fromkeys(row.family for row in rows):
        found = [verdict(name, rows, level) for level in LEVELS.values()]
        worst = min(found[0].lost, key=lambda one: one.factor, default=None)
        told = "" if worst is None else str(worst).partition(": ")[2]
        lines.append([FAMILIES[name].title, FAMILIES[name].kind, *(one.summary for one in found), told])
    return table(["family", "kind", *(f"ours, {name}" for name in LEVELS), "our worst loss"], lines)


def _losses(rows: Sequence[Row]) -> str:
    parts = []
    for name, level in LEVELS.items():
        lost = sorted((one for one in contests(rows, level) if not one.won), key=lambda one: one.factor)
        parts.append(f"<h3>Gradients {name}: {len(lost)} cells</h3>{bullets(map(str, lost))}")
    return f'<section id="losses"><h2>Where we lose</h2>{"".join(parts)}</section>'


def _silent(rows: Sequence[Row]) -> str:
    found: dict[str, list[int]] = {}
    for row in rows:
        if row.silent or row.loud or row.library == OURS:
            counts = found.setdefault(row.name, [0, 0, 0])
            for i, count in enumerate((row.silent, row.loud, row.elsewhere)):
                counts[i] += count
    ordered = sorted(found.items(), key=lambda one: (-one[1][0], -one[1][1]))
    lines = [[name, *map(str, counts)] for name, counts in ordered]
    return f"""<section id="failures"><h2>Failures</h2>
<p>A failure is <i>silent</i> if the library claims success, but the solution is off by more than {WRONG_SOLUTION:.0%}
or the gradient by more than {WRONG_GRADIENT:.0%}. It is loud if the library says so, raises, or returns
what is not finite.
<i>Elsewhere</i> counts other local solutions than the known one, with a right gradient: no failure.</p>
{table(["library", "silent", "loud", "elsewhere"], lines)}</section>"""


def _family(name: str, rows: Sequence[Row]) -> str:
    family, found = FAMILIES[name], verdict(name, rows)
    drawn = themed(picture(name, rows)) if any(row.family == name and row.total == row.total for row in rows) else ""
    return f"""<section id="{name}"><h2>{escape(family.title)}</h2><p>{escape(family.about)} The size counts
{escape(family.size)}.</p>{bullets(found.sentences)}<div class="wide">{drawn}</div></section>"""


def _table(rows: Sequence[Row]) -> str:
    top = "".join(f"<th>{escape(cell)}</th>" for cell in HEAD)
    body = "".join(map(_line, rows))
    return f"""<section id="cells"><h2>All cells</h2><p>Click on a head to sort.
<input id="filter" placeholder="filter: dense 10 ours" aria-label="filter"></p>
<div class="scroll"><table class="sortable"><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>
{SORT}</section>"""


def _line(row: Row) -> str:
    cells = [
        row.family, row.size, row.batch, row.library, row.variant, row.forward, row.backward, row.total,
        f"{row.low:.3g} - {row.high:.3g}" if row.low == row.low else "", row.first, row.memory, row.solution_error,
        row.gradient_error, row.usual_error, row.loud, row.silent, row.elsewhere, row.note,
    ]  # fmt: skip
    kind = "silent" if row.silent else "ours" if row.library == OURS else ""
    return f'<tr class="{kind}">{"".join(map(_cell, cells))}</tr>'


def _cell(value: object) -> str:
    if isinstance(value, float):
        empty = value != value
        shown = "" if empty else f"{value:.1e}" if 0 < abs(value) < 1e-3 else f"{value:.4g}"
        return f'<td data-value="{"" if empty else value!r}">{shown}</td>'
    return f'<td data-value="{escape(str(value))}">{escape(str(value))}</td>'


def _uses() -> str:
    lines = [
        [library.name, library.version or ("written here" if library.installed else "not installed"), name, told]
        for library in LIBRARIES.values()
        for name, told in library.variants.items()
    ]
    shown = table(["library", "version", "use", "how"], lines)
    return f'<section id="libraries"><h2>How each library is used</h2>{shown}</section>'


def _method() -> str:
    return """<section id="method"><h2>How it is measured</h2>
<p>Every library has a process of its own with one thread, from which one is split off for every cell: memory is that
of the cell alone, and a library that breaks down or runs out of time hurts nobody. A cell is built (not timed), called
once, then repeated; times are medians of the repeats in seconds of the processor. The truth is computed by none of the
libraries under test: solvers are asked only which constraints are active, the rest is Newton's method on the optimality
conditions down to rounding, which are then verified, and the gradient solves the same system. Batches in which a
gradient does not exist are drawn anew. A library that ran out of time is not asked for larger sizes.</p>
<pre>pip install -e ".[field]"
python -m experiments field</pre></section>"""
