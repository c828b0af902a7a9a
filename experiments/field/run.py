"""The command ``field``: every library on the same problems; a table, plots, and a page that can be read on its own."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ..shared import machine
from ..shared.files import write, write_items, write_json
from ..shared.jobs import Job, discard_pieces
from .cells import Bench
from .libraries import LIBRARIES
from .page import build, piece
from .plan import Plan
from .processes import Processes
from .rows import NOT_MEASURED, Row, row_of
from .verdicts import criteria


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command line."""
    parser.set_defaults(workers=1)  # times are compared
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it works")
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="TEXT", help="families whose names contain one of these"
    )
    parser.add_argument("--libraries", nargs="+", default=[], choices=list(LIBRARIES), help="these alone")
    parser.add_argument("--limit", type=float, help="seconds for a cell (15, quick: 10)")
    parser.add_argument("--minutes", type=float, default=120.0, help="after which no cell is begun (%(default)g)")


def place(args: argparse.Namespace) -> Path:
    """Where everything is kept."""
    out: Path = args.out
    return out / "field"


def plan_of(args: argparse.Namespace) -> Plan:
    """What the options say."""
    budget, limit = (0.05, 10.0) if args.quick else (0.2, 15.0)
    limit = args.limit or limit
    libraries = tuple(args.libraries)
    return Plan(tuple(args.only), args.quick, budget, limit, libraries=libraries, minutes=args.minutes)


def jobs(args: argparse.Namespace) -> Sequence[Job]:
    """The cells that are not measured yet."""
    if args.force:
        discard_pieces(place(args))
        shutil.rmtree(place(args) / "truth", ignore_errors=True)
    plan = plan_of(args)
    for library in LIBRARIES.values():
        if not library.installed:
            print(f"{library.name} is not installed: skipped.")
    args.bench = Bench(plan, place(args), Processes(place(args) / "logs"))
    todo: Sequence[Job] = args.bench.start()
    return todo


def finish(args: argparse.Namespace) -> list[str]:
    """Write the tables and the page, and say what it comes to; wrong is a silent failure of ours."""
    bench: Bench = args.bench
    bench.processes.close()
    rows = gather(bench)
    write_items(place(args) / "field.csv", Row, rows)
    write_json(place(args) / "machine.json", machine.describe() | {"finished": machine.now()})
    write(place(args) / "index.html", build(rows, bench.plan))
    write(place(args) / "field.html", piece(rows))
    judged = criteria(rows)
    for one in judged:
        print(f"{ {True: 'yes', False: 'NO', None: 'not run'}[one.holds]:8} {one.words}: {one.evidence}")
    print(f"The page is {(place(args) / 'index.html').resolve().as_uri()}")
    return [f"field: {judged[0].words}: {judged[0].evidence}"] if judged[0].holds is False else []


def gather(bench: Bench) -> list[Row]:
    """What is measured so far, also by runs of other families and libraries; and what there was no time for now."""
    found, asked = [], set(bench.plan.cells())
    for cell in replace(bench.plan, only=(), libraries=()).cells():
        missing = {"skipped": bench.time_left.closed(cell.library) or NOT_MEASURED} if cell in asked else None
        record = bench.piece(cell).result() or missing
        row = row_of(cell, record) if record is not None else None
        found += [] if row is None else [row]
    return found
