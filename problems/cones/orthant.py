"""The zero cone {0}, whose rows are equations, and the nonnegative orthant."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .cone import Cone, Face, Scaling, first_bound


class OrthantScaling(Scaling):
    """W = sqrt(s / z)."""

    def __init__(self, s: Tensor, z: Tensor) -> None:
        self.root, self.middle = (s / z).sqrt(), (s * z).sqrt()

    def scaled(self, x: Tensor) -> Tensor:
        return x / self.root.unsqueeze(-1)

    def slack(self, x: Tensor) -> Tensor:
        return self.root * x

    def multiplier(self, x: Tensor) -> Tensor:
        return x / self.root

    def target(self, ds: Tensor | None, dz: Tensor | None, mu: Tensor) -> Tensor:
        return self.middle if ds is None or dz is None else self.middle + (ds * dz - mu) / self.middle

    def longest(self, ds: Tensor, dz: Tensor) -> Tensor:
        fall = -torch.minimum(ds, dz) / self.middle
        return first_bound(torch.where(fall > 0, 1 / fall, torch.inf))


@dataclass(frozen=True)
class FlatFace(Face):
    """The entries that are zero; N is the identity where they are."""

    s: Tensor
    active: Tensor

    def value(self) -> Tensor:
        return torch.where(self.active, self.s, 0.0)

    def across(self, x: Tensor) -> Tensor:
        return torch.where(self.active.unsqueeze(-1), x, 0.0)

    def along(self, y: Tensor) -> Tensor:
        return self.across(y)

    def coordinates(self, z: Tensor) -> Tensor:
        return torch.where(self.active, z, 0.0)

    def bend(self, x: Tensor) -> Tensor:
        return torch.zeros_like(x)


@dataclass(frozen=True)
class Orthant(Cone):
    """Nonnegative numbers."""

    @property
    def degree(self) -> int:
        return self.count

    def unit(self, like: Tensor) -> Tensor:
        return like.new_ones(self.count, 1)

    def scaling(self, s: Tensor, z: Tensor, mu: Tensor) -> Scaling:  # noqa: ARG002
        return OrthantScaling(s, z)

    def depth(self, x: Tensor) -> Tensor:
        return x.squeeze(-1)

    def boundary(self, s: Tensor) -> Tensor:
        return -s.squeeze(-1)

    def barrier(self, s: Tensor, z: Tensor) -> Tensor:
        product = torch.where((s > 0) & (z > 0), s * z, 0.0)
        return -(product.log() + 1).sum((-2, -1))

    def states(self, s: Tensor, z: Tensor) -> Tensor:
        """1 where the slack is zero."""
        return (z > s).squeeze(-1).to(s.dtype)

    def active(self, states: Tensor) -> Tensor:
        return states.unsqueeze(-1) > 0

    def is_weak(self, s: Tensor, z: Tensor, states: Tensor, small: Tensor) -> Tensor:  # noqa: ARG002
        return torch.maximum(s, z).squeeze(-1) <= small

    def face(self, s: Tensor, z: Tensor, states: Tensor) -> Face:  # noqa: ARG002
        return FlatFace(s, self.active(states))


@dataclass(frozen=True)
class Zero(Orthant):
    """Numbers that are zero, whose multipliers are free; an interior-point method takes them as equations."""

    @property
    def degree(self) -> int:
        return 0

    def unit(self, like: Tensor) -> Tensor:
        return like.new_zeros(self.count, 1)

    def depth(self, x: Tensor) -> Tensor:
        return -x.abs().squeeze(-1)

    def dual_depth(self, z: Tensor) -> Tensor:
        return torch.full_like(z, torch.inf).squeeze(-1)

    def barrier(self, s: Tensor, z: Tensor) -> Tensor:  # noqa: ARG002
        return s.new_zeros(len(s))

    def states(self, s: Tensor, z: Tensor) -> Tensor:  # noqa: ARG002
        return torch.ones_like(s).squeeze(-1)

    def is_weak(self, s: Tensor, z: Tensor, states: Tensor, small: Tensor) -> Tensor:  # noqa: ARG002
        return torch.zeros_like(states, dtype=torch.bool)
