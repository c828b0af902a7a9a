"""CVXPY's problems as layers: examples of cvxpylayers, its solutions, finite differences, and misuse."""

from __future__ import annotations

import warnings

import pytest
import torch

cp = pytest.importorskip("cvxpy")
layers = pytest.importorskip("cvxpylayers.torch")

from declarative import SolverError, Status  # noqa: E402
from problems import from_cvxpy  # noqa: E402
from tests.problems.test_cones import differences, directions_for  # noqa: E402

DOUBLE = torch.float64
N = 4
TIGHT = dict.fromkeys(("tol_gap_abs", "tol_gap_rel", "tol_feas"), 1e-11)


def randn(*shape, seed=0):
    return torch.randn(*shape, dtype=DOUBLE, generator=torch.Generator().manual_seed(seed))


def symmetric(n, seed=0):
    X = randn(n, n, seed=seed)
    return X + X.mT


def relu():
    x, p = cp.Variable(N), cp.Parameter(N)
    return cp.Problem(cp.Minimize(cp.sum_squares(x - p)), [x >= 0]), [p], [x], [randn(N)]


def absolute_deviations():
    A, b, x = cp.Parameter((3, N)), cp.Parameter(3), cp.Variable(N)
    return cp.Problem(cp.Minimize(cp.pnorm(A @ x - b, p=1)), [x >= 0]), [A, b], [x], [randn(3, N), randn(3, seed=1)]


def lasso():
    A, b, x = cp.Parameter((6, N)), cp.Parameter(6), cp.Variable(N)
    objective = cp.sum_squares(A @ x - b) + 0.5 * cp.norm1(x)
    return cp.Problem(cp.Minimize(objective)), [A, b], [x], [randn(6, N), randn(6, seed=1)]


def portfolio():
    x, mu, root = cp.Variable(N), cp.Parameter(N), cp.Parameter((N, N))
    problem = cp.Problem(cp.Maximize(mu @ x - cp.sum_squares(root @ x)), [cp.sum(x) == 1, x >= 0])
    return problem, [mu, root], [x], [randn(N), randn(N, N, seed=1)]


def monotone_regression():
    x, y = cp.Variable(N), cp.Parameter(N)
    return cp.Problem(cp.Minimize(cp.sum_squares(x - y)), [cp.diff(x) >= 0]), [y], [x], [randn(N, seed=2)]


def denoising():
    x, y, weight = cp.Variable(N), cp.Parameter(N), cp.Parameter(nonneg=True)
    problem = cp.Problem(cp.Minimize(cp.sum_squares(x - y) / 2 + weight * cp.tv(x)))
    return problem, [y, weight], [x], [randn(N), torch.tensor(0.1, dtype=DOUBLE)]


def semidefinite():
    X, C = cp.Variable((3, 3), symmetric=True), cp.Parameter((3, 3))
    problem = cp.Problem(cp.Minimize(cp.sum_squares(X - C)), [X >> 0, cp.trace(X) == 1])
    return problem, [C], [X], [symmetric(3)]


def logistic_regression():
    x, Z = cp.Variable(2), cp.Parameter((5, 2))
    problem = cp.Problem(cp.Minimize(cp.sum(cp.logistic(Z @ x)) + cp.sum_squares(x) / 2))
    return problem, [Z], [x], [randn(5, 2)]


def robust():
    x, c, root = cp.Variable(N), cp.Parameter(N), cp.Parameter((N, N))
    problem = cp.Problem(cp.Minimize(c @ x + cp.sum_squares(x)), [cp.norm(root @ x, 2) <= 1, x <= 0.3])
    return problem, [c, root], [x], [randn(N), randn(N, N, seed=1)]


def geometric():
    x, y, z = (cp.Variable(pos=True) for _ in range(3))
    a, b, c = cp.Parameter(pos=True), cp.Parameter(pos=True), cp.Parameter()
    problem = cp.Problem(cp.Minimize(1 / (x * y * z)), [a * (x * y + x * z + y * z) <= b, x >= y**c])
    return problem, [a, b, c], [x, y, z], [torch.tensor(value, dtype=DOUBLE) for value in (2.0, 1.0, 0.5)]


EXAMPLES = {
    function.__name__: function
    for function in (
        relu,
        absolute_deviations,
        lasso,
        portfolio,
        monotone_regression,
        denoising,
        semidefinite,
        logistic_regression,
        robust,
        geometric,
    )
}


def weighted(values):
    return sum((x * torch.linspace(-1, 1, x.numel(), dtype=DOUBLE).reshape(x.shape)).sum() for x in values)


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_has_the_reference_s_solution_and_the_gradient_of_differences(name):
    problem, parameters, variables, values = EXAMPLES[name]()
    gp = name == "geometric"
    layer = from_cvxpy(problem, parameters, variables, gp=gp)
    values = [x.requires_grad_() for x in values]
    found = layer(*values)
    grads = torch.autograd.grad(weighted(found), values)
    along = [0.1 * d for d in directions_for(values)]
    expected = differences(lambda *xs: weighted(layer(*xs)), values, along)
    error = (sum((g * d).sum() for g, d in zip(grads, along, strict=True)) - expected).abs()
    assert error <= 1e-8 * (1 + expected.abs())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for parameter, x in zip(parameters, values, strict=True):
            parameter.value = x.detach().numpy()
        problem.solve(solver=cp.CLARABEL, gp=gp, **({} if gp else TIGHT))
        reference = layers.CvxpyLayer(problem, parameters=parameters, variables=variables, gp=gp)
        theirs = torch.autograd.grad(weighted(reference(*values)), values)
    for x, variable in zip(found, variables, strict=True):
        assert (x - torch.as_tensor(variable.value)).abs().max() < 1e-5  # as good as Clarabel's are
    assert (layer.solve(*values).objective - problem.value).abs() < 1e-6
    other = (sum((g * d).sum() for g, d in zip(theirs, along, strict=True)) - expected).abs()
    print(f"{name}: ours is off by {error.item():.0e}, cvxpylayers by {other.item():.0e}")  # theirs is no standard


def test_batches_broadcast_and_an_unbatched_call_has_no_batch_dimension():
    problem, parameters, variables, (A, b) = lasso()
    layer = from_cvxpy(problem, parameters, variables)
    (alone,) = layer(A, b)
    assert alone.shape == (N,)
    several = torch.stack([b, 2 * b])
    (both,) = layer(A, several)
    assert (both[0] - alone).abs().max() < 1e-12
    assert (both[1] - layer(A, 2 * b)[0]).abs().max() < 1e-12
    assert (layer(A.unsqueeze(0), several)[0] - both).abs().max() < 1e-12
    assert layer(A.expand(0, -1, -1), b)[0].shape == (0, N)
    assert layer(A.float(), b.float())[0].dtype == torch.float32


def test_multipliers_are_the_dual_values_of_cvxpy():
    x, t, r = cp.Variable(3), cp.Variable(), cp.Parameter(3)
    X = cp.Variable((2, 2), symmetric=True)
    constraints = [cp.SOC(t, x - r), cp.sum(x) == 1, x[:2] <= 0.1, X >> 0, X[0, 0] == t, cp.trace(X) <= 5]
    problem = cp.Problem(cp.Minimize(t + cp.sum_squares(x) + 2 * X[0, 1] + X[1, 1] + cp.sum_squares(X)), constraints)
    layer = from_cvxpy(problem, [r], [x, constraints[1].dual_variables[0]])
    r.value = randn(3).numpy()
    solution = layer.solve(torch.as_tensor(r.value))
    problem.solve(solver=cp.CLARABEL, **TIGHT)
    for constraint, found in zip(constraints, solution.multipliers, strict=True):
        expected = constraint.dual_value
        pairs = zip(expected, found, strict=True) if isinstance(expected, list) else [(expected, found)]
        for one, other in pairs:
            assert (torch.as_tensor(one).squeeze() - other.squeeze()).abs().max() < 1e-5
    assert torch.equal(solution.y[1], solution.multipliers[1])
    assert solution.status == [Status.CONVERGED]


def test_only_the_symmetric_part_of_a_symmetric_parameter_counts():
    x, P = cp.Variable(2), cp.Parameter((2, 2), PSD=True)
    layer = from_cvxpy(cp.Problem(cp.Minimize(cp.quad_form(x, P) + cp.sum(x))), [P], [x])
    value = torch.tensor([[2.0, 1.0], [0.0, 3.0]], dtype=DOUBLE, requires_grad=True)
    (found,) = layer(value)
    expected = torch.linalg.solve(value + value.mT, -torch.ones(2, dtype=DOUBLE))
    assert (found - expected).abs().max() < 1e-12
    grads = [torch.autograd.grad(y[0], value)[0] for y in (found, expected)]
    assert (grads[0] - grads[1]).abs().max() < 1e-12


def test_what_has_no_solution_says_so():
    x, p = cp.Variable(), cp.Parameter()
    layer = from_cvxpy(cp.Problem(cp.Minimize(x**2), [x >= p, x <= 1]), [p], [x])
    with pytest.raises(SolverError) as caught:
        layer(torch.tensor([0.0, 2.0]))
    assert caught.value.solution.status == [Status.CONVERGED, Status.INFEASIBLE]
    masked = from_cvxpy(cp.Problem(cp.Minimize(p * x), [x <= 1]), [p], [x], on_failure="mask")
    with pytest.warns(UserWarning, match="unbounded"):
        assert masked.solve(torch.tensor([-1.0, 1.0])).status == [Status.CONVERGED, Status.UNBOUNDED]


def test_arguments_of_other_solvers_are_accepted():
    problem, parameters, variables, values = lasso()
    layer = from_cvxpy(problem, parameters, variables)
    (y,) = layer(*values, solver_args={"eps": 1e-3, "max_iters": 1000})
    assert torch.equal(y, layer(*values)[0])
    with pytest.raises(SolverError):
        layer(*values, solver_args={"max_iters": 1})


def made(**changes):
    x, p = cp.Variable(2, name="x"), cp.Parameter(2, name="p")
    given = {"problem": cp.Problem(cp.Minimize(cp.sum_squares(x - p)), [x >= 0]), "parameters": [p], "variables": [x]}
    return from_cvxpy(**{**given, **{name: change(x, p) for name, change in changes.items()}})


MISUSES = {
    "no problem": ({"problem": lambda x, p: 3}, TypeError, "cvxpy.Problem"),
    "not DPP": (
        {"problem": lambda x, p: cp.Problem(cp.Minimize(cp.sum_squares(x - cp.multiply(p, p))))},
        ValueError,
        "not DPP",
    ),
    "not convex": ({"problem": lambda x, p: cp.Problem(cp.Maximize(cp.sum_squares(x - p)))}, ValueError, "not convex"),
    "an integer": (
        {"problem": lambda x, p: cp.Problem(cp.Minimize(cp.sum_squares(x - p) + cp.Variable(integer=True) ** 2))},
        ValueError,
        "integer",
    ),
    "complex": (
        {"problem": lambda x, p: cp.Problem(cp.Minimize(cp.sum_squares(x - p) + cp.abs(cp.Variable(complex=True))))},
        ValueError,
        "complex",
    ),
    "a parameter is missing": ({"parameters": lambda x, p: []}, ValueError, "p is missing"),
    "a parameter of another problem": ({"parameters": lambda x, p: [p, cp.Parameter()]}, ValueError, "not a parameter"),
    "a parameter twice": ({"parameters": lambda x, p: [p, p]}, ValueError, "twice"),
    "a variable of another problem": ({"variables": lambda x, p: [cp.Variable()]}, ValueError, "not a variable"),
    "no list": ({"variables": lambda x, p: x}, TypeError, "variables must be a list"),
    "not geometric": ({"gp": lambda x, p: True}, ValueError, "not a geometric program"),
}


@pytest.mark.parametrize("name", MISUSES)
def test_misuse_is_told_when_the_layer_is_made(name):
    changes, kind, words = MISUSES[name]
    with pytest.raises(kind, match=words):
        made(**changes)


CALLS = {
    "too few": ((), TypeError, "takes 1 parameters"),
    "another shape": ((torch.ones(3),), ValueError, "must have shape"),
    "no tensor": (([1.0, 2.0],), TypeError, "must be a tensor"),
    "integers": ((torch.ones(2, dtype=torch.int64),), TypeError, "floating-point"),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_call_is_told(name):
    values, kind, words = CALLS[name]
    with pytest.raises(kind, match=words):
        made()(*values)


@pytest.mark.parametrize(("version", "works"), [("1.8.2", False), ("0.9", False), ("1.9.0", True), ("1.10.1rc1", True)])
def test_a_cvxpy_that_is_too_old_is_told(version, works, monkeypatch):
    problem, parameters, variables, values = relu()
    monkeypatch.setattr(cp, "__version__", version)
    if works:
        from_cvxpy(problem, parameters, variables)(*values)
    else:
        with pytest.raises(ImportError, match=r"needs CVXPY 1\.9 or newer, but .* pip install 'cvxpy>=1\.9'"):
            from_cvxpy(problem, parameters, variables)
