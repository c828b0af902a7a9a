"""Projections onto the probability simplex: Euclidean (sparsemax) and entropic (softmax)."""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor

from declarative.linear import Pair, Solve, System
from declarative.optimality import kink_tolerance
from declarative.structure import Kind, Point

from .formula import Multipliers
from .inputs import Inputs, Number, ScalarParameter, visible
from .layer import Options
from .projection import Projection, ProjectionFormula
from .systems import IdentitySystem, InverseDiagonalSystem, OneConstraintSystem


def sums_to_one(x: Tensor, *rest: Tensor) -> Tensor:  # noqa: ARG001
    """1' u - 1."""
    return rest[-1].sum() - 1


def not_negative(x: Tensor, u: Tensor) -> Tensor:  # noqa: ARG001
    """-u <= 0."""
    return -u


def free_energy(x: Tensor, temperature: Number, u: Tensor) -> Tensor:
    """-x' u + temperature sum(u log u)."""
    return -(x * u).sum() + temperature * (u * u.log()).sum()


class SimplexProjection(Projection):
    """The nearest point of the probability simplex (sparsemax):

        minimise ||u - x||^2 / 2   subject to   1' u = 1 and u >= 0.

    The solution is max(x - t, 0) with the threshold t that makes it sum to one. Some entries are exactly zero; the
    gradient is that of the others, v minus its mean over them, and zero for the entries at zero.

    Shapes: x (batch, m) -> y (batch, m). An entry of -inf (a mask) is left out: zero, with zero gradient.

    Degenerate: an entry of x that equals the threshold is where the set of zeros changes. The solution has a kink
    there, and a one-sided derivative is taken, with a :class:`NumericalWarning`. A problem all of whose entries are
    -inf is ``Status.NOT_FINITE``.

    Example:
        >>> import torch
        >>> from problems import SimplexProjection
        >>> x = torch.tensor([[0.5, 0.9, -1.0]], requires_grad=True)
        >>> y = SimplexProjection()(x)
        >>> y.detach()
        tensor([[0.3000, 0.7000, 0.0000]])
        >>> torch.autograd.grad(y[0, 0], x)[0]
        tensor([[ 0.5000, -0.5000,  0.0000]])
    """

    def __init__(self, **options: Unpack[Options]) -> None:
        super().__init__(sums_to_one, not_negative, solver=Sparsemax(), start=_uniform, **options)

    def complete(self, x: Tensor) -> Inputs:
        return (_unmasked(x, 2.0),)  # the threshold is at most 1 below the largest


class EntropicSimplex(Projection):
    """The point of the probability simplex that balances a score with the entropy (softmax):

        minimise -x' u + temperature sum(u log u)   subject to   1' u = 1.

    The solution is softmax(x / temperature), which is positive by itself. H = diag(temperature / y), so that the
    approximate rules give y v / temperature, and the exact one y (v - y' v) / temperature.

    Shapes: x (batch, m), temperature () or (batch,) -> y (batch, m). An entry of -inf (a mask) is left out: zero, with
    zero gradient.

    Degenerate: entries that underflow are kept at a number as good as zero, whose inverse can be squared. A problem all
    of whose entries are -inf is ``Status.NOT_FINITE``.

    Args:
        temperature: the weight of the entropy; a number, or a tensor (see :class:`Layer`).
        **options: see :class:`Layer`.

    Example:
        >>> import torch
        >>> from problems import EntropicSimplex
        >>> EntropicSimplex()(torch.tensor([[0.0, 1.0, -torch.inf]]))
        tensor([[0.2689, 0.7311, 0.0000]])
    """

    optional = ("temperature",)

    def __init__(self, temperature: Number = 1.0, **options: Unpack[Options]) -> None:
        solver = Softmax(scalar=ScalarParameter("temperature", temperature))
        super().__init__(sums_to_one, objective=free_energy, solver=solver, start=_uniform, **options)

    def complete(self, x: Tensor, temperature: Tensor | None) -> Inputs:
        assert self.scalar is not None
        least = self.scalar.value if temperature is None else temperature.detach().to(x.dtype).unsqueeze(-1)
        return (_unmasked(x, 100 * least),)  # exp(-100) is lost beside 1

    def blank(self, *xs: Tensor) -> Tensor | None:
        return _mask(xs[0])


def _mask(x: Tensor) -> Tensor | None:
    """Where a score is -inf; None if none is, as nearly always."""
    if visible(x) and (not x.numel() or x.detach().amin().item() > -torch.inf):
        return None
    return x == -torch.inf


def _unmasked(x: Tensor, margin: Number) -> Tensor:
    """The scores, with a finite one so low that it cannot count, by the margin at least, in the place of -inf."""
    mask = _mask(x)
    if mask is None:
        return x
    top = x.detach().amax(-1, keepdim=True)
    return torch.where(mask, top - top.abs() - margin, x)


def _uniform(x: Tensor, *rest: Tensor) -> Tensor:  # noqa: ARG001
    return torch.ones_like(x) / x.shape[-1]


class SimplexSystem(IdentitySystem):
    """H = I with the constraints 1' u = 1 and -u <= 0, some of these active."""

    def rows(self, eye: Tensor) -> Tensor:
        return torch.cat([torch.ones_like(eye[:1]), -eye])

    def factorise(self) -> Solve:
        held = self.active[:, 1:]
        count = (~held).sum(-1, keepdim=True)

        def solve(r: Tensor, t: Tensor) -> Pair:
            fixed = 0.0 - torch.where(held, t[:, 1:], 0.0)
            free = torch.where(held, 0.0, r).sum(-1, keepdim=True)
            first = (free + fixed.sum(-1, keepdim=True) - t[:, :1]) / count
            z = torch.where(held, fixed, r - first)
            return z, torch.cat([first, torch.where(held, z + first - r, 0.0)], -1)

        return solve


class Sparsemax(ProjectionFormula):
    """max(x - t, 0), where t is the largest of (the sum of the k largest entries - 1) / k.

    That grows with k as long as the entry that joins is above it, and falls from then on.
    """

    linear_system = SimplexSystem

    def solution(self, x: Tensor) -> Tensor:
        x = x - x.amax(-1, keepdim=True)  # a shift does not move the solution, and large numbers lose digits
        count = torch.arange(1, x.shape[-1] + 1, dtype=x.dtype, device=x.device)
        thresholds = (x.sort(-1, descending=True).values.cumsum(-1) - 1) / count
        return (x - thresholds.amax(-1, keepdim=True)).relu()

    def conditions(self, x: Tensor, u: Tensor) -> Pair:
        return (u - self._margin(x, u).relu()).abs().amax(-1), (u.sum(-1) - 1).abs()

    def multipliers(self, x: Tensor, u: Tensor) -> Multipliers:
        """x + l is not positive where a bound holds u at zero, and then it is the bound's multiplier."""
        rows = torch.constant_pad_nd(self._margin(x, u), (1, 0), -torch.inf)  # the sum always counts
        small = kink_tolerance(u.dtype)
        active, weak = rows < -small, rows.abs() <= small
        multipliers = rows * active
        multipliers[:, :1] = u.amax(-1, keepdim=True) - x.amax(-1, keepdim=True)
        return multipliers, active, weak

    def _margin(self, x: Tensor, u: Tensor) -> Tensor:
        """x + l, where l, the multiplier of the sum, is the largest entry of u less that of x: u = max(x + l, 0).

        In this order, by which large numbers do not take digits away.
        """
        return x - x.amax(-1, keepdim=True) + u.amax(-1, keepdim=True)


class Softmax(ProjectionFormula):
    """exp(x / temperature), normalised; what underflows is kept above zero."""

    def solution(self, x: Tensor, temperature: Tensor) -> Tensor:
        return (x / temperature).softmax(-1).clamp(min=torch.finfo(x.dtype).tiny ** 0.4)

    def conditions(self, x: Tensor, temperature: Tensor, u: Tensor) -> Pair:
        """An entry counts as little as it is."""
        level, least = self._level(x, temperature, u)
        return (u * ((level - least) / (level.abs() + 1))).amax(-1), (u.sum(-1) - 1).abs()

    def multipliers(self, x: Tensor, temperature: Tensor, u: Tensor) -> Multipliers:
        return temperature * (self._level(x, temperature, u)[1] + 1), None, None

    def _level(self, x: Tensor, temperature: Tensor, u: Tensor) -> Pair:  # (batch, m), (batch, 1)
        """log u_i - x_i / temperature, which is the same for all i, and the least of them.

        It is larger where u_i has underflowed and is kept above zero.
        """
        level = u.log() - x / temperature
        return level, level.amin(-1, keepdim=True)

    def system(self, point: Point, kind: Kind) -> System:
        *_, temperature = self.arguments(point.batch, point.u)
        inverse = point.u / temperature
        if kind != "full":
            return InverseDiagonalSystem(inverse)
        return OneConstraintSystem(1 / inverse, inverse.detach(), torch.ones_like(point.u), point.active)

    def pull_scalar(self, value: Tensor, u: Tensor, z: Tensor, s: Tensor) -> Tensor:  # noqa: ARG002
        """B = log u + 1."""
        return -(z * (u.log() + 1)).sum(-1)
