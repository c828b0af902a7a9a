"""The command ``field``: every library on the same problems; a table, plots, and a page that can be read on its own."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Sequence
from pathlib import Path

from ..shared import machine
from ..shared.files import write, write_items, write_json
from ..shared.jobs import Job, discard_pieces
from .cells import Plan, pieces
from .libraries import LIBRARIES
from .page import build, piece
from .processes import Processes
from .rows import Row, row_of
from .verdicts import criteria


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command line."""
    parser.set_defaults(workers=1)  # times are compared
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it works")
    parser.add_argument("--only", default="", metavar="TEXT", help="the families whose names contain it")
    parser.add_argument("--libraries", nargs="+", default=[], choices=list(LIBRARIES), help="these alone")
    parser.add_argument("--limit", type=float, help="seconds for a cell (15, quick: 10)")


def place(args: argparse.Namespace) -> Path:
    """Where everything is kept."""
    out: Path = args.out
    return out / "field"


def plan_of(args: argparse.Namespace) -> Plan:
    """What the options say."""
    budget, limit = (0.05, 10.0) if args.quick else (0.2, 15.0)
    return Plan(args.only, args.quick, budget, args.limit or limit, tuple(args.libraries))


def jobs(args: argparse.Namespace) -> Sequence[Job]:
    """The cells that are not measured yet."""
    if args.force:
        discard_pieces(place(args))
        shutil.rmtree(place(args) / "truth", ignore_errors=True)
    plan = plan_of(args)
    for library in LIBRARIES.values():
        if not library.installed:
            print(f"{library.name} is not installed: skipped.")
    args.processes = Processes(place(args) / "logs")
    return [one for one in pieces(plan, place(args), args.processes) if one.result() is None]


def finish(args: argparse.Namespace) -> int:
    """Write the tables and the page, and say what it comes to; the exit code is 1 if ours failed silently."""
    args.processes.close()
    plan = plan_of(args)
    rows = gather(plan, place(args), args.processes)
    write_items(place(args) / "field.csv", Row, rows)
    write_json(place(args) / "machine.json", machine.describe() | {"finished": machine.now()})
    write(place(args) / "index.html", build(rows, plan))
    write(place(args) / "field.html", piece(rows))
    judged = criteria(rows)
    for one in judged:
        print(f"{ {True: 'yes', False: 'NO', None: 'not run'}[one.holds]:8} {one.words}: {one.evidence}")
    print(f"The page is {(place(args) / 'index.html').resolve().as_uri()}")
    return int(judged[0].holds is False)


def gather(plan: Plan, where: Path, processes: Processes) -> list[Row]:
    """What is measured so far."""
    found = []
    for cell, one in zip(plan.cells(), pieces(plan, where, processes), strict=True):
        record = one.result()
        row = None if record is None else row_of(cell, record)
        found += [] if row is None else [row]
    return found
