"""What the tests of verdicts share: the solvers, the accuracy that is asked for, and an ear for warnings."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from declarative import DeclarativeNode, NumericalWarning, Scipy, Solution

SOLVERS = {"newton": "newton", "scipy": Scipy(options={"maxiter": 100}), "default": None}
ACCURACY = {torch.float32: 1e-3, torch.float64: 1e-6}
each_dtype = pytest.mark.parametrize("dtype", ACCURACY, ids=["single", "double"])


@contextlib.contextmanager
def listening() -> Iterator[list[str]]:
    """The numerical warnings of a block, once it has ended; any other warning is an error."""
    words: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield words
    assert {w.category for w in caught} <= {NumericalWarning}, [str(w.message) for w in caught]
    words.extend(str(w.message) for w in caught)


def solved(node: DeclarativeNode, *xs: Tensor) -> Solution:
    with listening():
        return node.solve(*xs)
