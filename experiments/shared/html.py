"""HTML: a page without any other file, for wide and narrow screens, by day and by night, and the pieces of it."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path

from PIL import Image

from declarative.reports.table import as_html

from .drawing import DARK, LIGHT, Picture

DPI = 100
COLOURS = 128  # enough for lines and shades; a third of the size
STYLE = """
:root { color-scheme: light dark; --paper: #ffffff; --ink: #1a1a1a; --soft: #595959; --line: #d9d9d9; --tint: #f4f5f7;
  --yes: #00664b; --no: #a33f00; --open: #595959; --link: #005a94; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #17191c; --ink: #e6e6e6; --soft: #a8adb4; --line: #3a3d42; --tint: #212429;
    --yes: #3fcf9f; --no: #ff9a5c; --open: #a8adb4; --link: #6fbdf0; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 70rem; padding: 1rem 1rem 4rem; background: var(--paper); color: var(--ink);
  font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; overflow-wrap: break-word; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 1.5rem 0 .5rem; }
h2 { font-size: 1.35rem; line-height: 1.3; margin: 2.8rem 0 .8rem; padding-top: .8rem;
  border-top: 1px solid var(--line); }
h3 { font-size: 1.1rem; margin: 1.6rem 0 .5rem; }
h4 { font-size: .95rem; margin: 1.2rem 0 .3rem; color: var(--soft); }
p, ul { max-width: 48rem; }
a { color: var(--link); }
code { font-size: .85em; background: var(--tint); padding: .1em .35em; border-radius: .25rem; font-weight: 400; }
pre { background: var(--tint); padding: .8rem 1rem; border-radius: .4rem; overflow-x: auto; font-size: .9rem; }
nav { display: flex; flex-wrap: wrap; gap: .3rem .9rem; font-size: .92rem; margin: .8rem 0; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 24rem), 1fr)); gap: 1rem; }
.figures > :only-child { max-width: 40rem; }
.wide { display: grid; gap: 1rem; max-width: 56rem; margin: 1.2rem 0; }
figure { margin: 0; }
figcaption { text-align: center; color: var(--soft); font-size: .9rem; }
img { display: block; width: 100%; height: auto; border-radius: .4rem; }
img.plain { background: #ffffff; }
.scroll { overflow: auto; max-height: 32rem; }
table { border-collapse: collapse; font-size: .92rem; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .3rem .9rem .3rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
.scroll th, .scroll td { white-space: nowrap; }
table.claims { width: 100%; }
table.claims td:first-child { width: 5.2rem; }
.evidence { color: var(--soft); font-size: .9rem; }
.why { font-style: italic; color: var(--soft); }
ul.evidence, ul.rules, ul.verdicts { list-style: none; padding: 0; max-width: none; }
ul.evidence { margin: .15rem 0 .3rem; }
ul.rules li, ul.verdicts li { margin: .45rem 0; }
ul.verdicts li { display: flex; gap: .7rem; align-items: baseline; }
.swatch { display: inline-block; width: .85em; height: .85em; border-radius: 50%; margin-right: .5em; }
.badge { display: inline-block; flex: none; min-width: 3.9rem; padding: 0 .4rem; border: 1px solid; border-radius: 1rem;
  font-size: .85rem; font-weight: 600; text-align: center; white-space: nowrap; }
.badge.yes { color: var(--yes); } .badge.no { color: var(--no); } .badge.not-run { color: var(--open); }
summary { cursor: pointer; margin: .6rem 0; color: var(--link); }
"""


def page(title: str, body: str) -> str:
    """The whole page, with links to the sections that have an id."""
    names = re.findall(r'<section id="([^"]+)"', body)
    links = "".join(f'<a href="#{name}">{name}</a>' for name in names)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(title)}</title>
<style>{STYLE}</style>
</head>
<body>
<h1>{escape(title)}</h1>
<nav>{links}</nav>
{body}
</body>
</html>
"""


def mark(holds: bool | None) -> str:
    """A verdict as a sign."""
    return {True: "✓", False: "✗", None: "–"}[holds]


def badge(holds: bool | None) -> str:
    """A verdict as a sign and a word."""
    word = {True: "yes", False: "no", None: "not run"}[holds]
    return f'<span class="badge {word.replace(" ", "-")}">{mark(holds)} {word}</span>'


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of words, which may be wider than the screen."""
    return scrolling(as_html(head, rows))


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
