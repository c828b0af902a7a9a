"""Which cells there are: a family, a size, a batch, a library and a way to use it."""

from __future__ import annotations

from dataclasses import dataclass

from .families import FAMILIES, Family, Shape
from .libraries import LIBRARIES, Library

TRACED = ("jaxopt", "optimistix", "qpax", "OTT")  # libraries that trace or compile something in every cell


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

    only: tuple[str, ...] = ()  # parts of the names of families; all, if there are none
    quick: bool = False
    budget: float = 0.2  # seconds to repeat a call
    limit: float = 15.0  # seconds of the processor for everything about a cell
    minutes: float = 120.0  # on the wall, after which no cell is begun
    libraries: tuple[str, ...] = ()  # all, if none is named

    def families(self) -> list[Family]:
        """Those that are wanted.

        Raises:
            ValueError: there is none.
        """
        found = [one for name, one in FAMILIES.items() if not self.only or any(part in name for part in self.only)]
        if not found:
            raise ValueError(f"no family is called {' or '.join(self.only)}; there are {', '.join(FAMILIES)}.")
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
