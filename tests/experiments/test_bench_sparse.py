"""The sparse rows of the benchmark: both sides have the same problem, and what is missing is skipped with a word."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from experiments.bench import sparse, sparse_peers
from experiments.shared.files import read_csv
from experiments.shared.trajectories import MODELS, Model, Transcription, flat, symbolic
from tests.support.experiments import command

models = pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
STEPS = 6


@models
def test_the_transcription_is_the_problem_of_the_layer(model: Model) -> None:
    initial, made = model.initial(2), Transcription(model, STEPS)
    solution = model.layer(STEPS).solve(initial)
    for i, row in enumerate(flat(solution.y)):
        assert made.equations(row, initial[i]).abs().amax() < 1e-9
        first = model.cost(initial[i])  # which the layer counts, and nobody can change
        assert made.objective(row, initial[i]) + first == pytest.approx(solution.objective[i].item(), rel=1e-12)


@models
def test_the_symbols_are_the_same_formulas(model: Model) -> None:
    casadi = pytest.importorskip("casadi")
    made, found = Transcription(model, STEPS), symbolic(model, STEPS, casadi)
    function = casadi.Function("both", [found["x"], found["p"]], [found["f"], found["g"]])
    row = torch.randn(len(made.bound), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    initial = model.initial(4)[3]
    value, rows = (np.array(one).reshape(-1) for one in function(row.numpy(), initial.numpy()))
    assert value[0] == pytest.approx(made.objective(row, initial).item())
    assert torch.allclose(torch.from_numpy(rows), made.equations(row, initial))


@models
def test_a_bound_is_active_in_the_longer_problems(model: Model) -> None:
    y = model.layer(30)(model.initial(32))
    assert (y["controls"].abs() == model.limit).any()


@models
def test_ipopt_finds_the_solution_of_the_layer(model: Model) -> None:
    pytest.importorskip("casadi")
    initial = model.initial(2)
    assert torch.allclose(sparse_peers.ipopt(model, STEPS)(initial), flat(model.layer(STEPS)(initial)), atol=1e-8)


def test_differences_are_of_fourth_order() -> None:
    initial = torch.tensor([[0.3, 0.7], [1.0, -0.4]], dtype=torch.float64)
    v = torch.tensor([[1.0, 2.0], [3.0, -1.0]], dtype=torch.float64)
    (found,) = sparse_peers.differences(lambda x: torch.stack([x[:, 0].sin(), x.prod(-1)], -1), initial, v)
    a, b = initial.unbind(-1)
    expected = torch.stack([v[:, 0] * a.cos() + v[:, 1] * b, v[:, 1] * a], -1)
    assert torch.allclose(found, expected, atol=1e-12)


def test_the_matrices_of_the_programs_are_those_of_their_functions() -> None:
    solve = pytest.importorskip("piqp") and sparse_peers.piqp()
    for made in (sparse.chain, sparse.total_variation):
        problem, x = made(30)
        assert torch.allclose(problem.ours(x), problem.others(solve, x), atol=1e-9)


def test_a_chain_keeps_its_pace_and_total_variation_its_jumps() -> None:
    problem, x = sparse.chain(30)
    apart = problem.ours(x).diff().abs()
    assert apart.amax() <= sparse.PACE + 1e-12
    assert (apart > sparse.PACE - 1e-9).any()
    problem, x = sparse.total_variation(60)
    jumps = problem.ours(x).diff().abs() > 1e-6
    assert 3 <= int(jumps.sum()) <= 20


def test_missing_peers_are_skipped_in_a_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("casadi", "pounce", "pounce.torch", "piqp"):
        monkeypatch.setitem(sys.modules, name, None)
    sparse_peers.ipopt.cache_clear()
    for only in ("cart-pole", "chain"):
        assert command(tmp_path, "bench", "--quick", "--only", only) == 0
        rows = read_csv(tmp_path / "bench" / "bench.csv")
        assert rows
        assert all(row["note"].startswith("skipped: ") and row["ratio"] == "nan" for row in rows)
