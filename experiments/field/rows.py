"""The cells as lines of a table."""

from __future__ import annotations

from dataclasses import dataclass

from .cells import Cell, Record
from .families import FAMILIES

NAN = float("nan")


@dataclass(frozen=True)
class Row:
    """One cell. Times are milliseconds of the processor, on one thread: medians of the repeats."""

    family: str
    kind: str
    size: int
    batch: int
    library: str
    variant: str
    forward: float
    backward: float
    total: float
    low: float  # of the total: a quarter of the repeats is below
    high: float  # and a quarter above
    repeats: int
    first: float  # milliseconds of the first call, with what is done once
    memory: float  # megabytes by which the first call rises
    solution_error: float
    gradient_error: float
    usual_error: float  # of the gradient: the median of the batch
    loud: int
    silent: int
    elsewhere: int
    note: str

    @property
    def shape(self) -> tuple[str, int, int]:
        """What problems it is about."""
        return self.family, self.size, self.batch

    @property
    def name(self) -> str:
        """The library and how it is used."""
        return f"{self.library} ({self.variant})"

    def accurate(self, level: float) -> bool:
        """Did it solve all problems of the batch, with gradients to this accuracy?"""
        return not self.loud and not self.silent and self.gradient_error <= level


def row_of(cell: Cell, record: Record) -> Row | None:
    """None for what was not meant to be solved by this library."""
    if "not" in record:
        return None
    head = cell.family, FAMILIES[cell.family].kind, cell.size, cell.batch, cell.library, cell.variant
    if "times" not in record:
        (kind, told), *_ = record.items()
        note = {"timeout": f"out of time ({told} s)", "skipped": str(told), "error": str(told)}[kind]
        loud = cell.batch if kind == "error" else 0
        return Row(*head, *[NAN] * 5, 0, *[NAN] * 5, loud, 0, 0, note)
    times, judged = record["times"], record["judgement"]
    forward, backward, low, high, first = (1e3 * times[k] for k in ("forward", "backward", "low", "high", "first"))
    errors = (judged[name] for name in ("solution_error", "gradient_error", "usual_error"))
    counts = (judged[name] for name in ("loud", "silent", "elsewhere"))
    memory, repeats = times["memory"] / 1e6, times["repeats"]
    note = "" if repeats else "the first call is all there was time for"
    total = forward + backward
    return Row(*head, forward, backward, total, low, high, repeats, first, memory, *errors, *counts, note)
