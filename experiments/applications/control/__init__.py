"""Learning from somebody who balances what he pays for, and what he balances."""

from functools import partial

from ...shared.application import Application, Cases
from . import findings
from .training import FULL, QUICK, Settings, train_seed


def _cases(settings: Settings) -> Cases:
    return {name: partial(train_seed, settings, name) for name in settings.systems}


CONTROL = Application(
    name="control",
    title="Learning from plans what they are for",
    settings=Settings(),
    quick=QUICK,
    full=FULL,
    seconds=29.0,
    cases=_cases,
    keys=("system", "method", "seed"),
    findings=findings,
)
