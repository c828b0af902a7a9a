"""Train all repeats and rules of a panel at once."""

from __future__ import annotations

import time
import zlib
from dataclasses import dataclass

import torch
from torch import Tensor

from declarative import Adaptive, Rule
from declarative.adaptive import Probe
from declarative.theory.propositions import cosine

from ..shared.inputs import normal
from ..shared.jobs import Tick
from ..shared.rules import NAMES, counted_warnings, make_rule
from .by_rows import ByRows
from .curves import Curves
from .ensemble import Ensemble, draw_parameters
from .panels import BATCH, Panel, as_published

LEARNING_RATE = 1e-3


@dataclass(frozen=True)
class Settings:
    """What determines the curves of a panel."""

    repeats: int = 5
    iterations: int = 500
    seed: int = 0
    rules: tuple[str, ...] = NAMES
    dtype: str = "float64"
    device: str = "cpu"
    published: bool = False  # whether losses and targets are those of the published code, or of the text


@dataclass(frozen=True)
class Outcome:
    """What came of a panel."""

    curves: Curves
    probes: tuple[tuple[Probe, ...], ...]  # of the adaptive rule, by repeat
    cheap_share: float | None  # of its steps; None if it was not run
    warnings: dict[str, int]  # how often each came
    seconds: float


@dataclass(frozen=True)
class Start:
    """Data, targets and initial networks: one member for each rule and repeat, rule by rule."""

    data: Tensor  # (members, batch, data)
    target: Tensor  # (members, batch, ...)
    network: Ensemble


def train(panel: Panel, settings: Settings, tick: Tick = lambda _: None) -> Outcome:
    """Train every repeat with every rule, from the same data and weights for each rule."""
    began = time.perf_counter()
    panel = as_published(panel) if settings.published else panel
    start = draw(panel, settings)
    rules = [make_rule(name) for name in settings.rules for _ in range(settings.repeats)]
    with counted_warnings() as warned:
        records = _descend(panel, start, rules, settings.iterations, tick)
    shape = (len(settings.rules), settings.repeats, settings.iterations)
    loss, mean, low, positive = (records[:, i].T.reshape(shape).double().cpu().numpy() for i in range(4))
    curves = Curves(panel.name, settings.rules, loss, mean, low, positive)
    adaptive = [rule for rule in rules if isinstance(rule, Adaptive)]
    cheap = sum(rule.cheap_calls for rule in adaptive) / (len(adaptive) * settings.iterations) if adaptive else None
    probes = tuple(rule.history for rule in adaptive)
    return Outcome(curves, probes, cheap, dict(warned), time.perf_counter() - began)


def draw(panel: Panel, settings: Settings) -> Start:
    """Draw the repeats, each from its own seed, so that a repeat is the same whatever else is run beside it."""
    dtype = getattr(torch, settings.dtype)
    drawn = [_draw_one(panel, settings.seed, repeat) for repeat in range(settings.repeats)]

    def stack(tensors: list[Tensor]) -> Tensor:
        one = torch.stack(tensors)
        return torch.cat([one] * len(settings.rules)).to(settings.device, dtype)

    data, target, weights, biases = zip(*drawn, strict=True)
    network = Ensemble(*([stack(list(layer)) for layer in zip(*side, strict=True)] for side in (weights, biases)))
    return Start(stack(list(data)), stack(list(target)), network)


def _draw_one(panel: Panel, seed: int, repeat: int) -> tuple[Tensor, Tensor, list[Tensor], list[Tensor]]:
    # Torch keeps 32 bits of a seed, so that sums and shifts of these three would collide; and hash() is salted.
    generator = torch.Generator().manual_seed(zlib.crc32(f"{panel.name}/{seed}/{repeat}".encode()))
    target = panel.target(generator)
    data = normal(generator, BATCH, panel.data)
    return data, target, *draw_parameters(panel.data, panel.width, generator)


def _descend(
    panel: Panel, start: Start, rules: list[Rule], iterations: int, tick: Tick
) -> Tensor:  # (iterations, 4, members): loss, and mean, minimum and positive share of the cosines
    by_rows = ByRows(rules, BATCH)
    layer = panel.layer().with_gradient(by_rows)
    # Fused: one pass over the stacked parameters, where the plain implementation takes a quarter of all the time.
    optimiser = torch.optim.AdamW(start.network.parameters(), lr=LEARNING_RATE, fused=True)
    records = start.data.new_empty(iterations, 4, len(rules))
    for iteration in range(iterations):
        optimiser.zero_grad()
        x = panel.layer_input(start.network(start.data).flatten(0, 1))
        x.retain_grad()
        y = layer(x).unflatten(0, (len(rules), BATCH))
        losses = panel.loss(y, start.target)
        losses.sum().backward()
        optimiser.step()
        assert x.grad is not None
        angles = cosine(by_rows.exact.flatten(1), x.grad.flatten(1)).view(len(rules), BATCH)
        records[iteration] = torch.stack(
            [losses.detach(), angles.mean(-1), angles.amin(-1), (angles > 0).to(x.dtype).mean(-1)]
        )
        tick((iteration + 1) / iterations)
    return records
