"""Every speed claim as a ratio of two times that are measured in the same run, on one thread.

The absolute times say more about the machine than about the library; the ratios are what is claimed. Both sides of a
ratio must give the same gradient, and by how much they differ stands beside it. Nothing here can fail: a ratio that
misses its target is marked, and a library to compare with that is not installed is skipped.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Sequence
from dataclasses import replace
from html import escape
from itertools import chain

from declarative.reports.table import as_html, as_text

from ..shared.drawing import write_pictures
from ..shared.files import item_table, write, write_items
from ..shared.machine import one_thread
from . import figures, gate, layers, nodes, references, sparse, versions, warm
from .peers import Peers
from .rows import Point, Row, Run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command line."""
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it works")
    parser.add_argument("--only", default="", metavar="TEXT", help="the rows whose claim contains it")
    parser.add_argument("--before", default="", metavar="COMMIT", help="also beside this version of the project")
    parser.add_argument("--compiled", action="store_true", help="sparse problems also compiled: a minute a shape")
    parser.add_argument("--gate", action="store_true", help="only whether speed was lost since it was last kept")
    parser.add_argument("--accept", metavar="REASON", help="keep the ratios of the gate as they are now, and say why")


def run(args: argparse.Namespace) -> int:
    """Measure, print a table, and leave tables, plots and a piece of the report in ``bench``."""
    if args.accept is not None:
        return gate.accept(args.accept, args.only)
    if args.gate:
        return gate.gate(args.only)
    plan = Run(args.only, 0.0, 1) if args.quick else Run(args.only)
    rows = []
    with warnings.catch_warnings(), one_thread(), Peers() as peers:
        warnings.simplefilter("ignore", DeprecationWarning)  # of the peers, for their authors
        studies = chain(
            nodes.studies(args.quick, peers),
            layers.studies(args.quick),
            references.studies(args.quick),
            sparse.studies(args.quick, args.compiled),
            warm.studies(args.quick),
            versions.studies(args.before),
        )
        for row in (row for study in studies for row in study.rows(plan)):
            rows.append(replace(row, target="", met="") if args.quick else row)  # targets are for the sizes in claims
            print(f"{row.claim}: {row.ratio:.3g} {rows[-1].met}".rstrip(), flush=True)
    if not rows:
        raise ValueError(f"no claim contains {args.only!r}.")
    print(as_text(*table(rows)))
    out = args.out / "bench"
    write_items(out / "bench.csv", Row, rows)
    write_items(out / "growth.csv", Point, plan.points)
    write_pictures(out, figures.pictures(plan.points), dpi=110)
    write(out / "bench.html", piece(rows))
    print(f"{summary(rows)} Written to {out}.")
    return 0


def table(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """For a reader."""
    return item_table(Row, rows, ours_value="takes", other_value="takes")


def summary(rows: Sequence[Row]) -> str:
    """How many targets are met."""
    words = [row.met for row in rows if row.target]
    skipped = sum(row.note.startswith("skipped") for row in rows)
    skips = f", {skipped} row(s) skipped for a missing library" if skipped else ""
    return f"{words.count('yes')} of {len(words)} targets met, {words.count('MISSED')} missed{skips}."


def piece(rows: Sequence[Row]) -> str:
    """A piece of the report, to which the pictures are added."""
    missed = [row.claim for row in rows if row.met == "MISSED"]
    failures = f"<p>Missed: {escape('; '.join(missed))}.</p>" if missed else ""
    return f"""<p>{summary(rows)} Each row compares two ways to compute the same gradient, in turns in one run, on one
thread, in float64; <i>difference</i> is that of the two gradients. The ratio is either how many times as long the other
way takes (other / ours) or what share of its time ours does (ours / other).</p>
{failures}
<details><summary>All ratios</summary>{as_html(*table(rows))}</details>"""
