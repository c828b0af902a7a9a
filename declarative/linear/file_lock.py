"""Processes that need the same kernel at the same time: one of them compiles it, and the others read it from disk."""

from __future__ import annotations

import importlib
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PATIENCE = 120.0  # seconds, after which a kernel is compiled all the same: whoever holds the file may be stuck
BETWEEN = 0.05  # two looks at it


@contextmanager
def one_process(path: Path) -> Iterator[None]:
    """For as long as this process holds the file, others wait here for it: it is free as soon as the holder has died.

    Where files cannot be held, nobody waits.
    """
    try:
        fcntl: Any = importlib.import_module("fcntl")  # not on Windows
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a")
    except (ImportError, OSError):
        yield
        return
    with file:
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(BETWEEN)
            except OSError:  # not on this file system
                break
            else:
                break
        yield
