"""Where is it worth dropping the constraints? Families of layers against ways to approximate the gradient."""

from functools import partial

from ..shared.application import Application, Cases
from . import findings
from .families import families
from .training import FULL, QUICK, Settings, train_family


def _cases(settings: Settings) -> Cases:
    return {family.label: partial(train_family, settings, family.label) for family in families(settings.extent)}


WORTH = Application(
    name="worth",
    title="Where is it worth dropping the constraints?",
    settings=Settings(),
    quick=QUICK,
    full=FULL,
    seconds=7.0,
    cases=_cases,
    keys=("family", "size", "regime", "seed", "method"),
    findings=findings,
)
