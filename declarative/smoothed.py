"""The gradient of a problem whose inequalities are softened by a barrier: informative where the exact one is not."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from .arguments import is_number
from .gradients import Rule
from .linear import Pair
from .linear.barrier import BarrierSystem
from .linear.contract import warn_of
from .problem import Batch
from .solution import Status
from .solvers import Newton
from .structure import Point
from .torchside import fold

ITERATIONS = 100  # towards the central path, from a point that is not far
ROUGH = 1e-2  # of a slack, that a constraint may miss it by before the last steps
FAR = 1e15  # a slack beyond this is that of a bound at infinity
NEWTON_STEPS = (
    2  # at the end: the first finds the last digits; each doubles the order up to which derivatives are right
)


@dataclass(frozen=True)
class Smoothed(Rule):
    """The derivative at a chosen barrier: that of the minimiser of f - barrier * sum(log(-g)), h = 0.

    The solution that a node returns stays the exact one. Its gradient is that of a nearby point of the central path,
    where slack times multiplier is the barrier for each inequality and each bound,

        D_U L = 0,   h = 0,   -g_i y_i = barrier,

    which has no kinks: a constraint counts as much as its multiplier beside its slack. Where the exact gradient is zero
    or one-sided (a linear program, a solution at a corner, a constraint that is just active) this one tells which way
    things are going; as the barrier goes to zero, it goes to the exact one. The barrier has the units of the objective:
    for a convex problem with q inequalities the central point's objective is at most q * barrier above the least.

    A problem whose central point is not found gets its exact gradient, and there is a warning. Derivatives of the
    gradient are right up to the fourth order.

    Args:
        barrier: what slack times multiplier is, positive.

    Example:
        >>> import torch
        >>> from declarative import DeclarativeNode, Smoothed
        >>> cheapest = DeclarativeNode(  # a linear program: all of u goes where the cost is least
        ...     lambda cost, u: cost @ u, lambda cost, u: u.sum() - 1, bounds=(0, None), start=3, gradient=Smoothed(0.1)
        ... )
        >>> cost = torch.tensor([[1.0, 1.2, 3.0]], dtype=torch.float64, requires_grad=True)
        >>> cheapest(cost).detach().round(decimals=6)
        tensor([[1., 0., 0.]], dtype=torch.float64)
        >>> torch.autograd.grad(cheapest(cost)[0, 0], cost)[0]
        tensor([[-0.7060,  0.6878,  0.0182]], dtype=torch.float64)
        >>> torch.autograd.grad(cheapest.with_gradient("exact")(cost)[0, 0], cost)[0].abs().max() < 1e-9
        tensor(True)
    """

    barrier: float

    differentiates_multipliers = True
    is_one_sided = False

    def __post_init__(self) -> None:
        if not is_number(self.barrier) or not 0 < self.barrier < math.inf:
            raise ValueError(
                f"barrier must be a positive number, in units of the objective, but is {self.barrier!r}: the smaller "
                "it is, the nearer the gradient is to the exact one."
            )

    def solve(self, point: Point, v: Tensor, w: Tensor) -> Pair:
        """(z, s) at the central points, in which it is then to be used too: all other methods do so."""
        return self._central(point).solve(v, w)

    def pull(self, point: Point, v: Tensor, w: Tensor, wanted: Sequence[int]) -> tuple[Tensor, ...]:
        return self._pull(Batch.pullback, point, v, w, wanted)

    def pull_each(self, point: Point, v: Tensor, w: Tensor, wanted: Sequence[int]) -> tuple[Tensor, ...]:
        return self._pull(Batch.pullback_each, point, v, w, wanted)

    def _pull(
        self, pullback: Callable[..., tuple[Tensor, ...]], point: Point, v: Tensor, w: Tensor, wanted: Sequence[int]
    ) -> tuple[Tensor, ...]:
        central = self._central(point)
        grads = pullback(central.batch, central.u, central.multipliers, *central.solve(v, w), wanted)
        return tuple(grad.to(point.batch.xs[i].dtype) for i, grad in zip(wanted, grads, strict=True))

    def push(self, point: Point, tangents: Sequence[Tensor], moving: Sequence[int]) -> Pair:
        central = self._central(point)
        wide = [tangent.to(central.u.dtype) for tangent in tangents]
        z, s = central.solve(*central.batch.pushforward(central.u, central.multipliers, wide, moving))
        return z.to(point.u.dtype), s.to(point.u.dtype)

    def _central(self, point: Point) -> _CentralPoint:
        batch, dtype = point.batch.in_double(point.u.dtype)
        u, multipliers = point.u.to(dtype), point.multipliers.to(dtype)
        exact = _CentralPoint(batch, u, multipliers, point.active.to(dtype), self.barrier)
        if not batch.q:
            return exact
        central_u, central_multipliers, found = _search(batch, self.barrier, u.detach())
        central = replace(exact, u=central_u, multipliers=central_multipliers).where(found, exact)
        for _ in range(NEWTON_STEPS):
            central = central.newton_step(found)
        return central


@dataclass(frozen=True)
class _CentralPoint:
    """Problems at points of the central path; those at their solutions have shares of 0 and 1."""

    batch: Batch
    u: Tensor  # (batch, m)
    multipliers: Tensor  # (batch, k)
    active: Tensor  # (batch, k)
    barrier: float

    def where(self, found: Tensor, other: _CentralPoint) -> _CentralPoint:
        """Itself where found, the other elsewhere."""
        chosen = found.unsqueeze(-1)
        u, multipliers = self.u.where(chosen, other.u), self.multipliers.where(chosen, other.multipliers)
        slack = -self.barrier / multipliers[:, self.batch.p :].where(chosen, -1.0)
        share = self.barrier / (self.barrier + slack.square())  # y / (y + slack), and no overflow
        share = torch.cat([torch.ones_like(multipliers[:, : self.batch.p]), share], -1)
        return replace(self, u=u, multipliers=multipliers, active=share.where(chosen, other.active))

    def system(self) -> BarrierSystem:
        """The derivative of the conditions that hold here, made symmetric."""
        here = self.batch.expand(self.u, self.multipliers)
        return BarrierSystem(self.batch.layout, here.curvature, here.jacobian, self.active)

    def solve(self, v: Tensor, w: Tensor) -> Pair:
        """(z, s) with H z + A' s = v and A z - slack / multiplier * s = w."""
        root = self.active.sqrt()
        z, s = self.system().solve(v.to(self.u.dtype), root * w.to(self.u.dtype))
        return z, root * s

    def newton_step(self, found: Tensor) -> _CentralPoint:
        """The same after a Newton step on D_U L = 0, h = 0, g + barrier / y = 0, of which a derivative can be taken."""
        _, slope, values, _ = self.batch.slopes(self.u, self.multipliers)
        p = self.batch.p
        slack = -self.barrier / self.multipliers[:, p:].where(found.unsqueeze(-1), -1.0)
        miss = torch.where(values[:, p:].isfinite(), values[:, p:] + slack, 0.0)
        z, s = self.solve(-slope, -torch.cat([values[:, :p], miss], -1))
        return replace(self, u=self.u + z, multipliers=self.multipliers - s).where(found, self)


class _Search(torch.autograd.Function):
    """Points of the central path and whether they were found, as constants; under vmap, of one larger batch."""

    @staticmethod
    def forward(batch: Batch, barrier: float, u: Tensor, *xs: Tensor) -> tuple[Tensor, ...]:
        batch = batch.replace(xs)
        raw = Newton(max_iterations=ITERATIONS).centre(batch, u, barrier)
        assert raw.multipliers is not None
        slack = -barrier / raw.multipliers[:, batch.p :]
        missed = (batch.constraints(raw.y)[:, batch.p :].clamp(min=-FAR) + slack.clamp(max=FAR)).abs()
        good = (raw.codes == Status.CONVERGED) & (missed <= ROUGH * slack).all(-1)
        if not bool(good.all()):
            warn_of(~good, f"no point with a barrier of {barrier:g} was found", "the exact gradient was taken")
        return raw.y.clone(), raw.multipliers, good

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:  # noqa: ARG004
        ctx.mark_non_differentiable(*output)

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], batch: Batch, barrier: float, *tensors: Tensor
    ) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        count, size = info.batch_size, batch.size
        (u, *xs), (_, *dims) = fold(tensors, in_dims[2:], (0, *batch.in_dims), count, size)
        found = _search(batch.replace(xs, in_dims=tuple(dims), size=count * size), barrier, u)
        return tuple(x.unflatten(0, (count, size)) for x in found), (0, 0, 0)


def _search(batch: Batch, barrier: float, u: Tensor) -> tuple[Tensor, ...]:
    constants = [x.detach() for x in batch.xs]
    found: tuple[Tensor, ...] = _Search.apply(batch, barrier, u, *constants)  # type: ignore[no-untyped-call]
    return found
