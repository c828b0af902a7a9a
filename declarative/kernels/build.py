"""Build the compiled core: one library for each set of instructions that processors have.

``python -m declarative.kernels`` does it by hand. This file imports nothing but the standard library, so that it can be
run while the package is being installed.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

SOURCES = Path(__file__).parent / "src"
FOLDER = Path(__file__).parent / "lib"
# No multiplication is fused with an addition: a result depends neither on the set of instructions nor on lanes.
FLAGS = (
    *("-std=c++20", "-O2", "-ftree-vectorize", "-ffp-contract=off", "-fno-math-errno", "-fvisibility=hidden"),
    *("-fPIC", "-shared", "-pthread", "-Wall", "-Wextra", "-Wno-psabi", "-Wno-ignored-attributes"),
)
SETS: tuple[tuple[str, ...], ...] = ((),)  # options for each set of instructions, in the order of features.cpp
if platform.machine().lower() in ("x86_64", "amd64"):
    SETS += (("-mavx2",), ("-mavx512f", "-mavx512vl", "-mavx512dq", "-mprefer-vector-width=512"))


class NotBuilt(RuntimeError):  # noqa: N818
    """There is no core: no compiler, or it failed."""


@cache
def source_hash() -> str:
    """What the core is made of: the sources, and how they are compiled."""
    digest = hashlib.blake2b(repr((FLAGS, SETS)).encode(), digest_size=8)
    for path in sorted(SOURCES.iterdir()):
        digest.update(path.name.encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def library_path(name: str, folder: Path | None = None) -> Path:
    """Where a library made of the present sources is: others have other names, and are never loaded."""
    return (folder or FOLDER) / f"{name}-{source_hash()}.so"


def compiler() -> str | None:
    """The C++ compiler: what ``CXX`` says, or g++ or clang++; None if there is none."""
    candidates = shlex.split(os.environ.get("CXX", ""))[:1] or ["g++", "clang++", "c++"]
    return next((found for name in candidates if (found := shutil.which(name))), None)


def command(source: str, options: tuple[str, ...], to: Path) -> list[str]:
    """The command that makes a library."""
    found = compiler()
    if found is None:
        raise NotBuilt("there is no C++ compiler (g++ or clang++, or what CXX is set to)")
    return [found, *FLAGS, *options, str(SOURCES / source), "-o", str(to)]


def build(folder: Path | None = None, sets: Sequence[int] | None = None) -> None:
    """Compile the libraries, side by side; each takes its place only when it is whole, and stale ones are removed.

    Args:
        folder: where to put them; by default, where they are loaded from.
        sets: for which sets of instructions; by default all.

    Raises:
        NotBuilt: there is no compiler, it failed, or there is no place for what it makes.
    """
    folder = folder or FOLDER
    wanted: dict[str, tuple[str, tuple[str, ...]]] = {"features": ("features.cpp", ())}
    wanted |= {f"core{i}": ("core.cpp", SETS[i]) for i in (range(len(SETS)) if sets is None else sets)}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as room:
            made = [library_path(name, Path(room)) for name in wanted]
            commands = [command(*what, path) for what, path in zip(wanted.values(), made, strict=True)]
            running = [
                subprocess.Popen(one, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for one in commands
            ]
            said = [one.communicate()[0] for one in running]
            for one, words in zip(running, said, strict=True):
                if one.returncode:
                    raise NotBuilt(f"the C++ compiler failed:\n{words}")
            for stale in set(folder.glob("*.so")) - set(folder.glob(f"*-{source_hash()}.so")):
                stale.unlink(missing_ok=True)
            for path in made:
                path.replace(folder / path.name)
    except OSError as error:
        raise NotBuilt(f"the core cannot be built: {error}") from error


def build_for_this_machine(folder: Path | None = None) -> None:
    """Compile what this processor needs, in a third of the time."""
    build(folder, sets=())
    build(folder, sets=[instruction_set(folder)])


def instruction_set(folder: Path | None = None) -> int:
    """The best set of instructions of this processor, among those that there are options for.

    Raises:
        NotBuilt: what tells is not there.
    """
    return min(int(opened("features", folder).core_instruction_set()), len(SETS) - 1)


def opened(name: str, folder: Path | None = None) -> ctypes.CDLL:
    """A library made of the present sources.

    Raises:
        NotBuilt: it is not there, or cannot be loaded.
    """
    path = library_path(name, folder)
    if not path.exists():
        raise NotBuilt("it was not built, or of other sources")
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise NotBuilt(str(error)) from error
