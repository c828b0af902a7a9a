"""Every speed claim as a ratio of two times that are measured in the same run, on one thread.

The absolute times say more about the machine than about the library; the ratios are what is claimed. Nothing here can
fail: a ratio that misses its target is marked in the table, and left for the reader to judge.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from declarative import DeclarativeNode
from declarative.table import as_text

from . import bench_problems
from .bench_problems import seconds


@dataclass(frozen=True)
class Row:
    """One claim: how many times as long ``b`` takes as ``a``."""

    claim: str
    a: str
    a_ms: float
    b: str
    b_ms: float
    ratio: float
    target: str
    met: bool


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command line."""
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it works")


def run(args: argparse.Namespace) -> int:
    """Measure, print a table, and write it to ``bench/bench.csv``."""
    torch.set_num_threads(1)
    rows = []
    for row in measure(args.quick):
        print(f"{row.claim}: {row.ratio:.1f}", flush=True)
        rows.append(row)
    head = ["claim", "", "ms", "", "ms", "ratio", "target", ""]
    cells = [
        [r.claim, r.a, f"{r.a_ms:.1f}", r.b, f"{r.b_ms:.1f}", f"{r.ratio:.1f}", r.target, "" if r.met else "MISSED"]
        for r in rows
    ]
    print(as_text(head, cells))
    out = args.out / "bench"
    out.mkdir(parents=True, exist_ok=True)
    with open(out / "bench.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow([field.name for field in fields(Row)])
        writer.writerows([getattr(row, field.name) for field in fields(Row)] for row in rows)
    print(f"written to {out / 'bench.csv'}")
    return 0


def measure(quick: bool) -> Iterator[Row]:
    """All rows, one after the other."""
    yield newton_against_scipy(16 if quick else 256)
    yield reused_factorisation(*(4, 10, 2) if quick else (64, 100, 20))
    for m in (50,) if quick else (300, 1000):
        (found,) = bench_problems.transport_backward((m,), (10.0,))
        yield _row(
            f"transport {m} x {m}, exact gradient",
            ("forward", float(found["forward"])),
            ("forward and backward", float(found["exact"])),
            at_most=4.0,
        )
    for found in bench_problems.eigenvector_backward(20 if quick else 200, ks=(1,)):
        yield _row(
            f"largest eigenvector of {found['m']} x {found['m']}, backward",
            ("ours", float(found["ours"])),
            ("autograd through eigh", float(found["autograd"])),
            at_least=5.0,
        )


def newton_against_scipy(batch: int, m: int = 20, p: int = 5) -> Row:
    """A batch of nonlinear problems with nonlinear equality constraints."""
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(p, m, generator=generator, dtype=torch.float64) / m**0.5
    x = torch.randn(batch, m, generator=generator, dtype=torch.float64)

    def objective(x: Tensor, u: Tensor) -> Tensor:
        return (u - x).square().sum() / 2 + u.pow(4).sum() / 10 + 0.3 * (u[1:] * u[:-1]).sin().sum()

    def equality(x: Tensor, u: Tensor) -> Tensor:
        return weights @ u + 0.2 * (weights.flip(0) @ u).square() - 0.3 + 0.05 * x[:p]

    nodes = {name: DeclarativeNode(objective, equality, solver=name, start=m) for name in ("newton", "scipy")}
    return _row(
        f"{batch} problems, m = {m}, p = {p}, nonlinear",
        ("Newton", seconds(lambda: nodes["newton"](x), 5)),
        ("SciPy", seconds(lambda: nodes["scipy"](x), 1, warm=False)),
        at_least=50.0,
    )


def reused_factorisation(batch: int, m: int, p: int) -> Row:
    """The backward pass with the factorisation that the solver has left, and with an assembled matrix."""
    generator = torch.Generator().manual_seed(0)
    root = torch.randn(m, m, generator=generator, dtype=torch.float64) / m**0.5
    matrix, rows = root @ root.T + torch.eye(m, dtype=torch.float64), torch.randn(p, m, generator=generator).double()
    x = torch.randn(batch, m, generator=generator, dtype=torch.float64).requires_grad_()
    node = DeclarativeNode(
        lambda x, u: u @ matrix @ u / 2 - x @ u + u.pow(4).sum() / 100,
        lambda _, u: rows @ u - 1,
        solver="newton",
        start=m,
    )
    solution = node(x).detach()
    v = torch.ones_like(solution)
    assembled = DeclarativeNode(
        node._spec.problem.objective, node._spec.problem.equality, solver=lambda _: solution, start=m
    )
    ys = [node(x), assembled(x)]
    times = [seconds(lambda y=y: torch.autograd.grad(y, x, v, retain_graph=True), 5) for y in ys]
    return _row(
        f"backward pass, batch {batch}, m = {m}, p = {p}",
        ("solver's factorisation", times[0]),
        ("assembled and factored anew", times[1]),
        at_least=2.0,
    )


def _row(
    claim: str,
    a: tuple[str, float],
    b: tuple[str, float],
    at_least: float | None = None,
    at_most: float | None = None,
) -> Row:
    ratio = b[1] / a[1]
    met = (at_least is None or ratio >= at_least) and (at_most is None or ratio <= at_most)
    target = f"at least {at_least:g}" if at_least is not None else f"at most {at_most:g}"
    return Row(claim, a[0], 1e3 * a[1], b[0], 1e3 * b[1], ratio, target, met)
