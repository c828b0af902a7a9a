"""The gradient of every problem of the gallery is that of finite differences of its solutions."""

from __future__ import annotations

import itertools
import re
import runpy
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from declarative import DeclarativeNode, Smoothed

DOCS = Path(__file__).parents[2] / "docs"
PAGE, PICTURES = (DOCS / "gallery.md").read_text(), DOCS / "pictures"
BLOCKS = re.findall(r"^## (.*?)$.*?```python\n(.*?)```", PAGE, re.DOTALL | re.MULTILINE)
STEP = 1e-5
DIRECTIONS = 2  # for each input


@pytest.fixture(scope="module")
def problems() -> dict[str, tuple[Callable[..., Tensor], Sequence[Tensor]]]:
    """By name, from the blocks in order."""
    namespace: dict[str, object] = {}
    found = {}
    try:
        for name, code in BLOCKS:
            exec(compile(code, name, "exec"), namespace)
            found[name] = namespace["problem"], namespace["inputs"]
    finally:
        torch.set_default_dtype(torch.float32)
    return found


@pytest.fixture
def _double():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def smooth(problem: object) -> bool:
    return isinstance(problem, DeclarativeNode) and isinstance(problem.gradient, Smoothed)


def test_there_are_twenty_and_each_is_short():
    assert len(BLOCKS) == 20
    for name, code in BLOCKS:
        assert len(code.splitlines()) <= 25, name


@pytest.mark.parametrize("name", [name for name, _ in BLOCKS])
@pytest.mark.usefixtures("_double")
def test_the_gradient_is_that_of_finite_differences(name, problems):
    problem, inputs = problems[name]
    xs = [x.clone().requires_grad_() for x in inputs]
    y = problem(*xs)
    v = torch.randn(y.shape, generator=torch.Generator().manual_seed(0))
    grads = torch.autograd.grad(y, xs, v)
    reference = central(problem) if smooth(problem) else problem
    assert any(g.abs().max() > 1e-3 for g in grads)
    for i, j in itertools.product(range(len(xs)), range(DIRECTIONS)):
        direction = torch.randn(xs[i].shape, generator=torch.Generator().manual_seed(1 + j))
        ends = [
            (reference(*(x + sign * STEP * direction if x is inputs[i] else x for x in inputs)) * v).sum().detach()
            for sign in (1, -1)
        ]
        expected = float(ends[0] - ends[1]) / (2 * STEP)
        assert float((grads[i] * direction).sum()) == pytest.approx(expected, rel=2e-5, abs=2e-6)


def central(problem: DeclarativeNode) -> DeclarativeNode:
    """The minimiser with a barrier, stated as a problem of its own."""
    barrier, functions = problem.gradient.barrier, problem.spec.plan.problem
    return DeclarativeNode(
        lambda cost, u: functions.objective(cost, u) - barrier * u.log().sum(),
        functions.equality.written,
        start=torch.full((5,), 0.4),
    )


def test_every_problem_has_its_picture(monkeypatch):
    monkeypatch.syspath_prepend(str(PICTURES))
    pictures = runpy.run_path(str(PICTURES / "gallery.py"))["PICTURES"]
    assert list(pictures) == [name for name, _ in BLOCKS]
