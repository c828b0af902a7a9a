"""Where is it worth dropping the constraints? Families of layers against ways to approximate the gradient."""

from functools import partial

from ..shared.application import Application, Calls
from . import findings
from .families import families
from .training import QUICK, Settings, train_family


def _calls(settings: Settings) -> Calls:
    return {
        f"worth, {family.label}, seed {seed}": partial(train_family, settings, family.label, seed)
        for family in families(settings.quick)
        for seed in range(settings.seed, settings.seed + settings.seeds)
    }


WORTH = Application(
    name="worth",
    title="Where is it worth dropping the constraints?",
    settings=Settings(),
    quick=QUICK,
    seconds=10.0,
    calls=_calls,
    keys=("family", "size", "regime", "seed", "method"),
    findings=findings,
)
