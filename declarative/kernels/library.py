"""The library of the compiled core: found, or built in a checkout, and called with the addresses of buffers."""

from __future__ import annotations

import ctypes
import sys
import threading
import warnings
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from . import build

MISSING = (
    "the compiled core of declarative is not there ({}): all is done without it, at a lower speed. "
    "`python -m declarative.kernels` builds it."
)
# The types of the arguments of each function, in short: a pointer, a whole number, a double.
SIGNATURES = {
    "registers_allocate": "ppppiiip",
    "tape_make": "ppi" + "i" + "ppppiipipiipiipipiiiipp",
    "tape_run": "ppipiipiii",
    "plan_make": "pipppi" + "pppppippp",
    "sparse_factorise": "piipipipipipipi",
    "sparse_solve": "piipipippi",
    "dense_solve_active": "iiippppp" + "ppi",
    "shape_make": "iiippipip",
    "newton_prepare": "pi",
    "newton_correct": "pi",
    "newton_move": "pd",
    "newton_judge": "pppppp",
    "newton_regularise": "p",
    "newton_iterate": "pppiiipi" + "ppppppppp" + "iiii",
    "active_set_find": "pppiiiipppi",
    "sinkhorn_iterate_double": "pppppppppdiiiii",
    "sinkhorn_iterate_float": "pppppppppdiiiii",
}
SIZES = {"sparse_size": "pii", "newton_size": "pii"}  # functions that return a whole number
FREED = ("tape_free", "plan_free", "shape_free")
TYPES: dict[str, Any] = {"p": ctypes.c_void_p, "i": ctypes.c_int64, "d": ctypes.c_double}
_one_thread = threading.Lock()


class CoreError(RuntimeError):
    """The core has refused what it was given: a description that is not as it has to be, or too large."""


def available() -> bool:
    """Whether there is a compiled core; if not, a warning says so once."""
    return _library() is not None


def lanes_for(count: int) -> int:
    """How many problems are worked on side by side: one alone, or as many as suit the processor."""
    return 1 if count == 1 else beside()


@cache
def beside() -> int:
    """How many problems lie side by side."""
    return int(_loaded().core_lanes())


def call(name: str, *arguments: Any) -> None:
    """Call a function of the core.

    Args:
        name: which one.
        arguments: numbers, and addresses (0: none) of C-contiguous buffers.

    Raises:
        CoreError: it refuses them, and says why.
    """
    wrong = getattr(_loaded(), name)(*arguments)
    if wrong is not None:
        raise CoreError(f"{name}: {wrong.decode()}")


def size(name: str, *arguments: Any) -> int:
    """How many numbers something takes, by a function of the core."""
    return int(getattr(_loaded(), name)(*arguments))


def threads() -> int:
    """In how many threads the core may work: as many as torch does."""
    return torch.get_num_threads()


class Handle:
    """What the core keeps of a description that it has checked; freed when this is not needed any more."""

    def __init__(self, kind: str, *arguments: Any) -> None:
        made = ctypes.c_void_p()
        call(f"{kind}_make", *arguments, ctypes.addressof(made))
        self.address = made.value or 0
        weakref.finalize(self, getattr(_loaded(), f"{kind}_free"), self.address).atexit = False

    def __deepcopy__(self, memo: object) -> Handle:
        return self  # it never changes

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("what the core keeps belongs to one process")


def array_address(x: NDArray[Any]) -> int:
    """The address of an array, which has to be C-contiguous."""
    if not x.flags.c_contiguous:
        raise ValueError("the core reads arrays that are C-contiguous")
    return int(x.ctypes.data)


def indices(x: Any) -> NDArray[np.int64]:
    """The array as whole numbers of the core."""
    return np.ascontiguousarray(x, dtype=np.int64)


def as_buffer(x: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
    """A tensor whose ``data_ptr`` is the address of all of its entries in turn, of the type that the core reads."""
    found = torch.from_numpy(x.numpy(force=True)).contiguous()  # also of what torch knows to be zero
    if found.dtype is not dtype:
        raise TypeError(f"the core reads {dtype}, not {found.dtype}")
    return found


def _loaded() -> Any:
    library = _library()
    if library is None:
        raise CoreError("the compiled core is not there")
    return library


@cache
def _library() -> Any:
    with _one_thread:
        try:
            return _found_or_built()
        except build.NotBuilt as error:
            warnings.warn(MISSING.format(error), RuntimeWarning, stacklevel=4)
            return None


def _found_or_built() -> Any:
    """The library for this processor; in a checkout it is built if it is not there, or stale."""
    try:
        return _current()
    except build.NotBuilt:
        if not (Path(__file__).parents[2] / "pyproject.toml").exists():
            raise
    with _one_process():
        try:
            return _current()  # another process has built it
        except build.NotBuilt:
            sys.stderr.write("declarative: building the compiled core, once for these sources ...\n")
            build.build_for_this_machine()
    return _current()


def _current() -> Any:
    """The library that is there, with the types of its functions.

    Raises:
        NotBuilt: there is none that is made of the present sources.
    """
    library = build.opened(f"core{build.instruction_set()}")
    for name, kinds in (SIGNATURES | SIZES).items():
        function = getattr(library, name)
        function.argtypes = [TYPES[kind] for kind in kinds]
        function.restype = ctypes.c_char_p if name in SIGNATURES else ctypes.c_int64
    for name in FREED:
        function = getattr(library, name)
        function.argtypes, function.restype = [ctypes.c_void_p], None
    return library


@contextmanager
def _one_process() -> Iterator[None]:
    """One process builds, and others wait; where files cannot be held, nobody waits."""
    try:
        import fcntl

        build.FOLDER.mkdir(parents=True, exist_ok=True)
        with (build.FOLDER / "lock").open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
    except (ImportError, OSError):
        yield
