"""Formulas are typeset when the pages are built: every one of them becomes MathML, and nothing of it stays LaTeX."""

import re
import runpy
from pathlib import Path
from xml.etree import ElementTree

import pytest

pytest.importorskip("latex2mathml")

DOCS = Path(__file__).parents[2] / "docs"
HOOK = runpy.run_path(str(DOCS / "formulas.py"))
PAGES = sorted(path for path in DOCS.glob("*.md") if "```math" in path.read_text())
NAMESPACE = "{http://www.w3.org/1998/Math/MathML}"


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_every_formula_of_a_page_is_typeset(page):
    source = page.read_text()
    text = HOOK["on_page_markdown"](source)
    assert "```math" not in text
    formulas = re.findall(r'<div class="formula">(.*?)</div>', text, re.DOTALL)
    assert len(formulas) == sum(len(block.strip().splitlines()) for block in HOOK["BLOCK"].findall(source))
    for formula in formulas:
        words = "".join(ElementTree.fromstring(formula).itertext())
        assert "\\" not in words
        assert "&" not in words


def test_a_fraction_is_one():
    tree = ElementTree.fromstring(HOOK["typeset"](r"\frac{a}{2}"))
    fraction = tree.find(f".//{NAMESPACE}mfrac")
    assert "".join(fraction.itertext()) == "a2"


def test_other_code_is_left_alone():
    text = "```python\nx = 1\n```\n"
    assert HOOK["on_page_markdown"](text) == text


def test_a_matrix_and_its_transpose_are_one_element_each():
    tree = ElementTree.fromstring(HOOK["typeset"](r"\begin{bmatrix} a \\ b \end{bmatrix}^\prime x"))
    base, prime = tree.find(f".//{NAMESPACE}msup")
    assert base.get("class") == "brackets"
    assert "".join(base.itertext()) == "ab"
    assert "[" not in "".join(tree.itertext())
    assert "".join(prime.itertext()) == "′"
