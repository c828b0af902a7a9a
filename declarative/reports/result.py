"""What a report consists of: lines with a grade, which print well."""

from __future__ import annotations

import enum
import html
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ..node import DeclarativeNode
from .table import as_html

WIDTH = 22  # of the names of the tests


class Grade(enum.Enum):
    """How a test ended."""

    PASS = "pass"
    WARN = "warn"
    FAIL = "FAIL"
    SKIP = "skip"


@dataclass(frozen=True)
class Line:
    """One test: what was tested, the number, how it ended, and what to do (empty if nothing)."""

    name: str
    value: str
    grade: Grade
    advice: str = ""

    @classmethod
    def judged(cls, name: str, value: str, advice: str, grade: Grade = Grade.WARN) -> Line:
        """Passed if there is no advice, and ended with the grade if there is."""
        return cls(name, value, grade if advice else Grade.PASS, advice)

    def describe(self, width: int = WIDTH) -> str:
        """The line for a terminal, with this width for the name; the advice goes below it."""
        indent = " " * (width + 8)
        words = f"{self.grade.value}  {self.name:<{width}}  {self.value}"
        parts = [words, f"{indent}-> {self.advice}"] if self.advice else [words]
        return "\n".join(textwrap.fill(part, 120, subsequent_indent=indent) for part in parts)


class CheckError(RuntimeError):
    """A check failed; the message is the whole result."""


@dataclass(frozen=True)
class CheckResult:
    """The lines of a check. Prints as a table; ``raise_if_failed()`` raises a :class:`CheckError`."""

    lines: tuple[Line, ...]

    @property
    def passed(self) -> bool:
        """Whether nothing failed; warnings do not count."""
        return all(line.grade is not Grade.FAIL for line in self.lines)

    def raise_if_failed(self) -> CheckResult:
        """Raise a :class:`CheckError` if a line failed; return the result otherwise."""
        if not self.passed:
            raise CheckError(f"the check failed:\n{self}")
        return self

    def __getitem__(self, name: str) -> Line:
        lines = {line.name: line for line in self.lines}
        if name not in lines:
            raise KeyError(f"there is no line {name!r}, but {', '.join(map(repr, lines))}")
        return lines[name]

    def _table(self) -> tuple[list[str], list[list[str]]]:
        rows = [[line.grade.value, line.name, line.value, line.advice] for line in self.lines]
        return ["", "tested", "found", "what to do"], rows

    def _summary(self) -> str:
        counts = [f"{sum(line.grade is grade for line in self.lines)} {grade.value.lower()}" for grade in Grade]
        return ", ".join(count for count in counts if not count.startswith("0"))

    def __str__(self) -> str:
        width = max([WIDTH, *(len(line.name) for line in self.lines)])
        return "\n".join([*(line.describe(width) for line in self.lines), self._summary()])

    def _repr_html_(self) -> str:
        return f"{as_html(*self._table())}<p>{html.escape(self._summary())}</p>"


def require_node(name: str, node: object) -> None:
    """Refuse what a report cannot be about.

    Raises:
        TypeError: it is no node.
    """
    if not isinstance(node, DeclarativeNode):
        raise TypeError(f"{name} must be a DeclarativeNode or a ready-made layer, but is {type(node).__name__}.")


def guarded(name: str, test: Callable[..., Line | Iterator[Line]], *arguments: object) -> Iterator[Line]:
    """The lines of a test of these arguments, or one that says that it could not be carried out."""
    try:
        lines = test(*arguments)
        yield from [lines] if isinstance(lines, Line) else lines
    except Exception as error:  # derivatives that are not finite, callables that fail away from the solver's path
        yield Line(name, f"could not be tested, {type(error).__name__}: {error}".replace("\n", " "), Grade.FAIL)
