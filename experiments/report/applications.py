"""The sections on the applications: what was done, what it says, tables and pictures."""

from __future__ import annotations

from ..shared.application import Application, Record
from ..shared.html import bullets, table, themed, warnings_list

LONG = 40  # lines of a table


def application_section(application: Application, record: Record | None) -> str:
    """What came of it, or how to find out."""
    command = f"<code>python -m experiments {application.name}</code>"
    content = f"<p>Not run yet: {command}.</p>" if record is None else _content(application, record)
    head = f"<h2>{application.title} <code>{application.name}</code></h2>"
    return f'<section id="{application.name}">\n{head}\n{content}\n</section>'


def _content(application: Application, record: Record) -> str:
    findings = application.findings
    pictures = {True: "", False: ""}
    for picture in findings.pictures(record):
        pictures[picture.wide] += themed(picture)
    shown = f"""<div class="wide">{pictures[True]}</div>
<div class="figures">{pictures[False]}</div>"""
    lines = findings.rows(record)
    content = [table(findings.HEAD, lines), shown]
    if len(lines) > LONG:  # nobody should have to go past it to see the figure
        content = [shown, f"<details><summary>All {len(lines)} lines of the table</summary>{content[0]}</details>"]
    return "\n".join(
        [
            findings.describe(record["settings"]),
            bullets(findings.sentences(record)),
            *content,
            warnings_list(record["warnings"]),
        ]
    )
