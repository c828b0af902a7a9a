"""Build the source distribution and, from it, the wheel; look into both; install the wheel, and try it.

    python -m tests.package     # says what is wrong, or "1 source distribution and 1 wheel are complete"

The environment that the wheel is installed into has nothing else of this project: only the libraries that it needs are
lent to it. The examples run there twice, the second time without the compiled core.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import zipfile
from collections.abc import Sequence
from email import message_from_string
from pathlib import Path

ROOT = Path(__file__).parents[1]
EXAMPLES = {"own_constraint.py": ("20",), "robust_fit.py": (), "learn_to_match.py": ("5",)}
IN_SOURCES = ("LICENSE", "README.md", "pyproject.toml", "setup.py", "declarative/kernels/src/core.cpp")
IN_WHEEL = (
    "declarative/py.typed",
    "declarative/kernels/src/core.cpp",
    "problems/__init__.py",
    "experiments/__main__.py",
)
NEEDED = {"torch", "numpy", "scipy"}
WORD = "the compiled core of declarative is not there"


def run(*command: object, **options: object) -> subprocess.CompletedProcess[str]:
    """A command, whose output is kept, and shown if it fails."""
    done = subprocess.run([str(one) for one in command], capture_output=True, text=True, check=False, **options)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))} failed:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
    return done


def built(folder: Path) -> tuple[Path, Path]:
    """Source distribution and wheel, made from what git knows, so that nothing which happens to lie here helps."""
    checkout = folder / "checkout"
    run("git", "clone", "-q", ROOT, checkout)
    run(sys.executable, "-m", "build", "--outdir", folder / "dist", checkout)
    (sources,), (wheel,) = (folder / "dist").glob("*.tar.gz"), (folder / "dist").glob("*.whl")
    return sources, wheel


def missing(names: Sequence[str], wanted: Sequence[str]) -> list[str]:
    """What is wanted, and not there."""
    return [one for one in wanted if one not in names]


def look_into(sources: Path, wheel: Path) -> list[str]:
    """What is wrong with the contents and with what is said about them."""
    with tarfile.open(sources) as archive:
        top = sources.name.removesuffix(".tar.gz")
        held = [name.removeprefix(f"{top}/") for name in archive.getnames()]
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (place,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        said = message_from_string(archive.read(place).decode())
    wrong = [f"the source distribution lacks {name}" for name in missing(held, IN_SOURCES)]
    wrong += [f"the wheel lacks {name}" for name in missing(names, IN_WHEEL)]
    if not any(name.startswith("declarative/kernels/lib/core") for name in names):
        wrong.append("the wheel has no compiled core")
    rooms = ("declarative/", "problems/", "experiments/", "declarative_nodes-")
    wrong += [f"the wheel has {name}" for name in names if not name.startswith(rooms)]
    plain = [one for one in said.get_all("Requires-Dist") or [] if "extra ==" not in one]
    if {one.split(">")[0].strip() for one in plain} != NEEDED:
        wrong.append(f"the wheel needs {plain}")
    if not wheel.name.startswith("declarative_nodes-") or "-py3-none-" not in wheel.name:
        wrong.append(f"the wheel is called {wheel.name}")
    return wrong


def installed(wheel: Path, folder: Path) -> tuple[Path, Path]:
    """An environment's interpreter and its packages: the wheel, and a view of the libraries that it needs."""
    run(sys.executable, "-m", "venv", folder)
    python = folder / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "--no-deps", "--disable-pip-version-check", wheel)
    packages = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").stdout.strip())
    (packages / "lent.pth").write_text(sysconfig.get_path("purelib"))
    return python, packages


def try_examples(python: Path, folder: Path, environment: dict[str, str]) -> tuple[str, set[str]]:
    """Run the examples from a folder of their own: what they wrote to stderr, and which file the library is."""
    folder.mkdir()
    words = ""
    for name, arguments in EXAMPLES.items():
        shutil.copy(ROOT / "examples" / name, folder)
        words += run(python, name, *arguments, cwd=folder, env=environment).stderr
    asked = "import declarative, problems; print(declarative.__file__, problems.__file__)"
    where = run(python, "-c", asked, cwd=folder, env=environment)
    return words, set(where.stdout.split())


def main() -> int:
    """Print what is wrong; the exit status says whether something is."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        sources, wheel = built(folder)
        wrong = look_into(sources, wheel)
        python, packages = installed(wheel, folder / "environment")
        words, files = try_examples(python, folder / "with", environment)
        wrong += [f"{one} was used instead of the wheel" for one in files if not one.startswith(str(packages))]
        if WORD in words:
            wrong.append("the core of the wheel was not used")
        shutil.rmtree(packages / "declarative" / "kernels" / "lib")
        words, _ = try_examples(python, folder / "without", environment)
        if WORD not in words:
            wrong.append("without its core the library said nothing")
    print(*(wrong or ["1 source distribution and 1 wheel are complete"]), sep="\n")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
