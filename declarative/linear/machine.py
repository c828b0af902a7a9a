"""Kernels as machine code, by Numba if it is installed (the extra ``accelerate``)."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

INSTALLED = importlib.util.find_spec("numba") is not None
numba: Any = importlib.import_module("numba") if INSTALLED else None  # optional, and without types

Floats = NDArray[np.float64]


def compiled(function: Callable[..., Any]) -> Any:
    """The function as machine code, made at its first call and kept on disk; as it is where Numba is missing."""
    if not INSTALLED:
        return function
    return numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"})(function)
