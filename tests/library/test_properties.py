"""Random problems of every size, shape and condition: the right gradient, or a word about why not.

The truth is computed in rational arithmetic or is a closed form. ``EXAMPLES_FACTOR`` in the environment multiplies the
number of examples.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from declarative import DeclarativeNode, NumericalWarning, SolverError
from problems import EqualityQP, QuadraticProgram, SimplexProjection
from tests.support import exact

FACTOR = int(os.environ.get("EXAMPLES_FACTOR", "1"))
EPS = float(np.finfo(np.float64).eps)
seeds = st.integers(0, 2**32 - 1)


class Ledger:
    """How the examples ended. A wrong number without a word fails at once; too few comparisons fail at the end."""

    def __init__(self) -> None:
        self.compared = self.told = self.hopeless = 0

    def judge(self, found: Tensor | None, truth: np.ndarray, allowed: float, words: list[str]) -> None:
        """Compare a gradient with the truth, relative to its size, unless there was a word of warning."""
        if words:
            self.told += 1
            assert found is None or found.isfinite().all()
        elif allowed > 1e-2:
            self.hopeless += 1
            assert found is not None
            assert found.isfinite().all()
        else:
            assert found is not None
            size = max(float(np.abs(truth).max(initial=0.0)), 1e-300)
            error = float(np.abs(found.numpy() - truth).max(initial=0.0)) / size
            assert error <= allowed, f"silently wrong by {error:.1e}, allowed {allowed:.1e}"
            self.compared += 1

    def verdict(self, share: float) -> None:
        total = self.compared + self.told + self.hopeless
        print(f"{total} examples: {self.compared} compared, {self.told} came with a word, {self.hopeless} hopeless")
        assert self.compared >= share * total, f"only {self.compared} of {total} examples were compared"


def examine(examples: int, share: float, *arguments: Any) -> Callable[[Callable[..., None]], Callable[[], None]]:
    """Run a property on examples that are the same in every run, and require that a share of them was compared."""

    def decorate(prove: Callable[..., None]) -> Callable[[], None]:
        def test() -> None:
            ledger = Ledger()

            @settings(
                max_examples=examples * FACTOR,
                derandomize=True,
                deadline=None,
                database=None,
                suppress_health_check=list(HealthCheck),
            )
            @given(st.tuples(*arguments))
            def every(drawn: tuple[Any, ...]) -> None:
                prove(ledger, *drawn)

            every()
            ledger.verdict(share)

        test.__doc__ = prove.__doc__
        return test

    return decorate


def gradients_of(
    node: DeclarativeNode, xs: list[Tensor], v: Tensor, wanted: list[int]
) -> tuple[list[Tensor | None], list[str]]:
    """The gradients of v' y, and every word that was said on the way."""
    leaves = [x.clone().requires_grad_(i in wanted) for i, x in enumerate(xs)]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", NumericalWarning)
        try:
            y = node(*leaves)
            grads = torch.autograd.grad((y * v).sum(), [leaves[i] for i in wanted])
        except SolverError as error:
            return [None] * len(wanted), [str(error)]
    return [g.detach()[0] for g in grads], [str(w.message) for w in caught]


def program(m: int, p: int, n: int, decades: float, seed: int) -> tuple[np.ndarray, ...]:
    """A feasible strictly convex programme whose Hessian has a condition number of 10 ** decades."""
    rng = np.random.default_rng(seed)
    basis = np.linalg.qr(rng.normal(size=(m, m)))[0]
    Q = basis * 10.0 ** np.linspace(0, -decades, m) @ basis.T
    A, G, inside, q = rng.normal(size=(p, m)), rng.normal(size=(n, m)), rng.normal(size=m), rng.normal(size=m)
    slack = rng.exponential(size=n) * (rng.uniform(size=n) < 0.7)
    return (Q + Q.T) / 2, q, A, A @ inside, G, G @ inside + slack, rng.normal(size=m)


def as_batch(arrays: tuple[np.ndarray, ...]) -> list[Tensor]:
    return [torch.from_numpy(np.ascontiguousarray(x))[None] for x in arrays]


def compare_program(ledger: Ledger, node: DeclarativeNode, data: tuple[np.ndarray, ...]) -> None:
    truth = exact.solve(*data)
    if truth is None:
        ledger.hopeless += 1  # no unique solution: nothing to be right or wrong about
        return
    *xs, v = as_batch(data)
    grads, words = gradients_of(node, xs, v, [1, 3, 5])
    noise = 100 * EPS * truth.condition
    # Too near to the next active set for the rounded data to tell the two apart.
    allowed = 1.0 if truth.margin < 1e3 * noise else 1e-9 + noise
    # In units of their own: the change of v' y when q, b or h changes by its size.
    units = [float(np.abs(data[i]).max(initial=0.0)) for i in (1, 3, 5)]
    blocks = (truth.gradient_q, truth.gradient_b, truth.gradient_h)
    everything = np.concatenate([unit * block for unit, block in zip(units, blocks, strict=True)])
    found = None
    if grads[0] is not None:
        found = torch.cat([unit * g for unit, g in zip(units, grads, strict=True) if g is not None])
    ledger.judge(found, everything, allowed, words)


sizes = (st.integers(1, 4), st.integers(0, 2), st.integers(0, 3))


@examine(150, 0.6, *sizes, st.floats(0, 3), seeds)
def test_quadratic_programmes(ledger: Ledger, m: int, p: int, n: int, decades: float, seed: int) -> None:
    compare_program(ledger, QuadraticProgram(), program(m, min(p, m - 1), n, decades, seed))


@examine(24, 0.6, *sizes, st.floats(0, 3), seeds)
def test_quadratic_programmes_by_the_general_way(ledger: Ledger, m: int, p: int, n: int, d: float, seed: int) -> None:
    compare_program(ledger, QuadraticProgram().generic(), program(m, min(p, m - 1), n, d, seed))


@examine(100, 0.6, *sizes, st.floats(3, 12), seeds)
def test_ill_conditioned_programmes(ledger: Ledger, m: int, p: int, n: int, decades: float, seed: int) -> None:
    compare_program(ledger, QuadraticProgram(), program(m, min(p, m - 1), n, decades, seed))


@examine(120, 0.6, *sizes, st.floats(-12, 12), st.floats(-12, 12), st.floats(-12, 12), seeds)
def test_programmes_in_all_units(
    ledger: Ledger, m: int, p: int, n: int, objective: float, rows: float, length: float, seed: int
) -> None:
    """The objective, the constraints and the unknowns, each measured in units of its own."""
    Q, q, A, b, G, h, v = program(m, min(p, m - 1), n, 1.0, seed)
    f, c, u = 10.0**objective, 10.0**rows, 10.0**length
    compare_program(ledger, QuadraticProgram(), (f * Q / u**2, f * q / u, c * A / u, c * b, c * G / u, c * h, v))


@examine(100, 0.4, st.integers(2, 4), st.floats(-14, 0), seeds)
def test_nearly_dependent_constraints(ledger: Ledger, m: int, closeness: float, seed: int) -> None:
    """A second equality that differs from the first by 10 ** closeness."""
    Q, q, A, _, _, _, v = program(m, 1, 0, 1.0, seed)
    rng = np.random.default_rng(seed + 1)
    A = np.concatenate([A, A + 10.0**closeness * rng.normal(size=A.shape)])
    none = np.zeros((0, m))
    data = (Q, q, A, A @ rng.normal(size=m), none, np.zeros(0), v)
    truth = exact.solve(*data)
    assert truth is not None
    *xs, v_batch = as_batch(data)
    grads, words = gradients_of(EqualityQP(), xs[:4], v_batch, [1, 3])
    found = None if grads[0] is None else torch.cat([g for g in grads if g is not None])
    expected = np.concatenate([truth.gradient_q, truth.gradient_b])
    ledger.judge(found, expected, 1e-9 + 100 * EPS * truth.condition, words)


@examine(60, 0.7, st.integers(2, 4), st.integers(1, 3), st.booleans(), seeds)
def test_repeated_constraints_keep_the_gradient(
    ledger: Ledger, m: int, times: int, inequality: bool, seed: int
) -> None:
    Q, q, A, b, _, _, v = program(m, 1, 0, 1.0, seed)
    truth = exact.solve(Q, q, A, b, np.zeros((0, m)), np.zeros(0), v)
    assert truth is not None
    if inequality:  # the same row on the active side, several times
        side = np.sign(-(truth.y @ Q + q) @ A[0]) or 1.0
        rows, right = np.repeat(side * A, times + 1, 0), np.repeat(side * b, times + 1)
        data = (Q, q, np.zeros((0, m)), np.zeros(0), rows, right, v)
    else:
        data = (Q, q, np.repeat(A, times + 1, 0), np.repeat(b, times + 1), np.zeros((0, m)), np.zeros(0), v)
    *xs, v_batch = as_batch(data)
    grads, words = gradients_of(QuadraticProgram(), xs, v_batch, [1])
    ledger.judge(grads[0], truth.gradient_q, 1e-7, [] if grads[0] is not None else words)


@examine(150, 0.5, st.lists(st.sampled_from([-1.0, -0.5, 0.0, 0.25, 0.5, 0.75, 1.0, 2.0]), min_size=1, max_size=5))
def test_active_sets_that_change_on_a_grid(ledger: Ledger, entries: list[float]) -> None:
    """On a grid entries often lie exactly where the active set changes: the margin is zero, which must be told."""
    m = len(entries)
    x, v = np.array(entries), np.cos(np.arange(m) + 1.0)
    truth = exact.solve(np.eye(m), -x, np.ones((1, m)), np.ones(1), -np.eye(m), np.zeros(m), v)
    assert truth is not None
    (g,), words = gradients_of(SimplexProjection(), as_batch((x,)), torch.from_numpy(v)[None], [0])
    if truth.margin == 0:
        assert words, "a kink was not mentioned"
    else:
        assert not words
    ledger.judge(g, -truth.gradient_q, 1e-12, words)


def bent(u: Tensor, R: Tensor) -> Tensor:
    """w = sinh(R u), a smooth map with a smooth inverse."""
    return (R @ u).sinh()


@examine(30, 0.7, st.integers(2, 4), st.integers(0, 2), st.floats(0, 4), st.sampled_from(["newton", None]), seeds)
def test_smooth_problems_with_a_known_solution(
    ledger: Ledger, m: int, p: int, decades: float, solver: str | None, seed: int
) -> None:
    """The nearest point of a random subspace, seen through a bent mirror: w = sinh(R u) is a projection of x."""
    rng = np.random.default_rng(seed)
    rotation = np.linalg.qr(rng.normal(size=(m, m)))[0]
    p = min(p, m - 1)
    A = rng.normal(size=(p, m)) * 10.0 ** -np.linspace(0, decades, max(p, 1))[:p, None]
    x, v = rng.normal(size=m), rng.normal(size=m)
    R, rows = torch.from_numpy(rotation), torch.from_numpy(A)
    node = DeclarativeNode(
        lambda x, u: (bent(u, R) - x).square().sum() / 2,
        (lambda _, u: rows @ bent(u, R)) if p else None,
        solver=solver,
        start=torch.zeros(m),
    )
    basis = np.linalg.qr(A.T)[0]
    project = np.eye(m) - basis @ basis.T
    w = project @ x
    truth = project @ ((rotation @ v) / np.sqrt(1 + w**2))  # dy = R' diag(1 / cosh(asinh w)) P dx
    (g,), words = gradients_of(node, as_batch((x,)), torch.from_numpy(v)[None], [0])
    ledger.judge(g, truth, 1e-8, words)


@examine(30, 0.7, st.integers(1, 4), st.floats(0.1, 2.0), st.floats(-6, 6), seeds)
def test_bounded_smooth_problems_in_all_units(ledger: Ledger, m: int, bound: float, decades: float, seed: int) -> None:
    """The same mirror with bounds on w, active for some entries, and an objective in other units."""
    rng = np.random.default_rng(seed)
    scale = 10.0**decades
    x, v = rng.normal(size=m), rng.normal(size=m)
    node = DeclarativeNode(
        lambda x, u: scale * (u.sinh() - x).square().sum() / 2,
        inequality=lambda _, u: torch.cat([u.sinh() - bound, -bound - u.sinh()]),
        solver="newton",
        start=torch.zeros(m),
    )
    free = np.abs(x) < bound
    truth = np.where(free, v / np.sqrt(1 + np.clip(x, -bound, bound) ** 2), 0.0)
    (g,), words = gradients_of(node, as_batch((x,)), torch.from_numpy(v)[None], [0])
    # Where all bounds are active the gradient is zero: the size of v is what it is compared with.
    size = np.abs(v).max(keepdims=True)
    found = None if g is None else torch.cat([g, torch.from_numpy(size)])
    near_a_kink = np.abs(np.abs(x) - bound).min() <= 1e-5
    ledger.judge(found, np.concatenate([truth, size]), 1.0 if near_a_kink else 1e-7, words)
