"""Work in a forked process: whatever becomes of it, the one that asks goes on."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

PAUSE = 0.02  # seconds between two looks
PATIENCE = 3  # times the limit of processor time, on the wall: others may use the machine


def run_forked(work: Callable[[], dict[str, Any]], limit: float) -> dict[str, Any]:
    """What it answers, or what became of it, with the seconds of the processor that it took.

    ``{"timeout": limit}`` if it took more than these seconds, ``{"error": ...}`` if its process ended without an
    answer. What it has started itself ends with it.
    """
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        # JAX and Python say that what needs threads from here may hang: it runs out of time then, which is told.
        warnings.simplefilter("ignore")
        child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        os.close(reading)
        try:
            with contextlib.suppress(BrokenPipeError), os.fdopen(writing, "w") as pipe:
                json.dump(work(), pipe)
        finally:
            os._exit(0)  # never back into the loop of the process that it was split off from
    os.close(writing)
    with os.fdopen(reading) as pipe:
        ready = _in_time(pipe, child, limit)
        if not ready:
            _end(child)
        text = pipe.read() if ready else ""
    _, status, used = os.wait4(child, 0)
    seconds = used.ru_utime + used.ru_stime
    answer: dict[str, Any] = {"timeout": limit}
    if text:
        answer = json.loads(text)
    elif ready:
        how = (
            f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"status {os.waitstatus_to_exitcode(status)}"
        )
        answer = {"error": f"its process has ended, {how}"}
    return answer | {"seconds": seconds}


def _in_time(pipe: Any, child: int, limit: float) -> bool:
    """Does it answer before it has used its seconds of the processor, and PATIENCE times as many on the wall?

    The kernel's own limit of processor time is no use: under it, that time is counted in steps of milliseconds.
    """
    began = time.monotonic()
    while not select.select([pipe], [], [], PAUSE)[0]:
        if time.monotonic() - began > PATIENCE * limit or _spent(child) > limit:
            return False
    return True


def _end(child: int) -> None:
    for end in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            end(child, signal.SIGKILL)


def _spent(child: int) -> float:
    """Seconds of the processor, with those of what it has started and seen the end of; zero if nobody tells."""
    try:
        text = Path(f"/proc/{child}/stat").read_text()
    except OSError:
        return 0.0
    numbers = text.rpartition(")")[2].split()
    return sum(map(int, numbers[11:15])) / os.sysconf("SC_CLK_TCK")
