"""Learning to allocate: honest splits, the exact rule is the slope of regret, and verdicts that follow the data."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from experiments.applications.decision import findings, training
from experiments.applications.decision.data import BUDGET, GROUP, SPLIT, Allocation, Groups, Patients, load_patients
from experiments.applications.sampling import draw_groups, split


def test_gradients_differ_between_rules() -> None:
    task = training.Task.make(load_patients(), 0, training.QUICK)
    models = {}
    for rule in training.RULES:
        learner = training.Learner(rule, 0.1, task)
        learner.course.advance(3)
        models[rule] = learner.model.detach()
    assert (models["exact"] - models["unconstrained"]).abs().max() > 1e-3


def test_the_exact_rule_is_the_slope_of_regret() -> None:
    task = training.Task.make(load_patients(), 0, training.QUICK)
    groups = task.groups["train"]
    allocate, features = Allocation(groups.patients.weights), groups.patients.features

    def regret(model: torch.Tensor) -> torch.Tensor:
        return groups.regret(allocate(training.predict(model, features))).mean()

    patients = task.patients[task.pools["train"]]
    model = training.fit(patients.features, patients.progression, 1.0).requires_grad_()
    (gradient,) = torch.autograd.grad(regret(model), model)
    step = 1e-6
    slopes = [
        (regret(model.detach() + step * e) - regret(model.detach() - step * e)).item() / (2 * step)
        for e in torch.eye(len(model), dtype=model.dtype)
    ]
    np.testing.assert_allclose(gradient.numpy(), slopes, rtol=1e-4, atol=1e-6)


def a_group(seed: int, batch: int = 40) -> Groups:
    patients, generator = load_patients(), torch.Generator().manual_seed(seed)
    return Groups.of(patients[draw_groups(torch.arange(442), batch, GROUP, generator)])


def test_allocations_keep_budget_and_bounds() -> None:
    groups = a_group(0)
    shares = Allocation(groups.patients.weights)(groups.patients.progression)
    torch.testing.assert_close((shares * groups.patients.weights).sum(-1), torch.full((40,), BUDGET).double())
    assert shares.min() > -1e-9
    assert shares.max() < 1 + 1e-9


def test_regret_is_never_negative_and_zero_for_perfect_predictions() -> None:
    groups = a_group(1)
    allocate, truth = Allocation(groups.patients.weights), groups.patients.progression
    assert groups.regret(allocate(truth)).abs().max() < 1e-12
    noise = torch.randn(truth.shape, generator=torch.Generator().manual_seed(0), dtype=truth.dtype)
    regret = groups.regret(allocate(truth + noise))
    assert regret.min() > -1e-9
    assert regret.mean() > 0.1


def test_a_hand_made_allocation() -> None:
    """Three full doses for ten patients of equal weight: three of them are worth far more than the others."""
    truth = torch.zeros(1, GROUP, dtype=torch.float64)
    truth[0, :3] = 5.0
    patients = Patients(torch.zeros(1, GROUP, 4), torch.ones(1, GROUP).double(), truth)
    groups = Groups.of(patients)
    assert groups.best.item() == pytest.approx(3 * (5.0 - 1 / 2))
    opposite = Allocation(patients.weights)(-truth)
    assert opposite[0].tolist() == pytest.approx([0.0] * 3 + [BUDGET / 7] * 7)
    assert groups.regret(opposite).item() == pytest.approx(13.5 + 7 * (BUDGET / 7) ** 2 / 2)


def test_no_patient_serves_twice_and_least_squares_is_least_squares() -> None:
    pools = split(SPLIT, 0)
    together = torch.cat(list(pools.values()))
    assert len(together) == len(together.unique()) == 442
    task = training.Task.make(load_patients(None), 0, training.QUICK)
    train = task.patients[task.pools["train"]]
    inputs = np.c_[np.ones(len(train.weights)), train.features.numpy()]
    expected = np.linalg.lstsq(inputs, train.progression.numpy(), rcond=None)[0]
    np.testing.assert_allclose(training.fit(train.features, train.progression).numpy(), expected, rtol=1e-8)
    torch.testing.assert_close(train.features.mean(0), torch.zeros(10, dtype=torch.float64), atol=1e-12, rtol=0)


def test_the_test_groups_choose_nothing() -> None:
    """Other test patients change what is measured, not what is trained."""
    task = training.Task.make(load_patients(), 0, training.QUICK)
    other = copy.copy(task)
    object.__setattr__(other, "groups", task.groups | {"test": task.groups["validation"]})
    mine, others = (training.two_stage(one, training.TWO_STAGE) for one in (task, other))
    assert mine["validation_regret"] == others["validation_regret"]
    assert mine["regret"] != others["regret"]


@pytest.mark.parametrize(
    ("regrets", "said"),
    [
        (
            [0.5, 0.6, 0.55],
            "45.0% less regret on average, less on every seed; the mean difference, -0.4500, is more than",
        ),
        ([1.5, 0.6, 0.9], "0.0% more regret on average, less on 2 of 3 seeds; the mean difference, -0.0000, is within"),
        (
            [2.0, 2.1, 2.2],
            "110.0% more regret on average, more on every seed; the mean difference, +1.1000, is more than",
        ),
    ],
)
def test_verdicts_follow_the_data(regrets: list[float], said: str) -> None:
    runs = [{"method": "exact", "seed": i, "regret": value} for i, value in enumerate(regrets)]
    runs += [{"method": "two-stage", "seed": i, "regret": 1.0} for i in range(3)]
    assert said in findings.compare({"runs": runs}, "exact", "two-stage")


@pytest.mark.parametrize(
    ("regret", "seconds", "said"),
    [
        (1.1, 5.0, "Dropping the constraints from the gradient is not worth it: 50% less time, 10.0% more regret."),
        (0.9, 5.0, "Dropping the constraints from the gradient is worth it: 50% less time, 10.0% less regret."),
        (0.9, 11.0, "Dropping the constraints from the gradient is not worth it: 10% more time, 10.0% less regret."),
    ],
)
def test_the_cheap_rule_must_save_time_and_cost_nothing(regret: float, seconds: float, said: str) -> None:
    runs = [
        {"method": "exact", "seed": 0, "regret": 1.0, "seconds": 10.0},
        {"method": "unconstrained", "seed": 0, "regret": regret, "seconds": seconds},
    ]
    assert findings.verdict({"runs": runs}) == said
    assert findings.compare({"runs": runs[:1]}, "exact", "exact").endswith("the same regret.")
