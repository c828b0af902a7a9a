"""Learning to sort handwritten digits from the order alone."""

from functools import partial

from ...shared.application import Application, Cases
from . import findings
from .training import FULL, QUICK, Settings, name_of, train_seed


def _cases(settings: Settings) -> Cases:
    return {name_of(n, centred): partial(train_seed, settings, n, centred) for n, centred in settings.cases}


SORTING = Application(
    name="sorting",
    title="Learning to sort handwritten digits",
    settings=Settings(),
    quick=QUICK,
    full=FULL,
    seconds=21.0,
    cases=_cases,
    keys=("n", "centred", "rule", "seed"),
    findings=findings,
)
