"""Jobs over the cores: each worker is a process with one thread that does one job after the other.

A job keeps its result itself, as a file that is complete or absent. So it does not matter who does it and when, and
an interrupted run continues where it was.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import re
import shutil
import signal
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Protocol, TypeAlias, cast

from . import files
from .machine import one_thread
from .progress import Progress

SPAWN = multiprocessing.get_context("spawn")  # a fork would inherit the threads of torch in an unknown state

Line: TypeAlias = "Connection[Any, Any]"  # to a worker
Tick = Callable[[float], None]  # takes the share that is done
Call = partial[tuple[Any, str]]  # of a tick: what JSON can hold, and a few words; its arguments identify it


def positive(text: str) -> int:
    """A count."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, but is {number}")
    return number


class JobError(Exception):
    """A job has failed; the message says which, and how."""


class Job(Protocol):
    """A piece of work that can be sent to another process."""

    @property
    def label(self) -> str:
        """For people."""

    @property
    def cost(self) -> float:
        """About how many seconds it takes, so that the longest can come first."""

    def run(self, tick: Tick) -> str:
        """Do it, keep the result, and say in a few words what came of it."""


class Experiment(Protocol):
    """A command whose work is done by jobs."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """The options of the command line."""

    def jobs(self, args: argparse.Namespace) -> Sequence[Job]:
        """What is still to be done."""

    def finish(self, args: argparse.Namespace) -> list[str]:
        """Once it is done: leave tables and pictures, say what came of it, and return what of ours is wrong."""


@dataclass(frozen=True)
class Piece:
    """A call whose result is kept in a file until the other pieces of the experiment are there: a job."""

    label: str
    cost: float
    place: Path  # the directory of the experiment
    call: Call

    def run(self, tick: Tick) -> str:
        result, words = self.call(tick)
        files.write_json(self._path, {"of": repr(self.call.args), "result": result})
        return words

    def result(self) -> Any:
        """What it has left; None if it has not been done, or with other arguments."""
        record = files.read_json(self._path)
        return record["result"] if record is not None and record["of"] == repr(self.call.args) else None

    @property
    def _path(self) -> Path:
        return self.place / "pieces" / re.sub(r"[^\w.-]+", "-", f"{self.label}.json")


def open_pieces(pieces: Sequence[Piece], force: bool) -> list[Piece]:
    """Those that are still to be done: without what an earlier run has left, if that is forced."""
    if force and pieces:
        discard_pieces(pieces[0].place)
    return [piece for piece in pieces if piece.result() is None]


def discard_pieces(place: Path) -> None:
    """Remove what is left of the pieces of an experiment."""
    shutil.rmtree(place / "pieces", ignore_errors=True)


def run_jobs(jobs: Sequence[Job], workers: int, progress: Progress | None = None) -> None:
    """Do the jobs, the longest first, in so many processes; in this one if one is enough.

    Raises:
        JobError: one of them has failed. What was finished before is kept.
    """
    todo = sorted(jobs, key=lambda job: -job.cost)
    progress = progress or Progress([job.cost for job in todo])
    try:
        if min(workers, len(todo)) > 1:
            _run_in_processes(todo, min(workers, len(todo)), progress)
        else:
            with one_thread():
                for number, job in enumerate(todo):
                    progress.start(number, job.label)
                    progress.finish(number, job.run(partial(progress.tick, number)))
    finally:
        progress.stop()


def _run_in_processes(jobs: Sequence[Job], count: int, progress: Progress) -> None:
    waiting = iter(enumerate(jobs))
    busy: dict[Line, int] = {}  # which job each worker is at

    def send_next(line: Line) -> None:
        number, job = next(waiting, (None, None))
        with contextlib.suppress(BrokenPipeError):  # if nobody listens, nothing will be answered
            line.send(job)
        if number is not None and job is not None:
            busy[line] = number
            progress.start(number, job.label)

    with _workers(count) as lines:
        for line in lines:
            send_next(line)
        while busy:
            for line in cast("list[Line]", wait(list(busy))):  # it returns some of what it is given
                try:
                    kind, message = line.recv()
                except (EOFError, ConnectionResetError):
                    kind, message = "failed", "its process has ended."
                if kind == "tick":
                    progress.tick(busy[line], message)
                elif kind == "failed":
                    raise JobError(f"{message.rstrip()}\nFAILED {jobs[busy[line]].label} has crashed: see above")
                else:
                    progress.finish(busy.pop(line), message)
                    send_next(line)


@contextlib.contextmanager
def _workers(count: int) -> Iterator[list[Line]]:
    """Lines to processes, which end with the block however that ends."""
    processes, lines = [], []
    try:
        for _ in range(count):
            ours, theirs = SPAWN.Pipe()
            process = SPAWN.Process(target=_serve, args=(theirs,), daemon=True)
            process.start()
            theirs.close()
            processes.append(process)
            lines.append(ours)
        yield lines
    finally:
        for process in processes:
            process.terminate()
            process.join()


def _serve(line: Line) -> None:
    """What a worker does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process decides
    with one_thread(), contextlib.suppress(EOFError, BrokenPipeError):  # until nobody listens any more
        while (job := line.recv()) is not None:
            try:
                line.send(("done", job.run(lambda share: line.send(("tick", share)))))
            except Exception:  # whatever it is, it is shown where the user looks
                line.send(("failed", traceback.format_exc()))
