"""Two processes under ``DistributedDataParallel`` give the gradients of one."""

from __future__ import annotations

import argparse

import pytest
import torch

from experiments import cli
from experiments.applications import distributed

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="torch was built without it")


def test_two_processes_train_what_one_trains(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["distributed", "--steps", "2"]) == 0
    told = capsys.readouterr().out
    assert all(name in told for name in distributed.MODELS)
    assert "They agree within 1e-12" in told


@pytest.mark.parametrize("name", distributed.MODELS)
def test_a_part_of_the_batch_has_another_gradient(name: str) -> None:
    """So that the comparison could fail: the processes must have talked to each other."""
    whole, half = distributed.train(name, 1), distributed.train(name, 1, rank=0, size=2)
    assert distributed._gap(whole[0], half[0]) > 1e-3


def test_gradients_that_differ_fail_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = {name: distributed.train(name, 2, rank=1, size=2) for name in distributed.MODELS}
    monkeypatch.setattr(distributed, "_start_processes", lambda _: wrong)
    assert distributed.run(argparse.Namespace(steps=2)) == 1
    assert "do NOT agree" in capsys.readouterr().out


def test_no_steps_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["distributed", "--steps", "0"])
    assert "--steps: must be at least 1" in capsys.readouterr().err
