"""Quadratic programs: dense and sparse, at random, a chain, Sudoku, bounded linear-quadratic control, a portfolio."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import scipy.sparse

from ..cases import Array, Case, Quadratic
from .family import Family, definite, generator

PACE = 0.5  # of a chain: how far neighbours may be apart
SPARSE = 4  # entries of a row of a sparse constraint
STATES, CONTROLS = 8, 4


def _case(program: Quadratic, draw: np.random.Generator, *wanted: str) -> Case:
    inputs = {name: getattr(program, name) for name in wanted}
    return Case(program, inputs, draw.standard_normal(program.q.shape))


def dense(size: int, batch: int, seed: int) -> Case:
    """A fifth as many equalities as unknowns, as many inequalities, and a point that satisfies them."""
    draw = generator("dense", size, batch, seed)
    A, G = draw.standard_normal((batch, size // 5, size)), draw.standard_normal((batch, size, size))
    inside = draw.standard_normal((batch, size, 1))
    b, h = (A @ inside)[..., 0], (G @ inside)[..., 0] + draw.uniform(size=(batch, size)) * size**0.5
    program = Quadratic(definite(draw, batch, size), 3 * draw.standard_normal((batch, size)), A, b, G, h)
    return _case(program, draw, "Q", "q", "A", "b", "G", "h")


def sparse(size: int, batch: int, seed: int) -> Case:
    """A few entries in every row; the matrices are shared, the vectors are not."""
    draw = generator("sparse", size, batch, seed)
    G, A = _rows(draw, size // 2, size), _rows(draw, size // 10, size)
    root = _rows(draw, size, size)
    Q = (root.T @ root / SPARSE + 0.1 * scipy.sparse.eye_array(size)).tocsc()
    inside = draw.standard_normal((batch, size))
    program = Quadratic(
        Q,
        draw.standard_normal((batch, size)),
        A,
        inside @ A.T,
        G,
        inside @ G.T + draw.uniform(size=(batch, size // 2)),
    )
    return _case(program, draw, "q", "b", "h")


def _rows(draw: np.random.Generator, count: int, size: int) -> Any:
    columns = np.concatenate([draw.choice(size, SPARSE, replace=False) for _ in range(count)])
    places = np.repeat(np.arange(count), SPARSE), columns
    return scipy.sparse.csc_array((draw.standard_normal(count * SPARSE), places), shape=(count, size))


def chain(size: int, batch: int, seed: int) -> Case:
    """The nearest point to x with neighbours at most so far apart; q = -x."""
    draw = generator("chain", size, batch, seed)
    ones = np.ones(size - 1)
    steps = scipy.sparse.diags_array([-ones, ones], offsets=[0, 1], shape=(size - 1, size)).tocsc()
    G = scipy.sparse.vstack([steps, -steps], format="csc")
    empty, eye = scipy.sparse.csc_array((0, size)), scipy.sparse.eye_array(size, format="csc")
    pace = np.full((batch, 2 * (size - 1)), PACE)
    program = Quadratic(eye, draw.standard_normal((batch, size)), empty, np.zeros((batch, 0)), G, pace)
    return _case(program, draw, "q")


def sudoku(size: int, batch: int, seed: int) -> Case:
    """OptNet's layer for Sudoku: the nearest table to what a network says, under the rules of the game.

    Of the rules (each digit once in every row, column and block, and one digit in every place) as many are kept as are
    independent. The network's opinion is weak enough for the table to be undecided: where every place is decided, more
    bounds are active than there are directions, and a gradient does not exist.
    """
    draw = generator("sudoku", size, batch, seed)
    A = _independent(_rules(size))
    cells = size**3
    opinion = 0.03 * draw.standard_normal((batch, cells))
    copies = [np.repeat(matrix[None], batch, 0) for matrix in (0.1 * np.eye(cells), A, -np.eye(cells))]
    program = Quadratic(copies[0], -opinion, copies[1], np.ones((batch, len(A))), copies[2], np.zeros((batch, cells)))
    return _case(program, draw, "q", "A", "b")


def _rules(size: int) -> Array:
    """Every group of places and digits of which exactly one is taken."""
    side, span = round(size**0.5), range(size)
    groups = [[(i, j, k) for k in span] for i, j in product(span, span)]
    groups += [[(i, j, k) for j in span] for i, k in product(span, span)]
    groups += [[(i, j, k) for i in span] for j, k in product(span, span)]
    corners = [(i, j) for i in range(0, size, side) for j in range(0, size, side)]
    block = list(product(range(side), range(side)))
    groups += [[(i + a, j + b, k) for a, b in block] for (i, j), k in product(corners, span)]
    rows = np.zeros((len(groups), size**3))
    for row, group in zip(rows, groups, strict=True):
        row[[(i * size + j) * size + k for i, j, k in group]] = 1
    return rows


def _independent(rows: Array) -> Array:
    kept: list[Array] = []
    for row in rows:
        if np.linalg.matrix_rank(np.array([*kept, row])) > len(kept):
            kept.append(row)
    return np.array(kept)


def control(size: int, batch: int, seed: int) -> Case:
    """Linear dynamics, a quadratic cost, bounded controls: states and controls of all steps are unknowns.

    The initial state enters the right-hand side b of the first step, whose gradient is wanted.
    """
    draw = generator("lq", size, 1, 0)  # the dynamics are the same for all batches
    F = np.eye(STATES) + 0.1 * draw.standard_normal((STATES, STATES))
    F /= abs(np.linalg.eigvals(F)).max()  # neither stable nor unstable
    B = 0.5 * draw.standard_normal((STATES, CONTROLS))
    draw = generator("lq", size, batch, seed)
    initial = 2 * draw.standard_normal((batch, STATES))
    shift = scipy.sparse.eye_array(size, k=-1)
    A = scipy.sparse.hstack(
        [
            scipy.sparse.eye_array(size * STATES) - scipy.sparse.kron(shift, F),
            -scipy.sparse.kron(scipy.sparse.eye_array(size), B),
        ],
        format="csc",
    )
    b = np.concatenate([initial @ F.T, np.zeros((batch, (size - 1) * STATES))], 1)
    weights = np.r_[np.ones(size * STATES), 0.1 * np.ones(size * CONTROLS)]
    Q = scipy.sparse.diags_array(weights, format="csc")
    free, bounded = scipy.sparse.csc_array((size * CONTROLS, size * STATES)), scipy.sparse.eye_array(size * CONTROLS)
    G = scipy.sparse.block_array([[free, bounded], [free, -bounded]], format="csc")
    h = np.ones((batch, 2 * size * CONTROLS))
    return _case(Quadratic(Q, np.zeros((batch, len(weights))), A, b, G, h), draw, "b")


def portfolio(size: int, batch: int, seed: int) -> Case:
    """Markowitz with costs of turnover: holdings w, and t >= |w - held|; a factor model of the risk.

    The gradient is wanted in the expected returns (q) and in what is held (h).
    """
    draw = generator("portfolio", size, batch, seed)
    factors = draw.standard_normal((size, max(2, size // 10)))
    risk = factors @ factors.T / factors.shape[1] + np.diag(draw.uniform(0.2, 1.0, size))
    held = draw.dirichlet(np.ones(size), batch)
    returns = 0.05 * draw.standard_normal((batch, size))
    eye, zero = scipy.sparse.eye_array(size), scipy.sparse.csc_array((size, size))
    Q = scipy.sparse.block_array([[scipy.sparse.csc_array(risk), None], [None, 1e-3 * eye]], format="csc")
    G = scipy.sparse.block_array([[eye, -eye], [-eye, -eye], [-eye, zero]], format="csc")
    h = np.concatenate([held, -held, np.zeros((batch, size))], 1)
    A = scipy.sparse.csc_array(np.r_[np.ones(size), np.zeros(size)][None])
    q = np.concatenate([-returns, np.full((batch, size), 0.02)], 1)
    return _case(Quadratic(Q, q, A, np.ones((batch, 1)), G, h), draw, "q", "h")


KKT = "truth: the optimality conditions on the active set, in extended precision"
FAMILIES = (
    Family(
        "dense-qp", "Dense quadratic programs", "quadratic", "unknowns",
        f"n unknowns, n/5 equalities, n inequalities, all six inputs differentiated; {KKT}.",
        dense, ((10, 1), (10, 32), (10, 128), (50, 32), (100, 1), (100, 32), (200, 8), (500, 1), (1000, 1)),
        ((10, 1), (10, 8)), layer=True, node=False,
    ),
    Family(
        "sparse-qp", "Sparse random quadratic programs", "quadratic", "unknowns",
        f"Four entries a row, matrices shared, the vectors q, b and h differentiated; {KKT}.",
        sparse, ((100, 1), (100, 32), (1000, 1), (1000, 8), (5000, 1)), ((30, 2),), layer=True,
    ),
    Family(
        "chain", "A chain", "quadratic", "links",
        f"The nearest point with neighbours at most 0.5 apart; {KKT}.",
        chain, ((100, 32), (1000, 1), (1000, 32), (10_000, 1), (100_000, 1)), ((30, 2),), layer=True,
    ),
    Family(
        "sudoku", "Sudoku 4 x 4 as a layer", "quadratic", "side",
        f"64 unknowns, 40 independent rules, bounds at zero; q, A and b differentiated; {KKT}.",
        sudoku, ((4, 1), (4, 32), (4, 128)), ((4, 2),), layer=True, node=False,
    ),
    Family(
        "lq-control", "Bounded linear-quadratic control", "control", "steps",
        f"8 states, 4 controls within bounds; the gradient in the initial state; {KKT}.",
        control, ((20, 1), (20, 32), (20, 128), (100, 1)), ((5, 2),), layer=True,
    ),
    Family(
        "portfolio", "Portfolio with turnover", "quadratic", "assets",
        f"Markowitz with a cost of trading; returns and holdings differentiated; {KKT}.",
        portfolio, ((10, 32), (50, 1), (50, 32), (200, 1)), ((5, 2),), layer=True,
    ),
)  # fmt: skip
