"""Where is it worth dropping the constraints? Families of layers against ways to approximate the gradient."""

from ..shared.application import Application
from . import findings, training

WORTH = Application(
    "worth",
    "Where is it worth dropping the constraints?",
    7.0,
    ("family", "size", "regime", "seed", "method"),
    training,
    findings,
)
