"""The bundled experiments: what is trained, that it is trained as it would be one by one, and the command line."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from declarative.theory.propositions import cosine
from experiments import cli
from experiments.paper import run, store, training
from experiments.paper.curves import COLUMNS, Curves
from experiments.paper.panels import BATCH, PANELS, Panel, find_panels
from experiments.paper.progress import Progress
from experiments.paper.rules import NAMES
from experiments.paper.training import Settings, draw, train
from experiments.theory import simulation as theory

TINY = Settings(repeats=2, iterations=3)
WORDS = ["--repeats", "2", "--iterations", "3"]
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


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    store.write(tmp_path / "a", "old")
    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        store.write(tmp_path / "a", "new")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_text() == "old"


# The command line.


def command(out: Path, *words: str) -> int:
    return cli.main([*words, "--out", str(out)])


def test_run_writes_what_it_promises(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(tmp_path, "run", "projection-under", "eigen-all", *WORDS) == 0
    for name in ("projection-under", "eigen-all"):
        assert (tmp_path / name / "figure.png").read_bytes().startswith(b"\x89PNG")
        assert "</svg>" in (tmp_path / name / "figure.svg").read_text(encoding="utf-8")
        with open(tmp_path / name / "curves.csv", encoding="utf-8") as file:
            assert Curves.from_csv(file).loss.shape == (4, 2, 3)
    with open(tmp_path / "summary.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [(row["panel"], row["rule"]) for row in rows] == [
        (panel, rule) for panel in ("projection-under", "eigen-all") for rule in NAMES
    ]
    assert all(float(row["final_loss_min"]) <= float(row["final_loss_mean"]) for row in rows)
    about = json.loads((tmp_path / "run.json").read_text(encoding="utf-8"))
    assert about["versions"]["torch"] == torch.__version__
    assert about["panels"]["float64"]["eigen-all"]["settings"]["seed"] == 0
    assert {"date", "machine"} <= about.keys()
    told = capsys.readouterr().err.splitlines()
    assert told[0] == "[1/2] projection-under float64 ..."
    assert "final loss exact" in told[1]
    assert command(tmp_path, "list") == 0
    assert "finished in float64" in capsys.readouterr().out


def test_finished_panels_are_kept_unless_forced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["run", "eigen-rank2", *WORDS]
    assert command(tmp_path, *words) == 0
    before = (tmp_path / "eigen-rank2" / "panel.json").stat().st_mtime_ns
    assert command(tmp_path, *words) == 0
    assert "kept (--force redoes it)" in capsys.readouterr().out
    assert (tmp_path / "eigen-rank2" / "panel.json").stat().st_mtime_ns == before
    assert command(tmp_path, *words, "--seed", "7") == 2
    assert "seed 0 instead of 7: use --force" in capsys.readouterr().err
    assert command(tmp_path, *words, "--seed", "7", "--force") == 0
    assert store.settings_of(tmp_path, "float64", "eigen-rank2")["seed"] == 7


def test_interruption_keeps_what_is_finished_and_says_how_to_continue(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["projection-under", "projection-over"]

    def train_once(panel: Panel, *rest: object) -> training.Outcome:
        if panel.name == names[1]:
            raise KeyboardInterrupt
        return train(panel, *rest)

    with monkeypatch.context() as patched:
        patched.setattr(run, "train", train_once)
        assert command(tmp_path, "run", *names, *WORDS) == 130
    told = capsys.readouterr().err
    assert f"python -m experiments run projection-under projection-over {' '.join(WORDS)} --out" in told
    assert not (tmp_path / names[1]).exists()
    assert not list(tmp_path.rglob(".*"))
    assert (tmp_path / names[0] / "panel.json").exists()
    assert command(tmp_path, "run", *names, *WORDS) == 0
    assert "[1/1] projection-over" in capsys.readouterr().err


def test_interruption_while_saving_leaves_an_unfinished_panel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> bytes:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(store.figures, "render", interrupted)
        assert command(tmp_path, "run", "projection-under", *WORDS) == 130
    assert store.settings_of(tmp_path, "float64", "projection-under") is None
    assert command(tmp_path, "run", "projection-under", *WORDS) == 0
    assert store.settings_of(tmp_path, "float64", "projection-under") is not None


def test_wrong_words_are_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(tmp_path, "run", "eigen", *WORDS) == 2
    told = capsys.readouterr().err
    assert all(name in told for name in ("'eigen'", *NAMES_OF_PANELS))
    with pytest.raises(SystemExit):
        command(tmp_path, "run", "all", "--repeats", "0")
    assert "must be at least 1" in capsys.readouterr().err
    assert command(tmp_path, "run", "all", "--device", "nowhere") == 2
    assert "--device nowhere cannot be used" in capsys.readouterr().err
    assert command(tmp_path / "nothing", "report") == 2
    assert "run all" in capsys.readouterr().err


def test_single_precision_is_kept_beside(tmp_path: Path) -> None:
    assert command(tmp_path, "run", "projection-under", *WORDS, "--dtype", "both", "--rules", "exact", "curvature") == 0
    assert (tmp_path / "projection-under" / "curves.csv").exists()
    assert (tmp_path / "float32" / "projection-under" / "curves.csv").exists()
    assert (tmp_path / "float32" / "summary.csv").exists()
    assert store.load(tmp_path, "float32")["projection-under"].curves.rules == ("exact", "curvature")


def test_other_commands_are_passed_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    called = []
    monkeypatch.setattr(theory, "run", lambda *words: called.append(words) or 0)
    assert command(tmp_path, "theory", "--samples", "1234") == 0
    assert called == [(tmp_path / "theory", 1234, 0)]
    assert cli._module("no_such_part") is None
    monkeypatch.setattr(cli, "_module", lambda _: None)
    for name in ("compare", "bench"):
        assert command(tmp_path, name) == 2
        assert f"'{name}' is not available" in capsys.readouterr().err


# Progress.


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_a_bar_with_the_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("experiments.paper.progress.REFRESH", 0.0)
    progress = Progress(2, 4, Terminal())
    progress.start("first")
    progress.tick()
    assert "[1/2] first" in progress.stream.getvalue()
    assert progress.line(elapsed=10.0).endswith("25 %  10 s, 70 s left")
    progress.finish("done")
    assert progress.stream.getvalue().endswith("\r\x1b[K[1/2] first: done\n")


def test_elsewhere_there_are_plain_lines() -> None:
    progress = Progress(1, 4, io.StringIO())
    progress.start("first")
    progress.tick()
    progress.finish("done")
    progress.stop()
    assert progress.stream.getvalue() == "[1/1] first ...\n[1/1] first: done\n"
