"""A backward pass of the exact rule, observed: the certificate of a cheap gradient, and the truth beside."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from declarative import DeclarativeNode, Rule
from declarative.gradients import RULES
from declarative.structure import Point
from declarative.theory.certificate import Certificate, certify
from declarative.theory.schur_complement import SchurComplement

Complement = Callable[[Point], SchurComplement]


@dataclass(frozen=True)
class Certified:
    """A backward pass: what was proven, and what is true."""

    certificate: Certificate
    g: Tensor  # exact, (batch, n)
    g_hat: Tensor

    @classmethod
    def at(
        cls,
        point: Point,
        v: Tensor,
        wanted: Sequence[int],
        cheap: str,
        complement: Complement | None = None,
        **options: Any,
    ) -> Certified:
        """Certify the gradient of a cheap rule."""
        known = None if complement is None else complement(point)
        g, g_hat = (pull(RULES[name], point, v, wanted) for name in ("exact", cheap))
        return cls(certify(point, v, g_hat, wanted, known, **options), flat(g), flat(g_hat))

    @property
    def product(self) -> Tensor:
        """g'g_hat, (batch,)."""
        return (self.g * self.g_hat).sum(-1)

    def false(self, share: float = 0.0) -> int:
        """How many certificates are wrong."""
        certificate, excess = self.certificate, self.product - share * self.g_hat.square().sum(-1)
        return int(((certificate.descends & (excess < 0)) | (certificate.ascends & (excess > 0))).sum())


class Observed(Rule):
    """The exact rule, which hands the point of every backward pass to a function."""

    def __init__(self, look: Callable[[Point, Tensor, Sequence[int]], None]) -> None:
        self.look = look

    def solve(self, point: Point, v: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        return RULES["exact"].solve(point, v, w)

    def pull(self, point: Point, v: Tensor, w: Tensor, wanted: Sequence[int]) -> tuple[Tensor, ...]:
        self.look(point, v, wanted)
        return super().pull(point, v, w, wanted)


def backward(node: DeclarativeNode, xs: Sequence[Tensor], v: Tensor, look: Callable[..., None]) -> None:
    """Solve, and look at the backward pass."""
    inputs = [x.detach().requires_grad_() for x in xs]
    y = node.with_gradient(Observed(look))(*inputs)
    torch.autograd.grad(y, inputs, v.reshape(y.shape))


def pull(rule: Rule, point: Point, v: Tensor, wanted: Sequence[int]) -> tuple[Tensor, ...]:
    """The gradient of a rule."""
    return rule.pull(point, v, torch.zeros_like(point.multipliers), wanted)


def flat(grads: Sequence[Tensor]) -> Tensor:  # (batch, n)
    """All of them side by side."""
    return torch.cat([grad.reshape(len(grad), -1) for grad in grads], -1)
