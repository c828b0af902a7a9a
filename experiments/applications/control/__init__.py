"""Learning from somebody who balances what he pays for, and what he balances."""

from ...shared.application import Application
from . import findings, training

CONTROL = Application(
    "control", "Learning from plans what they are for", 20.0, ("system", "method", "seed"), training, findings
)
