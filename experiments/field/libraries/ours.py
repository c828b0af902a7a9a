"""The library that all this is about."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from ..cases import Case, Eigen, Forward, Programme, Quadratic, Simplex, Transport
from ..formulas import TorchMatrix, torch_operations
from .library import QUADRATIC, Library, tensors, through_torch

VARIANTS = {
    "layer": "the ready-made layer, where there is one, as it comes",
    "recorded": "DeclarativeNode(..., record=True) with the functions of the problem, as it comes",
    "called": "the same without record",
    "compiled": 'the same with record="inductor"; what compiling takes is in the first call alone',
}
RECORD = {"layer": None, "recorded": True, "called": False, "compiled": "inductor"}


def build(case: Case, variant: str) -> Forward:
    """The layer that is meant for the problem, else a node."""
    kinds: dict[type, Callable[..., Any]] = {
        Quadratic: _quadratic, Programme: _programme, Transport: _transport, Eigen: _eigen, Simplex: _simplex,
    }  # fmt: skip
    layer, arguments = kinds[type(case.statement)](case, RECORD[variant])

    def claims() -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            positional, named = arguments(tensors(case.inputs))
            return layer.solve(*positional, **named).converged

    def function(xs: dict[str, Any]) -> Any:
        positional, named = arguments(xs)
        return layer(*positional, **named).flatten(1)

    return through_torch(case, function, claims)


def _quadratic(case: Case, record: Any) -> tuple[Any, Any]:
    from problems import QuadraticProgram

    program = case.quadratic()
    if record is not None:
        return _sparse(program, record)
    program = program.dense()
    fixed = tensors({name: getattr(program, name) for name in QUADRATIC})
    return QuadraticProgram(on_failure="mask"), lambda xs: (list((fixed | xs).values()), {})


def _sparse(program: Quadratic, record: Any) -> tuple[Any, Any]:
    """By the entries of the matrices, each a product; bounds and rows are found by the node."""
    from declarative import DeclarativeNode

    Q, A, G = (TorchMatrix.of(matrix) for matrix in (program.Q, program.A, program.G))
    n, p = program.q.shape[1], program.b.shape[1]
    fixed = tensors({name: getattr(program, name) for name in ("q", "b", "h")})
    node = DeclarativeNode(
        lambda q, b, h, u: u @ (Q @ u) / 2 + q @ u,  # noqa: ARG005
        (lambda q, b, h, u: A @ u - b) if p else None,  # noqa: ARG005
        lambda q, b, h, u: G @ u - h,  # noqa: ARG005
        start=n,
        record=record,
        on_failure="mask",
    )
    return node, lambda xs: (list((fixed | xs).values()), {})


def _programme(case: Case, record: Any) -> tuple[Any, Any]:
    import torch

    from declarative import DeclarativeNode

    programme = case.statement
    assert isinstance(programme, Programme)
    functions = programme.functions(torch_operations())
    start = torch.tensor(programme.start)
    bounds = (torch.tensor(programme.lower), torch.tensor(programme.upper)) if programme.bounded else None
    node = DeclarativeNode(
        functions.objective,
        functions.equality,
        functions.inequality,
        bounds=bounds,
        start=start.shape[1:],
        record=record,
        on_failure="mask",
    )
    return node, lambda xs: ([xs["p"]], {"start": start})


def _transport(case: Case, _: Any) -> tuple[Any, Any]:
    from problems import OptimalTransport

    assert isinstance(case.statement, Transport)
    return OptimalTransport(case.statement.gamma, on_failure="mask"), lambda xs: ([xs["M"]], {})


def _eigen(_: Case, __: Any) -> tuple[Any, Any]:
    from problems import Eigenvectors

    return Eigenvectors(1, on_failure="mask"), lambda xs: ([xs["X"]], {})


def _simplex(_: Case, __: Any) -> tuple[Any, Any]:
    from problems import SimplexProjection

    return SimplexProjection(on_failure="mask"), lambda xs: ([-xs["q"]], {})


STATEMENTS = (Quadratic, Programme, Transport, Eigen, Simplex)
READY = "experiments.field.libraries.ours_ready"  # imports the library once its kernels are compiled
OURS = Library("ours", "declarative-nodes", READY, STATEMENTS, VARIANTS, build, folders=("declarative", "problems"))
