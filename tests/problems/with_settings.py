"""The layers that have a setting, with that as an input: one number for each problem, or one for all of them."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from problems import BallProjection, EntropicSimplex, LeastSquares, OptimalTransport, RobustPooling

from ..support.problem_table import Case, outliers, randn, regression, spread, transport

Draw = Callable[[torch.Generator], tuple[Tensor, ...]]


def each(draw: Draw, low: float, high: float) -> Draw:
    """The inputs, and a setting for each problem between these."""

    def with_setting(generator: torch.Generator) -> tuple[Tensor, ...]:
        xs = draw(generator)
        return *xs, torch.linspace(low, high, len(xs[0]), dtype=torch.float64)

    return with_setting


def shared(draw: Draw, value: float) -> Draw:
    return lambda generator: (*draw(generator), torch.tensor(value, dtype=torch.float64))


WITH_SETTINGS = [
    Case("transport-gamma", OptimalTransport(), each(transport(3, 2), 1.0, 4.0)),
    Case("transport-shared-gamma", OptimalTransport(), shared(transport(2, 3), 2.0)),
    Case("entropic-temperature", EntropicSimplex(), each(randn(3, 4), 0.5, 2.0)),
    Case("ball-radius", BallProjection(), each(spread, 1.0, 2.5)),
    Case("box-radius", BallProjection(norm=math.inf), shared(spread, 0.8)),
    Case("ridge-tensor", LeastSquares(), each(regression, 0.2, 0.5)),
    *(
        Case(f"pooling-{penalty}-scale", RobustPooling(penalty), each(outliers, 0.7, 1.4))
        for penalty in ("pseudo-huber", "huber", "welsch")
    ),
]
