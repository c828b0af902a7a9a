"""Kernels as machine code, by Numba if it is installed (the extra ``accelerate``)."""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.util
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

INSTALLED = importlib.util.find_spec("numba") is not None
numba: Any = importlib.import_module("numba") if INSTALLED else None  # optional, and without types

KERNELS = (
    *("linear/jit.py", "linear/simd.py", "linear/numba_internals.py", "linear/*_kernel.py", "linear/sparse/*.py"),
    *("recording/tape/*.py", "solvers/newton/parameters.py", "solvers/newton/compiled/*.py"),
)

Floats = NDArray[np.float64]
OPTIONS: dict[str, Any] = {"cache": True, "nogil": True, "error_model": "numpy", "fastmath": {"contract"}}
BORROWED: dict[str, Any] = {"_nrt": False}  # arrays are not counted: two locks of the bus for each use of one
INSIDE: dict[str, Any] = {**BORROWED, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}  # not called from Python
Examples = Callable[[], tuple[Any, ...]]  # of the arguments of a kernel


def _tell_of_compiling() -> None:
    """Say once, when the first kernel is compiled and not found on disk, what takes so long."""
    event = importlib.import_module("numba.core.event")

    class Teller(event.Listener):  # type: ignore[misc, name-defined]
        told = False

        def on_start(self, happening: Any) -> None:
            function = happening.data["dispatcher"].py_func
            if not self.told and function.__module__.startswith(("declarative.", "problems.")):
                self.told = True
                sys.stderr.write("declarative: compiling kernels, once after installing (up to a minute) ...\n")

        def on_end(self, happening: Any) -> None:
            pass

    event.register("numba:compile", Teller())


if INSTALLED:
    try:
        from . import numba_internals
    except (ImportError, AttributeError) as error:  # a Numba that differs inside
        warnings.warn(
            f"Numba {numba.__version__} is not one that kernels can be compiled with ({error}): all is done without "
            "it, at a lower speed. The extra `accelerate` says which ones are.",
            RuntimeWarning,
            stacklevel=2,
        )
        INSTALLED = False
    else:
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
        numba_internals.keep(kernel, _stamp())
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
    return _part(function)


def inlined(function: Callable[..., Any]) -> Any:
    """The same for one that becomes part of the kernels that call it, which then know the numbers they call it with."""
    return _part(function, forceinline=True)


def _part(function: Callable[..., Any], **options: Any) -> Any:
    if not INSTALLED:
        return function
    return numba.njit(**{**OPTIONS, "cache": False}, **INSIDE, **options, pipeline_class=numba_internals.PartCompiler)(
        function
    )


def separate(examples: Examples) -> Callable[[Callable[..., None]], Any]:
    """Like compiled, for a kernel by itself that others call by its address, with arguments of the examples' types.

    What is called by several, or only by some, is then compiled once, and only if it is called.
    """

    def decorated(function: Callable[..., None]) -> Any:
        kernel = _compiled(function, **INSIDE)
        kernel.examples = examples
        return kernel

    return decorated


@functools.cache
def address_of(kernel: Any) -> int:
    """Where the machine code of a separate kernel is, which is made or read from disk if it is not there yet."""
    types = tuple(numba.typeof(x) for x in kernel.examples())
    kernel.compile(types)
    found = kernel.overloads[types]
    address: int = found.library.get_pointer_to_function(found.fndesc.llvm_func_name)
    return address


def by_address(examples: Examples) -> Any:
    """``call(address, (argument, ...))`` in a kernel calls the separate one that is there."""
    return numba_internals.call_of(examples) if INSTALLED else None


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
