"""The problems of the table, measured in other units: the same status, the same solution, the same gradient."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.support.helpers import DOUBLE, REGULAR, gradients, relative, up_to_sign
from tests.support.rescaled import CONSTANTS, EACH_ITS_OWN, ONE_AT_A_TIME, TOGETHER, RescaledCase
from tests.support.verdicts import ACCURACY, listening


def in_all_units(rescaled: RescaledCase, solver: Any, dtype: torch.dtype) -> None:
    """Solved in all units, with the same solution and the same gradient, and without a word."""
    xs, units = rescaled.inputs(dtype)
    with listening() as words:
        solution = rescaled.node(solver, on_failure="mask").solve(*xs, *units.tensors())
        u, truth = units.to_u(solution.y), rescaled.case.truth(*xs)
        u = up_to_sign(u, truth) if rescaled.case.sign_free else u
        v = torch.randn(truth.shape, dtype=dtype)
        found, expected = gradients(u, xs, v), gradients(truth, xs, v)
    assert not rescaled.names((~solution.converged).nonzero().flatten())
    wrong = (u - truth).detach().abs().reshape(len(u), -1).amax(-1) > ACCURACY[dtype] * truth.abs().max()
    assert not rescaled.names(wrong.nonzero().flatten())
    assert not words
    assert max(map(relative, found, expected)) < ACCURACY[dtype]


@pytest.mark.parametrize("problem", REGULAR, ids=str)
@pytest.mark.parametrize("solver", ["closed form", None], ids=["closed form", "default"])
@pytest.mark.parametrize("changes", [[*ONE_AT_A_TIME, *EACH_ITS_OWN], TOGETHER, CONSTANTS], ids=["each", "all", "plus"])
def test_the_same_in_all_units(problem, solver, changes):
    in_all_units(RescaledCase(problem, tuple(changes)), solver, DOUBLE)


@pytest.mark.parametrize("problem", REGULAR, ids=str)
@pytest.mark.parametrize("solver", ["closed form", None], ids=["closed form", "default"])
def test_the_same_in_all_units_in_single_precision(problem, solver):
    in_all_units(RescaledCase(problem, tuple(ONE_AT_A_TIME)), solver, torch.float32)
