"""Plain torch with autograd, as one would write it without a library, and POT, differentiated likewise."""

from __future__ import annotations

import importlib
import math
from typing import Any

import numpy as np

from ..cases import Case, DoesNotApplyError, Eigen, Forward, Programme, Simplex, Transport
from ..formulas import torch_operations
from .library import Library, through_torch

MOST = 2_000  # iterations
PLAIN_VARIANTS = {
    "unrolled": "Sinkhorn to 1e-9 in its marginals; 300 steps of gradient descent; a sort; torch.linalg.eigh",
    "unrolled, long": "Sinkhorn to 1e-13; 3000 steps of gradient descent",
}
POT_VARIANTS = {
    "default": "ot.solve(M, reg=1/gamma) as it comes, one problem after the other, through autograd",
    "tight": "the same with tol 1e-12 and up to 20,000 iterations",
    "batch": 'ot.solve_batch(M, reg=1/gamma, grad="autodiff") as it comes',
    "batch, tight": "the same with tol 1e-12 and up to 20,000 iterations",
}


def _plain(case: Case, variant: str) -> Forward:
    longer = variant != "unrolled"
    statement = case.statement
    if isinstance(statement, Transport):
        return through_torch(case, lambda xs: _sinkhorn(xs["M"], statement.gamma, 1e-13 if longer else 1e-9))
    if isinstance(statement, Programme):
        return _descent(case, statement, 3000 if longer else 300)
    if longer:
        raise DoesNotApplyError("nothing is iterated")
    if isinstance(statement, Eigen):
        torch = importlib.import_module("torch")
        return through_torch(case, lambda xs: torch.linalg.eigh((xs["X"] + xs["X"].mT) / 2).eigenvectors[..., -1])
    return through_torch(case, lambda xs: _sparsemax(-xs["q"]))


def _sinkhorn(M: Any, gamma: float, tolerance: float) -> Any:
    """In logarithms, until the marginals of all problems are right."""
    n, f, g = M.shape[-1], 0.0, M.new_zeros(len(M), 1, M.shape[-1])
    for _ in range(MOST):
        f = -(g - gamma * M).logsumexp(-1, keepdim=True) - math.log(n)
        g = -(f - gamma * M).logsumexp(-2, keepdim=True) - math.log(n)
        rows = (f + g - gamma * M).detach().logsumexp(-1)
        if (n * rows.exp() - 1).abs().max() <= tolerance:
            break
    return (f + g - gamma * M).exp().flatten(1)


def _sparsemax(x: Any) -> Any:
    torch = importlib.import_module("torch")
    ordered = x.sort(-1, descending=True).values
    levels = (ordered.cumsum(-1) - 1) / torch.arange(1, x.shape[-1] + 1)
    support = (ordered > levels).sum(-1, keepdim=True)
    return (x - levels.gather(-1, support - 1)).clamp(min=0)


def _descent(case: Case, programme: Programme, steps: int) -> Forward:
    """Gradient descent with a step that the curvature at the start allows."""
    torch = importlib.import_module("torch")
    functions = programme.functions(torch_operations())
    start, p = torch.tensor(programme.start), torch.tensor(programme.p)
    curvature = torch.func.hessian(functions.objective, 1)(p[0], start[0])
    rate = 1 / float(torch.linalg.eigvalsh(curvature).max()) / 2
    slope = torch.vmap(torch.func.grad(functions.objective, 1))

    def function(xs: dict[str, Any]) -> Any:
        u = start
        for _ in range(steps):
            u = u - rate * slope(xs["p"], u)
        return u

    return through_torch(case, function)


def _pot(case: Case, variant: str) -> Forward:
    torch, ot = importlib.import_module("torch"), importlib.import_module("ot")
    assert isinstance(case.statement, Transport)
    gamma, n = case.statement.gamma, case.statement.M.shape[-1]
    uniform = torch.tensor(np.full(n, 1 / n))
    options = {"tol": 1e-12, "max_iter": 20_000} if variant.endswith("tight") else {}
    if variant.startswith("batch") and case.batch == 1:
        raise DoesNotApplyError("there is no batch")

    def together(xs: dict[str, Any]) -> Any:
        ends = uniform.expand(case.batch, n)
        return ot.solve_batch(xs["M"], 1 / gamma, ends, ends, grad="autodiff", **options).plan.flatten(1)

    def function(xs: dict[str, Any]) -> Any:
        plans = [ot.solve(M, uniform, uniform, reg=1 / gamma, **options).plan for M in xs["M"]]
        return torch.stack(plans).flatten(1)

    return through_torch(case, together if variant.startswith("batch") else function)


PLAIN = Library("plain torch", "", "torch", (Transport, Simplex, Eigen, Programme), PLAIN_VARIANTS, _plain, free=True)
POT = Library("POT", "POT", "ot", (Transport,), POT_VARIANTS, _pot)
