"""Where is it worth dropping the constraints? Families of layers against ways to approximate the gradient."""

from ..shared.application import Application
from . import findings, training

WORTH = Application(
    "worth",
    "Where is it worth dropping the constraints?",
    "what each approximation of the gradient saves and costs, over families of layers",
    7.0,
    ("family", "size", "regime", "seed", "method"),
    training,
    findings,
)
