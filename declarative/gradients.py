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
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .linear.contract import Pair
from .structure import Point


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
        return super().pull(point, v, w, wanted) if found is None else found


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
