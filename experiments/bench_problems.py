"""What the ready-made layers cost. Each function measures one claim and returns rows for a table."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch

from problems import Eigenvectors, OptimalTransport

Row = dict[str, float | int | str]
REPEATS = 7


def seconds(function: Callable[[], object], repeats: int = REPEATS, warm: bool = True) -> float:
    """The shortest of several times of a call, after one that is not counted if it is to be warm."""
    if warm:
        function()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)


def transport_marginals(
    sizes: Sequence[int] = (10, 50, 100, 200, 500), gammas: Sequence[float] = (1.0, 10.0, 100.0)
) -> list[Row]:
    """The largest error of a marginal relative to 1/m, and the iterations that it took."""
    rows: list[Row] = []
    for m in sizes:
        M = torch.rand(1, m, m, dtype=torch.float64, generator=torch.Generator().manual_seed(m))
        for gamma in gammas:
            solution = OptimalTransport(gamma).solve(M)
            error = max((m * solution.y.sum(dim) - 1).abs().max().item() for dim in (-1, -2))
            rows.append({"m": m, "gamma": gamma, "error": error, "iterations": int(solution.iterations.max())})
    return rows


def transport_backward(
    sizes: Sequence[int] = (100, 300, 1000), gammas: Sequence[float] = (1.0, 10.0, 100.0)
) -> list[Row]:
    """Forward alone, and forward with backward, for the exact gradient and the cheap one."""
    rows: list[Row] = []
    for m in sizes:
        generator = torch.Generator().manual_seed(m)
        M = torch.rand(1, m, m, dtype=torch.float64, generator=generator).requires_grad_()
        v = torch.randn(1, m, m, dtype=torch.float64, generator=generator)
        for gamma in gammas:
            layer = OptimalTransport(gamma)

            def forward(layer: OptimalTransport = layer, M: torch.Tensor = M) -> None:
                with torch.no_grad():
                    layer(M)

            def both(
                rule: str, layer: OptimalTransport = layer, M: torch.Tensor = M, v: torch.Tensor = v
            ) -> Callable[[], object]:
                chosen = layer.with_gradient(rule)
                return lambda: torch.autograd.grad(chosen(M), M, v)

            alone, exact, cheap = seconds(forward), seconds(both("exact")), seconds(both("unconstrained"))
            rows.append(
                {
                    "m": m,
                    "gamma": gamma,
                    "forward": alone,
                    "exact": exact,
                    "unconstrained": cheap,
                    "ratio": exact / alone,
                }
            )
    return rows


def eigenvector_backward(m: int = 200, batch: int = 10, ks: Sequence[int | None] = (1, 5, None)) -> list[Row]:
    """The backward pass beside that of autograd through ``torch.linalg.eigh``."""
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(batch, m, m, dtype=torch.float64, generator=generator)
    X = (X + X.mT).requires_grad_()
    rows: list[Row] = []
    for k in ks:
        columns = slice(None) if k is None else slice(m - k, m)
        ours, theirs = Eigenvectors(k)(X), torch.linalg.eigh(X).eigenvectors[..., columns]
        v = torch.randn(ours.shape, dtype=X.dtype, generator=generator)
        times = [seconds(lambda y=y, v=v: torch.autograd.grad(y, X, v, retain_graph=True), 21) for y in (ours, theirs)]
        rows.append({"m": m, "k": k or m, "ours": times[0], "autograd": times[1], "ratio": times[1] / times[0]})
    return rows
