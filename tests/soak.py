"""Long runs, for ``make soak``; the ordinary suite has small versions in ``test_soak_small.py``.

10,000 forward and backward passes with changing shapes, and the random problems of ``test_properties.py`` many times
over.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from declarative import Adaptive, DeclarativeNode
from problems import EntropicSimplex, OptimalTransport, QuadraticProgram, SimplexProjection, SphereProjection

PASSES = 10_000
EXAMPLES_FACTOR = 20
MEGABYTE = 2**20


def nodes() -> list[DeclarativeNode]:
    """Every way to solve and to differentiate, and one rule that remembers."""

    def half_square(x: Tensor, u: Tensor) -> Tensor:
        return (u - x).square().sum() / 2

    def plane(_: Tensor, u: Tensor) -> Tensor:
        return u.sum() - 1

    return [
        DeclarativeNode(half_square, plane, solver="newton", start=lambda x: torch.zeros_like(x)),
        DeclarativeNode(half_square, plane, solver=lambda x: x - (x.sum(-1, keepdim=True) - 1) / x.shape[-1]),
        DeclarativeNode(half_square, plane, lambda _, u: -u - 3, solver="newton", start=torch.zeros_like),
        SphereProjection(gradient=Adaptive(probe_every=3, keep=10)),
        SimplexProjection(),
        EntropicSimplex(0.5, gradient="curvature"),
        OptimalTransport(2.0),
        QuadraticProgram(),
    ]


def inputs(node: DeclarativeNode, number: int) -> tuple[Tensor, ...]:
    """Inputs whose shape changes with every call, and comes back after a while."""
    generator = torch.Generator().manual_seed(number % 60)
    batch, m = 1 + number % 5, 2 + number % 4

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    if isinstance(node, OptimalTransport):
        return (normal(batch, m, m + 1).requires_grad_(),)
    if isinstance(node, QuadraticProgram):
        rows = normal(batch, m + 1, m)
        return (
            torch.eye(m, dtype=torch.float64),
            normal(batch, m).requires_grad_(),
            None,
            None,
            rows,
            rows.new_ones(m + 1),
        )  # type: ignore[return-value]
    return (normal(batch, m).requires_grad_(),)


@dataclass(frozen=True)
class Reading:
    """What the process holds."""

    resident: int  # bytes of memory
    tensors: int  # alive
    objects: int  # that Python keeps track of


def read() -> Reading:
    gc.collect()
    objects = gc.get_objects()
    tensors = sum(1 for one in objects if type(one) is Tensor)  # isinstance would wake up what is lazy
    pages = int(Path("/proc/self/statm").read_text().split()[1]) if Path("/proc/self/statm").exists() else 0
    return Reading(pages * os.sysconf("SC_PAGE_SIZE"), tensors, len(objects))


def one_pass(node: DeclarativeNode, number: int) -> list[Tensor]:
    xs = inputs(node, number)
    y = node(*xs)
    wanted = [x for x in xs if x is not None and x.requires_grad]
    return [y.detach(), *torch.autograd.grad((y + 0.3).pow(3).sum(), wanted)]


def run(passes: int, warm_up: int) -> tuple[Reading, Reading]:
    """Many passes; what the process holds after the warm-up and at the end, and the same bits at both."""
    every = nodes()
    stateless = [node for node in every if not isinstance(node.gradient, Adaptive)]
    first = [one_pass(node, number) for number, node in enumerate(stateless)]
    for number in range(warm_up):
        one_pass(every[number % len(every)], number)
    before = read()
    for number in range(warm_up, passes):
        one_pass(every[number % len(every)], number)
        if number % 1_000 == 0:
            print(f"{number} passes: {read()}", flush=True)
    after = read()
    for number, (node, expected) in enumerate(zip(stateless, first, strict=True)):
        assert all(torch.equal(a, b) for a, b in zip(one_pass(node, number), expected, strict=True))
    return before, after


def test_ten_thousand_passes_leave_nothing_behind() -> None:
    torch.set_num_threads(1)
    before, after = run(PASSES, warm_up=4_000)  # until what is seen often has been recorded
    print(f"\n{PASSES} passes: {before} -> {after}")
    assert after.tensors <= before.tensors
    assert after.objects <= before.objects + 200
    assert after.resident <= before.resident + 16 * MEGABYTE


def test_caches_are_bounded_when_every_call_makes_a_node() -> None:
    """A node made in a loop must not be kept alive by anything, nor its functions."""
    torch.set_num_threads(1)
    x = torch.randn(2, 3, dtype=torch.float64)

    def make(number: int) -> None:
        node = DeclarativeNode(lambda x, u: (u - number * x).square().sum(), lambda _, u: u.sum() - 1, start=3)
        node(x)

    for number in range(200):
        make(number)
    before = read()
    for number in range(1_000):
        make(number)
    after = read()
    assert after.tensors <= before.tensors
    assert after.objects <= before.objects + 2_000
    assert after.resident <= before.resident + 16 * MEGABYTE


def arguments() -> Iterator[str]:
    yield from (sys.executable, "-m", "pytest", "-o", "addopts=", "-q", "tests/library/test_properties.py")


def test_random_problems_many_times_over() -> None:
    environment = {**os.environ, "EXAMPLES_FACTOR": str(EXAMPLES_FACTOR), "OMP_NUM_THREADS": "1"}
    root = Path(__file__).parent.parent
    done = subprocess.run(list(arguments()), cwd=root, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:]
