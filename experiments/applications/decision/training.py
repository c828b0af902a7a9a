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
from typing import Any

import torch
from torch import Tensor

from ...shared.clock import Clock
from ...shared.jobs import Tick
from ...shared.rules import cheap_share, counted_warnings, make_rule
from ..course import Course
from ..sampling import draw_groups, split
from .data import BEFORE_BLOOD_TEST, GROUP, SPLIT, Allocation, Groups, Patients, load_patients, standardised

RULES = ("exact", "unconstrained", "adaptive")
TWO_STAGE = "two-stage"
MORE = "two-stage, all ten"  # the same with the blood tests: what a better model would bring
SAME = "no model"  # the same prediction for everyone
RIDGES = (0.0, 1.0, 10.0, 100.0)


@dataclass(frozen=True)
class Settings:
    """What determines the result, times aside."""

    seeds: int = 5
    seed: int = 0
    steps: int = 50
    every: int = 5  # steps between two looks at the validation groups
    batch: int = 32
    learning_rates: tuple[float, ...] = (0.03, 0.1)
    groups: int = 200  # for validation and for testing
    training_groups: int = 500


FULL = Settings(seeds=10)
QUICK = Settings(seeds=2, steps=2, every=1, batch=4, groups=10, training_groups=10)


def train_seed(settings: Settings, seed: int, tick: Tick) -> tuple[dict[str, Any], str]:
    """Every method on one seed."""
    with counted_warnings() as warned:
        task, more = (Task.make(load_patients(names), seed, settings) for names in (BEFORE_BLOOD_TEST, None))
        without = task.result(SAME, constant_model(task), Clock())
        runs = [without, two_stage(task, TWO_STAGE), two_stage(more, MORE), *decision_focused(task, tick)]
    words = "regret " + ", ".join(f"{one['method']} {one['regret']:.3f}" for one in runs)
    return {"runs": runs, "warnings": warned}, words


@dataclass(frozen=True)
class Task:
    """The patients of one seed, and the groups of each part."""

    patients: Patients
    pools: dict[str, Tensor]
    groups: dict[str, Groups]
    seed: int
    settings: Settings

    @classmethod
    def make(cls, patients: Patients, seed: int, settings: Settings) -> Task:
        """Split the patients, and draw the groups."""
        pools = split(SPLIT, seed)
        patients = standardised(patients, pools["train"])
        generator = torch.Generator().manual_seed(seed)
        sizes = {"train": settings.training_groups, "validation": settings.groups, "test": settings.groups}
        drawn = {part: draw_groups(pools[part], size, GROUP, generator) for part, size in sizes.items()}
        groups = {part: Groups.of(patients[chosen]) for part, chosen in drawn.items()}
        return cls(patients, pools, groups, seed, settings)

    def regret(self, model: Tensor, part: str) -> float:
        """The mean regret of a model on the groups of a part."""
        groups = self.groups[part]
        with torch.no_grad():
            shares = Allocation(groups.patients.weights)(predict(model, groups.patients.features))
        return groups.regret(shares).mean().item()

    def result(self, method: str, model: Tensor, clock: Clock, **more: Any) -> dict[str, Any]:
        """Everything that is kept of a trained model; the only place that looks at the test patients."""
        test = self.patients[self.pools["test"]]
        error = (predict(model, test.features) - test.progression).square().mean()
        return {
            "method": method,
            "seed": self.seed,
            "regret": self.regret(model, "test"),
            "best": self.groups["test"].best.mean().item(),
            "validation_regret": self.regret(model, "validation"),
            "explained": 1 - (error / test.progression.var(correction=0)).item(),
            **clock.record(),
            "cheap_share": None,
            "curve": None,
            **more,
        }


def predict(model: Tensor, features: Tensor) -> Tensor:  # (1 + features,), (..., features) -> (...)
    """Linear: the first entry of the model is the constant."""
    return features @ model[1:] + model[0]


def constant_model(task: Task) -> Tensor:
    """The mean of the training patients for everyone."""
    model = torch.zeros(1 + task.patients.features.shape[-1], dtype=torch.float64)
    model[0] = task.patients.progression[task.pools["train"]].mean()
    return model


def two_stage(task: Task, name: str) -> dict[str, Any]:
    """Least squares with the best ridge."""
    clock = Clock()
    with clock.running():
        models = [fit_ridge(task.patients[task.pools["train"]], ridge) for ridge in RIDGES]
        model = min(models, key=lambda one: task.regret(one, "validation"))
    return task.result(name, model, clock)


def fit_ridge(patients: Patients, ridge: float) -> Tensor:
    """The linear model with the least squared error; the constant is not penalised."""
    inputs = torch.nn.functional.pad(patients.features, (1, 0), value=1.0)
    penalty = ridge * torch.eye(inputs.shape[-1], dtype=inputs.dtype)
    penalty[0, 0] = 0.0
    model: Tensor = torch.linalg.solve(inputs.mT @ inputs + penalty, inputs.mT @ patients.progression)
    return model


def decision_focused(task: Task, tick: Tick) -> list[dict[str, Any]]:
    """Every rule, each with its best learning rate; in turns, so that the machine slows all of them alike."""
    settings, rates = task.settings, task.settings.learning_rates
    candidates = {rule: [Learner(rule, rate, task) for rate in rates] for rule in RULES}
    for i in range(len(rates)):
        for done in range(0, settings.steps, settings.every):
            for learners in candidates.values():
                learners[i].advance(settings.every)
            tick((i + done / settings.steps) / len(rates))
    return [best_of(learners) for learners in candidates.values()]


class Learner:
    """A linear model in training through the quadratic program."""

    def __init__(self, rule: str, learning_rate: float, task: Task) -> None:
        self.rule, self.task = rule, task
        self.model = constant_model(task).requires_grad_()
        self.course = Course([self.model], learning_rate, ("validation_regret",))
        self.gradient = make_rule(rule)
        self.generator = torch.Generator().manual_seed(task.seed + 1)
        self.kept, self.least = self.model.detach().clone(), math.inf

    def advance(self, steps: int) -> None:
        """Train for some steps, look at the validation groups, and keep the model if it is the best so far."""
        self.course.advance(steps, self._loss, self._look)

    def _loss(self) -> Tensor:
        groups = self.task.groups["train"]
        groups = groups[torch.randint(len(groups.best), (self.task.settings.batch,), generator=self.generator)]
        allocate = Allocation(groups.patients.weights)
        predicted = predict(self.model, groups.patients.features)
        return groups.regret(self.course.clock(lambda x: allocate(x, self.gradient), predicted)).mean()

    def _look(self) -> tuple[float]:
        with self.course.clock.running():  # the choice of a model is a part of its training
            regret = self.task.regret(self.model, "validation")
        if regret < self.least:
            self.kept, self.least = self.model.detach().clone(), regret
        return (regret,)


def best_of(learners: list[Learner]) -> dict[str, Any]:
    """The result of the learner with the least regret on validation groups; the time of all of them counts."""
    best = min(learners, key=lambda learner: learner.least)
    clocks = [learner.course.clock for learner in learners]
    clock = Clock(*(sum(getattr(one, name) for one in clocks) for name in ("forward", "backward", "total")))
    more = {"cheap_share": cheap_share(best.gradient), "curve": best.course.curve}
    return best.task.result(best.rule, best.kept, clock, **more)
