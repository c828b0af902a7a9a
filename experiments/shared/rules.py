"""The gradient rules that the experiments compare, and the warnings that come with them."""

from __future__ import annotations

import contextlib
import warnings
from collections import Counter
from collections.abc import Iterator

from declarative import Adaptive, NumericalWarning, Rule
from declarative.gradients import as_rule

NAMES = ("exact", "unconstrained", "curvature", "adaptive")


def make_rule(name: str) -> Rule:
    """The rule of this name; the adaptive one has state, so that each training run needs its own."""
    return Adaptive() if name == "adaptive" else as_rule(name)


def cheap_share(rule: Rule | None) -> float | None:
    """The share of an adaptive rule's backward passes that were cheap; None for others."""
    return rule.cheap_calls / rule.calls if isinstance(rule, Adaptive) else None


@contextlib.contextmanager
def counted_warnings() -> Iterator[Counter[str]]:
    """The first lines of the numerical warnings of a block, and how often each came, once the block is left."""
    counts: Counter[str] = Counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", NumericalWarning)
        yield counts
    counts.update(str(one.message).splitlines()[0] for one in caught)
