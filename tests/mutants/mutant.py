"""What a mutant is, and whether it still fits the code."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Mutant:
    """A fault: one place of the code, changed.

    Attributes:
        file: from the root of the project.
        old: a snippet that occurs exactly once in the file.
        new: what takes its place.
        words: what is wrong then.
        tests: that have to fail then, as pytest names them, from the folder of the tests. Few and fast.
    """

    file: str
    old: str
    new: str
    words: str
    tests: tuple[str, ...]

    def applied(self, text: str) -> str:
        """The text of the file with the fault in it."""
        return text.replace(self.old, self.new)

    def misfit(self, root: Path = ROOT) -> str | None:
        """Why it cannot be applied to the project, or nothing."""
        text = _read(root / self.file)
        if text is None:
            return f"there is no {self.file}"
        count = text.count(self.old)
        if count != 1:
            return f"{self.file} has {self.old!r} {count} times instead of once"
        if self.old == self.new:
            return "it changes nothing"
        gone = [test for test in self.tests if not _is_there(root, test)]
        return f"there is no test {gone[0]}" if gone else None


def _is_there(root: Path, test: str) -> bool:
    """Whether the file has a function of this name; its parameters are not looked at."""
    path, _, name = test.partition("::")
    text = _read(root / "tests" / path)
    return text is not None and (not name or re.search(rf"^def {name.partition('[')[0]}\(", text, re.M) is not None)


def _read(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.is_file() else None
