"""The package as it is installed: its core for every set of instructions, or none where there is no compiler."""

import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from declarative.kernels import build
from declarative.kernels.library import available

ROOT = Path(__file__).parents[2]
SOURCES = ("declarative", "problems", "experiments", "pyproject.toml", "setup.py", "README.md", "LICENSE")
pytestmark = pytest.mark.skipif(importlib.util.find_spec("setuptools") is None, reason="setuptools is not installed")

SOLVED = """
import sys
import torch
from declarative import DeclarativeNode
from declarative.kernels import build, library
from problems import OptimalTransport, QuadraticProgram

chosen = int(sys.argv[1])
build.instruction_set = lambda folder=None: chosen
draw = torch.Generator().manual_seed(0)
random = lambda *shape: torch.randn(*shape, dtype=torch.float64, generator=draw)
wavy = (lambda x, u: (u * x).sin().sum() + (u - x).pow(4).sum(), lambda x, u: u[::3].exp() - 1 - u[1::3])
x = random(19, 24)
nodes = [DeclarativeNode(*wavy, lambda x, u: -u - 1, start=24, record=True, structure=s) for s in ("dense", "sparse")]
found = [node(x) for node in nodes]
Q, G = torch.eye(24).double().expand(19, 24, 24), random(19, 7, 24)
found.append(QuadraticProgram()(Q, x, None, None, G, x[:, :7] ** 2))
found.append(OptimalTransport(5.0)(random(3, 7, 9)))
print(library.available() and library.beside(), *(float(part).hex() for y in found for part in y.flatten()))
"""


def wheel(folder: Path, **environment: str) -> Path:
    """The package, built in a copy of its sources and unpacked."""
    for name in SOURCES:
        path, to = ROOT / name, folder / "sources" / name
        ignored = shutil.ignore_patterns("__pycache__", "lib")
        to.parent.mkdir(exist_ok=True)
        shutil.copytree(path, to, ignore=ignored) if path.is_dir() else shutil.copy(path, to)
    command = [sys.executable, "-m", "pip", "wheel", ".", "--no-build-isolation", "--no-deps", "--wheel-dir", ".."]
    subprocess.run(
        command, check=True, cwd=folder / "sources", env={**os.environ, **environment}, capture_output=True, timeout=900
    )
    (made,) = folder.glob("*.whl")
    with zipfile.ZipFile(made) as file:
        file.extractall(folder / "installed")
    return made


def solved(folder: Path, instruction_set: int) -> tuple[list[str], str]:
    """What the installed package finds, and what it says."""
    run = subprocess.run(
        [sys.executable, "-c", SOLVED, str(instruction_set)],
        check=True,
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder / "installed"), "OMP_NUM_THREADS": "1"},
        timeout=300,
    )
    return run.stdout.split(), run.stderr


@pytest.mark.skipif(not available(), reason="there is no compiled core")
def test_a_wheel_gives_the_same_bits_with_every_set_of_instructions(tmp_path: Path):
    made = wheel(tmp_path)
    assert made.name.split("-")[-3:-1] == ["py3", "none"]
    assert platform.machine() in made.name
    libraries = {path.name.partition("-")[0] for path in (tmp_path / "installed").rglob("*.so")}
    assert libraries == {"features", *(f"core{i}" for i in range(len(build.SETS)))}
    found = [solved(tmp_path, i) for i in range(build.instruction_set() + 1)]
    assert not any(words for _, words in found)
    assert all(numbers[1:] == found[0][0][1:] for (numbers, _) in found)
    assert len(found[0][0]) > 1000


def test_without_a_compiler_the_rest_is_installed_and_says_so_once(tmp_path: Path):
    wheel(tmp_path, CXX="no-such-compiler")
    assert not list((tmp_path / "installed").rglob("*.so"))
    (first, *numbers), words = solved(tmp_path, 0)
    assert first == "False"
    assert words.count("the compiled core of declarative is not there") == 1
    if available():
        with_core = subprocess.run(
            [sys.executable, "-c", SOLVED, str(build.instruction_set())],
            check=True,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        ).stdout.split()[1:]
        assert len(numbers) == len(with_core)
        for one, other in zip(numbers, with_core, strict=True):
            assert float.fromhex(one) == pytest.approx(float.fromhex(other), rel=1e-7, abs=1e-9)
