"""The plan of the house: imports point one way, without a cycle, and only the wall touches private torch."""

import ast
from pathlib import Path

import pytest
import torch

from tests.support.hops import hops_of_node

ROOT = Path(__file__).parents[1]
# From the ground up: a module may import from its own room and from what stands above it in this list.
ROOMS = [
    "declarative.errors",
    "declarative.arguments",
    "declarative.reports.table",
    "declarative.torchside",
    "declarative.inputs",
    "declarative.user",
    "declarative.kernels",
    "declarative.linear",
    "declarative.linearity",
    "declarative.expansion",
    "declarative.evaluation",
    "declarative.problem",
    "declarative.structure",
    "declarative.optimality",
    "declarative.solution",
    "declarative.boundary",
    "declarative.recording",
    "declarative.solvers",
    "declarative.fingerprint",
    "declarative.forward",
    "declarative.gradients",
    "declarative.derivatives",
    "declarative.smoothed",
    "declarative.statement",
    "declarative.implicit",
    "declarative.theory",
    "declarative.reports.probes",
    "declarative.adaptive",
    "declarative.reports.structure",
    "declarative.node",
    "declarative.reports",
    "declarative",
    "problems",
    "experiments",
]
MAY_TOUCH_PRIVATE_TORCH = ("declarative.torchside", "declarative.recording")


def modules() -> dict[str, Path]:
    found = {}
    for room in ("declarative", "problems", "experiments"):
        for path in (ROOT / room).rglob("*.py"):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


def imported(name: str) -> list[str]:
    """The modules of the project that a module imports, anywhere in it, also for typing only."""
    path, names = MODULES[name], []
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")
            base = ".".join(parts[: len(parts) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (base, node.module) if part)
            names += [
                f"{module}.{alias.name}" if f"{module}.{alias.name}" in MODULES else module for alias in node.names
            ]
    return [one for one in names if one in MODULES]


def room_of(name: str) -> int:
    return max((i for i, room in enumerate(ROOMS) if f"{name}.".startswith(f"{room}.")), key=lambda i: len(ROOMS[i]))


@pytest.mark.parametrize("name", MODULES)
def test_imports_point_one_way(name):
    above = [one for one in imported(name) if room_of(one) > room_of(name)]
    assert not above, f"{name} imports {above}"


def test_there_is_no_cycle():
    graph = {name: [one for one in imported(name) if one != name] for name in MODULES}
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " -> ".join((*path, name))
        if name not in done:
            for other in graph[name]:
                if not name.startswith(f"{other}."):  # a package's face imports what is behind it
                    visit(other, (*path, name))
            done.add(name)

    for name in graph:
        visit(name, ())


def private(name: str) -> list[str]:
    """The attributes of torch that a module uses and whose names begin with an underscore."""
    found = []
    for node in ast.walk(ast.parse(MODULES[name].read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch."):
            found += [node.module for part in node.module.split(".") if part.startswith("_")]
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
            text = ast.unparse(node)
            found += [text] if text.startswith("torch.") else []
    return found


@pytest.mark.parametrize("name", MODULES)
def test_only_the_wall_touches_private_torch(name):
    if not name.startswith(MAY_TOUCH_PRIVATE_TORCH):
        assert not private(name)


def foreign(source: str) -> list[str]:
    """The private names that a module uses without having defined them: those of another module's classes."""
    nodes = list(ast.walk(ast.parse(source)))
    attributes = [node for node in nodes if isinstance(node, ast.Attribute)]
    libraries = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    imported = {alias.name: alias.name for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names}
    used = imported | {ast.unparse(node): node.attr for node in attributes if ast.unparse(node.value) not in libraries}
    own = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    own |= {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    own |= {node.attr for node in attributes if isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self"}
    own |= {"_asdict", "_fields", "_make", "_replace"}  # of named tuples, and documented
    private = {name for name in used.values() if name.startswith("_") and not name.endswith("_")}
    return [text for text, name in used.items() if name in private - own]


@pytest.mark.parametrize("name", MODULES)
def test_private_names_stay_in_their_module(name):
    if not name.startswith(MAY_TOUCH_PRIVATE_TORCH):
        assert not foreign(MODULES[name].read_text())


def test_the_test_would_notice():
    assert foreign("from .node import Node, _secret\nNode()._plan\nNode()._plan = 1") == ["_secret", "Node()._plan"]
    assert not foreign("import os\nos._exit(0)\nclass A:\n    def f(self):\n        self._x = 1\n        A()._x")
    assert private("declarative.torchside")
    assert room_of("declarative.linear.dense") == ROOMS.index("declarative.linear")
    assert imported("declarative.node")


@pytest.mark.parametrize(
    ("solver", "record", "forward"),
    [
        (torch.nn.functional.normalize, False, 15),
        (torch.nn.functional.normalize, True, 12),
        ("newton", False, 16),
        ("newton", True, 14),
    ],
)
def test_a_reader_follows_a_call_in_few_hops(solver, record, forward):
    hops = hops_of_node(solver, record)
    assert len(hops["forward"]["path"]) <= forward, hops["forward"]["path"]
    assert len(hops["backward"]["path"]) <= (8 if record else 10), hops["backward"]["path"]
