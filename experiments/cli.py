"""The command line: ``python -m experiments``."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from .applications import distributed
from .bench import run as bench
from .bench import sizes
from .certificate import run as certificate
from .compare import run as compare
from .field import run as field
from .paper import run as paper
from .paper import store
from .paper.claims import AGAIN, AS_PUBLISHED
from .paper.panels import PANELS
from .report.build import APPLICATIONS, write_page
from .shared.application import FULL
from .shared.jobs import Experiment, JobError, positive, run_jobs
from .shared.machine import cores
from .theory import run as theory

EXPERIMENTS: dict[str, tuple[Experiment, str]] = {
    "run": (paper, "train the panels with every gradient rule"),
    **{application.name: (application, application.help) for application in APPLICATIONS},
    "certificate": (certificate, "proofs that a cheap gradient descends: is one false, and do they pay?"),
    "theory": (theory, "the paper's propositions against simulation"),
    "compare": (compare, "check the layers against independent ones"),
    "field": (field, "every library of optimisation layers on the same problems"),
}
QUICKLY = "--repeats 1 --iterations 3"
ALL = {  # and what makes each of them quick
    "run all --dtype both": QUICKLY,
    **dict.fromkeys([*(application.name for application in APPLICATIONS), "certificate"], "--quick"),
    "theory": "--samples 1000",
    "compare": "--sizes 2 --batch 2 --seconds 0",
}
TWO = "exact unconstrained"
PUBLISHED = {f"run {' '.join(AS_PUBLISHED)} --published --rules {TWO} --repeats 10": QUICKLY}
MORE_REPEATS = [f"run {' '.join(AGAIN)} --rules {TWO} --repeats 40{apart}" for apart in ("", " --published")]
INTERRUPTED = 130  # what shells report for Ctrl-C


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    args = build_parser().parse_args(words)
    try:
        code: int = args.command(args)
    except (paper.RefusalError, JobError, ValueError) as refusal:
        print(f"error: {refusal}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        again = shlex.join(word for word in words if word != "--force")
        print("\nInterrupted. What is finished is kept; continue with", file=sys.stderr)
        print(f"    python -m experiments {again}", file=sys.stderr)
        return INTERRUPTED
    return code


def build_parser() -> argparse.ArgumentParser:
    """All commands and their options."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments", description="The paper's experiments, and a report on them."
    )
    commands = parser.add_subparsers(required=True, metavar="command")

    def add(name: str, help: str, jobs: bool = False) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=help, description=help)
        sub.add_argument("--out", type=Path, default=Path("results"), help="directory of the results (%(default)s)")
        if jobs:
            sub.add_argument("--workers", type=positive, default=cores(), help="processes side by side (%(default)s)")
            sub.add_argument("--force", action="store_true", help="redo what is finished")
        return sub

    add("list", "panels and applications, and which are finished").set_defaults(command=list_finished)
    sub = add("all", "every experiment over all cores, and the report", jobs=True)
    length = sub.add_mutually_exclusive_group()
    length.add_argument("--quick", action="store_true", help="small sizes, to see that it works")
    length.add_argument("--full", action="store_true", help="what has a full length at that, and nothing else: hours")
    sub.set_defaults(command=run_all)
    for name, (experiment, help) in EXPERIMENTS.items():
        sub = add(name, help, jobs=True)
        experiment.add_arguments(sub)
        sub.set_defaults(command=lambda args: tell(run_together([args])), experiment=experiment)
    for name, module, help in (
        ("bench", bench, "measure the speed"),
        ("sizes", sizes, "what a call costs on this machine, by size and structure"),
        ("distributed", distributed, "train on two processes, and compare the gradients with those of one"),
    ):
        sub = add(name, help)
        module.add_arguments(sub)
        sub.set_defaults(command=module.run)
    add("report", "write the page about all results").set_defaults(command=write_report)
    return parser


def list_finished(args: argparse.Namespace) -> int:
    """Print the panels and the applications."""
    for name, panel in PANELS.items():
        done = [dtype for dtype in store.DTYPES if store.settings_of(args.out, dtype, name)]
        print(f"{name:<18} {panel.title}{' - finished in ' + ' and '.join(done) if done else ''}")
    for application in APPLICATIONS:
        print(f"{application.name:<18} {application.title}{' - finished' if application.load(args.out) else ''}")
    return 0


def run_all(args: argparse.Namespace) -> int:
    """Every experiment as if by its own command, but all of their jobs side by side; then the report."""
    common = ["--out", str(args.out), "--workers", str(args.workers), *(["--force"] if args.force else [])]
    lines = [f"{line} {quick if args.quick else ''}".split() for line, quick in (ALL | PUBLISHED).items()]
    if args.full:
        lines = [*([application.name, "--full"] for application in APPLICATIONS), *map(str.split, MORE_REPEATS)]
    commands = [build_parser().parse_args(line + common) for line in lines]
    for command in commands:  # panels with more repeats or other losses stand apart
        if "published" in command:
            command.out = command.out / (FULL if args.full else "") / (store.PUBLISHED if command.published else "")
    failures = run_together(commands)
    write_report(args)
    return tell(failures)


def run_together(commands: Sequence[argparse.Namespace]) -> list[str]:
    """Do the jobs of several experiments, then finish one after the other; return what of ours is wrong."""
    run_jobs([job for args in commands for job in args.experiment.jobs(args)], commands[0].workers)
    return [failure for args in commands for failure in args.experiment.finish(args)]


def tell(failures: Sequence[str]) -> int:
    """Print what is wrong, as the last lines, and return the exit code."""
    for failure in failures:
        print(f"FAILED {failure}")
    return int(bool(failures))


def write_report(args: argparse.Namespace) -> int:
    """Write the page."""
    print(f"The report is {write_page(args.out).resolve().as_uri()}")
    return 0
