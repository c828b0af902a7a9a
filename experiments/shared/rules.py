"""The gradient rules that the experiments compare."""

from __future__ import annotations

from declarative import Adaptive, Rule
from declarative.gradients import as_rule

NAMES = ("exact", "unconstrained", "curvature", "adaptive")


def make_rule(name: str) -> Rule:
    """The rule of this name; the adaptive one has state, so that each training run needs its own."""
    return Adaptive() if name == "adaptive" else as_rule(name)


def cheap_share(rule: Rule | None) -> float | None:
    """The share of an adaptive rule's backward passes that were cheap; None for others."""
    return rule.cheap_calls / rule.calls if isinstance(rule, Adaptive) else None
