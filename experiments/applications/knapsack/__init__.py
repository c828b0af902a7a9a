"""Learning what to pack, from predicted values."""

from functools import partial

from ...shared.application import Application, Cases
from . import findings
from .training import FULL, QUICK, Settings, train_seed


def _cases(settings: Settings) -> Cases:
    return {"": partial(train_seed, settings)}


KNAPSACK = Application(
    name="knapsack",
    title="Learning what to pack",
    settings=Settings(),
    quick=QUICK,
    full=FULL,
    seconds=10.0,
    cases=_cases,
    keys=("method", "seed"),
    findings=findings,
)
