"""The course of a training: its steps, its curve, and its time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..shared.clock import Clock


class Course:
    """What all trainings have: an optimiser, a clock, and a curve with a value of each measure at every look."""

    def __init__(self, parameters: Sequence[Tensor], learning_rate: float, measures: Sequence[str]) -> None:
        self.learning_rate = learning_rate
        self.optimiser = torch.optim.Adam(parameters, lr=learning_rate)
        self.clock = Clock()
        self.curve: dict[str, list[float]] = {name: [] for name in ("step", "seconds", "loss", *measures)}
        self.steps = 0

    def slow_down(self, share: float) -> None:
        """Bring the learning rate down along a cosine, which reaches zero when the whole share of training is done."""
        for group in self.optimiser.param_groups:
            group["lr"] = self.learning_rate * (1 + math.cos(math.pi * share)) / 2

    def advance(
        self,
        steps: int,
        loss_of: Callable[[], Tensor],
        look: Callable[[], Sequence[float]],
        until: float = math.inf,  # seconds of training
    ) -> None:
        """Train for some steps, fewer if time is over but at least one, each with the next loss; then look."""
        for done in range(steps):
            if done and self.clock.total >= until:
                break
            with self.clock.running():
                loss = loss_of()
                self.optimiser.zero_grad()
                loss.backward()
                self.optimiser.step()
            self.steps += 1
        measured = look()  # whose time may count
        for name, value in zip(self.curve, (self.steps, self.clock.total, loss.item(), *measured), strict=True):
            self.curve[name].append(value)
