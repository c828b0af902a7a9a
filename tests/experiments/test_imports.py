"""Rooms without a way back: no import cycle, not even within a function or for typing, and one direction."""

from __future__ import annotations

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import experiments

ROOT = Path(experiments.__file__).parent
LEVEL = {"shared": 0, "report": 2, "cli": 3, "__main__": 4}  # all other rooms: 1


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module_of(path): path for path in ROOT.rglob("*.py")}


def imports_of(name: str, text: str, is_package: bool) -> set[str]:
    """The modules of the experiments that a module imports anywhere."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = name.split(".")[: len(name.split(".")) - node.level + is_package] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            inner = {f"{base}.{alias.name}" for alias in node.names}
            found |= (inner & MODULES.keys()) or {base}
    return found & MODULES.keys() - {name}


GRAPH = {
    name: imports_of(name, path.read_text(encoding="utf-8"), path.name == "__init__.py")
    for name, path in MODULES.items()
}


def room_of(name: str) -> str:
    return name.split(".")[1] if "." in name else "__main__"


def test_imports_are_found_wherever_they_are() -> None:
    text = "def f():\n    from ..shared import files\n    from .store import load\n    import experiments.cli\n"
    found = imports_of("experiments.paper.run", text, is_package=False)
    assert found == {"experiments.shared.files", "experiments.paper.store", "experiments.cli"}
    assert imports_of("experiments.paper", "from . import run", is_package=True) == {"experiments.paper.run"}
    assert len(GRAPH) > 50


def test_there_is_no_cycle() -> None:
    assert list(TopologicalSorter(GRAPH).static_order())


def test_rooms_import_from_below_alone() -> None:
    wrong = [
        f"{name} -> {other}"
        for name, others in GRAPH.items()
        for other in others
        if room_of(name) != room_of(other) and LEVEL.get(room_of(name), 1) <= LEVEL.get(room_of(other), 1)
    ]
    assert not wrong
