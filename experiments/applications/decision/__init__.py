"""Learning to allocate treatment, through the decision or in two stages."""

from functools import partial

from ...shared.application import Application, Cases
from . import findings
from .training import FULL, QUICK, Settings, train_seed


def _cases(settings: Settings) -> Cases:
    return {"": partial(train_seed, settings)}


DECISION = Application(
    name="decision",
    title="Learning to allocate treatment",
    settings=Settings(),
    quick=QUICK,
    full=FULL,
    seconds=13.0,
    cases=_cases,
    keys=("method", "seed"),
    findings=findings,
)
