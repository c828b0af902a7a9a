"""The command ``certificate``: look for a false one, and measure what they cost; the exit code is 1 if one is false."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

from declarative.reports.table import as_html, as_text

from ..shared.drawing import write_pictures
from ..shared.files import csv_text, write
from ..shared.jobs import Job, Piece, discard_pieces, open_pieces, positive
from .costs import families, measure
from .figures import picture
from .nodes import BATCH, KINDS, MANY, search

NODES = 10_000
AT_ONCE = 5  # batches of each kind that are one piece of work
Row = dict[str, Any]
FOUND = ("kind", "rule", "nodes", "decided in 3 steps", "decided", "ascending", "false")
COSTS = (
    "family",
    "size",
    "cheap cosine",
    "decided",
    "steps",
    "exact / cheap",
    "proof / cheap",
    "(cheap + proof) / exact",
    "cosine of CG for the same work",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command line."""
    parser.add_argument("--nodes", type=positive, default=NODES, help="random nodes, at least (%(default)s)")
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it works")


def jobs(args: argparse.Namespace) -> Sequence[Job]:
    """What an interrupted run has not left."""
    return open_pieces([*_searches(args), *_measurements(args)], args.force)


def finish(args: argparse.Namespace) -> list[str]:
    """Write and print what came of it; return what is wrong."""
    place = args.out / "certificate"
    found = join([piece.result() for piece in _searches(args)])
    costs: list[Row] = [piece.result() for piece in _measurements(args)]
    tables = ((FOUND, [list(map(str, row.values())) for row in found]), (COSTS, [cost_line(row) for row in costs]))
    for name, (head, rows) in zip(("nodes", "costs"), tables, strict=True):
        write(place / f"{name}.csv", csv_text(head, rows))
    write_pictures(place, [picture(costs)])
    said = sentences(found, costs)
    items = "".join(f"<li>{line}</li>" for line in said)
    write(place / "certificate.html", f"<ul>{items}</ul>\n" + "\n".join(as_html(*table) for table in tables[::-1]))
    discard_pieces(place)
    print(*(as_text(*table) + "\n" for table in tables), *said, f"Tables and a figure are in {place}.", sep="\n")
    return [f"certificate: {row['false']} false for {row['kind']}, {row['rule']}" for row in found if row["false"]]


def join(results: Sequence[Sequence[Row]]) -> list[Row]:
    """The counts of all searches together."""
    counts: dict[tuple[str, str], Counter[str]] = {}
    for row in (row for rows in results for row in rows):
        numbers = {name: value for name, value in row.items() if name not in ("kind", "rule")}
        counts.setdefault((row["kind"], row["rule"]), Counter()).update(numbers)
    return [{"kind": kind, "rule": rule, **numbers} for (kind, rule), numbers in counts.items()]


def cost_line(row: Row) -> list[str]:
    """For readers."""
    numbers = [f"{row[name]:.2f}" for name in ("exact_over_cheap", "certificate_over_cheap", "with_proof_over_exact")]
    instead = row["instead"][int(row["steps"])]
    start = [row["family"], row["size"], f"{row['cosine']:.3f}", f"{row['decided']:.0%}", f"{row['steps']:.0f}"]
    return [*start, *numbers, f"{instead:.5f}"]


def sentences(found: Sequence[Row], costs: Sequence[Row]) -> list[str]:
    """What the numbers say."""
    nodes, false, up = (sum(row[name] for row in found) for name in ("nodes", "false", "ascending"))
    decided = [row for row in costs if row["decided"] == 1.0]
    pays = [row for row in decided if row["with_proof_over_exact"] < 1]
    names = "; ".join(f"{row['family']}, {row['size']}" for row in pays)
    some, none = ([row for row in decided if (row["steps"] > 0) == takes] for takes in (True, False))
    said = [
        f"{false} false certificates for {nodes} gradients of three cheap rules, {up} of which ascend.",
        f"In {len(decided)} of {len(costs)} families all problems are decided within {MANY} steps; the cheap gradient "
        f"together with its proof takes less than the exact one in {len(pays)}{f' ({names})' if pays else ''}.",
    ]
    if none:
        least = min(row["cosine"] for row in none)
        said.append(f"In {len(none)} of them no step is needed: the cosine of the cheap gradient is above {least:.2f}.")
    if some:
        least = min(row["instead"][int(row["steps"])] for row in some)
        said.append(
            f"In the other {len(some)} the steps are products with S = A H⁻¹A', and as many of them spent on the exact "
            f"gradient, by conjugate gradients, give a cosine of at least {least:.4f}: something better than what is "
            "proven was to be had for the same work."
        )
    return said


def _searches(args: argparse.Namespace) -> list[Piece]:
    nodes = KINDS * BATCH if args.quick else args.nodes
    batches = -(-nodes // (KINDS * BATCH))
    return [
        Piece(
            f"certificates, seeds from {seed}",
            1.5 * AT_ONCE,
            args.out / "certificate",
            partial(search, seed, min(AT_ONCE, batches - seed)),
        )
        for seed in range(0, batches, AT_ONCE)
    ]


def _measurements(args: argparse.Namespace) -> list[Piece]:
    return [
        Piece(f"certificates, {one.label}", 3.0, args.out / "certificate", partial(measure, one.label, args.quick))
        for one in families(args.quick)
    ]
