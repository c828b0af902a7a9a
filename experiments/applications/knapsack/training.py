"""Predict, then pack: train a linear model for its predictions, or for what is packed by them?

Two-stage training is least squares. All others start from that model, and are stopped where the regret on validation
days is least, which may be at once. SPO+ is the surrogate of Elmachtoub and Grigas (2022), which needs two choices and
no layer: its gradient in the predicted values p is 2 (u(2p - c) - u(c)), with u the best choice. The gradient rules
pass the value of the smooth choice back through the layer.
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
from .data import Days

RULES = ("exact", "unconstrained", "adaptive")
TWO_STAGE, SURROGATE = "two-stage", "SPO+"
LEARNED = (SURROGATE, *RULES)
VALIDATION, TEST = 200, 1000  # days


@dataclass(frozen=True)
class Settings:
    """What determines the result, times aside."""

    seeds: int = 3
    seed: int = 0
    steps: int = 160
    every: int = 20  # steps between two looks at the validation days
    batch: int = 32
    days: int = 200  # for training
    learning_rates: tuple[float, ...] = (0.03,)
    penalty: float = 1.0


FULL = Settings(seeds=10, steps=400, learning_rates=(0.01, 0.03))
QUICK = Settings(seeds=2, steps=2, every=1, batch=4, days=20)


@dataclass(frozen=True)
class Task:
    """The days of one seed, by what they are for."""

    parts: dict[str, Days]
    seed: int
    settings: Settings

    @classmethod
    def make(cls, seed: int, settings: Settings) -> Task:
        """Generate all days, and split them."""
        sizes = {"train": settings.days, "validation": VALIDATION, "test": TEST}
        days = Days.generate(sum(sizes.values()), torch.Generator().manual_seed(seed))
        parts, begin = {}, 0
        for name, size in sizes.items():
            parts[name] = days[begin : begin + size]
            begin += size
        return cls(parts, seed, settings)

    def regret(self, model: Tensor, part: str) -> float:
        """Of the choices by a model."""
        days = self.parts[part]
        with torch.no_grad():
            return days.regret(predict(model, days.features))

    def result(self, method: str, model: Tensor, clock: Clock, **more: Any) -> dict[str, Any]:
        """Everything that is kept of a trained model; the only place that looks at the test days."""
        test = self.parts["test"]
        error = (predict(model, test.features) - test.values).square().mean()
        return {
            "method": method,
            "seed": self.seed,
            "regret": self.regret(model, "test"),
            "validation_regret": self.regret(model, "validation"),
            "explained": 1 - (error / test.values.var(correction=0)).item(),
            **clock.record(),
            "cheap_share": None,
            "curve": None,
            **more,
        }


def predict(model: Tensor, features: Tensor) -> Tensor:  # (1 + FEATURES, ITEMS), (..., FEATURES) -> (..., ITEMS)
    """Linear: the first row of the model is the constant."""
    return features @ model[1:] + model[0]


def train_seed(settings: Settings, seed: int, tick: Tick) -> tuple[dict[str, Any], str]:
    """Every method on one seed."""
    with counted_warnings() as warned:
        task, clock = Task.make(seed, settings), Clock()
        with clock.running():
            model = least_squares(task.parts["train"])
        runs = [task.result(TWO_STAGE, model, clock), *improve(task, model, tick)]
    words = "regret " + ", ".join(f"{one['method']} {one['regret']:.1%}" for one in runs)
    return {"runs": runs, "warnings": warned}, words


def least_squares(days: Days) -> Tensor:
    """The linear model with the least squared error, by the normal equations.

    Features are independent, so that these are well conditioned. (The last bits of ``lstsq`` depend on where its
    arguments are in memory, and the same seed shall give the same numbers.)
    """
    inputs = torch.nn.functional.pad(days.features, (1, 0), value=1.0)
    model: Tensor = torch.linalg.solve(inputs.mT @ inputs, inputs.mT @ days.values)
    return model


def improve(task: Task, model: Tensor, tick: Tick) -> list[dict[str, Any]]:
    """Every other method, with its best learning rate; in turns, so that the machine slows all of them alike."""
    settings, rates = task.settings, task.settings.learning_rates
    candidates = {method: [Learner(method, rate, task, model) for rate in rates] for method in LEARNED}
    for i in range(len(rates)):
        for done in range(0, settings.steps, settings.every):
            for learners in candidates.values():
                learners[i].advance(settings.every)
            tick((i + done / settings.steps) / len(rates))
    return [best_of(learners) for learners in candidates.values()]


class Learner:
    """A linear model in training for its choices."""

    def __init__(self, method: str, learning_rate: float, task: Task, model: Tensor) -> None:
        self.method, self.task = method, task
        self.model = model.clone().requires_grad_()
        self.course = Course([self.model], learning_rate, ("validation_regret",))
        self.gradient = None if method == SURROGATE else make_rule(method)
        layer = task.parts["train"].knapsack.layer(task.settings.penalty)
        self.layer = layer if self.gradient is None else layer.with_gradient(self.gradient)
        self.generator = torch.Generator().manual_seed(task.seed + 1)
        self.kept, self.least = model, task.regret(model, "validation")

    def advance(self, steps: int) -> None:
        """Train for some steps, look at the validation days, and keep the model if it is the best so far."""
        self.course.advance(steps, self._loss, self._look)

    def _loss(self) -> Tensor:
        days = self.task.parts["train"]
        days = days[torch.randint(len(days.best), (self.task.settings.batch,), generator=self.generator)]
        predicted = predict(self.model, days.features)
        if self.gradient is None:
            return surrogate(days, predicted)
        shares = self.course.clock(self.layer, predicted)
        return (days.best - (shares * days.values).sum(-1)).mean()

    def _look(self) -> tuple[float]:
        with self.course.clock.running():  # the choice of a model is a part of its training
            regret = self.task.regret(self.model, "validation")
        if regret < self.least:
            self.kept, self.least = self.model.detach().clone(), regret
        return (regret,)


def surrogate(days: Days, predicted: Tensor) -> Tensor:
    """SPO+ for a maximum: max over u of (2p - c)'u, minus (2p - c)'u(c); convex in p, and above the regret."""
    choose, shifted = days.knapsack.choose, 2 * predicted - days.values
    with torch.no_grad():
        towards = choose(shifted) - choose(days.values)
    return (shifted * towards).sum(-1).mean()


def best_of(learners: list[Learner]) -> dict[str, Any]:
    """The result of the learner with the least regret on validation days; the time of all of them counts."""
    best = min(learners, key=lambda learner: learner.least)
    clocks = [learner.course.clock for learner in learners]
    clock = Clock(*(math.fsum(getattr(one, name) for one in clocks) for name in ("forward", "backward", "total")))
    share = None if best.gradient is None else cheap_share(best.gradient)
    return best.task.result(best.method, best.kept, clock, cheap_share=share, curve=best.course.curve)
