"""Random programs of one family, quadratic or nonlinear, that are solvable or not by construction.

Each function, the objective and every constraint, is a row of

    u'Pu / 2 + (a + E x)'u + B x + b + w'phi(R u + T x + o) + c log sum exp(S u + s)

where phi is the fourth power for all entries but the last three: exponential, softplus and sine. Without the last two
terms the program is quadratic.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[np.float64]
Function = Callable[..., Tensor]
Rng = np.random.Generator


def values(x: Tensor, P: Tensor, a: Tensor, E: Tensor, B: Tensor, b: Tensor, *rest: Tensor) -> Tensor:
    """All functions at u, which comes last; without w, R, T, o, c, S and s the program is quadratic."""
    *bent, u = rest
    total = ((P @ u) / 2 + a + E @ x) @ u + B @ x + b
    if bent:
        w, R, T, o, c, S, s = bent
        t = R @ u + T @ x + o
        powers, rest_of_t = t[:-3] ** 4, t[-3:]
        softplus = torch.logaddexp(rest_of_t[1], torch.zeros_like(rest_of_t[1]))
        phi = torch.cat([powers, torch.stack([rest_of_t[0].exp(), softplus, rest_of_t[2].sin()])])
        total = total + w @ phi + c * (S @ u + s).logsumexp(0)
    return total


@dataclass(frozen=True)
class Shape:
    m: int
    p: int
    q: int
    curved: bool

    @property
    def n(self) -> int:
        """The entries of x: for a quadratic program q, b and h, one after the other."""
        return 3 if self.curved else self.m + self.p + self.q

    def functions(self) -> tuple[Function, Function | None, Function | None]:
        """Objective, equality and inequality, of (x, *data, guess, u); the guess is for the solver alone."""

        def part(rows: slice | int) -> Function:
            return lambda *arguments: values(*arguments[:-2], arguments[-1])[rows]

        first = 1 + self.p
        return part(0), part(slice(1, first)) if self.p else None, part(slice(first, None)) if self.q else None


@dataclass(frozen=True, eq=False)
class Program:
    shape: Shape
    kind: str
    x: Array  # (n,)
    data: tuple[Array, ...]  # from P on
    inside: Array  # a point that the constraints allow, if any does, (m,)
    solvable: bool = True
    feasible: bool = True
    kink: bool = False  # a constraint is active with the multiplier zero, exactly
    unique: bool = True  # the solution, and its multipliers

    def in_single(self) -> Program:
        """The same, with data that single precision can hold."""

        def rounded(values: Array) -> Array:
            return values.astype(np.float32).astype(np.float64)

        data = tuple(map(rounded, self.data))
        return Program(**{**vars(self), "x": rounded(self.x), "data": data})


def _quadratic(
    shape: Shape, kind: str, Q: Array, q: Array, rows: Array, right: Array, inside: Array, **what: bool
) -> Program:
    """minimise u'Qu/2 + q'u subject to rows u (= or <=) right, where q and the right sides are x."""
    k, m, n = shape.p + shape.q, shape.m, shape.n
    P, a, E, B = np.zeros((1 + k, m, m)), np.zeros((1 + k, m)), np.zeros((1 + k, m, n)), np.zeros((1 + k, n))
    P[0], a[1:], E[0, :, :m], B[1:, m:] = Q, rows, np.eye(m), -np.eye(k)
    return Program(shape, kind, np.concatenate([q, right]), (P, a, E, B, np.zeros(1 + k)), inside, **what)


def _slack(rng: Rng, shape: Shape) -> Array:
    """Of the inequalities at a feasible point; it touches no more of them than rounding errors leave it room for."""
    touched = (rng.uniform(size=shape.q) < 0.4) & (np.arange(shape.q) < shape.m - shape.p)
    return np.where(touched, 0.0, rng.exponential(size=shape.q))


def convex(rng: Rng, shape: Shape) -> Program:
    """Strictly convex, the condition of the Hessian up to 1e4; a feasible point touches some of the constraints."""
    m, k = shape.m, shape.p + shape.q
    basis = np.linalg.qr(rng.normal(size=(m, m)))[0]
    if rng.uniform() < 0.3:
        basis = np.eye(m)  # a diagonal Hessian
    Q = basis * 10.0 ** np.linspace(0, -rng.uniform(0, 4), m) @ basis.T
    rows, inside = rng.normal(size=(k, m)), rng.normal(size=m)
    slack = np.concatenate([np.zeros(shape.p), _slack(rng, shape)])
    return _quadratic(shape, "convex", (Q + Q.T) / 2, rng.normal(size=m), rows, rows @ inside + slack, inside)


def on_a_grid(rng: Rng, shape: Shape) -> Program:
    """Whole numbers, so that constraints are active with the multiplier zero exactly."""
    m, p, q = shape.m, shape.p, shape.q
    root = rng.integers(-2, 3, size=(m, m)).astype(float)
    Q = root @ root.T + np.eye(m)
    rows = rng.integers(-3, 4, size=(p + q, m)).astype(float)
    rows[~rows.any(1), 0] = 1  # a row of zeros is no constraint
    u = rng.integers(-2, 3, size=m).astype(float)
    slack, pull = np.zeros(p + q), rng.integers(-2, 3, size=p + q).astype(float)
    part = rng.integers(0, 3, size=q)  # active, not active, on the edge
    part[np.cumsum(part != 1) > m - p] = 1  # no more active ones than there is room for
    slack[p:] = np.where(part == 1, rng.integers(1, 4, size=q), 0)
    pull[p:] = np.where(part == 0, rng.integers(1, 4, size=q), 0)
    touching = np.concatenate([rows[:p], rows[p:][part != 1]])
    independent = np.linalg.matrix_rank(touching) == len(touching) if len(touching) else True
    kink = bool((part == 2).any())
    what = {"kink": kink, "unique": bool(independent)}
    return _quadratic(shape, "on a grid", Q, -Q @ u - rows.T @ pull, rows, rows @ u + slack, u, **what)


@dataclass(frozen=True)
class Direction:
    """An axis, or the difference of two: what is blind to it has no rounding errors along it."""

    i: int
    j: int | None
    m: int

    @classmethod
    def draw(cls, rng: Rng, m: int) -> Direction:
        i, *others = rng.permutation(m).tolist()
        return cls(i, others[0] if others and rng.uniform() < 0.6 else None, m)

    @property
    def vector(self) -> Array:
        unit = np.eye(self.m)
        return unit[self.i] - (0 if self.j is None else unit[self.j])

    def blind(self, matrix: Array, *axes: int) -> Array:
        """A copy that has the product zero with the direction, along these axes."""
        result = matrix.copy()
        for axis in axes:
            columns = np.moveaxis(result, axis, -1)
            if self.j is None:
                columns[..., self.i] = 0
            else:
                columns[..., self.j] = columns[..., self.i]
        return result


def falling(rng: Rng, shape: Shape) -> Program:
    """Feasible, and falling for ever along a direction."""
    m, p, k = shape.m, shape.p, shape.p + shape.q
    along = Direction.draw(rng, m)
    root = rng.normal(size=(m, m))
    rows, inside, q = rng.normal(size=(k, m)), rng.normal(size=m), rng.normal(size=m)
    rows[:p] = along.blind(rows[:p], 1)
    rows[p:] *= -np.sign(rows[p:] @ along.vector)[:, None]
    q *= -np.sign(q @ along.vector)
    slack = np.concatenate([np.zeros(p), rng.exponential(size=shape.q)])
    Q, right = along.blind(root.T @ root, 0, 1), rows @ inside + slack
    return _quadratic(shape, "falling", Q, q, rows, right, inside, solvable=False)


def contradictory(rng: Rng, shape: Shape) -> Program:
    """Two inequalities, or an equality and an inequality, that exclude each other; needs two constraints."""
    given = convex(rng, shape)
    P, a, E, B, b = given.data
    a, x, gap = a.copy(), given.x.copy(), 10.0 ** rng.uniform(-2, 1)
    a[-1] = -a[-2]
    x[-1] = -x[-2] - gap * np.linalg.norm(a[-1])
    return Program(shape, "contradictory", x, (P, a, E, B, b), given.inside, solvable=False, feasible=False)


def smooth(rng: Rng, shape: Shape) -> Program:
    """Coercive, by its fourth powers, but not always convex, with bent constraints that the point inside satisfies."""
    m, p, n = shape.m, shape.p, shape.n
    k, r = p + shape.q, m + 3

    def normal(size: float, *dims: int) -> Array:
        return size * rng.normal(size=dims)

    P, a, E, B = normal(0.3, 1 + k, m, m), normal(1, 1 + k, m), normal(0.5, 1 + k, m, n), normal(0.5, 1 + k, n)
    P = P + P.transpose(0, 2, 1)
    P[0] = P[0] @ P[0] + 0.3 * np.eye(m) if rng.uniform() < 0.6 else 2 * P[0]
    E[1:] *= 0.3
    w = np.concatenate([np.zeros((1 + k, m)), normal(0.2, 1 + k, 3)], -1)
    w[0] = np.abs(rng.normal(size=r)) + 0.05
    R = np.concatenate([np.eye(m) + normal(0.2, m, m), normal(0.7, 3, m)])
    T, o, c = normal(0.3, r, n), normal(0.5, r), normal(0.3, 1 + k)
    c[0] = abs(c[0])
    S, s, x, inside = normal(0.7, 3, m), normal(0.5, 3), normal(1, n), normal(1, m)
    slack = np.concatenate([np.zeros(1 + p), _slack(rng, shape)])
    bent = (w, R, T, o, c, S, s)
    tensors = [torch.from_numpy(part) for part in (x, P, a, E, B, np.zeros(1 + k), *bent, inside)]
    b = -values(*tensors).numpy() - slack
    return Program(shape, "smooth", x, (P, a, E, B, b, *bent), inside)


def decaying(rng: Rng, shape: Shape) -> Program:
    """Nears its infimum along a direction and never takes it: an exponential or a softplus is all that falls there."""
    given = smooth(rng, shape)
    P, a, E, B, b, w, R, T, o, c, S, s = given.data
    m, k = shape.m, shape.p + shape.q
    along = Direction.draw(rng, m)  # nothing changes along it ...
    P, a, E, R, S = along.blind(P, 1, 2), along.blind(a, 1), along.blind(E, 1), along.blind(R, 1), along.blind(S, 1)
    P[0] = along.blind(P[0] @ P[0], 0, 1)
    falls = m + rng.integers(0, 2)
    R[falls] -= along.vector  # ... but one term of the objective
    w, b = w.copy(), b.copy()
    w[1:, falls] = w[0, -1] = 0
    data = (P, a, E, B, b, w, R, T, o, c, S, s)
    tensors = [torch.from_numpy(part) for part in (given.x, *data, given.inside)]
    b[1:] -= values(*tensors).numpy()[1:] + np.concatenate([np.zeros(shape.p), rng.exponential(size=k - shape.p)])
    return Program(shape, "decaying", given.x, data, given.inside, solvable=False)
