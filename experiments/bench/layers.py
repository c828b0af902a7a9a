"""The speed of the ready-made layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from problems import Eigenvectors, OptimalTransport, QuadraticProgram

from ..shared.inputs import Draw
from .baselines import sinkhorn, sinkhorn_cholesky
from .peers import TIGHT_PEER, cvxpylayers, moreau, pot, qpth
from .rows import Comparison, Growth, Memory, Pair, Sides, Study, Target
from .timing import Side, both, forward

GAMMA = 10.0
TIGHT = 64 * torch.finfo(torch.float64).eps  # the layer's own, of a marginal, relative
SMALL = 100  # up to this size a lean loop is the measure
LOOSE = 1e-9  # likewise, beside POT, whose own measure of the error does not reach the other
PLOT = "transport n x n"
EXACT, CHEAP, FORWARD = "ours, exact", "ours, unconstrained", "ours, forward"
EIGH = "eigh, autograd"
ROBUST = "ours is stabilised against overflow and checks every problem, whose cost shows at small sizes most"
CHECKED = "ours checks the eigenvectors against the problem, and looks for repeated eigenvalues"
ROUNDING = "ours solves to rounding, on the active set; qpth's gradient has fewer digits: see cvxpylayers'"


def studies(quick: bool) -> Iterator[Study]:
    """All of them, one after the other."""
    if not quick:
        yield transport(200, 10)
    for gamma in () if quick else (1.0, GAMMA):
        yield transport(10, 10, gamma=gamma)
    for n in (8, 12) if quick else (100, 300, 1000, 2000):
        yield transport(n, 1, plot=PLOT)
    yield Growth("transport, exact gradient: growth with n", PLOT, EXACT, Target(at_most=2.3))
    if not quick:
        yield transport(1000, 1, gamma=1.0)
        yield transport(300, 1, gamma=100.0)
    yield transport_memory(20 if quick else 2000)
    for gamma in (1.0,) if quick else (1.0, 10.0):
        yield small_transport(*(3, 2) if quick else (10, 10), gamma)
    yield eigenvectors_backward(*(6, 2) if quick else (200, 10))
    for k in (1, None):
        yield eigenvectors(*(6, 2) if quick else (200, 10), k)
    for sizes in ((4, 1, 3, 2),) if quick else ((8, 3, 6, 10), (8, 3, 6, 128), (50, 10, 30, 64)):
        yield quadratic_program(*sizes)


def transport(n: int, batch: int, plot: str = "", gamma: float = GAMMA) -> Comparison:
    """Ours with two gradients and forward alone, lean Sinkhorn with Cholesky, unrolled Sinkhorn, POT."""
    draw = Draw(batch, torch.Generator().manual_seed(n))
    M, v = draw.uniform(n, n).requires_grad_(), draw.normal(n, n)
    layer = OptimalTransport(gamma)

    def unrolled() -> Side:
        _, count = sinkhorn(M.detach(), gamma, TIGHT)
        return both(lambda M: sinkhorn(M, gamma, TIGHT, count)[0], (M,), v)()

    sides: Sides = {
        EXACT: both(layer, (M,), v),
        CHEAP: both(layer.with_gradient("unconstrained"), (M,), v),
        FORWARD: forward(layer, (M,)),
        "Sinkhorn, forward": forward(lambda M: sinkhorn(M, gamma, TIGHT)[0], (M,)),
        "Sinkhorn, Cholesky": both(partial(sinkhorn_cholesky, gamma=gamma, tolerance=TIGHT), (M,), v),
        "unrolled Sinkhorn, autograd": unrolled,
        f"{FORWARD} to {LOOSE:g}": forward(OptimalTransport(gamma, tolerance=LOOSE), (M,)),
        f"POT, forward to {LOOSE:g}": lambda: pot(M, gamma, LOOSE),
    }
    claim = f"transport {n} x {n}, batch {batch}, gamma {gamma:g}"
    judged = gamma == GAMMA and (n, batch) in ((200, 10), (1000, 1))
    target, loose = Target(at_least=3) if judged else Target(), f"forward to {LOOSE:g}"
    small = Target(at_least=1) if gamma == GAMMA and n <= SMALL else Target()
    pairs = [
        Pair(f"{claim}: Sinkhorn, forward", FORWARD, "Sinkhorn, forward", small, "plans compared", slower=ROBUST),
        Pair(f"{claim}: Sinkhorn", EXACT, "Sinkhorn, Cholesky", target, slower=ROBUST),
        Pair(f"{claim}: unrolled", EXACT, "unrolled Sinkhorn, autograd", slower=ROBUST),
        Pair(f"{claim}: POT", f"ours, {loose}", f"POT, {loose}", note="plans compared", slower=ROBUST),
        Pair(f"{claim}: backward", EXACT, FORWARD, Target(at_most=4), share=True, same=False),
        Pair(f"{claim}: cheap gradient", CHEAP, EXACT, note="another gradient, by design", same=False),
    ]
    return Comparison(sides, pairs, plot, n)


def transport_memory(n: int) -> Memory:
    """In units of the plan."""
    claim, plan = f"transport {n} x {n}: memory of forward and backward", 8 * n**2 / 1e6
    names = "peak above the inputs", "the plan"
    return Memory(claim, "transport", n, names, lambda: plan, Target(at_most=10), lambda _: "a fresh process")


def small_transport(n: int, batch: int, gamma: float) -> Comparison:
    """Beside cvxpylayers."""
    draw = Draw(batch, torch.Generator().manual_seed(n))
    M, v, layer = draw.uniform(n, n).requires_grad_(), draw.normal(n, n), OptimalTransport(gamma)
    sides = {"OptimalTransport": both(layer, (M,), v), "cvxpylayers": lambda: cvxpylayers(layer, (M,), v)}
    claim = f"transport {n} x {n}, batch {batch}, gamma {gamma:g}: cvxpylayers"
    return Comparison(sides, [Pair(claim, "OptimalTransport", "cvxpylayers", note=TIGHT_PEER)])


def eigenvectors_backward(m: int, batch: int) -> Comparison:
    """The backward pass alone, for the largest eigenvalue."""
    X, v = _symmetric(m, batch, 1)

    def side(function: Callable[[Tensor], Tensor]) -> Side:
        y = function(X)
        return Side(lambda: torch.autograd.grad(y, X, v, retain_graph=True))

    sides = {"ours": partial(side, Eigenvectors(1)), EIGH: partial(side, partial(by_eigh, k=1))}
    claim = f"largest eigenvector of {m} x {m}, batch {batch}, backward"
    return Comparison(sides, [Pair(claim, "ours", EIGH, Target(at_least=5))])


def eigenvectors(m: int, batch: int, k: int | None) -> Comparison:
    """Forward and backward."""
    X, v = _symmetric(m, batch, k or m)
    sides = {"Eigenvectors": both(Eigenvectors(k), (X,), v), EIGH: both(partial(by_eigh, k=k or m), (X,), v)}
    claim = f"eigenvectors of {m} x {m}, batch {batch}, {k or 'all'}: forward and backward"
    return Comparison(sides, [Pair(claim, "Eigenvectors", EIGH, slower=CHECKED)])


def by_eigh(X: Tensor, k: int) -> Tensor:
    """The eigenvectors of the k largest eigenvalues."""
    vectors: Tensor = torch.linalg.eigh((X + X.mT) / 2).eigenvectors
    return vectors[..., X.shape[-1] - k :]


def _symmetric(m: int, batch: int, k: int) -> tuple[Tensor, Tensor]:
    draw = Draw(batch, torch.Generator().manual_seed(0))
    X = draw.normal(m, m)
    return (X + X.mT).requires_grad_(), draw.normal(m, k)


def quadratic_program(n: int, p: int, count: int, batch: int) -> Comparison:
    """With inequalities, some of them active."""
    draw = Draw(batch, torch.Generator().manual_seed(0))
    Q, q, *rest = draw.program(n, p, count)
    xs, v = tuple(x.requires_grad_() for x in (Q, 3 * q, *rest)), draw.normal(n)
    layer = QuadraticProgram()
    sides = {
        "QuadraticProgram": both(layer, xs, v),
        "qpth": lambda: qpth(xs, v),
        "moreau": lambda: moreau(xs, v),
        "cvxpylayers": lambda: cvxpylayers(layer, xs, v),
    }
    claim = f"QP, n = {n}, p = {p}, {count} inequalities, batch {batch}"
    pairs = [
        Pair(f"{claim}: qpth", "QuadraticProgram", "qpth", slower=ROUNDING),
        Pair(
            f"{claim}: moreau",
            "QuadraticProgram",
            "moreau",
            note="moreau's active-set solver on the CPU, which it chooses itself",
        ),
        Pair(f"{claim}: cvxpylayers", "QuadraticProgram", "cvxpylayers", note=TIGHT_PEER),
    ]
    return Comparison(sides, pairs)
