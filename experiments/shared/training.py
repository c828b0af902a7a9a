"""Training: its steps, its curve, and the time that it spends in a layer."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .timing import timed


@dataclass
class Clock:
    """The seconds that were spent in a layer, forward and backward, and in all of training.

    They are seconds of the processor: with one thread those of the clock on the wall, but for what other programs take.
    """

    forward: float = 0.0
    backward: float = 0.0
    total: float = 0.0

    def __call__(self, layer: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """layer(x). The backward pass is timed from the gradient of its output to that of its input."""
        seconds, y = timed(lambda: layer(x))
        self.forward += seconds
        entered = [0.0]

        def enter(_: Tensor) -> None:
            entered[0] = time.process_time()

        def leave(_: Tensor) -> None:
            self.backward += time.process_time() - entered[0]

        y.register_hook(enter)
        x.register_hook(leave)
        return y

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Count the time of a block as training."""
        began = time.process_time()
        try:
            yield
        finally:
            self.total += time.process_time() - began

    def record(self) -> dict[str, float]:
        """For the results."""
        return {"seconds": self.total, "layer_forward": self.forward, "layer_backward": self.backward}


class Course:
    """What all trainings have: Adam, a clock, and a curve with a value of each measure at every look."""

    def __init__(
        self,
        parameters: Iterable[Tensor],
        learning_rate: float,
        loss: Callable[[], Tensor],  # the next one
        look: Callable[[], Sequence[float]] = lambda: (),  # the values of the measures now
        measures: Sequence[str] = (),
    ) -> None:
        self.learning_rate, self.loss, self.look = learning_rate, loss, look
        self.optimiser = torch.optim.Adam(parameters, lr=learning_rate)
        self.clock = Clock()
        self.curve: dict[str, list[float]] = {name: [] for name in ("step", "seconds", "loss", *measures)}
        self.steps = 0

    def slow_down(self, share: float) -> None:
        """Bring the learning rate down along a cosine, which reaches zero when the whole share of training is done."""
        for group in self.optimiser.param_groups:
            group["lr"] = self.learning_rate * (1 + math.cos(math.pi * share)) / 2

    def step(self) -> Tensor:
        """One step with the next loss, which is returned."""
        with self.clock.running():
            loss = self.loss()
            self.optimiser.zero_grad()
            loss.backward()
            self.optimiser.step()
        self.steps += 1
        return loss

    def advance(self, steps: int, until: float = math.inf) -> None:
        """Train for some steps, fewer if these seconds of training are over but at least one; then look."""
        for done in range(steps):
            if done and self.clock.total >= until:
                break
            loss = self.step()
        measured = self.look()  # whose time may count
        for name, value in zip(self.curve, (self.steps, self.clock.total, loss.item(), *measured), strict=True):
            self.curve[name].append(value)
