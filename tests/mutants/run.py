"""Tests run against mutants, in temporary copies of the project, several at a time.

Every run is a fork of a process that has imported what the tests need beside the project itself, which takes longer
than most of them.
"""

from __future__ import annotations

import compileall
import importlib
import multiprocessing
import os
import py_compile
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import pytest

from .mutant import ROOT, Mutant

PARTS = ("declarative", "problems", "tests")
WARM = ("numpy", "scipy.optimize", "torch.fx.experimental.proxy_tensor", "torch.func")
LIMIT = 300.0  # seconds for each test that is named; a machine may be busy


@dataclass(frozen=True)
class Job:
    """Tests to run, on a mutant or, without one, on the project as it is."""

    tests: tuple[str, ...]
    mutant: Mutant | None = None


@dataclass(frozen=True)
class Outcome:
    """How it went.

    Attributes:
        failed: the tests that failed; on a mutant only the first.
        trouble: why the tests could not be run, if so.
    """

    failed: tuple[str, ...]
    trouble: str | None = None


@dataclass(frozen=True)
class _Running:
    process: Any
    inbox: Connection
    job: Job
    copy: Path
    original: str  # the text of the mutant's file; the project itself may be edited in the meantime
    deadline: float


def run(jobs: Sequence[Job], copies: Sequence[Path]) -> Iterator[tuple[Job, Outcome]]:
    """Run all jobs, one at a time in each copy of the project; outcomes as they come."""
    os.environ["OMP_NUM_THREADS"] = "1"
    sys.dont_write_bytecode = True  # what was compiled from a mutant must not be found by the next one
    for name in WARM:
        importlib.import_module(name)
    free, waiting, running = list(copies), list(jobs), []
    while waiting or running:
        while waiting and free:
            running.append(_started(waiting.pop(0), free.pop()))
        wait(
            [one.process.sentinel for one in running], max(0.0, min(one.deadline for one in running) - time.monotonic())
        )
        for one in [one for one in running if not one.process.is_alive() or time.monotonic() > one.deadline]:
            running.remove(one)
            free.append(one.copy)
            yield one.job, _ended(one)


def copied(to: Path) -> Path:
    """A copy of the project, compiled so that a file is compiled anew whenever its text has changed."""
    for part in PARTS:
        shutil.copytree(ROOT / part, to / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", to)
    compileall.compile_dir(to, quiet=2, invalidation_mode=py_compile.PycInvalidationMode.CHECKED_HASH)
    return to


def _started(job: Job, copy: Path) -> _Running:
    original = ""
    if job.mutant is not None:
        original = (copy / job.mutant.file).read_text(encoding="utf-8")
        (copy / job.mutant.file).write_text(job.mutant.applied(original), encoding="utf-8")
    forking = multiprocessing.get_context("fork")
    inbox, outbox = forking.Pipe(duplex=False)
    process = forking.Process(target=_test, args=(copy, job, outbox))
    process.start()
    outbox.close()
    return _Running(process, inbox, job, copy, original, time.monotonic() + LIMIT * len(job.tests))


def _ended(one: _Running) -> Outcome:
    """The outcome of a run that has ended or has to; its copy is as it was."""
    slow = one.process.is_alive()
    if slow:
        one.process.kill()
    one.process.join()
    if one.job.mutant is not None:
        (one.copy / one.job.mutant.file).write_text(one.original, encoding="utf-8")
    if slow:
        return Outcome((), "no answer in time")
    try:
        return Outcome(*one.inbox.recv())
    except EOFError:
        return Outcome((), f"the process ended with {one.process.exitcode}")


class _Witness:
    """Remembers which tests failed, and what could not be collected."""

    def __init__(self) -> None:
        self.failed: list[str] = []
        self.uncollected: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and report.nodeid not in self.failed:
            self.failed.append(report.nodeid.removeprefix("tests/"))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.uncollected.append(str(report.longrepr).strip().splitlines()[-1])


def _test(copy: Path, job: Job, outbox: Connection) -> None:
    """In a process of its own: run the tests on the copy, quietly."""
    os.chdir(copy)
    sys.path[:] = [str(copy), *(path for path in sys.path if Path(path).resolve() != ROOT)]
    for name in [name for name in sys.modules if name.partition(".")[0] in PARTS]:
        del sys.modules[name]
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    witness, options = _Witness(), ["-x"] if job.mutant is not None else []
    options += ["-o", "addopts=", "-q", "--tb=line", "--assert=plain", "-p", "no:cacheprovider", "-p", "no:xdist"]
    code = pytest.main([*options, *(f"tests/{test}" for test in job.tests)], plugins=[witness])
    understood = code in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED) and not witness.uncollected
    trouble = None if understood else "; ".join([f"pytest says {code.name}", *witness.uncollected])
    outbox.send((tuple(witness.failed), trouble))  # nothing of the project's own, of which there are two copies by now
