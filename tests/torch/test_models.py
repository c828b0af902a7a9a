"""Layers in models: shapes without values, tracers and compilers, saved weights, the workers of a loader."""

from __future__ import annotations

import contextlib
import copy
import io
import multiprocessing
import shutil
import subprocess
import sys

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.data import DataLoader, Dataset

from declarative import DeclarativeNode
from tests.support.helpers import gradients, half_square, normalise, relative
from tests.support.layers import LAYERS, each_ready_made, each_solver, loss, near, sphere
from tests.support.problem_table import TABLE, Case

# Tensors without values: shapes, for those who plan a model


WITHOUT_VALUES = [(case, kind) for kind in ("meta", "fake") for case in LAYERS]


@pytest.mark.parametrize(("case", "kind"), WITHOUT_VALUES, ids=lambda one: getattr(one, "name", one))
def test_shapes_without_values(case: Case, kind: str):
    xs = case.inputs(torch.float32)
    expected = case.layer(*xs)
    plain = [x.detach() for x in xs]
    mode = FakeTensorMode() if kind == "fake" else contextlib.nullcontext()
    with mode:
        blank = [(x.to("meta") if kind == "meta" else mode.from_tensor(x)).requires_grad_() for x in plain]
        y = case.layer(*blank)
        grads = torch.autograd.grad(y.sum(), blank)
    assert (y.shape, y.dtype) == (expected.shape, expected.dtype)
    assert [g.shape for g in grads] == [x.shape for x in xs]
    if kind == "meta":
        for method in (case.layer.solve, case.layer.derivatives):
            with pytest.raises(ValueError, match="no values"):
                method(*blank)


STARTS = {
    "a tensor": torch.ones(3),
    "several": [torch.ones(3), torch.zeros(3)],
    "nested": {"b": torch.ones(2), "a": ()},
}


@pytest.mark.parametrize("start", STARTS.values(), ids=STARTS)
def test_of_a_start_with_values_only_the_shape_is_asked_without_them(start):
    nested = isinstance(start, dict)
    node = DeclarativeNode(
        (lambda x, u: (u["b"] - x[:2]).square().sum() + (u["a"] - x[2]).square()) if nested else half_square,
        start=start,
    )
    with FakeTensorMode() as mode:
        x = mode.from_tensor(torch.randn(4, 3)).requires_grad_()
        y = node(x)
        whole = y["b"] if nested else y
        (g,) = torch.autograd.grad(whole.sum(), x)
    assert (whole.shape, whole.dtype, g.shape) == ((4, 2) if nested else (4, 3), torch.float32, (4, 3))


def test_a_formula_that_looks_at_values_says_so():
    node = DeclarativeNode(half_square, solver=lambda x: x if x.sum() > 0 else x.clone())
    with pytest.raises(ValueError, match="tell the node the shape of u"):
        node(torch.empty(2, 3, device="meta"))
    known = DeclarativeNode(half_square, solver=lambda x: x if x.sum() > 0 else x.clone(), start=3)
    assert known(torch.empty(2, 3, device="meta")).shape == (2, 3)


# Tracers, which write operations down: what a solver does depends on values, so they are refused and never believed


TRACERS = {
    "torch.export": lambda model, xs: torch.export.export(model, xs),
    "torch.jit.trace": lambda model, xs: torch.jit.trace(model, xs),
    "make_fx": lambda model, xs: make_fx(model)(*xs),
    "make_fx, fake": lambda model, xs: make_fx(model, tracing_mode="fake")(*xs),
    "make_fx, symbolic": lambda model, xs: make_fx(model, tracing_mode="symbolic")(*xs),
    "torch.fx.symbolic_trace": lambda model, _: torch.fx.symbolic_trace(model),
}


@each_solver
@pytest.mark.filterwarnings("ignore:`torch.jit.*:DeprecationWarning")
@pytest.mark.parametrize("tracer", TRACERS)
def test_a_tracer_is_refused_with_the_remedy(tracer: str, solver):
    model = nn.Sequential(sphere(solver))
    name = tracer.split(",")[0]
    with pytest.raises(ValueError, match=f"{name} cannot take in a node.*the parts of the model before and after"):
        TRACERS[tracer](model, (torch.randn(2, 3),))


@each_ready_made
def test_the_export_of_any_layer_is_refused(case: Case):
    with pytest.raises(ValueError, match=r"torch\.export cannot take in a node"):
        torch.export.export(nn.Sequential(case.layer) if len(case.inputs()) == 1 else case.layer, case.inputs())


@pytest.mark.parametrize("method", ["solve", "derivatives", "descent"])
def test_the_other_methods_cannot_be_traced_either(method: str):
    x = torch.randn(2, 3)
    xs = (x, x) if method == "descent" else (x,)
    with pytest.raises(ValueError, match="make_fx cannot take in a node"):
        make_fx(lambda *xs: vars(getattr(sphere(), method)(*xs)))(*xs)


def test_a_compiler_that_wants_one_graph_is_told_why_there_is_none():
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported, match="what a solver does depends on values"):
        torch.compile(nn.Sequential(sphere()), fullgraph=True, backend="eager")(torch.randn(2, 3))
    with pytest.raises(RuntimeError, match="no compiled frames"):
        torch.compile(sphere(), fullgraph=True, backend="eager")(torch.randn(2, 3))


LATE = """
import sys, torch
from declarative import DeclarativeNode
assert not any(name.partition(".")[0] == "sympy" or name.startswith("torch._dynamo") for name in sys.modules)
node = DeclarativeNode(lambda x, u: (u - x).square().sum(), lambda x, u: u.sum() - 1, start=3)
x = torch.rand(2, 3, requires_grad=True)
node(x).sum().backward()
assert "torch._dynamo" not in sys.modules
for model, graphs in ((node, 0), (lambda x: node(x.sin()).cos(), 2)):  # before the node, and after it
    seen = []
    compiled = torch.compile(model, backend=lambda graph, _: seen.append(graph) or graph.forward)
    assert torch.equal(compiled(x.detach()), model(x))
    assert len(seen) == graphs, seen
"""


def test_the_compiler_of_torch_is_not_imported_and_looks_into_no_node_when_it_is_there():
    subprocess.run([sys.executable, "-W", "error", "-c", LATE], check=True, timeout=300)


# Models: compiled, saved, in workers


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # of the compiler's own making
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", ["transport-uniform", "simplex", "qp", "eigen-largest", "sphere, newton"])
def test_layers_in_a_compiled_function(name: str, backend: str):
    case = next(case for case in LAYERS if case.name == name)
    torch._dynamo.reset()
    xs, layer = case.inputs(), copy.deepcopy(case.layer)

    def model(*xs: Tensor) -> Tensor:
        return layer(*xs).sin() * 2.0

    y, expected = torch.compile(model, backend=backend)(*xs), model(*xs)
    assert relative(y, expected) < 1e-12
    v = torch.ones_like(y)
    for one, other in zip(gradients(y, xs, v), gradients(expected, xs, v), strict=True):
        assert near(one, other, 1e-12)


@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no compiler")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch, about torch
def test_a_model_compiled_to_machine_code():
    torch._dynamo.reset()
    model = nn.Sequential(nn.Linear(3, 3), sphere("newton"), nn.Linear(3, 2)).double()
    x = torch.randn(4, 3, dtype=torch.float64)
    found = torch.autograd.grad(loss(torch.compile(model, backend="inductor")(x)), list(model.parameters()))
    expected = torch.autograd.grad(loss(model(x)), list(model.parameters()))
    for one, other in zip(found, expected, strict=True):
        assert relative(one, other) < 1e-12


def test_saved_weights_fit_a_model_with_nodes():
    def model() -> nn.Sequential:
        return nn.Sequential(nn.Linear(3, 3), sphere("newton"), *(c.layer for c in TABLE[:1]), nn.Linear(3, 2))

    one, other = model(), model()
    buffer = io.BytesIO()
    torch.save(one.state_dict(), buffer)
    buffer.seek(0)
    other.load_state_dict(torch.load(buffer, weights_only=True))
    x = torch.randn(4, 3)
    assert set(one.state_dict()) == {"0.weight", "0.bias", "3.weight", "3.bias"}
    assert torch.equal(one(x), other(x))


class Solved(Dataset):
    """Each item is a solution, found in the worker; the batch is solved once more when it is put together."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, i: int) -> Tensor:
        x = torch.tensor([[i + 1.0, 2.0, -i]], dtype=torch.float64)
        return sphere("newton")(x)[0]


def solved_again(items: list[Tensor]) -> Tensor:
    return sphere("scipy")(2 * torch.stack(items))


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_in_the_workers_of_a_loader(start: str):
    if start not in multiprocessing.get_all_start_methods():
        pytest.skip(f"this system cannot {start}")
    loader = DataLoader(Solved(), 3, collate_fn=solved_again, num_workers=1, multiprocessing_context=start)
    found = torch.cat(list(loader))
    truth = normalise(torch.tensor([[i + 1.0, 2.0, -i] for i in range(6)], dtype=torch.float64))
    assert relative(found, truth) < 1e-12
