"""The command ``decision``."""

from __future__ import annotations

from functools import partial
from typing import Any

from ..application import Application, Record
from .figures import pictures
from .findings import text
from .training import QUICK, Settings, train_seed


def calls(settings: Settings) -> dict[str, partial[tuple[Any, str]]]:
    """One for each seed."""
    seeds = range(settings.seed, settings.seed + settings.seeds)
    return {f"decision, seed {seed}": partial(train_seed, settings, seed) for seed in seeds}


def tables(record: Record) -> dict[str, list[Record]]:
    """The validation curves, and what came of every method."""
    final = [{name: value for name, value in one.items() if name != "curve"} for one in record["runs"]]
    curves = [
        {"method": one["method"], "seed": one["seed"], **dict(zip(one["curve"], values, strict=True))}
        for one in record["runs"]
        if one["curve"]
        for values in zip(*one["curve"].values(), strict=True)
    ]
    return {"decision": final, "curves": curves}


DECISION = Application(
    "decision", "Learning to allocate treatment", Settings(), QUICK, 13.0, calls, tables, pictures, text
)
