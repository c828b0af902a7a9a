"""Predict, then choose: linear models that are trained for what is chosen by their predictions."""

from __future__ import annotations

import abc
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from declarative import Rule

from ..shared.jobs import Tick
from ..shared.rules import cheap_share
from ..shared.training import Clock, Course

RULES = ("exact", "unconstrained", "adaptive")
TWO_STAGE = "two-stage"  # least squares, and the choice comes after


@dataclass(frozen=True)
class Settings:
    """What determines the result, times aside."""

    seeds: int = 3
    seed: int = 0
    steps: int = 160
    every: int = 20  # steps between two looks at the validation part
    batch: int = 32
    learning_rates: tuple[float, ...] = (0.03,)


@dataclass(frozen=True)
class Task(abc.ABC):
    """What is to be chosen, for one seed, in parts for training, validation and testing."""

    seed: int
    settings: Settings

    @abc.abstractmethod
    def regret(self, model: Tensor, part: str) -> float:
        """The mean regret of the choices by a model on a part."""

    @abc.abstractmethod
    def test(self) -> tuple[Tensor, Tensor]:
        """What predictions are tested on: features, and what was to be predicted."""

    def result(self, method: str, model: Tensor, clock: Clock, **more: Any) -> dict[str, Any]:
        """Everything that is kept of a trained model; the only place that looks at the test part."""
        features, truth = self.test()
        error = (predict(model, features) - truth).square().mean()
        return {
            "method": method,
            "seed": self.seed,
            "regret": self.regret(model, "test"),
            "validation_regret": self.regret(model, "validation"),
            "explained": 1 - (error / truth.var(correction=0)).item(),
            **clock.record(),
            "cheap_share": None,
            "curve": None,
            **more,
        }


def predict(model: Tensor, features: Tensor) -> Tensor:  # (1 + n, ...), (..., n)
    """Linear: the first entry, or row, of the model is the constant."""
    return features @ model[1:] + model[0]


def fit(features: Tensor, truth: Tensor, ridge: float = 0.0) -> Tensor:
    """The linear model with the least squared error, by the normal equations; the constant is not penalised.

    (The last bits of ``lstsq`` depend on where its arguments are in memory, and the same seed shall give the same
    numbers.)
    """
    inputs = torch.nn.functional.pad(features, (1, 0), value=1.0)
    penalty = ridge * torch.eye(inputs.shape[-1], dtype=inputs.dtype)
    penalty[0, 0] = 0.0
    model: Tensor = torch.linalg.solve(inputs.mT @ inputs + penalty, inputs.mT @ truth)
    return model


class Learner(abc.ABC):
    """A linear model in training for its choices; the one with the least regret in validation is kept."""

    def __init__(
        self, method: str, learning_rate: float, task: Task, model: Tensor, gradient: Rule | None, least: float
    ) -> None:
        self.method, self.task, self.gradient = method, task, gradient
        self.model = model.clone().requires_grad_()
        self.course = Course([self.model], learning_rate, self.loss, self._look, ("validation_regret",))
        self.generator = torch.Generator().manual_seed(task.seed + 1)
        self.best, self.least = model, least

    @abc.abstractmethod
    def loss(self) -> Tensor:
        """That of the next batch."""

    def draw(self, count: int) -> Tensor:
        """A batch of ``count`` examples: their numbers."""
        return torch.randint(count, (self.task.settings.batch,), generator=self.generator)

    def _look(self) -> tuple[float]:
        """The regret in validation; the model is kept if it is the best so far."""
        with self.course.clock.running():  # the choice of a model is a part of its training
            regret = self.task.regret(self.model, "validation")
        if regret < self.least:
            self.best, self.least = self.model.detach().clone(), regret
        return (regret,)


def train(candidates: Mapping[str, Sequence[Learner]], settings: Settings, tick: Tick) -> list[dict[str, Any]]:
    """Every method with its best learning rate; in turns, so that the machine slows all of them alike."""
    rates = len(settings.learning_rates)
    for i in range(rates):
        for done in range(0, settings.steps, settings.every):
            for learners in candidates.values():
                learners[i].course.advance(settings.every)
            tick((i + done / settings.steps) / rates)
    return [best_of(learners) for learners in candidates.values()]


def best_of(learners: Sequence[Learner]) -> dict[str, Any]:
    """The result of the learner with the least regret in validation; the time of all of them counts."""
    best = min(learners, key=lambda learner: learner.least)
    clocks = [learner.course.clock for learner in learners]
    clock = Clock(*(math.fsum(getattr(one, name) for one in clocks) for name in ("forward", "backward", "total")))
    more = {"cheap_share": cheap_share(best.gradient), "curve": best.course.curve}
    return best.task.result(best.method, best.best, clock, **more)
