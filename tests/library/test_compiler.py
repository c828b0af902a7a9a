"""Recordings as machine code: the same results, captured tensors read anew, and a word where there is no compiler."""

from contextlib import nullcontext

import pytest
import torch

from declarative import DeclarativeNode
from declarative.kernels.library import available
from declarative.recording import cache, compiler
from declarative.recording.graph import record
from tests.support.helpers import DOUBLE, relative


def test_captured_tensors_are_read_anew(monkeypatch, capsys):
    monkeypatch.setattr(compiler, "WORTH", 1)
    weight = torch.ones(3, dtype=DOUBLE)

    def function(x):
        return (weight * x).sin() + weight.sum(), x + 0

    x = torch.randn(2, 3, dtype=DOUBLE)
    with nullcontext() if compiler.has_compiler() else pytest.warns(RuntimeWarning):
        graph = record(function, [x], compiling=True)
    for scale in (1.0, 2.5):
        weight.fill_(scale)
        for found, truth in zip(graph([x]), function(x), strict=True):
            assert relative(found, truth) < 1e-14
            assert found.data_ptr() != x.data_ptr()
    assert compiler.has_compiler() is ("compiling" in capsys.readouterr().err)


@pytest.fixture
def without_tapes(monkeypatch):
    monkeypatch.setattr(cache, "available", lambda: False)


@pytest.mark.skipif(not available(), reason="without the core there are no tapes")
def test_what_a_tape_can_do_is_not_compiled(capsys):
    """A problem at a time, or several: what is recorded of one serves any number of them."""
    options = {"solver": "newton", "start": 3}
    recorded, compiled = (
        DeclarativeNode(
            lambda x, u: (u - x).square().sum(), lambda _, u: u.square().sum() - 1, record=record, **options
        )
        for record in (True, "inductor")
    )
    for count in (5, 1):
        x = torch.randn(count, 3, dtype=DOUBLE, generator=torch.Generator().manual_seed(count))
        one, other = recorded.solve(x), compiled.solve(x)
        assert torch.equal(one.y, other.y)
        assert torch.equal(one.iterations, other.iterations)
    assert "operations" not in capsys.readouterr().err


@pytest.mark.usefixtures("without_tapes")
def test_without_a_compiler_functions_are_recorded(monkeypatch):
    monkeypatch.setattr(compiler, "has_compiler", lambda: False)
    node = DeclarativeNode(
        lambda x, u: (u - x).square().sum(),
        lambda _, u: u.square().sum() - 1,
        solver="newton",
        start=3,
        record="inductor",
    )
    x = torch.randn(2, 3, dtype=DOUBLE)
    with pytest.warns(RuntimeWarning, match="C\\+\\+ compiler"):
        y = node(x)
    assert relative(y, x / x.norm(dim=-1, keepdim=True)) < 1e-12


def test_small_graphs_are_not_worth_it():
    assert compiler.compiled(torch.fx.symbolic_trace(lambda x: x.sin()), [torch.ones(2)]) is None


def test_another_compiler_is_refused():
    with pytest.raises(TypeError, match="record"):
        DeclarativeNode(lambda x, u: (u - x).square().sum(), start=2, record="llvm")


@pytest.mark.usefixtures("without_tapes")
def test_functions_of_a_module_are_compiled_too(monkeypatch):
    monkeypatch.setattr(compiler, "has_compiler", lambda: False)  # that it is asked for one is told in a warning
    centre = torch.nn.Linear(3, 3, dtype=DOUBLE)

    class Distance(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.centre = centre

        def forward(self, x, u):
            return (u - self.centre(x)).square().sum()

    node = DeclarativeNode(Distance(), solver="newton", start=3, record="inductor")
    x = torch.randn(2, 3, dtype=DOUBLE)
    with pytest.warns(RuntimeWarning, match="C\\+\\+ compiler"):
        y = node(x)
    assert relative(y, centre(x)) < 1e-12
