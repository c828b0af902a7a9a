"""Every Python block of the documentation runs, and prints what the text block after it says; the examples run too."""

import contextlib
import io
import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"```python\n(.*?)```(?:\s*```text\n(.*?)```)?", re.DOTALL)
PAGES = sorted(
    path
    for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    if path.exists() and "```py" in path.read_text()
)
ROUNDING = re.compile(r"\d\.\d+e-(0[6-9]|[1-9]\d)|0\.0e\+00")  # rounding errors: other ones elsewhere, or none


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # NumPy's, to cvxpylayers
@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_the_blocks_of_a_page_run_in_order_and_print_what_they_say(page):
    text = page.read_text()
    blocks = BLOCK.findall(text)
    assert len(blocks) == text.count("```py"), "a block of another form would not be run"
    namespace: dict[str, object] = {}
    for code, expected in blocks:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, page.name, "exec"), namespace)
        if expected:
            assert ROUNDING.sub("tiny", printed.getvalue().strip()) == ROUNDING.sub("tiny", expected.strip())


@pytest.mark.parametrize(
    ("example", "steps", "limit"),
    [
        ("own_constraint", 12, 0.9),
        ("learn_to_match", 12, 0.8),
        ("robust_fit", 5, 0.9),
        ("energy_network", 12, 0.6),
        ("learn_pendulum", 12, 0.2),
        ("learn_paths", 6, 0.5),
    ],
)
def test_an_example_learns(example, steps, limit):
    main = runpy.run_path(str(ROOT / "examples" / f"{example}.py"))["main"]
    with contextlib.redirect_stdout(io.StringIO()):
        assert main(steps) < limit
