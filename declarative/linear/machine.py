"""Kernels as machine code, by Numba if it is installed (the extra ``accelerate``)."""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

INSTALLED = importlib.util.find_spec("numba") is not None
numba: Any = importlib.import_module("numba") if INSTALLED else None  # optional, and without types

KERNELS = ("linear/**/*.py", "recording/tape/*.py", "solvers/newton_*.py")  # where they are

Floats = NDArray[np.float64]
OPTIONS: dict[str, Any] = {"cache": True, "nogil": True, "error_model": "numpy", "fastmath": {"contract"}}
BORROWED: dict[str, Any] = {"_nrt": False}  # arrays are not counted: two locks of the bus for each use of one


def _tell_of_compiling() -> None:
    """Say once, when the first kernel is compiled and not found on disk, what takes so long."""
    event = importlib.import_module("numba.core.event")

    class Teller(event.Listener):  # type: ignore[misc, name-defined]
        told = False

        def on_start(self, happening: Any) -> None:
            function = happening.data["dispatcher"].py_func
            if not self.told and function.__module__.startswith(("declarative.", "problems.")):
                self.told = True
                sys.stderr.write("declarative: compiling kernels, once after installing (a few minutes) ...\n")

        def on_end(self, happening: Any) -> None:
            pass

    event.register("numba:compile", Teller())


if INSTALLED:
    _tell_of_compiling()


def stamp_of(folder: Path) -> str:
    """What the sources of all kernels are, and of the constants in them.

    A kernel contains those that it calls, also from other files, and what is kept of it on disk must not outlive them.
    Numba itself looks at the file of the kernel alone.
    """
    digest = hashlib.blake2b(digest_size=16)
    for pattern in KERNELS:
        for path in sorted(folder.glob(pattern)):
            digest.update(path.read_bytes())
    return digest.hexdigest()


@functools.cache
def _stamp() -> str:
    return stamp_of(Path(__file__).parents[1])


def _compiled(function: Callable[..., Any], **options: Any) -> Any:
    if not INSTALLED:
        return function
    kernel = numba.njit(**OPTIONS, **options)(function)
    try:
        kept = kernel._cache._cache_file
        kept._source_stamp = (kept._source_stamp, _stamp())
    except AttributeError:  # another Numba: nothing is kept rather than too long
        return numba.njit(**{**OPTIONS, "cache": False}, **options)(function)
    return kernel


def compiled(function: Callable[..., Any]) -> Any:
    """The function as machine code, made at its first call and kept on disk; as it is where Numba is missing.

    It makes no arrays: they are handed in, all of them, and are its caller's.
    """
    return _compiled(function, **BORROWED)


def allocating(function: Callable[..., Any]) -> Any:
    """The same for one that makes arrays."""
    return _compiled(function)


def inner(function: Callable[..., Any]) -> Any:
    """Like compiled, for what other kernels call, and never Python: most of compiling is the way in from there."""
    return _compiled(function, no_cpython_wrapper=True, no_cfunc_wrapper=True, **BORROWED)


def woven(function: Callable[..., Any]) -> Any:
    """The same for one that becomes part of the kernels that call it, which then know the numbers they call it with."""
    return _compiled(function, no_cpython_wrapper=True, no_cfunc_wrapper=True, forceinline=True, **BORROWED)


@inner
def larger(x: float, y: float) -> float:
    """The larger one, or NaN."""
    return y if y > x or y != y else x


@inner
def smaller(x: float, y: float) -> float:
    """The smaller one, or NaN."""
    return y if y < x or y != y else x


@inner
def cut(numbers: Floats, begin: int, rows: int, columns: int) -> tuple[Floats, int]:
    """A piece of a buffer, as a matrix, and where it ends."""
    end = begin + rows * columns
    return numbers[begin:end].reshape(rows, columns), end


@inner
def copy(to: Any, x: Any) -> None:
    """Write one vector into another."""
    for i in range(len(x)):
        to[i] = x[i]


@inner
def copy_pairs(to: Any, x: Any) -> None:
    """The same for rows of two."""
    for i in range(len(x)):
        to[i, 0], to[i, 1] = x[i, 0], x[i, 1]
