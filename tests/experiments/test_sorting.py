"""Learning to sort: honest splits and measures, rules that really differ, and verdicts that follow the data."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from experiments.applications.sampling import draw_groups, split
from experiments.applications.sorting import findings, training
from experiments.applications.sorting.data import SPLIT, accuracies, load_digits, right_places, target_plan, vary
from problems import OptimalTransport


def test_no_image_serves_twice() -> None:
    digits = load_digits()
    pools = split(SPLIT, seed=3)
    together = torch.cat(list(pools.values()))
    assert len(together) == len(together.unique()) == len(digits.labels) == 1797
    task = training.Task.make(digits, 10, False, 3, training.QUICK)
    assert set(task.sequences["test"].flatten().tolist()) <= set(pools["test"].tolist())
    assert set(task.sequences["validation"].flatten().tolist()) <= set(pools["validation"].tolist())
    assert not torch.equal(pools["test"], split(SPLIT, seed=4)["test"])


def test_training_sees_training_images_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[torch.Tensor] = []

    def draw(pool: torch.Tensor, *rest: Any) -> torch.Tensor:
        seen.append(draw_groups(pool, *rest))
        return seen[-1]

    task = training.Task.make(load_digits(), 5, False, 0, training.QUICK)
    monkeypatch.setattr(training, "draw_groups", draw)
    training.Learner("exact", task).course.advance(3)
    assert len(seen) == 3
    assert set(torch.cat(seen).flatten().tolist()) <= set(task.pools["train"].tolist())


def test_equal_digits_may_come_in_any_order() -> None:
    labels = torch.tensor([[7, 2, 2]])
    for scores in ([0.9, 0.1, 0.2], [0.9, 0.2, 0.1]):
        assert right_places(torch.tensor([scores]), labels).all()
    wrong = right_places(torch.tensor([[0.15, 0.1, 0.2]]), labels)  # reads 2 7 2 instead of 2 2 7
    assert wrong.tolist() == [[True, False, False]]
    labels, scores = torch.tensor([[7, 2, 2], [1, 2, 3]]), torch.tensor([[0.15, 0.1, 0.2], [-1.0, 0.0, 0.5]])
    assert accuracies(scores, labels) == pytest.approx((1 / 2, 4 / 6))


def test_the_target_is_the_mean_of_all_orders_that_are_right() -> None:
    plan = target_plan(torch.tensor([[7, 2, 2], [3, 1, 2]]))
    expected = torch.tensor(
        [[[0, 0, 1], [0.5, 0.5, 0], [0.5, 0.5, 0]], [[0, 0, 1], [1, 0, 0], [0, 1, 0]]], dtype=plan.dtype
    )
    torch.testing.assert_close(plan, expected / 3)


def test_unrolled_iterations_approach_the_layer() -> None:
    costs = training.rank_costs(torch.rand(4, 5, generator=torch.Generator().manual_seed(0)) * 2 - 1, False)
    exact = OptimalTransport(5.0)(costs)
    errors = [(training.unrolled_transport(costs, 5.0, count) - exact).abs().max().item() for count in (2, 10, 100)]
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 1e-9


def test_a_common_shift_changes_no_plan_and_no_centred_cost() -> None:
    scores = torch.rand(4, 5, generator=torch.Generator().manual_seed(0)).double()
    plain, shifted = (OptimalTransport(10.0)(training.rank_costs(s, False)) for s in (scores, scores + 0.3))
    torch.testing.assert_close(plain, shifted)
    torch.testing.assert_close(training.rank_costs(scores, True), training.rank_costs(scores + 0.3, True))
    for centred, moves in ((False, True), (True, False)):
        leaf = scores.clone().requires_grad_()
        plan = OptimalTransport(10.0, gradient="unconstrained")(training.rank_costs(leaf, centred))
        (gradient,) = torch.autograd.grad(plan[:, 0, 0].sum(), leaf)
        assert (gradient.sum(-1).abs().max() > 1e-3) == moves


def test_varied_images_are_the_same_digits_elsewhere() -> None:
    images = load_digits().images[:200].unsqueeze(1)
    varied = vary(images, torch.Generator().manual_seed(0))
    assert varied.shape == images.shape
    assert torch.equal(varied, vary(images, torch.Generator().manual_seed(0)))
    assert (varied - images).abs().mean() > 0.01
    alike = torch.nn.functional.cosine_similarity(varied.flatten(1), images.flatten(1))
    others = torch.nn.functional.cosine_similarity(varied.flatten(1), images.flip(0).flatten(1))
    assert alike.mean() > 0.8 > others.mean()


def test_with_equal_time_nobody_trains_longer_than_the_exact_rule_by_more_than_a_step() -> None:
    settings = dataclasses.replace(training.QUICK, steps=6, equal_time=True)
    task = training.Task.make(load_digits(), 3, False, 0, settings)
    learners = training.train(task, (*training.RULES, training.ONCE))
    exact = learners["exact"].course
    assert exact.steps == 6
    for rule in training.RULES:
        curve = learners[rule].course.curve
        assert len(curve["step"]) == 3
        longest = curve["seconds"][-1] / curve["step"][-1] * 5
        assert curve["seconds"][-1] >= exact.clock.total or curve["step"][-1] == 18
        assert curve["seconds"][-1] < exact.clock.total + longest
    assert learners["curvature"].course.steps == learners["unconstrained"].course.steps
    rates = [one.course.optimiser.param_groups[0]["lr"] for one in learners.values()]
    assert rates == [pytest.approx(settings.learning_rate / 4)] * 5  # cosine of two thirds of a half turn


def test_rules_train_differently_and_the_two_cheap_ones_alike() -> None:
    task = training.Task.make(load_digits(), 5, False, 0, training.QUICK)
    learners = training.train(task, (*training.RULES, training.ONCE))
    scores = {rule: learner.test_scores() for rule, learner in learners.items()}
    assert torch.equal(scores["unconstrained"], scores["curvature"])
    assert (scores["exact"] - scores["unconstrained"]).abs().max() > 1e-3
    start = training.make_network(task.seed)[0].weight
    assert all(not torch.equal(learner.network[0].weight, start) for learner in learners.values())


def record_of(exact: list[float], cheap: list[float]) -> dict[str, Any]:
    """Two looks, one case, one seed."""
    curves = {"exact": exact, "unconstrained": cheap, "adaptive": cheap, "unrolled": exact, "curvature": cheap}
    seconds = {"exact": [2.0, 4.0], "unconstrained": [1.0, 2.0]}
    runs = []
    for rule, whole in curves.items():
        time = seconds.get(rule, [2.0, 4.0])
        one = {"n": 5, "centred": False, "rule": rule, "seed": 0, "seconds": time[-1], "cheap_share": 0.5}
        curve = {"step": [1, 2], "seconds": time, "whole": whole, "places": whole}
        runs.append(one | {"layer_forward": 1.0, "layer_backward": 0.5, "curve": curve})
    return {"settings": {"cases": [[5, False]]}, "runs": runs, "cases": [{"curvature_apart": 0.0}]}


def test_verdicts_follow_the_data() -> None:
    (good,) = findings.cases(record_of([0.5, 0.8], [0.7, 0.8]))
    assert findings.verdict(good, "unconstrained") == (
        "n = 5: exact reaches the mark after 4.0 s (step 2), unconstrained after 2.0 s (step 2). "
        "Worth it: 50% less time."
    )
    (bad,) = findings.cases(record_of([0.5, 0.8], [0.5, 0.7]))
    assert findings.verdict(bad, "unconstrained").endswith(
        "misses it on 1 of 1 seeds and ends as low as 70.0%. Not worth it."
    )
    assert findings.summary([good, bad]) == "The cheap gradient is worth it in 1 of 2 cases: for n = 5."
    assert findings.summary([bad]) == "The cheap gradient is worth it in 0 of 1 cases."
    (slow,) = findings.cases(record_of([0.8, 0.8], [0.5, 0.8]))
    slow.of("unconstrained")[0]["curve"]["seconds"][-1] = 3.0
    assert findings.verdict(slow, "unconstrained").endswith("Not worth it: 50% more time.")
    assert "-10.0 points of accuracy against exact, worse on the only seed; -2.0 s (-50%)" in (
        findings.against_exact(bad, "unconstrained")
    )
    said = findings.sentences(record_of([0.5, 0.8], [0.5, 0.7]))
    assert any("takes 12% of the training time and its solver 25%" in line for line in said)
