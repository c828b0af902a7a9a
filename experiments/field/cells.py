"""A cell of the benchmark: a family, a size, a batch, a library and a way to use it; measured, judged and kept."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from ..shared.jobs import Piece, Tick
from .cases import Answer, Case
from .conditions import NoTruthError
from .families import FAMILIES, Family, Shape
from .judge import judge
from .libraries import LIBRARIES, Library
from .processes import Processes
from .truth import Truth, truth

COMPILING = 10  # times the limit, for what is compiled by a compiler of C++
SEEDS = 20  # to be tried until every problem of a batch has a gradient
Record = dict[str, Any]


@dataclass(frozen=True)
class Cell:
    """What is measured."""

    family: str
    size: int
    batch: int
    library: str
    variant: str

    def __str__(self) -> str:
        return f"{self.family}, {self.size} x {self.batch}, {self.library}, {self.variant}"


@dataclass(frozen=True)
class Plan:
    """What is wanted of a run."""

    only: str = ""  # a part of the names of families
    quick: bool = False
    budget: float = 0.2  # seconds to repeat a call
    limit: float = 15.0  # seconds of the processor for everything about a cell
    libraries: tuple[str, ...] = ()  # all, if none is named

    def families(self) -> list[Family]:
        """Those that are wanted.

        Raises:
            ValueError: there is none.
        """
        found = [family for name, family in FAMILIES.items() if self.only in name]
        if not found:
            raise ValueError(f"no family is called {self.only!r}; there are {', '.join(FAMILIES)}.")
        return found

    def cells(self) -> list[Cell]:
        """All of them; the first shapes of all families first, so that an interrupted run says something of each."""
        rounds: dict[int, list[Cell]] = {}
        for family in self.families():
            libraries = self._libraries(family)
            for number, shape in enumerate(family.quick if self.quick else family.shapes):
                uses = [(one.name, name) for one in libraries for name in self._variants(family, one, shape)]
                rounds.setdefault(number, []).extend(Cell(family.name, *shape, *use) for use in uses)
        return [cell for number in sorted(rounds) for cell in rounds[number]]

    def _variants(self, family: Family, library: Library, shape: Shape) -> list[str]:
        allowed = [name for name in library.variants if family.allows(library.name, name, shape)]
        return allowed[: 1 if self.quick else None]

    def _libraries(self, family: Family) -> list[Library]:
        small = family.make(*family.quick[0], 0)
        wanted = self.libraries or tuple(LIBRARIES)
        return [one for one in LIBRARIES.values() if one.name in wanted and one.installed and one.accepts(small)]


def pieces(plan: Plan, place: Path, processes: Processes) -> list[Piece]:
    """The cells as pieces of work, which stay: what is added later joins them."""
    return [piece(cell, plan, place, processes) for cell in plan.cells()]


def piece(cell: Cell, plan: Plan, place: Path, processes: Processes) -> Piece:
    """A cell with all that identifies its result."""
    version = LIBRARIES[cell.library].version
    limit = plan.limit * (COMPILING if cell.variant == "compiled" else 1)
    call = partial(run_cell, cell, version, plan.budget, limit, plan=plan, place=place, processes=processes)
    return Piece(f"field, {cell}", 1.0, place, call)


def run_cell(
    cell: Cell, _version: str, budget: float, limit: float, _: Tick, *, plan: Plan, place: Path, processes: Processes
) -> tuple[Record, str]:
    """Measure, judge, and say what came of it."""
    if hopeless(cell, plan, place, processes):
        return {"skipped": "out of time at a smaller size"}, "skipped"
    try:
        seed, known = settled(cell.family, cell.size, cell.batch, place)
    except NoTruthError as error:
        return {"not": f"no truth: {error}"}, f"no truth: {error}"
    with tempfile.TemporaryDirectory() as beside:
        path = Path(beside) / "answer.npz"
        request = asdict(cell) | {"seed": seed, "budget": budget, "limit": limit, "place": str(path)}
        record = processes.ask(cell.library, request)
        if "times" in record:
            record["judgement"] = asdict(judge(case_of(cell.family, cell.size, cell.batch, seed), _read(path), known))
    return record, words(record)


def hopeless(cell: Cell, plan: Plan, place: Path, processes: Processes) -> bool:
    """Has it run out of time where there was less to do?"""
    for size, batch in FAMILIES[cell.family].shapes:
        if size <= cell.size and batch <= cell.batch and (size, batch) != (cell.size, cell.batch):
            smaller = Cell(cell.family, size, batch, cell.library, cell.variant)
            record = piece(smaller, plan, place, processes).result()
            if record is not None and ("timeout" in record or "skipped" in record):
                return True
    return False


def words(record: Record) -> str:
    """For the progress."""
    if "times" not in record:
        (kind, told), *_ = record.items()
        return f"{kind}: {told}"
    times, judged = record["times"], record["judgement"]
    failed = f", {judged['loud']} failed" * bool(judged["loud"]) + f", {judged['silent']} SILENT" * bool(
        judged["silent"]
    )
    both = 1e3 * (times["forward"] + times["backward"])
    return f"{both:.4g} ms, gradient to {judged['gradient_error']:.0e}{failed}"


@lru_cache(maxsize=2)
def case_of(family: str, size: int, batch: int, seed: int) -> Case:
    """The problems."""
    return FAMILIES[family].make(size, batch, seed)


@lru_cache(maxsize=2)
def settled(family: str, size: int, batch: int, place: Path) -> tuple[int, Truth]:
    """The first seed for which every problem of the batch has a gradient, and the truth, which is kept in a file.

    Raises:
        NoTruthError: there is none.
    """
    path = place / "truth" / f"{family}-{size}-{batch}.npz"
    reasons: Sequence[str] = ()
    for seed in range(SEEDS):
        case = case_of(family, size, batch, seed)
        if (kept := _kept(path, case)) is not None:
            return seed, kept
        try:
            found = truth(case)
        except NoTruthError as reason:
            reasons = (*reasons, str(reason))
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        arrays: dict[str, Any] = {"of": _digest(case), "y": found.y, **found.gradients}
        np.savez(path, **arrays)
        return seed, found
    raise NoTruthError(reasons[-1])


def _kept(path: Path, case: Case) -> Truth | None:
    if not path.exists():
        return None
    with np.load(path) as data:
        if str(data["of"]) != _digest(case):
            return None
        return Truth(data["y"], {name: data[name] for name in case.inputs})


def _digest(case: Case) -> str:
    parts = [case.cotangent, *case.inputs.values()]
    return hashlib.sha256(b"".join(np.ascontiguousarray(x).tobytes() for x in parts)).hexdigest()


def _read(path: Path) -> Answer:
    with np.load(path) as data:
        gradients = {name: data[name] for name in data.files if name not in ("y", "solved")}
        return Answer(data["y"], gradients, data["solved"])
