"""How kernels are compiled: what is not called is not, and what several processes need is by one of them."""

import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from declarative.linear import file_lock
from declarative.linear.file_lock import one_process
from declarative.linear.jit import INSTALLED

COMPILED = pytest.mark.skipif(not INSTALLED, reason="Numba is not installed")

DENSE = """
import torch
from declarative import DeclarativeNode
from declarative.linear import dense_kernel
from declarative.linear.sparse import elimination, substitution
from declarative.recording.tape import machine, systems
from declarative.solvers.newton.compiled import filter as filter_
from declarative.solvers.newton.compiled import iteration, loop, steps

node = DeclarativeNode(
    lambda x, u: (u - x).square().sum(), lambda x, u: u.sum() - 1, lambda x, u: -u, start=4, record=True
)
x = torch.randn(10, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
torch.autograd.grad(node(x)[:, 0].sum(), x)
for kernel in (steps.solve_dense_steps, loop.iterate, machine.advance_beside, dense_kernel.solve_one_active):
    assert len(kernel.overloads) == 1, kernel
unused = [steps.solve_sparse_steps, machine.advance_alone, systems.solve_sparse]
unused += [elimination.factorise_alone, elimination.factorise_beside, substitution.solve_alone]
unused += [steps.prepare_all, iteration.move_all, filter_.judge_all, steps.correct_all]
for kernel in unused:
    assert not kernel.overloads, kernel
"""


@COMPILED
def test_a_recorded_dense_call_compiles_what_it_uses_and_once():
    subprocess.run([sys.executable, "-W", "error", "-c", DENSE], check=True, timeout=600)


@COMPILED
def test_a_kernel_at_an_address_is_called_with_its_own_types():
    import numba

    from declarative.linear.sparse.elimination import factorise

    @numba.njit
    def wrong(address, x):
        factorise(address, (x, x))

    with pytest.raises(numba.TypingError, match="is called with"):
        wrong(0, np.empty(0))


def enter(path: Path, entered: threading.Event) -> threading.Thread:
    def work() -> None:
        with one_process(path):
            entered.set()

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_others_wait_for_as_long_as_a_file_is_held(tmp_path: Path):
    entered = threading.Event()
    with one_process(tmp_path / "made" / "a.lock"):
        thread = enter(tmp_path / "made" / "a.lock", entered)
        waits = not entered.wait(0.3)
    thread.join(10)
    assert entered.is_set()
    assert waits or sys.platform == "win32"


def test_nobody_waits_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(file_lock, "PATIENCE", 0.2)
    entered = threading.Event()
    with one_process(tmp_path / "a.lock"):
        thread = enter(tmp_path / "a.lock", entered)
        assert entered.wait(10)
    thread.join(10)


def test_nobody_waits_for_the_dead(tmp_path: Path):
    code = "import os, pathlib, sys; from declarative.linear.file_lock import one_process\n"
    code += "one_process(pathlib.Path(sys.argv[1])).__enter__(); os._exit(0)"
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "a.lock")], check=True, timeout=300)
    entered = threading.Event()
    thread = enter(tmp_path / "a.lock", entered)
    assert entered.wait(5)
    thread.join(10)


def test_without_a_place_for_the_file_nobody_waits(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with one_process(tmp_path / "file" / "a.lock"), one_process(tmp_path / "file" / "a.lock"):
        pass


@pytest.mark.skipif(not INSTALLED, reason="the kernels need Numba")
@pytest.mark.parametrize("gone", [ModuleNotFoundError, AttributeError])
def test_kernels_kept_by_a_version_with_other_modules_are_compiled_anew(tmp_path, gone):
    """Numba reads what is on disk, classes of the project among it, before it compares the stamp."""
    from declarative.linear.numba_internals import keep

    def index_of_another_version():
        raise gone("declarative.linear.elsewhere")

    kept = SimpleNamespace(_source_stamp="source", _load_index=index_of_another_version)
    cache = SimpleNamespace(_cache_file=kept, cache_path=tmp_path)
    kernel = SimpleNamespace(_cache=cache, py_func=keep, compile=lambda signature: ("compiled", signature))
    keep(kernel, "stamp")
    assert kept._load_index() == {}
    assert kept._source_stamp == ("source", "stamp")
    assert kernel.compile("double") == ("compiled", "double")
