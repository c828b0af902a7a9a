"""Programs with unknowns that no objective contains, so that multipliers vanish, and their gradients by elimination.

    minimise u'Qu / 2 + x'u + p'z   subject to   E u = d   and   phi(z) = side(W u + r),

with prices p that are zero, nearly zero, or not, in units of f, the constraints and (u, z). As z = psi(W u + r),
the truth is that of a problem in u alone: its derivatives are written out here, in long double, without the library.
"""

from __future__ import annotations

import functools
import warnings
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from declarative import DeclarativeNode, NumericalWarning, Status

Array = NDArray[Any]
Rng = np.random.Generator
LONG = np.longdouble
KINDS = ("square", "cubic", "exp", "length")
SIZES = [(3, 2, 0), (4, 3, 1), (2, 4, 0), (6, 6, 2), (20, 20, 0), (50, 50, 0)]
SHARES = [0.3, 0.25, 0.2, 0.17, 0.06, 0.02]
BATCH = 3
WRONG = 1e-5  # of an entry of the gradient, or of a thousandth of the largest of its kind


def curved(kind: str, z: Tensor) -> Tensor:
    """phi(z)."""
    return {"square": z.square, "cubic": lambda: z**3 + z, "exp": z.exp, "length": z.square}[kind]()


def side(kind: str, a: Tensor) -> Tensor:
    """What phi(z) is equal to."""
    return a if kind in ("square", "cubic") else 1 + a.square()


def psi(kind: str, a: Array) -> tuple[Array, Array, Array]:
    """z, and its first and second derivative by a."""
    if kind == "square":
        z = np.sqrt(a)
        return z, 1 / (2 * z), -1 / (4 * z**3)
    if kind == "exp":
        s = 1 + a * a
        return np.log(s), 2 * a / s, (2 * s - 4 * a * a) / s**2
    if kind == "length":
        z = np.sqrt(1 + a * a)
        return z, a / z, 1 / z**3
    z = np.sign(a) * np.abs(a) ** (LONG(1) / 3)
    for _ in range(200):
        z = z - (z**3 + z - a) / (3 * z * z + 1)
    slope = 1 / (3 * z * z + 1)
    return z, slope, -6 * z * slope**3


def solved(matrix: Array, right: Array) -> Array:
    """The solution of a system, by Gauss with pivots, in the precision that it is given in."""
    work = np.concatenate([matrix, right[:, None]], 1).astype(LONG)
    n = len(right)
    for i in range(n):
        pivot = i + int(np.argmax(np.abs(work[i:, i])))
        work[[i, pivot]] = work[[pivot, i]]
        work[i + 1 :] -= np.outer(work[i + 1 :, i] / work[i, i], work[i])
    x = np.zeros(n, dtype=LONG)
    for i in reversed(range(n)):
        x[i] = (work[i, n] - work[i, i + 1 : n] @ x[i + 1 :]) / work[i, i]
    return x


@dataclass(frozen=True, eq=False)
class Program:
    kind: str
    x: Array  # (n,)
    p: Array  # (k,)
    r: Array  # (k,)
    Q: Array
    W: Array
    E: Array
    d: Array

    def inputs(self) -> tuple[Array, ...]:
        return self.x, self.p, self.r, self.Q, self.W, self.E, self.d

    def bordered(self, hessian: Array) -> Array:
        rows = self.E.astype(LONG)
        return np.block([[hessian, rows.T], [rows, np.zeros((len(rows), len(rows)), dtype=LONG)]])

    def hidden(self, u: Array) -> tuple[Array, Array, Array]:
        return psi(self.kind, self.W.astype(LONG) @ u + self.r.astype(LONG))

    def hessian(self, bend: Array) -> Array:
        """Of the objective with z eliminated."""
        weights = np.where(self.p == 0, 0, self.p.astype(LONG) * bend)
        return self.Q.astype(LONG) + (self.W.T * weights) @ self.W

    def optimum(self, u: Array) -> Array:
        """The solution next to a point, by Newton's method."""
        u, multipliers = u.astype(LONG), np.zeros(len(self.E), dtype=LONG)
        for _ in range(40):
            _, slope, bend = self.hidden(u)
            force = self.Q @ u + self.x + self.W.T @ np.where(self.p == 0, 0, self.p * slope)
            right = np.concatenate([-(force + self.E.T @ multipliers), self.d - self.E @ u])
            step = solved(self.bordered(self.hessian(bend)), right)
            u, multipliers = u + step[: len(u)], multipliers + step[len(u) :]
            if np.abs(step[: len(u)]).max() < 1e-18 * max(1, np.abs(u).max()):
                break
        return u

    def gradient(self, u: Array, v: Array) -> list[Array]:
        """Of v'(u, z) by x, p and r."""
        n = len(self.x)
        _, slope, bend = self.hidden(u)
        right = np.concatenate([v[:n] + self.W.T @ (v[n:] * slope), np.zeros(len(self.d))])
        w = solved(self.bordered(self.hessian(bend)), right)[:n]
        return [-w, -slope * (self.W @ w), v[n:] * slope - self.p * bend * (self.W @ w)]


def draw(rng: Rng, size: tuple[int, int, int], kind: str) -> Program:
    n, k, e = size
    root = rng.normal(size=(n, n))
    Q = root @ root.T / n + np.diag(10.0 ** rng.uniform(-2, 1, n))
    W, E, d, x = rng.normal(size=(k, n)), rng.normal(size=(e, n)), rng.normal(size=e), rng.normal(size=n)
    near = rng.choice([-1, 1], size=k) * 10.0 ** rng.uniform(-12, -3, k)
    price = 0.1 * rng.uniform(size=k)
    some = np.where(rng.uniform(size=k) < 0.5, 0, price)
    p = [0 * price, near, some, price][int(rng.choice(4, p=[0.45, 0.25, 0.2, 0.1]))]
    program = Program(kind, x, 0 * price, np.ones(k), Q, W, E, d)
    along = W @ plain_optimum(program)
    r = (10.0 ** rng.uniform(-1, 1.5, k) - along) if kind == "square" else rng.normal(size=k)
    return Program(kind, x, p, r, Q, W, E, d)


def plain_optimum(program: Program) -> Array:
    """That without prices."""
    right = np.concatenate([-program.x, program.d])
    return solved(program.bordered(program.Q.astype(LONG)), right)[: len(program.x)].astype(float)


@functools.lru_cache(maxsize=200)
def node(size: tuple[int, int, int], kind: str, structure: str, record: bool) -> DeclarativeNode:
    n = size[0]

    def objective(*given: Tensor) -> Tensor:
        x, p, _, Q, _, _, _, unit, units, _, _, u = given
        a, z = (u * units)[:n], (u * units)[n:]
        return unit * (a @ Q @ a / 2 + x @ a + p @ z)

    def equality(*given: Tensor) -> Tensor:
        _, _, r, _, W, E, d, _, units, rows, _, u = given
        a, z = (u * units)[:n], (u * units)[n:]
        return rows * torch.cat([E @ a - d, side(kind, W @ a + r) - curved(kind, z)])

    options: dict[str, Any] = {"structure": structure, "record": record, "on_failure": "mask"}
    return DeclarativeNode(objective, equality, start=lambda *xs: xs[-1], **options)


def trial(seed: int, index: int, sizes: int = len(SIZES)) -> tuple[Counter[str], str]:
    """One batch: how many problems were right, wrong in silence and so on, and what it was."""
    rng = np.random.default_rng([seed, index])
    shares = np.array(SHARES[:sizes]) / sum(SHARES[:sizes])
    size, kind = SIZES[int(rng.choice(sizes, p=shares))], str(rng.choice(KINDS))
    programs = [draw(rng, size, kind) for _ in range(BATCH)]
    structure, record = str(rng.choice(["dense", "sparse", "auto"])), bool(rng.uniform() < 0.3)
    n, k, e = size
    units = [np.ones((BATCH, *shape)) for shape in ((), (n + k,), (e + k,))]
    for i in range(BATCH):
        for unit in units:
            if rng.uniform() < 0.3:
                unit[i] = 10.0 ** rng.uniform(-8, 8, size=unit[i].shape)
    starts = [started(rng, one) for one in programs]
    v = rng.normal(size=(BATCH, n + k))
    part = rng.integers(3)  # all of it, or that of u or of z alone
    v[:, :n] *= part != 1
    v[:, n:] *= part != 2
    xs = [torch.from_numpy(np.stack(column)) for column in zip(*(one.inputs() for one in programs), strict=True)]
    xs += [*(torch.from_numpy(unit) for unit in units), torch.from_numpy(np.stack(starts) / units[1])]
    for x in xs[:3]:
        x.requires_grad_()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        solution = node(size, kind, structure, record).solve(*xs)
        y = solution.y * torch.from_numpy(units[1])
        found = torch.autograd.grad((y * torch.from_numpy(v)).sum(), xs[:3])
    words = [str(one.message) for one in caught if issubclass(one.category, NumericalWarning)]
    words = [one for one in words if "were not solved" not in one]
    counts: Counter[str] = Counter(trials=1)
    for i, program in enumerate(programs):
        here = y[i].detach().numpy().astype(LONG)
        if solution.status[i] is not Status.CONVERGED:
            counts["unsolved"] += 1
        elif kind in ("square", "length") and (here[n:] < 0).any():
            counts["another root"] += 1
        else:
            truth = program.gradient(program.optimum(here[:n]), v[i].astype(LONG))
            counts["right" if is_right([g[i].numpy() for g in found], truth) else "told" if words else "WRONG"] += 1
    if words and not counts["told"]:
        counts["false alarm"] += 1
    return counts, f"seed {seed}, trial {index}: {kind}, {size}, {structure}, record={record}, {words}"


def started(rng: Rng, program: Program) -> Array:
    u = plain_optimum(program)
    z = program.hidden(u.astype(LONG))[0].astype(float)
    return np.concatenate([u + 0.3 * rng.normal(size=len(u)), z * np.exp(0.3 * rng.normal(size=len(z)))])


def is_right(found: list[Array], truth: list[Array]) -> bool:
    """Entry by entry."""
    largest = max(float(np.abs(one).max()) for one in truth)
    for one, other in zip(found, truth, strict=True):
        size = np.abs(other) + 1e-3 * max(float(np.abs(other).max()), 1e-6 * largest)
        if bool((np.abs(one - other) > WRONG * size).any()):
            return False
    return True
