"""An interruption in the middle of a solution leaves the process usable."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys

import pytest
import torch
from torch import Tensor

from declarative import DeclarativeNode, check
from tests.support.faults import AtCall, X, each_solver, nothing_changes, surroundings
from tests.support.helpers import case, half_square, unit


def interrupt(_: Tensor) -> Tensor:
    raise KeyboardInterrupt


@pytest.mark.parametrize("n", [1, 3, 7])
@pytest.mark.parametrize("surrounded", [False, True])
@each_solver
def test_an_interruption_leaves_everything_usable(solver, n, surrounded):
    node = DeclarativeNode(AtCall(half_square, n, interrupt), unit, solver=solver, start=torch.ones(3))
    with contextlib.ExitStack() as stack:
        stack.enter_context(nothing_changes())
        if surrounded:  # what the node leaves for the time of a solution must be entered again
            stack.enter_context(torch.autograd.graph.save_on_cpu())
            stack.enter_context(torch.autocast("cpu", dtype=torch.bfloat16))
            within = surroundings()[:6]
        with pytest.raises(KeyboardInterrupt):
            node(X.clone().requires_grad_())
        assert not surrounded or surroundings()[:6] == within


def test_an_interrupted_transform_leaves_everything_usable():
    node = DeclarativeNode(AtCall(half_square, 4, interrupt), unit, solver="newton", start=torch.ones(3))
    with nothing_changes(), pytest.raises(KeyboardInterrupt):
        torch.func.jacrev(torch.func.grad(lambda x: node(x).sum()))(X)


def test_an_interrupted_check_is_interrupted():
    node = DeclarativeNode(AtCall(half_square, 20, interrupt), unit, solver="newton", start=torch.ones(3))
    with nothing_changes(), pytest.raises(KeyboardInterrupt):
        check(node, X)


CHILD = """
import signal, torch
from declarative import DeclarativeNode
signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's background job ignores
torch.set_num_threads(1)
def objective(x, u):
    print("solving", flush=True)
    return (u - x).square().sum() + 1e-9 * u.pow(4).sum()
x = torch.tensor([[3.0, 4.0]], dtype=torch.float64, requires_grad=True)
for solver in ("newton", "scipy"):
    slow = DeclarativeNode(objective, lambda _, u: u.square().sum() - 1, solver=solver, start=torch.ones(2))
    try:
        while True:
            slow(x)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
node = DeclarativeNode(lambda x, u: (u - x).square().sum(), lambda _, u: u.square().sum() - 1, start=torch.ones(2))
(g,) = torch.autograd.grad(node(x)[0, 0], x)
print("answer", g.tolist()[0][0], torch.is_grad_enabled(), torch.get_default_dtype(), flush=True)
"""


@pytest.mark.skipif(os.name == "nt", reason="signals are another matter there")
def test_a_real_interruption_of_each_solver():
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert child.stdout is not None
        for _ in range(2):
            for _ in range(60):  # well inside a solution
                assert child.stdout.readline() == "solving\n"
            child.send_signal(signal.SIGINT)
            while child.stdout.readline() == "solving\n":
                pass
        out, err = child.communicate(timeout=60)
    finally:
        child.kill()
    assert child.returncode == 0, err
    words = out.splitlines()[-1].split()
    assert words[0] == "answer"
    assert abs(float(words[1]) - 0.128) < 1e-12
    assert words[2:] == ["True", "torch.float32"]


def test_an_ordinary_call_changes_nothing():
    with nothing_changes():
        for name in ("sphere", "simplex", "ball"):
            problem = case(name)
            for solver in ("closed form", "newton", "scipy"):
                xs = problem.xs(2)
                torch.autograd.grad(problem.node(solver)(*xs).sum(), xs)
