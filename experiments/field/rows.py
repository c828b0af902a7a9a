"""The cells as lines of a table."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

from .cells import Record
from .families import FAMILIES
from .plan import Cell

NAN = float("nan")
NOT_MEASURED = "not measured"  # how the notes begin of what there was no time for


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

    @property
    def attempted(self) -> bool:
        """Was there time for it? What was too slow was attempted too."""
        return not self.note.startswith(NOT_MEASURED)

    @property
    def timed(self) -> bool:
        """Is there a time?"""
        return self.total == self.total

    @property
    def flaw(self) -> str:
        """What is not right, in a few words."""
        counts = [
            f"{count} {name}" for count, name in ((self.silent, "silently wrong"), (self.loud, "failed")) if count
        ]
        return ", ".join([*counts, f"gradients to {self.gradient_error:.0e}"])

    def accurate(self, level: float) -> bool:
        """Did it solve all problems of the batch, with gradients to this accuracy?"""
        return self.timed and not self.loud and not self.silent and self.gradient_error <= level


def row_of(cell: Cell, record: Record) -> Row | None:
    """None for what was not meant to be solved by this library."""
    if "not" in record:
        return None
    if "times" not in record:
        (kind, reason), *_ = record.items()
        note = f"too slow: not done after {reason:g} s" if kind == "timeout" else str(reason)
        return _row(cell, {"loud": cell.batch if kind == "error" else 0, "note": note})
    times, judged = record["times"], record["judgement"]
    seconds = {name: 1e3 * times[name] for name in ("forward", "backward", "low", "high", "first")}
    total = seconds["forward"] + seconds["backward"]
    notes = [] if times["repeats"] else ["too slow to be repeated: the first call"]
    notes += [f"warned: {record['warned']}"] if record.get("warned") else []
    memory = times["memory"] / 1e6
    return _row(
        cell,
        seconds | judged | {"total": total, "memory": memory, "repeats": times["repeats"], "note": "; ".join(notes)},
    )


def _row(cell: Cell, values: dict[str, Any]) -> Row:
    """What was not measured is not a number, and what was not counted is zero."""
    empty = {field.name: NAN if field.type == "float" else 0 for field in fields(Row)}
    known = {"kind": FAMILIES[cell.family].kind, **asdict(cell)}
    return Row(**(empty | known | values))
