"""What a library is here: a package, ways to use it, and a forward pass for a case."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from ..cases import Array, Case, Forward, Gradients, Programme, Solved
from ..digests import COMMON, HERE, ROOT, code_digest, processor


@dataclass(frozen=True)
class Library:
    """A library under test, imported only in the process that is its own."""

    name: str
    package: str  # as it is installed; empty for what is written here
    module: str  # as it is imported
    takes: tuple[type, ...]  # statements
    variants: Mapping[str, str]  # ways to use it, each in words; the first is what its documentation says
    build: Callable[[Case, str], Forward]  # of a case and a variant; what that takes is not timed
    convex: bool = False  # does it also take whatever is stated in CVXPY?
    free: bool = False  # does it take programmes only if nothing is constrained?
    folders: tuple[str, ...] = ()  # with its code, if it is part of this repository

    def accepts(self, case: Case) -> bool:
        """Is it worth asking?"""
        if self.free and isinstance(case.statement, Programme) and case.statement.constrained:
            return False
        return isinstance(case.statement, self.takes) or (self.convex and case.convex is not None)

    @property
    def installed(self) -> bool:
        """Is it there?"""
        return importlib.util.find_spec(self.module.partition(".")[0]) is not None

    @property
    def version(self) -> str:
        """Of the package."""
        return metadata.version(self.package) if self.package and self.installed else ""

    @property
    def identity(self) -> str:
        """What its results depend on: versions, the code that calls it, and its own where that is here."""
        here = Path(str(sys.modules[self.build.__module__].__file__))
        code = code_digest(here, *(HERE / name for name in COMMON), *(ROOT / folder for folder in self.folders))
        return f"{self.version} with torch {metadata.version('torch')} on {processor()}, code {code}"

    def load(self) -> None:
        """Import what it needs: once, before the processes of the cases are split off."""
        importlib.import_module(self.module)


def tensors(arrays: Mapping[str, Array], wanted: bool = False) -> dict[str, Any]:
    """For torch; a gradient is wanted in them or not."""
    torch = importlib.import_module("torch")
    return {name: torch.tensor(value).requires_grad_(wanted) for name, value in arrays.items()}


QUADRATIC = ("Q", "q", "A", "b", "G", "h")  # the data of a quadratic program


def quadratic_through_torch(case: Case, solve: Callable[..., Any]) -> Forward:
    """A forward pass of torch that solves dense quadratic programs: y (batch, n) of Q, q, A, b, G, h."""
    program = case.quadratic().dense()
    fixed = tensors({name: getattr(program, name) for name in QUADRATIC})
    return through_torch(case, lambda xs: solve(*(fixed | xs).values()))


def through_torch(
    case: Case,
    function: Callable[[dict[str, Any]], Any],  # of the inputs as tensors: y (batch, n)
    claims: Callable[[], Any] | None = None,
) -> Forward:
    """A forward pass of torch, with autograd's backward."""
    torch = importlib.import_module("torch")
    xs, v = tensors(case.inputs, wanted=True), torch.tensor(case.cotangent)

    def forward() -> Solved:
        y = function(xs)

        def backward() -> Gradients:
            found = torch.autograd.grad(y, list(xs.values()), v, allow_unused=True)
            return {
                name: np.zeros(x.shape) if g is None else g.numpy()
                for (name, x), g in zip(xs.items(), found, strict=True)
            }

        return Solved(y.detach(), backward, claims)

    return forward
