"""Processes with one thread, for what must be measured apart: run once, or asked again and again by lines of JSON.

Without torch, for the processes of libraries that do not use it.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

ONE_THREAD = {
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
    **dict.fromkeys(("RAYON_NUM_THREADS", "TORCHINDUCTOR_COMPILE_THREADS"), "1"),
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
    "JAX_PLATFORMS": "cpu",
    "RUST_LOG": "off",
}


def output_of(module: str, *arguments: object) -> str:
    """What a module prints in a process of its own."""
    words = [sys.executable, "-m", module, *map(str, arguments)]
    environment = os.environ | ONE_THREAD
    return subprocess.run(words, env=environment, check=True, capture_output=True, text=True).stdout


class WorkerEndedError(RuntimeError):
    """A process has ended, or did not answer in time; what it said is where its errors go."""


class Worker:
    """A process that runs Python with these words, and answers every request."""

    def __init__(
        self, *words: str, errors: IO[str] | None = None, folder: Path | None = None, path: Path | None = None
    ) -> None:
        environment = os.environ | ONE_THREAD | ({} if path is None else {"PYTHONPATH": str(path)})
        command, pipe = [sys.executable, "-W", "ignore", *words], subprocess.PIPE
        self.process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=errors, text=True, env=environment, cwd=folder
        )

    def ask(self, request: dict[str, Any], seconds: float | None = None) -> Any:
        """The answer, if it comes within these seconds on the wall.

        Raises:
            WorkerEndedError: it does not come.
        """
        process = self.process
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            print(json.dumps(request), file=process.stdin, flush=True)
        except BrokenPipeError as error:
            raise WorkerEndedError("a process has ended") from error
        answer = process.stdout.readline() if select.select([process.stdout], [], [], seconds)[0] else ""
        if not answer:
            raise WorkerEndedError("a process has ended, or hangs")
        return json.loads(answer)

    def close(self) -> None:
        """End it once it has answered."""
        self.process.communicate()

    def kill(self) -> None:
        """End it at once."""
        self.process.kill()
        self.process.communicate()


def serve(answer: Callable[[dict[str, Any]], Any]) -> None:
    """Be such a process: answer requests until the input ends. What is printed meanwhile goes to the errors."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), file=answers, flush=True)
