"""Numerical warnings, counted."""

from __future__ import annotations

import contextlib
import warnings
from collections import Counter
from collections.abc import Iterator

from declarative import NumericalWarning


@contextlib.contextmanager
def counted_warnings() -> Iterator[Counter[str]]:
    """The first lines of the numerical warnings of a block, and how often each came, once the block is left."""
    counts: Counter[str] = Counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", NumericalWarning)
        yield counts
    counts.update(str(one.message).splitlines()[0] for one in caught)
