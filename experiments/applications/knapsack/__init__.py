"""Learning what to pack, from predicted values."""

from ...shared.application import Application
from . import findings, training

KNAPSACK = Application(
    "knapsack",
    "Learning what to pack",
    "learn what to pack, through the choice, by a surrogate or in two stages",
    10.0,
    ("method", "seed"),
    training,
    findings,
)
