"""Train with every method for the same time, and look at what each gradient is worth on the way."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from declarative import Adaptive, Rule, SolverError
from declarative.theory.propositions import cosine

from ..shared.application import Cases
from ..shared.inputs import normal
from ..shared.jobs import Tick
from ..shared.rules import counted_warnings
from ..shared.training import Course
from .families import Extent, Family, families
from .methods import METHODS, make_method

RATES = (1e-3, 1e-2, 1e-1)  # of Adam: each method is tuned on its own, for a seed by what the others say
LEADER = ("exact", RATES[1])  # whose time all others get
LOOKS = 4
Key = tuple[str, float]
QUANTILES = (10, 25, 50, 75, 90)  # per cent, of the cosines of all problems at all looks
REGIMES = {"targets that can be met": 32, "targets that cannot be met": 2}  # and the dimension of the data


@dataclass(frozen=True)
class Settings:
    """What determines the result, but for the speed of the machine."""

    extent: Extent = "some"
    seeds: int = 6
    seed: int = 0
    steps: int = 100  # of the exact rule, at most
    seconds: float = 0.04  # for each method and rate, at most
    batch: int = 8


FULL = Settings(extent="all", seeds=10, steps=1000, seconds=2.0)
QUICK = Settings(extent="smallest", seeds=2, steps=10, seconds=0.1, batch=4)


def cases(settings: Settings) -> Cases:
    """Every family of layers."""
    return {family.label: partial(train_family, settings, family.label) for family in families(settings.extent)}


class Learner:
    """A linear network in training with one method: nothing is cheaper, so that the layer is most of a step."""

    def __init__(self, family: Family, rule: Rule, data: int, seed: int, batch: int, rate: float = RATES[1]) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.family, self.rule, self.node = family, rule, family.node.with_gradient(rule)
        self.data = normal(generator, batch, data)
        with torch.no_grad():
            self.target = family.layer(family.node, normal(generator, batch, *family.shape))
        self.weights = normal(generator, self.target[0].numel()).exp()  # entries count differently
        self.network = nn.Linear(data, torch.Size(family.shape).numel()).double()
        with torch.no_grad():
            self.network.weight.copy_(normal(generator, *self.network.weight.shape) / data**0.5)
            self.network.bias.zero_()
        self.course = Course(self.network.parameters(), rate, self._loss)
        self.cosines: list[Tensor] = []  # one for each look, (batch,)
        self.lost = False  # has it come to where the layer has no solution?

    def advance(self, until: float, steps: float = math.inf) -> None:
        """Train for so many seconds, or steps if these are fewer; who gets lost stays there."""
        while not self.lost and self.course.clock.total < until and steps > 0:
            try:
                self.lost = not math.isfinite(self.course.step().item())
            except SolverError:
                self.lost = True
            steps -= 1

    def look(self) -> float:
        """The loss, infinite for who is lost; and the problems' cosines with the exact gradient are kept."""
        if self.lost:
            return math.inf
        x = self._inputs().detach().requires_grad_()
        memory = isinstance(self.rule, Adaptive)  # for which a look is no step
        aside = self.family.node.with_gradient(copy.deepcopy(self.rule)) if memory else self.node
        try:
            losses = [self._losses(self.family.layer(node, x)) for node in (self.family.node, aside)]
            g, g_hat = (torch.autograd.grad(loss.sum(), x)[0].flatten(1) for loss in losses)
        except SolverError:
            self.lost = True
            return math.inf
        self.cosines.append(cosine(g, g_hat) * (math.nan if self.family.flat else 1.0))  # with zero there is none
        return losses[0].mean().item()

    def _loss(self) -> Tensor:
        return self._losses(self.course.clock(lambda x: self.family.layer(self.node, x), self._inputs())).mean()

    def _losses(self, y: Tensor) -> Tensor:
        return (self.weights * self.family.apart(y, self.target).square()).sum(-1)

    def _inputs(self) -> Tensor:
        x: Tensor = self.network(self.data).unflatten(-1, self.family.shape)
        return x


def train_family(settings: Settings, label: str, seed: int, tick: Tick) -> tuple[dict[str, Any], str]:
    """All methods with all learning rates on one family and seed, in both regimes."""
    (family,) = (one for one in families(settings.extent) if one.label == label)
    runs: list[dict[str, Any]] = []
    with counted_warnings() as warned:
        for count, (regime, data) in enumerate(REGIMES.items()):
            learners = {
                (name, rate): Learner(family, rule, data, seed, settings.batch, rate)
                for name in METHODS
                for rate in RATES
                if (rule := make_method(name, family)) is not None  # one for each: a rule may have a memory
            }
            curves = in_turns(learners, settings)
            about = {"family": family.name, "size": family.size, "regime": regime, "seed": seed}
            runs += [
                about | {"method": name, "rate": rate} | _run(learners[name, rate], curves[name, rate])
                for name, rate in learners
            ]
            tick((count + 1) / len(REGIMES))
    best = min(runs, key=lambda run: run["curve"]["loss"][-1] / run["curve"]["loss"][0])
    return {"runs": runs, "warnings": warned}, f"lowest loss by {best['method']} at {best['rate']:g}"


def in_turns(learners: dict[Key, Learner], settings: Settings) -> dict[Key, list[float]]:
    """Train the exact rule for some steps, then each of the others for as long as that took, and so on; the losses."""
    losses: dict[Key, list[float]] = {key: [learner.look()] for key, learner in learners.items()}
    leader = learners[LEADER]
    for _ in range(LOOKS):
        leader.advance(leader.course.clock.total + settings.seconds / LOOKS, max(1, settings.steps // LOOKS))
        for key, learner in learners.items():
            learner.advance(leader.course.clock.total)
            losses[key].append(learner.look())
    return losses


def _run(learner: Learner, losses: list[float]) -> dict[str, Any]:
    """What is kept of it; times are those of a step."""
    steps = max(learner.course.steps, 1)
    times = {name: seconds / steps for name, seconds in learner.course.clock.record().items()}
    cosines = torch.cat(learner.cosines)
    shares = torch.tensor(QUANTILES, dtype=torch.float64) / 100
    medians = [one.median().item() for one in learner.cosines]
    medians += [math.nan] * (len(losses) - len(medians))  # of who got lost
    return {
        "steps": steps,
        **times,
        **dict(zip(map("cosine_{}".format, QUANTILES), cosines.quantile(shares).tolist(), strict=True)),
        "downhill": math.nan if cosines.isnan().all() else (cosines > 0).double().mean().item(),
        "curve": {"look": list(range(len(losses))), "loss": losses, "cosine": medians},
    }
