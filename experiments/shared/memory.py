"""The memory of this process, in bytes."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def in_use(name: str) -> int:
    """By a name of Linux, such as VmSize; zero elsewhere."""
    if not STATUS.exists():
        return 0
    lines = dict(line.split(":", 1) for line in STATUS.read_text().splitlines() if ":" in line)
    return int(lines[name].split()[0]) * 1024


def peak() -> int:
    """The most that was in use since :func:`reset_peak`, or so far.

    Linux hands ``ru_maxrss`` on from the process that started this one: it is used only where there is no better.
    """
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return in_use("VmHWM") or used


def reset_peak() -> int:
    """What is in use now; the peak is counted from here on, where the system allows it."""
    try:
        RESET.write_text("5")
    except OSError:
        return peak()
    return in_use("VmRSS")
