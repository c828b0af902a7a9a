"""The table of approximations: formulas, methods and their limits, equal time, statistics, and words that follow."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from declarative import Rule, SolverError
from experiments import approximations
from experiments.approximations import findings, training
from experiments.approximations.families import Family, families, transport
from experiments.approximations.methods import (
    METHODS,
    Dropped,
    FewSteps,
    FiniteStep,
    LastSteps,
    LastSweeps,
    Penalty,
    make_method,
)
from experiments.approximations.training import LEADER, RATES, REGIMES, Learner, Settings
from experiments.report import applications as report
from experiments.shared.files import read_csv
from experiments.shared.inputs import normal
from tests.support.experiments import command

GAMMA = 1.0
SMALL = {family.name: family for family in families("smallest")} | {"transport": transport(4, GAMMA)}
ELIMINATED = [family for family in SMALL.values() if family.elimination]
ITERATED = [family for family in SMALL.values() if family.iteration]
MANY = 3000
CANNOT = list(REGIMES)[1]
name_of = lambda family: family.name  # noqa: E731


def point_of(family: Family, batch: int = 3) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs, solutions and incoming gradients."""
    generator = torch.Generator().manual_seed(1)
    x = normal(generator, batch, *family.shape)
    if family.name == "rotation":  # near one: H is definite, and iterations converge
        x = torch.eye(family.shape[0], dtype=torch.float64) + 0.2 * x
    y = family.layer(family.node, x)
    return x, y, normal(generator, *y.shape)


def gradient(family: Family, rule: str | Rule, x: Tensor, v: Tensor) -> Tensor:
    leaf = x.clone().requires_grad_()
    return torch.autograd.grad(family.layer(family.node.with_gradient(rule), leaf), leaf, v)[0]


def derivatives(family: Family, x: Tensor) -> Any:
    captured: list[Any] = []
    family.layer(lambda *xs: captured.append(family.node.derivatives(*xs)), x)
    return captured[0]


@pytest.mark.parametrize("family", SMALL.values(), ids=name_of)
def test_constraints_do_not_depend_on_the_input(family: Family) -> None:
    """Of those inputs that are learned; the others are constants."""
    x, _, _ = point_of(family)
    learned = derivatives(family, x).C[..., :] if family.name != "QP" else derivatives(family, x).C[..., 36:42]
    assert not learned.any()


@pytest.mark.parametrize("family", ELIMINATED, ids=name_of)
def test_formulas_of_the_elimination(family: Family) -> None:
    x, y, v = point_of(family)
    of, d, u, flat = family.elimination, derivatives(family, x), y.flatten(1), v.flatten(1)
    assert of is not None
    torch.testing.assert_close((d.H @ of.inverse(u, flat).unsqueeze(-1)).squeeze(-1), flat)
    s = normal(torch.Generator().manual_seed(2), *of.rows(u, flat).shape)
    torch.testing.assert_close((of.rows(u, flat) * s).sum(-1), (flat * of.columns(u, s)).sum(-1))
    tangent = torch.linalg.svd(d.A).Vh[:, torch.linalg.matrix_rank(d.A[0]) :].sum(-2)
    torch.testing.assert_close(of.rows(u, tangent), torch.zeros_like(s), atol=1e-9, rtol=0)


@pytest.mark.parametrize("family", ITERATED, ids=name_of)
def test_formulas_of_the_iteration(family: Family) -> None:
    x, y, v = point_of(family)
    of, d, u, flat = family.iteration, derivatives(family, x), y.flatten(1), v.flatten(1)
    assert of is not None
    torch.testing.assert_close(of.hessian(x, u, flat), (d.H @ flat.unsqueeze(-1)).squeeze(-1))
    projection = torch.eye(u.shape[-1], dtype=u.dtype) - torch.linalg.pinv(d.A) @ d.A
    torch.testing.assert_close(of.project(u, flat), (projection @ flat.unsqueeze(-1)).squeeze(-1))
    assert (of.rate(x, u).squeeze(-1) <= 1.0001 / torch.linalg.matrix_norm(d.H, 2)).all()


@pytest.mark.parametrize("family", ELIMINATED, ids=name_of)
def test_conjugate_gradients_lead_from_curvature_to_exact(family: Family) -> None:
    x, _, v = point_of(family)
    assert family.elimination is not None
    for steps, rule in ((0, "curvature"), (30, "exact")):
        torch.testing.assert_close(
            gradient(family, FewSteps(family.elimination, steps), x, v),
            gradient(family, rule, x, v),
            atol=1e-7,
            rtol=1e-6,
        )
    some = gradient(family, FewSteps(family.elimination, 1), x, v)
    assert (some - gradient(family, "exact", x, v)).abs().max() > 1e-3


@pytest.mark.parametrize("family", [SMALL["transport"], *ITERATED], ids=name_of)
def test_many_iterations_are_exact(family: Family) -> None:
    x, _, v = point_of(family)
    rule = (
        LastSweeps(family.elimination, family.shape[0], MANY)
        if family.elimination and not family.iteration
        else LastSteps(family.iteration, MANY)
    )
    torch.testing.assert_close(gradient(family, rule, x, v), gradient(family, "exact", x, v), atol=1e-5, rtol=1e-4)


def one_sweep(family: Family, y: Tensor) -> Callable[[Tensor], Tensor]:
    """Sinkhorn's iteration from the potentials of the solution."""
    n, gamma = family.shape[0], GAMMA

    def sweep(M: Tensor) -> Tensor:
        columns = (y.log() + gamma * M.detach()).mean(-2, keepdim=True)
        columns = columns - columns.mean(-1, keepdim=True)  # up to a constant, which the rows take up
        rows = -torch.tensor(float(n)).log() - torch.logsumexp(columns - gamma * M, -1, keepdim=True)
        columns = -torch.tensor(float(n)).log() - torch.logsumexp(rows - gamma * M, -2, keepdim=True)
        return (rows + columns - gamma * M).exp()

    return sweep


def one_power_step(family: Family, y: Tensor) -> Callable[[Tensor], Tensor]:  # noqa: ARG001
    def step(X: Tensor) -> Tensor:
        symmetric, value = (X + X.mT) / 2, (y * (X @ y)).sum((-2, -1), keepdim=True).detach()
        shift = (X + X.mT).abs().sum(-1).amax(-1)[:, None, None].detach() - value
        return torch.nn.functional.normalize(symmetric @ y + shift * y, dim=-2)

    return step


@pytest.mark.parametrize(("name", "iteration"), [("transport", one_sweep), ("eigenvector", one_power_step)])
def test_one_step_is_autograd_through_one_iteration(name: str, iteration: Any) -> None:
    family = SMALL[name]
    x, y, v = point_of(family)
    step, leaf = iteration(family, y.detach()), x.clone().requires_grad_()
    torch.testing.assert_close(step(leaf).detach(), y.detach(), atol=1e-7, rtol=1e-6)
    (expected,) = torch.autograd.grad(step(leaf), leaf, v)
    rule = make_method("one step", family)
    assert rule is not None
    torch.testing.assert_close(gradient(family, rule, x, v), expected, atol=1e-6, rtol=1e-5)


def test_methods_that_are_others_in_disguise_are_left_out() -> None:
    left = {name: [method for method in METHODS if make_method(method, one) is None] for name, one in SMALL.items()}
    iterations, parts = ["3 CG steps", "one step", "5 steps"], ["bounds dropped", "equality dropped"]
    assert left["sphere"] == [*iterations, "penalty", "smoothed", *parts]  # a formula
    assert left["softmax"] == ["curvature", *iterations, "penalty", "smoothed", *parts]
    assert left["transport"] == left["QP"] == left["control"] == ["curvature", "smoothed", *parts]
    assert left["rotation"] == ["3 CG steps", "penalty", "smoothed", *parts]  # H is not definite
    assert left["eigenvector"] == ["3 CG steps", "penalty", "LPGD", "smoothed", *parts]  # and x is a matrix in it
    assert left["hard constraints"] == left["knapsack"] == ["curvature", *iterations, "penalty", "smoothed"]
    for name in ("knapsack, linear", "choice, linear"):
        assert left[name] == ["unconstrained", "curvature", *iterations, "penalty", "adaptive", *parts]


@pytest.mark.parametrize("family", ELIMINATED, ids=name_of)
def test_a_penalty_leads_from_curvature_to_exact(family: Family) -> None:
    x, _, v = point_of(family)
    assert family.elimination is not None
    for stiff, rule in ((1e-10, "curvature"), (1e9, "exact")):
        torch.testing.assert_close(
            gradient(family, Penalty(family.elimination, stiff), x, v),
            gradient(family, rule, x, v),
            atol=1e-6,
            rtol=1e-5,
        )


@pytest.mark.parametrize("family", [one for one in SMALL.values() if one.slope], ids=name_of)
def test_a_small_step_is_exact(family: Family) -> None:
    x, _, v = point_of(family)
    assert family.slope is not None
    found = gradient(family, FiniteStep(family, family.slope, 1e-5), x, v)
    torch.testing.assert_close(found, gradient(family, "exact", x, v), atol=2e-4, rtol=2e-3)


@pytest.mark.parametrize("name", ["knapsack, linear", "choice, linear"])
def test_where_the_exact_gradient_is_zero_others_are_not(name: str) -> None:
    family = SMALL[name]
    x, y, v = point_of(family)
    assert gradient(family, "exact", x, v).abs().max() < 1e-9
    for method in ("identity", "LPGD", "smoothed"):
        rule = make_method(method, family)
        assert rule is not None
        assert gradient(family, rule, x, v).abs().max() > 1e-3
    assert family.slope == -1.0
    step = x.norm(dim=-1, keepdim=True) / v.norm(dim=-1, keepdim=True)
    rule = FiniteStep(family, -1.0, 1.0)
    assert not gradient(family, rule, x, torch.zeros_like(v)).any()  # and nothing that is not finite
    moved = family.node(x - step * v)  # the corner that is best once v is part of the objective
    torch.testing.assert_close(gradient(family, rule, x, v), (y - moved) / step)


def test_dropping_one_kind_of_constraints_is_the_derivative_without_it() -> None:
    family = SMALL["hard constraints"]
    x, y, v = point_of(family)
    assert family.parts is not None
    leaf = x.clone().requires_grad_()
    threshold = (x - y).where(y > 0, -math.inf).amax(-1, keepdim=True)
    assert (y == 0).any()
    for what, solution in {
        "bounds": leaf - leaf.mean(-1, keepdim=True) + 1 / x.shape[-1],
        "equality": (leaf - threshold).clamp(min=0),
    }.items():
        (expected,) = torch.autograd.grad(solution, leaf, v)
        torch.testing.assert_close(gradient(family, Dropped(family.parts, what), x, v), expected)


def test_every_method_gets_the_time_of_the_exact_one() -> None:
    family, settings = SMALL["softmax"], Settings(extent="smallest", steps=20, seconds=5.0, batch=2)
    methods = ("exact", "unconstrained", "identity")
    learners = {(name, RATES[1]): Learner(family, make_method(name, family), 2, 0, 2) for name in methods}
    losses = training.in_turns(learners, settings)
    exact = learners[LEADER]
    assert exact.course.steps == 20
    for learner in learners.values():
        assert learner.course.clock.total >= exact.course.clock.total
        assert learner.course.clock.total < 2 * exact.course.clock.total
    assert {len(curve) for curve in losses.values()} == {training.LOOKS + 1}
    assert len({curve[0] for curve in losses.values()}) == 1  # from the same weights
    assert losses[LEADER][-1] < losses[LEADER][0]
    assert (torch.cat(exact.cosines) > 0.999999).all()
    assert [one.shape for one in learners["identity", RATES[1]].cosines] == [(2,)] * (training.LOOKS + 1)


def test_who_gets_lost_stays_lost_and_stops_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    family, settings = SMALL["softmax"], Settings(extent="smallest", steps=8, seconds=5.0, batch=2)
    learners = {(name, RATES[1]): Learner(family, make_method(name, family), 2, 0, 2) for name in ("exact", "identity")}

    unsolved = SMALL["softmax"].node.solve(torch.zeros(1, 10, dtype=torch.float64))

    def nowhere() -> Tensor:
        raise SolverError(unsolved)

    monkeypatch.setattr(learners["identity", RATES[1]].course, "loss", nowhere)
    losses = training.in_turns(learners, settings)
    assert losses["identity", RATES[1]][1:] == [math.inf] * training.LOOKS
    assert learners[LEADER].course.steps == 8
    run = {"curve": {"loss": losses["identity", RATES[1]]}}
    assert findings.ended(run) == findings.LOST * losses[LEADER][0]


def test_a_look_is_no_step_of_a_rule_with_a_memory() -> None:
    rule = make_method("adaptive", SMALL["softmax"])
    learner = Learner(SMALL["softmax"], rule, 2, 0, 2)
    learner.look()
    assert rule.calls == 0
    learner.advance(math.inf, steps=3)
    assert rule.calls == 3


# What is said.


SEEDS = 6
NOISE = (1.0, 1.1, 0.95, 1.05, 0.9, 1.02)  # of the ratios, by seed


def record_of(**ratios: float) -> dict[str, Any]:
    """One family, on which a method ends at about a multiple of the exact loss; a third of the rates is no good."""
    runs = [
        {
            "family": "cone",
            "size": "n = 2",
            "regime": regime,
            "seed": seed,
            "method": method,
            "rate": rate,
            "steps": 10,
            "seconds": 1.0 if method == "exact" else 0.8,
            "layer_forward": 0.5,
            "layer_backward": 0.4 if method == "exact" else 0.2,
            "cosine_10": 0.5,
            "cosine_25": 0.6,
            "cosine_50": 0.9,
            "cosine_75": 0.95,
            "cosine_90": 0.99,
            "downhill": 1.0,
            "curve": {"look": [0, 1, 2], "loss": [9.0, 3.0, 5.0 if rate == RATES[0] else loss]},
        }
        for regime in REGIMES
        for seed in range(SEEDS)
        for method, ratio in {"exact": 1.0, **ratios}.items()
        for rate in RATES[:2]
        for loss in [(1 + seed) * ratio * (1.0 if method == "exact" else NOISE[seed])]
    ]
    return {"runs": runs}


def test_words_follow_the_data() -> None:
    record = record_of(unconstrained=0.25, identity=1.0)
    said = findings.sentences(record)
    assert said[0].startswith("Dropping the constraints is worth it whatever the targets are: cone (n = 2). With ")
    assert "the chance of one false verdict in the whole table is 5%" in said[0]
    assert "takes 40% to 40% of a step" in said[1]
    assert "saves 20% (cone, n = 2) to 20%" in said[1]
    assert said[2].endswith("for: none.")
    assert said[3].endswith("in how many above: unconstrained 1 and 0 of 1; identity 0 and 0 of 1.")
    assert "in 4 of 12 runs" in said[5]  # those of the first two seeds fell from 3
    assert said[6] == (
        "cone, n = 2. With targets that can be met, below the exact gradient: unconstrained (0.25); above it: none. "
        "With targets that cannot be met, below the exact gradient: unconstrained (0.25); above it: none."
    )
    assert len(said) == 7
    first, second = findings.rows(record)
    assert first[:8] == ["cone, n = 2", "unconstrained", "2.00 x", "1.25 x", "0.50", "0.90", "0.99", "100%"]
    assert first[8] == first[9] == "0.25 (0.23 to 0.27) \u2193"
    assert second[8] == "1.00 (0.93 to 1.08)"
    assert findings.in_words(0.01) == "< 0.1"


def test_the_rate_of_a_seed_is_chosen_by_the_others() -> None:
    runs = [
        {"seed": seed, "rate": rate, "curve": {"loss": [1.0, 0.5 if (rate == RATES[0]) == (seed == 0) else 0.1]}}
        for seed in range(3)
        for rate in RATES[:2]
    ]
    chosen = findings.tuned(runs)  # on seed 0 the first rate is worse, on the others the second one is
    assert [run["rate"] for run in chosen] == [RATES[0], *[findings.tuned(runs)[1]["rate"]] * 2]
    assert findings.tuned(runs[:2])[0]["rate"] == RATES[1]  # alone, by itself


def test_one_bad_seed_is_no_success() -> None:
    record = record_of(unconstrained=0.5)
    for run in record["runs"]:
        if run["seed"] == 1 and run["method"] == "unconstrained":
            run["curve"]["loss"][-1] = 40.0
    said = findings.sentences(record)
    assert said[3].endswith("unconstrained 0 and 0 of 1.")
    assert "In neither case: cone (n = 2)." in said[0]


def test_the_command_leaves_a_map(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    some = [SMALL["sphere"], SMALL["softmax"], SMALL["choice, linear"]]
    for module in (approximations, training):
        monkeypatch.setattr(module, "families", lambda _: some, raising=False)
    assert command(tmp_path, "approximations", "--quick") == 0
    place = tmp_path / "approximations"
    assert (place / "approximations.png").read_bytes().startswith(b"\x89PNG")
    rows = read_csv(place / "approximations.csv")
    assert len(rows) == 2 * len(REGIMES) * (6 + 5 + 4) * len(RATES)  # seeds, regimes, methods
    assert {row["method"] for row in rows} == {*METHODS[:4], "LPGD", "adaptive", "smoothed"}
    assert all(float(row["last_loss"]) >= 0 for row in rows)
    assert {row["cosine_50"] for row in rows if row["family"] == "choice, linear"} == {"nan"}
    monkeypatch.setattr(report, "LONG", 1)
    assert command(tmp_path, "report") == 0
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert '<section id="approximations">' in page
    assert page.index("<figcaption>Where is it worth") < page.index("lines of the table</summary>")  # which is folded
    assert "Why an approximation can be better than the truth" in page
