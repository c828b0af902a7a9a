"""Progress on a terminal as a bar with the time left, and elsewhere as plain lines."""

from __future__ import annotations

import sys
import time
from typing import TextIO

WIDTH = 24
REFRESH = 0.1  # seconds between two drawings of the bar


class Progress:
    """Counts the steps of several tasks of equal size.

    Args:
        tasks: how many there are.
        steps: of each.
        stream: where to write; by default standard error.
    """

    def __init__(self, tasks: int, steps: int, stream: TextIO | None = None) -> None:
        self.stream = sys.stderr if stream is None else stream
        self.live = self.stream.isatty()
        self.tasks = tasks
        self.steps = steps
        self.began = time.monotonic()
        self.drawn = 0.0
        self.task = 0
        self.step = 0
        self.label = ""

    def start(self, label: str) -> None:
        """Begin the next task."""
        self.task += 1
        self.step = 0
        self.label = label
        if not self.live:
            self._say(f"[{self.task}/{self.tasks}] {label} ...")

    def tick(self) -> None:
        """One step is done."""
        self.step += 1
        now = time.monotonic()
        if self.live and now - self.drawn >= REFRESH:
            self.drawn = now
            self.stream.write("\r\x1b[K" + self.line(now - self.began))
            self.stream.flush()

    def line(self, elapsed: float) -> str:
        """The bar of this task, and how long all of them will still take."""
        done = (self.task - 1) * self.steps + self.step
        left = elapsed / done * (self.tasks * self.steps - done) if done else float("nan")
        filled = WIDTH * self.step // self.steps
        bar = "█" * filled + "░" * (WIDTH - filled)
        percent = 100 * self.step // self.steps
        return f"[{self.task}/{self.tasks}] {self.label:<28} {bar} {percent:3d} %  {elapsed:.0f} s, {left:.0f} s left"

    def finish(self, words: str) -> None:
        """The task is done: say so on a line that stays."""
        self._say(f"{self._clear()}[{self.task}/{self.tasks}] {self.label}: {words}")

    def stop(self) -> None:
        """Leave the line to others, whatever was on it."""
        self.stream.write(self._clear())
        self.stream.flush()

    def _clear(self) -> str:
        return "\r\x1b[K" if self.live else ""

    def _say(self, line: str) -> None:
        self.stream.write(line + "\n")
        self.stream.flush()
