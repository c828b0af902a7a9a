"""The command line: ``python -m experiments``."""

from __future__ import annotations

import argparse
import importlib.util
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import torch

from .applications import common as applications
from .paper import store
from .paper.panels import PANELS, find_panels
from .paper.rules import NAMES
from .paper.run import Plan, RefusalError, run_panels
from .paper.training import Settings
from .report import build as report
from .theory import simulation as theory

OPTIONAL = {
    "sorting": "learn to sort handwritten digits with every gradient rule",
    "decision": "learn to allocate treatment, through the decision or in two stages",
    "compare": "check the layers against independent ones",
    "bench": "measure the speed",
    "distributed": "train on two processes, and compare the gradients with those of one",
}
INTERRUPTED = 130  # what shells report for Ctrl-C


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    args = build_parser().parse_args(words)
    try:
        code: int = args.command(args)
    except (RefusalError, ValueError) as refusal:
        print(f"error: {refusal}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        again = shlex.join(word for word in words if word != "--force")
        print(
            f"\nInterrupted. What is finished is kept; continue with\n    python -m experiments {again}",
            file=sys.stderr,
        )
        return INTERRUPTED
    return code


def build_parser() -> argparse.ArgumentParser:
    """All commands and their options."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments", description="The paper's experiments, and a report on them."
    )
    commands = parser.add_subparsers(required=True, metavar="command")

    def add(name: str, help: str) -> argparse.ArgumentParser:
        # "resolve": a module that brings its own --out may.
        sub = commands.add_parser(name, help=help, description=help, conflict_handler="resolve")
        sub.add_argument("--out", type=Path, default=Path("results"), help="directory of the results (%(default)s)")
        return sub

    add("list", "panels and applications, and which are finished").set_defaults(command=list_panels)
    _add_run(add("run", "train the panels with every gradient rule"))
    sub = add("theory", "the paper's propositions against simulation")
    theory.add_arguments(sub)
    sub.set_defaults(command=lambda args: theory.run(args.out / "theory", args.samples, args.seed))
    for name, help in OPTIONAL.items():
        _add_optional(add(name, help), name)
    add("report", "write the page about all results").set_defaults(command=write_report)
    return parser


def list_panels(args: argparse.Namespace) -> int:
    """Print the panels and the applications."""
    for name, panel in PANELS.items():
        done = [dtype for dtype in store.DTYPES if store.settings_of(args.out, dtype, name)]
        print(f"{name:<18} {panel.title}{' - finished in ' + ' and '.join(done) if done else ''}")
    for name, title in applications.TITLES.items():
        print(f"{name:<18} {title}{' - finished' if applications.load(args.out, name) else ''}")
    return 0


def run(args: argparse.Namespace) -> int:
    """Train panels."""
    panels = find_panels(args.names)
    _check_device(args.device)
    rules = tuple(dict.fromkeys(args.rules))
    torch.set_num_threads(args.threads)
    plans = [
        Plan(panel, Settings(args.repeats, args.iterations, args.seed, rules, dtype, args.device))
        for dtype in (store.DTYPES if args.dtype == "both" else (args.dtype,))
        for panel in panels
    ]
    run_panels(plans, args.out, force=args.force)
    print(f"Results are in {args.out}; 'python -m experiments report' makes a page of them.")
    return 0


def write_report(args: argparse.Namespace) -> int:
    """Write the page."""
    print(f"The report is {report.write(args.out).resolve().as_uri()}")
    return 0


def _add_run(sub: argparse.ArgumentParser) -> None:
    defaults = Settings()
    sub.add_argument("names", nargs="+", metavar="NAME", help=f"all, or some of: {', '.join(PANELS)}")
    sub.add_argument("--repeats", type=_positive, default=defaults.repeats, help="with fresh data (%(default)s)")
    sub.add_argument("--iterations", type=_positive, default=defaults.iterations, help="of training (%(default)s)")
    sub.add_argument("--seed", type=int, default=defaults.seed, help="of data and initial weights (%(default)s)")
    sub.add_argument("--rules", nargs="+", choices=NAMES, default=list(defaults.rules), help="to compare (all)")
    sub.add_argument("--dtype", choices=(*store.DTYPES, "both"), default=defaults.dtype, help="precision (%(default)s)")
    sub.add_argument("--device", default=defaults.device, help="as torch names it (%(default)s)")
    sub.add_argument("--threads", type=_positive, default=1, help="of torch; its matrices are small (%(default)s)")
    sub.add_argument("--force", action="store_true", help="redo panels that are finished")
    sub.set_defaults(command=run)


def _add_optional(sub: argparse.ArgumentParser, name: str) -> None:
    module = _module(name)
    if module is None:
        sub.set_defaults(command=lambda _: _unavailable(name))
        return
    module.add_arguments(sub)
    sub.set_defaults(command=module.run)


def _module(name: str) -> ModuleType | None:
    """A part of the experiments that may not be installed; an error inside of it is not hidden."""
    full = f"{__package__}.{name}"
    if importlib.util.find_spec(full) is None:
        return None
    return importlib.import_module(full)


def _unavailable(name: str) -> int:
    print(f"'{name}' is not available in this installation.", file=sys.stderr)
    return 2


def _check_device(name: str) -> None:
    try:
        torch.zeros(1, device=name)
    except (RuntimeError, AssertionError) as problem:  # torch raises either
        reason = str(problem).splitlines()[0]
        raise ValueError(f"--device {name} cannot be used: {reason}") from problem


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, but is {number}")
    return number
