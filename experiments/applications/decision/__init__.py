"""Learning to allocate treatment, through the decision or in two stages."""

from ...shared.application import Application
from . import findings, training

DECISION = Application(
    "decision",
    "Learning to allocate treatment",
    "learn to allocate treatment, through the decision or in two stages",
    13.0,
    ("method", "seed"),
    training,
    findings,
)
