"""Jobs: side by side as one after the other, kept piece by piece, told in order, and stopped when one fails."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from experiments.paper.run import Plan
from experiments.paper.training import Settings
from experiments.shared import files, jobs
from experiments.shared.jobs import JobError, Piece, Tick, discard_pieces, open_pieces, positive, run_jobs
from experiments.shared.progress import Progress


def square(number: int, tick: Tick) -> tuple[Any, str]:
    tick(0.5)
    if number < 0:
        raise ArithmeticError("negative")
    return {"square": number**2, "threads": torch.get_num_threads(), "process": os.getpid()}, f"{number} squared"


def pieces(out: Path, *numbers: int) -> list[Piece]:
    return [Piece(f"square of {number}", float(number), out, partial(square, number)) for number in numbers]


def test_two_processes_do_what_one_does(tmp_path: Path) -> None:
    """With one thread each; a panel gives the same bits."""
    together, alone = (
        [Plan("eigen-rank2", Settings(1, 2), tmp_path / name), *pieces(tmp_path / name, 2, 3)] for name in "ab"
    )
    told = Progress([job.cost for job in together], io.StringIO())
    run_jobs(together, 2, told)
    run_jobs(alone, 1, Progress([1.0] * 3, io.StringIO()))
    (first, second), mine = ([job.result() for job in done[1:]] for done in (together, alone))
    assert [one["square"] for one in (first, second)] == [one["square"] for one in mine] == [4, 9]
    assert first["threads"] == second["threads"] == 1
    assert os.getpid() not in (first["process"], second["process"])
    assert {one["process"] for one in mine} == {os.getpid()}
    tables = [(tmp_path / name / "eigen-rank2" / "curves.csv").read_text() for name in "ab"]
    assert tables[0] == tables[1]
    lines = told.stream.getvalue().splitlines()
    assert lines[:2] == ["[1/3] square of 3 ...", "[2/3] square of 2 ..."]
    assert "[1/3] square of 3: 3 squared" in lines
    assert len(lines) == 6


def test_a_worker_tells_of_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs.signal, "signal", lambda *_: None)  # this process wants to be interrupted
    ours, theirs = jobs.SPAWN.Pipe()
    for job in (*pieces(tmp_path, 2, -1), None):
        ours.send(job)
    jobs._serve(theirs)
    assert [ours.recv() for _ in range(3)] == [("tick", 0.5), ("done", "2 squared"), ("tick", 0.5)]
    kind, words = ours.recv()
    assert kind == "failed"
    assert "ArithmeticError: negative" in words
    theirs.close()


@pytest.mark.parametrize(
    ("message", "words"), [(("failed", "so"), "so\nFAILED square of 3 has crashed"), (None, "has ended")]
)
def test_a_job_that_fails_elsewhere_stops_the_run(
    message: Any, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = jobs.SPAWN.Pipe()
    if message:
        theirs.send(message)
    else:
        theirs = ours  # which closes the other end

    @contextlib.contextmanager
    def workers(_: int) -> Iterator[list[Any]]:
        yield [ours]

    monkeypatch.setattr(jobs, "_workers", workers)
    with pytest.raises(JobError, match=words):
        run_jobs(pieces(tmp_path, 2, 3), 2, Progress([1.0, 1.0], io.StringIO()))


def test_pieces_are_kept_until_they_are_discarded(tmp_path: Path) -> None:
    first, second = pieces(tmp_path, 2, 3)
    run_jobs([first], 1)
    assert first.result()["square"] == 4
    assert open_pieces([first, second], force=False) == [second]
    (other,) = (Piece(first.label, 1.0, tmp_path, partial(square, 5)),)
    assert other.result() is None  # the same name, but other arguments
    assert open_pieces([first, second], force=True) == [first, second]
    assert not list(tmp_path.iterdir())
    discard_pieces(tmp_path)  # nothing is there


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    files.write(tmp_path / "a", "old")
    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        files.write(tmp_path / "a", "new")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_text() == "old"


def test_counts_are_at_least_one() -> None:
    assert positive("3") == 3
    with pytest.raises(argparse.ArgumentTypeError, match="at least 1, but is 0"):
        positive("0")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_a_bar_with_the_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("experiments.shared.progress.REFRESH", 0.0)
    monkeypatch.setenv("COLUMNS", "50")
    progress = Progress([3.0, 1.0], Terminal())
    progress.start(0, "first")
    progress.start(1, "second")
    progress.tick(0, 0.5)
    assert progress.line(elapsed=15.0).endswith("  38%  15 s, 25 s left: first 50%, second 0%")
    assert len(progress.stream.getvalue().rpartition("\r\x1b[K")[2]) == 49  # a longer one would not be overwritten
    progress.finish(0, "done")
    assert progress.stream.getvalue().endswith("\r\x1b[K[1/2] first: done\n")


def test_elsewhere_there_are_plain_lines() -> None:
    progress = Progress([1.0], io.StringIO())
    progress.start(0, "first")
    progress.tick(0, 0.5)
    progress.finish(0, "done")
    progress.stop()
    assert progress.stream.getvalue() == "[1/1] first ...\n[1/1] first: done\n"
