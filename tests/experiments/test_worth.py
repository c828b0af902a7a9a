"""The map of what approximations are worth: formulas, methods and their limits, equal time, and words that follow."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from declarative import Rule
from experiments import worth
from experiments.report import applications
from experiments.shared.files import read_csv
from experiments.shared.inputs import normal
from experiments.worth import findings, training
from experiments.worth.families import Family, families, transport
from experiments.worth.methods import METHODS, FewSteps, LastSteps, LastSweeps, make_method
from experiments.worth.training import REGIMES, Learner, Settings
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
    iterations = ["3 CG steps", "one step", "5 steps"]
    assert left["sphere"] == iterations  # a formula
    assert left["softmax"] == ["curvature", *iterations]
    assert left["transport"] == left["QP"] == left["control"] == ["curvature"]
    assert left["eigenvector"] == left["rotation"] == ["3 CG steps"]  # H is not definite


def test_every_method_gets_the_time_of_the_exact_one() -> None:
    family, settings = SMALL["softmax"], Settings(extent="smallest", steps=20, seconds=5.0, batch=2)
    learners = {
        name: Learner(family, make_method(name, family), 2, 0, 2) for name in ("exact", "unconstrained", "identity")
    }
    losses = training.in_turns(learners, settings)
    exact = learners["exact"]
    assert exact.course.steps == 20
    for learner in learners.values():
        assert learner.course.clock.total >= exact.course.clock.total
        assert learner.course.clock.total < 2 * exact.course.clock.total
    assert {len(curve) for curve in losses.values()} == {training.LOOKS + 1}
    assert len({curve[0] for curve in losses.values()}) == 1  # from the same weights
    assert losses["exact"][-1] < losses["exact"][0]
    assert (torch.cat(exact.cosines) > 0.999999).all()
    assert [one.shape for one in learners["identity"].cosines] == [(2,)] * (training.LOOKS + 1)


# What is said.


def record_of(**ratios: float) -> dict[str, Any]:
    """One family and two seeds, on which a method ends at a multiple of the exact loss."""
    runs = [
        {
            "family": "cone",
            "size": "n = 2",
            "regime": regime,
            "seed": seed,
            "method": method,
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
            "curve": {"look": [0, 1], "loss": [1.0, ratio * (seed + 1)]},
        }
        for regime in REGIMES
        for seed in range(2)
        for method, ratio in {"exact": 1.0, **ratios}.items()
    ]
    return {"runs": runs}


def test_words_follow_the_data() -> None:
    record = record_of(unconstrained=0.5, identity=20.0)
    said = findings.sentences(record)
    assert said[0].startswith("Dropping the constraints is worth it whatever the targets are: cone (n = 2). With ")
    assert "takes 40% to 40% of a step" in said[1]
    assert "saves 20% (cone, n = 2) to 20%" in said[1]
    assert said[2].endswith("for: none.")
    assert said[3].endswith("on every seed: unconstrained 1 and 0 of 1; identity 0 and 1 of 1.")
    assert len(said) == 3 + len(REGIMES)
    assert findings.rows(record) == [
        ["cone, n = 2", "unconstrained", "2.00 x", "1.25 x", "0.50", "0.90", "0.99", "0.50", "0.50"],
        ["cone, n = 2", "identity", "2.00 x", "1.25 x", "0.50", "0.90", "0.99", "> 10", "> 10"],
    ]
    assert findings.in_words(0.01) == "< 0.1"


def test_one_bad_seed_is_no_success() -> None:
    record = record_of(unconstrained=0.5)
    record["runs"][1]["curve"]["loss"][-1] = 0.999
    assert findings.sentences(record)[3].endswith("unconstrained 0 and 0 of 1.")
    record["runs"][1]["curve"]["loss"][-1] = 3.0
    assert findings.rows(record)[0][-2:] == ["1.22 (0.50 to 3.00)", "0.50"]
    said = findings.sentences(record)
    assert said[3].endswith("unconstrained 0 and 0 of 1.")
    assert f"{CANNOT} alone: cone (n = 2). In neither case: none." in said[0]


def test_the_command_leaves_a_map(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    some = [SMALL["sphere"], SMALL["softmax"]]
    for module in (worth, training):
        monkeypatch.setattr(module, "families", lambda _: some)
    assert command(tmp_path, "worth", "--quick") == 0
    assert (tmp_path / "worth" / "worth.png").read_bytes().startswith(b"\x89PNG")
    rows = read_csv(tmp_path / "worth" / "worth.csv")
    assert len(rows) == 2 * len(REGIMES) * (4 + 3)  # seeds, regimes, methods
    assert {row["method"] for row in rows} == set(METHODS[:4])
    assert all(float(row["last_loss"]) > 0 for row in rows)
    monkeypatch.setattr(applications, "LONG", 1)
    assert command(tmp_path, "report") == 0
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert '<section id="worth">' in page
    assert page.index("<figcaption>Where is it worth") < page.index("lines of the table</summary>")  # which is folded
    assert "Why an approximation can be better than the truth" in page
