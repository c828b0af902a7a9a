"""Learning what to pack, from predicted values."""

from ...shared.application import Application
from . import findings, training

KNAPSACK = Application("knapsack", "Learning what to pack", 10.0, ("method", "seed"), training, findings)
