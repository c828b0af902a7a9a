"""What came of packing by predicted values, in words, a table and a picture; every sentence is computed."""

from __future__ import annotations

from ...shared.application import Record
from ...shared.drawing import Picture
from ..decision.findings import compare, regret_picture, values, verdict
from ..predicting import RULES, TWO_STAGE
from ..words import by_seed, in_layer, mean, most_that_can_be_saved, spread
from .training import LEARNED, SURROGATE

METHODS = (TWO_STAGE, *LEARNED)
HEAD: tuple[str, ...] = ("method", "regret", "R² of predictions", "seconds", "in the layer", "cheap steps")


def rows(record: Record) -> list[list[str]]:
    """The table: a line for each method."""
    return [
        [
            method,
            spread(values(record, method, "regret"), ".1%"),
            spread(values(record, method, "explained"), ".2f"),
            f"{mean(values(record, method, 'seconds')):.2g}",
            in_layer(by_seed(record["runs"], method=method)) if method in RULES else "",
            f"{mean(values(record, method, 'cheap_share')):.0%}" if method == "adaptive" else "",
        ]
        for method in METHODS
    ]


def sentences(record: Record) -> list[str]:
    """What the numbers say."""
    return [
        verdict(record),
        *(compare(record, method, TWO_STAGE) for method in LEARNED),
        *(compare(record, method, "exact") for method in LEARNED if method != "exact"),
        most_that_can_be_saved(by_seed(record["runs"], method="exact")).capitalize(),
        f"{SURROGATE} needs no layer, only the choice itself, and takes "
        f"{mean(values(record, SURROGATE, 'seconds')):.2g} s against {mean(values(record, 'exact', 'seconds')):.2g} s. "
        "It is for linear objectives alone.",
    ]


def pictures(record: Record) -> list[Picture]:
    """Regret by method and in training."""
    return [regret_picture(record, METHODS, LEARNED, "days")]
