"""Every notebook runs from its first cell to its last, and prints what it says."""

import contextlib
import io
import json
import re
from pathlib import Path

import pytest
import torch

plt = pytest.importorskip("matplotlib.pyplot")

NOTEBOOKS = sorted((Path(__file__).parents[2] / "examples" / "notebooks").glob("*.ipynb"))


def printed(cell: dict) -> str:
    """What a cell printed when the notebook was kept."""
    return "".join("".join(output["text"]) for output in cell["outputs"] if output.get("name") == "stdout")


def without_rounding(text: str) -> str:
    """The text without its tiny numbers, which are rounding errors of the machine."""
    return re.sub(r"\d\.\d+e-\d+", "tiny", text)


def test_there_are_notebooks():
    assert {path.stem for path in NOTEBOOKS} >= {"first-steps", "control", "paper-in-ten-minutes"}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_prints_what_it_says(path):
    names: dict[str, object] = {}
    try:
        with plt.rc_context({"backend": "svg"}):
            for cell in json.loads(path.read_text())["cells"]:
                if cell["cell_type"] == "code":
                    assert not [
                        one for one in cell["outputs"] if {"error", "stderr"} & {one["output_type"], one.get("name")}
                    ]
                    out = io.StringIO()
                    with contextlib.redirect_stdout(out):
                        exec(compile("".join(cell["source"]), path.name, "exec"), names)
                    plt.close("all")
                    assert without_rounding(out.getvalue()) == without_rounding(printed(cell))
    finally:
        torch.set_default_dtype(torch.float32)
