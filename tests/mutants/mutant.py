"""What a mutant is, and whether it still fits the code."""

from __future__ import annotations

import ast
import functools
from dataclasses import dataclass
from pathlib import Path

from .places import MisfitError, changed, place_of

ROOT = Path(__file__).parents[2]
CORE = "declarative/kernels/src"


@dataclass(frozen=True)
class Mutant:
    """A fault: one place of the code, changed.

    Attributes:
        where: the function, method, class or constant; as much of the end of its dotted name as no other has. Or a file
            of the compiled core.
        old: an expression in there, or statements in a row, that occur once. Compared as syntax trees; in the core, as
            text.
        new: what takes its place.
        words: what is wrong then.
        tests: that have to fail then, as pytest names them, from the folder of the tests. Few and fast.
    """

    where: str
    old: str
    new: str
    words: str
    tests: tuple[str, ...]

    @property
    def file(self) -> str:
        """From the root of the project."""
        return f"{CORE}/{self.where}" if self.in_core else place_of(self.where, ROOT).file

    @property
    def in_core(self) -> bool:
        """Whether it is C++, which the tests compile then."""
        return self.where.endswith((".hpp", ".cpp"))

    def applied(self, text: str) -> str:
        """The file of this text with the fault in it."""
        if not self.in_core:
            return ast.unparse(changed(text, place_of(self.where, ROOT).name, self.old, self.new))
        if text.count(self.old) != 1:
            raise MisfitError(f"{self.where} has {self.old!r} {text.count(self.old)} times instead of once")
        return text.replace(self.old, self.new)

    def misfit(self) -> str | None:
        """Why it cannot be applied to the project, or nothing."""
        try:
            self.applied(_read(ROOT / self.file))
        except (MisfitError, SyntaxError) as error:
            return str(error)
        same = self.old == self.new if self.in_core else ast.dump(ast.parse(self.old)) == ast.dump(ast.parse(self.new))
        if same:
            return "it changes nothing"
        gone = [test for test in self.tests if not _is_there(test)]
        return f"there is no test {gone[0]}" if gone else None


def _is_there(test: str) -> bool:
    """Whether the file has a function of this name; its parameters are not looked at."""
    path, _, name = test.partition("::")
    names = _functions(ROOT / "tests" / path)
    return names is not None and (not name or name.partition("[")[0] in names)


@functools.cache
def _functions(path: Path) -> frozenset[str] | None:
    if not path.is_file():
        return None
    return frozenset(node.name for node in ast.parse(_read(path)).body if isinstance(node, ast.FunctionDef))


@functools.cache
def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8")
