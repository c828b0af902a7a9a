"""The pictures that are drawn when the pages are built, from the code of the pages themselves."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS / "pictures"))
mpl.use("svg")

import gallery  # noqa: E402  (needs its folder on the path)

GALLERY = "gallery.md"


def on_files(files: Files, config: MkDocsConfig, **_: Any) -> Files:
    """Draw the pictures of the gallery, as files of the site."""
    for name, text in gallery.pictures((DOCS / GALLERY).read_text()).items():
        files.append(File.generated(config, f"pictures/{name}", content=text))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Put the picture of each problem of the gallery below its code."""
    return gallery.BLOCK.sub(_with_picture, markdown) if page.file.src_uri == GALLERY else markdown


def _with_picture(block: re.Match[str]) -> str:
    name = block[1]
    themed = [
        f"![{gallery.alternative_text(name) if theme == 'light' else 'For dark pages.'}]"
        f"(pictures/{gallery.file_name(name, theme)}#only-{theme})"
        for theme in gallery.THEMES
    ]
    return f"{block[0]}\n\n{''.join(themed)}"
