"""Learning to sort handwritten digits from the order alone."""

from functools import partial

from ...shared.application import Application, Calls
from . import findings
from .training import QUICK, Settings, name_of, train_seed


def _calls(settings: Settings) -> Calls:
    return {
        f"sorting, {name_of(n, centred)}, seed {seed}": partial(train_seed, settings, n, centred, seed)
        for n, centred in settings.cases
        for seed in range(settings.seed, settings.seed + settings.seeds)
    }


SORTING = Application(
    name="sorting",
    title="Learning to sort handwritten digits",
    settings=Settings(),
    quick=QUICK,
    seconds=16.0,
    calls=_calls,
    keys=("n", "centred", "rule", "seed"),
    findings=findings,
)
