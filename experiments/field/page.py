"""The page about the field: one file, readable on its own."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from ..shared import machine
from ..shared.files import number_text
from ..shared.html import badge, bullets, page, table, themed
from .cells import ALLOWANCE, LONGER
from .digests import processor
from .families import FAMILIES
from .figures import picture
from .judge import WRONG_GRADIENT, WRONG_SOLUTION
from .libraries import LIBRARIES
from .measure import LEAST, MOST
from .plan import TRACED, Plan
from .rows import Row
from .verdicts import LEVELS, MAIN, OURS, Standing, contests, criteria, standings, verdict

HEAD = (
    "family", "size", "batch", "library", "use", "forward ms", "backward ms", "both ms", "quarters", "repeats",
    "first call ms",
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
tr.silent { color: var(--no); } tr.ours { font-weight: 600; }
#glance .scroll, #failures .scroll, #verdict .scroll { max-height: none; }
table.standings td, table.standings th { padding-right: .7rem; font-size: .85rem; white-space: nowrap; }
table.standings .best { color: var(--yes); font-weight: 600; } table.standings .wrong { color: var(--no); }
table.standings small { color: var(--soft); display: block; } table.standings small.wrong { color: var(--no); }
</style>"""


def build(rows: Sequence[Row], plan: Plan) -> str:
    """The page as a string."""
    families = [name for name in FAMILIES if any(row.family == name for row in rows)]
    sections = [
        _introduction(rows, plan),
        _standings(rows),
        _losses(rows),
        _silent(rows),
        _grid(families, plan),
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
    shapes, libraries = len({row.shape for row in rows}), len({row.library for row in rows})
    missing = sum(not row.attempted for row in rows)
    open_cells = f"<p><b>{missing} cells are not measured; the table says why.</b></p>" if missing else ""
    return f"""<p>A differentiable optimisation layer solves an optimisation problem forward, and differentiates its
solution backward. Here {libraries} libraries (<i>ours</i> is the one this page comes with) meet the same {shapes}
batches of problems, {len(rows)} cells in all. Each answer is held against a solution and a gradient that were computed
independently. Cells are measured one after the other, on one thread of a machine with {about["machine"]["cores"]} cores
({escape(processor())}) that others may use meanwhile: times are those of the processor, not of the clock.</p>{quick}
{open_cells}<section id="verdict"><h2>Verdict</h2>{_criteria(rows)}
<p>A library <i>wins</i> a batch of problems if it is fastest, forward and backward together, among those that solve
every problem of it with gradients {MAIN} (relative, the worst of the batch).</p>{_summary(rows)}</section>"""


def _standings(rows: Sequence[Row]) -> str:
    found = standings(rows)
    libraries = [name for name in LIBRARIES if any(library == name for _, library in found)]
    top = "".join(f"<th>{escape(name)}</th>" for name in ("family", *libraries))
    lines = []
    for family in dict.fromkeys(row.family for row in rows):
        cells = "".join(_standing(found.get((family, library))) for library in libraries)
        lines.append(f'<tr><td><a href="#{family}">{escape(family)}</a></td>{cells}</tr>')
    return f"""<section id="glance"><h2>At a glance</h2><p>How many times as long as the fastest a library takes, where
its gradients are right {MAIN}: the mean over the batches of a family (1 &times;: always the fastest). Below, in how
many of them it is that accurate; nothing where it does not apply. Red: problems that it got wrong without a word.</p>
<div class="scroll"><table class="standings"><thead><tr>{top}</tr></thead><tbody>{"".join(lines)}</tbody></table></div>
</section>"""


def _standing(one: Standing | None) -> str:
    if one is None:
        return "<td></td>"
    shown = f"{one.slower:.3g} &times;" if one.accurate else "&ndash;"
    best = one.accurate and one.fastest == one.attempted
    silent = f'<small class="wrong">{one.silent} wrong</small>' if one.silent else ""
    count = f"<small>{one.accurate} of {one.attempted}</small>"
    return f'<td><span class="{"best" if best else ""}">{shown}</span>{count}{silent}</td>'


def _grid(families: Sequence[str], plan: Plan) -> str:
    lines = []
    for name in families:
        family = FAMILIES[name]
        shapes = family.quick if plan.quick else family.shapes
        lines.append([family.title, family.size, ", ".join(f"{size} x {batch}" for size, batch in shapes)])
    return f"""<section id="grid"><h2>What is measured</h2><p>Each family is a formula with a seed, in a few sizes and
batches: the smallest and the largest size, and between them what shows how time grows with the size and with the
batch. Sizes that lie between two others and say nothing new are left out; so are uses of a library that do the same as
another. A cell has {plan.limit:g} seconds of the processor for everything; one that is not done then is <i>too
slow</i>, and larger problems of its family are not tried. A library has {ALLOWANCE:g} seconds a cell on the whole
({LONGER:g} for {", ".join(TRACED)} and ours recorded, which trace every shape), small problems first. Calls are
repeated for {plan.budget:g} seconds, at most {MOST} times and, where the limit allows it, at least {LEAST} times.</p>
{table(["family", "the size counts", "size x batch"], lines)}</section>"""


def _summary(rows: Sequence[Row]) -> str:
    lines = []
    for name in dict.fromkeys(row.family for row in rows):
        found = [verdict(name, rows, level) for level in LEVELS.values()]
        worst = min(found[0].lost, key=lambda one: one.factor, default=None)
        loss = "" if worst is None else worst.short
        lines.append([FAMILIES[name].title, FAMILIES[name].kind, *(one.summary for one in found), loss])
    return table(["family", "kind", *(f"ours, {name}" for name in LEVELS), "our worst loss"], lines)


def _losses(rows: Sequence[Row]) -> str:
    parts = []
    for name, level in LEVELS.items():
        lost = sorted((one for one in contests(rows, level) if not one.won), key=lambda one: one.factor)
        shown = f"<h3>Gradients {name}: {len(lost)} batches</h3>{bullets(map(str, lost))}"
        folded = f"<details><summary>Gradients {name}: {len(lost)} batches</summary>{bullets(map(str, lost))}</details>"
        parts.append(shown if name == MAIN else folded)
    return f'<section id="losses"><h2>Where we lose</h2>{"".join(parts)}</section>'


def _silent(rows: Sequence[Row]) -> str:
    found: dict[str, list[int]] = {}
    for row in rows:
        counts = found.setdefault(row.name, [0, 0, 0, 0, 0])
        late = row.note.startswith("too slow") and not row.timed
        for i, count in enumerate((row.silent, row.loud, row.elsewhere, late, row.batch if row.timed else 0)):
            counts[i] += count
    ordered = sorted(found.items(), key=lambda one: (-one[1][0], -one[1][1]))
    lines = [[name, *map(str, counts)] for name, counts in ordered]
    return f"""<section id="failures"><h2>Failures</h2>
<p>A failure is <i>silent</i> if the library claims success, but the solution is off by more than {WRONG_SOLUTION:.0%}
of its largest entry, or the gradient in any input by more than {WRONG_GRADIENT:.0%}. It is <i>loud</i> if the library
says so (for a problem, or by a warning about the batch), raises, or returns what is not finite.
<i>Elsewhere</i> counts other local solutions than the known one, with a right gradient: no failure.
<i>Too slow</i> counts cells, not problems.</p>
{table(["library", "silent", "loud", "elsewhere", "too slow", "of problems"], lines)}</section>"""


def _family(name: str, rows: Sequence[Row]) -> str:
    family, found = FAMILIES[name], verdict(name, rows)
    drawn = themed(picture(name, rows)) if any(row.family == name and row.total == row.total for row in rows) else ""
    return f"""<section id="{name}"><h2>{escape(family.title)}</h2><p>{escape(family.about)} The size counts
{escape(family.size)}. <b>{escape(_headline(name, rows))}</b></p>
{bullets(found.sentences)}<div class="wide">{drawn}</div></section>"""


def _headline(family: str, rows: Sequence[Row]) -> str:
    """Who is fastest, and how often."""
    mine = {library: one for (name, library), one in standings(rows).items() if name == family and one.fastest}
    total = len({row.shape for row in rows if row.family == family})
    ordered = sorted(mine.items(), key=lambda one: -one[1].fastest)
    winners = ", ".join(f"{library} in {one.fastest}" for library, one in ordered)
    return f"Fastest {MAIN}, of {total} batches: {winners or 'nobody is that accurate'}."


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
        f"{row.low:.3g} - {row.high:.3g}" if row.timed else "", row.repeats if row.timed else "", row.first,
        row.memory, row.solution_error, row.gradient_error, row.usual_error, row.loud, row.silent,
        row.elsewhere, row.note,
    ]  # fmt: skip
    kind = "silent" if row.silent else "ours" if row.library == OURS else ""
    return f'<tr class="{kind}">{"".join(map(_cell, cells))}</tr>'


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f'<td data-value="{"" if value != value else value!r}">{number_text(value)}</td>'
    return f'<td data-value="{escape(str(value))}">{escape(str(value))}</td>'


def _uses() -> str:
    lines = [
        [library.name, library.version or ("written here" if library.installed else "not installed"), name, use]
        for library in LIBRARIES.values()
        for name, use in library.variants.items()
    ]
    shown = table(["library", "version", "use", "how"], lines)
    return f'<section id="libraries"><h2>How each library is used</h2>{shown}</section>'


def _method() -> str:
    return """<section id="method"><h2>How it is measured</h2>
<p>Every library has a process of its own with one thread, from which one is split off for every cell: memory is that
of the cell alone, and a library that breaks down or runs out of time hurts nobody. A cell is built (not timed), called
once, then repeated; times are medians of the repeats in seconds of the processor, and the quarters say how they
spread. Libraries that take one problem at a time are called in a loop.</p>
<p>The truth: a solver (Clarabel, or IPOPT) is asked only which constraints are active; the rest is Newton's method on
the optimality conditions, refined with residuals in extended precision. What comes out must be feasible, with
multipliers of the right sign, no constraint in doubt, and positive curvature (proved up to 400 unknowns). The gradient
solves the same system. The derivatives of nonlinear formulas in it are CasADi's, which is also under test as a solver;
tests hold these truths against finite differences, and the formulas in torch and CasADi against each other. Closed
forms serve the simplex, the dual serves transport. Batches in which a gradient does not exist are drawn anew. Each
input's gradient is judged by itself, relative to its size (or to a thousandth of all gradients together, if that is
more); that of a symmetric matrix by its symmetric part.</p>
<p>Results are kept by what they depend on: the problem, the library's version, the code that calls it, the processor,
and for ours all of its code. So a new version of ours is measured anew, on the same machine, beside what is kept of the
others.</p>
<pre>pip install -e ".[field]"
python -m experiments field</pre></section>"""
