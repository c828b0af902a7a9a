"""The command ``run``: each panel, in each precision, is a job; those that are finished are kept."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from ..shared.files import as_json
from ..shared.jobs import Job, Tick, positive
from ..shared.rules import NAMES
from . import store
from .figures import picture
from .panels import PANELS, find_panels
from .training import Outcome, Settings, train

SECONDS = {"transport": 8.0, "eigen": 4.0, "projection": 3.0}  # about, for a panel of each family


class RefusalError(Exception):
    """The command cannot do what it was asked for without harm; the message says what to do."""


@dataclass(frozen=True)
class Plan:
    """A panel and how to run it: a job."""

    panel: str
    settings: Settings
    out: Path

    @property
    def label(self) -> str:
        """For people."""
        return f"{self.panel} {self.settings.dtype}"

    @property
    def cost(self) -> float:
        """About how many seconds it takes."""
        usual, mine = (one.iterations * one.repeats * len(one.rules) for one in (Settings(), self.settings))
        return SECONDS[PANELS[self.panel].family] * mine / usual

    def run(self, tick: Tick) -> str:
        """Train, and keep the curves with their figure."""
        outcome = train(PANELS[self.panel], self.settings, tick)
        drawn = picture(outcome.curves, self.settings.dtype)
        pictures = {f"figure.{kind}": drawn.render(kind=kind) for kind in ("png", "svg")}
        store.save(self.out, self.settings, outcome, pictures)
        return describe(outcome)

    def is_finished(self) -> bool:
        """Whether the panel is there with these settings; it is refused if it is there with others."""
        found = store.settings_of(self.out, self.settings.dtype, self.panel)
        if found is None:
            return False
        wanted = as_json(self.settings).items()
        different = [f"{key} {found.get(key)} instead of {value}" for key, value in wanted if found.get(key) != value]
        if different:
            raise RefusalError(
                f"{self.label} is finished in {self.out} with {', '.join(different)}: "
                "use --force to redo it, or --out for another directory."
            )
        return True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command line."""
    defaults = Settings()
    parser.add_argument("names", nargs="+", metavar="NAME", help=f"all, or some of: {', '.join(PANELS)}")
    parser.add_argument("--repeats", type=positive, default=defaults.repeats, help="with fresh data (%(default)s)")
    parser.add_argument("--iterations", type=positive, default=defaults.iterations, help="of training (%(default)s)")
    parser.add_argument("--seed", type=int, default=defaults.seed, help="of data and initial weights (%(default)s)")
    parser.add_argument("--rules", nargs="+", choices=NAMES, default=list(defaults.rules), help="to compare (all)")
    parser.add_argument(
        "--dtype", choices=(*store.DTYPES, "both"), default=defaults.dtype, help="precision (%(default)s)"
    )
    parser.add_argument("--device", default=defaults.device, help="as torch names it (%(default)s)")
    parser.add_argument(
        "--published", action="store_true", help="losses and targets of the published code, not the text"
    )


def jobs(args: argparse.Namespace) -> list[Job]:
    """The panels that are not finished yet, or all of them.

    Raises:
        RefusalError: a panel is finished with other settings.
    """
    _check_device(args.device)
    rules = tuple(dict.fromkeys(args.rules))
    plans = [
        Plan(
            panel.name,
            Settings(args.repeats, args.iterations, args.seed, rules, dtype, args.device, args.published),
            args.out,
        )
        for dtype in (store.DTYPES if args.dtype == "both" else (args.dtype,))
        for panel in find_panels(args.names)
    ]
    todo: list[Job] = []
    for plan in plans:
        if args.force or not plan.is_finished():
            todo.append(plan)
        else:
            print(f"{plan.label}: finished before, kept (--force redoes it)")
    return todo


def finish(args: argparse.Namespace) -> list[str]:
    """Bring the tables up to date: the jobs may have done so at the same moment."""
    store.write_tables(args.out)
    print(f"Results are in {args.out}; 'python -m experiments report' makes a page of them.")
    return []


def describe(outcome: Outcome) -> str:
    """The final losses of a panel, in one line."""
    curves = outcome.curves
    finals = (f"{rule} {np.mean(losses[:, -1]):.3g}" for rule, losses in zip(curves.rules, curves.loss, strict=True))
    noted = f"; {sum(outcome.warnings.values())} numerical warnings" if outcome.warnings else ""
    return f"{outcome.seconds:.1f} s, final loss {', '.join(finals)}{noted}"


def _check_device(name: str) -> None:
    try:
        torch.zeros(1, device=name)
    except (RuntimeError, AssertionError) as problem:  # torch raises either
        reason = str(problem).splitlines()[0]
        raise ValueError(f"--device {name} cannot be used: {reason}") from problem
