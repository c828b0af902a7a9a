"""The rule with a state: when it probes, what it decides, what it keeps."""

from __future__ import annotations

import copy
import csv
import pickle
from pathlib import Path

import matplotlib as mpl
import pytest
import torch
from torch import Tensor

from declarative import Adaptive, DeclarativeNode, Exact, Unconstrained
from problems import OptimalTransport
from tests.support.helpers import DOUBLE, case, gradients, in_threads

mpl.use("Agg")


def distance(x: Tensor, u: Tensor) -> Tensor:
    return (u - x).square().sum() / 2


def on_sphere(_: Tensor, u: Tensor) -> Tensor:
    return (u.square().sum() - 1) / 2


def sphere(rule: Adaptive | str = "exact", **options: object) -> DeclarativeNode:
    return DeclarativeNode(distance, on_sphere, solver=torch.nn.functional.normalize, gradient=rule, **options)


def batch_with_cosines(cosines: list[float]) -> tuple[Tensor, Tensor]:
    """Problems whose cheap and exact gradients have these cosines: exact is v without its part along x."""
    angle = torch.tensor(cosines, dtype=DOUBLE)
    x = torch.tensor([[2.0, 0.0]], dtype=DOUBLE).repeat(len(cosines), 1).requires_grad_()
    return x, torch.stack([(1 - angle.square()).sqrt(), angle], -1)


def backward(node: DeclarativeNode, x: Tensor, v: Tensor) -> Tensor:
    return gradients(node(x), (x,), v)[0]


def is_cheap(gradient: Tensor, x: Tensor, v: Tensor) -> bool:
    exact, cheap = backward(sphere(), x, v), backward(sphere("unconstrained"), x, v)
    assert not torch.allclose(exact, cheap)
    torch.testing.assert_close(gradient, cheap if torch.allclose(gradient, cheap) else exact)
    return torch.allclose(gradient, cheap)


def test_probes_are_exact_and_the_rest_is_cheap_while_it_agrees() -> None:
    rule = Adaptive(probe_every=3, threshold=0.9)
    x, v = batch_with_cosines([0.95, 0.99])
    used = [is_cheap(backward(sphere(rule), x, v), x, v) for _ in range(7)]
    assert used == [False, True, True, False, True, True, False]
    assert [probe.call for probe in rule.history] == [0, 3, 6]
    assert (rule.calls, rule.cheap_calls, rule.uses_cheap) == (7, 4, True)


def test_exact_after_a_probe_that_disagrees() -> None:
    rule = Adaptive(probe_every=2, threshold=0.9)
    good, bad = batch_with_cosines([0.95, 0.99]), batch_with_cosines([0.5, 0.6])
    used = [is_cheap(backward(sphere(rule), *case_), *case_) for case_ in (good, good, bad, bad, good, good, good)]
    assert used == [False, True, False, False, False, False, False]
    assert [probe.cheap for probe in rule.history] == [True, False]  # and no probe costs anything afterwards


def test_returns_to_cheap_if_it_may() -> None:
    rule = Adaptive(probe_every=2, threshold=0.9, returns=True)
    good, bad = batch_with_cosines([0.95]), batch_with_cosines([0.5])
    used = [is_cheap(backward(sphere(rule), *case_), *case_) for case_ in (bad, good, good, good, bad, bad)]
    assert used == [False, False, False, True, False, False]


def test_patience_forgives_single_probes() -> None:
    rule = Adaptive(probe_every=1, threshold=0.9, patience=2)
    good, bad = batch_with_cosines([0.95]), batch_with_cosines([0.5])
    for case_ in (bad, good, bad):
        backward(sphere(rule), *case_)
    assert rule.uses_cheap
    backward(sphere(rule), *bad)
    assert not rule.uses_cheap


@pytest.mark.parametrize(("fraction", "cheap"), [(0.5, True), (0.75, True), (0.8, False), (1.0, False)])
def test_fraction_of_the_batch_decides(fraction: float, cheap: bool) -> None:
    rule = Adaptive(threshold=0.9, fraction=fraction)
    backward(sphere(rule), *batch_with_cosines([0.95, 0.92, 0.99, 0.1]))
    assert rule.uses_cheap == cheap
    (probe,) = rule.history
    assert probe.agreeing == 0.75
    assert probe.lowest == pytest.approx(0.1)
    assert probe.mean == pytest.approx(0.74)


def test_problems_that_the_loss_does_not_use_do_not_vote() -> None:
    rule = Adaptive(threshold=0.9, fraction=1.0, probe_every=5)
    x, v = batch_with_cosines([0.5, 0.95])
    v[0] = 0.0
    backward(sphere(rule), x, v)
    assert rule.history[0].lowest == pytest.approx(0.95)
    fresh = Adaptive()
    backward(sphere(fresh), x, torch.zeros_like(v))
    assert not fresh.history
    backward(sphere(fresh), x, v)
    assert fresh.history[0].call == 1  # the probe is made up for


def test_shared_inputs_are_compared_per_problem_and_summed() -> None:
    problem = case("two inputs")
    xs, v = problem.xs(batch=4), torch.randn(4, 3, dtype=DOUBLE)
    rule = Adaptive("curvature")
    node = problem.node("closed form")
    got = gradients(node.with_gradient(rule)(*xs), xs, v)
    for one, truth in zip(got, gradients(node(*xs), xs, v), strict=True):
        torch.testing.assert_close(one, truth)
    assert rule.history[0].lowest == pytest.approx(node.descent(*xs, v)["curvature"].cosine.min().item())


def test_transforms_and_graphs_are_exact_and_not_counted() -> None:
    rule = Adaptive(threshold=-1.0)
    x, v = batch_with_cosines([0.5, 0.6])
    backward(sphere(rule), x, v)
    assert is_cheap(backward(sphere(rule), x, v), x, v)
    calls = rule.calls
    torch.testing.assert_close(torch.func.jacrev(sphere(rule))(x), torch.func.jacrev(sphere())(x))
    torch.testing.assert_close(torch.func.jvp(sphere(rule), (x,), (v,))[1], torch.func.jvp(sphere(), (x,), (v,))[1])
    (graph,) = torch.autograd.grad(sphere(rule)(x), x, v, create_graph=True)
    assert not is_cheap(graph.detach(), x, v)
    rows = torch.autograd.grad(sphere(rule)(x), x, torch.stack([v, 2 * v]), is_grads_batched=True)[0]
    assert not is_cheap(rows[0], x, v)
    assert rule.calls == calls


def test_a_loss_of_the_multipliers_is_exact() -> None:
    rule = Adaptive(threshold=-1.0)
    x, v = batch_with_cosines([0.5])
    backward(sphere(rule), x, v)
    (got,) = torch.autograd.grad(sphere(rule).solve(x).multipliers.sum(), x)
    torch.testing.assert_close(got, -x.detach() / x.detach().norm())  # the multiplier is 1 - ||x||
    assert rule.calls == 1


def trained(rule: Adaptive, steps: int) -> list[float]:
    """A short training run; the losses."""
    generator = torch.Generator().manual_seed(0)
    z, target = torch.randn(2, 8, 3, generator=generator, dtype=DOUBLE)
    weight = torch.randn(3, 3, generator=generator, dtype=DOUBLE, requires_grad=True)
    optimiser = torch.optim.SGD([weight], lr=0.1)
    losses = []
    for _ in range(steps):
        loss = (sphere(rule)(z @ weight) - torch.nn.functional.normalize(target)).square().sum()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return losses


def test_learns_in_an_ordinary_loop() -> None:
    rule = Adaptive(probe_every=5, threshold=0.5)
    losses = trained(rule, 40)
    assert losses[-1] < 0.5 * losses[0]
    assert rule.calls == 40
    assert rule.cheap_calls > 0


@pytest.mark.parametrize("how", ["state_dict", "deepcopy", "pickle", "node", "checkpoint"])
def test_state_survives(how: str, tmp_path: Path) -> None:
    rule = Adaptive(probe_every=4, threshold=0.2, keep=3)
    trained(rule, 18)
    if how == "state_dict":
        other = Adaptive(probe_every=4, threshold=0.2, keep=3)
        other.load_state_dict(rule.state_dict())
    elif how == "deepcopy":
        other = copy.deepcopy(rule)
    elif how == "pickle":
        other = pickle.loads(pickle.dumps(rule))
    elif how == "node":
        other = pickle.loads(pickle.dumps(copy.deepcopy(sphere(rule)))).gradient
    else:
        torch.save(rule.state_dict(), tmp_path / "rule.pt")
        other = Adaptive(probe_every=4, threshold=0.2, keep=3)
        other.load_state_dict(torch.load(tmp_path / "rule.pt", weights_only=True))
    before = rule.history
    assert other is not rule
    assert other.state_dict() == rule.state_dict()
    assert len(before) == 3
    assert trained(other, 5) == trained(rule, 5)
    assert other.state_dict() == rule.state_dict()
    trained(other, 8)
    assert other.calls == rule.calls + 8  # the copies do not share anything
    assert isinstance(other.cheap, Unconstrained)


def test_state_of_something_else_is_refused() -> None:
    with pytest.raises(ValueError, match="not the state of an Adaptive"):
        Adaptive().load_state_dict({"calls": 3})


def test_history_is_bounded_and_exported(tmp_path: Path) -> None:
    rule = Adaptive(probe_every=1, keep=4, threshold=-1.0)
    for _ in range(9):
        backward(sphere(rule), *batch_with_cosines([0.7]))
    rule.to_csv(tmp_path / "probes.csv")
    with open(tmp_path / "probes.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["call"]) for row in rows] == [5, 6, 7, 8]
    assert float(rows[0]["median"]) == pytest.approx(0.7)
    assert rule.records()[0]["call"] == 5


def test_plot_shows_probes_threshold_and_switch() -> None:
    rule = Adaptive(probe_every=1, threshold=0.9)
    backward(sphere(rule), *batch_with_cosines([0.95]))
    backward(sphere(rule), *batch_with_cosines([0.5]))
    ax = rule.plot()
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert labels == ["median of the batch", "lowest of the batch", "threshold", "exact from here"]
    assert list(ax.lines[0].get_xdata()) == [0, 1]
    mpl.pyplot.close(ax.figure)


def test_threads_lose_no_count() -> None:
    rule = Adaptive(probe_every=7, threshold=-1.0)
    x, v = batch_with_cosines([0.7, 0.8])

    def work(_: int) -> None:
        for _ in range(20):
            backward(sphere(rule), x, v)

    in_threads(work, range(4))
    assert rule.calls == 80
    assert rule.cheap_calls + len(rule.history) == 80


@pytest.mark.parametrize(
    "options",
    [
        {"probe_every": 0},
        {"threshold": 1.5},
        {"fraction": 0.0},
        {"patience": 0},
        {"keep": 0},
        {"cheap": "nonsense"},
        {"probe_every": 2.5},
    ],
)
def test_misuse_is_refused(options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(options)).replace("cheap", "gradient")):
        Adaptive(**options)


def test_cheap_may_be_any_rule_but_an_adaptive_one() -> None:
    assert isinstance(Adaptive(Exact()).cheap, Exact)
    with pytest.raises(TypeError, match="itself adaptive"):
        Adaptive(Adaptive())


def transported(rule: Adaptive | str, seed: int, size: int = 5, steps: int = 400) -> float:
    """The paper's optimal-transport experiment in small: the final loss."""
    torch.manual_seed(seed)
    network = torch.nn.Sequential(
        torch.nn.Linear(5, 32),
        torch.nn.ReLU(),
        torch.nn.Linear(32, 32),
        torch.nn.ReLU(),
        torch.nn.Linear(32, size * size),
        torch.nn.Unflatten(-1, (size, size)),
    )
    z, layer = torch.randn(10, 5), OptimalTransport(gradient=rule)
    target = layer(-torch.rand(10, size, size).log())
    optimiser = torch.optim.AdamW(network.parameters(), lr=1e-3)
    loss = torch.zeros(())
    for _ in range(steps):
        loss = (layer(network(z)) - target).square().sum((1, 2)).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return loss.item()


def test_transport_recovers_most_of_what_the_cheap_gradient_loses() -> None:
    rule = Adaptive("unconstrained", probe_every=20, threshold=0.99)
    exact, cheap, adaptive = (transported(one, seed=0) for one in ("exact", "unconstrained", rule))
    assert cheap > 1.2 * exact  # there is something to recover
    assert adaptive - exact < 0.5 * (cheap - exact)
    assert rule.cheap_calls >= 0.9 * 80  # of the first fifth
    assert not rule.uses_cheap
