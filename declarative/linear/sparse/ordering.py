"""In which order to eliminate: pairs that are always safe pivots, and orders that keep the factor sparse or shallow.

A KKT matrix has zeros on its diagonal, at equalities and active inequalities, so that no order makes each entry of the
diagonal a pivot. But paired with an unknown that it depends on, a constraint makes a good one: [h, a; a, -e] has a
determinant of -(h e + a^2), whatever h and e. Which pairs is decided once, from the pattern; the pairs are the nodes of
a smaller graph, which is then ordered.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import NDArray
from scipy.sparse.csgraph import maximum_bipartite_matching, reverse_cuthill_mckee
from scipy.sparse.linalg import splu

from .entries import Entries, Integers
from .index_sets import NoPattern
from .pattern import Pattern

Flags = NDArray[np.bool_]
Graph = Any  # a symmetric scipy.sparse.csr_matrix of Booleans, without a diagonal
HEAVY = 0.1  # an entry with this part of the largest of its row is preferred as a pivot
HUB = 2000  # neighbours that are too many for minimum degree
FULL = 0.9  # a graph with this part of all edges is taken as complete
LIMIT = 2e9  # multiplications of a factorisation: more than that is not sparse
CROWDED = 0.05  # a graph with this part of all edges soon becomes complete


@dataclass(frozen=True, eq=False)
class Order:
    """The nodes in the order of their elimination, and what is connected to each when its turn comes."""

    place: Integers  # of each node in the order, (nodes,)
    later: Entries  # (i, j): the node in place j is connected to that in place i > j
    rounds: Integers | None = None  # how many nodes are eliminated at a time, where they are not connected


def match_constraints(pattern: Pattern, firm: Flags, strengths: NDArray[Any] | None) -> Integers:  # (k,)
    """An unknown for every constraint, each at most once; -1 where none is left.

    Firm constraints come first: those with nothing on the diagonal. They get large entries, of unknowns without
    curvature of their own if possible, for these need a partner too. Then come small entries, and other constraints.
    """
    matrix = pattern.jacobian
    flat = np.ones(matrix.shape[1], dtype=bool)
    flat[pattern.hessian.rows[pattern.hessian.rows == pattern.hessian.columns]] = False
    first, heavy = firm[matrix.rows], _heavy(matrix, strengths)
    partner = np.full(matrix.shape[0], -1)
    for allowed in (first & heavy & flat[matrix.columns], first & heavy, first, heavy):
        _extend(partner, matrix, allowed)
    most = np.full_like(partner, -1)
    _extend(most, matrix, first)
    if (most >= 0).sum() > (partner[firm] >= 0).sum():
        partner = most  # preferences have cost pairs
    _extend(partner, matrix, np.ones_like(first))
    return partner


def _heavy(matrix: Entries, strengths: NDArray[Any] | None) -> Flags:
    if strengths is None:
        return np.ones(len(matrix), dtype=bool)
    largest = np.zeros(matrix.shape[0])
    np.maximum.at(largest, matrix.rows, strengths)
    heavy: Flags = strengths >= HEAVY * largest[matrix.rows]
    return heavy


def _extend(partner: Integers, matrix: Entries, allowed: Flags) -> None:
    """Match what is still single, by the entries that are allowed."""
    free = np.ones(matrix.shape[1], dtype=bool)
    free[partner[partner >= 0]] = False
    usable = allowed & free[matrix.columns] & (partner[matrix.rows] < 0)
    if usable.any():
        ones = np.ones(int(usable.sum()), dtype=bool)
        graph = scipy.sparse.csr_matrix((ones, (matrix.rows[usable], matrix.columns[usable])), matrix.shape)
        found = maximum_bipartite_matching(graph, perm_type="column")
        partner[found >= 0] = found[found >= 0]


def least_fill(graph: Graph, sizes: Integers) -> Order:
    """Minimum degree, by SuperLU, whose factor of the graph's Laplacian has the pattern that is wanted."""
    degrees = np.diff(graph.indptr)
    if degrees.max(initial=0) > max(HUB, graph.shape[0] / 8) or _narrow_work(graph) > 10 * LIMIT:
        return least_depth(
            graph, sizes
        )  # SuperLU's time grows with the square of a degree, and it does not know limits
    # Every entry of the factor of a Laplacian differs from zero, and none becomes so small that it would not.
    laplacian = scipy.sparse.diags(degrees + 1e-6) - graph.astype(float)
    options = {"SymmetricMode": True}
    factor = splu(laplacian.tocsc(), "MMD_AT_PLUS_A", diag_pivot_thresh=0.0, relax=1, panel_size=1, options=options)
    later = Entries.of(scipy.sparse.tril(factor.L, -1))
    if not np.array_equal(factor.perm_r, factor.perm_c) or not _closed(later):
        return least_depth(graph, sizes)
    return Order(factor.perm_c.astype(np.int64), later)


def _narrow_work(graph: Graph) -> float:
    """How many multiplications it takes at most, if the graph is made narrow: ten times what a good order takes."""
    place = np.argsort(reverse_cuthill_mckee(graph, symmetric_mode=True))
    first = np.arange(len(place))
    np.minimum.at(first, np.repeat(place, np.diff(graph.indptr)), place[graph.indices])
    return float(((np.arange(len(place)) - first).astype(float) ** 2).sum() / 2)


def _closed(later: Entries) -> bool:
    """Whether eliminating a node connects only what is connected: all of its neighbours to the first of them."""
    count = later.shape[0]
    order = later.turned
    rows, columns = later.rows[order], later.columns[order]
    parent = np.full(count, -1)
    parent[columns[::-1]] = rows[::-1]  # the first one of each column is written last
    keys = columns * count + rows
    needed = (parent[columns] * count + rows)[rows != parent[columns]]
    found = np.searchsorted(keys, needed)
    return bool((keys[np.minimum(found, len(keys) - 1)] == needed).all())


def least_depth(graph: Graph, sizes: Integers) -> Order:
    """Rounds of nodes that are not connected, those of low degree first: few levels, for elimination level by level."""
    alive, work = np.arange(graph.shape[0]), 0.0
    rounds, structures = [], []
    while len(alive) and graph.nnz < FULL * len(alive) ** 2:
        crowded = graph.nnz > CROWDED * len(alive) ** 2
        _require_sparse(work + len(alive) ** 3 / 6 if crowded else work)
        chosen = _independent(graph, graph.astype(np.int64) @ sizes[alive])
        chosen = chosen[np.argsort(sizes[alive[chosen]], kind="stable")]  # pairs last
        structures.append(_renumbered(graph[chosen], alive, len(sizes)))
        rounds.append(alive[chosen])
        work += float((np.diff(structures[-1].indptr).astype(float) ** 2).sum() / 2)
        rest = np.setdiff1d(np.arange(len(alive)), chosen, assume_unique=True)
        bridge = graph[rest][:, chosen]
        graph = graph[rest][:, rest] + bridge @ bridge.T
        graph.setdiag(False)
        graph.eliminate_zeros()
        alive = alive[rest]
    if len(alive):  # a clique: one by one
        _require_sparse(work + len(alive) ** 3 / 6)
        clique = scipy.sparse.triu(np.ones((len(alive), len(alive)), dtype=bool), 1).tocsr()
        structures.append(_renumbered(clique, alive, len(sizes)))
        rounds.extend(alive.reshape(-1, 1))
    place = np.empty(len(sizes), dtype=np.int64)
    place[np.concatenate([*rounds, alive[:0]])] = np.arange(len(sizes))
    joined = scipy.sparse.vstack([scipy.sparse.csr_matrix((0, len(sizes)), dtype=bool), *structures]).tocoo()
    later = scipy.sparse.coo_matrix((joined.data, (place[joined.col], joined.row)), (len(sizes), len(sizes)))
    return Order(place, Entries.of(later), np.array([len(nodes) for nodes in rounds], dtype=np.int64))


def _require_sparse(work: float) -> None:
    if work > LIMIT:
        raise NoPattern(f"the factor of the KKT matrix is not sparse: it takes about {work:.0e} multiplications")


def _independent(graph: Graph, degrees: Integers) -> Integers:
    """Nodes with a lower degree than all of their neighbours; equals are told apart by lot."""
    lots = np.random.default_rng(0).permutation(len(degrees))
    keys = degrees.astype(np.int64) * len(degrees) + lots
    least = np.full(len(degrees), np.iinfo(np.int64).max)
    np.minimum.at(least, np.repeat(np.arange(len(degrees)), np.diff(graph.indptr)), keys[graph.indices])
    return np.flatnonzero(keys < least)


def _renumbered(rows: Graph, numbers: Integers, count: int) -> Graph:
    return scipy.sparse.csr_matrix((rows.data, numbers[rows.indices], rows.indptr), (rows.shape[0], count))
