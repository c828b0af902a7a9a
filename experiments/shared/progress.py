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
    """How far the jobs are, each of which counts as much as it costs."""

    def __init__(self, costs: Sequence[float], stream: TextIO | None = None) -> None:
        self.stream = sys.stderr if stream is None else stream  # looked up late: it may be redirected
        self.live = self.stream.isatty()
        self.clear = "\r\x1b[K" if self.live else ""  # the line that is drawn anew
        self.costs = costs
        self.shares = [0.0] * len(costs)
        self.running: dict[int, str] = {}
        self.began = time.monotonic()
        self.drawn = 0.0

    def start(self, number: int, label: str) -> None:
        """A job is begun."""
        self.running[number] = label
        if not self.live:
            self._say(number, " ...")

    def tick(self, number: int, share: float) -> None:
        """So much of a job is done."""
        self.shares[number] = share
        now = time.monotonic()
        if self.live and now - self.drawn >= REFRESH:
            self.drawn = now
            line = self.line(now - self.began)[: shutil.get_terminal_size().columns - 1]
            self._write(self.clear + line)

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
        self._say(number, f": {words}")
        del self.running[number]

    def stop(self) -> None:
        """Leave the line to others, whatever was on it."""
        self._write(self.clear)

    def _say(self, number: int, words: str) -> None:
        self._write(f"{self.clear}[{number + 1}/{len(self.costs)}] {self.running[number]}{words}\n")

    def _write(self, text: str) -> None:
        self.stream.write(text)
        self.stream.flush()
