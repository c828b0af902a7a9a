"""What came of packing by predicted values, in words, a table and a picture; every sentence is computed."""

from __future__ import annotations

from ...shared.application import Record
from ...shared.drawing import Picture
from ..decision.findings import compare, regret_picture, values, verdict
from ..predicting import RULES, TWO_STAGE
from ..words import by_seed, in_layer, mean, most_that_can_be_saved, spread
from .data import DEGREE, FEATURES, ITEMS, NOISE
from .training import LEARNED, SURROGATE, TEST, VALIDATION

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


def describe(settings: Record) -> str:
    """The task, the methods and what is measured, for a page."""
    return f"""<p>Values of {ITEMS} items depend on {FEATURES} features by a polynomial of degree {DEGREE}, times noise
between {1 - NOISE:g} and {1 + NOISE:g}: the generator of the predict-then-optimise literature (Elmachtoub and Grigas,
2022; PyEPO). A knapsack with room for a part of them is packed by predicted values, and regret is what the best choice
for the true ones would have been worth more, relative to that. The model is linear, so that it cannot be right
everywhere. <i>{TWO_STAGE}</i> fits it by least squares; the others start there: <i>{SURROGATE}</i> by the surrogate
loss of the same paper, the rest by passing the value of a smooth choice (penalty {settings["penalty"]:g} on squared
shares) back through the layer, with three gradient rules. {settings["days"]}, {VALIDATION} and {TEST} days for
training, validation (learning rate, when to stop) and testing; {settings["seeds"]} seeds, each with its own items.</p>
"""


def pictures(record: Record) -> list[Picture]:
    """Regret by method and in training."""
    return [regret_picture(record, METHODS, LEARNED, "days")]
