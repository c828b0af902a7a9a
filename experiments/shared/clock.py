"""The time that training spends in a layer."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

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
