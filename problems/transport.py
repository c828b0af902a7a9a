"""Entropy-regularised optimal transport."""

from __future__ import annotations

from functools import partial
from typing import Literal

import torch
from torch import Tensor
from torch._C._functorch import maybe_current_level

from declarative import Rule
from declarative.derivatives import Point
from declarative.inputs import without_values
from declarative.linear.contract import Pair, Solve, System
from declarative.structure import Kind

from .layer import Inputs, Layer, require_count, require_floating, require_positive, require_shape, uniform_marginals
from .schur import solve_schur
from .sinkhorn import Sinkhorn
from .systems import DiagonalSystem

SAME_MASS = 1e-4  # how far apart, relatively, the masses of r and c may be


def regularised_cost(M: Tensor, *rest: Tensor, gamma: float) -> Tensor:
    """<M, P> + KL(P || r c') / gamma, where ``rest`` is (r, c, P) or, for uniform marginals, (P,)."""
    *marginals, P = rest
    r, c = marginals or uniform_marginals(M)
    # Few passes over the plan: the entropy is that of torch, which has no intermediate results.
    divergence: Tensor = -torch.special.entr(P).sum() - (P.sum(-1) * r.log()).sum() - (P.sum(-2) * c.log()).sum()
    cost: Tensor = M.to(P.dtype).flatten() @ P.flatten()
    return cost + divergence / gamma


def marginal_errors(M: Tensor, *rest: Tensor) -> Tensor:
    """[P 1 - r; P' 1 - c] without its last entry, which follows from the others."""
    *marginals, P = rest
    r, c = marginals or uniform_marginals(M)
    return torch.cat([P.sum(-1) - r, (P.sum(-2) - c)[:-1]])


class OptimalTransport(Layer):
    """The entropy-regularised transport plan between two marginals:

        minimise <M, P> + KL(P || r c') / gamma   subject to   P 1 = r and P' 1 = c,

    with KL(P || r c') = sum_ij P_ij log(P_ij / (r_i c_j)). It is solved by Sinkhorn's iteration and, where that stalls
    (large gamma), Newton's method on the dual. The Hessian is diag(1 / (gamma P)), so that the approximate rules
    (``unconstrained`` and ``curvature`` are the same here) cost nothing, -gamma P v; the exact one takes one linear
    system of size min(m, n). Nothing larger than the plan is ever formed.

    Of the m + n constraints one follows from the others, and the last is left out: ``solve`` gives m + n - 1
    multipliers. r and c are brought to their common mass, the mean of the two, so that every derivative exists.

    Shapes: M (batch, m, n); r (batch, m) or (m,), c (batch, n) or (n,), by default uniform -> P (batch, m, n).

    Degenerate: a marginal that is not positive, and masses that differ, are a ``ValueError``. A plan whose entries
    underflow so far that it falls apart into blocks has a least-norm gradient, with a :class:`NumericalWarning`.

    Args:
        gamma: the inverse of the weight of the entropy: the larger, the closer to unregularised transport.
        tolerance: the largest error of a marginal relative to that marginal; by default 64 units of rounding. Never
            looser than half of the digits, which a gradient needs.
        max_iterations: of the forward solver.
        gradient: the rule by which it is differentiated.
        on_failure: as in :class:`DeclarativeNode`.

    Example:
        >>> import torch
        >>> from problems import OptimalTransport
        >>> M = torch.tensor([[[0.0, 1.0], [1.0, 0.0]]], requires_grad=True)
        >>> P = OptimalTransport(gamma=2.0)(M)
        >>> P.detach()
        tensor([[[0.4404, 0.0596],
                 [0.0596, 0.4404]]])
        >>> torch.autograd.grad(P[0, 0, 0], M)[0]
        tensor([[[-0.0525,  0.0525],
                 [ 0.0525, -0.0525]]])
    """

    def __init__(
        self,
        gamma: float = 1.0,
        *,
        tolerance: float | None = None,
        max_iterations: int = 200,
        gradient: str | Rule = "exact",
        on_failure: Literal["raise", "mask"] = "raise",
    ) -> None:
        require_positive(gamma=gamma, **({} if tolerance is None else {"tolerance": tolerance}))
        require_count(max_iterations=max_iterations)
        super().__init__(
            partial(regularised_cost, gamma=gamma),
            marginal_errors,
            solver=Sinkhorn(gamma, tolerance, max_iterations),
            system=partial(_system, gamma=gamma),
            pullback=partial(_pullback, gamma=gamma),
            start=_independent,
            gradient=gradient,
            on_failure=on_failure,
        )

    def prepare(self, *xs: Tensor) -> tuple[Tensor, ...]:
        M, r, c = (*xs, None, None)[:3]
        require_shape("M", M, ("batch", "m", "n"))
        if len(xs) > 3:
            raise TypeError(f"optimal transport takes M, r and c, but was called with {len(xs)} inputs.")
        if r is None and c is None:
            return (M,)
        r = _marginal("r", r, c, M.shape[0], M.shape[1])
        c = _marginal("c", c, r, M.shape[0], M.shape[2])
        masses = r.sum(-1, keepdim=True), c.sum(-1, keepdim=True)
        if maybe_current_level() is None and not without_values((r, c)):  # otherwise they cannot be looked at
            _same_mass(r, c, *masses)
        common = (masses[0] + masses[1]) / 2
        return M, r * (common / masses[0]), c * (common / masses[1])


def _marginal(name: str, x: Tensor | None, other: Tensor | None, batch: int, size: int) -> Tensor:
    if x is None:
        assert other is not None
        return (other.sum(-1, keepdim=True) / size).expand(*other.shape[:-1], size).expand(batch, size)
    dims = ("batch", "m" if name == "r" else "n")
    require_floating(name, x, dims)
    x = x.expand(batch, -1) if x.dim() == 1 else x
    require_shape(name, x, dims)
    if x.dtype in (torch.float16, torch.bfloat16):
        raise TypeError(f"{name} is {x.dtype}, too coarse for two marginals to have the same mass: use {name}.float().")
    if x.shape != (batch, size):
        raise ValueError(f"{name} must have shape {(batch, size)} or {(size,)} to go with M, but has {tuple(x.shape)}.")
    return x


def _same_mass(r: Tensor, c: Tensor, mass_r: Tensor, mass_c: Tensor) -> None:
    for name, x in (("r", r), ("c", c)):
        if (x <= 0).any():  # a NaN is left to the status of its problem
            raise ValueError(f"{name} must be positive: leave out the rows or columns of M whose marginal is zero.")
    different = (mass_r - mass_c).abs() > SAME_MASS * (mass_r + mass_c)
    if different.any():
        i = int(different.flatten().nonzero()[0])
        raise ValueError(
            f"r and c must have the same mass, but in problem {i} r sums to {mass_r[i].item():.6g} and c to "
            f"{mass_c[i].item():.6g}: divide each by its sum."
        )


def _independent(M: Tensor, *marginals: Tensor) -> Tensor:
    if not marginals:
        return M.new_full((), 1 / M.numel()).expand(M.shape)
    r, c = marginals
    return r.unsqueeze(-1) * c


def _pullback(
    xs: Inputs,
    u: Tensor,  # noqa: ARG001
    multipliers: Tensor | None,  # noqa: ARG001
    z: Tensor,
    s: Tensor,
    gamma: float,
) -> Inputs:
    """B is I for M, -1 / (gamma r_i) for r and alike for c; C is 0 for M and -I for r and c."""
    M, *marginals = xs
    plan = z.view(M.shape)
    if not marginals:
        return (-plan,)
    r, c = marginals
    m = r.shape[-1]
    columns = torch.nn.functional.pad(s[:, m:], (0, 1))
    return -plan, plan.sum(-1) / (gamma * r) + s[:, :m], plan.sum(-2) / (gamma * c) + columns


def _system(point: Point, kind: Kind, gamma: float) -> System:
    if kind != "full":  # the constraints are linear: H = H_hat
        return DiagonalSystem(gamma * point.u)
    plan = point.u.view(point.batch.size, *point.batch.shape)
    return TransportSystem(plan, plan.new_full((len(plan), 1, 1), gamma))


class TransportSystem(System):
    """H = diag(1 / (gamma P)) for a matrix P, with the sums of its rows and columns (without the last) as constraints.

    Then z = gamma P (r - A' s), and A H^-1 A' = gamma [diag(P 1) P; P' diag(P' 1)] without its last row and column.
    """

    def __init__(self, plan: Tensor, gamma: Tensor) -> None:  # (batch, m, n), (batch, 1, 1)
        super().__init__(plan, gamma)
        self.plan = plan
        self.gamma = gamma

    def multiply(self, z: Tensor, s: Tensor) -> Pair:
        change = z.view(self.plan.shape)
        rows, columns = self._parts(s)
        return (change / (self.gamma * self.plan) + rows + columns).flatten(1), _sums(change)

    def factorise(self) -> Solve:
        m, plan, gamma = self.plan.shape[-2], self.plan, self.gamma

        def solve(r: Tensor, t: Tensor) -> Pair:
            free, t = plan * r.view(plan.shape), t / gamma.squeeze(-1)
            rows, columns = free.sum(-1) - t[:, :m], (free.sum(-2))[:, :-1] - t[:, m:]
            # The equation that was left out is the one that makes both sides carry the same mass.
            last = rows.sum(-1, keepdim=True) - columns.sum(-1, keepdim=True)
            s, columns = solve_schur(plan, rows, torch.cat([columns, last], -1))
            s = torch.cat([s, columns[:, :-1]], -1)
            for part in self._parts(s):
                free.addcmul_(plan, part, value=-1)  # in place: to get new memory takes longer than to fill it
            return free.mul_(gamma).flatten(1), s

        return solve

    def _parts(self, s: Tensor) -> Pair:  # of A' s as a matrix: their sum
        m = self.plan.shape[-2]
        return s[:, :m].unsqueeze(-1), torch.nn.functional.pad(s[:, m:], (0, 1)).unsqueeze(-2)


def _sums(plan: Tensor) -> Tensor:  # A z
    return torch.cat([plan.sum(-1), plan.sum(-2)[:, :-1]], -1)
