"""A call of which nothing but the solutions is asked takes a shorter way, from the second call of a shape on."""

from __future__ import annotations

import copy

import pytest
import torch

from declarative import NumericalWarning, SolverError
from declarative.recording import Sizes
from problems import (
    BallProjection,
    EntropicSimplex,
    LeastSquares,
    RotationProjection,
    SimplexProjection,
    SphereProjection,
)

from ..support.problem_table import TABLE, Case

DOUBLE = torch.float64
FORMULAS = {
    SphereProjection(): torch.tensor([[3.0, 4.0], [0.1, 0.0]]),
    SimplexProjection(): torch.tensor([[3.0, 4.0], [0.1, 0.0]]),
    EntropicSimplex(0.5): torch.tensor([[3.0, 4.0], [0.1, 0.0]]),
    BallProjection(2.0): torch.tensor([[3.0, 4.0], [0.1, 0.0]]),
    BallProjection(2.0, norm=torch.inf): torch.tensor([[3.0, 4.0], [0.1, 0.0]]),
    RotationProjection(): torch.tensor([[[1.0, 2.0], [0.0, 1.0]], [[0.1, 0.3], [-0.3, 0.2]]]),
}


def warm(layer, *xs):
    """The layer, which has seen these shapes."""
    layer(*xs)
    return layer


@pytest.mark.parametrize("dtype", [DOUBLE, torch.float32])
@pytest.mark.parametrize("case", TABLE, ids=lambda case: case.name)
def test_the_short_way_leads_to_the_same_solutions(case: Case, dtype):
    xs = case.inputs(dtype)
    plain = [x.detach() for x in xs]
    with torch.no_grad():
        y = warm(case.layer, *plain)(*plain)
    assert torch.equal(y, case.layer(*xs))
    assert torch.equal(y, case.layer.solve(*plain).y)
    assert y.dtype == dtype
    assert y.grad_fn is None


@pytest.mark.parametrize("layer", FORMULAS, ids=repr)
def test_the_short_way_is_taken_by_formulas_and_gives_its_own_memory(layer, monkeypatch):
    x = FORMULAS[layer].double()
    before = x.clone()
    warm(layer, x)
    monkeypatch.setattr(type(layer.spec.plan.solver), "solve", None)  # the long way
    y = layer(x)
    kept = y.clone()
    y += 1.0
    assert torch.equal(x, before)
    assert torch.equal(layer(x), kept)


@pytest.mark.parametrize("layer", FORMULAS, ids=repr)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_the_short_way_does_not_hide_what_has_no_solution(layer, bad):
    x = FORMULAS[layer].double()
    warm(layer, x)
    x[1, 0] = bad
    with pytest.raises(SolverError, match="problem 1: not_finite"):
        layer(x)
    with pytest.warns(NumericalWarning, match="1 of 2"):
        y = layer.with_plan(on_failure="mask")(x)
    assert torch.equal(y[0], layer(x[:1])[0])


@pytest.mark.parametrize("layer", FORMULAS, ids=repr)
def test_a_masked_row_is_the_same_in_every_call(layer):
    x = FORMULAS[layer].double()
    x[1, 0] = torch.nan
    masked = copy.deepcopy(layer).with_plan(on_failure="mask", sizes=Sizes())
    with pytest.warns(NumericalWarning, match="1 of 2"):
        first = masked(x)
    warm(masked, x.nan_to_num(nan=0.5))
    with pytest.warns(NumericalWarning, match="1 of 2"):
        assert torch.equal(masked(x), first)


def test_the_short_way_does_not_hide_a_setting_that_is_infinite():
    x, radius = torch.ones(2, 3), torch.tensor([1.0, 2.0])
    layer = warm(BallProjection(), x, radius)
    with pytest.raises(SolverError, match="problem 1: not_finite"):
        layer(x, radius * torch.tensor([1.0, torch.inf]))


def test_the_short_way_does_not_hide_the_centre_of_a_sphere():
    layer = warm(SphereProjection(), torch.ones(2, 3))
    for small in (0.0, 1e-45):
        with pytest.raises(SolverError, match="problem 0: singular"):
            layer(torch.tensor([[small, 0.0, 0.0], [1.0, 0.0, 0.0]]))


@pytest.mark.parametrize("size", [1e-300, 1e-160, 1e160, 1e300])
def test_the_short_way_to_a_sphere_neither_overflows_nor_underflows(size):
    x = torch.tensor([[3.0, 4.0]], dtype=DOUBLE)
    assert torch.allclose(warm(SphereProjection(), x)(size * x), x / 5, rtol=1e-15)


def test_a_formula_that_is_wrong_is_told(monkeypatch):
    """The conditions are looked at in the short way too."""
    x = torch.tensor([[0.2, 0.9, -0.3]], dtype=DOUBLE)
    layer = warm(SimplexProjection(), x)
    wrong = torch.tensor([[0.2, 0.8, 0.0]], dtype=DOUBLE)  # sums to one, and is not the nearest
    monkeypatch.setitem(vars(layer.spec.plan.solver), "solution", lambda _: wrong)
    with pytest.raises(SolverError, match="not_optimal"):
        layer(x)
    monkeypatch.setitem(vars(layer.spec.plan.solver), "solution", lambda x: (x - 0.01).relu())
    with pytest.raises(SolverError, match="not_optimal"):
        layer(x)


def test_inputs_are_checked_in_every_call():
    """What is worked out once per shape is not taken for granted for another one."""
    A, b = torch.eye(3, dtype=DOUBLE).expand(2, 3, 3), torch.ones(2, 3, dtype=DOUBLE)
    layer = warm(LeastSquares(), A, b)
    with pytest.raises(ValueError, match="w must not be negative"):
        layer(A, b, -b)
    with pytest.raises(TypeError, match="floating"):
        layer(A, b.long())
    with pytest.raises(ValueError, match="p is 3"):
        layer(A, b[:, :2])
