"""The compiled core: what it is told, what it refuses, and that neighbours and threads change no bit."""

import os
import re
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

import problems.active_set
from declarative import DeclarativeNode
from declarative.kernels import build, kinds, library
from declarative.kernels.library import CoreError, available, beside
from declarative.kernels.machine import Machine, Program, Systems
from declarative.kernels.plan import Plan
from declarative.linear import dense_layout
from declarative.linear.sparse import Pattern, SparseKKT, layout, ldl
from declarative.solvers.newton import parameters
from declarative.solvers.newton.compiled.arrays import Shape
from tests.support import core_fuzz
from tests.support.helpers import DOUBLE
from tests.support.sparse_problems import PROBLEMS

CORE = pytest.mark.skipif(not available(), reason="there is no compiled core")
COMPILER = pytest.mark.skipif(build.compiler() is None, reason="there is no C++ compiler")
MODULES = {
    "dense": dense_layout,
    "spectrum": dense_layout,
    "ldl": ldl,
    "newton": parameters,
    "active_set": problems.active_set,
}


def source(name: str) -> str:
    return (build.SOURCES / name).read_text()


# What is said twice.


def test_constants_are_those_of_the_methods_in_torch():
    compared = 0
    for name, text in re.findall(
        r"namespace (?!kernels)(\w+) \{\n(.*?)\}  // namespace \1", source("constants.hpp"), re.DOTALL
    ):
        for constant, value in re.findall(r"constexpr \w+ (\w+)(?:\[2\])? = ([^;]+);", text):
            expected = getattr(layout if constant == "SOLVED" else MODULES[name], constant, None)
            if expected is None:
                continue  # torch has another way
            numbers = [float.fromhex(x) if "x" in x else float(x) for x in value.strip("{}").split(", ")]
            assert numbers == list(np.atleast_1d(expected)), constant
            compared += 1
    assert compared > 40


def test_kinds_of_instructions_have_the_same_numbers():
    names = re.search(r"enum Kind : Count \{(.*?)\};", source("tape.hpp"), re.DOTALL).group(1)
    for number, name in enumerate(re.findall(r"\w+", names)[:-1]):
        assert getattr(kinds, name) == number


def test_functions_are_called_with_what_they_take():
    letters = {"Count": "i", "double": "d"}
    declared = re.findall(r"EXPORT ([\w ]+\*?) (\w+)\(([^)]*)\)", source("core.cpp"))
    found = {}
    for _, name, arguments in declared:
        types = [" ".join(one.split()[:-1]) for one in arguments.split(",") if one.strip()]
        found[name] = "".join("p" if "*" in one else letters[one] for one in types)
    for name in ("core_lanes", *library.FREED):
        del found[name]
    assert found == library.SIGNATURES | library.SIZES


# What is refused.


def program(**changes) -> Program:
    """x + 2 of one number."""
    one, none = np.zeros(1, dtype=np.int64), np.zeros(0, dtype=np.int64)
    x = Program(
        kinds=one + kinds.ADD,
        ends=one + 1,
        prologue=0,
        a=one,
        b=one + 1,
        c=one,
        d=one + 2,
        size=3,
        constants=np.full(1, 2.0),
        own=one,
        shared=none,
        outputs=one + 2,
        offsets=np.arange(2),
        own_width=1,
        shared_width=0,
    )
    return x._replace(**changes)


def numbers(*x):
    return np.array(x, dtype=np.int64)


@CORE
@pytest.mark.parametrize("count", [0, 1, 5, 17])
def test_a_tape_by_hand_is_run(count):
    own = torch.arange(count, dtype=DOUBLE).reshape(-1, 1)
    for lanes in (1, beside()):
        assert torch.equal(Machine(program()).run(own, own[:0, 0], lanes), own.flatten() + 2)


MALFORMED = {
    "unknown kind": {"kinds": numbers(42)},
    "negative kind": {"kinds": numbers(-1)},
    "unknown register": {"a": numbers(3)},
    "unwritten register": {"a": numbers(2)},
    "negative register": {"b": numbers(-1)},
    "too large a register": {"b": numbers(2**32)},
    "written input": {"d": numbers(1)},
    "written nowhere": {"d": numbers(3)},
    "too few registers": {"size": 1},
    "far too many registers": {"size": 2**40},
    "too few runs": {"kinds": numbers(), "ends": numbers()},
    "runs that end too late": {"ends": numbers(2)},
    "runs that end before they begin": {"kinds": numbers(0, 0, 0), "ends": numbers(1, 0, 1)},
    "an input that is not there": {"own": numbers(1)},
    "an output that is not there": {"outputs": numbers(3)},
    "outputs that end too late": {"offsets": numbers(0, 2)},
    "no outputs at all": {"offsets": numbers()},
    "a prologue that reads what is a problem's own": {"prologue": 1},
    "a prologue without an end": {"prologue": 2},
    "a prologue that ends before it begins": {"prologue": -1},
    "a system that is not there": {"kinds": numbers(kinds.READ)},
    "a solution that is not there": {"kinds": numbers(kinds.SOLVED)},
}


@CORE
@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_tape_is_refused(name):
    with pytest.raises(CoreError, match=r"tape|place"):
        Machine(program(**MALFORMED[name]))


@CORE
def test_what_the_prologue_has_found_is_not_written_again():
    """4 = 2 + 2 once, and x + 4 for each problem: in its place, or in another."""
    twice = {name: numbers(*x) for name, x in (("a", (0, 1)), ("b", (0, 2)), ("c", (0, 0)))}
    x = program(kinds=numbers(0, 0), ends=numbers(1, 2), prologue=1, size=4, **twice)
    machine = Machine(x._replace(d=numbers(2, 3), outputs=numbers(3)))
    own = torch.arange(20, dtype=DOUBLE).reshape(-1, 1)
    assert torch.equal(machine.run(own, own[:0, 0], beside()), own.flatten() + 4)
    with pytest.raises(CoreError, match="written again"):
        Machine(x._replace(d=numbers(2, 2), outputs=numbers(2)))


@CORE
def test_a_system_of_another_size_is_refused():
    x = program(kinds=numbers(kinds.READ, kinds.SOLVED), ends=numbers(1, 2))
    pair = {"a": numbers(0, 0), "b": numbers(0, 0), "c": numbers(0, 0), "d": numbers(2, 2)}
    with pytest.raises(CoreError, match="another size"):
        Machine(x._replace(**pair), Systems.dense(2, 1))


@CORE
def test_a_tape_is_not_run_on_other_inputs():
    with pytest.raises(CoreError, match="another length"):
        Machine(program()).run(torch.zeros(3, 2, dtype=DOUBLE), torch.zeros(0, dtype=DOUBLE), 1)


def arrays_of_plan(pattern):
    symbolic = SparseKKT.of(pattern, kernel="core").symbolic
    parts = symbolic.pair, symbolic.is_constraint, symbolic.starts, symbolic.rows, symbolic.columns
    return [symbolic.place, symbolic.slots, *symbolic.coordinates, *parts, *symbolic.by_rows]


ARROW = Pattern.given(torch.eye(6).index_fill(0, torch.tensor(5), 1.0), torch.ones(2, 6), 6, 2)


@CORE
def test_a_malformed_plan_is_refused_or_reads_and_writes_where_it_may():
    """Each entry of each array in turn is another; most of that is seen, and the rest is another matrix."""
    refused = 0
    given = arrays_of_plan(ARROW)
    for i, x in enumerate(given):
        for j in range(len(x)):
            arrays = [part.copy() for part in given]
            arrays[i][j] = ~arrays[i][j] if x.dtype == bool else 10_000
            try:
                Plan(*arrays)
            except CoreError:
                refused += 1
            else:
                assert x.dtype == bool
    assert refused >= sum(len(x) for x in given if x.dtype != bool)


@CORE
def test_entries_of_matrices_are_where_they_may_be():
    rows, columns, diagonal = numbers(0), numbers(1), numbers(0, 2)
    assert Shape(2, 1, 0, rows, columns, diagonal, 3).address
    for wrong in ((rows + 1, columns, diagonal), (rows, columns + 1, diagonal), (rows, columns, diagonal + 1)):
        with pytest.raises(CoreError, match=r"is in no|is not stored"):
            Shape(2, 1, 0, *wrong, 3)


# What changes no bit.


def wavy(**options):
    """Problems of which some need shifts, corrections and shorter steps."""
    weights = torch.randn(9, 9, dtype=DOUBLE, generator=torch.Generator().manual_seed(1))
    return DeclarativeNode(
        lambda x, u: 3 * (u * x).sin().sum() + (u - x).pow(4).sum() / 10 + (u[1:] * u[:-1]).sum() / 5,
        lambda x, u: (u * u).sum() - 4 if "structure" not in options else u[::3] - u[1::3].sin(),  # noqa: ARG005
        lambda _, u: weights @ u - 3 if "structure" not in options else -u - 3,
        start=torch.full((9,), 0.6, dtype=DOUBLE),
        solver="newton",
        record=True,
        on_failure="mask",
        **options,
    )


def x_of(count):
    return torch.randn(count, 9, dtype=DOUBLE, generator=torch.Generator().manual_seed(0))


def solved(node, x):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        y = node.solve(x)
    return [y.y.nan_to_num(7.0), y.multipliers.nan_to_num(7.0), y.iterations.double(), y.converged.double()]


@CORE
@pytest.mark.parametrize("options", [{}, {"structure": "sparse"}])
def test_a_problem_does_not_depend_on_its_neighbours(options):
    x = x_of(21)
    together = solved(wavy(**options), x)
    alone = [torch.cat(parts) for parts in zip(*(solved(wavy(**options), one) for one in x.split(1)), strict=True)]
    assert all(map(torch.equal, together, alone))
    assert together[3].sum() > 10


@CORE
def test_sparse_systems_do_not_depend_on_their_neighbours():
    """Singular and wild ones among them."""
    kkt = SparseKKT.of(Pattern.given(torch.eye(6), torch.ones(2, 6), 6, 2), kernel="core")
    draw = torch.Generator().manual_seed(0)
    hessian, jacobian, right = (torch.randn(19, n, dtype=DOUBLE, generator=draw) for n in (6, 12, 8))
    hessian[3], hessian[5], jacobian[8, 6:], hessian[12, 2] = 0.0, 1e-9, 0.0, torch.inf
    factor = kkt.factorise(hessian, jacobian)
    together = [*factor.solve_stacked(right, rescue=False), factor.inertia()]
    for i in range(19):
        factor = kkt.factorise(hessian[i : i + 1], jacobian[i : i + 1])
        alone = [*factor.solve_stacked(right[i : i + 1], rescue=False), factor.inertia()]
        for one, other in zip(together, alone, strict=True):
            assert torch.equal(one[i].double().nan_to_num(7.0), other[0].double().nan_to_num(7.0)), i


@pytest.fixture
def three_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@CORE
@pytest.mark.usefixtures("three_threads")
@pytest.mark.parametrize("options", [{}, {"structure": "sparse"}])
def test_threads_change_no_bit(options):
    x, node = x_of(300), wavy(**options)
    shared = solved(node, x)
    if Path("/proc/self/task").exists():
        assert len(list(Path("/proc/self/task").iterdir())) >= 3
    torch.set_num_threads(1)
    assert all(map(torch.equal, shared, solved(node, x)))


@CORE
@pytest.mark.usefixtures("three_threads")
def test_threads_of_python_do_not_disturb_each_other():
    x, node = x_of(200), wavy()
    expected, found = solved(node, x), []
    threads = [threading.Thread(target=lambda: found.append(node.solve(x).y.nan_to_num(7.0))) for _ in range(4)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(found) == 4
    assert all(torch.equal(y, expected[0]) for y in found)


FORKED = """
import os, sys
import torch
import declarative.kernels.machine as machine
import declarative.solvers.newton.compiled.batch as batch
from tests.library.test_core import solved, wavy, x_of
torch.set_num_threads(1)  # torch's own threads do not survive a fork
machine.threads = batch.threads = lambda: 3
node, x = wavy(), x_of(200)
expected = solved(node, x)
child = os.fork()
if not child:
    same = all(map(torch.equal, expected, solved(node, x)))
    tasks = len(os.listdir("/proc/self/task"))
    os._exit(0 if same and tasks >= 3 else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@CORE
@pytest.mark.skipif(sys.platform != "linux", reason="threads are counted, and processes forked")
def test_a_fork_has_threads_of_its_own():
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", FORKED], check=True, timeout=100, cwd=root, env=environment)


# How it is built.


def test_without_a_compiler_there_is_no_core_and_one_word(monkeypatch, tmp_path):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(build.NotBuilt, match="no C\\+\\+ compiler"):
        build.build(tmp_path)
    monkeypatch.setattr(build, "FOLDER", tmp_path)
    library._library.cache_clear()
    try:
        with pytest.warns(RuntimeWarning, match="compiled core"):
            assert not available()
        assert not available()  # without another word
    finally:
        library._library.cache_clear()


def test_without_the_core_solutions_and_gradients_are_the_same(monkeypatch):
    def found():
        x = x_of(6).requires_grad_()
        functions = lambda x, u: (u - x).square().sum(), lambda _, u: u.sum() - 1, lambda _, u: -u
        y = DeclarativeNode(*functions, start=9, record=True)(x)
        return y, *torch.autograd.grad(y[:, 0].sum(), x)

    with_core = found()
    for module in ("recording.cache", "solvers.newton.compiled.batch", "linear.dense_layout", "linear.sparse.kkt"):
        monkeypatch.setattr(f"declarative.{module}.available", lambda: False)
    for one, other in zip(with_core, found(), strict=True):
        assert torch.allclose(one, other, rtol=1e-9, atol=1e-10)


def test_what_is_made_of_other_sources_is_not_loaded(monkeypatch, tmp_path):
    monkeypatch.setattr(build, "SOURCES", tmp_path)
    build.source_hash.cache_clear()
    try:
        (tmp_path / "core.cpp").write_text("// another")
        with pytest.raises(build.NotBuilt, match="other sources"):
            build.opened("features")
    finally:
        build.source_hash.cache_clear()


@COMPILER
def test_a_compiler_that_fails_is_heard(monkeypatch, tmp_path):
    (tmp_path / "sources").mkdir()
    (tmp_path / "sources" / "features.cpp").write_text("this is no C++")
    monkeypatch.setattr(build, "SOURCES", tmp_path / "sources")
    build.source_hash.cache_clear()
    try:
        with pytest.raises(build.NotBuilt, match=r"this is no C\+\+"):
            build.build(tmp_path / "lib", sets=())
    finally:
        build.source_hash.cache_clear()
    assert not list((tmp_path / "lib").glob("*.so"))


# Under the eyes of sanitizers.


@COMPILER
@CORE
@pytest.mark.skipif(sys.platform != "linux", reason="the sanitizer is put before the interpreter")
def test_whatever_it_is_told_it_reads_and_writes_where_it_may(tmp_path):
    """Random tapes, plans, shapes and numbers, malformed ones among them; addresses and undefined behaviour watched."""
    made = tmp_path / "core.so"
    options = ("-O1", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    command = build.command("core.cpp", options, made)
    if subprocess.run(command, capture_output=True, text=True).returncode:
        pytest.skip("the compiler has no sanitizers")
    runtime = [
        subprocess.run(
            [command[0], f"-print-file-name={name}"], capture_output=True, text=True, check=True
        ).stdout.strip()
        for name in ("libasan.so", "libstdc++.so")  # which throws, and is not there yet when the first one looks for it
    ]
    patterns = [ARROW, *(problem.pattern() for problem in PROBLEMS)]
    arrays = {f"{i}_{j}": x for i, plan in enumerate(map(arrays_of_plan, patterns)) for j, x in enumerate(plan)}
    np.savez(tmp_path / "plans.npz", **arrays)
    watched = "detect_leaks=0:allocator_may_return_null=1"
    preloaded = " ".join(runtime).replace("\n", "")
    environment = {**os.environ, "LD_PRELOAD": preloaded, "ASAN_OPTIONS": watched, "OMP_NUM_THREADS": "1"}
    run = subprocess.run(
        [sys.executable, core_fuzz.__file__, str(made), str(tmp_path / "plans.npz"), "300"],
        capture_output=True,
        text=True,
        env=environment,
        timeout=600,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    done, refused = map(int, run.stdout.split())
    assert done > 2000
    assert refused > 500
