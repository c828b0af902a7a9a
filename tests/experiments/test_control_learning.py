"""Learning from plans: the systems, the drives, the gradients, and what is said."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch.func import jacrev

from experiments.applications.control import findings
from experiments.applications.control.data import END, PRICE, SYSTEMS, UPRIGHT, System
from experiments.applications.control.driving import drive, fallen
from experiments.applications.control.training import CHEAP, DIFFERENCES, EXACT, QUICK, REGULATOR, Learner, Task

each_system = pytest.mark.parametrize("system", SYSTEMS.values(), ids=SYSTEMS)
DOUBLE = torch.float64


@pytest.fixture(scope="module")
def task() -> Task:
    return Task.make("pendulum", 0, dataclasses.replace(QUICK, count=3))


@each_system
def test_the_linear_system_is_the_tangent_at_rest(system: System) -> None:
    size, length = len(system.weights), torch.tensor(system.length, dtype=DOUBLE)
    x, u = torch.linspace(-0.3, 0.4, size, dtype=DOUBLE), torch.tensor([0.7], dtype=DOUBLE)
    A, B = jacrev(system.next, argnums=(0, 1))(torch.zeros(size, dtype=DOUBLE), torch.zeros(1, dtype=DOUBLE), length)
    torch.testing.assert_close(system.linear(x, u, length), A @ x + B @ u)
    assert torch.equal(system.next(0 * x, 0 * u, length), 0 * x)
    assert (system.next(x, u, length) - system.linear(x, u, length)).abs().max() > 1e-5


def test_the_regulator_is_that_of_the_riccati_recursion() -> None:
    """And without a limit and for small angles, the planner is the regulator."""
    system, horizon = SYSTEMS["pendulum"], 6
    truth = torch.tensor([*system.weights, system.length], dtype=DOUBLE)
    rest = torch.zeros(2, dtype=DOUBLE), torch.zeros(1, dtype=DOUBLE)
    A, B = jacrev(system.next, argnums=(0, 1))(*rest, truth[-1])
    Q = torch.diag(truth[:-1])
    P = END * Q
    for _ in range(horizon):
        K = torch.linalg.solve(PRICE * torch.eye(1, dtype=DOUBLE) + B.T @ P @ B, B.T @ P @ A)
        P = Q + A.T @ P @ (A - B @ K)
    x = torch.tensor([[1e-4, -2e-4]], dtype=DOUBLE)
    for layer in (system.regulator(horizon), system.planner(horizon)):
        torch.testing.assert_close(layer(x, truth)["controls"][:, 0], -x @ K.T, rtol=1e-6, atol=0)


def test_what_is_seen_can_be_done_and_is_held_out_honestly(task: Task) -> None:
    for x in task.starts.values():
        plan = task.planner(x, task.truth)
        assert (plan["states"][:, -1, task.system.angle].abs() < UPRIGHT).all()
        assert (plan["controls"].abs() <= task.system.limit).all()
    assert not torch.isin(task.starts["train"], task.starts["test"]).any()
    assert task.apart(task.planner, task.truth, "test") == 0
    noise = task.apart(task.planner, task.truth, "train").sqrt().item()
    assert noise == pytest.approx(task.settings.noise, rel=0.3)


def test_differences_and_the_exact_gradient_agree_and_others_do_not(task: Task) -> None:
    gradients = {}
    for method in (EXACT, DIFFERENCES, CHEAP, REGULATOR):
        learner = Learner(method, task)
        learner.logarithms.grad = None
        learner._loss().backward()
        gradients[method] = learner.logarithms.grad
    torch.testing.assert_close(gradients[DIFFERENCES], gradients[EXACT], rtol=1e-5, atol=1e-9)
    assert gradients[CHEAP] is not None
    assert gradients[CHEAP][-1] == 0  # the length is in the constraints alone
    assert gradients[CHEAP][:-1].abs().max() > 0
    assert not torch.allclose(gradients[REGULATOR], gradients[EXACT], rtol=1e-2)


def test_training_leads_to_the_truth(task: Task) -> None:
    clean = task.system.scaled(task.planner(task.starts["train"], task.truth)).detach()
    learner = Learner(EXACT, dataclasses.replace(task, seen=task.seen | {"train": clean}))
    for _ in range(30):
        learner.course.advance(1)
    losses = learner.course.curve["held_out"]
    assert losses[-1] < 0.05 * losses[0]
    assert learner.course.steps == 30


def test_a_drive_follows_the_true_system_within_the_limit(task: Task) -> None:
    system, x = task.system, task.starts["test"]
    done = drive(system, task.planner, task.guess, task.truth, x, 3)
    assert torch.equal(done.states[:, 0], x)
    planned = task.planner(x, task.guess)["controls"]
    torch.testing.assert_close(done.controls, planned[:, :3])  # looking but every fifth step
    seeing = drive(dataclasses.replace(system, blind=1), task.planner, task.guess, task.truth, x, 3)
    torch.testing.assert_close(seeing.controls[:, 0], planned[:, 0])
    again = task.planner(seeing.states[:, 1], task.guess)["controls"][:, 0]
    torch.testing.assert_close(seeing.controls[:, 1], again)
    for t in range(3):
        after = system.next(done.states[:, t], done.controls[:, t], task.truth[-1])
        assert torch.equal(done.states[:, t + 1], after)
    costs = (task.truth[:-1] * done.states.square()).sum((-2, -1)) + PRICE * done.controls.square().sum((-2, -1))
    torch.testing.assert_close(done.costs, costs)
    later = drive(system, task.planner, task.guess, task.truth, x, 7)
    again = task.planner(later.states[:, 5], task.guess)["controls"][:, :2]
    torch.testing.assert_close(later.controls[:, 5:], again)
    hard = drive(system, task.regulator, 100 * task.truth, task.truth, torch.tensor([[1.2, 3.0]], dtype=DOUBLE), 12)
    assert hard.controls.abs().max() == system.limit
    assert fallen(system, hard) == 1
    assert fallen(system, done) == 0


def test_what_is_said_follows_the_data() -> None:
    def run(method: str, cost: float, length: float, seconds: float) -> dict[str, Any]:
        same = {"system": "pendulum", "seed": 0, "at_limit": 0.25, "fallen": 0.0, "weights_wrong": 0.1}
        return same | {
            "method": method,
            "cost": cost,
            "length_wrong": length,
            "plans_apart": length,
            "seconds": seconds,
        }

    runs = [
        run("before", 1.5, 0.4, 0.0),
        run("before, length told", 1.02, 0.0, 0.0),
        run("before, weights told", 1.45, 0.4, 0.0),
        run(EXACT, 1.01, 0.02, 2.0),
        run(DIFFERENCES, 1.01, 0.03, 14.0),
        run(CHEAP, 1.4, 0.4, 2.0),
        run(REGULATOR, 1.2, 0.3, 0.5),
        run("LQR, told", 1.0, 0.0, 0.0),
    ]
    record = {"settings": {"systems": ["pendulum"]}, "runs": runs}
    said = findings.sentences(record)
    assert (
        "limit in 25% of the steps that were seen, training brings the closed-loop cost from 1.500 to 1.010" in said[0]
    )
    assert "the length alone still wrong, the closed-loop cost is 1.450 times the expert's; with the" in said[1]
    assert said[1].endswith("weights alone, 1.020.")
    assert "take 7.0 times as long" in said[2]
    assert "differ by at most 0.01" in said[2]
    assert "before against exact: closed-loop cost +0.490, higher on the only seed" in said[3]
    assert "LQR against exact: closed-loop cost +0.190, higher on the only seed; length wrong by 0.30" in said[4]
    assert said[-1].endswith("moved its logarithm by 0.")
    assert [line[1] for line in findings.rows(record)] == list(findings.LINES)
