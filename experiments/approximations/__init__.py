"""Every approximation of the gradient in one table: families of layers, at equal time, each method tuned on its own."""

from __future__ import annotations

from ..shared.application import Application
from . import findings, training

APPROXIMATIONS = Application(
    "approximations",
    "When may the constraints be dropped?",
    "every approximation of the gradient: what it saves and costs, over families of layers",
    3.3,
    ("family", "size", "regime", "seed", "method", "rate"),
    training,
    findings,
)
