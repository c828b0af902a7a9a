"""Quadratic programs that are flat along some directions: with small slopes, far bounds, and bounds that are absent."""

from __future__ import annotations

import pytest
import torch
from scipy.optimize import linprog
from torch import Tensor

from declarative import SolverError, Status
from problems import EqualityQP, QuadraticProgram

DOUBLE, SINGLE = torch.float64, torch.float32
KINDS = {"own": QuadraticProgram(), "generic": QuadraticProgram().generic()}
each_kind = pytest.mark.parametrize("layer", KINDS.values(), ids=KINDS)


def box(m: int, *sizes: Tensor | float) -> tuple[Tensor, Tensor]:
    """-size <= u <= size; one size for all, or one for each of the unknowns."""
    eye = torch.eye(m, dtype=DOUBLE)
    size = torch.as_tensor(sizes[0], dtype=DOUBLE).expand(m)
    return torch.cat([eye, -eye]), torch.cat([size, size])


def status_of(layer: torch.nn.Module, *xs: Tensor | None) -> Status:
    try:
        solution = layer.solve(*xs)  # type: ignore[operator]
    except SolverError as error:
        solution = error.solution
    (status,) = solution.status
    return Status(status)


@each_kind
@pytest.mark.parametrize("slope", [1e-3, 1e-5, 1e-7, 1e-9])
@pytest.mark.parametrize("size", [1e3, 1e6, 1e9])
def test_a_small_slope_leads_to_a_far_bound(layer: QuadraticProgram, slope: float, size: float):
    """min (u1^2 + u2^2) / 2 + u1 + slope u3 in a box: u = (-1, 0, -size), and u3 has the gradient 1 to its bound."""
    q = torch.tensor([[1.0, 0.0, slope]], dtype=DOUBLE)
    G, h = box(3, size)
    h.requires_grad_()
    u = layer(torch.diag(torch.tensor([1.0, 1.0, 0.0], dtype=DOUBLE)), q, None, None, G, h)
    assert torch.equal(u, torch.tensor([[-1.0, 0.0, -size]], dtype=DOUBLE))
    assert torch.autograd.grad(u[0, 2], h)[0].tolist() == [0.0, 0.0, 0.0, 0.0, 0.0, -1.0]


@each_kind
@pytest.mark.parametrize("slope", [1e-3, 1e-5, 1e-7, 1e-9])
def test_a_small_slope_without_a_bound_is_no_solution(layer: QuadraticProgram, slope: float):
    Q = torch.diag(torch.tensor([1.0, 1.0, 0.0], dtype=DOUBLE))
    q = torch.tensor([[1.0, 0.0, slope]], dtype=DOUBLE)
    allowed = {Status.UNBOUNDED} if layer is KINDS["own"] else {Status.UNBOUNDED, Status.STALLED}
    assert status_of(layer, Q, q, None, None, torch.eye(3, dtype=DOUBLE), torch.ones(3, dtype=DOUBLE)) in allowed


@pytest.mark.parametrize("slope", [1e-12, 1e-17, 1e-30])
def test_a_slope_is_small_beside_nothing_but_its_own_terms(slope: float):
    q = torch.tensor([[1.0, 0.0, slope]], dtype=DOUBLE)
    u = QuadraticProgram()(torch.diag(torch.tensor([1.0, 1.0, 0.0], dtype=DOUBLE)), q, None, None, *box(3, 1e6))
    assert torch.equal(u, torch.tensor([[-1.0, 0.0, -1e6]], dtype=DOUBLE))


@pytest.mark.parametrize("turned", [False, True])
def test_one_missing_bound_leaves_no_solution(turned: bool):
    """Random programs in boxes, from one side of which the bound of an unknown without curvature is taken away."""
    torch.manual_seed(5)
    for _ in range(40):
        m = int(torch.randint(2, 7, ()))
        curved = (torch.rand(m) < 0.5) & (torch.arange(m) > 0)
        values = torch.where(curved, 10 ** (2 * torch.rand(m, dtype=DOUBLE) - 1), 0.0)
        q = 10 ** (-5 * torch.rand(m, dtype=DOUBLE)) * torch.randn(m, dtype=DOUBLE).sign()
        q[0] = -(10 ** (-4 - 2 * torch.rand((), dtype=DOUBLE)))
        basis = torch.linalg.qr(torch.randn(m, m, dtype=DOUBLE))[0] if turned else torch.eye(m, dtype=DOUBLE)
        G, h = box(m, 10 ** (3 * torch.rand(m, dtype=DOUBLE)))
        h[0] = torch.inf
        Q = basis @ torch.diag(values) @ basis.T
        assert status_of(QuadraticProgram(), Q, (basis @ q).unsqueeze(0), None, None, G @ basis.T, h) in (
            Status.UNBOUNDED,
            Status.STALLED,
        )


@pytest.mark.parametrize("slope", [1e-3, 1e-6, 1e-9])
@pytest.mark.parametrize("turned", [False, True])
def test_a_small_slope_along_the_equalities_is_unbounded(slope: float, turned: bool):
    """Along the third axis, where neither Q nor A is; Q has a negative entry where A holds u."""
    torch.manual_seed(0)
    basis = torch.linalg.qr(torch.randn(4, 4, dtype=DOUBLE))[0] if turned else torch.eye(4, dtype=DOUBLE)
    Q = basis @ torch.diag(torch.tensor([1.0, -1.0, 0.0, 2.0], dtype=DOUBLE)) @ basis.T
    A, b = basis[:, 1].unsqueeze(0), torch.ones(1, dtype=DOUBLE)
    flat, steep = (basis @ torch.tensor([1.0, 0.5, x, 1.0], dtype=DOUBLE) for x in (0.0, slope))
    assert status_of(EqualityQP(), Q, flat.unsqueeze(0), A, b) == Status.CONVERGED
    assert status_of(EqualityQP(), Q, steep.unsqueeze(0), A, b) == Status.UNBOUNDED


@pytest.mark.parametrize("turned", [False, True])
def test_programs_in_boxes_have_their_closed_form(turned: bool):
    """min sum q_i u_i + Q_i u_i^2 / 2 in a box is solved entry by entry; turned, all of that in another basis.

    There rounding errors of Q change slopes by 1e-9 at a distance of 1e6.
    """
    torch.manual_seed(1)
    worst, smallest = 0.0, 5 if turned else 8
    for _ in range(40):
        m = int(torch.randint(2, 7, ()))
        curved = torch.rand(m) < 0.5
        values = torch.where(curved, 10 ** (2 * torch.rand(m, dtype=DOUBLE) - 1), 0.0)
        q = 10 ** (-smallest * torch.rand(m, dtype=DOUBLE)) * torch.randn(m, dtype=DOUBLE).sign()
        size = 10 ** (6 * torch.rand(m, dtype=DOUBLE))
        expected = torch.where(curved, -q / torch.where(curved, values, 1.0), -q.sign() * torch.inf).clamp(-size, size)
        basis = torch.linalg.qr(torch.randn(m, m, dtype=DOUBLE))[0] if turned else torch.eye(m, dtype=DOUBLE)
        G, h = box(m, size)
        u = QuadraticProgram()(
            basis @ torch.diag(values) @ basis.T, (basis @ q).unsqueeze(0), None, None, G @ basis.T, h
        )
        found = u[0] @ basis
        worst = max(worst, float(((found - expected).abs() / expected.abs().max().clamp(min=1.0)).max()))
    assert worst < 1e-7 if turned else worst < 1e-12


def test_linear_programs_with_small_prices_against_scipy():
    """Random polytopes around the origin, prices from 1 to 1e-9: what HiGHS finds, vertex by vertex."""
    torch.manual_seed(2)
    for _ in range(30):
        m, k = 4, 12
        G, h = torch.randn(k, m, dtype=DOUBLE), 10 ** (4 * torch.rand(k, dtype=DOUBLE))
        G, h = torch.cat([G, box(m, 1e5)[0]]), torch.cat([h, box(m, 1e5)[1]])
        G[:k, -1] = 0.0  # only the box holds the last unknown
        q = torch.cat([torch.randn(m - 1, dtype=DOUBLE), torch.tensor([1e-9], dtype=DOUBLE)])
        scaled = torch.cat([q[:-1], q[-1:] * 1e9])  # the same vertex, for the last unknown is on its own
        reference = linprog(scaled.numpy(), A_ub=G.numpy(), b_ub=h.numpy(), bounds=(None, None))
        u = QuadraticProgram()(torch.zeros(m, m, dtype=DOUBLE), q.unsqueeze(0), None, None, G, h)
        assert (u[0] - torch.from_numpy(reference.x)).abs().max() < 1e-6 * abs(reference.x).max()


@pytest.mark.parametrize("dtype", [DOUBLE, SINGLE], ids=str)
def test_rounding_errors_are_no_slopes(dtype: torch.dtype):
    """Least squares of low rank: what is left of the slope along the other directions is rounding."""
    torch.manual_seed(3)
    for m in (5, 20):
        root, target = torch.randn(30, 3, m, dtype=dtype), torch.randn(30, 3, 1, dtype=dtype)
        Q, q = root.mT @ root, -(root.mT @ target).squeeze(-1)
        G, h = box(m, 1e3)
        solution = QuadraticProgram().solve(Q, q, None, None, G.to(dtype), h.to(dtype))
        assert solution.converged.all()
        misfit = (root @ solution.y.unsqueeze(-1) - target).abs().max()
        assert misfit < 1e3 * torch.finfo(dtype).eps ** 0.9


@each_kind
def test_an_infinite_bound_is_none(layer: QuadraticProgram):
    """The same solution, multipliers and gradients as without the row; zeros where the row stands."""
    torch.manual_seed(4)
    m, k = 4, 6
    root = torch.randn(3, m, m, dtype=DOUBLE)
    Q, q, G = root @ root.mT + torch.eye(m), 3 * torch.randn(3, m, dtype=DOUBLE), torch.randn(3, k, m, dtype=DOUBLE)
    h = torch.rand(3, k, dtype=DOUBLE)
    there = torch.tensor([True, False, True, True, False, True])
    v = torch.randn(3, m, dtype=DOUBLE)
    all_rows = [x.clone().requires_grad_() for x in (Q, q, G, torch.where(there, h, torch.inf))]
    some_rows = [x.clone().requires_grad_() for x in (Q, q, G[:, there], h[:, there])]
    answers = [layer.solve(*xs[:2], None, None, *xs[2:]) for xs in (all_rows, some_rows)]
    assert (answers[0].y - answers[1].y).abs().max() < 1e-9
    pulls = [answer.inequality_multipliers.detach() for answer in answers]
    assert (pulls[0][:, there] - pulls[1]).abs().max() < 1e-9
    assert (pulls[1] > 0.1).any()
    assert not pulls[0][:, ~there].any()
    grads = [torch.autograd.grad(one.y, xs, v) for one, xs in zip(answers, (all_rows, some_rows), strict=True)]
    for mine, other in zip(grads[0][:2], grads[1][:2], strict=True):
        assert (mine - other).abs().max() < 1e-9
    for mine, other in zip(grads[0][2:], grads[1][2:], strict=True):
        assert (mine[:, there] - other).abs().max() < 1e-9
        assert not mine[:, ~there].any()


def test_without_any_bound_left_the_minimiser_is_that_of_the_objective():
    q = torch.tensor([[1.0, -2.0]], dtype=DOUBLE)
    G, h = box(2, torch.inf)
    assert (QuadraticProgram()(torch.eye(2, dtype=DOUBLE), q, None, None, G, h) + q).abs().max() < 1e-12


@pytest.mark.parametrize("place", ["h", "b", "G", "q"])
@pytest.mark.parametrize("value", [-torch.inf, torch.nan, torch.inf])
def test_other_infinite_entries_are_not_finite(place: str, value: float):
    if (place, value) == ("h", torch.inf):
        value = -torch.inf
    xs = {
        "Q": torch.eye(2, dtype=DOUBLE),
        "q": torch.ones(1, 2, dtype=DOUBLE),
        "A": torch.ones(1, 2, dtype=DOUBLE),
        "b": torch.ones(1, dtype=DOUBLE),
        "G": torch.eye(2, dtype=DOUBLE),
        "h": torch.full((2,), torch.inf, dtype=DOUBLE),
    }
    xs[place].view(-1)[-1] = value
    assert status_of(QuadraticProgram(), *xs.values()) == Status.NOT_FINITE
