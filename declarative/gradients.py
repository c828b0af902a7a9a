"""The gradient rules. All of back-propagation is one formula, g = -(B' z + C' s); a rule is a way to choose (z, s).

| rule            | (z, s)                             | what it ignores                                        |
|-----------------|------------------------------------|--------------------------------------------------------|
| `exact`         | [H A'; A 0] [z; s] = [v; 0]        | nothing: Proposition 2.1, also where only H is singular |
| `curvature`     | H z = v, s = 0                     | that the solution stays on the constraints             |
| `unconstrained` | H_hat z = v, s = 0, B from f alone | the constraints altogether: the paper's approximation  |
| `identity`      | z = v, s = 0                       | the curvature too: Jacobian-free                       |
"""

from __future__ import annotations

import abc
import functools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .linear import Pair, Solve, or_one
from .linear.contract import Wanted
from .linear.directions import irregular
from .problem import Batch
from .structure import Point
from .torchside import transformed


class Rule(abc.ABC):
    """A gradient rule: a symmetric linear map from a right-hand side (v, w) to (z, s).

    ``v`` is the cotangent of the solution and ``w`` minus that of the multipliers (zero unless a loss uses them).
    Being symmetric, the same map serves reverse mode and forward mode.

    Example:
        >>> import torch
        >>> from declarative import DeclarativeNode, Rule
        >>> class Halved(Rule):
        ...     def solve(self, point, v, w):
        ...         return v / 2, torch.zeros_like(w)
        >>> sphere = DeclarativeNode(lambda x, u: (u - x).square().sum(), lambda x, u: u.square().sum() - 1,
        ...                          solver=lambda x: torch.nn.functional.normalize(x), gradient=Halved())
        >>> x = torch.tensor([[3.0, 4.0]], requires_grad=True)
        >>> torch.autograd.grad(sphere(x)[0, 0], x)[0]  # -B'z with B = -2 I
        tensor([[1., 0.]])
    """

    keeps_multipliers = True  # whether B is taken from the Lagrangian or, if not, from the objective alone
    differentiates_multipliers = False  # whether the multipliers have a gradient too
    is_one_sided = True  # whether a constraint that is just active leaves it the derivative of one side alone

    @abc.abstractmethod
    def solve(self, point: Point, v: Tensor, w: Tensor) -> Pair:  # (batch, m), (batch, k)
        """Choose (z, s)."""

    def pull(self, point: Point, v: Tensor, w: Tensor, wanted: Sequence[int]) -> tuple[Tensor, ...]:
        """Reverse mode: g = -(B' z + C' s) for the wanted inputs."""
        z, s = self.solve(point, v, w)
        return point.batch.pullback(point.u, self._multipliers(point), z, s, wanted)

    def pull_each(self, point: Point, v: Tensor, w: Tensor, wanted: Sequence[int]) -> tuple[Tensor, ...]:
        """The same, with one row for each problem also where the batch shares an input."""
        batch = point.batch
        pullback = batch.pullback_each if None in batch.in_dims else batch.pullback
        return pullback(point.u, self._multipliers(point), *self.solve(point, v, w), wanted)

    def push(self, point: Point, tangents: Sequence[Tensor], moving: Sequence[int]) -> Pair:
        """Forward mode: (dy, -dl) for the tangents of the moving inputs."""
        r, t = point.batch.pushforward(point.u, self._multipliers(point), tangents, moving)
        return self.solve(point, r, t)

    def _multipliers(self, point: Point) -> Tensor | None:
        return point.multipliers if self.keeps_multipliers else None


@dataclass(frozen=True)
class Exact(Rule):
    """Proposition 2.1: the derivative of the solution.

    Example:
        >>> import torch
        >>> from declarative import DeclarativeNode, Exact
        >>> sphere = DeclarativeNode(lambda x, u: (u - x).square().sum(), lambda x, u: u.square().sum() - 1,
        ...                          solver=lambda x: torch.nn.functional.normalize(x), gradient=Exact())
        >>> x = torch.tensor([[3.0, 4.0]], requires_grad=True)
        >>> torch.autograd.grad(sphere(x)[0, 0], x)[0]
        tensor([[ 0.1280, -0.0960]])
    """

    differentiates_multipliers = True

    def solve(self, point: Point, v: Tensor, w: Tensor) -> Pair:
        return point.system("full").solve(v, w)

    def pull(self, point: Point, v: Tensor, w: Tensor, wanted: Sequence[int]) -> tuple[Tensor, ...]:
        found = point.pullback_at_once(v, w, wanted)
        if found is not None:
            return found
        return point.batch.pullback(point.u, point.multipliers, *self._solve_for(point, v, w, wanted), wanted)

    def pull_each(self, point: Point, v: Tensor, w: Tensor, wanted: Sequence[int]) -> tuple[Tensor, ...]:
        batch = point.batch
        pullback = batch.pullback_each if None in batch.in_dims else batch.pullback
        return pullback(point.u, point.multipliers, *self._solve_for(point, v, w, wanted), wanted)

    def _solve_for(self, point: Point, v: Tensor, w: Tensor, wanted: Sequence[int]) -> Pair:
        """(z, s) for the gradient of some inputs, which is what a doubt about them is judged by."""
        return point.system("full").wanted_for(_Gradient(point, tuple(wanted))).solve(v, w)

    def push(self, point: Point, tangents: Sequence[Tensor], moving: Sequence[int]) -> Pair:
        r, t = point.batch.pushforward(point.u, point.multipliers, tangents, moving)
        return point.system("full").wanted_for(_Derivative(point)).solve(r, t)


@dataclass(frozen=True)
class Curvature(Rule):
    """Proposition 2.1 with the constraint Jacobian dropped and the constraints' curvature kept.

    A pseudo-inverse is used where H is singular. For an eigenvector that makes the rule exact.

    Example:
        >>> import torch
        >>> from declarative import DeclarativeNode, Curvature
        >>> sphere = DeclarativeNode(lambda x, u: (u - x).square().sum(), lambda x, u: u.square().sum() - 1,
        ...                          solver=lambda x: torch.nn.functional.normalize(x), gradient=Curvature())
        >>> x = torch.tensor([[3.0, 4.0]], requires_grad=True)
        >>> torch.autograd.grad(sphere(x)[0, 0], x)[0]  # v / ||x||
        tensor([[0.2000, 0.0000]])
    """

    def solve(self, point: Point, v: Tensor, w: Tensor) -> Pair:
        return point.system("curvature").solve(v, w)


@dataclass(frozen=True)
class Unconstrained(Rule):
    """The paper's approximation: the gradient of the problem without its constraints, at the constrained solution.

    Where D^2_UU f is singular its pseudo-inverse is used: directions without curvature get no gradient.

    Example:
        >>> import torch
        >>> from declarative import DeclarativeNode, Unconstrained
        >>> sphere = DeclarativeNode(lambda x, u: (u - x).square().sum(), lambda x, u: u.square().sum() - 1,
        ...                          solver=lambda x: torch.nn.functional.normalize(x), gradient=Unconstrained())
        >>> x = torch.tensor([[3.0, 4.0]], requires_grad=True)
        >>> torch.autograd.grad(sphere(x)[0, 0], x)[0]  # v
        tensor([[1., 0.]])
    """

    keeps_multipliers = False

    def solve(self, point: Point, v: Tensor, w: Tensor) -> Pair:
        return point.system("objective").solve(v, w)


@dataclass(frozen=True)
class Identity(Rule):
    """No linear system at all: g = -B' v.

    Example:
        >>> import torch
        >>> from declarative import DeclarativeNode, Identity
        >>> sphere = DeclarativeNode(lambda x, u: (u - x).square().sum(), lambda x, u: u.square().sum() - 1,
        ...                          solver=lambda x: torch.nn.functional.normalize(x), gradient=Identity())
        >>> x = torch.tensor([[3.0, 4.0]], requires_grad=True)
        >>> torch.autograd.grad(sphere(x)[0, 0], x)[0]  # B = -2 I
        tensor([[2., 0.]])
    """

    def solve(self, point: Point, v: Tensor, w: Tensor) -> Pair:  # noqa: ARG002
        return v, torch.zeros_like(w)


CANCELLED = 1e-3  # of the terms that an entry of a gradient is left of: one that is less may be zero
FEW_DIGITS = 100  # roots of a unit in the last place: an entry that is less, of what it usually is, may be zero
MIXTURES = (0.7, 1.9, 3.1)  # of signs


class _OfPoint(Wanted):
    """What the derivative of a solution is wanted for, at a point."""

    def __init__(self, point: Point) -> None:
        self.point = point

    @abc.abstractmethod
    def wanted(self, multipliers: Tensor, z: Tensor, s: Tensor) -> Tensor:
        """What becomes of (z, s), linear in them, flattened, (batch, n)."""

    def is_affected(self, solution: Pair, usual: Pair, change: Pair, tolerance: float) -> Tensor | None:
        parts = self._of_point(*solution, *usual, *change)
        if parts is None:
            return None
        z, s, usual_z, usual_s, *move = parts
        moved = self.wanted(self.point.multipliers.detach(), *move)
        return self._exceeds(moved, (z, s), (usual_z, usual_s), move, tolerance)

    def is_turned(
        self, solution: Pair, usual: Pair, multipliers: Tensor, solve: Solve, tolerance: float
    ) -> Tensor | None:
        """By D^2_UU L, which turns the solution, and by B."""
        parts = self._of_point(*solution, *usual, multipliers)
        if parts is None:
            return None
        z, s, usual_z, usual_s, turn = parts
        if not turn.shape[-1]:
            return torch.zeros_like(z[:, 0], dtype=torch.bool)
        batch, u, here = self.batch, self.point.u.detach(), self.point.multipliers.detach()
        turn = turn * (or_one(here.abs().amax(-1)) / or_one(turn.abs().amax(-1))).unsqueeze(-1)
        none = torch.zeros_like(s)
        bend = batch.product(u, turn, z, none) - batch.product(u, none, z, none)
        move = [x.to(z.dtype) for x in solve(bend.to(solution[0].dtype), none.to(solution[1].dtype))]
        by_slopes = self.wanted(here + turn, z, s) - self.wanted(here, z, s)
        moved = self.wanted(here, *move).abs() + by_slopes.abs()
        return self._exceeds(moved, (z, s), (usual_z, usual_s), move, tolerance)

    @functools.cached_property
    def batch(self) -> Batch:
        """The problems, with inputs that nothing is differentiated through."""
        return self.point.batch.replace([x.detach() for x in self.point.batch.xs])

    def _of_point(self, *parts: Tensor) -> list[Tensor] | None:
        """Plain tensors of the point's precision; None where the problems are others than its own."""
        if transformed() or len(parts[0]) != self.point.batch.size:
            return None
        return [x.detach().to(self.point.u.dtype) for x in parts]

    def _exceeds(
        self, moved: Tensor, solution: Pair, usual: Pair, move: Sequence[Tensor], tolerance: float
    ) -> Tensor:  # (batch,)
        """Whether an entry changes by too much, beside itself and beside the terms that it is left of.

        How large these are is seen from what they add up to with other signs.
        """

        def terms(z: Tensor, s: Tensor) -> Tensor:
            signs = ((irregular(z, twist).sign(), irregular(s, twist + 1).sign()) for twist in MIXTURES)
            return torch.stack([self.wanted(here, z * one, s * other) for one, other in signs]).abs().amax(0)

        here, few = self.point.multipliers.detach(), FEW_DIGITS * torch.finfo(moved.dtype).eps ** 0.5
        cancelled = max(CANCELLED, few) * torch.maximum(terms(*solution), terms(*move))
        size = torch.maximum(self.wanted(here, *solution).abs(), torch.maximum(cancelled, few * terms(*usual)))
        exceeds: Tensor = (moved.abs() > tolerance * size).any(-1)
        return exceeds


class _Gradient(_OfPoint):
    """The gradient -(B'z + C's) with respect to some inputs."""

    def __init__(self, point: Point, inputs: tuple[int, ...]) -> None:
        super().__init__(point)
        self.inputs = inputs

    def wanted(self, multipliers: Tensor, z: Tensor, s: Tensor) -> Tensor:
        pull = self.batch.pullback_each if None in self.batch.in_dims else self.batch.pullback
        return as_rows(pull(self.point.u.detach(), multipliers, z, s, self.inputs), z).detach()


class _Derivative(_OfPoint):
    """The derivative of the solution along a tangent, z itself; that of the multipliers may be one of many."""

    def wanted(self, multipliers: Tensor, z: Tensor, s: Tensor) -> Tensor:  # noqa: ARG002
        return z


def as_rows(grads: Sequence[Tensor], like: Tensor) -> Tensor:  # like: (batch, ...) -> (batch, n)
    """The gradients of several inputs, one row per problem each, flattened and concatenated in order."""
    return torch.cat([grad.reshape(len(like), -1).to(like.dtype) for grad in grads], -1)


def gradient_rows(rule: Rule, point: Point, v: Tensor, wanted: Sequence[int]) -> Tensor:  # (batch, n)
    """The gradient that a rule gives each problem, of a loss that does not use the multipliers, flattened."""
    return as_rows(rule.pull_each(point, v, torch.zeros_like(point.multipliers), wanted), v)


RULES: dict[str, Rule] = {
    "exact": Exact(),
    "unconstrained": Unconstrained(),
    "curvature": Curvature(),
    "identity": Identity(),
}


def as_rule(gradient: str | Rule) -> Rule:
    """The rule of this name, or the rule itself."""
    if isinstance(gradient, Rule):
        return gradient
    if not isinstance(gradient, str) or gradient not in RULES:
        raise ValueError(f"gradient must be one of {', '.join(map(repr, RULES))} or a Rule, but is {gradient!r}.")
    return RULES[gradient]
