"""Learning to sort handwritten digits from the order alone."""

from ...shared.application import Application
from . import findings, training

SORTING = Application(
    "sorting",
    "Learning to sort handwritten digits",
    "learn to sort handwritten digits with every gradient rule",
    21.0,
    ("n", "centred", "rule", "seed"),
    training,
    findings,
)
