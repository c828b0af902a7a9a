"""Formulas of the pages, written in LaTeX, as MathML: typeset when the pages are built, by the browser's own means."""

from __future__ import annotations

import re
from typing import Any

from latex2mathml.converter import convert

BLOCK = re.compile(r"^```math\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def typeset(source: str) -> str:
    """One formula for each line."""
    return "".join(
        f'<div class="formula">{convert(line, display="block")}</div>\n' for line in source.strip().splitlines()
    )


def on_page_markdown(markdown: str, **_: Any) -> str:
    """What MkDocs asks before it looks at a page."""
    return BLOCK.sub(lambda block: typeset(block[1]), markdown)
