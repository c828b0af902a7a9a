"""The machine: what it is, for the record, and one thread of it, for times that are compared."""

from __future__ import annotations

import contextlib
import datetime
import importlib
import os
import platform
from collections.abc import Iterator
from importlib import metadata
from typing import Any

import torch

NAMES = ("torch", "numpy", "scipy", "matplotlib", "declarative-nodes")


def describe() -> dict[str, Any]:
    """Versions and hardware."""
    versions = {}
    for name in NAMES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return {
        "versions": {"python": platform.python_version(), **versions},
        "machine": {"system": platform.platform(), "cores": os.cpu_count(), "threads": torch.get_num_threads()},
    }


def now() -> str:
    """The time of day, with the zone."""
    return datetime.datetime.now().astimezone().isoformat(timespec="seconds")


def cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Torch and, where that is possible, NumPy on one thread: the matrices are small, and times are compared."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(ImportError):  # comes with scikit-learn
            stack.enter_context(importlib.import_module("threadpoolctl").threadpool_limits(1))
        try:
            yield
        finally:
            torch.set_num_threads(before)
