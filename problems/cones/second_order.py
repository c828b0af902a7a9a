"""The second-order cone {(t, x): |x| <= t}, its own dual."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .cone import Cone, Face, Scaling, first_bound

APEX, SURFACE, INSIDE = 2.0, 1.0, 0.0


def determinant(x: Tensor) -> Tensor:  # (..., d) -> (..., 1)
    """t^2 - |x|^2, from its factors, which keeps digits near the boundary."""
    length = torch.linalg.vector_norm(x[..., 1:], dim=-1, keepdim=True)
    product: Tensor = (x[..., :1] - length) * (x[..., :1] + length)
    return product


def reflected(x: Tensor) -> Tensor:
    """J x = (t, -x)."""
    return torch.cat([x[..., :1], -x[..., 1:]], -1)


def jordan(x: Tensor, y: Tensor) -> Tensor:
    """x o y = (x'y, x_0 y_1 + y_0 x_1)."""
    return torch.cat([(x * y).sum(-1, keepdim=True), x[..., :1] * y[..., 1:] + y[..., :1] * x[..., 1:]], -1)


class SecondOrderScaling(Scaling):
    """H = W^2, the scaling of Nesterov and Todd: W z = W^-1 s = l.

    W = eta [w_0 w_1'; w_1 I + w_1 w_1' / (1 + w_0)] with w' J w = 1, and W^2 = eta^2 (2 w w' - J).
    """

    def __init__(self, s: Tensor, z: Tensor) -> None:
        det_s, det_z = determinant(s), determinant(z)
        self.eta, given = (det_s / det_z).sqrt().sqrt(), z
        s, z = s / det_s.sqrt(), z / det_z.sqrt()
        gamma = ((1 + (s * z).sum(-1, keepdim=True)) / 2).sqrt()
        w = (s + reflected(z)) / (2 * gamma)
        # w_0 from w_1: so that w' J w is 1 up to rounding, however near to the boundary the points are.
        first = (1 + w[..., 1:].square().sum(-1, keepdim=True)).sqrt()
        self.w = torch.cat([first, w[..., 1:]], -1)
        self.middle = self._root(given)

    def _root(self, x: Tensor) -> Tensor:
        """W x."""
        w0, w1 = self.w[..., :1], self.w[..., 1:]
        inner = (w1 * x[..., 1:]).sum(-1, keepdim=True)
        rest = x[..., 1:] + (x[..., :1] + inner / (1 + w0)) * w1
        return self.eta * torch.cat([w0 * x[..., :1] + inner, rest], -1)

    def _divide_root(self, x: Tensor) -> Tensor:
        """W^-1 x."""
        return reflected(self._root(reflected(x))) / self.eta.square()

    def scaled(self, x: Tensor) -> Tensor:
        first, rest, w0, w1 = x[..., :1, :], x[..., 1:, :], self.w[..., :1, None], self.w[..., 1:, None]
        inner = w1.mT @ rest
        turned = torch.cat([w0 * first - inner, rest + (inner / (1 + w0) - first) * w1], -2)
        return turned / self.eta.unsqueeze(-1)

    def slack(self, x: Tensor) -> Tensor:
        return self._root(x)

    def multiplier(self, x: Tensor) -> Tensor:
        return self.scaled(x.unsqueeze(-1)).squeeze(-1)

    def target(self, ds: Tensor | None, dz: Tensor | None, mu: Tensor) -> Tensor:
        if ds is None or dz is None:
            return self.middle
        right = jordan(ds, dz)
        right = torch.cat([right[..., :1] - mu, right[..., 1:]], -1)
        return self.middle + _jordan_quotient(self.middle, right)

    def longest(self, ds: Tensor, dz: Tensor) -> Tensor:
        return torch.minimum(_longest(self.middle, ds), _longest(self.middle, dz))


def _jordan_quotient(x: Tensor, y: Tensor) -> Tensor:
    """The v with x o v = y."""
    inner = (x[..., 1:] * y[..., 1:]).sum(-1, keepdim=True)
    first = (x[..., :1] * y[..., :1] - inner) / determinant(x)
    return torch.cat([first, (y[..., 1:] - first * x[..., 1:]) / x[..., :1]], -1)


def _longest(x: Tensor, dx: Tensor) -> Tensor:
    """The first positive root a of det(x + a dx) = 0."""
    det = determinant(x)
    half = (x * reflected(dx)).sum(-1, keepdim=True)
    below = half.square() - determinant(dx) * det
    divisor = below.clamp(min=0.0).sqrt() - half
    root = torch.where((below >= 0) & (divisor > 0), det / divisor, torch.inf)
    straight = torch.where(dx[..., :1] < 0, -x[..., :1] / dx[..., :1], torch.inf)
    return first_bound(torch.minimum(root, straight))


class SecondOrderFace(Face):
    """s_0 = |s_1| on the surface, s = 0 at the apex."""

    def __init__(self, s: Tensor, z: Tensor, states: Tensor, active: Tensor) -> None:
        self.s, self.active = s, active
        surface, apex = (states.unsqueeze(-1) == kind for kind in (SURFACE, APEX))
        self.apex, self.surface = apex.unsqueeze(-1), surface.unsqueeze(-1)
        rest = torch.where(surface, s[..., 1:], 1.0)  # so that no derivative of what is not used is infinite
        self.length = torch.linalg.vector_norm(rest, dim=-1, keepdim=True)
        self.direction = rest / self.length
        normal = torch.cat([torch.ones_like(self.length), -self.direction], -1) / 2**0.5
        self.normal = torch.where(surface, normal, 0.0).unsqueeze(-1)
        self.pull = torch.where(surface, z[..., :1] / self.length, 0.0).unsqueeze(-1)

    def value(self) -> Tensor:
        return torch.where(self.active, torch.where(self.apex.squeeze(-1), self.s, self._gap()), 0.0)

    def _gap(self) -> Tensor:
        gap: Tensor = (self.s[..., :1] - self.length) / 2**0.5
        return gap

    def across(self, x: Tensor) -> Tensor:
        first = self.normal.mT @ x
        curved = torch.nn.functional.pad(first, (0, 0, 0, x.shape[-2] - 1))
        return torch.where(self.apex, x, curved)

    def along(self, y: Tensor) -> Tensor:
        return torch.where(self.apex, y, self.normal * y[..., :1, :])

    def coordinates(self, z: Tensor) -> Tensor:
        return self.across(z.unsqueeze(-1)).squeeze(-1)

    def bend(self, x: Tensor) -> Tensor:
        rest, direction = x[..., 1:, :], self.direction.unsqueeze(-1)
        bent = self.pull * (rest - direction * (direction.mT @ rest))
        return torch.nn.functional.pad(bent, (0, 0, 1, 0))


@dataclass(frozen=True)
class SecondOrder(Cone):
    """Points (t, x) with |x| <= t."""

    @property
    def degree(self) -> int:
        return self.count

    def unit(self, like: Tensor) -> Tensor:
        unit = like.new_zeros(self.count, self.size)
        unit[:, 0] = 1.0
        return unit

    def scaling(self, s: Tensor, z: Tensor, mu: Tensor) -> Scaling:  # noqa: ARG002
        return SecondOrderScaling(s, z)

    def depth(self, x: Tensor) -> Tensor:
        depth: Tensor = x[..., 0] - torch.linalg.vector_norm(x[..., 1:], dim=-1)
        return depth

    def boundary(self, s: Tensor) -> Tensor:
        return s[..., 1:].square().sum(-1).sqrt() - s[..., 0]

    def barrier(self, s: Tensor, z: Tensor) -> Tensor:
        inside = ((self.depth(s) > 0) & (self.depth(z) > 0)).unsqueeze(-1)
        product = torch.where(inside, determinant(s) * determinant(z), 0.0)
        return -(product.log() / 2 + 1).sum((-2, -1))

    def states(self, s: Tensor, z: Tensor) -> Tensor:
        """Each eigenvalue of s, t - |x| and t + |x|, against its counterpart of z."""
        (low_s, high_s), (low_z, high_z) = _eigenvalues(s), _eigenvalues(z)
        inside, apex = low_s > high_z, low_z > high_s
        return torch.where(inside, INSIDE, torch.where(apex, APEX, SURFACE)).to(s.dtype)

    def active(self, states: Tensor) -> Tensor:
        kind, first = states.unsqueeze(-1), torch.arange(self.size, device=states.device) == 0
        return (kind == APEX) | ((kind == SURFACE) & first)

    def is_weak(self, s: Tensor, z: Tensor, states: Tensor, small: Tensor) -> Tensor:  # noqa: ARG002
        (low_s, high_s), (low_z, high_z) = _eigenvalues(s), _eigenvalues(z)
        return (torch.maximum(low_s, high_z) <= small) | (torch.maximum(high_s, low_z) <= small)

    def face(self, s: Tensor, z: Tensor, states: Tensor) -> Face:
        return SecondOrderFace(s, z, states, self.active(states))


def _eigenvalues(x: Tensor) -> tuple[Tensor, Tensor]:
    length = torch.linalg.vector_norm(x[..., 1:], dim=-1)
    return x[..., 0] - length, x[..., 0] + length
