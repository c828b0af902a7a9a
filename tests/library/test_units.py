"""The problems of the table, measured in other units: the same status, the same solution, the same gradient."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.support.helpers import DOUBLE, REGULAR, case, gradients, relative, up_to_sign
from tests.support.rescaled import CONSTANTS, EACH_ITS_OWN, ONE_AT_A_TIME, TOGETHER, RescaledCase
from tests.support.verdicts import ACCURACY, listening

# Of these y and -y are both solutions, and which one is found may depend on the units.
EVEN = [case("eigenvector").name, case("nonlinear constraint").name]


def in_all_units(rescaled: RescaledCase, solver: Any, dtype: torch.dtype) -> None:
    """Solved in all units, with the same solution and the same gradient, and without a word."""
    xs, units = rescaled.inputs(dtype)
    with listening() as words:
        solution = rescaled.node(solver, on_failure="mask").solve(*xs, *units.tensors())
        u, truth = units.to_u(solution.y), rescaled.case.truth(*xs)
        u = up_to_sign(u, truth) if rescaled.case.name in EVEN else u
        v = torch.randn(truth.shape, dtype=dtype)
        found, expected = gradients(u, xs, v), gradients(truth, xs, v)
    assert not rescaled.names((~solution.converged).nonzero().flatten())
    wrong = (u - truth).detach().abs().reshape(len(u), -1).amax(-1) > ACCURACY[dtype] * truth.abs().max()
    assert not rescaled.names(wrong.nonzero().flatten())
    assert not words
    assert max(map(relative, found, expected)) < ACCURACY[dtype]


CHANGES = {
    "each": [*ONE_AT_A_TIME, *EACH_ITS_OWN],
    "together": TOGETHER,
    "constants": CONSTANTS,
}


@pytest.mark.parametrize("problem", REGULAR, ids=str)
@pytest.mark.parametrize("changes", CHANGES)
def test_a_formula_is_believed_in_all_units(problem, changes):
    in_all_units(RescaledCase(problem, tuple(CHANGES[changes])), "closed form", DOUBLE)


@pytest.mark.parametrize("problem", REGULAR, ids=str)
def test_a_formula_is_believed_in_all_units_in_single_precision(problem):
    in_all_units(RescaledCase(problem, tuple(ONE_AT_A_TIME)), "closed form", torch.float32)


@pytest.mark.parametrize("problem", REGULAR, ids=str)
@pytest.mark.parametrize("changes", [[*ONE_AT_A_TIME, *CONSTANTS], [*EACH_ITS_OWN, *TOGETHER]], ids=["one", "several"])
def test_the_default_solver_in_all_units(problem, changes):
    in_all_units(RescaledCase(problem, tuple(changes), problems=1), None, DOUBLE)


@pytest.mark.parametrize("problem", REGULAR, ids=str)
def test_the_default_solver_in_all_units_in_single_precision(problem):
    in_all_units(RescaledCase(problem, tuple(ONE_AT_A_TIME), problems=1), None, torch.float32)
