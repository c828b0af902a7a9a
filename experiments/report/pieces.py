"""Pieces of the report: badges, tables and pictures as HTML."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path

from PIL import Image

from ..paper.claims import word
from ..shared.drawing import DARK, LIGHT, Picture

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


def bullets(lines: Iterable[str]) -> str:
    """A list of sentences."""
    return f"<ul>{''.join(f'<li>{escape(line)}</li>' for line in lines)}</ul>"


def warnings_list(counts: Mapping[str, int]) -> str:
    """Numerical warnings; nothing if there were none."""
    lines = bullets(f"{text} ({count} times)" for text, count in counts.items())
    return f"<details><summary>Numerical warnings</summary>{lines}</details>" if counts else ""


def themed(picture: Picture) -> str:
    """A figure with a caption, drawn for bright and for dark pages."""
    light, dark = (uri(_pack(picture.render(theme, DPI))) for theme in (LIGHT, DARK))
    return (
        f'<figure><picture><source media="(prefers-color-scheme: dark)" srcset="{dark}">'
        f'<img alt="{escape(picture.alt)}" src="{light}"></picture>'
        f"<figcaption>{escape(picture.caption)}</figcaption></figure>"
    )


def plain_pictures(place: Path) -> str:
    """The pictures that a command has left; nothing if there are none."""
    pictures = "".join(
        f'<img class="plain" alt="{escape(path.stem.replace("_", " "))}" src="{uri(path.read_bytes())}">'
        for path in sorted(place.glob("*.png"))
    )
    return f'<div class="figures">{pictures}</div>' if pictures else ""


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
