"""A cell of the benchmark: a family, a size, a batch, a library and a way to use it; measured, judged and kept."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache, lru_cache, partial
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

from ..shared.jobs import Piece, Tick
from .cases import Answer, Case
from .conditions import NoTruthError
from .families import FAMILIES, Family, Shape
from .forked import run_forked
from .judge import judge
from .libraries import LIBRARIES, Library
from .processes import Processes
from .sources import HERE, TRUTH, of_bytes, of_files
from .truth import Truth, truth

ALLOWANCE = 2.0  # seconds of the processor a cell that a library has on the whole: fast cells pay for slow ones
LONGER = 5.0  # the same for cells that trace or compile something for every shape
TRACED = ("jaxopt", "optimistix")  # libraries that do so in every cell
BENEATH = {  # what does the work of a library, by packages: their versions count as its own
    "cvxpylayers": ("cvxpy", "diffcp", "scs", "clarabel", "moreau"),
    "libdqp": ("qpsolvers", "piqp"),
    "jaxopt": ("jax",),
    "optimistix": ("jax", "equinox", "lineax"),
}
COMPILING = 10  # times the limit, for what is compiled by a compiler of C++
TRACING = 3  # times the limit, for what is traced or compiled anew for every shape: a first call says little of others
PROVING = 120.0  # seconds of the processor for a truth
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

    @property
    def traced(self) -> bool:
        """Whether its first call does much that is done once for every shape."""
        return self.variant == "recorded" or self.library in TRACED

    def __str__(self) -> str:
        return f"{self.family}, {self.size} x {self.batch}, {self.library}, {self.variant}"


@dataclass(frozen=True)
class Plan:
    """What is wanted of a run."""

    only: str = ""  # a part of the names of families
    quick: bool = False
    budget: float = 0.2  # seconds to repeat a call
    limit: float = 15.0  # seconds of the processor for everything about a cell
    minutes: float = 55.0  # on the wall, after which no cell is begun
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


@dataclass
class Clock:
    """The time that is left: for every library, and for the run."""

    allowed: dict[str, float] = field(default_factory=dict)  # seconds of the processor
    end: float = float("inf")  # by time.monotonic

    def closed(self, library: str) -> str:
        """Why no further cell of the library is begun, if so."""
        if time.monotonic() > self.end:
            return "not measured: the time of the run was over"
        if self.allowed.get(library, 1.0) <= 0:
            return "not measured: the library has used up its time"
        return ""

    def spend(self, library: str, seconds: float) -> None:
        """A cell took so long."""
        self.allowed[library] = self.allowed.get(library, float("inf")) - seconds


@dataclass(frozen=True)
class Bench:
    """What cells are measured with."""

    plan: Plan
    place: Path
    processes: Processes
    clock: Clock = field(default_factory=Clock)

    def pieces(self) -> list[CellPiece]:
        """The cells as pieces of work, which stay: what is added later joins them."""
        return [self.piece(cell) for cell in self.plan.cells()]

    def piece(self, cell: Cell) -> CellPiece:
        """A cell with all that identifies its result: our own code is part of that, and a library's version."""
        family, library = FAMILIES[cell.family], LIBRARIES[cell.library]
        identity = f"{library.identity}{beneath(cell.library)}, problems {of_files(family.source)}"
        limit = self.plan.limit * (COMPILING if cell.variant == "compiled" else TRACING if cell.traced else 1)
        call = partial(run_cell, cell, identity, self.plan.budget, limit, bench=self)
        return CellPiece(f"field, {cell}", 1.0, self.place, call)

    def start(self) -> list[CellPiece]:
        """What is still to be done; what was measured before counts as time that is used."""
        mine = self.pieces()
        self.clock.end = time.monotonic() + 60 * self.plan.minutes
        for name in {one.cell.library for one in mine}:
            own = [one for one in mine if one.cell.library == name]
            used = sum(record.get("seconds", 0.0) for one in own if (record := one.result()) is not None)
            compiled = [one for one in own if one.cell.variant == "compiled"]
            extra = self.plan.limit * COMPILING * len(compiled)
            usual = sum(LONGER if one.cell.traced else ALLOWANCE for one in own)
            self.clock.allowed[name] = usual + extra - used
        return [one for one in mine if one.result() is None]


@cache
def beneath(library: str) -> str:
    """The versions of what a library stands on."""
    found = []
    for name in BENEATH.get(library, ()):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found.append(f", {name} {metadata.version(name)}")
    return "".join(found)


@dataclass(frozen=True)
class CellPiece(Piece):
    """A cell as a piece of work; without a result if there is no time for it."""

    @property
    def cell(self) -> Cell:
        """Which."""
        found: Cell = self.call.args[0]
        return found

    @property
    def bench(self) -> Bench:
        """Where."""
        found: Bench = self.call.keywords["bench"]
        return found

    def run(self, tick: Tick) -> str:
        """Measure it, unless the time is over."""
        return self.bench.clock.closed(self.cell.library) or super().run(tick)


def run_cell(cell: Cell, _identity: str, budget: float, limit: float, _: Tick, *, bench: Bench) -> tuple[Record, str]:
    """Measure, judge, and say what came of it."""
    if (smaller := hopeless(cell, bench)) is not None:
        record: Record = {"skipped": f"too slow already at {smaller.size} x {smaller.batch}"}
        return record, words(record)
    try:
        seed, known = settled(cell.family, cell.size, cell.batch, bench.place)
    except NoTruthError as error:
        record = {"skipped": f"no truth: {error}"}
        return record, words(record)
    with tempfile.TemporaryDirectory() as beside:
        path = Path(beside) / "answer.npz"
        request = asdict(cell) | {"seed": seed, "budget": budget, "limit": limit, "place": str(path)}
        record = bench.processes.ask(cell.library, request)
        if "times" in record:
            record["judgement"] = asdict(judge(case_of(cell.family, cell.size, cell.batch, seed), _read(path), known))
    bench.clock.spend(cell.library, record.get("seconds", 0.0))
    return record, words(record)


def hopeless(cell: Cell, bench: Bench) -> Cell | None:
    """The first cell where it has run out of time with less to do."""
    family = FAMILIES[cell.family]
    for size, batch in family.shapes if family.ordered else ():
        if size <= cell.size and batch <= cell.batch and (size, batch) != (cell.size, cell.batch):
            smaller = replace(cell, size=size, batch=batch)
            record = bench.piece(smaller).result()
            if record is not None and "timeout" in record:
                return smaller
    return None


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
        of = digest(case, FAMILIES[family])
        if (kept := _kept(path, case, of)) is not None:
            return seed, kept
        path.parent.mkdir(parents=True, exist_ok=True)
        told = run_forked(partial(_prove, case, of, path), PROVING)
        if (kept := _kept(path, case, of)) is not None:
            return seed, kept
        reasons = (*reasons, str(told.get("not") or told.get("error") or "it takes too long"))
        if "timeout" in told:
            break
    raise NoTruthError(reasons[-1])


def _prove(case: Case, of: str, path: Path) -> Record:
    """In a process of its own: the file is the answer."""
    try:
        found = truth(case)
    except NoTruthError as reason:
        return {"not": str(reason)}
    arrays: dict[str, Any] = {"of": of, "y": found.y, **found.gradients}
    beside = path.with_suffix(".part.npz")
    np.savez(beside, **arrays)
    beside.replace(path)
    return {}


def _kept(path: Path, case: Case, of: str) -> Truth | None:
    if not path.exists():
        return None
    with np.load(path) as data:
        if str(data["of"]) != of:
            return None
        return Truth(data["y"], {name: data[name] for name in case.inputs})


def digest(case: Case, family: Family) -> str:
    """Of all that a truth depends on: every number of the problems, their formulas, and how it is computed."""
    code = of_files(family.source, *(HERE / name for name in TRUTH))
    return of_bytes([code.encode(), *_numbers(case.statement), *_numbers(case.inputs), case.cotangent.tobytes()])


def _numbers(thing: Any) -> Iterator[bytes]:
    """All arrays of a statement; formulas are code."""
    values = (
        thing.values() if isinstance(thing, dict) else (getattr(thing, name) for name in thing.__dataclass_fields__)
    )
    for value in values:
        if scipy.sparse.issparse(value):
            coo = value.tocoo()
            for part in (coo.row, coo.col, coo.data):
                yield np.ascontiguousarray(part).tobytes()
        elif not callable(value):
            yield np.ascontiguousarray(value).tobytes()


def _read(path: Path) -> Answer:
    with np.load(path) as data:
        gradients = {name: data[name] for name in data.files if name not in ("y", "solved", "warned")}
        return Answer(data["y"], gradients, data["solved"], str(data["warned"]))
