"""Places in the code by name and syntax tree, which spaces, line breaks, comments and edits elsewhere do not move."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

PARTS = ("declarative", "problems")


class Place(NamedTuple):
    """A function, method, class or constant: its file from the root of the project, and its name in there."""

    file: str
    name: str


class MisfitError(ValueError):
    """What is to be changed is not there, or not only once."""


def place_of(name: str, root: Path) -> Place:
    """The one definition whose dotted name, that of its module first, is this or ends in it."""
    found = [place for full, place in _definitions(root).items() if f".{full}".endswith(f".{name}")]
    if len(found) != 1:
        raise MisfitError(f"{name} is the name of {len(found)} places instead of one: {found}")
    return found[0]


def changed(text: str, name: str, old: str, new: str) -> ast.Module:
    """The module of this text, changed in one definition: an expression, or statements that follow each other."""
    module = ast.parse(text)
    before, after = _expression(old), _expression(new)
    if before is None or after is None:
        before, after = ast.parse(old).body, ast.parse(new).body
    spots = [spot for full, node in _defined(module) if full == name for spot in _spots(node, before)]
    if len(spots) != 1:
        raise MisfitError(f"{name} has {old!r} {len(spots)} times instead of once")
    holder, field, index = spots[0]
    if index is None:
        setattr(holder, field, after)
    elif isinstance(before, list):
        getattr(holder, field)[index : index + len(before)] = after
    else:
        getattr(holder, field)[index] = after
    return module


@functools.cache
def _definitions(root: Path) -> dict[str, Place]:
    """All places, by dotted names."""
    found = {}
    for file in sorted(file.relative_to(root) for part in PARTS for file in (root / part).rglob("*.py")):
        module = ".".join(file.with_suffix("").parts).removesuffix(".__init__")
        for name, _ in _defined(ast.parse((root / file).read_text(encoding="utf-8"))):
            found[f"{module}.{name}"] = Place(file.as_posix(), name)
    return found


def _defined(scope: ast.AST, outer: str = "") -> Iterator[tuple[str, ast.AST]]:
    """What a module and its classes define, by names; what functions define belongs to these."""
    for node in ast.iter_child_nodes(scope):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield outer + node.name, node
            if isinstance(node, ast.ClassDef):
                yield from _defined(node, f"{outer}{node.name}.")
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from ((outer + x.id, node) for target in targets for x in ast.walk(target) if isinstance(x, ast.Name))
        elif isinstance(node, ast.If | ast.Try):
            yield from _defined(node, outer)


def _expression(code: str) -> ast.expr | None:
    try:
        return ast.parse(code, mode="eval").body
    except SyntaxError:
        return None


def _spots(within: ast.AST, code: ast.expr | list[ast.stmt]) -> list[tuple[ast.AST, str, int | None]]:
    """Where it occurs: the node that holds it, the field, and the place in it if that is a list."""
    spots: list[tuple[ast.AST, str, int | None]] = []
    for node in ast.walk(within):
        for field, value in ast.iter_fields(node):
            if not isinstance(value, list):
                spots += [(node, field, None)] if _same(value, code) else []
            elif isinstance(code, list):
                spots += [(node, field, i) for i in range(len(value)) if _same(value[i : i + len(code)], code)]
            else:
                spots += [(node, field, i) for i in range(len(value)) if _same(value[i], code)]
    return spots


def _same(one: Any, other: Any) -> bool:
    """Whether two pieces of code are the same, read or written."""
    if isinstance(one, list):
        return isinstance(other, list) and len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, ast.AST):
        return type(one) is type(other) and all(
            _same(getattr(one, field, None), getattr(other, field, None)) for field in one._fields if field != "ctx"
        )
    return type(one) is type(other) and bool(one == other)
