"""The processes of the libraries, from the side of the one that asks: each is started when it is needed first."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
from pathlib import Path
from typing import Any

from .apart import PATIENCE

ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS", "NUMBA_NUM_THREADS")
STARTING, SLACK = 120.0, 60.0  # seconds on the wall: to import a library, and beyond what a cell may take
XLA = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"


class Processes:
    """One for each library that was asked; what they print goes to files."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._running: dict[str, subprocess.Popen[str]] = {}

    def ask(self, library: str, request: dict[str, Any]) -> dict[str, Any]:
        """What the library answers; a process that has ended is said so, and a new one serves the next request."""
        process = self._running.get(library)
        if process is None:
            process = self._running[library] = self._start(library)
            if "ready" not in _read(process, STARTING):
                self._discard(library)
                return {"error": "it could not be imported; its log says why"}
        assert process.stdin is not None
        answer = {}
        with contextlib.suppress(BrokenPipeError):
            print(json.dumps(request), file=process.stdin, flush=True)
            answer = _read(process, PATIENCE * request["limit"] + SLACK)
        if not answer:
            self._discard(library)
            return {"error": "its process has ended, or hung"}
        return answer

    def close(self) -> None:
        """End them all."""
        for process in self._running.values():
            process.communicate()
        self._running.clear()

    def _discard(self, library: str) -> None:
        process = self._running.pop(library)
        process.kill()
        process.communicate()

    def _start(self, library: str) -> subprocess.Popen[str]:
        self._logs.mkdir(parents=True, exist_ok=True)
        threads = {**dict.fromkeys(ONE_THREAD, "1"), "XLA_FLAGS": XLA, "JAX_PLATFORMS": "cpu", "RUST_LOG": "off"}
        threads["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
        words = [sys.executable, "-W", "ignore", "-m", "experiments.field.worker", library]
        with open(self._logs / f"{library}.txt", "w", encoding="utf-8") as log:
            return subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, **threads},
            )


def _read(process: subprocess.Popen[str], seconds: float) -> dict[str, Any]:
    """A line, if it comes in time; its pipe has nothing else in it, as every question has one answer."""
    assert process.stdout is not None
    if not select.select([process.stdout], [], [], seconds)[0]:
        return {}
    line = process.stdout.readline()
    found: dict[str, Any] = json.loads(line) if line else {}
    return found
