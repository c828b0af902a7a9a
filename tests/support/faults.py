"""What the files about faults share: functions that turn bad, and all that must stay as it was."""

from __future__ import annotations

import contextlib
import random
import signal
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from declarative import DeclarativeNode
from tests.support.helpers import DOUBLE, half_square, normalise, relative, unit

X = torch.tensor([[0.3, -1.2, 0.7], [1.1, 0.4, -0.2]], dtype=DOUBLE)
SOLVERS = ["newton", "scipy", None]
each_solver = pytest.mark.parametrize("solver", SOLVERS, ids=["newton", "scipy", "default"])


def surroundings() -> tuple[Any, ...]:
    """All that is global and that a call must leave as it was."""
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.get_default_dtype(),
        torch.get_default_device(),
        torch.get_num_threads(),
        torch._C._autograd._top_saved_tensors_default_hooks(True),
        torch.autograd.forward_ad._current_level,
        torch._C._functorch.maybe_current_level(),
        torch.get_rng_state().sum().item(),
        np.random.get_state()[1].sum(),  # noqa: NPY002
        random.getstate(),
        np.geterr(),
        len(warnings.filters),
        signal.getsignal(signal.SIGINT),
    )


@contextlib.contextmanager
def nothing_changes() -> Iterator[None]:
    before = surroundings()
    yield
    assert surroundings() == before
    x = X.clone().requires_grad_()
    y = DeclarativeNode(half_square, unit, start=lambda x: x)(x)
    (g,) = torch.autograd.grad(y.pow(3).sum(), x)
    (expected,) = torch.autograd.grad(normalise(x).pow(3).sum(), x)
    assert relative(g, expected) < 1e-9


class AtCall:
    """A function that turns bad at its n-th call."""

    def __init__(self, function: Callable[..., Tensor], n: int, happen: Callable[[Tensor], Tensor]) -> None:
        self.function, self.n, self.happen, self.calls = function, n, happen, 0

    def __call__(self, *arguments: Tensor) -> Tensor:
        self.calls += 1
        value = self.function(*arguments)
        return self.happen(value) if self.calls >= self.n else value


class OwnError(Exception):
    pass


def fail(_: Tensor) -> Tensor:
    raise OwnError("the caller's own")
