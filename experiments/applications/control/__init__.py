"""Learning from somebody who balances what he pays for, and what he balances."""

from ...shared.application import Application
from . import findings, training

CONTROL = Application(
    "control",
    "Learning from plans what they are for",
    "learn from plans what they are for, with the control at its limit",
    20.0,
    ("system", "method", "seed"),
    training,
    findings,
)
