"""Learn what somebody pays for, and what he balances, from what he does: with the gradient of his plans, or without.

His plans are those of an optimal-control layer with the true parameters, as seen through noise. A learner has the same
layer with other parameters, and brings its plans close to his by Adam on their logarithms. Methods differ in the
gradient alone, but for the regulator: that is a layer without limits, for the linear system.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from problems import OptimalControl

from ...shared.application import Cases
from ...shared.inputs import normal
from ...shared.jobs import Tick
from ...shared.rules import counted_warnings
from ...shared.training import Course
from .data import SYSTEMS, Plan, System
from .driving import Drive, drive, fallen

EXACT, DIFFERENCES, CHEAP, REGULATOR = "exact", "differences", "unconstrained", "LQR"
METHODS = (EXACT, DIFFERENCES, CHEAP, REGULATOR)
BEFORE, EXPERT, KNOWN = "before", "expert", "LQR, told"
BEFORE_LENGTH, BEFORE_WEIGHTS = "before, length told", "before, weights told"
PARTS = ("train", "test")
WIDTH = 1e-5  # of central differences, in the logarithm of a parameter


@dataclass(frozen=True)
class Settings:
    """What determines the result, times aside."""

    systems: tuple[str, ...] = tuple(SYSTEMS)
    seeds: int = 2
    seed: int = 0
    steps: int = 16
    every: int = 4  # steps between two looks at the held-out plans
    learning_rate: float = 0.1
    count: int = 4  # plans to learn from, and as many to test with
    horizon: int = 20  # steps of a plan
    drive: int = 30  # steps that are driven
    noise: float = 0.02  # of what is seen, in units of the reach and of the limit


FULL = Settings(seeds=5, steps=150, every=5, count=12, drive=60)
QUICK = Settings(systems=("pendulum",), steps=2, every=1, count=2, horizon=10, drive=2)


def cases(settings: Settings) -> Cases:
    """Every system."""
    return {name: partial(train_seed, settings, name) for name in settings.systems}


@dataclass(frozen=True)
class Task:
    """A system with its true parameters, what was seen, and what is held out."""

    system: System
    settings: Settings
    seed: int
    truth: Tensor  # (size + 1,): weights and length
    guess: Tensor  # (size + 1,): what learners begin with
    starts: dict[str, Tensor]  # (count, size), of "train" and "test"
    seen: dict[str, Tensor]  # plans, scaled; those to learn from with noise
    planner: OptimalControl
    regulator: OptimalControl

    @classmethod
    def make(cls, name: str, seed: int, settings: Settings) -> Task:
        """Draw a truth, a guess and initial states, and let the expert plan."""
        system, generator = SYSTEMS[name], torch.Generator().manual_seed(seed)
        truth = system.truth(generator)
        guess = system.guess(truth, generator)
        planner, regulator = system.planner(settings.horizon), system.regulator(settings.horizon)
        with torch.no_grad():
            starts = {part: _recoverable(system, planner, truth, settings.count, generator) for part in PARTS}
            seen = {part: system.scaled(planner(x, truth)) for part, x in starts.items()}
        seen["train"] = seen["train"] + settings.noise * normal(generator, *seen["train"].shape)
        return cls(system, settings, seed, truth, guess, starts, seen, planner, regulator)

    def apart(self, planner: Callable[..., Plan], parameters: Tensor, part: str) -> Tensor:
        """The mean squared difference between the plans by some parameters and those that were seen."""
        plan = self.system.scaled(planner(self.starts[part], parameters))
        return (plan - self.seen[part]).square().mean()

    def drive(self, planner: OptimalControl, parameters: Tensor) -> Drive:
        """From the initial states that are held out."""
        return drive(self.system, planner, parameters, self.truth, self.starts["test"], self.settings.drive)

    def at_limit(self) -> float:
        """The share of the steps to learn from in which the control is at its limit."""
        with torch.no_grad():
            controls = self.planner(self.starts["train"], self.truth)["controls"]
        share: float = (controls.abs() > (1 - 1e-6) * self.system.limit).double().mean().item()
        return share


def _recoverable(
    system: System, planner: OptimalControl, truth: Tensor, count: int, generator: torch.Generator
) -> Tensor:  # (count, size)
    """The first initial states from which the expert plans to be upright in the end."""
    found = torch.empty(0, len(system.reach), dtype=torch.float64)
    while len(found) < count:
        drawn = system.initial(count, generator)
        found = torch.cat([found, drawn[system.is_upright(planner(drawn, truth))]])
    return found[:count]


def train_seed(settings: Settings, name: str, seed: int, tick: Tick) -> tuple[dict[str, Any], str]:
    """Every method on one system and seed."""
    with counted_warnings() as warned:
        task = Task.make(name, seed, settings)
        learners = {method: Learner(method, task) for method in METHODS}
        for done in range(0, settings.steps, settings.every):
            for learner in learners.values():  # in turns, so that the machine slows all of them alike
                learner.course.slow_down(done / settings.steps)
                learner.course.advance(min(settings.every, settings.steps - done))
            tick(done / settings.steps)
        results, drives = zip(*_results(task, learners), strict=True)
    words = ", ".join(f"{one['method']} {one['cost']:.3f}" for one in results)
    cases = [_example(task, results, drives)] if seed == settings.seed else []
    return {"runs": list(results), "cases": cases, "warnings": warned}, f"closed-loop cost {words}"


class Learner:
    """Parameters in training with one method."""

    def __init__(self, method: str, task: Task) -> None:
        self.method, self.task = method, task
        self.logarithms = task.guess.log().requires_grad_()
        layer = task.regulator if method == REGULATOR else task.planner
        self.layer = layer.with_gradient(CHEAP) if method == CHEAP else layer
        self.course = Course([self.logarithms], task.settings.learning_rate, self._loss, self._look, ("held_out",))
        self._loss().backward()  # what layers record when they are first called is no part of training
        self.course.clock = type(self.course.clock)()

    @property
    def parameters(self) -> Tensor:
        """Weights and length."""
        return self.logarithms.detach().exp()

    def _look(self) -> tuple[float]:
        with torch.no_grad():
            return (self.task.apart(self.layer, self.parameters, "test").item(),)

    def _loss(self) -> Tensor:
        if self.method == DIFFERENCES:
            return self._with_differences()
        return self.course.clock(lambda p: self.task.apart(self.layer, p, "train"), self.logarithms.exp())

    def _with_differences(self) -> Tensor:
        """The loss, as a linear function with the slopes of central differences."""

        def loss_at(logarithms: Tensor) -> Tensor:
            return self.task.apart(self.layer, logarithms.exp(), "train")

        with torch.no_grad():
            here = self.logarithms.clone()
            ways = WIDTH * torch.eye(len(here), dtype=here.dtype)
            slopes = torch.stack([(loss_at(here + way) - loss_at(here - way)) / (2 * WIDTH) for way in ways])
            loss = loss_at(here)
        return loss + slopes @ (self.logarithms - here)


def _results(task: Task, learners: dict[str, Learner]) -> list[tuple[dict[str, Any], Drive]]:
    """What is kept of every method, and of parameters that nobody trained; costs are relative to the expert's."""
    untrained = {
        EXPERT: (task.planner, task.truth),
        BEFORE: (task.planner, task.guess),
        BEFORE_LENGTH: (task.planner, torch.cat([task.guess[:-1], task.truth[-1:]])),
        BEFORE_WEIGHTS: (task.planner, torch.cat([task.truth[:-1], task.guess[-1:]])),
        KNOWN: (task.regulator, task.truth),
    }
    trained = {method: (one.layer, one.parameters) for method, one in learners.items()}
    drives = {name: task.drive(*one) for name, one in (untrained | trained).items()}
    return [
        (
            {
                "system": task.system.name,
                "method": name,
                "seed": task.seed,
                "at_limit": task.at_limit(),
                **_measures(task, *one),
                "cost": (drives[name].costs.sum() / drives[EXPERT].costs.sum()).item(),
                "fallen": fallen(task.system, drives[name]),
                "seconds": learners[name].course.clock.total if name in learners else 0.0,
                "curve": learners[name].course.curve if name in learners else None,
            },
            drives[name],
        )
        for name, one in (untrained | trained).items()
    ]


def _measures(task: Task, planner: OptimalControl, parameters: Tensor) -> dict[str, float]:
    """How far the parameters are from the truth, and the plans from those that are held out."""
    wrong = (parameters / task.truth).log().abs()
    with torch.no_grad():
        apart = task.apart(planner, parameters, "test").sqrt().item()
    return {"weights_wrong": wrong[:-1].mean().item(), "length_wrong": wrong[-1].item(), "plans_apart": apart}


def _example(task: Task, results: Sequence[dict[str, Any]], drives: Sequence[Drive]) -> dict[str, Any]:
    """Angles and controls of the held-out problem in which the expert, who comes first, is longest at the limit."""
    at_limit = drives[0].controls.abs() >= (1 - 1e-6) * task.system.limit
    number = int(at_limit.sum((-2, -1)).argmax())
    shown = {
        one["method"]: {
            "angle": done.states[number, :, task.system.angle].tolist(),
            "control": done.controls[number, :, 0].tolist(),
        }
        for one, done in zip(results, drives, strict=True)
    }
    return {"system": task.system.name, "limit": task.system.limit, "drives": shown}
