"""Arguments of solvers and rules, looked at when these are made and not in the middle of a computation."""

from __future__ import annotations

import math


def require_flags(**values: object) -> None:
    """Refuse what is neither True nor False.

    Raises:
        TypeError: it is something else.
    """
    for name, value in values.items():
        if not isinstance(value, bool):
            raise TypeError(f"{name} must be True or False, but is {type(value).__name__}.")


def require_counts(least: int = 1, **values: object) -> None:
    """Refuse what is not a whole number from ``least`` on.

    Raises:
        ValueError: it is something else.
    """
    for name, value in values.items():
        if not is_integer(value) or value < least:  # type: ignore[operator]
            raise ValueError(f"{name} must be an integer, at least {least}, but is {value!r}.")


def require_tolerances(**values: object) -> None:
    """Refuse what is neither None nor a number between 0 and 1.

    Raises:
        ValueError: it is something else.
    """
    for name, value in values.items():
        if value is not None and not (is_number(value) and 0 < value < 1):  # type: ignore[operator]
            raise ValueError(f"{name} must be a number between 0 and 1, or None, but is {value!r}.")


def is_integer(value: object) -> bool:
    """Whether it is a whole number; True and False are none."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    """Whether it is a real number, and not NaN; True and False are none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)
