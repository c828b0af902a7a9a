"""Seconds of the processor, all threads together: what others do on the machine meanwhile does not count.

Without torch, for the processes of libraries that do not use it.
"""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

T = TypeVar("T")


def timed(work: Callable[[], T]) -> tuple[float, T]:
    """The seconds that a call takes, and its result."""
    began = time.process_time()
    result = work()
    return time.process_time() - began, result


@contextlib.contextmanager
def no_collections() -> Iterator[None]:
    """No garbage collection in the middle of a call."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
