"""The applications: honest splits and measures, rules that really differ, and a page that says what was measured."""

from __future__ import annotations

import copy
import csv
import dataclasses
import json
import sys
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from experiments import cli
from experiments.applications import common as applications
from experiments.applications import decision, decision_report, sorting, sorting_report
from experiments.applications import figures as application_figures
from experiments.applications.common import Clock, consistency, load_bundled, spread
from experiments.applications.decision_data import (
    BUDGET,
    GROUP,
    Allocation,
    Groups,
    Patients,
    draw_groups,
    load_patients,
)
from experiments.applications.decision_data import split_patients as patients_split
from experiments.applications.sorting_data import (
    accuracies,
    draw_sequences,
    load_digits,
    right_places,
    split_images,
    target_plan,
)
from problems import OptimalTransport

NAMES = ("sorting", "decision")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What both commands leave at small sizes."""
    out = tmp_path_factory.mktemp("results")
    for name in NAMES:
        assert cli.main([name, "--quick", "--out", str(out)]) == 0
    return out


def record_of(out: Path, name: str) -> dict[str, Any]:
    record = applications.load(out, name)
    assert record is not None
    return record


# Sorting: data and measures.


def test_no_image_serves_twice() -> None:
    digits = load_digits()
    pools = split_images(len(digits.labels), seed=3)
    together = torch.cat(list(pools.values()))
    assert len(together) == len(together.unique()) == len(digits.labels) == 1797
    task = sorting.Task.make(digits, 10, False, 3, sorting.QUICK)
    assert set(task.sequences["test"].flatten().tolist()) <= set(pools["test"].tolist())
    assert set(task.sequences["validation"].flatten().tolist()) <= set(pools["validation"].tolist())
    assert not torch.equal(pools["test"], split_images(1797, seed=4)["test"])


def test_training_sees_training_images_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[torch.Tensor] = []

    def draw(pool: torch.Tensor, *rest: Any) -> torch.Tensor:
        seen.append(draw_sequences(pool, *rest))
        return seen[-1]

    task = sorting.Task.make(load_digits(), 5, False, 0, sorting.QUICK)
    monkeypatch.setattr(sorting, "draw_sequences", draw)
    sorting.Learner("exact", task).advance(3)
    assert len(seen) == 3
    assert set(torch.cat(seen).flatten().tolist()) <= set(task.pools["train"].tolist())


def test_a_sequence_has_no_image_twice() -> None:
    sequences = draw_sequences(torch.arange(12), 200, 10, torch.Generator().manual_seed(0))
    assert all(len(set(line)) == 10 for line in sequences.tolist())


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
    costs = sorting.rank_costs(torch.rand(4, 5, generator=torch.Generator().manual_seed(0)) * 2 - 1, False)
    exact = OptimalTransport(5.0)(costs)
    errors = [(sorting.unrolled_transport(costs, 5.0, count) - exact).abs().max().item() for count in (2, 10, 100)]
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 1e-9


def test_a_common_shift_changes_no_plan_and_no_centred_cost() -> None:
    scores = torch.rand(4, 5, generator=torch.Generator().manual_seed(0)).double()
    plain, shifted = (OptimalTransport(10.0)(sorting.rank_costs(s, False)) for s in (scores, scores + 0.3))
    torch.testing.assert_close(plain, shifted)
    torch.testing.assert_close(sorting.rank_costs(scores, True), sorting.rank_costs(scores + 0.3, True))
    for centred, moves in ((False, True), (True, False)):
        leaf = scores.clone().requires_grad_()
        plan = OptimalTransport(10.0, gradient="unconstrained")(sorting.rank_costs(leaf, centred))
        (gradient,) = torch.autograd.grad(plan[:, 0, 0].sum(), leaf)
        assert (gradient.sum(-1).abs().max() > 1e-3) == moves


# The rules are what they say.


def test_rules_train_differently_and_the_two_cheap_ones_alike() -> None:
    task = sorting.Task.make(load_digits(), 5, False, 0, sorting.QUICK)
    learners = sorting.train(task, (*sorting.RULES, sorting.ONCE), lambda: None)
    scores = {rule: learner.test_scores() for rule, learner in learners.items()}
    assert torch.equal(scores["unconstrained"], scores["curvature"])
    assert (scores["exact"] - scores["unconstrained"]).abs().max() > 1e-3
    start = sorting.make_network(task.seed)[0].weight
    assert all(not torch.equal(learner.network[0].weight, start) for learner in learners.values())


def test_gradients_of_the_decision_differ_between_rules() -> None:
    task = decision.Task.make(load_patients(), 0, decision.QUICK)
    models = {}
    for rule in decision.RULES:
        learner = decision.Learner(rule, 0.1, task)
        learner.advance(3)
        models[rule] = learner.model.detach()
    assert (models["exact"] - models["unconstrained"]).abs().max() > 1e-3


def test_the_exact_rule_is_the_slope_of_regret() -> None:
    task = decision.Task.make(load_patients(), 0, decision.QUICK)
    groups = task.groups["train"]
    allocate, features = Allocation(groups.patients.weights), groups.patients.features

    def regret(model: torch.Tensor) -> torch.Tensor:
        return groups.regret(allocate(decision.predict(model, features))).mean()

    model = decision.fit_ridge(task.patients[task.pools["train"]], 1.0).requires_grad_()
    (gradient,) = torch.autograd.grad(regret(model), model)
    step = 1e-6
    slopes = [
        (regret(model.detach() + step * e) - regret(model.detach() - step * e)).item() / (2 * step)
        for e in torch.eye(len(model), dtype=model.dtype)
    ]
    np.testing.assert_allclose(gradient.numpy(), slopes, rtol=1e-4, atol=1e-6)


def test_the_clock_counts_the_layer_both_ways() -> None:
    clock, x = Clock(), torch.rand(2, 3, 3, dtype=torch.float64, requires_grad=True)
    y = clock(OptimalTransport(), x)
    assert clock.forward > 0
    assert clock.backward == 0
    y.square().sum().backward()
    assert 0 < clock.backward < 10


# Decisions.


def a_group(seed: int, batch: int = 40) -> Groups:
    patients, generator = load_patients(), torch.Generator().manual_seed(seed)
    return Groups.of(patients[draw_groups(torch.arange(442), batch, generator)])


def test_allocations_keep_budget_and_bounds() -> None:
    groups = a_group(0)
    shares = Allocation(groups.patients.weights)(groups.patients.progression)
    torch.testing.assert_close((shares * groups.patients.weights).sum(-1), torch.full((40,), BUDGET).double())
    assert shares.min() > -1e-9
    assert shares.max() < 1 + 1e-9


def test_regret_is_never_negative_and_zero_for_perfect_predictions() -> None:
    groups = a_group(1)
    allocate, truth = Allocation(groups.patients.weights), groups.patients.progression
    assert groups.regret(allocate(truth)).abs().max() < 1e-12
    noise = torch.randn(truth.shape, generator=torch.Generator().manual_seed(0), dtype=truth.dtype)
    regret = groups.regret(allocate(truth + noise))
    assert regret.min() > -1e-9
    assert regret.mean() > 0.1


def test_a_hand_made_allocation() -> None:
    """Three full doses for ten patients of equal weight: three of them are worth far more than the others."""
    truth = torch.zeros(1, GROUP, dtype=torch.float64)
    truth[0, :3] = 5.0
    patients = Patients(torch.zeros(1, GROUP, 4), torch.ones(1, GROUP).double(), truth)
    groups = Groups.of(patients)
    assert groups.best.item() == pytest.approx(3 * (5.0 - 1 / 2))
    opposite = Allocation(patients.weights)(-truth)
    assert opposite[0].tolist() == pytest.approx([0.0] * 3 + [BUDGET / 7] * 7)
    assert groups.regret(opposite).item() == pytest.approx(13.5 + 7 * (BUDGET / 7) ** 2 / 2)


def test_no_patient_serves_twice_and_least_squares_is_least_squares() -> None:
    pools = patients_split(442, 0)
    together = torch.cat(list(pools.values()))
    assert len(together) == len(together.unique()) == 442
    task = decision.Task.make(load_patients(None), 0, decision.QUICK)
    train = task.patients[task.pools["train"]]
    inputs = np.c_[np.ones(len(train.weights)), train.features.numpy()]
    expected = np.linalg.lstsq(inputs, train.progression.numpy(), rcond=None)[0]
    np.testing.assert_allclose(decision.fit_ridge(train, 0.0).numpy(), expected, rtol=1e-8)
    torch.testing.assert_close(train.features.mean(0), torch.zeros(10, dtype=torch.float64), atol=1e-12, rtol=0)


def test_the_test_groups_choose_nothing() -> None:
    """Other test patients change what is measured, not what is trained."""
    task = decision.Task.make(load_patients(), 0, decision.QUICK)
    other = copy.copy(task)
    object.__setattr__(other, "groups", task.groups | {"test": task.groups["validation"]})
    mine, others = (decision.two_stage(one, decision.TWO_STAGE) for one in (task, other))
    assert mine["validation_regret"] == others["validation_regret"]
    assert mine["regret"] != others["regret"]


# What the commands leave, and the page.


def untimed(record: dict[str, Any]) -> Any:
    """Everything but times and dates."""
    timed = ("seconds", "layer_forward", "layer_backward", "finished", "machine")
    if isinstance(record, dict):
        return {name: untimed(value) for name, value in record.items() if name not in timed}
    return [untimed(one) for one in record] if isinstance(record, list) else record


@pytest.mark.parametrize("name", NAMES)
def test_the_same_seed_gives_the_same_numbers(name: str, results: Path) -> None:
    """And a seed does not depend on what runs beside it."""
    module = {"sorting": sorting, "decision": decision}[name]
    alone = module.measure(dataclasses.replace(module.QUICK, seeds=1))
    kept, now = record_of(results, name), json.loads(json.dumps(alone))
    assert untimed(now["runs"]) == untimed([one for one in kept["runs"] if one["seed"] == 0])
    assert now.get("cases") == kept.get("cases")


def test_tables_and_pictures_are_written(results: Path) -> None:
    with open(results / "sorting" / "sorting.csv", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    assert {(line["rule"], line["seed"]) for line in lines} == {
        *((rule, seed) for rule in sorting.RULES for seed in "01"),
        ("curvature", "0"),
    }
    assert {line["centred"] for line in lines} == {"True", "False"}
    assert all(0 <= float(line["test_whole"]) <= float(line["test_places"]) <= 1 for line in lines)
    with open(results / "decision" / "decision.csv", encoding="utf-8") as file:
        assert {line["method"] for line in csv.DictReader(file)} == set(decision_report.METHODS)
    for path in ("sorting/curves_n3.png", "sorting/sorted_n3_centred.png", "decision/regret.png"):
        assert (results / path).read_bytes().startswith(b"\x89PNG")


def test_list_and_page_know_what_was_run(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    picture = (results / "decision" / "regret.png").read_bytes()  # drawing takes most of the time
    monkeypatch.setattr(application_figures, "on_canvas", lambda *_: picture)
    assert cli.main(["report", "--out", str(results)]) == 0
    assert cli.main(["list", "--out", str(results)]) == 0
    assert capsys.readouterr().out.count("- finished") == 2
    page = (results / "index.html").read_text(encoding="utf-8")
    for module, name in ((sorting_report, "sorting"), (decision_report, "decision")):
        assert f'<section id="{name}">' in page
        said = module.sentences(record_of(results, name))
        assert len(said) > 3
        for line in said:
            assert escape(line) in page
    only = tmp_path / "sorting"
    only.mkdir()
    (only / "sorting.json").write_text((results / "sorting" / "sorting.json").read_text(encoding="utf-8"))
    assert cli.main(["report", "--out", str(tmp_path)]) == 0
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert "Not run yet: <code>python -m experiments decision</code>" in page
    assert "Not run yet: <code>python -m experiments sorting</code>" not in page


def sorting_record(exact: list[float], cheap: list[float]) -> dict[str, Any]:
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


def test_verdicts_on_sorting_follow_the_data() -> None:
    (good,) = sorting_report.cases(sorting_record([0.5, 0.8], [0.7, 0.8]))
    assert sorting_report.verdict(good, "unconstrained") == (
        "n = 5: exact reaches the mark after 4.0 s (step 2), unconstrained after 2.0 s (step 2). "
        "Worth it: 50% less time."
    )
    (bad,) = sorting_report.cases(sorting_record([0.5, 0.8], [0.5, 0.7]))
    assert sorting_report.verdict(bad, "unconstrained").endswith(
        "misses it on 1 of 1 seeds and ends as low as 70.0%. Not worth it."
    )
    assert sorting_report.summary([good, bad]) == "The cheap gradient is worth it in 1 of 2 cases: for n = 5."
    assert sorting_report.summary([bad]) == "The cheap gradient is worth it in 0 of 1 cases."
    (slow,) = sorting_report.cases(sorting_record([0.8, 0.8], [0.5, 0.8]))
    slow.of("unconstrained")[0]["curve"]["seconds"][-1] = 3.0
    assert sorting_report.verdict(slow, "unconstrained").endswith("Not worth it: 50% more time.")
    assert "-10.0 points of accuracy against exact, worse on the only seed; -2.0 s (-50%)" in (
        sorting_report.against_exact(bad, "unconstrained")
    )
    assert "takes 12% of the training time and its solver 25%" in sorting_report.most_that_can_be_saved(bad)


@pytest.mark.parametrize(
    ("regrets", "said"),
    [
        (
            [0.5, 0.6, 0.55],
            "45.0% less regret on average, less on every seed; the mean difference, -0.450, is more than",
        ),
        ([1.5, 0.6, 0.9], "0.0% more regret on average, less on 2 of 3 seeds; the mean difference, -0.000, is within"),
        (
            [2.0, 2.1, 2.2],
            "110.0% more regret on average, more on every seed; the mean difference, +1.100, is more than",
        ),
    ],
)
def test_verdicts_on_decisions_follow_the_data(regrets: list[float], said: str) -> None:
    runs = [{"method": "exact", "seed": i, "regret": value} for i, value in enumerate(regrets)]
    runs += [{"method": "two-stage", "seed": i, "regret": 1.0} for i in range(3)]
    assert said in decision_report.compare({"runs": runs}, "exact", "two-stage")


@pytest.mark.parametrize(
    ("regret", "seconds", "said"),
    [
        (1.1, 5.0, "Dropping the constraints from the gradient is not worth it: 50% less time, 10.0% more regret."),
        (0.9, 5.0, "Dropping the constraints from the gradient is worth it: 50% less time, 10.0% less regret."),
        (0.9, 11.0, "Dropping the constraints from the gradient is not worth it: 10% more time, 10.0% less regret."),
    ],
)
def test_the_cheap_rule_must_save_time_and_cost_nothing(regret: float, seconds: float, said: str) -> None:
    runs = [
        {"method": "exact", "seed": 0, "regret": 1.0, "seconds": 10.0},
        {"method": "unconstrained", "seed": 0, "regret": regret, "seconds": seconds},
    ]
    assert decision_report.verdict({"runs": runs}) == said
    assert decision_report.compare({"runs": runs[:1]}, "exact", "exact").endswith("the same regret.")


def test_numbers_in_words() -> None:
    assert spread([0.5], ".1%") == "50.0%"
    assert spread([1.0, 2.0], ".1f") == "1.5 (1.0 to 2.0)"
    assert consistency([0.0, 0.0], "up", "down") == "the same on every seed"
    assert consistency([1.0, -1.0, 2.0], "up", "down") == "up on 2 of 3 seeds"
    assert applications.warnings_list({}) == ""
    assert "a &lt; b (2 times)" in applications.warnings_list({"a < b": 2})


def test_without_scikit_learn_the_message_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(ValueError, match="scikit-learn"):
        load_bundled("digits")
    assert cli.main(["sorting", "--quick", "--out", str(tmp_path)]) == 2
    assert "pip install" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", NAMES)
def test_an_interrupted_command_leaves_nothing_finished(
    name: str, results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    record = record_of(results, name)
    monkeypatch.setattr(applications.store, "describe_machine", interrupted)
    with pytest.raises(KeyboardInterrupt):
        applications.save(tmp_path, name, record, {"table": [{"a": 1}]})
    assert applications.load(tmp_path, name) is None
    assert json.dumps(record)
