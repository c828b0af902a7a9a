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
    "implicit": "Sinkhorn to 1e-9, or Newton's method on the batch with derivatives of torch.func by make_fx; "
    "backward one linear system by torch.linalg: an autograd.Function of some twenty lines",
}
POT_VARIANTS = {
    "default": "ot.solve(M, reg=1/gamma) as it comes, one problem after the other, through autograd",
    "tight": "the same with tol 1e-12 and up to 20,000 iterations",
    "to the bar": "the same with tol 1e-9; of POT's gradients only autodiff reaches the plan",
    "batch": 'ot.solve_batch(M, reg=1/gamma, grad="autodiff") as it comes',
    "batch, tight": "the same with tol 1e-12 and up to 20,000 iterations",
    "batch, to the bar": "the same with tol 1e-9",
}


def _plain(case: Case, variant: str) -> Forward:
    longer = variant != "unrolled"
    statement = case.statement
    if variant == "implicit":
        return _implicit(case)
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


def _implicit(case: Case) -> Forward:
    """Solved without a graph; backward by the implicit function theorem."""
    torch = importlib.import_module("torch")
    statement = case.statement
    if isinstance(statement, Transport):
        solve, pull = _transport_parts(torch, statement.gamma)
    elif isinstance(statement, Programme):
        solve, pull = _newton_parts(torch, statement)
    else:
        raise DoesNotApplyError("a formula, that autograd differentiates")

    class Layer(torch.autograd.Function):  # type: ignore[name-defined,misc]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            y = solve(x)
            ctx.save_for_backward(x, y)
            return y

        @staticmethod
        def backward(ctx: Any, v: Any) -> Any:
            return pull(*ctx.saved_tensors, v)

    (name,) = case.inputs
    return through_torch(case, lambda xs: Layer.apply(xs[name]))


def _newton_parts(torch: Any, programme: Programme) -> tuple[Any, Any]:
    """Newton's method on a batch, and its derivative: H z = v, then -B'z."""
    objective, start = programme.functions(torch_operations()).objective, torch.tensor(programme.start)
    make_fx = importlib.import_module(
        "torch.fx.experimental.proxy_tensor"
    ).make_fx  # transforms are slow: once is enough
    derivatives = torch.func.grad(objective, 1), torch.func.hessian(objective, 1)
    slopes, hessians = (make_fx(torch.vmap(one))(torch.tensor(programme.p), start) for one in derivatives)

    def solve(p: Any) -> Any:
        u = start
        for _ in range(50):
            step = torch.linalg.solve(hessians(p, u), slopes(p, u))
            u = u - step
            if step.abs().max() < 1e-9:  # and the next one would be its square
                break
        return u

    def pull(p: Any, u: Any, v: Any) -> Any:
        z = torch.linalg.solve(hessians(p, u), v)
        return -torch.func.vjp(lambda p: torch.vmap(derivatives[0])(p, u), p)[1](z)[0]

    return solve, pull


def _transport_parts(torch: Any, gamma: float) -> tuple[Any, Any]:
    """Sinkhorn's method, and its derivative by the potentials, the last of which is fixed."""

    def pull(_: Any, y: Any, v: Any) -> Any:
        n = round(y.shape[-1] ** 0.5)
        P, V = y.view(-1, n, n), v.view(-1, n, n)
        rows, columns = (torch.diag_embed(P.sum(axis)) for axis in (-1, -2))
        matrix = torch.cat([torch.cat([rows, P], -1), torch.cat([P.mT, columns], -1)], -2)[:, :-1, :-1]
        right = torch.cat([(V * P).sum(-1), (V * P).sum(-2)], -1)[:, :-1]
        a = torch.nn.functional.pad(torch.linalg.solve(matrix, right), (0, 1))
        return -gamma * P * (V - a[:, :n, None] - a[:, None, n:])

    return lambda M: _sinkhorn(M, gamma, 1e-9), pull


def _pot(case: Case, variant: str) -> Forward:
    torch, ot = importlib.import_module("torch"), importlib.import_module("ot")
    assert isinstance(case.statement, Transport)
    gamma, n = case.statement.gamma, case.statement.M.shape[-1]
    uniform = torch.tensor(np.full(n, 1 / n))
    tolerance = 1e-12 if variant.endswith("tight") else 1e-9 if variant.endswith("bar") else None
    options = {"tol": tolerance, "max_iter": 20_000} if tolerance else {}
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
