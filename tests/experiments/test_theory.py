"""The theory experiment: it succeeds, it writes what it promises, and it can fail."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from experiments.shared.files import read_csv
from experiments.theory import extensions, figures
from experiments.theory import simulation as theory
from tests.support.experiments import command


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part of the grid, so that several runs are affordable."""
    monkeypatch.setattr(theory, "LINEAR", ((4, 1), (6, 3)))
    monkeypatch.setattr(theory, "CURVED", ((5, 2),))
    monkeypatch.setattr(theory, "MULTIPLIERS", (-2.0, 2.0, 8.0))
    monkeypatch.setattr(theory, "MIRRORED", (4.0,))
    monkeypatch.setattr(theory, "CONDITIONS", (1.0, 100.0))


@pytest.mark.usefixtures("small")
def test_all_predictions_hold_and_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(tmp_path, "theory", "--samples", "2000") == 0
    assert "31 of 31 predictions hold" in capsys.readouterr().out
    rows = read_csv(tmp_path / "theory" / "theory_expectations.csv")
    assert {row["proposition"] for row in rows} >= {"2.3", "2.4", "2.5", "2.6", "extension", "2.6, H_hat < 0"}
    ascending = [row for row in rows if float(row["case"]) < 0]
    assert len(ascending) == 1
    assert float(ascending[0]["mean"]) < 0
    for name in ("theory_worst_case", "theory_normalisation", "theory_m_minus_p"):
        assert (tmp_path / "theory" / f"{name}.png").read_bytes().startswith(b"\x89PNG")


@pytest.fixture
def tiny(small: None, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: ARG001
    """One estimate of each kind and no plots, for the runs that are to fail."""
    monkeypatch.setattr(theory, "LINEAR", ((4, 1),))
    monkeypatch.setattr(theory, "CURVED", ())
    monkeypatch.setattr(theory, "MULTIPLIERS", (8.0,))
    monkeypatch.setattr(theory, "MIRRORED", ())
    monkeypatch.setattr(figures, "pictures", lambda *_: [])


@pytest.mark.usefixtures("tiny")
def test_the_part_that_is_to_fail_succeeds_by_itself(tmp_path: Path) -> None:
    assert command(tmp_path, "theory", "--samples", "2000") == 0


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("name", ["expected_linear", "expected_normalised", "expected_curvature"])
def test_a_wrong_prediction_fails_the_run(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    right = getattr(theory, name)
    monkeypatch.setattr(theory, name, lambda *arguments: right(*arguments) + 1)
    assert command(tmp_path, "theory", "--samples", "2000") == 1
    assert "NO" in capsys.readouterr().out


@pytest.mark.usefixtures("tiny")
def test_a_wrong_bound_fails_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(theory, "sharp_upper_bound", lambda hessian: torch.ones(hessian.shape[0], dtype=hessian.dtype))
    assert command(tmp_path, "theory", "--samples", "1000") == 1


@pytest.mark.usefixtures("tiny")
def test_a_wrong_sign_fails_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = theory.normalised_case
    monkeypatch.setattr(theory, "normalised_case", lambda *arguments: -right(*arguments))
    assert command(tmp_path, "theory", "--samples", "1000") == 1


def test_the_extensions_are_inside_by_themselves() -> None:
    assert all(row.inside for row in extensions.simulate_extensions(1000, 0, theory.LEVEL))


@pytest.mark.parametrize("name", [name for name in vars(extensions) if name.startswith(("expected_", "weighted_"))])
def test_a_wrong_extension_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = getattr(extensions, name)

    def wrong(*arguments: Tensor) -> Any:
        value = right(*arguments)
        return tuple(0.5 * bound for bound in value) if isinstance(value, tuple) else 0.7 * value

    monkeypatch.setattr(extensions, name, wrong)
    assert not all(row.inside for row in extensions.simulate_extensions(1000, 0, theory.LEVEL))


def test_extensions_are_about_what_they_say() -> None:
    posed = {one.result: one for one in extensions.poses(torch.Generator().manual_seed(0), 6, 3)}
    active = posed[extensions.ACTIVE].derivatives
    assert active.active[0].tolist() == [True] * 3 + [False] * 3
    assert (active.inequality_multipliers[0, :3] > 0.4).all()
    weighted = posed[extensions.WEIGHTED].derivatives
    torch.testing.assert_close(weighted.B[0].shape, torch.Size((6, 8)))
    singular = posed[extensions.SINGULAR].derivatives
    assert int((torch.linalg.eigvalsh(singular.H[0]).abs() < 1e-9).sum()) == 2
    found = extensions.simulate_extensions(1000, 0, theory.LEVEL)
    assert {(row.result, row.quantity) for row in found} == {
        (result, quantity)
        for result in (extensions.ACTIVE, extensions.WEIGHTED, extensions.SINGULAR)
        for quantity in ("E[g'g_hat]", "worst case")
    }
    assert any(row.found > 1.01 for row in found if row.quantity == "worst case")


def test_intervals_share_one_level() -> None:
    """With twenty times as many estimates each interval is wider, and one estimate has the plain 99.9 % interval."""
    row = theory.Estimate("2.3", "unconstrained", 4, 1, 1.0, float("nan"), 0, 3.0, 3.0, 1.0)
    (alone,) = theory.judge([row])
    many = theory.judge([row] * 20)
    assert alone.half_width == pytest.approx(3.2905, abs=1e-4)
    assert many[0].half_width == pytest.approx(4.0556, abs=1e-4)


def test_posed_problems_have_the_derivatives_that_were_chosen() -> None:
    y, slope = torch.randn(4, dtype=torch.float64), torch.randn(2, 4, dtype=torch.float64)
    multipliers = torch.tensor([0.5, -2.0], dtype=torch.float64)
    basis = torch.randn(3, 4, 4, dtype=torch.float64)
    hessian_hat, *curvature = basis @ basis.mT
    stacked: Tensor = torch.stack(curvature)
    posed = theory.Posed.at(y, multipliers, hessian_hat, stacked, slope)
    d = posed.derivatives
    torch.testing.assert_close(d.H_hat[0], hessian_hat)
    torch.testing.assert_close(d.H[0], hessian_hat - torch.einsum("p,pij->ij", multipliers, stacked))
    torch.testing.assert_close(d.A[0], stacked @ y + slope)
    torch.testing.assert_close(d.multipliers[0], multipliers)
    torch.testing.assert_close(d.B[0], torch.eye(4, dtype=torch.float64))


def test_too_few_samples_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(tmp_path, "theory", "--samples", "10") == 2
    assert "--samples must be at least 1000" in capsys.readouterr().err
