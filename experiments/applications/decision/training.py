"""Predict, then decide: train a model for the quality of the decision, or for that of the prediction?

The decision is the allocation of :mod:`experiments.applications.decision.data`. The model is deliberately simple:
linear in the four measurements that are known before a blood test. Two-stage training fits it to the progression by
least squares, and the allocation comes after; decision-focused training passes the regret of the allocation back
through the quadratic program, by one gradient rule or another. What is to be chosen (the ridge, the learning rate,
when to stop) is chosen by the regret on validation patients, for every method alike; the test patients are looked at
once, at the end.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...shared.application import Cases
from ...shared.jobs import Tick
from ...shared.rules import counted_warnings, make_rule
from ...shared.training import Clock
from .. import predicting
from ..predicting import RULES, TWO_STAGE, fit, predict, train
from ..sampling import draw_groups, split
from .data import BEFORE_BLOOD_TEST, GROUP, SPLIT, Allocation, Groups, Patients, load_patients, standardised

MORE = "two-stage, all ten"  # the same with the blood tests: what a better model would bring
SAME = "no model"  # the same prediction for everyone
RIDGES = (0.0, 1.0, 10.0, 100.0)


@dataclass(frozen=True)
class Settings(predicting.Settings):
    """And how many groups of patients there are."""

    seeds: int = 5
    steps: int = 50
    every: int = 5
    learning_rates: tuple[float, ...] = (0.03, 0.1)
    groups: int = 200  # for validation and for testing
    training_groups: int = 500


FULL = Settings(seeds=10)
QUICK = Settings(seeds=2, steps=2, every=1, batch=4, groups=10, training_groups=10)


def cases(settings: Settings) -> Cases:
    """One."""
    return {"": partial(train_seed, settings)}


def train_seed(settings: Settings, seed: int, tick: Tick) -> tuple[dict[str, Any], str]:
    """Every method on one seed."""
    with counted_warnings() as warned:
        task, more = (Task.make(load_patients(names), seed, settings) for names in (BEFORE_BLOOD_TEST, None))
        learners = {rule: [Learner(rule, rate, task) for rate in settings.learning_rates] for rule in RULES}
        without = task.result(SAME, constant_model(task), Clock())
        runs = [without, two_stage(task, TWO_STAGE), two_stage(more, MORE), *train(learners, settings, tick)]
    words = "regret " + ", ".join(f"{one['method']} {one['regret']:.3f}" for one in runs)
    return {"runs": runs, "warnings": warned}, words


@dataclass(frozen=True)
class Task(predicting.Task):
    """The patients of one seed, and the groups of each part."""

    patients: Patients
    pools: dict[str, Tensor]
    groups: dict[str, Groups]

    @classmethod
    def make(cls, patients: Patients, seed: int, settings: Settings) -> Task:
        """Split the patients, and draw the groups."""
        pools = split(SPLIT, seed)
        patients = standardised(patients, pools["train"])
        generator = torch.Generator().manual_seed(seed)
        sizes = {"train": settings.training_groups, "validation": settings.groups, "test": settings.groups}
        drawn = {part: draw_groups(pools[part], size, GROUP, generator) for part, size in sizes.items()}
        groups = {part: Groups.of(patients[chosen]) for part, chosen in drawn.items()}
        return cls(seed, settings, patients, pools, groups)

    def regret(self, model: Tensor, part: str) -> float:
        groups = self.groups[part]
        with torch.no_grad():
            shares = Allocation(groups.patients.weights)(predict(model, groups.patients.features))
        return groups.regret(shares).mean().item()

    def test(self) -> tuple[Tensor, Tensor]:
        patients = self.patients[self.pools["test"]]
        return patients.features, patients.progression

    def result(self, method: str, model: Tensor, clock: Clock, **more: Any) -> dict[str, Any]:
        """And what the best allocation would cost."""
        return super().result(method, model, clock, best=self.groups["test"].best.mean().item(), **more)


def constant_model(task: Task) -> Tensor:
    """The mean of the training patients for everyone."""
    model = torch.zeros(1 + task.patients.features.shape[-1], dtype=torch.float64)
    model[0] = task.patients.progression[task.pools["train"]].mean()
    return model


def two_stage(task: Task, name: str) -> dict[str, Any]:
    """Least squares with the best ridge."""
    clock, patients = Clock(), task.patients[task.pools["train"]]
    with clock.running():
        models = [fit(patients.features, patients.progression, ridge) for ridge in RIDGES]
        model = min(models, key=lambda one: task.regret(one, "validation"))
    return task.result(name, model, clock)


class Learner(predicting.Learner):
    """A linear model in training through the quadratic program."""

    task: Task

    def __init__(self, rule: str, learning_rate: float, task: Task) -> None:
        self.rule = make_rule(rule)
        super().__init__(rule, learning_rate, task, constant_model(task), self.rule, math.inf)

    def loss(self) -> Tensor:
        groups = self.task.groups["train"]
        groups = groups[self.draw(len(groups.best))]
        allocate = Allocation(groups.patients.weights)
        predicted = predict(self.model, groups.patients.features)
        return groups.regret(self.course.clock(lambda x: allocate(x, self.rule), predicted)).mean()
