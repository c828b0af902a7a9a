"""Every Python block of the documentation runs, and prints what the text block after it says; the examples run too."""

import contextlib
import io
import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"```python\n(.*?)```(?:\s*```text\n(.*?)```)?", re.DOTALL)
PAGES = sorted(path for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")] if path.exists())


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_the_blocks_of_a_page_run_in_order_and_print_what_they_say(page):
    blocks = BLOCK.findall(page.read_text())
    assert blocks
    namespace: dict[str, object] = {}
    for code, expected in blocks:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, page.name, "exec"), namespace)
        if expected:
            assert printed.getvalue().strip() == expected.strip()


def test_the_example_learns():
    main = runpy.run_path(str(ROOT / "examples" / "own_constraint.py"))["main"]
    with contextlib.redirect_stdout(io.StringIO()):
        assert main(steps=12) < 0.9
