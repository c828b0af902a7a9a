"""Which problem, how large, how long: time and memory by size and structure, each in a process of its own.

``python -m experiments sizes`` prints the table of the documentation, for the machine that it runs on.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

import torch
from torch import Tensor

from declarative import DeclarativeNode
from problems import EntropicSimplex, OptimalTransport, QuadraticProgram

from ..shared.memory import peak, reset_peak
from ..shared.processes import output_of
from ..shared.timing import timed

REPEATS = 3


def normal(batch: int, size: int) -> tuple[Tensor, ...]:
    """One input of that size."""
    return (torch.randn(batch, size, dtype=torch.float64),)


def dense(size: int) -> DeclarativeNode:
    """Every unknown meets every other, one curved equality."""
    return DeclarativeNode(
        lambda x, u: (u - x).square().sum() / 2 + u.sum() ** 4 / size**4,
        lambda _, u: (u.square().sum() - 1) / 2,
        start=size,
    )


def bounded(size: int) -> DeclarativeNode:
    """The same with bounds."""
    return DeclarativeNode(
        lambda x, u: (u - x).square().sum() / 2 + u.sum() ** 4 / size**4,
        lambda _, u: u.sum() - 1,
        bounds=(-1, 1),
        start=size,
    )


def chain(size: int) -> DeclarativeNode:
    """Every unknown meets its neighbours, with an inequality for each pair."""
    return DeclarativeNode(
        lambda x, u: (u - x).square().sum() / 2, inequality=lambda _, u: u.diff() - 0.5, start=size, record=True
    )


def program(batch: int, size: int) -> tuple[Tensor, ...]:
    """Of m unknowns, one equality and m inequalities."""
    eye = torch.eye(size, dtype=torch.float64).expand(batch, size, size)
    q = torch.randn(batch, size, dtype=torch.float64)
    return eye, q, torch.ones_like(q)[:, None], torch.ones_like(q)[:, :1], -eye, torch.zeros_like(q)


def costs(batch: int, size: int) -> tuple[Tensor, ...]:
    """Of a transport plan with about that many entries."""
    side = round(size**0.5)
    return (torch.rand(batch, side, side, dtype=torch.float64),)


Sizes = tuple[tuple[int, int], ...]  # unknowns and batch
DENSE: Sizes = ((10, 1), (10, 256), (100, 1), (100, 64), (500, 1))
CASES: dict[str, tuple[Callable[[int], Callable[..., Tensor]], Callable[[int, int], tuple[Tensor, ...]], Sizes]] = {
    "own node, dense, an equality": (dense, normal, DENSE),
    "own node, dense, bounds": (bounded, normal, DENSE),
    "own node, neighbours only, inequalities": (chain, normal, ((100, 1), (1000, 1), (1000, 16), (10_000, 1))),
    "`QuadraticProgram`, m inequalities": (lambda _: QuadraticProgram(), program, ((10, 256), (100, 1), (100, 64))),
    "`OptimalTransport(10)`": (lambda _: OptimalTransport(10.0), costs, ((100, 64), (10_000, 1), (250_000, 1))),
    "`EntropicSimplex()`, a closed form": (lambda _: EntropicSimplex(), normal, ((100, 64), (10_000, 64))),
}


def measure(kind: str, size: int, batch: int) -> tuple[float, float, float]:
    """Milliseconds forward and backward, megabytes above what was there before; in this process."""
    make, inputs, _ = CASES[kind]
    torch.manual_seed(0)
    layer, xs = make(size), [x.clone().requires_grad_() for x in inputs(batch, size)]
    before = reset_peak()
    forward = backward = float("inf")
    for _ in range(REPEATS):
        ahead, y = timed(lambda: layer(*xs))
        back, _ = timed(y.square().sum().backward)
        forward, backward = min(forward, ahead), min(backward, back)
    return 1e3 * forward, 1e3 * backward, (peak() - before) / 1e6


def table(quick: bool) -> str:
    """In Markdown."""
    lines = ["| problem | unknowns | batch | forward, ms | backward, ms | memory, MB |", "|---|---|---|---|---|---|"]
    for kind, (_, _, sizes) in CASES.items():
        for size, batch in sizes[:1] if quick else sizes:
            found = output_of("experiments.bench.sizes", kind, size, batch)
            figures = " | ".join(f"{one:.2g}" if one < 10 else f"{one:.0f}" for one in map(float, found.split()))
            lines.append(f"| {kind} | {size:,} | {batch} | {figures} |")
    return "\n".join(lines)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("--quick", action="store_true", help="the smallest of each")


def run(args: argparse.Namespace) -> int:
    """Print the table."""
    print(table(args.quick))
    return 0


if __name__ == "__main__":  # one row, in this process
    torch.set_num_threads(1)
    print(*measure(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
