"""Learning to allocate treatment, through the decision or in two stages."""

from functools import partial

from ...shared.application import Application, Calls
from . import findings
from .training import QUICK, Settings, train_seed


def _calls(settings: Settings) -> Calls:
    seeds = range(settings.seed, settings.seed + settings.seeds)
    return {f"decision, seed {seed}": partial(train_seed, settings, seed) for seed in seeds}


DECISION = Application(
    name="decision",
    title="Learning to allocate treatment",
    settings=Settings(),
    quick=QUICK,
    seconds=13.0,
    calls=_calls,
    keys=("method", "seed"),
    findings=findings,
)
