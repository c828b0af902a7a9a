"""The gradient of every problem of the gallery is that of finite differences of its solutions."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from declarative import DeclarativeNode, Smoothed

PAGE = (Path(__file__).parents[2] / "docs" / "gallery.md").read_text()
BLOCKS = re.findall(r"^## (.*?)$.*?```python\n(.*?)```", PAGE, re.DOTALL | re.MULTILINE)
STEP = 1e-5


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
    if smooth(problem):
        expected = [central_slope(problem, x, v) for x in inputs]
    else:
        expected = [slope(problem, inputs, i, v) for i in range(len(xs))]
    assert any(g.abs().max() > 1e-3 for g in grads)
    for found, reference in zip(grads, expected, strict=True):
        assert (found - reference).abs().max() <= 2e-5 * max(1.0, float(reference.abs().max()))


def slope(problem: Callable[..., Tensor], inputs: Sequence[Tensor], i: int, v: Tensor) -> Tensor:
    """Of v'y, by central differences, entry by entry."""
    result = torch.zeros_like(inputs[i])
    for place in range(result.numel()):
        unit = torch.zeros(result.numel())
        unit[place] = STEP
        ends = []
        for sign in (1, -1):
            moved = [x + sign * unit.view(x.shape) if j == i else x for j, x in enumerate(inputs)]
            ends.append(float((problem(*moved) * v).sum().detach()))
        result.view(-1)[place] = (ends[0] - ends[1]) / (2 * STEP)
    return result


def central_slope(problem: DeclarativeNode, cost: Tensor, v: Tensor) -> Tensor:
    """The same for the minimiser with a barrier, stated as a problem of its own."""
    barrier = problem.gradient.barrier
    functions = problem._spec.plan.problem
    soft = DeclarativeNode(
        lambda cost, u: functions.objective(cost, u) - barrier * u.log().sum(),
        functions.equality.written,
        start=torch.full((cost.shape[-1],), 0.4),
    )
    return slope(soft, [cost], 0, v)
