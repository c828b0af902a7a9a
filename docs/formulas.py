"""Formulas of the pages, written in LaTeX, as MathML: typeset when the pages are built, by the browser's own means."""

from __future__ import annotations

import re
from typing import Any

from latex2mathml.converter import convert

BLOCK = re.compile(r"^```math\n(.*?)^```$", re.DOTALL | re.MULTILINE)
BRACKETED = re.compile(r"<mo>&#x0005B;</mo>(<mtable>.*?</mtable>)<mo>&#x0005D;</mo>")


def typeset(source: str) -> str:
    """One formula for each line."""
    return "".join(f'<div class="formula">{_mathml(line)}</div>\n' for line in source.strip().splitlines())


def _mathml(line: str) -> str:
    """A formula whose matrices are one element each, with brackets drawn around it by the style sheet.

    Brackets that are characters grow with a matrix only where the reader has a font for mathematics, and an exponent
    would belong to the closing one alone.
    """
    return BRACKETED.sub(r'<mrow class="brackets">\1</mrow>', convert(line, display="block"))


def on_page_markdown(markdown: str, **_: Any) -> str:
    """What MkDocs asks before it looks at a page."""
    return BLOCK.sub(lambda block: typeset(block[1]), markdown)
