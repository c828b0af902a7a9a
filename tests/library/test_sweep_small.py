"""A small version of ``python -m tests.sweep``, and that the sweep would notice what it looks for."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
import torch

from declarative import Status
from tests.support import random_programs
from tests.support.random_programs import Program, values
from tests.support.reference import DIFFERENCES, LONG, expand
from tests.support.sweep_judge import Result, forget, judge
from tests.support.sweep_trials import SHAPES, Outcome, Trial, draw, enumerated, run, solution_of
from tests.sweep import script

# Formulas, which are judged fast, and some that Newton's method went wrong with.
TRIALS = [*(i for i in range(50) if draw(0, i).solver == "closed form" and not draw(0, i).record), 5, 14, 26]


def program(maker, number: int) -> Program:
    shapes = [
        shape for shape in SHAPES if shape.curved == (maker in (random_programs.smooth, random_programs.decaying))
    ]
    return maker(np.random.default_rng(number), shapes[number % len(shapes)])


@pytest.mark.parametrize("index", TRIALS)
def test_a_few_trials_are_not_silently_wrong(index):
    trial = draw(0, index)
    assert not [one for one in judge(trial, run(trial)) if one.result is Result.WRONG]
    forget()


# The references


@pytest.mark.parametrize("maker", [random_programs.convex, random_programs.smooth, random_programs.decaying])
def test_derivatives_agree_with_those_of_torch(maker):
    one = program(maker, 4)
    u = np.linspace(-0.5, 0.7, one.shape.m)
    here = expand(one, one.x.astype(LONG), u.astype(LONG), np.abs(u))
    x, *data = (torch.from_numpy(part) for part in (one.x, *one.data))

    def functions(x, u):
        return values(x, *data, u)

    slopes = torch.func.jacrev(functions, argnums=1)
    expected = {
        "values": functions,
        "slopes": slopes,
        "curvatures": torch.func.jacrev(slopes, argnums=1),
        "slopes_x": torch.func.jacrev(functions, argnums=0),
        "mixed": torch.func.jacrev(slopes, argnums=0),
    }
    for name, function in expected.items():
        assert np.abs(getattr(here, name) - function(x, torch.from_numpy(u)).numpy()).max() < 1e-13


@pytest.mark.parametrize("number", range(7))
def test_enumeration_and_differences_agree(number):
    one = program(random_programs.convex, number)
    v = np.cos(np.arange(one.shape.m))
    truth, reference = enumerated(one, v), solution_of(one)
    assert truth is not None
    assert reference is not None
    expected = np.concatenate([truth.gradient_q, truth.gradient_b, truth.gradient_h])
    assert np.abs(reference.u - truth.y).max() < 1e-13 * (1 + np.abs(truth.y).max())
    for found in (
        reference.gradient_by_differences(v, DIFFERENCES[0]),
        reference.gradient_by_formula(v, reference.u)[0],
    ):
        assert np.abs(found - expected).max() < 1e-12 * np.abs(expected).max()


@pytest.mark.parametrize("number", range(7))
def test_differences_and_the_formula_agree(number):
    one = program(random_programs.smooth, number)
    v, reference = np.cos(np.arange(one.shape.m)), solution_of(one)
    assert reference is not None
    formula, sizes = reference.gradient_by_formula(v, reference.u)
    assert np.abs(reference.gradient_by_differences(v, DIFFERENCES[1]) - formula).max() < 1e-8 * sizes.max()


@pytest.mark.parametrize("maker", [random_programs.falling, random_programs.decaying])
@pytest.mark.parametrize("number", range(6))
def test_programs_without_a_solution_fall_for_ever(maker, number):
    one = program(maker, number)
    unit = np.eye(one.shape.m)
    pairs = [a - b for a in unit for b in (0 * unit[0], *unit) if (a != b).any()]
    x, *data, inside = (torch.from_numpy(part) for part in (one.x, *one.data, one.inside))

    def along(direction, t):
        found = values(x, *data, inside + t * torch.from_numpy(direction)).numpy()
        equalities, inequalities = found[1 : 1 + one.shape.p], found[1 + one.shape.p :]
        return found[0], np.abs(equalities).max(initial=0.0) < 1e-9 and inequalities.max(initial=0.0) < 1e-9

    def falls(direction):
        path = [along(direction, t) for t in (0.0, 1.0, 3.0, 9.0, 27.0)]
        lower = all(after[0] < before[0] for before, after in itertools.pairwise(path))
        return lower and all(feasible for _, feasible in path)

    assert any(falls(sign * direction) for direction in pairs for sign in (1, -1))


# The judge


def right_trial() -> tuple[Trial, Outcome]:
    """A closed form in the units of the problem, without a kink: the outcome is made up from the references."""
    numbers = (i for i in range(500) if draw(3, i).solver == "closed form" and draw(3, i).way == "closed form")
    for index in numbers:
        trial = draw(3, index).only(0)
        one = trial.programs[0]
        reference = solution_of(one) if one.solvable and one.shape.q and not one.kink and one.unique else None
        if trial.dtype == torch.float64 and reference is not None and reference.margin > 1e-2:
            formula, _ = reference.gradient_by_formula(trial.v[0], reference.u)
            made_up = Outcome([Status.CONVERGED], reference.u[None], reference.multipliers[None], formula[None], [])
            return trial, made_up
    raise AssertionError("no such trial")


def changed(outcome: Outcome, what: str) -> Outcome:
    if what == "status":
        return dataclasses.replace(outcome, status=[Status.NOT_OPTIMAL])
    value = getattr(outcome, what)
    return dataclasses.replace(outcome, **{what: value + 1e-3 * (1 + np.abs(value).max())})


def test_the_judge_knows_right_from_wrong():
    trial, outcome = right_trial()

    def result(one: Outcome) -> Result:
        return judge(trial, one)[0].result

    assert result(outcome) is Result.RIGHT
    assert result(changed(outcome, "u")) is Result.WRONG
    assert result(changed(outcome, "gradient")) is Result.WRONG
    assert result(changed(outcome, "multipliers")) is Result.WRONG
    assert result(changed(outcome, "status")) is Result.WRONG  # a refused problem has no gradient
    silent = dataclasses.replace(changed(outcome, "status"), gradient=0 * outcome.gradient)
    assert result(silent) is Result.SOLVABLE
    infeasible = dataclasses.replace(silent, status=[Status.INFEASIBLE])
    assert result(infeasible) is Result.FALSE_CLAIM
    told = dataclasses.replace(changed(outcome, "gradient"), words=["a word"])
    assert result(told) is Result.TOLD
    forget()


def test_the_reproduction_runs(capsys):
    trial, _ = right_trial()
    exec(script(trial, 0), {})
    status, *_ = capsys.readouterr().out.split()
    assert status in Status.__members__
    forget()
