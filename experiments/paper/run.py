"""Run panels one after the other, keep each as soon as it is finished, and skip those that are."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from . import store
from .panels import Panel
from .progress import Progress
from .training import Outcome, Settings, train


class RefusalError(Exception):
    """The command cannot do what it was asked for without harm; the message says what to do."""


@dataclass(frozen=True)
class Plan:
    """A panel and how to run it."""

    panel: Panel
    settings: Settings

    @property
    def label(self) -> str:
        """For people."""
        return f"{self.panel.name} {self.settings.dtype}"


def run_panels(plans: Sequence[Plan], out: Path, *, force: bool = False, progress: Progress | None = None) -> None:
    """Run the plans that are not finished yet, or all of them.

    Raises:
        RefusalError: a panel is finished with other settings.
    """
    open_plans = [plan for plan in plans if force or not is_finished(plan, out)]
    if progress is None:
        progress = Progress(len(open_plans), plans[0].settings.iterations)
    for plan in plans:
        if plan not in open_plans:
            print(f"{plan.label}: finished before, kept (--force redoes it)")
    try:
        for plan in open_plans:
            progress.start(plan.label)
            outcome = train(plan.panel, plan.settings, progress.tick)
            store.save(out, plan.settings, outcome)
            progress.finish(describe(outcome))
    finally:
        progress.stop()


def is_finished(plan: Plan, out: Path) -> bool:
    """Whether the panel is there with these settings; it is refused if it is there with others."""
    found = store.settings_of(out, plan.settings.dtype, plan.panel.name)
    if found is None:
        return False
    wanted = dataclasses.asdict(plan.settings) | {"rules": list(plan.settings.rules)}
    different = [
        f"{key} {found.get(key)} instead of {value}" for key, value in wanted.items() if found.get(key) != value
    ]
    if different:
        raise RefusalError(
            f"{plan.label} is finished in {out} with {', '.join(different)}: "
            "use --force to redo it, or --out for another directory."
        )
    return True


def describe(outcome: Outcome) -> str:
    """The final losses of a panel, in one line."""
    curves = outcome.curves
    finals = (f"{rule} {np.mean(losses[:, -1]):.3g}" for rule, losses in zip(curves.rules, curves.loss, strict=True))
    told = f"; {sum(outcome.warnings.values())} numerical warnings" if outcome.warnings else ""
    return f"{outcome.seconds:.1f} s, final loss {', '.join(finals)}{told}"
