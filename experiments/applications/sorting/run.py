"""The command ``sorting``."""

from __future__ import annotations

from functools import partial
from typing import Any

from ..application import Application, Record
from .figures import pictures
from .findings import text
from .training import QUICK, Settings, name_of, train_seed


def calls(settings: Settings) -> dict[str, partial[tuple[Any, str]]]:
    """One for each case and seed."""
    return {
        f"sorting, {name_of(n, centred)}, seed {seed}": partial(train_seed, settings, n, centred, seed)
        for n, centred in settings.cases
        for seed in range(settings.seed, settings.seed + settings.seeds)
    }


def tables(record: Record) -> dict[str, list[Record]]:
    """The curves, and what they end with."""
    curves = [
        {name: one[name] for name in ("n", "centred", "rule", "seed")} | dict(zip(one["curve"], values, strict=True))
        for one in record["runs"]
        for values in zip(*one["curve"].values(), strict=True)
    ]
    final = [
        {name: value for name, value in one.items() if name != "curve"}
        | {f"test_{name}": values[-1] for name, values in one["curve"].items() if name != "step"}
        for one in record["runs"]
    ]
    return {"sorting": final, "curves": curves}


SORTING = Application(
    "sorting", "Learning to sort handwritten digits", Settings(), QUICK, 16.0, calls, tables, pictures, text
)
