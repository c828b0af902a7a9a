"""Independent truth: solutions and gradients that no library under test has computed, and that prove themselves.

A quadratic program or a nonlinear one is solved by anyone (Clarabel, IPOPT), which is asked only *which* constraints
are active; the rest is Newton's method on the optimality conditions in plain NumPy, down to rounding. What comes out is
accepted only if it is feasible, its multipliers have the right sign, and no constraint is in doubt. The gradient solves
the same linear system, transposed: K [z; s] = [v; 0].
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from .cases import Array, Case, Eigen, Gradients, Programme, Quadratic, Simplex, Transport
from .conditions import DOUBT, ROUNDS, TIGHT, Conditions, NoTruthError, Refined, kkt


@dataclass(frozen=True)
class Truth:
    """Of a batch."""

    y: Array
    gradients: Gradients


def truth(case: Case) -> Truth:
    """The solution and the gradient of v'y in the inputs."""
    kinds: dict[type, Any] = {
        Quadratic: _quadratic, Simplex: _simplex, Transport: _transport, Eigen: _eigen, Programme: _programme,
    }  # fmt: skip
    return kinds[type(case.statement)](case)  # type: ignore[no-any-return]


# Quadratic programs.


def _quadratic(case: Case) -> Truth:
    program = case.quadratic()
    found = [_one_quadratic(program.one(i), v, set(case.inputs)) for i, v in enumerate(case.cotangent)]
    gradients = {name: np.stack([one[1][name] for one in found]) for name in case.inputs}
    return Truth(np.stack([one[0] for one in found]), gradients)


def _one_quadratic(data: tuple[Any, ...], v: Array, wanted: set[str]) -> tuple[Array, Gradients]:
    Q, q, A, b, G, h = data
    active = _active_set(*data)
    for _ in range(ROUNDS):
        rows = scipy.sparse.vstack([A, G.tocsr()[active]], format="csc") if scipy.sparse.issparse(Q) else np.vstack(
            [A, G[active]]
        )  # fmt: skip
        matrix = Refined(kkt(Q, rows))
        u, nu, mu = np.split(matrix.solve(np.concatenate([-q, b, h[active]])), [len(q), len(q) + len(b)])
        slack = h - G @ u
        wrong = ((slack < -DOUBT * (1 + abs(h))) & ~active).nonzero()[0], active.nonzero()[0][mu < -DOUBT]
        if not len(wrong[0]) and not len(wrong[1]):
            break
        active[wrong[0]], active[wrong[1]] = True, False
    else:
        raise NoTruthError("no active set satisfies the optimality conditions")
    if (mu < DOUBT).any() or (slack[~active] < DOUBT).any():
        raise NoTruthError("a constraint is just active: the gradient does not exist")
    z, s, t = np.split(matrix.proved(np.r_[v, np.zeros(len(b) + len(mu))]), [len(q), len(q) + len(b)])
    multipliers, of_h = np.zeros(len(h)), np.zeros(len(h))
    multipliers[active], of_h[active] = mu, t
    formulas: dict[str, Callable[[], Array]] = {
        "q": lambda: -z,
        "b": lambda: s,
        "h": lambda: of_h,
        "Q": lambda: -(np.outer(z, u) + np.outer(u, z)) / 2,
        "A": lambda: -(np.outer(nu, z) + np.outer(s, u)),
        "G": lambda: -(np.outer(multipliers, z) + np.outer(of_h, u)),
    }
    return u, {name: formulas[name]() for name in wanted}


def _active_set(Q: Any, q: Array, A: Any, b: Array, G: Any, h: Array) -> NDArray[np.bool_]:
    """Where the multiplier is larger than the slack, by Clarabel; whatever it says, the caller proves or mends it."""
    clarabel = importlib.import_module("clarabel")
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = TIGHT
    csc = scipy.sparse.csc_matrix
    rows = scipy.sparse.vstack([csc(A), csc(G)], format="csc")
    cones = [clarabel.ZeroConeT(len(b)), clarabel.NonnegativeConeT(len(h))]
    upper = scipy.sparse.triu(csc(Q), format="csc")
    solution = clarabel.DefaultSolver(upper, q, csc(rows), np.r_[b, h], cones, settings).solve()
    slack, multipliers = np.array(solution.s)[len(b) :], np.array(solution.z)[len(b) :]
    return multipliers > slack


def _simplex(case: Case) -> Truth:
    """In closed form: the largest entries, less what makes them sum to 1."""
    assert isinstance(case.statement, Simplex)
    x = case.statement.x.astype(np.longdouble)
    ordered = -np.sort(-x, axis=-1)
    count = np.arange(1, x.shape[-1] + 1)
    levels = (ordered.cumsum(-1) - 1) / count
    support = (ordered > levels).sum(-1, keepdims=True)
    y = np.maximum(x - np.take_along_axis(levels, support - 1, -1), 0)
    inside = y > 0
    v = case.cotangent
    gradient = np.where(inside, v - (v * inside).sum(-1, keepdims=True) / inside.sum(-1, keepdims=True), 0.0)
    return Truth(y.astype(np.float64), {"q": -gradient})  # the input is called q, as in the quadratic program: q = -x


# Transport and eigenvectors.


def _transport(case: Case) -> Truth:
    """Newton's method on the dual from Sinkhorn's potentials; the residual is that of the marginals."""
    assert isinstance(case.statement, Transport)
    gamma = case.statement.gamma
    pairs = [_one_transport(M, v, gamma) for M, v in zip(case.statement.M, case.cotangent, strict=True)]
    return Truth(np.stack([y.ravel() for y, _ in pairs]), {"M": np.stack([g for _, g in pairs])})


def _one_transport(M: Array, v: Array, gamma: float) -> tuple[Array, Array]:
    n = len(M)
    f, g = np.zeros(n), np.zeros(n)
    for _ in range(200):
        f -= np.log(n * np.exp(f[:, None] + g - gamma * M).sum(1))
        g -= np.log(n * np.exp(f[:, None] + g - gamma * M).sum(0))
    for _ in range(ROUNDS):
        P = np.exp(f[:, None] + g - gamma * M)
        residual = np.r_[P.sum(1) - 1 / n, P.sum(0) - 1 / n]
        if n * abs(residual).max() < 1e-13:
            break
        step = np.linalg.lstsq(_marginals(P), residual)[0] if n < 50 else _grounded(P, residual)
        f, g = f - step[:n], g - step[n:]
    else:
        raise NoTruthError("Newton's method on the dual did not converge")
    V = v.reshape(n, n)
    a = _grounded(P, np.r_[(V * P).sum(1), (V * P).sum(0)])
    return P, -gamma * P * (V - a[:n, None] - a[n:])


def _marginals(P: Array) -> Array:
    return np.block([[np.diag(P.sum(1)), P], [P.T, np.diag(P.sum(0))]])


def _grounded(P: Array, right: Array) -> Array:
    """The solution whose last entry is zero."""
    solution = Refined(_marginals(P)[:-1, :-1]).solve(right[:-1])
    return np.append(solution, 0.0)


def _eigen(case: Case) -> Truth:
    """By all eigenvectors of the symmetric matrix."""
    assert isinstance(case.statement, Eigen)
    values, vectors = np.linalg.eigh(case.statement.X)
    y = vectors[..., -1]
    largest = np.take_along_axis(y, abs(y).argmax(-1, keepdims=True), -1)
    y = y * np.sign(largest)
    parts = np.einsum("bij,bi->bj", vectors, case.cotangent)[:, :-1] / (values[:, -1:] - values[:, :-1])
    z = np.einsum("bij,bj->bi", vectors[..., :-1], parts)
    outer = z[:, :, None] * y[:, None, :]
    return Truth(y, {"X": (outer + outer.mT) / 2})


# Nonlinear programmes.


def _programme(case: Case) -> Truth:
    programme = case.statement
    assert isinstance(programme, Programme)
    conditions = Conditions(programme)
    points = [conditions.solve(p, start) for p, start in zip(programme.p, programme.start, strict=True)]
    triples = zip(programme.p, points, case.cotangent, strict=True)
    return Truth(np.stack([one.u for one in points]), {"p": np.stack([conditions.gradient(*one) for one in triples])})
