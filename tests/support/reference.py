"""The solution of a random program nearest to a point, and its gradient, without the library and without autograd.

Newton's method on the optimality conditions, with residuals in extended precision and every set of active constraints
that the point could stand for. Gradients are finite differences of it, which extended precision makes good to twelve
digits; the formula, evaluated apart from them, tells how much rounding and conditioning can do to a right gradient.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tests.support.random_programs import Program

Array = NDArray[np.floating]
LONG = np.longdouble
STEPS = 40
CONVERGED = 1e-15  # the last step of Newton's method, relative
STRICT = 1e-9  # a multiplier or slack of the wrong sign
DIFFERENCES = (LONG(1e-3), LONG(1e-4), LONG(1e-5))  # of x


@dataclass(frozen=True)
class Local:
    """All functions of a program at (x, u): the objective first, then the constraints."""

    values: Array  # (1 + k,)
    slopes: Array  # (1 + k, m)
    curvatures: Array  # (1 + k, m, m)
    slopes_x: Array  # (1 + k, n)
    mixed: Array  # (1 + k, m, n)
    noise: tuple[Array, Array]  # rounding errors of values and slopes, in units of the last place


def expand(program: Program, x: Array, u: Array, size: Array) -> Local:
    """``size`` is that of the numbers from which u is computed, for the rounding errors."""
    P, a, E, B, b, *bent = (part.astype(LONG) for part in program.data)
    linear = a + E @ x
    values, slopes = ((P @ u) / 2 + linear) @ u + B @ x + b, P @ u + linear
    curvatures, slopes_x, mixed = P, np.einsum("kmn,m->kn", E, u) + B, E
    slope_noise = np.abs(P) @ size + np.abs(a) + np.abs(E) @ np.abs(x)
    noise = slope_noise @ size + np.abs(B) @ np.abs(x) + np.abs(b)
    if bent:
        w, R, T, o, c, S, s = bent
        phi, first, second = _ridges(R @ u + T @ x + o)
        blur = np.abs(R) @ size + np.abs(T) @ np.abs(x) + np.abs(o)
        exponents = S @ u + s
        weights = np.exp(exponents - exponents.max())
        weights /= weights.sum()
        spread = S.T @ (np.diag(weights) - np.outer(weights, weights)) @ S
        values = values + w @ phi + c * (np.log(np.exp(exponents).sum()))
        slopes = slopes + (w * first) @ R + np.outer(c, weights @ S)
        curvatures = curvatures + np.einsum("kr,ri,rj->kij", w * second, R, R) + c[:, None, None] * spread
        slopes_x, mixed = slopes_x + (w * first) @ T, mixed + np.einsum("kr,ri,rj->kij", w * second, R, T)
        noise = noise + np.abs(w) @ (np.abs(phi) + np.abs(first) * blur) + np.abs(c) * (1 + np.abs(exponents).max())
        slope_noise = slope_noise + np.abs(w) * (np.abs(first) + np.abs(second) * blur) @ np.abs(R)
        slope_noise = slope_noise + np.outer(np.abs(c), (1 + np.abs(exponents)) @ np.abs(S))
    return Local(values, slopes, curvatures, slopes_x, mixed, (noise, slope_noise))


def _ridges(t: Array) -> tuple[Array, Array, Array]:
    """phi and its first two derivatives: fourth powers, then exponential, softplus and sine."""
    power, (e, s, w) = t[:-3], t[-3:]
    logistic = 1 / (1 + np.exp(-s))
    return (
        np.array([*power**4, np.exp(e), np.logaddexp(s, LONG(0)), np.sin(w)]),
        np.array([*(4 * power**3), np.exp(e), logistic, np.cos(w)]),
        np.array([*(12 * power**2), np.exp(e), logistic * (1 - logistic), -np.sin(w)]),
    )


@dataclass(frozen=True, eq=False)
class Reference:
    """A point that satisfies the optimality conditions, with these constraints active."""

    program: Program
    u: Array  # (m,)
    multipliers: Array  # of all constraints, L = f - multipliers' c, (k,)
    active: tuple[int, ...]
    margin: float  # the least of what keeps an inequality active or not, relative
    curvature: float  # the least eigenvalue of the reduced Hessian, relative to the largest of the Hessian

    def system(self, here: Local) -> Array:
        """[H A'; A 0]"""
        rows = here.slopes[1:][list(self.active)]
        hessian = here.curvatures[0] - np.tensordot(self.multipliers, here.curvatures[1:], 1)
        return np.block([[hessian, rows.T], [rows, np.zeros((len(rows), len(rows)))]]).astype(np.float64)

    def gradient_by_formula(self, v: Array, u: Array) -> tuple[Array, Array]:
        """-(B'z + C's) with [H A'; A 0] [z; s] = [v; 0] at a point near the solution, and the size of its terms."""
        here = expand(self.program, self.program.x.astype(LONG), u, np.abs(u))
        right = np.concatenate([v, np.zeros(len(self.active))])
        z, s = np.split(np.linalg.solve(self.system(here), right.astype(np.float64)), [len(u)])
        chosen = here.slopes_x[1:][list(self.active)]
        mixed = here.mixed[0] - np.tensordot(self.multipliers, here.mixed[1:], 1)
        sizes = np.abs(here.mixed[0]) + np.tensordot(np.abs(self.multipliers), np.abs(here.mixed[1:]), 1)
        return -(mixed.T @ z + chosen.T @ s), sizes.T @ np.abs(z) + np.abs(chosen).T @ np.abs(s)

    def gradient_by_differences(self, v: Array, step: LONG) -> Array:
        """Of v'u, by the formula of fourth order on solutions with the same active constraints."""
        x, result = self.program.x.astype(LONG), []
        for unit in step * np.eye(len(self.program.x)).astype(LONG):
            moved = [_newton(self.program, x + k * unit, self.u, self.active) for k in (-2, -1, 1, 2)]
            a, b, c, d = (LONG(np.nan) if one is None else v @ one[0] for one in moved)
            result.append((a - 8 * b + 8 * c - d) / (12 * step))
        return np.array(result)

    def accuracy(self, eps: float, size: Array) -> tuple[Array, float]:
        """How far rounding errors can move the solution, per entry, and the condition of the system."""
        here = expand(self.program, self.program.x.astype(LONG), self.u, size)
        values, slopes = here.noise
        force = slopes[0] + np.abs(self.multipliers) @ slopes[1:]
        noise = eps * np.concatenate([force, values[1:][list(self.active)]]).astype(np.float64)
        matrix = self.system(here)
        inverse = np.linalg.pinv(matrix, rcond=1e-15)
        return (np.abs(inverse) @ noise)[: len(self.u)] + eps * size.astype(np.float64), _condition(matrix)


def nearest(program: Program, u: Array) -> Reference | None:
    """The solution of the optimality conditions near u, of whatever kind; None if there is none."""
    x, p = program.x.astype(LONG), program.shape.p
    u = u.astype(LONG)
    here = expand(program, x, u, np.abs(u))
    length = np.maximum(np.linalg.norm(here.slopes[1:].astype(np.float64), axis=1), 1e-12)
    slack = -(here.values[1:] / length)[p:].astype(np.float64)
    best: Reference | None = None
    for active in _guesses(slack, p):
        found = _newton(program, x, u, active)
        reference = None if found is None else _checked(program, *found, active)
        if reference is not None and (best is None or _apart(reference.u, u) < _apart(best.u, u)):
            best = reference
            if _apart(best.u, u) < 1e-3:
                break
    return best


def _guesses(slack: Array, p: int) -> Iterator[tuple[int, ...]]:
    """Sets of active constraints: by how near they are, then all others of those that are near."""
    equalities, seen = tuple(range(p)), set()
    near = [i for i in np.argsort(slack).tolist() if slack[i] < 0.3]
    first = [tuple(i for i in near if slack[i] < reach) for reach in (1e-9, 1e-6, 1e-4, 1e-2)]
    subsets = (one for count in range(len(near) + 1) for one in itertools.combinations(near, count))
    for one in itertools.chain(first, subsets):
        active = (*equalities, *sorted(p + i for i in one))
        if active not in seen:
            seen.add(active)
            yield active


def _newton(program: Program, x: Array, u: Array, active: tuple[int, ...]) -> tuple[Array, Array] | None:
    """Solve D_U L = 0 and c = 0 for these constraints, from u: the solution and the multipliers of all constraints."""
    chosen, m = list(active), len(u)
    if len(chosen) > m:
        return None
    start, multipliers = u, np.zeros(program.shape.p + program.shape.q, dtype=LONG)
    for step in range(STEPS):
        here = expand(program, x, u, np.abs(u))
        rows = here.slopes[1:][chosen]
        if not step:
            guess = np.linalg.lstsq(rows.T.astype(np.float64), here.slopes[0].astype(np.float64), rcond=None)[0]
            multipliers[chosen] = guess
        hessian = here.curvatures[0] - np.tensordot(multipliers, here.curvatures[1:], 1)
        matrix = np.block([[hessian, -rows.T], [rows, np.zeros((len(chosen), len(chosen)))]])
        residual = np.concatenate([here.slopes[0] - multipliers @ here.slopes[1:], here.values[1:][chosen]])
        if not np.isfinite(matrix.astype(np.float64)).all() or _condition(matrix.astype(np.float64)) > 1e13:
            return None
        change = np.linalg.solve(matrix.astype(np.float64), -residual.astype(np.float64))
        u, multipliers[chosen] = u + change[:m], multipliers[chosen] + change[m:]
        if np.abs(change[:m]).max(initial=0.0) <= CONVERGED * (1 + np.abs(u).max()):
            return u, multipliers
        if _apart(u, start) > 10:
            return None
    return None


def _checked(program: Program, u: Array, multipliers: Array, active: tuple[int, ...]) -> Reference | None:
    """The reference, if all signs are right."""
    p, here = program.shape.p, expand(program, program.x.astype(LONG), u, np.abs(u))
    rows = here.slopes[1:].astype(np.float64)
    length = np.maximum(np.linalg.norm(rows, axis=1), 1e-12)
    pulls = (-multipliers * length).astype(np.float64)[p:]
    force = np.abs(here.slopes[0]).max() + np.abs(pulls).max(initial=0.0) + 1e-12
    slack = -(here.values[1:] / length).astype(np.float64)[p:]
    held = np.array([p + i in active for i in range(program.shape.q)], dtype=bool)
    keeps = np.where(held, pulls / float(force), slack)
    if (keeps < -STRICT).any():
        return None
    hessian = (here.curvatures[0] - np.tensordot(multipliers, here.curvatures[1:], 1)).astype(np.float64)
    free = _null_space(rows[list(active)])
    reduced = np.linalg.eigvalsh(free.T @ hessian @ free)
    curvature = float(reduced[0] / max(np.abs(hessian).max(), 1e-12)) if len(reduced) else 1.0
    return Reference(program, u, multipliers, active, float(keeps.min(initial=1.0)), curvature)


def _null_space(rows: Array) -> Array:
    _, values, basis = np.linalg.svd(rows, full_matrices=True)
    return basis[int((values > 1e-10).sum()) :].T


def _condition(matrix: Array) -> float:
    """Of a matrix whose rows and columns are brought to the same size: units do not make a problem hard."""
    dense = matrix.astype(np.float64)
    for _ in range(3):
        for axis in (0, 1):
            size = np.sqrt(np.abs(dense).max(axis, keepdims=True))
            dense = dense / np.where(size > 0, size, 1.0)
    return float(np.linalg.cond(dense)) if np.isfinite(dense).all() else np.inf


def _apart(u: Array, other: Array) -> float:
    return float(np.abs(u - other).max())
