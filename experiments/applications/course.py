"""The course of a training: its steps, its curve, and its time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..shared.clock import Clock


class Course:
    """What all trainings have: an optimiser, a clock, and a curve with a value of each measure at every look."""

    def __init__(self, parameters: Sequence[Tensor], learning_rate: float, measures: Sequence[str]) -> None:
        self.optimiser = torch.optim.Adam(parameters, lr=learning_rate)
        self.clock = Clock()
        self.curve: dict[str, list[float]] = {name: [] for name in ("step", "seconds", "loss", *measures)}
        self.steps = 0

    def advance(self, steps: int, loss_of: Callable[[], Tensor], look: Callable[[], Sequence[float]]) -> None:
        """Train for some steps, each with the next loss, and look at the measures."""
        with self.clock.running():
            for _ in range(steps):
                loss = loss_of()
                self.optimiser.zero_grad()
                loss.backward()
                self.optimiser.step()
        self.steps += steps
        measured = look()  # whose time may count
        for name, value in zip(self.curve, (self.steps, self.clock.total, loss.item(), *measured), strict=True):
            self.curve[name].append(value)
