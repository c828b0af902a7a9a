"""Files that are either complete or absent, tables and records among them."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any


def write(path: Path, data: str | bytes) -> None:
    """Write a file as a whole or not at all: beside its place, and then it is moved there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_bytes(data.encode() if isinstance(data, str) else data)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def write_json(path: Path, record: object) -> None:
    """Numbers are read back bit for bit."""
    write(path, json.dumps(record, indent=1) + "\n")


def as_json(settings: Any) -> dict[str, Any]:
    """A dataclass as it is read back from a record."""
    record: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(settings)))
    return record


def read_json(path: Path) -> dict[str, Any] | None:
    """The record; None if there is no file."""
    try:
        record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return record


def csv_text(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table as the content of a file; numbers are read back bit for bit."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([head, *rows])
    return text.getvalue()


def write_items(path: Path, kind: type[Any], items: Iterable[Any]) -> None:
    """Instances of a dataclass, one per line, under the names of its fields."""
    write(path, csv_text([field.name for field in dataclasses.fields(kind)], map(dataclasses.astuple, items)))


def item_table(kind: type[Any], items: Iterable[Any], **titles: str) -> tuple[list[str], list[list[str]]]:
    """Head and lines for readers, with other titles than the names of the fields where that is said."""
    names = [field.name for field in dataclasses.fields(kind)]
    lines = [[_cell(getattr(item, name)) for name in names] for item in items]
    return [titles.get(name, name.replace("_", " ")) for name in names], lines


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "NO"
    return number_text(value) if isinstance(value, float) else str(value)


def number_text(value: float) -> str:
    """Four digits, or the order of magnitude of a small number; nothing for what was not measured."""
    return "" if value != value else f"{value:.1e}" if 0 < abs(value) < 1e-3 else f"{value:.4g}"


def read_csv(path: Path) -> list[dict[str, str]]:
    """The rows; none if there is no file."""
    if not path.exists():
        return []
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))
