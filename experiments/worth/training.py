"""Train with every method for the same time, and look at what each gradient is worth on the way."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from declarative import Rule
from declarative.theory.propositions import cosine

from ..shared.application import Cases
from ..shared.inputs import normal
from ..shared.jobs import Tick
from ..shared.rules import counted_warnings
from ..shared.training import Course
from .families import Extent, Family, families
from .methods import METHODS, make_method

LEARNING_RATE = 1e-2
LOOKS = 10
QUANTILES = (10, 25, 50, 75, 90)  # per cent, of the cosines of all problems at all looks
REGIMES = {"targets that can be met": 32, "targets that cannot be met": 2}  # and the dimension of the data


@dataclass(frozen=True)
class Settings:
    """What determines the result, but for the speed of the machine."""

    extent: Extent = "some"
    seeds: int = 2
    seed: int = 0
    steps: int = 500  # of the exact rule, at most
    seconds: float = 0.5  # for each method, at most
    batch: int = 8


FULL = Settings(extent="all", seeds=3, seconds=1.5)
QUICK = Settings(extent="smallest", seeds=2, steps=10, seconds=0.1, batch=4)


def cases(settings: Settings) -> Cases:
    """Every family of layers."""
    return {family.label: partial(train_family, settings, family.label) for family in families(settings.extent)}


class Learner:
    """A linear network in training with one method: nothing is cheaper, so that the layer is most of a step."""

    def __init__(self, family: Family, rule: Rule, data: int, seed: int, batch: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.family, self.node = family, family.node.with_gradient(rule)
        self.data = normal(generator, batch, data)
        with torch.no_grad():
            self.target = family.layer(family.node, normal(generator, batch, *family.shape))
        self.weights = normal(generator, self.target[0].numel()).exp()  # entries count differently
        self.network = nn.Linear(data, torch.Size(family.shape).numel()).double()
        with torch.no_grad():
            self.network.weight.copy_(normal(generator, *self.network.weight.shape) / data**0.5)
            self.network.bias.zero_()
        self.course = Course(self.network.parameters(), LEARNING_RATE, self._loss)
        self.cosines: list[Tensor] = []  # one for each look, (batch,)

    def look(self) -> float:
        """The loss; and the cosines of the problems' gradients with the exact ones are kept."""
        x = self._inputs().detach().requires_grad_()
        losses = [self._losses(self.family.layer(node, x)) for node in (self.family.node, self.node)]
        g, g_hat = (torch.autograd.grad(loss.sum(), x)[0].flatten(1) for loss in losses)
        self.cosines.append(cosine(g, g_hat))
        return losses[0].mean().item()

    def _loss(self) -> Tensor:
        return self._losses(self.course.clock(lambda x: self.family.layer(self.node, x), self._inputs())).mean()

    def _losses(self, y: Tensor) -> Tensor:
        return (self.weights * self.family.apart(y, self.target).square()).sum(-1)

    def _inputs(self) -> Tensor:
        x: Tensor = self.network(self.data).unflatten(-1, self.family.shape)
        return x


def train_family(settings: Settings, label: str, seed: int, tick: Tick) -> tuple[dict[str, Any], str]:
    """All methods on one family and seed, in both regimes."""
    (family,) = (one for one in families(settings.extent) if one.label == label)
    rules = {name: rule for name in METHODS if (rule := make_method(name, family)) is not None}
    runs: list[dict[str, Any]] = []
    with counted_warnings() as warned:
        for count, (regime, data) in enumerate(REGIMES.items()):
            learners = {name: Learner(family, rule, data, seed, settings.batch) for name, rule in rules.items()}
            curves = in_turns(learners, settings)
            about = {"family": family.name, "size": family.size, "regime": regime, "seed": seed}
            runs += [about | {"method": name} | _run(learners[name], curves[name]) for name in learners]
            tick((count + 1) / len(REGIMES))
    best = min(runs, key=lambda run: run["curve"]["loss"][-1] / run["curve"]["loss"][0])["method"]
    return {"runs": runs, "warnings": warned}, f"lowest loss by {best}"


def in_turns(learners: dict[str, Learner], settings: Settings) -> dict[str, list[float]]:
    """Train the exact rule for some steps, then each of the others for as long as that took, and so on; the losses."""
    losses: dict[str, list[float]] = {name: [learner.look()] for name, learner in learners.items()}
    exact = learners["exact"].course
    for _ in range(LOOKS):
        end = exact.clock.total + settings.seconds / LOOKS
        for _ in range(max(1, settings.steps // LOOKS)):
            if exact.clock.total < end:
                exact.step()
        for name, learner in learners.items():
            while learner.course.clock.total < exact.clock.total:
                learner.course.step()
            losses[name].append(learner.look())
    return losses


def _run(learner: Learner, losses: list[float]) -> dict[str, Any]:
    """What is kept of it; times are those of a step."""
    steps = learner.course.steps
    times = {name: seconds / steps for name, seconds in learner.course.clock.record().items()}
    cosines, shares = torch.cat(learner.cosines), torch.tensor(QUANTILES, dtype=torch.float64) / 100
    medians = [one.median().item() for one in learner.cosines]
    return {
        "steps": steps,
        **times,
        **dict(zip(map("cosine_{}".format, QUANTILES), cosines.quantile(shares).tolist(), strict=True)),
        "downhill": (cosines > 0).double().mean().item(),
        "curve": {"look": list(range(len(losses))), "loss": losses, "cosine": medians},
    }
