"""What the applications have in common: seeds are pieces of work, and results are kept in the same way.

out/<name>/<name>.json    settings and everything that was measured; written last
out/<name>/*.csv, *.png   the same as tables and pictures
"""

from __future__ import annotations

import argparse
import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ..shared import machine
from ..shared.arguments import positive
from ..shared.drawing import Picture
from ..shared.files import as_json, csv_text, read_json, write, write_json
from ..shared.jobs import Job, Piece, discard_pieces, open_pieces

Record = dict[str, Any]


@dataclass(frozen=True)
class Application:
    """A task that is learned with every gradient rule: a command.

    Attributes:
        name: of the command, and of the directory.
        title: for readers.
        settings: a dataclass with ``seeds``, ``seed`` and ``steps`` among others: the defaults.
        quick: the same with small sizes, to see that it works.
        seconds: about what a piece takes.
        calls: settings -> for each label the call that trains a piece; what they return is joined in this order.
        tables: record -> tables by the names of their files.
        pictures: record -> pictures.
        text: record -> what it comes to, for a terminal.
    """

    name: str
    title: str
    settings: Any
    quick: Any
    seconds: float
    calls: Callable[[Any], Mapping[str, partial[tuple[Any, str]]]]
    tables: Callable[[Record], Mapping[str, Sequence[Mapping[str, object]]]]
    pictures: Callable[[Record], Sequence[Picture]]
    text: Callable[[Record], str]

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """The options of the command line."""
        for name, words in (("seeds", "how many, each with its split"), ("steps", "of training")):
            default = getattr(self.settings, name)
            parser.add_argument(f"--{name}", type=positive, default=default, help=f"{words} (%(default)s)")
        parser.add_argument("--seed", type=int, default=self.settings.seed, help="the first one (%(default)s)")
        parser.add_argument("--quick", action="store_true", help="small sizes, to see that it works")

    def jobs(self, args: argparse.Namespace) -> Sequence[Job]:
        """The pieces that are not trained yet; none if all is finished with these settings."""
        if not args.force and self._kept(args) is not None:
            print(f"{self.name}: finished before, kept (--force redoes it)")
            return []
        return open_pieces(self._pieces(args), args.force)

    def finish(self, args: argparse.Namespace) -> int:
        """Join the pieces, keep the record with its tables and pictures, and print what it comes to."""
        results = [piece.result() for piece in self._pieces(args)]
        record = self._kept(args) if None in results else self.save(args.out, self._chosen(args), results)
        assert record is not None  # what was not kept was trained
        print(self.text(record))
        print(f"Results are in {args.out / self.name}; 'python -m experiments report' makes a page of them.")
        return 0

    def save(self, out: Path, settings: Any, results: Sequence[Record]) -> Record:
        """Keep what came of all pieces; the record itself comes last."""
        place = out / self.name
        (place / f"{self.name}.json").unlink(missing_ok=True)
        record = {"settings": as_json(settings), **join(results)}
        for title, rows in self.tables(record).items():
            write(place / f"{title}.csv", csv_text(list(rows[0]), [list(row.values()) for row in rows]))
        for picture in self.pictures(record):
            write(place / f"{picture.name}.png", picture.render())
        write_json(place / f"{self.name}.json", {**record, "finished": machine.now(), **machine.describe()})
        discard_pieces(place)
        return record

    def load(self, out: Path) -> Record | None:
        """The record; None if it was not run."""
        return read_json(out / self.name / f"{self.name}.json")

    def _chosen(self, args: argparse.Namespace) -> Any:
        chosen = {name: getattr(args, name) for name in ("seeds", "seed", "steps")}
        return self.quick if args.quick else dataclasses.replace(self.settings, **chosen)

    def _kept(self, args: argparse.Namespace) -> Record | None:
        """The record if it has these settings."""
        record = self.load(args.out)
        return record if record is not None and record["settings"] == as_json(self._chosen(args)) else None

    def _pieces(self, args: argparse.Namespace) -> list[Piece]:
        calls = self.calls(self._chosen(args))
        return [Piece(label, self.seconds, args.out / self.name, call) for label, call in calls.items()]


def join(results: Sequence[Record]) -> Record:
    """The lists of several results one after the other, and their numerical warnings counted together."""
    lists = {name: [one for result in results for one in result[name]] for name in results[0] if name != "warnings"}
    return {**lists, "warnings": dict(sum((Counter(result["warnings"]) for result in results), Counter()))}
