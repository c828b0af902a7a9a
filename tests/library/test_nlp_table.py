"""The table of nonlinear programmes is right: what it says of each problem holds at the points that it keeps."""

import time
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.linalg import null_space
from scipy.optimize import lsq_linear

from tests.support.helpers import DOUBLE
from tests.support.nlp import TABLE, nist
from tests.support.nlp.peers import Answer, slsqp
from tests.support.nlp.programme import Programme
from tests.support.nlp.run import attempt, judge

ALL = pytest.mark.parametrize("programme", [pytest.param(p, id=p.name) for p in TABLE])


def test_every_kind_is_well_represented():
    counts = Counter(programme.category for programme in TABLE)
    assert len({programme.name for programme in TABLE}) == len(TABLE) >= 160
    assert set(counts) == {"unconstrained", "bounds", "equality", "inequality", "mixed"}
    assert min(counts.values()) >= 15


@ALL
def test_everything_is_finite_at_the_start(programme):
    start = torch.tensor(programme.start, dtype=DOUBLE)
    functions = (programme.objective, programme.equality_rows, programme.inequality_rows)
    for function in functions:
        assert function(start).isfinite().all()
        assert torch.func.jacrev(function)(start).isfinite().all()


class Conditions:
    """The optimality conditions at a point, in units of the unknowns, with the multipliers that fit best."""

    def __init__(self, programme, u):
        size = u.abs().clamp(min=1e-2).numpy()
        jacobian = torch.func.jacrev(programme.inequality_rows)(u).numpy()
        active = (programme.inequality_rows(u).numpy() > -1e-6 * np.maximum(1, np.abs(jacobian) @ size)).nonzero()[0]

        def rows(v):
            return torch.cat([programme.equality_rows(v), programme.inequality_rows(v)[torch.from_numpy(active)]])

        normals = torch.func.jacrev(rows)(u).numpy() * size
        lengths = np.linalg.norm(normals, axis=1).clip(min=1e-300)
        gradient = torch.func.grad(programme.objective)(u).numpy() * size
        signs = np.where(np.arange(len(normals)) < len(normals) - len(active), -np.inf, 0.0)
        weights = fit((normals / lengths[:, None]).T, -gradient, signs) / lengths
        scale = max(programme.unit**0.5, abs(programme.objective(u).item()), np.abs(gradient).max())
        self.stationarity = np.abs(gradient + normals.T @ weights).max() / scale

        hessian = torch.func.hessian(lambda v: programme.objective(v) + torch.from_numpy(weights) @ rows(v))(u).numpy()
        free = null_space(normals / lengths[:, None], rcond=1e-9) if len(normals) else np.eye(len(u))
        curved = hessian * size[:, None] * size
        self.curvature = np.linalg.eigvalsh(free.T @ curved @ free).min(initial=0) / max(np.abs(curved).max(), 1e-300)


def fit(columns, target, lower):
    """The combination of the columns that is nearest to the target, with weights not below ``lower``."""
    if not columns.shape[1]:
        return np.zeros(0)
    scale = max(np.linalg.norm(target), 1e-300)
    return scale * lsq_linear(columns, target / scale, (lower, np.inf), method="bvls", tol=1e-14).x


@ALL
def test_known_points_are_feasible_have_the_known_values_and_satisfy_the_conditions_of_a_minimum(programme):
    values = [programme.optimum, *programme.others]
    for value, point in zip(values, programme.solutions, strict=True):
        assert programme.violation(point) <= 1e-8
        assert abs(programme.excess(programme.objective(point).item(), value)) <= programme.tolerance / 2
        conditions = Conditions(programme, point)
        assert conditions.curvature > -1e-6
        if programme.regular:
            assert conditions.stationarity < 1e-5


@pytest.mark.parametrize("programme", [pytest.param(p, id=p.name) for p in nist.PROBLEMS])
def test_certified_sums_of_squares_are_reproduced(programme):
    assert programme.objective(programme.solutions[0]).item() == pytest.approx(programme.optimum, rel=1e-9, abs=1e-18)


def test_bounds_are_data_and_rows():
    rows = {"equality": lambda u: [u.sum()], "inequality": lambda u: [u[0] - 1]}
    programme = Programme("box", lambda u: u.sum(), [0.0, 0.0], 0.0, **rows, lower=[-torch.inf, -2], upper=3)
    lower, upper = programme.bounds
    assert lower.tolist() == [-torch.inf, -2]
    assert upper.tolist() == [3, 3]
    assert programme.inequality_rows(torch.tensor([4.0, -2.5], dtype=DOUBLE)).tolist() == [3, 0.5, 1, -5.5]
    assert programme.category == "mixed"
    assert replace(programme, equality=None).category == "inequality"
    assert replace(programme, equality=None, inequality=None).category == "bounds"


def verdict(programme, answer, **changed):
    programme, point = replace(programme, **changed), torch.from_numpy(answer.point)
    return judge(programme, point, programme.objective(point).item(), answer)


def test_verdicts_on_answers():
    programme = Programme("valleys", lambda u: (u[0] ** 2 - 1) ** 2 + 0.1 * u[0], [0.0], 0.0, lower=-2, upper=2)
    best, other = (slsqp(programme, np.array([start])) for start in (-1.0, 1.0))
    low, high = (programme.objective(torch.from_numpy(one.point)).item() for one in (best, other))
    known = replace(programme, optimum=low)
    assert verdict(known, best)[0] == "solved"
    assert verdict(known, other)[0] == "wrong"
    assert verdict(known, other, others=[high])[0] == "local"
    assert verdict(known, best, upper=-1.1)[0] == "wrong"
    assert verdict(known, best, optimum=high)[0] == "below"
    assert verdict(known, Answer(best.point, False, "STALLED", 1)) == ("failed", "STALLED at a solution")
    assert verdict(known, Answer(np.zeros(1), False, "STALLED", 1)) == ("failed", "STALLED")


def test_time_is_limited_and_a_crash_is_a_failure():
    programme = TABLE[0]
    assert attempt(programme, lambda _: time.sleep(10), 0.05).verdict == "late"
    crashed = attempt(programme, lambda _: 1 / 0, 1.0)
    assert (crashed.verdict, crashed.words) == ("failed", "ZeroDivisionError: division by zero")
