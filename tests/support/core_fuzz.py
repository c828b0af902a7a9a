"""Random descriptions and numbers for the compiled core, in a process of its own.

Many of them are malformed. Arguments are a library, plans in a file, and how often. The library is built with
sanitizers, which end the process at the first fault; torch is not imported, for it has nothing to do
with it. Prints how many descriptions were run and how many refused.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

import numpy as np

READ, SOLVED, KINDS = 40, 41, 42
WILD = (np.nan, np.inf, -np.inf, 0.0, -0.0, 1e308, -1e308, 5e-324)
SIZES = (0, 1, 2, 3, 5, 8, 9, 17)


class Fuzz:
    """The functions of the library, and a source of random numbers."""

    def __init__(self, library: str, seed: int) -> None:
        self.library, self.draw = ctypes.CDLL(library), np.random.default_rng(seed)
        self.lanes = int(self.library.core_lanes())
        self.run, self.refused = 0, 0

    def call(self, name: str, *arguments: Any) -> bool:
        """Whether the arguments were accepted."""
        function = getattr(self.library, name)
        function.restype = ctypes.c_char_p
        kinds = {float: ctypes.c_double, int: ctypes.c_int64}
        wrong = function(*(kinds[type(x)](x) if type(x) in kinds else ctypes.c_void_p(_address(x)) for x in arguments))
        self.refused += wrong is not None
        self.run += wrong is None
        return wrong is None

    def made(self, name: str, *arguments: Any) -> ctypes.c_void_p | None:
        """What the core has made of a description, or None if it refused it."""
        to = ctypes.c_void_p()
        return to if self.call(f"{name}_make", *arguments, ctypes.pointer(to)) else None

    def free(self, name: str, made: ctypes.c_void_p) -> None:
        function = getattr(self.library, f"{name}_free")
        function.restype = None
        function(made)

    def numbers(self, *shape: int) -> Any:
        """Random numbers, some of them wild."""
        x = self.draw.normal(size=shape)
        return np.where(self.draw.random(shape) < 0.02, self.draw.choice(WILD, shape), x)

    def places(self, below: int, count: int) -> Any:
        return self.draw.integers(0, max(below, 1), count)

    def flags(self, *shape: int) -> Any:
        return self.draw.random(shape) < 0.7

    def size(self, *sizes: int) -> int:
        return int(self.draw.choice(sizes or SIZES))

    def spoilt(self, arrays: list[Any]) -> list[Any]:
        """The same with one entry changed, perhaps."""
        arrays = [x.copy() for x in arrays]
        x = arrays[self.draw.integers(len(arrays))]
        if len(x) and self.draw.random() < 0.5:
            if x.dtype == np.bool_:
                x[self.draw.integers(len(x))] ^= True
            else:
                x[self.draw.integers(len(x))] += self.draw.choice([-1, 1, 2, 1000, 2**31, 2**40, -(2**62)])
        return arrays


def tape(fuzz: Fuzz, own: int, shared: int, widths: tuple[int, ...], m: int = 0, k: int = 0) -> Any:
    """A random tape, which solves a dense system (m, k) if m is not zero; malformed ones among them."""
    constants, given = fuzz.numbers(fuzz.size(1, 3)), 0
    own_places, shared_places = fuzz.places(own, own * 2), fuzz.places(shared, shared)
    given = len(constants) + len(own_places) + len(shared_places)
    kinds, ends, operands, results, used = [], [], [], [], given
    for _ in range(fuzz.size(1, 4, 12)):
        count, kind = fuzz.size(1, 2, 7), int(fuzz.draw.integers(0, READ))
        operands += fuzz.places(used, 3 * count).reshape(-1, 3).tolist()
        results += list(range(used, used + count))
        used += count
        kinds.append(kind)
        ends.append(len(results))
    if m:
        reads, writes = m * m + k * m + k + m + k, m + k + 1
        operands += fuzz.places(used, 3 * reads).reshape(-1, 3).tolist() + [[0, 0, 0]] * writes
        results += [0] * reads + list(range(used, used + writes))
        kinds, ends = [*kinds, READ, SOLVED], [*ends, len(results) - writes, len(results)]
        used += writes
    a, b, c = np.ascontiguousarray(np.array(operands, dtype=np.int64).reshape(-1, 3).T)
    offsets = np.cumsum([0, *widths])
    arrays = [np.array(kinds), np.array(ends), a, b, c, np.array(results), own_places, shared_places]
    arrays = fuzz.spoilt([np.array(x, dtype=np.int64) for x in (*arrays, fuzz.places(used, offsets[-1]), offsets)])
    kinds, ends, a, b, c, d, own_places, shared_places, outputs, offsets = arrays
    prologue = int(fuzz.draw.choice([0, 0, 0, 0, 1, -1, len(kinds), len(kinds) + 1]))
    used += int(fuzz.draw.choice([0, 0, 0, 0, -1, 1, 2**31, 2**62]))
    return fuzz.made(
        *("tape", kinds, ends, len(kinds), prologue, a, b, c, d, len(a), int(used), constants, len(constants)),
        *(own_places, len(own_places), own, shared_places, len(shared_places), shared),
        *(outputs, len(outputs), offsets, len(offsets), int(m > 0), m, k, None),
    )


def fuzz_tapes(fuzz: Fuzz) -> None:
    own, shared, count = fuzz.size(0, 1, 6), fuzz.size(0, 2), fuzz.size()
    made = tape(fuzz, own, shared, (1, 0, 3), fuzz.size(0, 1, 4), fuzz.size(0, 1, 3))
    if made is None:
        return
    length = 4 * count + int(fuzz.draw.choice([0, 0, 0, 1]))
    lanes, threads = fuzz.size(1, fuzz.lanes, fuzz.lanes, 3), fuzz.size(1, 3)
    inputs, all_share = fuzz.numbers(count * own), fuzz.numbers(shared)
    size = count if fuzz.draw.random() < 0.95 else int(fuzz.draw.choice([-1, 2**61]))
    found = np.empty(length)
    fuzz.call("tape_run", made, inputs, len(inputs), all_share, shared, size, found, length, lanes, threads)
    fuzz.free("tape", made)


def fuzz_plans(fuzz: Fuzz, plans: list[list[Any]]) -> None:
    arrays = fuzz.spoilt(plans[fuzz.draw.integers(len(plans))])
    place, slots, first, second, pair, constraint, starts, rows, columns, row_starts, by_row = arrays
    size, entries, fill = len(place), len(slots), len(rows)
    made = fuzz.made(
        *("plan", place, size, slots, first, second, entries, pair, constraint, starts, rows, columns, fill),
        *(row_starts, by_row),
    )
    if made is None:
        return
    batch, lanes, widths = fuzz.size(), fuzz.size(1, fuzz.lanes), [entries - size, 0, size, 0]
    widths[0] += int(fuzz.draw.choice([0, 0, 0, 1]))
    groups = -(-batch // lanes)
    length = groups * lanes * (entries + 2 * size + fill + 4) - int(fuzz.draw.choice([0, 0, 0, 1]))
    numbers, counts = np.empty(max(length, 0)), np.empty((batch, 4), dtype=np.int64)
    parts = [x for width in widths for x in (fuzz.numbers(batch, width), width)]
    if fuzz.call("sparse_factorise", made, batch, lanes, *parts, numbers, length, counts, 2):
        sides = fuzz.size(0, 1, 3)
        right, errors = fuzz.numbers(batch, size, sides), np.empty(batch)
        fuzz.call("sparse_solve", made, batch, lanes, numbers, length, right, sides, np.empty_like(right), errors, 2)
    fuzz.free("plan", made)


def fuzz_newton(fuzz: Fuzz) -> None:
    """Numbers that no call of the method would have: what matters is where it reads and writes."""
    m, k = fuzz.size(0, 1, 2, 5), fuzz.size(0, 1, 4)
    p, last, extra, count = fuzz.size(*range(k + 1)), fuzz.size(0, 1), fuzz.size(0, 3), fuzz.size()
    rows, columns = (np.ascontiguousarray(x) for x in np.divmod(np.arange(k * m), max(m, 1)))
    rows, columns, diagonal = fuzz.spoilt([rows, columns, np.arange(m) * (m + 1)])
    made = fuzz.made("shape", m, k, p, rows, columns, k * m, diagonal, m * m)
    if made is None:
        return
    width = m + k + extra
    length = count * int(fuzz.library.newton_size(made, ctypes.c_int64(last), ctypes.c_int64(width)))
    length += int(fuzz.draw.choice([0, 0, 0, -1]))
    numbers, flags = fuzz.numbers(max(length, 0)), np.zeros((4, count), dtype=np.bool_)
    counts = fuzz.draw.integers(-3, 100, (2, count))
    whole = np.array([made.value, count, last, width, fuzz.size(0, 1), length], dtype=np.int64)
    ends = np.array([x.ctypes.data for x in (numbers, counts, flags)], dtype=np.int64)
    batch = np.concatenate([whole, ends, np.abs(fuzz.numbers(5)).view(np.int64)])
    fuzz.call("newton_prepare", batch, fuzz.size(0, 1))
    fuzz.call("newton_move", batch, 0.5)
    fuzz.call("newton_regularise", batch)
    fuzz.call("newton_correct", batch, fuzz.size(0, 1))
    widths = (1, m, k, k * m, m * m)
    fuzz.call("newton_judge", batch, *(fuzz.numbers(count * x) for x in widths))
    functions = tape(fuzz, width, 2, widths if fuzz.draw.random() < 0.9 else widths[:4])
    if functions is not None:
        at = [int(x + fuzz.draw.choice([0, 0, 0, 5])) for x in (0, m)]
        states = [fuzz.flags(count) for _ in range(5)]
        found = np.zeros(count, dtype=np.int64), np.empty((count, m)), np.empty((count, k)), fuzz.flags(4, count)
        options = int(fuzz.draw.integers(1, 9)), fuzz.size(0, 1), fuzz.size(1, fuzz.lanes), 2
        shared = fuzz.numbers(2)
        fuzz.call("newton_iterate", batch, functions, shared, 2, *at, None, fuzz.size(0, 1), *states, *found, *options)
        fuzz.free("tape", functions)
    fuzz.free("shape", made)


def fuzz_layers(fuzz: Fuzz) -> None:
    count, k = fuzz.size(), fuzz.size()
    equalities, tables, xs = fuzz.size(0, 1, 4), fuzz.numbers(count, k, k), fuzz.numbers(count, k)
    active, pivots, clear = np.zeros((count, k), dtype=np.bool_), np.zeros(count, dtype=np.int64), fuzz.flags(count)
    wanted = fuzz.flags(count)
    fuzz.call("active_set_find", tables, xs, wanted, count, k, equalities, 20, active, pivots, clear, 2)
    m, n = fuzz.size(), fuzz.size()
    for name, dtype in (("double", np.float64), ("float", np.float32)):
        with np.errstate(over="ignore"):
            kernel, r, c, u, v, w = (
                np.abs(fuzz.numbers(*shape)).astype(dtype)
                for shape in ((count, m, n), (count, m), (count, n), (count, m), (count, n), (count,))
            )
        error, middle, turns = np.empty(count, dtype), np.empty(count, dtype), np.empty(count, dtype=np.int64)
        arrays = kernel, r, c, u, v, w, error, middle, turns
        fuzz.call(f"sinkhorn_iterate_{name}", *arrays, 1e-6, 7, count, m, n, 2)
    m, k = fuzz.size(), fuzz.size()
    given = fuzz.numbers(count, m, m), fuzz.numbers(count, k, m), fuzz.flags(count, k), fuzz.numbers(count, m)
    found = np.empty((count, m + k)), fuzz.flags(count)
    fuzz.call("dense_solve_active", count, m, k, *given, fuzz.numbers(count, k), *found, 2)
    numbered, instructions = fuzz.size(), fuzz.size()
    read, last = fuzz.places(numbered, 3 * instructions), fuzz.places(instructions, numbered)
    results = fuzz.places(numbered, instructions)
    read, results = fuzz.spoilt([read, results])
    place, size = np.zeros(numbered, dtype=np.int64), np.zeros(1, dtype=np.int64)
    fuzz.call("registers_allocate", read, last, results, place, instructions, numbered, 3, size)


def _address(x: Any) -> int | None:
    if x is None or isinstance(x, ctypes.c_void_p):
        return None if x is None else x.value
    return x.ctypes.data if isinstance(x, np.ndarray) else ctypes.addressof(x.contents)


def main(library: str, plans: str, turns: int) -> None:
    with np.load(plans) as kept:
        analyses = [[kept[f"{i}_{j}"] for j in range(11)] for i in range(len(kept.files) // 11)]
    fuzz = Fuzz(library, 0)
    for _ in range(turns):
        fuzz_tapes(fuzz)
        fuzz_plans(fuzz, analyses)
        fuzz_newton(fuzz)
        fuzz_layers(fuzz)
    sys.stdout.write(f"{fuzz.run} {fuzz.refused}\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
