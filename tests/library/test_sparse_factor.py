"""The factored KKT matrices of a batch against dense linear algebra: solutions, inertia, and what cannot be solved."""

import numpy as np
import pytest
import scipy.sparse
import torch

from declarative.kernels.library import available
from declarative.linear.forms import kkt_product
from declarative.linear.sparse import NoPattern, Pattern, SparseKKT, analyse
from declarative.linear.sparse.entries import LowerTriangle
from declarative.linear.sparse.ordering import least_depth, least_fill
from tests.support.helpers import in_threads
from tests.support.sparse_problems import DOUBLE, PROBLEMS

MISSING = pytest.mark.skipif(not available(), reason="there is no compiled core")
KERNELS = [pytest.param("core", marks=MISSING), "torch"]
each_kernel = pytest.mark.parametrize("kernel", KERNELS)


def random_pattern(m, k, seed, density=2.5):
    """Each constraint has at least two unknowns of its own."""
    generator = np.random.default_rng(seed)
    hessian = np.eye(m, dtype=bool) | (generator.random((m, m)) < density / m / 2)
    jacobian = generator.random((k, m)) < density / m
    jacobian[np.arange(k), np.arange(k) % m] = True
    jacobian[np.arange(k), (np.arange(k) + 1) % m] = True
    return Pattern.given(hessian, jacobian, m, k)


PATTERNS = {str(problem): problem.pattern() for problem in PROBLEMS}
PATTERNS |= {"random": random_pattern(30, 12, 0), "free": random_pattern(20, 0, 1), "square": random_pattern(9, 9, 2)}
REGULAR = [name for name in PATTERNS if name not in ("empty rows", "dense row")]  # the others have too many constraints


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)


def values_for(pattern, batch, diagonal=0.0, seed=0):
    """Values of H and A, and the two diagonals."""
    (m, _), (k, _) = pattern.hessian.shape, pattern.jacobian.shape
    own = normal(batch, len(pattern.hessian), seed=seed), normal(batch, len(pattern.jacobian), seed=seed + 1)
    return *own, torch.full((batch, m), diagonal, dtype=DOUBLE), torch.zeros(batch, k, dtype=DOUBLE)


def dense_matrix(pattern, hessian, jacobian, primal, dual):
    below, rows = pattern.hessian.dense(hessian), pattern.jacobian.dense(jacobian)
    top = torch.cat([below + below.tril(-1).mT + torch.diag_embed(primal), rows.mT], -1)
    return torch.cat([top, torch.cat([rows, -torch.diag_embed(dual)], -1)], -2)


def dense_inertia(matrix):
    """The signs of the eigenvalues; scaling rows and columns alike changes none, but tells small ones from zero."""
    scale = matrix.abs().amax(-1).clamp(min=1e-300).rsqrt()
    eigenvalues = torch.linalg.eigvalsh(scale.unsqueeze(-1) * matrix * scale.unsqueeze(-2))
    return torch.stack([(eigenvalues > 1e-13).sum(-1), (eigenvalues < -1e-13).sum(-1)], -1)


def relative(x, y):
    return float(((x - y).abs().amax(-1) / y.abs().amax(-1)).amax())


def solved(factor, right):
    m = factor.kkt.m
    z, s, error = factor.solve(right[:, :m], right[:, m:])
    return torch.cat([z, s], 1), error


@each_kernel
@pytest.mark.parametrize("diagonal", [0.0, 20.0])
@pytest.mark.parametrize("batch", [1, 5, 40])
@pytest.mark.parametrize("name", REGULAR)
def test_solutions_and_inertia_are_those_of_dense_matrices(name, batch, diagonal, kernel):
    pattern = PATTERNS[name]
    values = values_for(pattern, batch, diagonal)
    matrix, factor = dense_matrix(pattern, *values), SparseKKT.of(pattern, kernel=kernel).factorise(*values)
    truth = normal(*matrix.shape[:2], seed=5)
    x, error = solved(factor, (matrix @ truth.unsqueeze(-1)).squeeze(-1))
    assert error.amax() < 1e-14
    condition = float(torch.linalg.cond(matrix).amax())
    assert relative(x, truth) < 1e-14 * max(condition, 10)
    inertia = factor.inertia()
    assert torch.equal(inertia[:, :2], dense_inertia(matrix))
    assert not inertia[:, 2].any()
    assert torch.equal(factor.convex(), inertia[:, 0] == factor.kkt.m)
    if diagonal:
        assert factor.convex().all()


@each_kernel
def test_several_right_hand_sides_are_solved_at_once(kernel):
    pattern = PATTERNS["random"]
    values = values_for(pattern, 3)
    factor, right = SparseKKT.of(pattern, kernel=kernel).factorise(*values), normal(3, 42, 4, seed=3)
    z, s, error = factor.solve(right[:, :30], right[:, 30:])
    assert (z.shape, s.shape, error.shape) == ((3, 30, 4), (3, 12, 4), (3,))
    torch.testing.assert_close(torch.cat([z, s], 1), torch.linalg.solve(dense_matrix(pattern, *values), right))


@each_kernel
@pytest.mark.parametrize("spread", [8, 16, 20])
def test_barriers_of_very_different_size_lose_nothing(spread, kernel):
    """The diagonal of an interior-point method near the solution: entries that differ by many orders of magnitude."""
    pattern = PATTERNS["random"]
    hessian, jacobian, primal, dual = values_for(pattern, 8)
    primal = 10 ** (spread * (torch.rand(8, 30).double() - 0.5)) + 5
    factor = SparseKKT.of(pattern, kernel=kernel).factorise(hessian, jacobian, primal, dual)
    matrix = dense_matrix(pattern, hessian, jacobian, primal, dual)
    assert solved(factor, normal(8, 42))[1].amax() < 1e-14
    assert torch.equal(factor.inertia()[:, :2], dense_inertia(matrix))


@each_kernel
def test_constraints_switched_off_and_more_of_them_than_unknowns(kernel):
    """Rows of A and entries of the dual diagonal as in the backward pass: active [a, 0], inactive [0, -1]."""
    pattern = random_pattern(15, 24, 3)
    hessian, jacobian, primal, _ = values_for(pattern, 16, 8.0)
    active = torch.rand(16, 24, generator=torch.Generator().manual_seed(0)) < 0.3
    jacobian = jacobian * active[:, torch.from_numpy(pattern.jacobian.rows)]
    parts = hessian, jacobian, primal, (~active).double()
    matrix, factor = dense_matrix(pattern, *parts), SparseKKT.of(pattern, 0, kernel=kernel).factorise(*parts)
    right = normal(16, 39)
    x, error = solved(factor, right)
    assert error.amax() < 1e-14
    assert relative(x, torch.linalg.solve(matrix, right)) < 1e-12
    assert torch.equal(factor.convex(), dense_inertia(matrix)[:, 0] == 15)
    assert (factor.inertia()[:, 2] > 0).any()  # pivots were replaced, and nothing was lost


@each_kernel
def test_a_vertex_without_curvature_is_solved(kernel):
    """As many active constraints as unknowns, and H = 0: only pairs are pivots; which pairs depends on the values."""
    pattern = Pattern.given(np.eye(12), np.concatenate([np.eye(12), np.ones((8, 12))]), 12, 20)
    active = torch.zeros(6, 20, dtype=torch.bool)
    for problem in range(6):
        active[problem, 12 : 12 + problem] = True
        active[problem, torch.randperm(12, generator=torch.Generator().manual_seed(problem))[: 12 - problem]] = True
    hessian, jacobian, primal, _ = values_for(pattern, 6)
    parts = 0 * hessian, jacobian * active[:, torch.from_numpy(pattern.jacobian.rows)], primal, (~active).double()
    matrix = dense_matrix(pattern, *parts)
    assert (torch.linalg.cond(matrix) < 1e6).all()
    right = normal(6, 32)
    x, error = solved(SparseKKT.of(pattern, 0, kernel=kernel).factorise(*parts), right)
    assert error.amax() < 1e-13
    assert relative(x, torch.linalg.solve(matrix, right)) < 1e-9


def at_vertices(pattern, equalities, curvature, batch=24):
    """Matrices as in a backward pass, from few constraints active to all of them, dependent ones among them."""
    (m, _), (k, _) = pattern.hessian.shape, pattern.jacobian.shape
    generator = torch.Generator().manual_seed(3)
    active = torch.rand(batch, k, generator=generator) < torch.linspace(0, 1, batch).unsqueeze(-1)
    active[:, :equalities] = True
    rows = active[:, torch.from_numpy(pattern.jacobian.rows)].to(DOUBLE)
    hessian = torch.full((batch, len(pattern.hessian)), curvature, dtype=DOUBLE)
    return hessian, rows, torch.zeros(batch, m, dtype=DOUBLE), (~active).to(DOUBLE)


def bounded(rows, twice=False):
    """A matrix of constraints, with a bound for every unknown, or two of them."""
    rows = np.atleast_2d(rows)
    m = rows.shape[1]
    jacobian = np.concatenate([rows, *[np.eye(m)] * (1 + twice)])
    return Pattern.given(np.eye(m), jacobian, m, len(jacobian)), len(rows)


SUMS = np.concatenate([np.kron(np.eye(4), np.ones(4)), np.kron(np.ones(4), np.eye(4))])
STEPS = np.eye(12)[1:] + np.eye(12)[:-1]
VERTICES = {
    "simplex": bounded(np.ones((1, 10))),
    "box": bounded(np.ones((0, 8)), twice=True),
    "transport": bounded(SUMS),  # one of the sums depends on the others
    "both ways": (Pattern.given(np.eye(12), np.concatenate([STEPS, STEPS]), 12, 22), 0),
}


@each_kernel
@pytest.mark.parametrize("name", VERTICES)
def test_vertices_are_solved_and_hardly_any_needs_an_order_of_its_own(name, kernel):
    """Where all unknowns are held, the solution is zero: rounding errors relative to it are no reason to doubt it."""
    pattern, equalities = VERTICES[name]
    parts = at_vertices(pattern, equalities, 1.0)
    matrix, m = dense_matrix(pattern, *parts), pattern.hessian.shape[0]
    right = normal(*matrix.shape[:2])
    right[:, m:] = 0.0  # consistent, whatever depends on what
    factor = SparseKKT.of(pattern, equalities, kernel=kernel).factorise(*parts)
    assert (factor.solve_stacked(right, rescue=False)[1] > 1e-10).sum() <= 1
    x, error = factor.solve_stacked(right)
    truth = (torch.linalg.pinv(matrix, rtol=1e-12, hermitian=True) @ right.unsqueeze(-1)).squeeze(-1)
    assert error.amax() < 1e-10
    assert (x - truth)[:, :m].abs().amax() < 1e-10
    assert ((matrix @ x.unsqueeze(-1)).squeeze(-1) - right).abs().amax() < 1e-10


@each_kernel
def test_what_cannot_be_solved_is_told_at_vertices_too(kernel):
    pattern, equalities = VERTICES["transport"]
    parts = at_vertices(pattern, equalities, 1.0)
    matrix = dense_matrix(pattern, *parts)
    right = normal(*matrix.shape[:2])  # one sum contradicts the others
    _, error = SparseKKT.of(pattern, equalities, kernel=kernel).factorise(*parts).solve_stacked(right)
    assert (error > 1e-6).all()


@each_kernel
def test_an_order_of_its_own_is_made_once(kernel, monkeypatch):
    """For a problem and all that have the same entries, however often they are factored and solved."""
    pattern = Pattern.given(np.eye(6), np.ones((6, 6)), 6, 6)
    kkt, made = SparseKKT.of(pattern, kernel=kernel), []
    monkeypatch.setattr("declarative.linear.sparse.kkt.analyse", lambda *of: made.append(of) or analyse(*of))
    chosen = torch.arange(6) * 6 + torch.from_numpy(kkt.symbolic.partners)  # the entries in the pairs
    for seed in range(2):
        hessian, jacobian, *_ = values_for(pattern, 5, seed=seed)
        jacobian = jacobian.sign() * (0.5 + torch.rand(5, 36, generator=torch.Generator().manual_seed(seed)))
        jacobian[1:, chosen] = 1e-20
        jacobian[4, (chosen[0] + 1) % 6] = 1e-3  # this one needs another order than the rest
        parts = 0 * hessian, jacobian, torch.zeros(5, 6), torch.zeros(5, 6)
        factor, matrix = kkt.factorise(*parts), dense_matrix(pattern, *parts)
        for right in (normal(5, 12, seed=seed + 7), normal(5, 12, 2, seed=seed + 9)):
            assert (factor.solve_stacked(right, rescue=False)[1] > 1e-10).tolist() == [False, *[True] * 4]
            x, error = factor.solve_stacked(right)
            assert error.amax() < 1e-14
            torch.testing.assert_close(x, torch.linalg.solve(matrix, right), rtol=1e-10, atol=1e-10)
    assert len(made) == 2


@each_kernel
def test_an_order_of_its_own_that_is_too_large_is_done_without(kernel, monkeypatch):
    pattern = Pattern.given(np.eye(4), np.ones((2, 4)), 4, 2)
    factor = SparseKKT.of(pattern, kernel=kernel).factorise(torch.ones(3, 4, dtype=DOUBLE), torch.ones(3, 8))

    def refuse(*_):
        raise NoPattern("too large")

    monkeypatch.setattr("declarative.linear.sparse.kkt.analyse", refuse)
    _, error = solved(factor, normal(3, 6))
    assert (error > 1e-6).all()  # the second constraint contradicts the first


@each_kernel
def test_a_singular_matrix_is_told_for_its_problem_alone(kernel):
    pattern = Pattern.given(np.eye(4), np.ones((2, 4)), 4, 2)
    hessian, jacobian = torch.ones(3, 4, dtype=DOUBLE), normal(3, 8)
    jacobian[1, 4:] = 2 * jacobian[1, :4]  # the second constraint repeats the first
    factor = SparseKKT.of(pattern, kernel=kernel).factorise(hessian, jacobian)
    assert factor.inertia()[:, 2].tolist() == [0, 1, 0]
    right = normal(3, 6)
    _, error = solved(factor, right)
    assert (error > 1e-6).tolist() == [False, True, False]
    right[1, 5] = 2 * right[1, 4]  # consistent: now there are solutions
    x, error = solved(factor, right)
    assert error.amax() < 1e-13
    matrix = dense_matrix(pattern, hessian, jacobian, torch.zeros(3, 4), torch.zeros(3, 2))
    torch.testing.assert_close((matrix @ x.unsqueeze(-1)).squeeze(-1), right)


@each_kernel
@pytest.mark.parametrize("name", ["random", "free", "square"])
def test_what_is_not_a_number_stays_with_its_problem(name, kernel):
    pattern = PATTERNS[name]
    parts = values_for(pattern, 3, 20.0)
    parts[0][1, 0] = torch.nan
    factor = SparseKKT.of(pattern, kernel=kernel).factorise(*parts)
    x, error = solved(factor, normal(3, factor.kkt.symbolic.size))
    assert error[1] == torch.inf
    assert error[[0, 2]].amax() < 1e-14
    assert x.isfinite().all()
    assert factor.convex().tolist() == [True, False, True]


@each_kernel
def test_a_pivot_that_is_made_of_rounding_errors_is_zero(kernel):
    """[p 0 a; 0 -q b; a b 0] is singular if a^2 / p = b^2 / q, with no entry as small as the pivot that is left."""
    pattern = Pattern.given(np.array([[1, 0, 1], [0, 1, 1], [1, 1, 1]]), None, 3, 0)
    p, a, b = torch.rand(3, 50, generator=torch.Generator().manual_seed(0), dtype=DOUBLE) + 0.5
    values = torch.stack([p, -p * b.square() / a.square(), a, b, 0 * p], -1)
    factor = SparseKKT.of(pattern, kernel=kernel).factorise(values, values[:, :0])
    assert (factor.inertia() == torch.tensor([1, 1, 1])).all()


@each_kernel
def test_precision_and_values_given_are_kept(kernel):
    pattern = PATTERNS["random"]
    parts = [part.float() for part in values_for(pattern, 2, 20.0)]
    before = [part.clone() for part in parts]
    right = normal(2, 42).float()
    x, error = solved(SparseKKT.of(pattern, kernel=kernel).factorise(*parts), right)
    assert x.dtype == error.dtype == torch.float32
    assert all(torch.equal(*pair) for pair in zip(parts, before, strict=True))
    torch.testing.assert_close(
        x, torch.linalg.solve(dense_matrix(pattern, *(p.double() for p in parts)), right.double()).float()
    )


@each_kernel
def test_factors_do_not_share_what_they_remember(kernel):
    """Memory is used again only when its owner is gone; and threads do not disturb each other."""
    pattern = PATTERNS["random"]
    kkt, right = SparseKKT.of(pattern, kernel=kernel), normal(4, 42)
    parts = [values_for(pattern, 4, seed=seed) for seed in range(6)]
    truth = [torch.linalg.solve(dense_matrix(pattern, *part), right) for part in parts]
    factors = [kkt.factorise(*part) for part in parts]
    for factor, expected in zip(factors, truth, strict=True):
        torch.testing.assert_close(solved(factor, right)[0], expected)
    del factors
    wrong = []

    def work(index):
        found = [solved(kkt.factorise(*parts[index]), right)[0] for _ in range(10)]
        wrong.extend(index for x in found if relative(x, truth[index]) > 1e-9)

    in_threads(work, range(4))
    assert not wrong


def test_multiplication_is_that_of_the_dense_matrix_and_differentiable():
    pattern = PATTERNS["random"]
    *parts, dual = values_for(pattern, 2, 1.0)
    parts = (*parts, dual + 2)
    form = LowerTriangle(pattern.hessian)

    def multiply(hessian, jacobian, primal, dual, z, s):
        return kkt_product(form.multiply(hessian, z) + primal * z, pattern.jacobian, jacobian, dual, z, s)

    z, s = normal(2, 30), normal(2, 12)
    top, bottom = multiply(*parts, z, s)
    expected = (dense_matrix(pattern, *parts) @ torch.cat([z, s], 1).unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(torch.cat([top, bottom], 1), expected)
    assert torch.autograd.gradcheck(multiply, tuple(x.requires_grad_() for x in (*parts, z, s)))


def test_a_constraint_without_an_unknown_of_its_own_is_found():
    jacobian = np.zeros((3, 4), dtype=bool)
    jacobian[:, 0] = True  # three constraints on one unknown
    assert len(analyse(Pattern.given(np.eye(4), jacobian, 4, 3)).unpaired) == 2
    assert len(analyse(PATTERNS["pendulum 30"]).unpaired) == 0


def test_large_entries_are_preferred_as_pivots():
    pattern = Pattern.given(np.eye(3), np.ones((1, 3)), 3, 1)
    assert analyse(pattern, strengths=np.array([1e-9, 1.0, 1e-9])).partners.tolist() == [1]


def grid(n):
    line = scipy.sparse.diags([1.0, 1.0], [-1, 1], (n, n))
    eye = scipy.sparse.identity(n)
    return (scipy.sparse.kron(eye, line) + scipy.sparse.kron(line, eye)).astype(bool).tocsr()


def star(n):
    matrix = np.zeros((n, n), dtype=bool)
    matrix[-1, :-1] = matrix[:-1, -1] = True
    return scipy.sparse.csr_matrix(matrix)


def ring(n):
    """A chain whose ends are connected, by an entry that decays as elimination goes on."""
    return scipy.sparse.csr_matrix((np.ones(2 * n, bool), (np.r_[:n, 1:n, 0], np.r_[1:n, 0, :n])), (n, n))


GRAPHS = {"grid": grid(9), "star": star(50), "ring": ring(2500), "empty": scipy.sparse.csr_matrix((6, 6), dtype=bool)}


@pytest.mark.parametrize("order", [least_fill, least_depth])
@pytest.mark.parametrize("name", GRAPHS)
def test_an_order_knows_all_that_elimination_connects(order, name):
    graph = GRAPHS[name]
    count = graph.shape[0]
    found = order(graph, np.ones(count, dtype=np.int64))
    assert sorted(found.place) == list(range(count))
    later = [set() for _ in range(count)]
    for i, j in zip(*(found.place[part] for part in graph.nonzero()), strict=True):
        later[min(i, j)].add(max(i, j))
    for j in range(count):  # elimination as it is defined: neighbours become neighbours of the first of them
        if later[j]:
            first = min(later[j])
            later[first] |= later[j] - {first}
    truth = {(i, j) for j in range(count) for i in later[j]}
    known = set(zip(found.later.rows.tolist(), found.later.columns.tolist(), strict=True))
    assert truth <= known
    assert len(known) <= 1.2 * len(truth)
    if found.rounds is not None:
        ends = np.cumsum(found.rounds)
        level = np.searchsorted(ends, np.arange(count), side="right")
        assert all(level[i] > level[j] for i, j in known)


def test_orders_keep_the_factor_sparse_and_shallow():
    chain = Pattern.given(scipy.sparse.diags([1.0, 1.0], [0, -1], (1000, 1000)), None, 1000, 0)
    assert analyse(chain, "fill").fill == 999
    shallow = analyse(chain, "depth")
    assert shallow.fill < 3000
    assert len(shallow.levels) < 40
    assert analyse(PATTERNS["arrow"], "fill").fill == 8


def test_levels_need_an_order_made_for_them():
    kkt = SparseKKT(analyse(PATTERNS["arrow"], "fill"), "torch")
    with pytest.raises(ValueError, match="prefer='depth'"):
        kkt.factorise(*values_for(PATTERNS["arrow"], 1, 9.0))


def test_a_kernel_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setattr("declarative.linear.sparse.kkt.available", lambda: False)
    with pytest.raises(ValueError, match="was not built"):
        SparseKKT.of(PATTERNS["arrow"], kernel="core")
    assert SparseKKT.of(PATTERNS["arrow"]).kernel == "torch"


@each_kernel
@pytest.mark.parametrize(("m", "k"), [(1, 0), (1, 1), (2, 1)])
def test_the_smallest_problems_and_an_empty_batch(m, k, kernel):
    pattern = Pattern.given(np.eye(m), np.ones((k, m)), m, k)
    kkt = SparseKKT.of(pattern, kernel=kernel)
    for batch in (0, 1, 2):
        parts = values_for(pattern, batch, 3.0)
        factor = kkt.factorise(*parts)
        right = normal(batch, m + k)
        x, error = solved(factor, right)
        assert (x.shape, error.shape, factor.inertia().shape) == ((batch, m + k), (batch,), (batch, 3))
        torch.testing.assert_close(x, torch.linalg.solve(dense_matrix(pattern, *parts), right))


def test_a_factor_that_would_not_be_sparse_is_refused(monkeypatch):
    pattern = random_pattern(400, 0, 0, density=8)
    for order in ("fill", "depth"):
        assert analyse(pattern, order).work > 100_000
        monkeypatch.setattr("declarative.linear.sparse.ordering.LIMIT", 10_000)
        with pytest.raises(NoPattern, match="not sparse"):
            analyse(pattern, order)
        monkeypatch.undo()
    monkeypatch.setattr("declarative.linear.sparse.kkt.WORK", 10_000)
    with pytest.raises(NoPattern, match="compiled core is needed"):
        SparseKKT.of(pattern, kernel="torch")
