"""Learning curves, and their tables."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..shared.files import csv_text

Array = NDArray[np.float64]
COLUMNS = ("panel", "rule", "repeat", "iteration", "loss", "cosine_mean", "cosine_min", "cosine_positive")
MEASURES = COLUMNS[4:]


@dataclass(frozen=True)
class Curves:
    """The curves of one panel, (rules, repeats, iterations).

    The cosine is that of a rule's gradient and the exact one with respect to the input of the layer, at each point of
    the rule's own learning curve: its mean and minimum over the problems of the batch, and the share above zero.
    """

    panel: str
    rules: tuple[str, ...]
    loss: Array
    cosine_mean: Array
    cosine_min: Array
    cosine_positive: Array

    def of(self, rule: str) -> Curves:
        """One rule alone, (1, repeats, iterations)."""
        i = self.rules.index(rule)
        return Curves(self.panel, (rule,), *(getattr(self, name)[i : i + 1] for name in MEASURES))

    def to_csv(self) -> str:
        """As a table; numbers are written so that they are read back bit for bit."""
        rows = []
        for place in np.ndindex(self.loss.shape):
            rule, repeat, iteration = place
            values = (float(getattr(self, name)[place]) for name in MEASURES)
            rows.append((self.panel, self.rules[rule], repeat, iteration, *values))
        return csv_text(COLUMNS, rows)

    @classmethod
    def from_csv(cls, lines: Iterable[str]) -> Curves:
        """Read what :meth:`to_csv` wrote.

        Raises:
            ValueError: it is something else, or not all of it.
        """
        reader = csv.DictReader(lines)
        if tuple(reader.fieldnames or ()) != COLUMNS:
            raise ValueError(
                f"a table of curves has the columns {', '.join(COLUMNS)}, but this has {reader.fieldnames}."
            )
        rows = list(reader)
        if not rows:
            raise ValueError("a table of curves has no rows.")
        rules = tuple(dict.fromkeys(row["rule"] for row in rows))
        shape = (len(rules), *(1 + max(int(row[name]) for row in rows) for name in ("repeat", "iteration")))
        if len(rows) != np.prod(shape):
            raise ValueError(f"a table of curves of shape {shape} has {np.prod(shape)} rows, but this has {len(rows)}.")
        values = (np.array([float(row[name]) for row in rows]).reshape(shape) for name in MEASURES)
        return cls(rows[0]["panel"], rules, *values)
