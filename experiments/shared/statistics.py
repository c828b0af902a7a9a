"""Paired comparisons: an interval for a mean, and which of many differences are more than chance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import stats

LEVEL = 0.05  # the chance of one false positive among all tests that are made together


def interval(values: Any) -> tuple[Any, Any]:
    """The 95 % interval of Student's distribution for the mean of numbers, or of arrays entry by entry.

    Of a single one it says nothing.
    """
    reach = stats.t.ppf(1 - LEVEL / 2, max(len(values) - 1, 1)) * _standard_error(values)
    return np.mean(values, 0) - reach, np.mean(values, 0) + reach


def p_value(values: Sequence[float]) -> float:
    """How likely a mean that far from zero is by chance, two-sided, by Student's test."""
    if len(values) < 2:
        return 1.0
    middle, spread = abs(float(np.mean(values))), float(_standard_error(values))
    if spread == 0:
        return float(middle == 0)
    return float(2 * stats.t.sf(middle / spread, len(values) - 1))


def holm(p_values: Sequence[float]) -> list[bool]:
    """Which of several tests are positive, so that the chance of any false one is at most LEVEL."""
    found, count = [False] * len(p_values), len(p_values)
    for rank, i in enumerate(np.argsort(p_values, kind="stable").tolist()):
        if not p_values[i] <= LEVEL / (count - rank):
            break
        found[i] = True
    return found


def _standard_error(values: Any) -> Any:
    return np.std(values, 0, ddof=1) / len(values) ** 0.5 if len(values) > 1 else np.inf
