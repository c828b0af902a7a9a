"""Pieces of the report: badges, tables and pictures as HTML."""

from __future__ import annotations

import base64
import csv
import io
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path

from PIL import Image

from ..paper import figures
from ..paper.claims import word
from ..paper.curves import Curves

DPI = 100
COLOURS = 128  # enough for lines and shades; a third of the size


def mark(holds: bool | None) -> str:
    """A verdict as a sign."""
    return {True: "✓", False: "✗", None: "–"}[holds]


def badge(holds: bool | None) -> str:
    """A verdict as a sign and a word."""
    kind = word(holds)
    return f'<span class="badge {kind.replace(" ", "-")}">{mark(holds)} {kind}</span>'


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of words."""
    top = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def scrolling(piece: str) -> str:
    """A piece of a page whose plain tables may be wider than the screen."""
    return piece.replace("<table>", '<div class="scroll"><table>').replace("</table>", "</table></div>")


def csv_table(rows: Sequence[dict[str, str]]) -> str:
    """What was read from a file as a table."""
    if not rows:
        return "<p>empty</p>"
    return table([name.replace("_", " ") for name in rows[0]], [[_short(x) for x in row.values()] for row in rows])


def read(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file; none if there is no file."""
    if not path.exists():
        return []
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def picture(name: str, label: str, curves: Curves) -> str:
    """The figure of a panel, drawn for bright and for dark pages."""
    alt = f"Learning curves and cosines of {name} in {label}"
    return themed(alt, label, lambda theme: figures.render(curves, "png", theme, DPI))


def themed(alt: str, caption: str, draw: Callable[[figures.Theme], bytes]) -> str:
    """A figure with a caption, drawn as PNG for bright and for dark pages."""
    light, dark = (uri(_pack(draw(theme))) for theme in (figures.LIGHT, figures.DARK))
    return (
        f'<figure><picture><source media="(prefers-color-scheme: dark)" srcset="{dark}">'
        f'<img alt="{escape(alt)}" src="{light}"></picture>'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
    )


def uri(png: bytes) -> str:
    """A picture as an address that contains it."""
    return "data:image/png;base64," + base64.b64encode(png).decode()


def _pack(png: bytes) -> bytes:
    file = io.BytesIO()
    with Image.open(io.BytesIO(png)) as image:
        image.convert("RGB").quantize(COLOURS, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE).save(
            file, "png", optimize=True
        )
    return file.getvalue()


def _short(cell: str) -> str:
    """A number to four digits; words as they are."""
    try:
        return f"{float(cell):.4g}" if "." in cell or "e" in cell else cell
    except ValueError:
        return cell
