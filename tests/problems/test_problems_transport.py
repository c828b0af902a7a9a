"""Optimal transport: marginals, extreme regularisation, degenerate shapes, large problems."""

from __future__ import annotations

import pytest
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from declarative import NumericalWarning, SolverError, Status
from problems import OptimalTransport, scaling, schur, sinkhorn

DOUBLE = torch.float64


def costs(*shape: int, dtype: torch.dtype = DOUBLE) -> Tensor:
    return torch.rand(*shape, dtype=dtype)


def marginal_error(plan: Tensor) -> float:
    """Relative to the uniform marginals."""
    m, n = plan.shape[-2:]
    return max((plan.sum(-1) * m - 1).abs().max().item(), (plan.sum(-2) * n - 1).abs().max().item())


@pytest.mark.parametrize("gamma", [1, 10, 100])
@pytest.mark.parametrize("size", [10, 60, 200, 500])
def test_marginals(size: int, gamma: float):
    assert marginal_error(OptimalTransport(gamma)(costs(2 if size < 500 else 1, size, size))) < 1e-12


@pytest.mark.parametrize("gamma", [300, 1000, 3000])
def test_marginals_where_sinkhorn_stalls(gamma: float):
    plan = OptimalTransport(gamma)(costs(20, 10, 10))
    assert marginal_error(plan) < 1e-12
    # The entropy can cost no more than log(6) / gamma over the best assignment.
    M = costs(5, 6, 6)
    plan = OptimalTransport(gamma)(M)
    for cost, found in zip(M, plan, strict=True):
        rows, columns = linear_sum_assignment(cost.numpy())
        best = cost[rows, columns].mean()
        assert best - 1e-9 <= (cost * found).sum() <= best + 1.8 / gamma


@pytest.mark.parametrize("shape", [(10, 10), (30, 70), (70, 30)])
@pytest.mark.parametrize("gamma", [1, 100, 1000])
def test_single_precision(shape: tuple[int, int], gamma: float):
    plan = OptimalTransport(gamma)(costs(3, *shape, dtype=torch.float32))
    assert plan.dtype == torch.float32
    assert marginal_error(plan) < 1e-4


@pytest.mark.parametrize("gamma", [30, 100, 300, 1000])
def test_single_precision_close_to_a_vertex(gamma: float):
    """Hardly anything is left of the terms of a gradient there. What it is in double precision, and noise of that."""
    xs = [x.float() for x in (costs(40, 3, 3), costs(40, 3) + 0.1, costs(40, 3) + 0.1)]
    xs[1:] = [x / x.sum(-1, keepdim=True) for x in xs[1:]]
    v, found = torch.randn(40, 3, 3), []
    for dtype in (DOUBLE, torch.float32):
        leaves = [x.to(dtype).requires_grad_() for x in xs]
        found.append(torch.autograd.grad(OptimalTransport(gamma)(*leaves), leaves, v.to(dtype)))
    for truth, mine in zip(*found, strict=True):
        error = torch.linalg.vector_norm((mine - truth).flatten(1), dim=-1)
        assert (error < 1e-3 * torch.linalg.vector_norm(truth.flatten(1), dim=-1) + 1e-12 * gamma).all()


def test_large_costs_and_shifts():
    M = costs(2, 8, 8)
    plain = OptimalTransport(5.0)(M)
    shift = 1e4 * torch.randn(2, 8, 1, dtype=DOUBLE) - 1e4 * torch.randn(2, 1, 8, dtype=DOUBLE)
    assert (OptimalTransport(5.0)(M + shift) - plain).abs().max() < 1e-9
    assert (OptimalTransport(5e-6)(1e6 * M) - plain).abs().max() < 1e-12


def test_two_by_two_formula():
    M = torch.tensor([[[0.0, 1.0], [1.0, 0.0]]], dtype=DOUBLE)
    e = torch.exp(torch.tensor(-2.0, dtype=DOUBLE))
    expected = 0.5 / (1 + e) * torch.stack([torch.stack([torch.ones_like(e), e]), torch.stack([e, torch.ones_like(e)])])
    assert (OptimalTransport(2.0)(M)[0] - expected).abs().max() < 1e-14


def test_every_problem_stops_by_itself():
    easy, hard = torch.zeros(1, 6, 6, dtype=DOUBLE), 50 * costs(1, 6, 6)
    both = OptimalTransport(1.0).solve(torch.cat([easy, hard]))
    assert both.iterations[0] < both.iterations[1]
    assert both.iterations[0] == OptimalTransport(1.0).solve(easy).iterations[0]


@pytest.mark.parametrize("gamma", [10.0, 30.0])
def test_sinkhorn_finishes_an_easy_problem_in_several_chunks(gamma: float, monkeypatch: pytest.MonkeyPatch):
    def refused(*_: object) -> None:
        raise AssertionError("Newton's method was called")

    monkeypatch.setattr(sinkhorn, "_newton", refused)
    solution = OptimalTransport(gamma).solve(costs(2, 40, 50))
    assert (solution.iterations > sinkhorn.FIRST).all()
    assert marginal_error(solution.y) < 1e-12


def test_potentials_far_from_where_the_kernel_was_computed():
    M = torch.zeros(1, 3, 3, dtype=DOUBLE)
    M[0, :, 2] = torch.tensor([0.0, 300.0, 600.0])
    M[0, 2, 0] = 500.0
    plan = OptimalTransport(1.0)(M)
    assert marginal_error(plan) < 1e-12
    shifted = OptimalTransport(1.0)(M + torch.tensor([0.0, 450.0, -200.0], dtype=DOUBLE).unsqueeze(-1))
    assert (plan - shifted).abs().max() < 1e-11


def test_uniform_marginals_are_the_default():
    M = costs(2, 3, 4)
    r, c = torch.full((3,), 1 / 3, dtype=DOUBLE), torch.full((2, 4), 1 / 4, dtype=DOUBLE)
    expected = OptimalTransport()(M)
    for plan in (OptimalTransport()(M, r), OptimalTransport()(M, None, c), OptimalTransport()(M, r, c)):
        assert (plan - expected).abs().max() < 1e-15


def test_shared_marginal_collects_the_gradient_of_the_batch():
    M, ot = costs(3, 3, 4), OptimalTransport(2.0)
    r = torch.tensor([0.2, 0.3, 0.5], dtype=DOUBLE, requires_grad=True)
    each = r.detach().expand(3, 3).clone().requires_grad_()
    v = torch.randn(3, 3, 4, dtype=DOUBLE)
    (shared,) = torch.autograd.grad((ot(M, r) * v).sum(), r)
    (own,) = torch.autograd.grad((ot(M, each) * v).sum(), each)
    assert (shared - own.sum(0)).abs().max() < 1e-13


@pytest.mark.parametrize("shape", [(300, 280), (260, 400)])
def test_conjugate_gradients_agree_with_the_factorisation(shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch):
    M = costs(2, *shape).requires_grad_()
    r = torch.rand(shape[0], dtype=DOUBLE) + 0.5
    r = (r / r.sum()).requires_grad_()
    v = torch.randn(2, *shape, dtype=DOUBLE)
    grads = []
    for limit in (0, 1000):
        monkeypatch.setattr(schur, "DIRECT", limit)
        grads.append(torch.autograd.grad((OptimalTransport(10.0)(M, r) * v).sum(), (M, r)))
    for one, other in zip(*grads, strict=True):
        assert (one - other).abs().max() <= 1e-10 * other.abs().max()


def test_conjugate_gradients_that_do_not_arrive_are_replaced(monkeypatch: pytest.MonkeyPatch):
    M = costs(1, 20, 20).requires_grad_()
    v = torch.randn(1, 20, 20, dtype=DOUBLE)
    plan = OptimalTransport(50.0)(M)
    (expected,) = torch.autograd.grad((plan * v).sum(), M, retain_graph=True)
    monkeypatch.setattr(schur, "DIRECT", 0)
    monkeypatch.setattr(schur, "STEPS", 2)
    (grad,) = torch.autograd.grad((plan * v).sum(), M)
    assert (grad - expected).abs().max() <= 1e-12 * expected.abs().max()


def test_gradient_of_a_large_problem_against_a_difference():
    M, ot = costs(1, 120, 90), OptimalTransport(20.0)
    v, direction = torch.randn(1, 120, 90, dtype=DOUBLE), torch.randn(1, 120, 90, dtype=DOUBLE)
    M.requires_grad_()
    (grad,) = torch.autograd.grad((ot(M) * v).sum(), M)
    step = 1e-5
    with torch.no_grad():
        difference = ((ot(M + step * direction) - ot(M - step * direction)) * v).sum() / (2 * step)
    assert abs((grad * direction).sum() - difference) < 1e-6 * abs(difference)


def test_entries_that_underflow_have_finite_derivatives():
    M = torch.tensor([[[0.0, 5000.0], [4000.0, 0.0]]], dtype=DOUBLE, requires_grad=True)
    plan = OptimalTransport(1.0)(M)
    assert marginal_error(plan) < 1e-12
    with pytest.warns(NumericalWarning, match="falls apart"):
        (grad,) = torch.autograd.grad(plan[0, 0, 0], M, create_graph=True)
    assert grad.isfinite().all()
    assert grad.abs().max() < 1e-12
    with pytest.warns(NumericalWarning, match="falls apart"):
        assert torch.autograd.grad(grad.sum(), M)[0].isfinite().all()


def test_one_iteration_is_not_enough():
    M = 30 * costs(1, 5, 5)
    with pytest.raises(SolverError) as caught:
        OptimalTransport(1.0, max_iterations=1)(M)
    assert caught.value.solution.status == [Status.ITERATION_LIMIT]


def test_bad_marginals():
    M, ot = costs(2, 3, 4), OptimalTransport()
    third, fourth = torch.full((3,), 1 / 3, dtype=DOUBLE), torch.full((4,), 1 / 4, dtype=DOUBLE)
    with pytest.raises(ValueError, match="negative"):
        ot(M, torch.tensor([0.5, 0.6, -0.1], dtype=DOUBLE), fourth)
    with pytest.raises(ValueError, match="negative"):
        torch.vmap(ot)(M.unsqueeze(1), torch.tensor([0.5, 0.6, -0.1], dtype=DOUBLE).expand(2, 1, 3))
    with pytest.raises(ValueError, match="have a mass"):
        ot(M, 0 * third, 0 * fourth)
    with pytest.raises(ValueError, match=r"same mass.*problem 0"):
        ot(M, 2 * third, fourth)
    with pytest.raises(ValueError, match="must have shape"):
        ot(M, fourth, fourth)
    with pytest.raises(TypeError, match="5 inputs"):
        ot(M, third, fourth, torch.ones(2), fourth)
    for gamma in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="gamma"):
            OptimalTransport(gamma)
    with pytest.raises(TypeError, match="gamma"):
        OptimalTransport("large")


def test_both_masses_count_alike():
    """Marginals of slightly different mass are brought to the mean of the two."""
    M = costs(2, 3, 4)
    r = torch.tensor([0.2, 0.3, 0.50002], dtype=DOUBLE, requires_grad=True)
    c = torch.full((4,), 0.25, dtype=DOUBLE, requires_grad=True)
    mass = OptimalTransport(2.0)(M, r, c).sum((-2, -1))
    assert (mass - 1.00001).abs().max() < 1e-12
    for grad in torch.autograd.grad(mass[0], (r, c)):
        assert (grad - 0.5).abs().max() < 1e-12


def test_conjugate_gradients_do_all_the_work_of_an_easy_problem(monkeypatch: pytest.MonkeyPatch):
    def refused(*_: object) -> None:
        raise AssertionError("the matrix was factored")

    M, v = costs(1, 150, 140).requires_grad_(), torch.randn(1, 150, 140, dtype=DOUBLE)
    plan = OptimalTransport(2.0)(M)
    monkeypatch.setattr(schur, "_factorised", refused)
    assert torch.autograd.grad((plan * v).sum(), M)[0].isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
@pytest.mark.parametrize("longer", [0.0, 0.3])
def test_compiled_iterations_are_those_of_torch(longer: float, dtype: torch.dtype):
    kernel, r, c = (torch.rand(*shape, dtype=dtype) + 0.1 for shape in ((4, 5, 7), (4, 5), (4, 7)))
    c *= r.sum(-1, keepdim=True) / c.sum(-1, keepdim=True)
    kernel[1] = 1.0  # done at once
    kernel[3, 0, 0] = torch.nan
    state = torch.rand_like(r) + 0.5, torch.rand_like(c) + 0.5, torch.full_like(r[:, 0], longer)
    for steps in (1, 6):
        mine = scaling.iterate(kernel, r, c, *state, 1e-3, steps)
        other = scaling._by_tensors(kernel, r, c, *state, 1e-3, steps)
        assert torch.equal(mine.iterations, other.iterations)
        assert mine.error[3].isnan()
        for name in ("u", "v", "error"):
            one, two = getattr(mine, name)[:3], getattr(other, name)[:3]
            assert (one - two).abs().max() <= 100 * torch.finfo(dtype).eps * two.abs().max().clamp(min=1.0)
        assert (mine.middle / other.middle - 1)[[0, 2]].abs().max() < 1e-3


def test_without_the_core_the_plan_is_the_same(monkeypatch: pytest.MonkeyPatch):
    M = costs(3, 8, 6)
    for gamma in (1.0, 20.0):
        with monkeypatch.context() as patch:
            mine = OptimalTransport(gamma)(M)
            patch.setattr(scaling, "available", lambda: False)
            assert (OptimalTransport(gamma)(M) - mine).abs().max() < 1e-13
