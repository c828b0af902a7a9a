"""Float32 problems whose functions hold float32 constants, which do not mix with double precision."""

import warnings

import pytest
import torch

from declarative import DeclarativeNode, NumericalWarning, check

MATRIX = torch.tensor([[0.5, 0.8, 0.1], [0.1, 0.3, 0.6], [0.5, 0.9, 0.5]])
WHOLE = torch.tensor([0, 1, 2])
REAL = torch.tensor([[0.5, 0.1, 0.7], [0.3, 0.9, 0.2], [0.4, 0.8, 0.6]])


def squares(v):
    return v.square().sum()


def near(x, u):
    return squares(u - x)


PROBLEMS = {
    "whole numbers": (WHOLE, {"objective": lambda i, u: squares(MATRIX @ u - MATRIX[0] * i) + squares(u)}),
    "a corner": (WHOLE, {"objective": lambda i, u: squares(u) + (MATRIX @ u - 0.1 * i).abs().sum()}),
    "unbounded": (WHOLE, {"objective": lambda i, u: (MATRIX @ u).sum() * i}),
    "infeasible": (WHOLE, {"objective": lambda _, u: squares(u), "equality": lambda i, u: squares(MATRIX @ u) + i + 1}),
    "linear": (REAL, {"objective": lambda x, u: (MATRIX @ u) @ x}),
    "linear in a box": (REAL, {"objective": lambda x, u: (MATRIX @ u) @ x, "bounds": (0, 1)}),
    "flat": (REAL, {"objective": lambda x, u: (MATRIX @ u - x)[0] ** 2}),
    "quartic": (REAL, {"objective": lambda x, u: ((MATRIX @ u - x) ** 4).sum()}),
    "redundant": (REAL, {"objective": near, "equality": lambda _, u: (MATRIX @ u)[0].expand(2)}),
    "an edge": (REAL, {"objective": near, "inequality": lambda _, u: MATRIX @ u - 0.3}),
    "an operation with words of its own": (
        REAL,
        {"objective": lambda x, u: near(x, u) + torch.nn.functional.prelu(u, MATRIX[0, :1]).sum()},
    ),
}


@pytest.mark.parametrize("solver", [None, "newton", "scipy"])
@pytest.mark.parametrize("name", PROBLEMS)
def test_every_problem_is_solved_or_has_a_status(name, solver):
    x, functions = PROBLEMS[name]
    node = DeclarativeNode(**functions, start=3, solver=solver, on_failure="mask")
    x = x.clone().requires_grad_(x.is_floating_point())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NumericalWarning)
        solution = node.solve(x)
        if x.requires_grad:
            assert torch.autograd.grad(solution.y.sum(), x)[0].isfinite().all()
    double = {key: _in_double(value) for key, value in functions.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NumericalWarning)
        other = DeclarativeNode(**double, start=3, solver=solver, on_failure="mask")
        truth = other.solve(x.detach().double())
    both = solution.converged & truth.converged
    assert torch.allclose(solution.objective[both].double(), truth.objective[both], atol=1e-4)
    if solver != "scipy" and name in ("whole numbers", "redundant", "an edge", "linear in a box"):
        assert bool(both.all())


def _in_double(value):
    """The function with the matrix in double precision."""
    if not callable(value):
        return value

    def function(x, u):
        before, scope = MATRIX, globals()
        scope["MATRIX"] = before.double()
        try:
            return value(x, u)
        finally:
            scope["MATRIX"] = before

    return function


@pytest.mark.parametrize("name", ["whole numbers", "linear", "flat", "a corner"])
def test_check_has_no_line_about_types(name):
    x, functions = PROBLEMS[name]
    result = check(DeclarativeNode(**functions, start=3), x)
    assert "same dtype" not in str(result)
    assert "could not be tested" not in str(result)
