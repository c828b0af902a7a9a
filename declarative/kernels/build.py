"""Build the compiled core: one library for each set of instructions that processors have.

``python -m declarative.kernels`` does it by hand. This file imports nothing but the standard library, so that it can be
run while the package is being installed.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

SOURCES = Path(__file__).parent / "src"
FOLDER = Path(__file__).parent / "lib"
# No multiplication is fused with an addition: a result depends neither on the set of instructions nor on lanes.
FLAGS = (
    *("-std=c++20", "-O2", "-ftree-vectorize", "-ffp-contract=off", "-fno-math-errno", "-fvisibility=hidden"),
    *("-fPIC", "-shared", "-pthread", "-Wall", "-Wextra", "-Wno-psabi", "-Wno-ignored-attributes"),
)
SETS: tuple[tuple[str, ...], ...] = ((),)  # options for each set of instructions, in the order of core_instruction_set
if platform.machine().lower() in ("x86_64", "amd64"):
    SETS += (("-mavx2",), ("-mavx512f", "-mavx512vl", "-mavx512dq", "-mprefer-vector-width=512"))


class NotBuilt(RuntimeError):  # noqa: N818
    """There is no core: no compiler, or it failed."""


def source_hash() -> str:
    """What the core is made of: a library that is made of something else is stale."""
    digest = hashlib.blake2b(repr((FLAGS, SETS)).encode(), digest_size=16)
    for path in sorted(SOURCES.iterdir()):
        digest.update(path.name.encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def library_path(instruction_set: int, folder: Path = FOLDER) -> Path:
    """Where the library for a set of instructions is."""
    return folder / f"core{instruction_set}.so"


def compiler() -> str | None:
    """The C++ compiler: what ``CXX`` says, or g++ or clang++; None if there is none."""
    candidates = shlex.split(os.environ.get("CXX", ""))[:1] or ["g++", "clang++", "c++"]
    return next((found for name in candidates if (found := shutil.which(name))), None)


def command(options: tuple[str, ...], to: Path) -> list[str]:
    """The command that makes a library."""
    found = compiler()
    if found is None:
        raise NotBuilt("there is no C++ compiler (g++ or clang++, or what CXX is set to)")
    return [found, *FLAGS, *options, f'-DCORE_HASH="{source_hash()}"', str(SOURCES / "core.cpp"), "-o", str(to)]


def build(folder: Path = FOLDER) -> None:
    """Compile the libraries, side by side; each takes its place only when it is whole.

    Raises:
        NotBuilt: there is no compiler, it failed, or there is no place for what it makes.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as room:
            made = [library_path(i, Path(room)) for i in range(len(SETS))]
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
            commands = [command(options, path) for options, path in zip(SETS, made, strict=True)]
            running = [subprocess.Popen(one, **pipes) for one in commands]  # type: ignore[call-overload]
            said = [one.communicate()[0] for one in running]
            for one, words in zip(running, said, strict=True):
                if one.returncode:
                    raise NotBuilt(f"the C++ compiler failed:\n{words}")
            for path in made:
                path.replace(folder / path.name)
    except OSError as error:
        raise NotBuilt(f"the core cannot be built: {error}") from error
