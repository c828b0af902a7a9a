"""Packing by predicted values: the data, the choices, the surrogate, and what is said."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import linprog

from declarative.gradients import as_rule
from experiments.applications.knapsack import findings
from experiments.applications.knapsack.data import HEAVY, ITEMS, LIGHT, NOISE, Days
from experiments.applications.knapsack.training import (
    LEARNED,
    QUICK,
    SURROGATE,
    TWO_STAGE,
    Learner,
    Task,
    surrogate,
)
from experiments.applications.predicting import fit
from experiments.shared.inputs import normal
from experiments.shared.knapsack import CAPACITY, Knapsack
from problems import QuadraticProgram


@pytest.fixture(scope="module")
def days() -> Days:
    return Days.generate(60, torch.Generator().manual_seed(0))


def test_data_follow_the_formula(days: Days) -> None:
    again = Days.generate(60, torch.Generator().manual_seed(0))
    assert torch.equal(days.values, again.values)
    assert ((days.knapsack.weights >= LIGHT) & (days.knapsack.weights <= HEAVY)).all()
    assert (days.values > 0).all()
    many = Days.generate(20_000, torch.Generator().manual_seed(1))
    root = (many.values / many.values.mean(0)).log()
    assert root.std() > 0.5  # far from what a linear model can say
    assert many.values.min() > (1 - NOISE) / 3.5**6
    assert many.features.mean().abs() < 0.02


def test_the_best_choice_is_that_of_a_linear_program(days: Days) -> None:
    knapsack = days.knapsack
    values = torch.cat([days.values[:5], normal(torch.Generator().manual_seed(0), 5, ITEMS)])  # some are negative
    for value, shares in zip(values, knapsack.choose(values), strict=True):
        program = linprog(-value.numpy(), A_eq=knapsack.weights.numpy()[None], b_eq=[knapsack.capacity], bounds=(0, 1))
        assert (value @ shares).item() == pytest.approx(-program.fun, rel=1e-9)
        assert (knapsack.weights @ shares).item() == pytest.approx(CAPACITY * knapsack.weights.sum().item())
        assert ((shares >= 0) & (shares <= 1)).all()


@pytest.mark.parametrize("penalty", [0.1, 1.0, 5.0])
def test_the_layer_is_a_quadratic_program(penalty: float, days: Days) -> None:
    """Solutions and gradients of another layer, which knows nothing of knapsacks."""
    knapsack, eye = days.knapsack, torch.eye(ITEMS, dtype=torch.float64)
    values = (days.values[:6] + 0.01).requires_grad_()
    bounds = torch.cat([torch.ones(ITEMS), torch.zeros(ITEMS)]).double()
    capacity = torch.tensor([knapsack.capacity], dtype=torch.float64)
    expected = QuadraticProgram()(
        penalty * eye, -values, knapsack.weights.unsqueeze(0), capacity, torch.cat([eye, -eye]), bounds
    )
    found = knapsack.layer(penalty)(values)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)
    v = normal(torch.Generator().manual_seed(0), 6, ITEMS)
    torch.testing.assert_close(
        torch.autograd.grad(found, values, v)[0], torch.autograd.grad(expected, values, v)[0], rtol=1e-7, atol=1e-9
    )


def test_regret_is_never_negative_and_zero_for_the_truth(days: Days) -> None:
    assert days.regret(days.values) == pytest.approx(0.0, abs=1e-12)
    assert days.regret(3 * days.values) == pytest.approx(0.0, abs=1e-12)  # only the order counts
    for seed in range(5):
        one = days[seed : seed + 1]
        assert one.regret(normal(torch.Generator().manual_seed(seed), 1, ITEMS)) > 0


def test_the_surrogate_is_above_the_regret_and_convex(days: Days) -> None:
    knapsack, generator = days.knapsack, torch.Generator().manual_seed(0)
    one, two = (days.values + normal(generator, *days.values.shape) for _ in range(2))
    regret = (days.best - (knapsack.choose(one) * days.values).sum(-1)).mean()
    assert surrogate(days, one) > regret
    assert surrogate(days, days.values) == pytest.approx(0.0, abs=1e-12)
    assert surrogate(days, (one + two) / 2) <= (surrogate(days, one) + surrogate(days, two)) / 2 + 1e-12
    predicted = one.clone().requires_grad_()
    (found,) = torch.autograd.grad(surrogate(days, predicted), predicted)
    expected = 2 * (knapsack.choose(2 * one - days.values) - knapsack.choose(days.values)) / len(one)
    torch.testing.assert_close(found, expected)
    step = 1e-6 * normal(generator, *one.shape)
    change = surrogate(days, one + step) - surrogate(days, one - step)
    assert change.item() == pytest.approx(2 * (found * step).sum().item(), rel=1e-3)


def test_least_squares_against_numpy(days: Days) -> None:
    inputs = np.column_stack([np.ones(60), days.features.numpy()])
    expected = np.linalg.lstsq(inputs, days.values.numpy(), rcond=None)[0]
    np.testing.assert_allclose(fit(days.features, days.values).numpy(), expected, rtol=1e-8, atol=1e-10)


def test_all_begin_with_least_squares_and_keep_the_best() -> None:
    task = Task.make(3, QUICK)
    model = fit(task.parts["train"].features, task.parts["train"].values)
    for method in LEARNED:
        learner = Learner(method, 0.01, task, model)
        assert learner.least == task.regret(model, "validation")
        before = learner.model.detach().clone()
        learner.course.advance(2)
        assert not torch.equal(learner.model, before)
        assert learner.least <= task.regret(model, "validation")
        assert learner.least == task.regret(learner.best, "validation")
    parts = [set(part.features[:, 0].tolist()) for part in task.parts.values()]
    assert not parts[0] & parts[1]
    assert not parts[1] & parts[2]


def test_learners_use_their_rule() -> None:
    task = Task.make(3, QUICK)
    learners = {
        name: Learner(name, 0.01, task, fit(task.parts["train"].features, task.parts["train"].values))
        for name in LEARNED
    }
    assert learners["unconstrained"].gradient == as_rule("unconstrained")
    assert learners["exact"].gradient == as_rule("exact")
    grads = {}
    for name, learner in learners.items():
        learner.loss().backward()
        grads[name] = learner.model.grad
    # The first pass is a probe; the exact rule by itself does the same in one function, with other rounding errors.
    assert torch.allclose(grads["adaptive"], grads["exact"], rtol=1e-12, atol=1e-13)
    assert not torch.allclose(grads["unconstrained"], grads["exact"])
    assert not torch.allclose(grads[SURROGATE], grads["exact"])


def test_smooth_choice_for_one_knapsack_by_hand() -> None:
    """Two items of weight 1, room for 0.6: the shares differ by the difference of the values over the penalty."""
    knapsack = Knapsack(torch.ones(2, dtype=torch.float64))
    assert knapsack.capacity == pytest.approx(0.6)
    shares = knapsack.smooth_choice(torch.tensor([[1.0, 0.8], [5.0, 0.0]], dtype=torch.float64), 1.0)
    torch.testing.assert_close(shares, torch.tensor([[0.4, 0.2], [0.6, 0.0]], dtype=torch.float64))


def test_the_table_has_a_line_for_each_method() -> None:
    run = {"regret": 0.1, "explained": 0.5, "seconds": 1.0, "layer_forward": 0.5, "layer_backward": 0.1}
    runs = [
        {"method": method, "seed": seed, "cheap_share": 0.25, **run, "regret": (0.1 if method == TWO_STAGE else 0.05)}
        for method in findings.METHODS
        for seed in range(2)
    ]
    record = {"runs": runs}
    assert [line[0] for line in findings.rows(record)] == [TWO_STAGE, *LEARNED]
    said = findings.sentences(record)
    assert said[0].startswith("Dropping the constraints from the gradient is not worth it: 0% more time")
    assert said[1].startswith("SPO+ against two-stage: 50.0% less regret on average, less on every seed")
    assert "backward pass takes 10% of the training time" in said[8]
