"""What a result depends on: code without its comments and docstrings, versions, and the machine, as short digests."""

from __future__ import annotations

import ast
import hashlib
import os
import platform
from collections.abc import Iterable
from functools import cache, lru_cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
# What problems are, how a cell is measured and how its answer is judged: whatever changes here changes every cell.
TRUTH = ("cases.py", "formulas.py", "conditions.py", "truth.py")
MEASURE = ("judge.py", "measure.py", "../shared/timing.py", "../shared/memory.py")
COMMON = (*TRUTH, *MEASURE, "libraries/library.py")
# Names of constants that say which cells there are, or are words for people: a cell does not depend on them.
APART = ("FAMILIES", "SHAPES", "COMPILED", "TITLES", "VARIANTS")


@cache
def code_digest(*paths: Path) -> str:
    """Of the code in files, and in all files below folders."""
    found: list[Path] = []
    for path in paths:
        found += sorted(path.rglob("*.py")) if path.is_dir() else [path]
    trees = [_dump(path.read_text(encoding="utf-8")) for path in found]
    return digest(tree.encode() for tree in trees)


def digest(parts: Iterable[bytes]) -> str:
    """Of anything."""
    found = hashlib.sha256()
    for part in parts:
        found.update(part)
    return found.hexdigest()[:16]


@lru_cache(maxsize=1)
def processor() -> str:
    """Times of two machines are not compared: its processor, in a word."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    names = {line.partition(":")[2].strip() for line in lines if line.startswith("model name")}
    return f"{', '.join(sorted(names)) or platform.processor()} x {os.cpu_count()}"


def _dump(text: str) -> str:
    tree = ast.parse(text)
    tree.body = [one for one in tree.body if not _is_apart(one)]
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and _is_docstring(body[0]):
            body.pop(0)
    return ast.dump(tree)


def _is_apart(node: ast.stmt) -> bool:
    if not isinstance(node, ast.Assign):
        return False
    names = [one.id for one in node.targets if isinstance(one, ast.Name)]
    return any(name.endswith(APART) for name in names)


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
