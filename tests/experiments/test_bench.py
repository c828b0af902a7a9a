from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from matplotlib.figure import Figure
from matplotlib.image import imread
from torch import Tensor

from declarative import DeclarativeNode
from experiments.bench import figures, sizes, versions, warm
from experiments.bench import run as bench
from experiments.bench import timing as bench_timing
from experiments.bench.baselines import dense_node, kkt_solve, sinkhorn, sinkhorn_cholesky
from experiments.bench.layers import PLOT, transport_memory
from experiments.bench.peers import MissingPeerError, Peers
from experiments.bench.rows import Comparison, Growth, Pair, Point, Row, Run, Target, slope
from experiments.bench.timing import Side, difference, measure
from experiments.bench.version_worker import call_of
from experiments.shared.drawing import LIGHT
from experiments.shared.files import read_csv as read
from experiments.shared.inputs import Draw
from experiments.shared.machine import one_thread
from problems import EqualityQP
from tests.support.experiments import command

PEERS_AGREE = 1e-4  # qpth's gradients are good to four digits or more, those of the others to six


@pytest.fixture
def draw() -> Draw:
    return Draw(3, torch.Generator().manual_seed(0))


def gradients(function: Callable[..., Tensor], xs: Sequence[Tensor], v: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(function(*xs), xs, v)


# The baselines are right.


def test_the_dense_baseline_differentiates_objective_and_constraint(draw: Draw) -> None:
    def objective(x: Tensor, u: Tensor) -> Tensor:
        return (u - x).square().sum() + (x * u.pow(4)).sum() / 10

    def equality(x: Tensor, u: Tensor) -> Tensor:
        return (u.square().sum() - 1 - x[0] ** 2) / 2

    node = DeclarativeNode(objective, equality, solver="newton", start=4)
    x, v = (1 + draw.uniform(4)).requires_grad_(), draw.normal(4)
    baseline = dense_node(lambda x: node(x).detach(), objective, equality)
    assert difference(gradients(baseline, [x], v), gradients(node, [x], v)) < 1e-12


@pytest.mark.parametrize("gamma", [1.0, 10.0])
@pytest.mark.parametrize("shape", [(4, 4), (3, 5), (5, 3)])
def test_sinkhorn_with_cholesky_has_the_gradient_of_the_unrolled_iteration(
    draw: Draw, gamma: float, shape: tuple[int, int]
) -> None:
    M, v = draw.uniform(*shape).requires_grad_(), draw.normal(*shape)
    direct = gradients(lambda M: sinkhorn_cholesky(M, gamma, 1e-14), [M], v)
    unrolled = gradients(lambda M: sinkhorn(M, gamma, 0.0, 500)[0], [M], v)
    assert difference(direct, unrolled) < 1e-11


def test_the_kkt_baseline_is_the_quadratic_program(draw: Draw) -> None:
    xs = [x.requires_grad_() for x in (draw.definite(4), draw.normal(4), draw.normal(2, 4), draw.normal(2))]
    v = draw.normal(4)
    assert difference(gradients(kkt_solve, xs, v), gradients(EqualityQP(), xs, v)) < 1e-12


# Timing.


def test_sides_are_timed_in_turns_after_one_call_to_get_warm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_timing, "BURST", 0.0)
    calls = []
    sides = {name: Side(lambda name=name: calls.append(name) or (torch.zeros(()),)) for name in "ab"}
    measure(sides, budget=0.0, turns=3)
    assert "".join(calls) == "ab" * 4


def test_the_shortest_time_counts() -> None:
    seconds = iter([3.0, 1.0, 2.0, *[5.0] * 10**6])
    side = Side(lambda: (torch.ones(2),), clock=lambda: next(seconds))
    assert measure({"a": side}, budget=0.0)["a"].seconds == 1.0


def test_a_long_call_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_timing, "LONG", -1.0)
    calls = []
    timed = measure({"a": Side(lambda: calls.append(1) or ())})
    assert len(calls) == 1
    assert math.isfinite(timed["a"].seconds)


def test_threads_are_given_back() -> None:
    before = torch.get_num_threads()
    with one_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before


# Rows.


def side(seconds: float, result: float = 1.0) -> Callable[[], Side]:
    return lambda: Side(lambda: (torch.tensor([result, 1.0]),), clock=lambda: seconds)


def missing() -> Side:
    raise MissingPeerError("that is not installed")


def only_row(pair: Pair, **sides: Callable[[], Side]) -> Row:
    (row,) = Comparison(sides, [pair]).rows(Run(budget=0.0, turns=1))
    return row


@pytest.mark.parametrize(
    ("target", "share", "ratio", "met"),
    [
        (Target(), False, 4.0, ""),
        (Target(at_least=3), False, 4.0, "yes"),
        (Target(at_least=5), False, 4.0, "MISSED"),
        (Target(at_most=0.3), True, 0.25, "yes"),
        (Target(at_most=0.2), True, 0.25, "MISSED"),
    ],
)
def test_a_target_is_met_or_marked(target: Target, share: bool, ratio: float, met: str) -> None:
    row = only_row(Pair("claim", "ours", "other", target, share=share), ours=side(0.5), other=side(2.0))
    assert (row.ratio, row.met, row.of) == (ratio, met, "ours / other" if share else "other / ours")
    assert (row.ours_value, row.other_value) == (500.0, 2000.0)


def test_another_gradient_is_told() -> None:
    pair = Pair("claim", "ours", "other", note="a note", slower="a reason")
    assert only_row(pair, ours=side(1.0), other=side(2.0)).note == "a note"
    row = only_row(pair, ours=side(3.0, result=1.5), other=side(2.0))
    assert row.difference == 0.5
    assert row.note == "a note; a reason; NOT THE SAME to 1e-06"


def test_a_missing_peer_gives_a_word() -> None:
    row = only_row(Pair("claim", "ours", "other", Target(at_least=5)), ours=side(1.0), other=missing)
    assert (row.met, row.note) == ("skipped", "skipped: that is not installed")
    assert math.isnan(row.ratio)
    assert row.ours_value == 1000.0
    assert bench.table([row])[1][0][6] == ""
    assert "1 row(s) skipped" in bench.summary([row])


def test_only_what_is_wanted_is_built() -> None:
    pairs = [Pair("one", "ours", "other"), Pair("two", "ours", "absent")]
    sides = {"ours": side(1.0), "other": side(2.0), "absent": lambda: pytest.fail("built")}
    assert [row.claim for row in Comparison(sides, pairs).rows(Run("on", 0.0, 1))] == ["one"]
    assert not list(Comparison(sides, pairs).rows(Run("three", 0.0)))
    assert not list(transport_memory(10).rows(Run("three", 0.0)))


def test_growth_is_the_exponent_of_the_largest_sizes() -> None:
    sizes = [1, 10, 20, 40]
    points = [Point("plot", "ours", n, 5.0 if n == 1 else 0.1 * n**2) for n in sizes]
    assert slope(sizes, [point.ms for point in points]) == pytest.approx(2)
    growth = Growth("growth", "plot", "ours", Target(at_most=1.9))
    (row,) = growth.rows(Run(points=points))
    assert row.ratio == pytest.approx(2)
    assert row.met == "MISSED"
    assert not list(growth.rows(Run(points=points[:1])))


def test_every_side_has_a_line_of_its_own_in_a_plot() -> None:
    sides = [f"side {i}" for i in range(9)]
    figure = Figure()
    figures._times("a plot", [Point("a plot", side, n, 1.0 + n) for side in sides for n in (1, 2)], figure, LIGHT)
    lines = figure.axes[0].get_lines()
    assert [line.get_label() for line in lines] == [f"{side}, slope 0.6" for side in sides]
    assert len({(line.get_color(), line.get_marker(), line.get_linestyle()) for line in lines}) == len(sides)


# Another version of the project.


@pytest.mark.skipif(not (versions.ROOT / ".git").exists(), reason="versions are those of a repository")
def test_another_version_is_timed_beside_this_one() -> None:
    pairs = list(versions.studies("HEAD"))
    assert len(pairs) == 2 * len(versions.LAYERS) + len(versions.GAMMAS) + len(versions.RECORDED)
    rows = [row for study in versions.studies("HEAD") for row in study.rows(Run("SphereProjection", 0.0, 1))]
    what = ("SphereProjection, forward", "SphereProjection, with gradient")
    assert [row.claim for row in rows] == [f"{words}, n = 10, batch 10: against HEAD" for words in what]
    for row in rows:
        assert row.difference == 0  # the same code gives the same
        assert row.ours_value > 0
        assert row.other_value > 0


def test_a_commit_that_is_none_is_told() -> None:
    with pytest.raises(ValueError, match="'no-such-commit' is not a commit"):
        next(versions.studies("no-such-commit"))
    assert not list(versions.studies(""))


@pytest.mark.parametrize("name", ["SimplexProjection", "OptimalTransport, 1.0", "sphere, called", "simplex, default"])
def test_what_versions_are_asked_for_solves_its_problem(name: str) -> None:
    y = call_of(name)()
    sums = {"sphere": y.square().sum(-1)}.get(name.split(",")[0], y.flatten(1).sum(-1))
    assert (sums - 1).abs().max() < 1e-12


# The command.


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("results")
    assert command(out, "bench", "--quick") == 0
    return out / "bench"


def test_the_whole_table_is_written(quick: Path) -> None:
    rows = read(quick / "bench.csv")
    assert list(rows[0]) == [field.name for field in fields(Row)]
    claims = [row["claim"] for row in rows]
    assert len(claims) == len(set(claims))
    for word in (
        "nonlinear",
        "backward alone",
        "sphere",
        "Hessian",
        "equality QP",
        "inequalities",
        "memory",
        "QP,",
        "pendulum",
    ):
        assert any(word in claim for claim in claims)
    for row in rows:
        assert row["note"].startswith("skipped") or float(row["ours_value"]) > 0


def test_both_sides_compute_the_same(quick: Path) -> None:
    differences = {row["claim"]: float(row["difference"]) for row in read(quick / "bench.csv")}
    told = {claim: value for claim, value in differences.items() if not math.isnan(value)}
    assert len(told) > 15
    assert all(value < PEERS_AGREE for value in told.values()), told


def test_plots_and_a_piece_of_the_report_are_left(quick: Path) -> None:
    pictures = sorted(quick.glob("*.png"))
    assert len(pictures) == 5
    assert all(min(imread(path).shape[:2]) > 300 for path in pictures)
    piece = (quick / "bench.html").read_text(encoding="utf-8")
    assert piece.count("<tr>") == 1 + len(read(quick / "bench.csv"))
    assert {row["plot"] for row in read(quick / "growth.csv")} >= {PLOT, "sphere by callables"}


def test_a_part_of_it_without_any_peer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("qpth", "qpth.qp", "moreau", "cvxpylayers", "cvxpylayers.torch", "jaxopt"):
        monkeypatch.setitem(sys.modules, name, None)
    assert command(tmp_path, "bench", "--quick", "--only", "QP") == 0
    rows = read(tmp_path / "bench" / "bench.csv")
    skipped = {row["note"] for row in rows if row["ratio"] == "nan"}
    assert skipped == {f"skipped: {name} is not installed" for name in ("qpth", "moreau", "cvxpylayers")}
    assert all("QP" in row["claim"] for row in rows)
    assert "row(s) skipped for a missing library" in capsys.readouterr().out
    assert not list((tmp_path / "bench").glob("*.png"))
    with pytest.raises(MissingPeerError, match=r"jax(opt)? is not installed"):
        Peers().jaxopt(torch.ones(1, 2), torch.ones(1, 2), "gmres")


def test_a_text_that_no_claim_contains_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(tmp_path, "bench", "--quick", "--only", "no such thing") == 2
    assert "no claim contains 'no such thing'" in capsys.readouterr().err


def test_a_warm_start_is_measured_in_iterations_and_time() -> None:
    rows = list(warm.WarmStart(4, 2, 1e-4).rows(Run("", 0.0, 1)))
    assert [row.unit for row in rows] == ["iterations", "iterations", "ms", "ms"]
    assert len({row.claim for row in rows}) == 4
    assert rows[0].ours_value < rows[0].other_value
    assert all(row.difference < 1e-9 for row in rows[2:])
    assert not list(warm.WarmStart(4, 2, 1e-4).rows(Run("transport", 0.0, 1)))


@pytest.mark.parametrize("kind", sizes.CASES)
def test_sizes_are_measured(kind: str) -> None:
    forward, backward, memory = sizes.measure(kind, 4, 2)
    assert forward > 0
    assert backward > 0
    assert memory >= 0
    assert sizes.CASES[kind][2]
