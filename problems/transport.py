"""Entropy-regularised optimal transport."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Unpack

import torch
from torch import Tensor

from declarative.linear import Pair, Solve, System
from declarative.structure import Kind, Point

from .inputs import Inputs, Number, ScalarParameter, require_count, require_positive, visible
from .layer import Layer, Options
from .schur import solve_schur
from .sinkhorn import Sinkhorn, uniform_marginals
from .systems import InverseDiagonalSystem, StructuredSystem

CANCELLED = 0.03  # of what a gradient is summed up from: what is left below that is computed in double precision
SAME_MASS = 1e-4  # how far apart, relatively, the masses of r and c may be


def regularised_cost(M: Tensor, *rest: Tensor) -> Tensor:
    """<M, P> + KL(P || r c') / gamma, where ``rest`` is (r, c, gamma, P) or, for uniform marginals, (gamma, P)."""
    *marginals, gamma, P = rest
    r, c = marginals or uniform_marginals(M)
    # Few passes over the plan: the entropy is that of torch, which has no intermediate results.
    divergence: Tensor = -torch.special.entr(P).sum() - (P.sum(-1) * r.log()).sum() - (P.sum(-2) * c.log()).sum()
    cost: Tensor = M.to(P.dtype).flatten() @ P.flatten()
    return cost + divergence / gamma


def marginal_errors(M: Tensor, *rest: Tensor) -> Tensor:
    """[P 1 - r; P' 1 - c] without its last entry, which follows from the others; ``rest`` is that of the cost."""
    *marginals, _, P = rest
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

    Shapes: M (batch, m, n), r (batch, m), c (batch, n), by default uniform, gamma () or (batch,) -> P (batch, m, n).

    Degenerate: where a marginal is zero (padding), the row or column of the plan is zero, whatever its costs are, and
    so is its gradient. A negative marginal, and masses that differ, are a ``ValueError``. A plan whose entries
    underflow so far that it falls apart into blocks has a least-norm gradient, with a :class:`NumericalWarning`.

    Args:
        gamma: the inverse of the weight of the entropy: the larger, the closer to unregularised transport; a number,
            or a tensor (see :class:`Layer`).
        tolerance: the largest error of a marginal relative to that marginal; by default 64 units of rounding. Never
            looser than half of the digits, which a gradient needs.
        max_iterations: of the forward solver.
        **options: see :class:`Layer`.

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

    pure = True
    required = ("M",)
    optional = ("r", "c", "gamma")

    def __init__(
        self,
        gamma: Number = 1.0,
        *,
        tolerance: float | None = None,
        max_iterations: int = 200,
        **options: Unpack[Options],
    ) -> None:
        if tolerance is not None:
            require_positive(tolerance=tolerance)
        require_count(max_iterations=max_iterations)
        solver = StructuredSinkhorn(tolerance, max_iterations, scalar=ScalarParameter("gamma", gamma))
        super().__init__(regularised_cost, marginal_errors, solver=solver, start=_independent, **options)

    def complete(self, M: Tensor, r: Tensor | None, c: Tensor | None, _: Tensor | None) -> Inputs:
        if r is None and c is None:
            return (M,)
        left_out = self.blank(M, r, c)
        r, c = _marginal(r, c, M.shape[1]), _marginal(c, r, M.shape[2])
        for name, x in (("r", r), ("c", c)):
            _check_marginal(name, x)
        if left_out is not None:
            M, r, c = torch.where(left_out, 0.0, M), _padded(r), _padded(c)
        masses = r.sum(-1, keepdim=True), c.sum(-1, keepdim=True)
        if visible(r, c):
            _same_mass(*masses)
        common = (masses[0] + masses[1]) / 2
        return M, r * (common / masses[0]), c * (common / masses[1])

    def blank(self, *xs: Tensor | None) -> Tensor | None:
        _, r, c = (*xs, None, None)[:3]
        zeros = [x.unsqueeze(dim) == 0 for x, dim in ((r, -1), (c, -2)) if x is not None]
        if not zeros or (visible(*zeros) and not any(zero.any() for zero in zeros)):
            return None
        return zeros[0] if len(zeros) == 1 else zeros[0] | zeros[1]


def _marginal(x: Tensor | None, other: Tensor | None, size: int) -> Tensor:  # (batch, size)
    """The marginal, by default a uniform one with the mass of the other."""
    if x is not None:
        return x
    assert other is not None
    return (other.sum(-1, keepdim=True) / size).expand(-1, size)


def _check_marginal(name: str, x: Tensor) -> None:
    if x.dtype in (torch.float16, torch.bfloat16):
        raise TypeError(f"{name} is {x.dtype}, too coarse for two marginals to have the same mass: use {name}.float().")
    if visible(x) and (x < 0).any():  # a NaN is left to the status of its problem
        raise ValueError(f"{name} must not be negative, but has an entry of {x.min().item():g}.")


def _padded(x: Tensor) -> Tensor:
    """A marginal with a mass in the place of zero that is lost beside the others, but large enough to compute with."""
    return torch.where(x == 0, torch.finfo(x.dtype).eps ** 2 * x.detach().mean(-1, keepdim=True), x)


def _same_mass(mass_r: Tensor, mass_c: Tensor) -> None:
    different = (mass_r - mass_c).abs() > SAME_MASS * (mass_r + mass_c)
    if different.any():
        i = int(different.flatten().nonzero()[0])
        raise ValueError(
            f"r and c must have the same mass, but in problem {i} r sums to {mass_r[i].item():.6g} and c to "
            f"{mass_c[i].item():.6g}: divide each by its sum."
        )
    if (mass_r == 0).any():
        raise ValueError(f"r and c must have a mass, but are zero in problem {int((mass_r == 0).nonzero()[0, 0])}.")


def _independent(M: Tensor, *rest: Tensor) -> Tensor:
    if len(rest) < 2:
        return M.new_full((), 1 / M.numel()).expand(M.shape)
    return rest[0].unsqueeze(-1) * rest[1]


class StructuredSinkhorn(Sinkhorn):
    """Sinkhorn's iteration, with the derivatives of the problem."""

    def pullback(self, xs: Inputs, u: Tensor, multipliers: Tensor | None, z: Tensor, s: Tensor) -> Inputs:  # noqa: ARG002
        """B is I for M, -1 / (gamma r_i) for r and alike for c, and -(log(P_ij / (r_i c_j)) + 1) / gamma^2 for gamma.

        C is 0 for M and gamma, and -I for r and c.
        """
        assert self.scalar is not None
        (M, *marginals), gamma = self.scalar.split(xs)
        gamma = gamma.unsqueeze(-1) if isinstance(gamma, Tensor) else gamma
        plan = z.view(M.shape)
        grads = [-plan]
        if marginals:
            r, c = marginals
            m = r.shape[-1]
            columns = torch.nn.functional.pad(s[:, m:], (0, 1))
            grads += [plan.sum(-1) / (gamma * r) + s[:, :m], plan.sum(-2) / (gamma * c) + columns]
        if isinstance(gamma, Tensor):
            r, c = marginals or uniform_marginals(M[0])
            price = u.view(M.shape).log() - r.log().unsqueeze(-1) - c.log().unsqueeze(-2) + 1
            grads.append((plan * price).sum((-2, -1)) / gamma.squeeze(-1).square())
        return tuple(grads)

    def system(self, point: Point, kind: Kind) -> System:
        *_, gamma = self.arguments(point.batch, point.u)
        if kind != "full":  # the constraints are linear: H = H_hat
            return InverseDiagonalSystem(gamma * point.u)
        return TransportSystem(point.u.view(point.batch.size, *point.batch.shape), gamma.unsqueeze(-1))


@dataclass(eq=False)
class TransportSystem(StructuredSystem):
    """H = diag(1 / (gamma P)) for a matrix P, with the sums of its rows and columns (without the last) as constraints.

    Then z = gamma P (r - A' s), and A H^-1 A' = gamma [diag(P 1) P; P' diag(P' 1)] without its last row and column.
    """

    plan: Tensor  # (batch, m, n)
    gamma: Tensor  # (batch, 1, 1)

    def multiply(self, z: Tensor, s: Tensor) -> Pair:
        change = z.view(self.plan.shape)
        rows, columns = self._parts(s)
        return (change / (self.gamma * self.plan) + rows + columns).flatten(1), _sums(change)

    def factorise(self) -> Solve:
        plan, gamma = self.plan, self.gamma

        def solve(r: Tensor, t: Tensor) -> Pair:
            free = plan * r.view(plan.shape)
            size = free.flatten(1).abs().amax(-1)
            right = free.sum(-1), free.sum(-2)
            if bool(t.any()):  # the gradient of a loss of the plan alone has none
                right = _less(right, t / gamma.squeeze(-1))
            s, columns = solve_schur(plan, *right)
            for part in (s.unsqueeze(-1), columns.unsqueeze(-2)):
                free.addcmul_(plan, part, value=-1)  # in place: to get new memory takes longer than to fill it
            left = free.flatten(1).abs().amax(-1)
            z, s = free.mul_(gamma).flatten(1), torch.cat([s, columns[:, :-1]], -1)
            # Close to a vertex nearly all of r - A' s cancels, more than single precision has digits for.
            lost = (left < CANCELLED * size).nonzero().flatten() if plan.dtype != torch.float64 else ()
            if len(lost):
                again = TransportSystem(plan[lost].double(), gamma[lost].double()).factorise()
                z[lost], s[lost] = (x.to(z.dtype) for x in again(r[lost].double(), t[lost].double()))
            return z, s

        return solve

    def _parts(self, s: Tensor) -> Pair:  # of A' s as a matrix: their sum
        m = self.plan.shape[-2]
        return s[:, :m].unsqueeze(-1), torch.nn.functional.pad(s[:, m:], (0, 1)).unsqueeze(-2)


def _less(sums: Pair, t: Tensor) -> Pair:
    """The sums of rows and columns less those that are given, but for the last.

    The equation that was left out is the one that makes both sides carry the same mass. Beside a marginal of padding,
    rounding errors of the others' sum would be large.
    """
    rows, columns = sums
    m = rows.shape[-1]
    last = t[:, :m].sum(-1, keepdim=True) - t[:, m:].sum(-1, keepdim=True)
    noise = 64 * torch.finfo(t.dtype).eps * t.abs().sum(-1, keepdim=True)
    t = torch.cat([t, torch.where(last.abs() <= noise, 0.0, last)], -1)
    return rows - t[:, :m], columns - t[:, m:]


def _sums(plan: Tensor) -> Tensor:  # A z
    return torch.cat([plan.sum(-1), plan.sum(-2)[:, :-1]], -1)
