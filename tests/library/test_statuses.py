"""How a problem ends is data: one status per problem, the others untouched."""

import dataclasses
import pickle

import pytest
import torch
from torch import Tensor

from declarative import Chain, ClosedForm, DeclarativeNode, Newton, NumericalWarning, Scipy, Solver, SolverError, Status
from declarative.problem import Batch
from declarative.solution import RawSolution
from tests.support.helpers import DOUBLE, half_square, relative
from tests.support.nlp import rosenbrock

# kind 0: solvable; 1: infeasible; 2: unbounded; 3: not finite
KINDS = torch.tensor([0.0, 1.0, 0.0, 2.0, 3.0, 0.0], dtype=DOUBLE)
EXPECTED = [
    Status.CONVERGED,
    Status.INFEASIBLE,
    Status.CONVERGED,
    Status.UNBOUNDED,
    Status.NOT_FINITE,
    Status.CONVERGED,
]


def objective(kind, x, u):
    bowl = (u - x).square().sum()
    return torch.where(kind == 2, x.square().sum() - u.sum(), torch.where(kind == 3, (u.sum() - 1e6).log(), bowl))


def equality(kind, _, u):
    return torch.where(kind == 1, u.square().sum() + 1, torch.where(kind == 2, 0.0 * u[0], u.sum() - 1))


def plane(x):
    return x - (x.sum(-1, keepdim=True) - 1) / 3


@pytest.mark.parametrize("solver", ["newton", None], ids=["newton", "default"])
def test_infeasible_unbounded_and_undefined_problems_in_one_batch(solver):
    x = torch.randn(6, 3, dtype=DOUBLE, requires_grad=True)
    node = DeclarativeNode(objective, equality, solver=solver, start=3, on_failure="mask")
    with pytest.warns(NumericalWarning, match="3 of 6 problems"):
        solution = node.solve(KINDS, x)
    assert solution.status == EXPECTED
    good = solution.converged
    alone = DeclarativeNode(half_square, lambda _, u: u.sum() - 1, solver=solver, start=3)(x[good])
    assert relative(solution.y[good], plane(x[good])) < 1e-10
    assert relative(alone, plane(x[good])) < 1e-10
    (g,) = torch.autograd.grad(solution.y[good].pow(3).sum(), x)
    (truth,) = torch.autograd.grad(plane(x[good]).pow(3).sum(), x)
    assert relative(g[good], truth[good]) < 1e-9
    assert torch.equal(g[~good], torch.zeros_like(g[~good]))


def test_failed_problems_do_not_change_the_others_by_a_bit():
    x = torch.randn(6, 3, dtype=DOUBLE)
    node = DeclarativeNode(objective, equality, solver="newton", start=3, on_failure="mask")
    with pytest.warns(NumericalWarning):
        mixed = node(KINDS, x)
    good = KINDS == 0
    clean = node(torch.zeros(6, dtype=DOUBLE), x)
    assert torch.equal(mixed[good], clean[good])


def test_one_infeasible_problem_of_256():
    x = torch.randn(256, 3, dtype=DOUBLE, requires_grad=True)
    kinds = torch.zeros(256, dtype=DOUBLE)
    kinds[77] = 1
    node = DeclarativeNode(objective, equality, start=3, on_failure="mask")
    with pytest.warns(NumericalWarning, match="1 of 256"):
        solution = node.solve(kinds, x)
    assert [i for i, status in enumerate(solution.status) if status is Status.INFEASIBLE] == [77]
    assert int(solution.converged.sum()) == 255
    good = solution.converged
    assert relative(solution.y[good], plane(x[good])) < 1e-10
    (g,) = torch.autograd.grad(solution.y.pow(3)[good].sum(), x)
    (truth,) = torch.autograd.grad(plane(x[good]).pow(3).sum(), x)
    assert relative(g, truth) < 1e-9


def test_the_error_carries_everything():
    x = torch.randn(6, 3, dtype=DOUBLE)
    node = DeclarativeNode(objective, equality, solver="newton", start=3)
    with pytest.raises(SolverError) as caught:
        node(KINDS, x)
    error = caught.value
    assert error.indices == [1, 3, 4]
    text = str(error)
    for word in ("problem 1: infeasible", "problem 3: unbounded", Status.INFEASIBLE.advice, Status.UNBOUNDED.advice):
        assert word in text
    good = KINDS == 0
    assert relative(error.solution.y[good], plane(x)[good]) < 1e-10
    again = pickle.loads(pickle.dumps(error))
    assert again.indices == error.indices


def test_every_status_has_advice():
    for status in Status:
        assert status.advice.endswith(".")
        assert len(status.advice.split()) > 2


def test_iteration_limit():
    node = DeclarativeNode(
        lambda x, u: x * rosenbrock(u),
        solver=Newton(max_iterations=3),
        start=torch.tensor([-1.2, 1.0]),
        on_failure="mask",
    )
    with pytest.warns(NumericalWarning, match="iteration_limit"):
        solution = node.solve(torch.ones(1, dtype=DOUBLE))
    assert solution.status == [Status.ITERATION_LIMIT]


def test_what_newton_leaves_goes_to_scipy_and_is_named():
    weak = Chain((Newton(max_iterations=1), Scipy(method="SLSQP")))
    node = DeclarativeNode(
        lambda x, u: (x * (u - 2)).pow(4).sum() + u.square().sum(), solver=weak, start=torch.tensor([30.0])
    )
    solution = node.solve(torch.tensor([[0.0], [1.0]], dtype=DOUBLE))
    assert solution.solvers == ["Newton", "SLSQP"]
    assert solution.converged.all()


def test_a_solver_that_lies_is_found_out():
    node = DeclarativeNode(half_square, solver=ClosedForm(lambda x: x + 1e-3), on_failure="mask")
    with pytest.warns(NumericalWarning, match="not_optimal"):
        solution = node.solve(torch.zeros(2, 3))
    assert solution.status == [Status.NOT_OPTIMAL] * 2


def test_kinks_are_told_where_a_gradient_will_be_taken():
    box = DeclarativeNode(half_square, inequality=lambda _, u: u - 1, solver=lambda x: x.clamp(max=1.0))
    x = torch.tensor([[0.5, 1.0], [0.0, 2.0]], dtype=DOUBLE, requires_grad=True)
    box(x.detach())
    with pytest.warns(NumericalWarning, match="1 of 2 problems have a constraint that is just active"):
        y = box(x)
    (g,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(g, torch.tensor([[1.0, 1.0], [1.0, 0.0]], dtype=DOUBLE))


def test_the_objective_of_a_masked_problem_is_a_constant_and_keeps_its_nan():
    node = DeclarativeNode(
        lambda x, w, u: (u - w * x).square().sum() + (w * x).sum(), start=1, in_dims=(0, None), on_failure="mask"
    )
    x = torch.tensor([[1.0], [torch.nan]], dtype=DOUBLE)
    w = torch.tensor(2.0, dtype=DOUBLE, requires_grad=True)
    with pytest.warns(NumericalWarning, match="1 of 2"):
        solution = node.solve(x, w)
    (g,) = torch.autograd.grad(solution.objective[0], w, retain_graph=True)
    assert g.item() == 1
    (g,) = torch.autograd.grad(solution.objective[1], w)
    assert g.item() == 0


def scaled_plane(x, a):
    """The nearest point to a x with sum 1, and the multiplier of that."""
    gap = (1 - a * x.sum(-1, keepdim=True)) / 3
    return a * x + gap, gap


def one_fails(which, **options):
    """A formula that is wrong for these problems."""
    error = torch.tensor(which, dtype=DOUBLE).unsqueeze(-1)
    return DeclarativeNode(
        lambda x, a, u: (u - a * x).square().sum() / 2,
        lambda _x, _a, u: u.sum() - 1,
        solver=lambda x, a: scaled_plane(x, a)[0] + 0.1 * error,
        in_dims=(0, None),
        on_failure="mask",
        **options,
    )


def test_a_masked_problem_has_no_gradient_whatever_the_loss_reads():
    x, a = torch.randn(3, 3, dtype=DOUBLE, requires_grad=True), torch.tensor(2.0, dtype=DOUBLE, requires_grad=True)
    good, v, w = [0, 2], torch.randn(3, 3, dtype=DOUBLE), torch.randn(3, 1, dtype=DOUBLE)
    with pytest.warns(NumericalWarning, match="1 of 3"):
        solution = one_fails([0, 1, 0]).solve(x, a)
    found = torch.autograd.grad((solution.y * v).sum() + (solution.multipliers * w).sum(), (x, a))
    y, multipliers = scaled_plane(x, a)
    truth = torch.autograd.grad((y * v)[good].sum() + (multipliers * w)[good].sum(), (x, a))
    assert not found[0][1].any()
    for mine, theirs in zip(found, truth, strict=True):
        assert relative(mine, theirs) < 1e-12


def test_a_masked_problem_has_no_tangent():
    x, a = torch.randn(3, 3, dtype=DOUBLE), torch.tensor(2.0, dtype=DOUBLE)
    dx, da = torch.randn(3, 3, dtype=DOUBLE), torch.tensor(-1.0, dtype=DOUBLE)
    node = one_fails([0, 1, 0])

    def solved(x, a):
        solution = node.solve(x, a)
        return solution.y, solution.multipliers

    with pytest.warns(NumericalWarning, match="1 of 3"):
        _, found = torch.func.jvp(solved, (x, a), (dx, da))
    _, truth = torch.func.jvp(scaled_plane, (x, a), (dx, da))
    for mine, theirs in zip(found, truth, strict=True):
        assert not mine[1].any()
        assert relative(mine[[0, 2]], theirs[[0, 2]]) < 1e-12


@pytest.mark.parametrize("failed", [[1], [0, 1, 2]], ids=["one", "all"])
@pytest.mark.parametrize("solver", [lambda x, w: w * x, "scipy"], ids=["formula", "scipy"])
def test_what_is_not_finite_in_a_masked_problem_reaches_no_gradient(failed, solver):
    """The shared input is multiplied by what is not finite: zero times that would be NaN."""
    x, w = torch.randn(3, 2, dtype=DOUBLE), torch.tensor(2.0, dtype=DOUBLE, requires_grad=True)
    good = [i for i in range(3) if i not in failed]
    x[failed, 1] = torch.nan
    x.requires_grad_()
    node = DeclarativeNode(
        lambda x, w, u: (u - w * x).square().sum(), solver=solver, start=2, in_dims=(0, None), on_failure="mask"
    )
    with pytest.warns(NumericalWarning, match=f"{len(failed)} of 3"):
        y = node(x, w)
    v = torch.randn_like(y)
    of_x, of_w = torch.autograd.grad(y, (x, w), v)
    assert not of_x[failed].any()
    assert relative(of_x[good], 2 * v[good]) < 1e-12 if good else not of_w.any()
    assert abs(of_w.item() - (v * x)[good].sum().item()) < 1e-12


class Claims(Solver):
    """Stays where it starts, and says why."""

    def __init__(self, status: Status) -> None:
        self.status = status

    def solve(self, batch: Batch, start: Tensor) -> RawSolution:  # noqa: ARG002
        raw = RawSolution.unsolved(start)
        return dataclasses.replace(raw, codes=torch.full_like(raw.codes, self.status))


@pytest.mark.parametrize("claim", [Status.INFEASIBLE, Status.UNBOUNDED])
def test_a_claim_without_evidence_is_not_believed(claim):
    node = DeclarativeNode(half_square, solver=Claims(claim), start=torch.zeros(3), on_failure="mask")
    with pytest.warns(NumericalWarning, match="stalled"):
        solution = node.solve(torch.stack([torch.zeros(3), torch.ones(3)]))
    assert solution.status == [Status.CONVERGED, Status.STALLED]  # and a solution is one, whatever is said of it


def test_a_gradient_that_is_no_number_stays_with_its_problem():
    """The first problem fails; the second has a root of zero in it, whose derivative is infinite."""

    def objective(x, a, u):
        return (u - x).square().sum() / 2 + (a - a.detach()).sqrt().sum() * u.sum()

    x = torch.tensor([[torch.nan], [1.0]], dtype=DOUBLE, requires_grad=True)
    a = torch.zeros(2, 1, dtype=DOUBLE, requires_grad=True)
    node = DeclarativeNode(objective, solver="newton", start=1, on_failure="mask")
    with pytest.warns(NumericalWarning):
        y = node(x, a)
    y[1].sum().backward()
    assert not a.grad[1].isfinite()
    assert float(a.grad[0]) == 0 == float(x.grad[0])
