"""Every public name says what it is and shows how it is used; the pages name all of them, and nothing is fetched."""

import inspect
import re
from pathlib import Path

import pytest

import declarative
import problems

ROOT = Path(__file__).parents[2]
NAMES = [(module, name) for module in (declarative, problems) for name in module.__all__]
METHODS = [name for name in vars(declarative.DeclarativeNode) if not name.startswith("_") and name != "extra_repr"]


@pytest.mark.parametrize(("module", "name"), NAMES, ids=lambda one: getattr(one, "__name__", one))
def test_a_public_name_has_a_docstring_with_an_example(module, name):
    thing = getattr(module, name)
    assert thing.__doc__
    assert ">>>" in thing.__doc__
    assert thing.__doc__ != (inspect.getmro(thing)[1].__doc__ if inspect.isclass(thing) else "")


@pytest.mark.parametrize("name", METHODS)
def test_a_public_method_of_a_node_has_a_docstring_with_an_example(name):
    assert ">>>" in (inspect.getattr_static(declarative.DeclarativeNode, name).__doc__ or "")


@pytest.mark.parametrize(("module", "name"), NAMES, ids=lambda one: getattr(one, "__name__", one))
def test_a_public_name_is_in_the_reference(module, name):
    page = (ROOT / "docs" / "api" / f"{module.__name__}.md").read_text()
    assert re.search(rf"^::: {module.__name__}(\.{name})?\.{name}$", page, re.MULTILINE)


def test_every_page_is_in_the_menu():
    menu = (ROOT / "mkdocs.yml").read_text()
    pages = [path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")]
    assert [page for page in pages if f": {page}" not in menu] == []
