"""What is learned with every gradient rule: seeds are pieces of work, and results are kept in the same way.

out/<name>/<name>.json    settings and everything that was measured; written last
out/<name>/*.csv, *.png   the same as tables and pictures
out/full/<name>/          likewise, of a run at full length; a page prefers it
"""

from __future__ import annotations

import argparse
import dataclasses
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from declarative.reports.table import as_text

from . import machine
from .drawing import Picture, write_pictures
from .files import as_json, csv_text, read_json, write, write_json
from .jobs import Call, Job, Piece, discard_pieces, open_pieces, positive

FULL = "full"  # the directory of what has run at full length
Record = dict[str, Any]
Cases = dict[str, Call]  # by label; each takes a seed and a tick


class Training(Protocol):
    """A module that trains; its settings have ``seeds``, ``seed`` and ``steps`` among others."""

    Settings: type[Any]  # whose defaults are the usual ones
    QUICK: Any  # settings with small sizes, to see that it works
    FULL: Any  # and at a length that nobody waits for

    def cases(self, settings: Any) -> Cases:
        """What trains one seed, by label; what these return is joined in this order."""


class Findings(Protocol):
    """A module that says what came of an application."""

    HEAD: tuple[str, ...]

    def rows(self, record: Record) -> list[list[str]]:
        """The lines of the table under that head."""

    def sentences(self, record: Record) -> list[str]:
        """What the numbers say."""

    def describe(self, settings: Record) -> str:
        """The task, the methods and what is measured, for a page."""

    def pictures(self, record: Record) -> list[Picture]:
        """What they look like."""


@dataclass(frozen=True)
class Application:
    """A task that is learned with every gradient rule: a command."""

    name: str  # of the command, and of the directory
    title: str  # for readers
    help: str  # for the command line
    seconds: float  # about what a piece takes
    keys: tuple[str, ...]  # what tells the runs of a record apart
    training: Training
    findings: Findings

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """The options of the command line."""
        usual = self.training.Settings()
        for name, words in (("seeds", "how many, each with its split"), ("steps", "of training")):
            parser.add_argument(f"--{name}", type=positive, help=f"{words} ({getattr(usual, name)})")
        parser.add_argument("--seed", type=int, help=f"the first one ({usual.seed})")
        length = parser.add_mutually_exclusive_group()
        length.add_argument("--quick", action="store_true", help="small sizes, to see that it works")
        length.add_argument("--full", action="store_true", help="all sizes, and training to the end: takes long")

    def jobs(self, args: argparse.Namespace) -> Sequence[Job]:
        """The pieces that are not trained yet; none if all is finished with these settings."""
        if not args.force and self._finished(args) is not None:
            print(f"{self.name}: finished before, kept (--force redoes it)")
            return []
        return open_pieces(self._pieces(args), args.force)

    def finish(self, args: argparse.Namespace) -> list[str]:
        """Join the pieces, keep the record with its tables and pictures, and print what it comes to."""
        results = [piece.result() for piece in self._pieces(args)]
        record = self._finished(args) if None in results else self.save(self._place(args), self._chosen(args), results)
        assert record is not None  # what was not kept was trained
        print(as_text(self.findings.HEAD, self.findings.rows(record)), "", *self.findings.sentences(record), sep="\n")
        print(f"Results are in {self._place(args)}; 'python -m experiments report' makes a page of them.")
        return []

    def save(self, place: Path, settings: Any, results: Sequence[Record]) -> Record:
        """Keep what came of all pieces; the record itself comes last."""
        (place / f"{self.name}.json").unlink(missing_ok=True)
        record = {"settings": as_json(settings), **join(results)}
        for title, rows in ((self.name, finals(record["runs"])), ("curves", curves(record["runs"], self.keys))):
            write(place / f"{title}.csv", csv_text(list(rows[0]), [list(row.values()) for row in rows]))
        write_pictures(place, self.findings.pictures(record))
        write_json(place / f"{self.name}.json", {**record, "finished": machine.now(), **machine.describe()})
        discard_pieces(place)
        return record

    def load(self, out: Path) -> Record | None:
        """The record, that of a run at full length if there is one; None if it was not run."""
        return self._read(out / FULL / self.name) or self._read(out / self.name)

    def calls(self, settings: Any) -> dict[tuple[str, str], Call]:
        """The cases with every seed."""
        seeds = range(settings.seed, settings.seed + settings.seeds)
        cases = self.training.cases(settings).items()
        return {(label, f"seed {seed}"): partial(call, seed) for label, call in cases for seed in seeds}

    def _chosen(self, args: argparse.Namespace) -> Any:
        chosen = {name: value for name in ("seeds", "seed", "steps") if (value := getattr(args, name)) is not None}
        training = self.training
        settings = training.QUICK if args.quick else training.FULL if args.full else training.Settings()
        return dataclasses.replace(settings, **chosen)

    def _place(self, args: argparse.Namespace) -> Path:
        out: Path = args.out / FULL if args.full else args.out
        return out / self.name

    def _read(self, place: Path) -> Record | None:
        return read_json(place / f"{self.name}.json")

    def _finished(self, args: argparse.Namespace) -> Record | None:
        """The record if it has these settings."""
        record = self._read(self._place(args))
        return record if record is not None and record["settings"] == as_json(self._chosen(args)) else None

    def _pieces(self, args: argparse.Namespace) -> list[Piece]:
        return [
            Piece(", ".join(filter(None, [self.name, *label])), self.seconds, self._place(args), call)
            for label, call in self.calls(self._chosen(args)).items()
        ]


def join(results: Sequence[Record]) -> Record:
    """The lists of several results one after the other, and their numerical warnings counted together."""
    lists = {name: [one for result in results for one in result[name]] for name in results[0] if name != "warnings"}
    return {**lists, "warnings": dict(sum((Counter(result["warnings"]) for result in results), Counter()))}


def finals(runs: Sequence[Record]) -> list[Record]:
    """What came of every run: everything but the curve, and the end of that, if there is one."""
    names = next(run["curve"] for run in runs if run["curve"])
    ends = [{f"last_{name}": (run["curve"] or {}).get(name, [None])[-1] for name in names} for run in runs]
    return [{k: v for k, v in run.items() if k != "curve"} | end for run, end in zip(runs, ends, strict=True)]


def curves(runs: Sequence[Record], keys: Sequence[str]) -> list[Record]:
    """All curves, one look after the other."""
    return [
        {name: run[name] for name in keys} | dict(zip(run["curve"], values, strict=True))
        for run in runs
        if run["curve"]
        for values in zip(*run["curve"].values(), strict=True)
    ]
