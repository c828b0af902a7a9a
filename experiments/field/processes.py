"""The processes of the libraries, from the side of the one that asks: each is started when it is needed first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..shared.processes import Worker, WorkerEndedError
from .forked import PATIENCE

STARTING, SLACK = 600.0, 60.0  # seconds on the wall: to import a library, and beyond what a cell may take


class Processes:
    """One for each library that was asked; what they print goes to files."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._running: dict[str, Worker] = {}

    def ask(self, library: str, request: dict[str, Any]) -> dict[str, Any]:
        """What the library answers; a process that has ended is said so, and a new one serves the next request."""
        error = "it could not be imported; its log says why"
        try:
            if library not in self._running:
                self._running[library] = self._start(library)
                self._running[library].ask({"load": library}, STARTING)
            error = "its process has ended, or hung"
            answer: dict[str, Any] = self._running[library].ask(request, PATIENCE * request["limit"] + SLACK)
        except WorkerEndedError:
            self._running.pop(library).kill()
            return {"error": error}
        return answer

    def close(self) -> None:
        """End them all."""
        for worker in self._running.values():
            worker.close()
        self._running.clear()

    def _start(self, library: str) -> Worker:
        self._logs.mkdir(parents=True, exist_ok=True)
        with open(self._logs / f"{library}.txt", "w", encoding="utf-8") as log:
            return Worker("-m", "experiments.field.worker", library, errors=log)
