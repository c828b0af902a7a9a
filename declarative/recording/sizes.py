"""How large the problems are for inputs of given shapes: if the functions are pure, they have to be asked but once."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, NamedTuple

import torch

CAPACITY = 256  # shapes, dtypes and kinds of derivatives; beyond that all are forgotten


def bounded(cache: dict[Hashable, Any]) -> dict[Hashable, Any]:
    """A cache with room for one more."""
    if len(cache) >= CAPACITY:
        cache.clear()
    return cache


class Size(NamedTuple):
    """What a problem consists of: an unknown of this shape, p equalities and q inequalities, bounds included.

    And the operations of its functions with corners.
    """

    shape: torch.Size
    p: int
    q: int
    corners: tuple[str, ...] = ()


class Sizes:
    """The sizes found so far: a cache, not a state. Copies and pickles of a node start with an empty one.

    With ``one_unknown``, no start has to be asked how the unknowns are nested, and the functions capture nothing.
    """

    def __init__(self, one_unknown: bool = False) -> None:
        self.one_unknown = one_unknown
        self._found: dict[Hashable, Size] = {}

    def get(self, kind: Hashable) -> Size | None:
        """The size of problems with inputs of this kind, if they have been looked at."""
        return self._found.get(kind)

    def put(self, kind: Hashable, size: Size) -> None:
        """Remember it."""
        bounded(self._found)[kind] = size

    def __reduce__(self) -> tuple[type[Sizes], tuple[bool]]:
        return Sizes, (self.one_unknown,)
