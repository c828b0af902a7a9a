"""The paper's panels: what is trained, and that it is trained as it would be one by one."""

from __future__ import annotations

import io
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from declarative.theory.propositions import cosine
from experiments.paper import store
from experiments.paper.curves import COLUMNS, Curves
from experiments.paper.panels import BATCH, PANELS, Panel, as_published, find_panels
from experiments.paper.training import Settings, draw, train
from experiments.shared.rules import NAMES

TINY = Settings(repeats=2, iterations=3)
NAMES_OF_PANELS = [
    *("projection-under", "projection-over", "transport-under", "transport-over"),
    *("eigen-all", "eigen-largest", "eigen-negative", "eigen-rank2"),
]

# The panels.


def test_there_are_the_eight_panels_of_the_paper() -> None:
    assert list(PANELS) == NAMES_OF_PANELS
    assert [panel.name for panel in find_panels(["all"])] == NAMES_OF_PANELS
    assert [panel.name for panel in find_panels(["eigen-all", "projection-over"])] == ["projection-over", "eigen-all"]


@pytest.mark.parametrize("name", NAMES_OF_PANELS)
def test_targets_are_solutions(name: str) -> None:
    target = PANELS[name].target(torch.Generator().manual_seed(1))
    if name.startswith("transport"):
        assert target.shape == (BATCH, 10, 10)
        torch.testing.assert_close(target.sum(-1), torch.full((BATCH, 10), 0.1, dtype=torch.float64))
        torch.testing.assert_close(target.sum(-2), torch.full((BATCH, 10), 0.1, dtype=torch.float64))
        assert (target > 0).all()
    else:
        lengths = target.norm(dim=-2 if name.startswith("eigen") else -1)
        torch.testing.assert_close(lengths, torch.ones_like(lengths))


def test_matrices_are_what_the_panel_says() -> None:
    start = draw(PANELS["eigen-negative"], TINY)
    X = PANELS["eigen-negative"].layer_input(start.network(start.data).flatten(0, 1))
    assert (torch.linalg.eigvalsh(X) < 0).all()
    start = draw(PANELS["eigen-rank2"], TINY)
    X = PANELS["eigen-rank2"].layer_input(start.network(start.data).flatten(0, 1))
    assert (torch.linalg.matrix_rank(X) == 2).all()


# Training at once is training one by one.


def train_alone(panel: Panel, rule: str, member: int, iterations: int) -> tuple[list[float], list[Tensor]]:
    """One network of ``nn.Linear`` layers, one optimiser, two nodes: losses, and cosines of each problem."""
    start = draw(panel, Settings(repeats=2, iterations=iterations, rules=(rule,)))
    layers = []
    for weight, bias in zip(start.network.weights, start.network.biases, strict=True):
        linear = nn.Linear(*weight.shape[1:], dtype=torch.float64)
        linear.load_state_dict({"weight": weight[member].T, "bias": bias[member, 0]})
        layers += [linear, nn.ReLU()]
    network = nn.Sequential(*layers[:-1])
    optimiser = torch.optim.AdamW(network.parameters(), lr=1e-3)
    losses, angles = [], []
    for _ in range(iterations):
        x = panel.layer_input(network(start.data[member]))
        grads = []
        for gradient in ("exact", rule):
            y = panel.layer().with_gradient(gradient)(x)
            loss = panel.loss(y[None], start.target[member][None]).mean()
            grads.append(torch.autograd.grad(loss, x, retain_graph=True)[0].flatten(1))
        angles.append(cosine(*grads))
        losses.append(loss.item())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return losses, angles


@pytest.mark.parametrize("rule", ["exact", "unconstrained", "curvature"])
@pytest.mark.parametrize("name", ["projection-under", "transport-over", "eigen-all", "eigen-rank2"])
def test_ensemble_trains_as_its_members_alone(name: str, rule: str) -> None:
    curves = train(PANELS[name], Settings(repeats=2, iterations=8)).curves.of(rule)
    losses, angles = train_alone(PANELS[name], rule, 1, 8)
    np.testing.assert_allclose(curves.loss[0, 1], losses, rtol=1e-9)
    np.testing.assert_allclose(curves.cosine_mean[0, 1], [float(a.mean()) for a in angles], rtol=1e-7)
    np.testing.assert_allclose(curves.cosine_min[0, 1], [float(a.min()) for a in angles], rtol=1e-6)
    np.testing.assert_allclose(curves.cosine_positive[0, 1], [float((a > 0).double().mean()) for a in angles])


def test_losses_are_those_of_the_paper() -> None:
    y, target = (nn.functional.normalize(torch.randn(1, BATCH, 10, 3), dim=-2) for _ in range(2))
    overlap = (y * target).sum(-2).abs()
    torch.testing.assert_close(PANELS["eigen-all"].loss(y, target).mean(), 1 - overlap.mean())
    torch.testing.assert_close(
        PANELS["transport-over"].loss(y, target).mean(), (y - target).norm(dim=(-2, -1)).square().mean()
    )


def test_losses_and_targets_of_the_published_code() -> None:
    y, target = (torch.rand(2, BATCH, 10, 10, dtype=torch.float64) for _ in range(2))
    transport = as_published(PANELS["transport-over"])
    assert transport.target is PANELS["transport-over"].target
    torch.testing.assert_close(
        transport.loss(y, target), torch.stack([(a - b).norm() for a, b in zip(y, target, strict=True)])
    )
    projection = as_published(PANELS["projection-under"])
    assert (projection.target(torch.Generator().manual_seed(1)) > 0).all()
    torch.testing.assert_close(projection.loss(y, target)[1], nn.functional.mse_loss(y[1], target[1]))


def test_published_eigenvectors_are_those_that_eigh_finds_in_an_unsymmetric_matrix() -> None:
    X = torch.rand(BATCH, 10, 10, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    vectors = as_published(PANELS["eigen-all"]).target(torch.Generator().manual_seed(1))
    torch.testing.assert_close(vectors, torch.linalg.eigh(X).eigenvectors)
    rank = as_published(PANELS["eigen-rank2"])
    U = torch.randn(3, 20, dtype=torch.float64)
    assert torch.linalg.matrix_rank(rank.layer_input(U)).tolist() == [1] * 3
    assert torch.linalg.matrix_rank(PANELS["eigen-rank2"].layer_input(U)).tolist() == [2] * 3
    torch.testing.assert_close(rank.target(torch.Generator().manual_seed(1)), vectors[..., -1:])


def test_the_published_version_is_a_setting() -> None:
    text, code = (train(PANELS["transport-over"], replace(TINY, published=one)).curves.loss for one in (False, True))
    np.testing.assert_allclose(code[..., 0] ** 2, BATCH * text[..., 0])  # at the start the plans are the same
    assert (code[..., 1:] != text[..., 1:]).all()


def test_rules_share_their_start_and_repeats_do_not() -> None:
    loss = train(PANELS["projection-under"], Settings(repeats=3, iterations=1)).curves.loss[..., 0]
    assert loss.shape == (len(NAMES), 3)
    assert (loss == loss[0]).all()
    assert len(set(loss[0])) == 3


def test_same_seed_same_bits() -> None:
    panel = PANELS["eigen-largest"]
    first, again = (train(panel, TINY).curves.to_csv() for _ in range(2))
    other = train(panel, Settings(repeats=2, iterations=3, seed=1)).curves
    assert first == again
    assert not (other.loss == Curves.from_csv(io.StringIO(first)).loss).any()


def test_a_repeat_does_not_depend_on_what_runs_beside_it() -> None:
    both = train(PANELS["eigen-rank2"], TINY).curves
    alone = train(PANELS["eigen-rank2"], Settings(repeats=1, iterations=3, rules=("unconstrained",))).curves
    np.testing.assert_allclose(alone.loss[0, 0], both.of("unconstrained").loss[0, 0], rtol=1e-9)


def test_adaptive_is_cheap_where_that_is_safe_and_exact_where_not() -> None:
    bad = train(PANELS["eigen-rank2"], TINY)
    good = train(PANELS["eigen-negative"], TINY)
    assert bad.cheap_share == 0
    assert good.cheap_share == pytest.approx(2 / 3)  # the first of three steps is a probe
    assert (bad.curves.of("adaptive").loss == bad.curves.of("exact").loss).all()
    assert [len(history) for history in good.probes] == [1, 1]


def test_single_precision_has_the_same_data() -> None:
    double, single = (train(PANELS["transport-under"], Settings(1, 2, dtype=dtype)).curves for dtype in store.DTYPES)
    np.testing.assert_allclose(double.loss, single.loss, rtol=1e-3)
    assert (double.loss != single.loss).all()


# Tables.


def test_csv_comes_back_bit_for_bit() -> None:
    curves = train(PANELS["projection-over"], TINY).curves
    text = curves.to_csv()
    assert tuple(text.splitlines()[0].split(",")) == COLUMNS
    back = Curves.from_csv(io.StringIO(text))
    assert back.rules == curves.rules
    assert all((getattr(back, name) == getattr(curves, name)).all() for name in COLUMNS[4:])
    with pytest.raises(ValueError, match="has 24 rows, but this has 23"):
        Curves.from_csv(text.splitlines()[:-1])
    with pytest.raises(ValueError, match="columns"):
        Curves.from_csv(["a,b", "1,2"])
