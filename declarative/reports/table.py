"""Tables of words and numbers, for terminals and notebooks."""

from __future__ import annotations

import html
from collections.abc import Sequence


def as_text(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Aligned columns under a ruled head.

    Example:
        >>> print(as_text(["rule", "cosine"], [["identity", "0.5"]]))
        rule      cosine
        --------  ------
        identity  0.5
    """
    widths = [max(len(line[i]) for line in (head, *rows)) for i in range(len(head))]
    lines = [head, ["-" * width for width in widths], *rows]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def as_html(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The same for a notebook.

    Example:
        >>> as_html(["a"], [["<"]])
        '<table><thead><tr><th>a</th></tr></thead><tbody><tr><td>&lt;</td></tr></tbody></table>'
    """

    def line(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    body = "".join(line(row, "td") for row in rows)
    return f"<table><thead>{line(head, 'th')}</thead><tbody>{body}</tbody></table>"
