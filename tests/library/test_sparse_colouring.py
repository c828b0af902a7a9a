"""Derivatives in as many passes as there are colours, entry for entry those of dense autodiff."""

import itertools

import numpy as np
import pytest
import scipy.sparse
import torch

from declarative.linear.sparse import Entries, compress_hessian, compress_jacobian
from declarative.linear.sparse.colouring import colour_columns, colour_stars
from tests.support.sparse_problems import DOUBLE, PROBLEMS, symmetric


def random_graph(seed, size=40, degree=3, hub=False):
    matrix = np.random.default_rng(seed).random((size, size)) < degree / size
    if hub:
        matrix[seed % size] = True
    return Entries.of(matrix | matrix.T).lower()


GRAPHS = [random_graph(seed, degree=1 + seed % 5, hub=seed % 3 == 0) for seed in range(12)]


def symmetric_values(entries, batch=2):
    values = torch.randn(batch, len(entries), dtype=DOUBLE)
    below = entries.dense(values)
    return values, below + below.tril(-1).mT


@pytest.mark.parametrize("entries", GRAPHS)
def test_two_colours_make_stars(entries):
    colours, graph = colour_stars(entries), symmetric(entries)
    np.fill_diagonal(graph, False)
    for v, w in zip(*np.nonzero(graph), strict=True):
        assert colours[v] != colours[w] >= 0
        for x, y in itertools.product(np.flatnonzero(graph[v]), np.flatnonzero(graph[w])):  # the path x v w y
            assert x in (w, y) or y == v or len({*colours[[x, v, w, y]]}) > 2


@pytest.mark.parametrize("entries", GRAPHS)
def test_columns_of_one_colour_do_not_meet(entries):
    whole = Entries.of(symmetric(entries))
    colours = colour_columns(whole)
    for row in whole.csr.toarray():
        assert len({*colours[row]}) == row.sum()


@pytest.mark.parametrize("entries", GRAPHS)
def test_a_symmetric_matrix_is_recovered_from_its_products(entries):
    values, matrix = symmetric_values(entries)
    recipe = compress_hessian(entries)
    products = recipe.reverse_seeds(matrix) @ matrix
    assert products.shape == (2, recipe.count, 40)
    assert torch.equal(recipe.recover(products), values)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_any_matrix_is_recovered_from_its_products(seed, transposed):
    pattern = np.random.default_rng(seed).random((15, 40)) < 0.08
    pattern[seed % 3] |= seed % 2 == 0  # a full row
    pattern[:, seed] |= seed % 4 == 1  # a full column
    entries = Entries.of(pattern.T if transposed else pattern)
    values = torch.randn(2, len(entries), dtype=DOUBLE)
    matrix, recipe = entries.dense(values), compress_jacobian(entries)
    forward, reverse = recipe.forward_seeds(matrix) @ matrix.mT, recipe.reverse_seeds(matrix) @ matrix
    assert torch.equal(recipe.recover(forward, reverse), values)
    assert recipe.count <= min(pattern.sum(0).max(), pattern.sum(1).max()) + 6


def band(size, *offsets):
    return Entries.of(scipy.sparse.diags([1.0] * len(offsets), offsets, (size, size)))


def arrow(size):
    matrix = np.eye(size, dtype=bool)
    matrix[-1] = True
    return Entries.of(matrix)


def chain_and_sum(size):
    matrix = np.eye(size, dtype=bool) | np.eye(size, k=1, dtype=bool)
    matrix[-1] = True
    return matrix


def test_how_many_colours_are_needed_is_known():
    assert compress_hessian(band(100, 0)).count == 1
    assert compress_hessian(band(100, 0, -1)).count == 3
    assert compress_hessian(band(100, 0, -1, -2)).count == 5
    assert compress_hessian(arrow(100)).count == 2
    assert compress_hessian(Entries.of(np.zeros((4, 4)))).count == 0
    assert compress_hessian(Entries.of(np.tri(7))).count == 7
    assert compress_jacobian(band(100, 0, 1)).count == 2
    assert compress_jacobian(Entries.of(np.zeros((3, 5)))).count == 0
    for pattern in (chain_and_sum(100), chain_and_sum(100).T):
        assert compress_jacobian(Entries.of(pattern)).count == 3
    assert compress_jacobian(Entries.of(np.ones((2, 50)))).reverse == 2


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_derivatives_by_colours_are_those_of_dense_autodiff(problem):
    pattern = problem.pattern()
    hessian, jacobian = compress_hessian(pattern.hessian), compress_jacobian(pattern.jacobian)
    x, (u, multipliers) = problem.x(3), problem.point(3)
    curved = torch.func.vjp(lambda u: problem.slope(x, u, multipliers), u)[1]
    pulled = torch.func.vjp(lambda u: problem.rows(x, u), u)[1]
    products = [curved(seed)[0] for seed in hessian.reverse_seeds(u)]
    products = torch.stack(products) if products else u.new_zeros(0, problem.m)
    forward = [torch.func.jvp(lambda u: problem.rows(x, u), (u,), (seed,))[1] for seed in jacobian.forward_seeds(u)]
    reverse = [pulled(seed)[0] for seed in jacobian.reverse_seeds(u)]
    forward = torch.stack(forward) if forward else u.new_zeros(0, problem.k)
    reverse = torch.stack(reverse) if reverse else u.new_zeros(0, problem.m)
    dense_hessian, dense_jacobian = problem.dense(3)
    found = pattern.hessian.dense(hessian.recover(products.unsqueeze(0)))[0]
    torch.testing.assert_close(found, dense_hessian.tril())
    found = pattern.jacobian.dense(jacobian.recover(forward.unsqueeze(0), reverse.unsqueeze(0)))[0]
    torch.testing.assert_close(found, dense_jacobian)


def test_recovered_values_are_differentiable():
    entries = random_graph(1, 8)
    recipe = compress_hessian(entries)
    products = torch.randn(2, recipe.count, 8, dtype=DOUBLE, requires_grad=True)
    assert torch.autograd.gradcheck(recipe.recover, products)


def test_large_patterns_are_coloured_at_once():
    size = 20_000
    matrix = scipy.sparse.diags([1.0, 1.0, 1.0], [0, -1, -100], (size, size)).tolil()
    matrix[-1] = 1.0
    assert compress_hessian(Entries.of(matrix.tocsr())).count <= 8
    assert compress_jacobian(Entries.of(matrix.tocsr())).count <= 8
