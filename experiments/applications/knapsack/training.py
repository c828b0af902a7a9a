"""Predict, then pack: train a linear model for its predictions, or for what is packed by them?

Two-stage training is least squares. All others start from that model, and are stopped where the regret on validation
days is least, which may be at once. SPO+ is the surrogate of Elmachtoub and Grigas (2022), which needs two choices and
no layer: its gradient in the predicted values p is 2 (u(2p - c) - u(c)), with u the best choice. The gradient rules
pass the value of the smooth choice back through the layer.
"""

from __future__ import annotations

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
from .data import Days

SURROGATE = "SPO+"
LEARNED = (SURROGATE, *RULES)
VALIDATION, TEST = 200, 1000  # days


@dataclass(frozen=True)
class Settings(predicting.Settings):
    """And how many days there are, and how smooth the choice is."""

    days: int = 200  # for training
    penalty: float = 1.0


FULL = Settings(seeds=10, steps=400, learning_rates=(0.01, 0.03))
QUICK = Settings(seeds=2, steps=2, every=1, batch=4, days=20)


def cases(settings: Settings) -> Cases:
    """One."""
    return {"": partial(train_seed, settings)}


@dataclass(frozen=True)
class Task(predicting.Task):
    """The days of one seed, by what they are for."""

    settings: Settings
    parts: dict[str, Days]

    @classmethod
    def make(cls, seed: int, settings: Settings) -> Task:
        """Generate all days, and split them."""
        sizes = {"train": settings.days, "validation": VALIDATION, "test": TEST}
        days = Days.generate(sum(sizes.values()), torch.Generator().manual_seed(seed))
        parts, begin = {}, 0
        for name, size in sizes.items():
            parts[name] = days[begin : begin + size]
            begin += size
        return cls(seed, settings, parts)

    def regret(self, model: Tensor, part: str) -> float:
        days = self.parts[part]
        with torch.no_grad():
            return days.regret(predict(model, days.features))

    def test(self) -> tuple[Tensor, Tensor]:
        return self.parts["test"].features, self.parts["test"].values


def train_seed(settings: Settings, seed: int, tick: Tick) -> tuple[dict[str, Any], str]:
    """Every method on one seed; all others start from the model of two-stage training."""
    with counted_warnings() as warned:
        task, clock, rates = Task.make(seed, settings), Clock(), settings.learning_rates
        with clock.running():
            model = fit(task.parts["train"].features, task.parts["train"].values)
        learners = {method: [Learner(method, rate, task, model) for rate in rates] for method in LEARNED}
        runs = [task.result(TWO_STAGE, model, clock), *train(learners, settings, tick)]
    words = "regret " + ", ".join(f"{one['method']} {one['regret']:.1%}" for one in runs)
    return {"runs": runs, "warnings": warned}, words


class Learner(predicting.Learner):
    """A linear model in training for its choices: by a gradient rule, or by the surrogate."""

    task: Task

    def __init__(self, method: str, learning_rate: float, task: Task, model: Tensor) -> None:
        gradient = None if method == SURROGATE else make_rule(method)
        super().__init__(method, learning_rate, task, model, gradient, task.regret(model, "validation"))
        layer = task.parts["train"].knapsack.layer(task.settings.penalty)
        self.layer = layer if gradient is None else layer.with_gradient(gradient)

    def loss(self) -> Tensor:
        days = self.task.parts["train"]
        days = days[self.draw(len(days.best))]
        predicted = predict(self.model, days.features)
        if self.gradient is None:
            return surrogate(days, predicted)
        shares = self.course.clock(self.layer, predicted)
        return (days.best - (shares * days.values).sum(-1)).mean()


def surrogate(days: Days, predicted: Tensor) -> Tensor:
    """SPO+ for a maximum: max over u of (2p - c)'u, minus (2p - c)'u(c); convex in p, and above the regret."""
    choose, shifted = days.knapsack.choose, 2 * predicted - days.values
    with torch.no_grad():
        towards = choose(shifted) - choose(days.values)
    return (shifted * towards).sum(-1).mean()
