"""Progress of several jobs at once: on a terminal as a bar with the time left, and elsewhere as plain lines."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Sequence
from typing import TextIO

WIDTH = 24
REFRESH = 0.1  # seconds between two drawings of the bar


class Progress:
    """How far the jobs are.

    Args:
        costs: of each job, in whatever unit.
        stream: where to write; by default standard error.
    """

    def __init__(self, costs: Sequence[float], stream: TextIO | None = None) -> None:
        self.stream = sys.stderr if stream is None else stream
        self.live = self.stream.isatty()
        self.costs = costs
        self.shares = [0.0] * len(costs)
        self.running: dict[int, str] = {}
        self.began = time.monotonic()
        self.drawn = 0.0

    def start(self, number: int, label: str) -> None:
        """A job is begun."""
        self.running[number] = label
        if not self.live:
            self._say(f"{self._place(number)} {label} ...")

    def tick(self, number: int, share: float) -> None:
        """So much of a job is done."""
        self.shares[number] = share
        now = time.monotonic()
        if self.live and now - self.drawn >= REFRESH:
            self.drawn = now
            line = self.line(now - self.began)[: shutil.get_terminal_size().columns - 1]
            self.stream.write("\r\x1b[K" + line)
            self.stream.flush()

    def line(self, elapsed: float) -> str:
        """The bar of all jobs, how long they will still take, and what is being done."""
        done = sum(share * cost for share, cost in zip(self.shares, self.costs, strict=True)) / sum(self.costs)
        left = f", {elapsed / done - elapsed:.0f} s left" if done else ""
        bar = "█" * int(WIDTH * done) + "░" * (WIDTH - int(WIDTH * done))
        now = ", ".join(f"{label} {self.shares[number]:.0%}" for number, label in self.running.items())
        return f"{bar} {done:4.0%}  {elapsed:.0f} s{left}: {now}"

    def finish(self, number: int, words: str) -> None:
        """A job is done: say so on a line that stays."""
        self.shares[number] = 1.0
        self._say(f"{self._clear()}{self._place(number)} {self.running.pop(number)}: {words}")

    def stop(self) -> None:
        """Leave the line to others, whatever was on it."""
        self.stream.write(self._clear())
        self.stream.flush()

    def _place(self, number: int) -> str:
        return f"[{number + 1}/{len(self.costs)}]"

    def _clear(self) -> str:
        return "\r\x1b[K" if self.live else ""

    def _say(self, line: str) -> None:
        self.stream.write(line + "\n")
        self.stream.flush()
