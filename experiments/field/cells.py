"""The cells of the benchmark, measured, judged and kept, each within its time."""

from __future__ import annotations

import contextlib
import tempfile
import time
from dataclasses import asdict, dataclass, field, replace
from functools import cache, partial
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from ..shared.jobs import Piece, Tick
from .cases import Answer
from .conditions import NoTruthError
from .digests import code_digest
from .families import FAMILIES
from .judge import judge
from .libraries import LIBRARIES
from .plan import Cell, Plan
from .processes import Processes
from .truths import case_of, known_truth

ALLOWANCE = 2.0  # seconds of the processor a cell that a library has on the whole: fast cells pay for slow ones
LONGER = 5.0  # the same for cells that trace or compile something for every shape
DEPENDENCIES = {  # what does the work of a library, by packages: their versions count as its own
    "cvxpylayers": ("cvxpy", "diffcp", "scs", "clarabel", "moreau"),
    "libdqp": ("qpsolvers", "piqp"),
    "jaxopt": ("jax",),
    "optimistix": ("jax", "equinox", "lineax"),
    "qpax": ("jax",),
    "OTT": ("jax", "lineax"),
}
COMPILING = 10  # times the limit, for what is compiled by a compiler of C++
TRACING = 3  # times the limit, for what is traced or compiled anew for every shape: a first call says little of others
Record = dict[str, Any]


@dataclass
class Budget:
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
    time_left: Budget = field(default_factory=Budget)

    def pieces(self) -> list[CellPiece]:
        """The cells as pieces of work, which stay: what is added later joins them."""
        return [self.piece(cell) for cell in self.plan.cells()]

    def piece(self, cell: Cell) -> CellPiece:
        """A cell with all that identifies its result: our own code is part of that, and a library's version."""
        family, library = FAMILIES[cell.family], LIBRARIES[cell.library]
        identity = f"{library.identity}{dependencies(cell.library)}, problems {code_digest(family.source)}"
        limit = self.plan.limit * (COMPILING if cell.variant == "compiled" else TRACING if cell.traced else 1)
        call = partial(run_cell, cell, identity, self.plan.budget, limit, bench=self)
        return CellPiece(f"field, {cell}", 1.0, self.place, call)

    def start(self) -> list[CellPiece]:
        """What is still to be done; what was measured before counts as time that is used."""
        mine = self.pieces()
        self.time_left.end = time.monotonic() + 60 * self.plan.minutes
        for name in {one.cell.library for one in mine}:
            pieces = [one for one in mine if one.cell.library == name]
            used = sum(record.get("seconds", 0.0) for one in pieces if (record := one.result()) is not None)
            compiling = self.plan.limit * COMPILING * sum(one.cell.variant == "compiled" for one in pieces)
            usual = sum(LONGER if one.cell.traced else ALLOWANCE for one in pieces)
            self.time_left.allowed[name] = usual + compiling - used
        return [one for one in mine if one.result() is None]


@cache
def dependencies(library: str) -> str:
    """The versions of what a library stands on."""
    found = []
    for name in DEPENDENCIES.get(library, ()):
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
        return self.bench.time_left.closed(self.cell.library) or super().run(tick)


def run_cell(cell: Cell, _identity: str, budget: float, limit: float, _: Tick, *, bench: Bench) -> tuple[Record, str]:
    """Measure, judge, and say what came of it."""
    if (smaller := smaller_timeout(cell, bench)) is not None:
        record: Record = {"skipped": f"too slow already at {smaller.size} x {smaller.batch}"}
        return record, words(record)
    try:
        seed, known = known_truth(cell.family, cell.size, cell.batch, bench.place)
    except NoTruthError as error:
        record = {"skipped": f"no truth: {error}"}
        return record, words(record)
    with tempfile.TemporaryDirectory() as beside:
        path = Path(beside) / "answer.npz"
        request = asdict(cell) | {"seed": seed, "budget": budget, "limit": limit, "place": str(path)}
        record = bench.processes.ask(cell.library, request)
        if "times" in record:
            record["judgement"] = asdict(judge(case_of(cell.family, cell.size, cell.batch, seed), _read(path), known))
    bench.time_left.spend(cell.library, record.get("seconds", 0.0))
    return record, words(record)


def smaller_timeout(cell: Cell, bench: Bench) -> Cell | None:
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
        (kind, reason), *_ = record.items()
        return f"{kind}: {reason}"
    times, judged = record["times"], record["judgement"]
    counts = {"failed": judged["loud"], "SILENT": judged["silent"]}
    failed = "".join(f", {count} {word}" for word, count in counts.items() if count)
    both = 1e3 * (times["forward"] + times["backward"])
    return f"{both:.4g} ms, gradient to {judged['gradient_error']:.0e}{failed}"


def _read(path: Path) -> Answer:
    with np.load(path) as data:
        gradients = {name: data[name] for name in data.files if name not in ("y", "solved", "warned")}
        return Answer(data["y"], gradients, data["solved"], str(data["warned"]))
