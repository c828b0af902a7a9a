"""The command ``compare``: the layers against cvxpylayers, finite differences and the formula of Proposition 2.1.

Every problem is stated twice, once for this library and once in CVXPY; each is a piece of work. If something of ours
does not hold, the exit code is 1; it is 2 if cvxpylayers is not installed. What the reference is off by is said.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from declarative import compare
from declarative.reports.table import as_html, as_text
from problems.reference import MissingReferenceError, load

from ..shared.files import as_json, item_table, write, write_items
from ..shared.jobs import Job, Piece, Tick, discard_pieces, open_pieces, positive
from ..shared.reference_cases import all_cases
from .judge import (
    AGREEMENT,
    FINITE_TOLERANCE,
    FORMULA_TOLERANCE,
    SOLUTION_TOLERANCE,
    Row,
    Speed,
    judge_case,
    speed_of,
)

FAST = 100  # what the speed-up of transport is held against


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command line."""
    parser.add_argument("--sizes", type=positive, nargs="+", default=[5, 10, 15], help="of transport (%(default)s)")
    parser.add_argument("--batch", type=positive, default=10, help="problems of each kind (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the random inputs (%(default)s)")
    parser.add_argument("--seconds", type=float, default=1.0, help="to repeat a call for its time (%(default)s)")


def jobs(args: argparse.Namespace) -> Sequence[Job]:
    """The cases, without those that an interrupted run has left.

    Raises:
        ValueError: cvxpylayers is not installed.
    """
    try:
        load()
    except MissingReferenceError as error:
        raise ValueError(str(error)) from error
    return open_pieces(_pieces(args), args.force)


def finish(args: argparse.Namespace) -> list[str]:
    """Write and print what came of all cases; return what does not hold."""
    place, results = args.out / "compare", [piece.result() for piece in _pieces(args)]
    rows = [Row(**row) for result in results for row in result["rows"]]
    speeds = [Speed(**result["speed"]) for result in results if "speed" in result]
    failures = [line for result in results for line in result["failures"]]
    silent = [line for result in results for line in result["silent"]]
    print(f"\n{write_tables(place, rows, speeds, failures, silent)}\nTables are in {place}.")
    discard_pieces(place)
    return failures


def compare_case(sizes: tuple[int, ...], batch: int, seed: int, seconds: float, name: str, _: Tick) -> tuple[Any, str]:
    """The case of this name; what did not hold, in words."""
    (case,) = (case for case in all_cases(sizes, batch, seed) if case.name == name)
    result: dict[str, Any] = {"rows": [], "failures": [], "silent": []}
    try:
        case.node(*case.xs.values())
    except Exception as error:
        result["failures"] = [_in_one_line(name, error)]
        return result, result["failures"][0]
    try:
        report = compare(case.node, case.build(), *case.xs.values(), seconds=seconds)
    except Exception as error:  # the reference may fail to solve a problem, in its own way
        result["silent"] = [_in_one_line(name, error)]
        return result, f"the reference failed: {type(error).__name__}"
    rows = judge_case(case, report)
    result["failures"] = [f"{row.problem}, {row.input}: {row.holds}" for row in rows if row.holds != "yes"]
    result |= {"rows": list(map(as_json, rows)), "speed": as_json(speed_of(case, report))}
    return result, "; ".join(result["failures"]) or f"gradients differ by {max(row.gradient for row in rows):.0e}"


def _in_one_line(name: str, error: Exception) -> str:
    return f"{name}: {type(error).__name__}: {' '.join(str(error).split())}"


def _pieces(args: argparse.Namespace) -> list[Piece]:
    settings = tuple(dict.fromkeys(args.sizes)), args.batch, args.seed, args.seconds
    return [
        Piece(f"compare, {case.name}", 3.0, args.out / "compare", partial(compare_case, *settings, case.name))
        for case in all_cases(*settings[:3])
    ]


TITLES = {
    "to_formula": "to Proposition 2.1",
    "reference_to_optimum": "cvxpylayers to optimum",
    "reference_to_differences": "cvxpylayers to differences",
    "reference": "cvxpylayers",
}


def write_tables(
    place: Path, rows: list[Row], speeds: list[Speed], failures: list[str], silent: Sequence[str] = ()
) -> str:
    """``compare.csv``, ``compare_speed.csv``, and both as text, which is returned, and as a piece of a page."""
    write_items(place / "compare.csv", Row, rows)
    write_items(place / "compare_speed.csv", Speed, speeds)
    tables = [
        (
            "Solutions and gradients: the largest relative differences of ours (exact rule) and of cvxpylayers' to "
            "each other, to the optimum, to finite differences and to Proposition 2.1; and the rule `unconstrained`",
            *item_table(Row, rows, **TITLES),
        ),
        (
            "Times in milliseconds (one thread for either, the shortest of several calls), and the largest violation",
            *item_table(Speed, speeds),
        ),
    ]
    words = summary(rows, speeds, failures, silent)
    text = "\n\n".join(f"{title}\n{as_text(head, body)}" for title, head, body in tables)
    text = "\n".join([text, "", *words, ""])
    write(place / "compare.txt", text)
    page = "".join(f"<h3>{title}</h3>{as_html(head, body)}" for title, head, body in tables)
    write(place / "compare.html", as_html(["summary"], [[line] for line in words]) + page)
    return text


def summary(rows: list[Row], speeds: list[Speed], failures: list[str], silent: Sequence[str] = ()) -> list[str]:
    """What it comes to: ours first, then what is to be said of the reference."""
    good = sum(row.holds == "yes" for row in rows)
    rough = sum(bool(row.reference) for row in rows)
    lines = [
        f"{good} of {len(rows)} comparisons hold: our solutions are within {SOLUTION_TOLERANCE:.0e} of the optimum, "
        f"our gradients within {FINITE_TOLERANCE:.0e} of finite differences and {FORMULA_TOLERANCE:.0e} of "
        "Proposition 2.1.",
        f"cvxpylayers is within {AGREEMENT:.0e} of both in {len(rows) - rough} of them; what it is off by in the "
        "others is in the table.",
    ]
    for speed in speeds:
        if speed.problem.startswith("transport 10 x 10") and speed.problem.count(",") == 1:
            fast = min(speed.forward_speed_up, speed.backward_speed_up) >= FAST
            lines.append(
                f"{speed.problem}, batch {speed.batch}: {speed.forward_speed_up:.0f} times faster forward and "
                f"{speed.backward_speed_up:.0f} times backward (at least {FAST}: {'yes' if fast else 'no'})."
            )
    lines += [f"No comparison, as cvxpylayers failed: {line}" for line in silent]
    return [*lines, *(f"Does not hold: {failure}" for failure in failures)]
