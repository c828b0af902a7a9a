"""What one would write in plain torch: the other side of the benchmark, correct and without cleverness."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.func import hessian, jacrev, vjp, vmap

Function = Callable[..., Tensor]
MOST = 10_000  # iterations of Sinkhorn's


def dense_node(
    solve: Function, objective: Function, equality: Function
) -> Callable[[Tensor], Tensor]:  # y (batch, m) of x (batch, n)
    """A layer by the textbook: all matrices by torch.func under vmap, multipliers by least squares, a dense KKT matrix.

    Args:
        solve: the solutions of a batch.
        objective: of one problem, (x, u).
        equality: likewise, a scalar.
    """

    def lagrangian(x: Tensor, u: Tensor, multiplier: Tensor) -> Tensor:
        return objective(x, u) - multiplier @ equality(x, u).reshape(-1)

    def pull(x: Tensor, u: Tensor, v: Tensor) -> Tensor:
        """Back through one problem."""
        A = jacrev(lambda u: equality(x, u).reshape(-1))(u)
        slope = jacrev(objective, 1)(x, u)
        multiplier = torch.linalg.lstsq(A.mT, slope.unsqueeze(-1)).solution.squeeze(-1)
        H = hessian(lagrangian, 1)(x, u, multiplier)
        right = torch.cat([v, v.new_zeros(len(A))])
        z, s = torch.linalg.solve(kkt_matrix(H, A), right).split([len(u), len(A)])
        conditions = lambda x: (jacrev(lagrangian, 1)(x, u, multiplier), equality(x, u).reshape(-1))  # noqa: E731
        gradient: Tensor = vjp(conditions, x)[1]((-z, -s))[0]
        return gradient

    class Dense(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            y = solve(x)
            ctx.save_for_backward(x, y)
            return y

        @staticmethod
        def backward(ctx: Any, v: Tensor) -> Tensor:
            x, y = ctx.saved_tensors
            return vmap(pull)(x, y, v)

    return Dense.apply


def kkt_matrix(H: Tensor, A: Tensor) -> Tensor:
    """[H A'; A 0] for (..., m, m) and (..., p, m)."""
    zero = A.new_zeros(*A.shape[:-1], A.shape[-2])
    return torch.cat([torch.cat([H, A.mT], -1), torch.cat([A, zero], -1)], -2)


def kkt_solve(Q: Tensor, q: Tensor, A: Tensor, b: Tensor) -> Tensor:
    """The equality-constrained quadratic program as one linear system, to be differentiated by autograd."""
    right = torch.cat([-q, b], -1).unsqueeze(-1)
    solution: Tensor = torch.linalg.solve(kkt_matrix((Q + Q.mT) / 2, A), right)
    return solution.squeeze(-1)[:, : q.shape[-1]]


# Optimal transport with uniform marginals.


def sinkhorn(M: Tensor, gamma: float, tolerance: float, iterations: int | None = None) -> tuple[Tensor, int]:
    """The plan by u = r / K v, v = c / K' u, and how many iterations it took.

    It stops at a relative error of the marginals, or after that many iterations, which need not look at the error.
    """
    m, n = M.shape[-2:]
    kernel = (-gamma * M).exp()
    v = M.new_full((len(M), n, 1), 1 / n)
    product = kernel @ v
    done = 0
    while done < (iterations or MOST):
        done += 1
        u = 1 / m / product
        v = 1 / n / (kernel.mT @ u)
        product = kernel @ v
        if iterations is None and ((m * u * product - 1).abs() <= tolerance).all():
            break
    return u * kernel * v.mT, done


def sinkhorn_cholesky(M: Tensor, gamma: float, tolerance: float) -> Tensor:
    """The plan by Sinkhorn's iteration, with the gradient of the equations that it solves."""
    plan: Tensor = _SinkhornCholesky.apply(M, gamma, tolerance)  # type: ignore[no-untyped-call]
    return plan


class _SinkhornCholesky(torch.autograd.Function):
    """Sinkhorn's iteration, and backward the inverse of [diag(r) P; P' diag(c)] by blocks.

    The n x n block diag(c) - P' diag(1/r) P without its last row and column is formed and factored by Cholesky.
    """

    @staticmethod
    def forward(ctx: Any, M: Tensor, gamma: float, tolerance: float) -> Tensor:
        plan, _ = sinkhorn(M, gamma, tolerance)
        ctx.save_for_backward(plan)
        ctx.gamma = gamma
        return plan

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> tuple[Tensor, None, None]:
        (plan,) = ctx.saved_tensors
        rows, columns = plan.sum(-1, keepdim=True), plan.sum(-2)[:, :-1]
        free = plan * v
        b, d = free.sum(-1, keepdim=True), free.sum(-2)[:, :-1].unsqueeze(-1)
        part = plan[..., :-1]
        schur = torch.diag_embed(columns) - part.mT @ (part / rows)
        t = torch.cholesky_solve(d - part.mT @ (b / rows), torch.linalg.cholesky(schur))
        s = (b - part @ t) / rows
        t = torch.nn.functional.pad(t.mT, (0, 1))
        return -ctx.gamma * (free - plan * (s + t)), None, None
