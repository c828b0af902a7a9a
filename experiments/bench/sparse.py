"""The speed of sparse problems: control over a horizon, a chain, and total variation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from declarative import DeclarativeNode

from ..shared.trajectories import MODELS, PENDULUM, Model, flat
from .rows import NO_TARGET, Comparison, Growth, Memory, Pair, Sides, Study, Target, memory_of
from .sparse_peers import differences, ipopt, piqp, pounce
from .timing import Side, both, forward

IPOPT, POUNCE, PIQP = "CasADi + IPOPT, one by one", "pounce", "piqp"
CALLED, RECORDED, COMPILED = "called", "recorded", "compiled"
FORWARD, BOTH = f"{RECORDED}, forward", f"{RECORDED}, forward and backward"
PLOT = "pendulum, T steps, batch 1"
PACE = 0.5  # of a chain: how far neighbours may be apart
WEIGHT = 1.0  # of the total variation
LOCAL = 100  # samples that a direction changes
NUDGE = 1e-5  # for differences of quadratic programs, whose solutions are piecewise linear
SMALL = "a call is some hundred small steps of torch and Python, whatever the size; IPOPT is compiled"


def studies(quick: bool, compiled: bool = False) -> Iterator[Study]:
    """All of them, one after the other; compiling takes a minute for each shape."""
    sizes = ((4, 2),) if quick else ((30, 1), (30, 32), (30, 256), (100, 1), (100, 32))
    for model in MODELS:
        for steps, batch in sizes:
            yield horizon(model, steps, batch, compiled)
        yield gradient(model, *(4, 2) if quick else (30, 8))
    for steps in (4, 8) if quick else (30, 100, 300, 1000, 3000):
        yield growth(steps)
    yield Growth("pendulum, forward and backward: growth with T", PLOT, BOTH, Target(at_most=1.15))
    yield horizon_memory(*(8, 60) if quick else (300, 3000))
    yield program("chain", *chain(40 if quick else 100_000))
    yield program("total variation", *total_variation(40 if quick else 10_000))


@cache
def layer(model: Model, steps: int, record: Any) -> Any:
    """One for all comparisons, so that it is recorded once."""
    return model.layer(steps, structure="sparse", record=record)


def ours(model: Model, steps: int, initial: Tensor, record: Any) -> Side:
    """Forward alone."""
    return forward(layer(model, steps, record), (initial,), flat)()


def ours_with_gradient(model: Model, steps: int, initial: Tensor, v: Tensor) -> Side:
    """Recorded, forward and backward."""
    return both(layer(model, steps, True), (initial,), v, flat)()


def one_by_one(model: Model, steps: int, initial: Tensor) -> Side:
    """IPOPT, forward."""
    solve = ipopt(model, steps)
    return Side(lambda: (solve(initial),))


def horizon(model: Model, steps: int, batch: int, compiled: bool) -> Comparison:
    """Forward, beside IPOPT and its translation."""
    initial = model.initial(batch)
    modes = {CALLED: False, RECORDED: True, **({COMPILED: "inductor"} if compiled else {})}
    sides: Sides = {
        **{name: partial(ours, model, steps, initial, record) for name, record in modes.items()},
        IPOPT: partial(one_by_one, model, steps, initial),
        POUNCE: partial(pounce, model, steps, initial),
    }
    least = {(30, 1): 0.3, (30, 32): 5.0, (30, 256): 15.0}.get((steps, batch))
    claim, note = f"{model.name}, T = {steps}, batch {batch}, forward", "solutions compared"
    targets = {CALLED: Target(), RECORDED: Target(at_least=least), COMPILED: Target(at_least=least)}
    pairs = [Pair(f"{claim}: IPOPT, {name}", name, IPOPT, targets[name], note, SMALL) for name in modes]
    if batch <= 32:
        pairs.append(Pair(f"{claim}: pounce", RECORDED, POUNCE, Target(at_least=3), note))
    return Comparison(sides, pairs)


def gradient(model: Model, steps: int, batch: int) -> Comparison:
    """Ours against differences of IPOPT's solutions."""
    initial = model.initial(batch).requires_grad_()
    v = torch.randn(batch, steps * (model.size + 1), generator=torch.Generator().manual_seed(0), dtype=initial.dtype)
    names = "forward and backward", "differences of IPOPT's solutions"
    sides: Sides = {
        names[0]: partial(ours_with_gradient, model, steps, initial, v),
        names[1]: lambda: Side(partial(differences, ipopt(model, steps), initial.detach(), v)),
    }
    return Comparison(sides, [Pair(f"{model.name}, T = {steps}, batch {batch}, gradient", *names)])


def growth(steps: int) -> Comparison:
    """Forward and backward with the length of the horizon, beside one solution by IPOPT."""
    initial = PENDULUM.initial(1)
    v = torch.ones(1, 3 * steps, dtype=initial.dtype)
    sides: Sides = {
        BOTH: partial(ours_with_gradient, PENDULUM, steps, initial.clone().requires_grad_(), v),
        IPOPT: partial(one_by_one, PENDULUM, steps, initial),
    }
    target = Target(at_most=3) if steps == 3000 else Target()
    claim, note = f"pendulum, T = {steps}, batch 1, forward and backward: IPOPT", "IPOPT's forward alone"
    return Comparison(sides, [Pair(claim, BOTH, IPOPT, target, note, share=True, same=False)], PLOT, steps)


def horizon_memory(short: int, long: int) -> Memory:
    """Over two horizons."""
    claim, names = f"pendulum, T = {long}: memory of forward and backward", ("peak above the start", f"T = {short}")
    other, note = partial(memory_of, "pendulum", short), lambda taken: f"{1e3 * taken / long:.2g} kB a step"
    return Memory(claim, "pendulum", long, names, other, NO_TARGET, note)


# Quadratic programs: functions of torch, and the same as matrices.


@dataclass(frozen=True)
class Quadratic:
    """min u' P u / 2 + c(x)' u subject to low <= G u <= high; the first entries of u are compared."""

    node: DeclarativeNode
    P: Any
    c: Callable[[Any], Any]
    G: Any
    low: Any
    high: Any

    def found(self, y: Any) -> Tensor:
        entries: Tensor = y["u"] if isinstance(y, dict) else y
        return entries

    def ours(self, x: Tensor) -> Tensor:
        return self.found(self.node(x))

    def others(self, solve: Callable[..., Any], x: Tensor) -> Tensor:
        found = solve(self.P, self.c(x[0].numpy()), self.G, self.low, self.high)
        return torch.from_numpy(found[: x.shape[-1]]).unsqueeze(0)


def steps_between(n: int) -> Any:
    """The matrix of differences of neighbours."""
    return scipy.sparse.diags_array([-np.ones(n - 1), np.ones(n - 1)], offsets=[0, 1], shape=(n - 1, n)).tocsc()


def chain(n: int) -> tuple[Quadratic, Tensor]:
    """The nearest point to x with neighbours at most so far apart."""
    x = torch.randn(1, n, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    node = DeclarativeNode(
        lambda x, u: (u - x).square().sum() / 2,
        inequality=lambda x, u: torch.cat([u.diff() - PACE, -u.diff() - PACE]),  # noqa: ARG005
        start=torch.zeros_like,
        structure="sparse",
        record=True,
    )
    pace = np.full(n - 1, PACE)
    return Quadratic(node, scipy.sparse.eye_array(n, format="csc"), np.negative, steps_between(n), -pace, pace), x


def total_variation(n: int) -> tuple[Quadratic, Tensor]:
    """A noisy signal, near which there is one of little variation: t bounds the steps of u."""
    noise = torch.randn(n, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x = ((torch.arange(n) * 10 // n % 2) + 0.1 * noise).unsqueeze(0)
    node = DeclarativeNode(
        lambda x, z: (z["u"] - x).square().sum() / 2 + WEIGHT * z["t"].sum(),
        inequality=lambda x, z: torch.cat([z["u"].diff() - z["t"], -z["u"].diff() - z["t"]]),  # noqa: ARG005
        start=lambda x: {"u": x.clone(), "t": torch.ones_like(x[1:])},
        structure="sparse",
        record=True,
    )
    D, eye = steps_between(n), scipy.sparse.eye_array(n - 1)
    G = scipy.sparse.block_array([[D, -eye], [-D, -eye]], format="csc")
    P = scipy.sparse.diags_array(np.r_[np.ones(n), np.zeros(n - 1)], format="csc")
    low = np.full(2 * (n - 1), -np.inf)
    return Quadratic(node, P, lambda x: np.r_[-x, np.full(n - 1, WEIGHT)], G, low, np.zeros(2 * (n - 1))), x


def program(name: str, problem: Quadratic, x: Tensor) -> Comparison:
    """Forward against piqp; the gradient along a direction against differences of its solutions."""
    generator, n = torch.Generator().manual_seed(1), x.shape[-1]
    v, direction = (torch.randn(1, n, generator=generator, dtype=x.dtype) for _ in range(2))
    direction[:, LOCAL:] = 0.0  # along a direction that changes all samples, some constraint changes its mind at once
    wanted = x.clone().requires_grad_()

    def gradient() -> tuple[Tensor, ...]:
        return torch.autograd.grad(problem.ours(wanted), wanted, v)

    def solutions(solve: Callable[..., Any]) -> tuple[Tensor, ...]:
        return (problem.others(solve, x),)

    def slope(solve: Callable[..., Any]) -> tuple[Tensor, ...]:
        ahead, behind = (problem.others(solve, x + sign * NUDGE * direction) for sign in (1, -1))
        return ((v * (ahead - behind)).sum() / (2 * NUDGE),)

    solves = "two solutions by piqp"
    sides: Sides = {
        FORWARD: forward(problem.node, (x,), problem.found),
        PIQP: lambda: Side(partial(solutions, piqp())),
        BOTH: lambda: Side(gradient, check=lambda: ((gradient()[0] * direction).sum(),)),
        solves: lambda: Side(partial(slope, piqp())),
    }
    pairs = [
        Pair(f"{name}, {n} samples, forward: piqp", FORWARD, PIQP, note="solutions compared"),
        Pair(f"{name}, {n} samples, gradient: piqp", BOTH, solves, note="a derivative along a direction compared"),
    ]
    return Comparison(sides, pairs)
