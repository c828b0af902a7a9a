"""The project beside another version of itself, named by a commit: calls of both, in turns, in one run."""

from __future__ import annotations

import contextlib
import io
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import torch

from ..shared.processes import Worker
from .peers import MissingPeerError
from .rows import Comparison, Pair, Sides, Study, Target
from .timing import Side

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
LAYERS = ("SphereProjection", "SimplexProjection", "EntropicSimplex")
WHOLE = "with gradient"  # forward and backward
GAMMAS = (1.0, 10.0)
RECORDED = {"sphere": 9.0, "simplex": 8.0}  # how many times as fast, recorded, as the other one by default


def studies(commit: str) -> Iterator[Study]:
    """All of them, if another version is named: ready-made layers, and nodes by callables."""
    if not commit:
        return
    with tempfile.TemporaryDirectory() as folder:
        _unpack(commit, Path(folder))
        with _version(Path(folder)) as before, _version(ROOT) as now:
            sides = partial(_sides, now, before)
            for name in LAYERS:
                yield Comparison(sides((name,)), [_pair(commit, name, name, 2.5)])
                whole = f"{name}, {WHOLE}"
                yield Comparison(sides((whole,)), [_pair(commit, whole, whole)])
            for gamma in GAMMAS:
                name = f"OptimalTransport, {gamma}"
                yield Comparison(sides((name,)), [_pair(commit, name, name)])
            for what, least in RECORDED.items():
                names = [f"{what}, {how}" for how in ("called", "default", "recorded")]
                called, default, recorded = names
                pairs = [_pair(commit, called, called, 2.0), _pair(commit, default, default, 2.0)]
                yield Comparison(sides(names), [*pairs, _pair(commit, recorded, default, least)])


def _pair(commit: str, ours: str, other: str, least: float | None = None) -> Pair:
    what = ours if ours.endswith(WHOLE) else f"{ours}, forward"
    claim = f"{what}, n = 10, batch 10: against {commit}" + f" ({other})" * (ours != other)
    return Pair(claim, f"{ours} now", f"{other} then", Target(at_least=least))


def _sides(now: Worker, before: Worker, names: Sequence[str]) -> Sides:
    versions = {"now": now, "then": before}
    pairs = [(name, word) for name in names for word in versions]
    return {f"{name} {word}": partial(_side, versions[word], name) for name, word in pairs}


def _side(worker: Worker, name: str) -> Side:
    found = worker.ask({"name": name})
    if isinstance(found, str):
        raise MissingPeerError(f"that version does not know it ({found})")
    result = torch.tensor(found, dtype=torch.float64)
    return Side(lambda: (result,), clock=lambda: float(worker.ask({"time": name})))


def _unpack(commit: str, folder: Path) -> None:
    """The files of a commit.

    Raises:
        ValueError: there is no such commit.
    """
    archived = subprocess.run(["git", "archive", "--format=zip", commit], cwd=ROOT, capture_output=True, check=False)
    if archived.returncode:
        raise ValueError(f"{commit!r} is not a commit of the repository in {ROOT.name}: {archived.stderr.decode()}")
    with zipfile.ZipFile(io.BytesIO(archived.stdout)) as files:
        files.extractall(folder)


@contextlib.contextmanager
def _version(folder: Path) -> Iterator[Worker]:
    """A process that finds its packages in the folder of a version first; its own file is not among them."""
    with tempfile.TemporaryDirectory() as beside:
        worker = Worker(str(shutil.copy(HERE / "version_worker.py", beside)), folder=folder, path=folder)
        try:
            yield worker
        finally:
            worker.close()
