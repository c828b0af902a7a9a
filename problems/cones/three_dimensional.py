"""What the exponential and the power cones have in common: three entries, and a barrier that is not symmetric.

The dual cone has a barrier f* in closed form; the gradient of its conjugate f, a scalar equation. The scaling is that
of Tuncel, as Dahl and Andersen use it: the H with H z = s and H z' = s' for the shadows z' = -grad f(s) and
s' = -grad f*(z) that is nearest to mu f*''(z).
"""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from .cone import Cone, Face, Scaling


class Slopes(NamedTuple):
    """The barrier of the dual cone, with its first and second derivatives."""

    value: Tensor  # (batch, count)
    gradient: Tensor  # (batch, count, 3)
    hessian: Tensor  # (batch, count, 3, 3)


INSIDE, CURVED, FLAT = 0.0, 1.0, 2.0  # states; to FLAT is added 1, 2 and 4 for the entries that are zero
APEX = FLAT + 7.0
DIFFERENCE = 1e-3  # in units of the local norm, for a derivative by differences
NEGLIGIBLE = 1e-6  # of a slack and of its multiplier at once: the entry of a flat face


@dataclass(frozen=True)
class ThreeDimensional(Cone, abc.ABC):
    """Abstract: a group of cones of three entries."""

    symmetric = False

    @property
    def degree(self) -> int:
        return 3 * self.count

    @abc.abstractmethod
    def dual_barrier(self, z: Tensor) -> Slopes:
        """f* at interior points of the dual cone."""

    @abc.abstractmethod
    def shadow(self, s: Tensor) -> Tensor:
        """-grad f(s) for interior points s: the z with -grad f*(z) = s."""

    @abc.abstractmethod
    def flat_entries(self, s: Tensor, z: Tensor) -> Tensor:  # (batch, count, 3)
        """Which entries of s are zero on the flat part of the boundary where it lies, if on any."""

    def states(self, s: Tensor, z: Tensor) -> Tensor:
        size_s, size_z = (torch.linalg.vector_norm(x, dim=-1) for x in (s, z))
        bits = torch.tensor([1.0, 2.0, 4.0], dtype=s.dtype, device=s.device)
        flat = (self.flat_entries(s, z) * bits).sum(-1)
        states = torch.where(flat > 0, FLAT + flat, CURVED)
        states = torch.where(self.dual_depth(z) > size_s, APEX, states)
        return torch.where(self.depth(s) > size_z, INSIDE, states)

    def active(self, states: Tensor) -> Tensor:
        return active_rows(states)

    def is_weak(self, s: Tensor, z: Tensor, states: Tensor, small: Tensor) -> Tensor:  # noqa: ARG002
        size_s, size_z = (torch.linalg.vector_norm(x, dim=-1) for x in (s, z))
        return (torch.maximum(self.depth(s), size_z) <= small) | (torch.maximum(self.dual_depth(z), size_s) <= small)

    def scaling(self, s: Tensor, z: Tensor, mu: Tensor) -> Scaling:
        return TuncelScaling(self, s, z, mu)

    def barrier(self, s: Tensor, z: Tensor) -> Tensor:
        inside = ((self.depth(s) > 0) & (self.dual_depth(z) > 0)).unsqueeze(-1)
        unit = self.unit(s).expand_as(s)
        s, z = torch.where(inside, s, unit), torch.where(inside, z, unit)
        value = self.dual_barrier(z).value - 3 - self.dual_barrier(self.shadow(s)).value  # f(s) = -3 - f*(shadow)
        return torch.where(inside.squeeze(-1), value, torch.inf).sum(-1)


class TuncelScaling(Scaling):
    """W' with H = W' W."""

    def __init__(self, cone: ThreeDimensional, s: Tensor, z: Tensor, mu: Tensor) -> None:
        slopes, shadow_z = cone.dual_barrier(z), cone.shadow(s)
        self.root, self.inverse = _roots(s, z, -slopes.gradient, shadow_z, slopes.hessian, mu)
        self.s, self.gradient = self._inverse(s), self._inverse(slopes.gradient)
        self.cone, self.z, self.hessian = cone, z, slopes.hessian

    def _inverse(self, x: Tensor) -> Tensor:
        return (self.inverse @ x.unsqueeze(-1)).squeeze(-1)

    def scaled(self, x: Tensor) -> Tensor:
        return self.inverse @ x

    def slack(self, x: Tensor) -> Tensor:
        return (self.root @ x.unsqueeze(-1)).squeeze(-1)

    def multiplier(self, x: Tensor) -> Tensor:
        return (self.inverse.mT @ x.unsqueeze(-1)).squeeze(-1)

    def target(self, ds: Tensor | None, dz: Tensor | None, mu: Tensor) -> Tensor:
        if ds is None or dz is None:
            return self.s
        return self.s + mu * self.gradient + self._inverse(self._third_order(self.slack(ds), self.multiplier(dz)))

    def _third_order(self, ds: Tensor, dz: Tensor) -> Tensor:
        """-f*'''(z)[dz, f*''(z)^-1 ds] / 2, by differences of f*'' within the ellipsoid where z is inside for sure."""
        length = ((self.hessian @ dz.unsqueeze(-1)).squeeze(-1) * dz).sum(-1, keepdim=True).clamp(min=0.0).sqrt()
        width = DIFFERENCE / torch.where(length > 0, length, 1.0)
        ahead, behind = (self.cone.dual_barrier(self.z + way * dz).hessian for way in (width, -width))
        inner = torch.linalg.solve_ex(self.hessian, ds).result.unsqueeze(-1)
        found = -((ahead - behind) @ inner).squeeze(-1) / (4 * width)
        return torch.where(found.isfinite().all(-1, keepdim=True), found, 0.0)

    def longest(self, ds: Tensor, dz: Tensor) -> Tensor:  # noqa: ARG002
        return ds.new_full((len(ds),), torch.inf)


def _roots(s: Tensor, z: Tensor, shadow_s: Tensor, shadow_z: Tensor, hessian: Tensor, mu: Tensor) -> tuple[Tensor, ...]:
    """W' and its inverse: in closed form, since H = s s' / s'z + g g' / g'h + r a a' with g = s - mu s', h = z - mu z'
    and a orthogonal to z and z'. Where the points are their own shadows, up to rounding, H is mu f*''(z).
    """
    product = (s * z).sum(-1, keepdim=True)
    own, other = product / 3, (shadow_s * shadow_z).sum(-1, keepdim=True) / 3
    gap_s, gap_z = s - own * shadow_s, z - own * shadow_z
    curve = (hessian @ shadow_z.unsqueeze(-1)).squeeze(-1)
    second = (shadow_z * curve).sum(-1, keepdim=True) - 3 * other.square()
    gaps = (gap_s * gap_z).sum(-1, keepdim=True)
    bent = curve - other * shadow_s
    rest = hessian - _square(shadow_s) / 3 - _square(bent) / second.unsqueeze(-1)
    size = (own * torch.linalg.matrix_norm(rest).unsqueeze(-1)).sqrt()
    axis, across = _unit(torch.linalg.cross(z, shadow_z)), _unit(torch.linalg.cross(s, shadow_s))
    across = across / (size * (across * axis).sum(-1, keepdim=True))
    eps = torch.finfo(s.dtype).eps ** 0.75
    good = ((own * other - 1).abs() > eps) & (second.abs() > eps * other.square()) & (product > 0) & (gaps > 0)
    root = torch.stack([s / product.sqrt(), gap_s / gaps.sqrt(), size * axis], -1)
    inverse = torch.stack([z / product.sqrt(), gap_z / gaps.sqrt(), across], -2)
    good = good.unsqueeze(-1) & (root + inverse).isfinite().all(-1, keepdim=True).all(-2, keepdim=True)
    if bool(good.all()):
        return root, inverse
    simple = torch.linalg.cholesky_ex(mu.unsqueeze(-1) * hessian).L
    return torch.where(good, root, simple), torch.where(good, inverse, torch.linalg.inv_ex(simple).inverse)


def _square(x: Tensor) -> Tensor:
    return x.unsqueeze(-1) * x.unsqueeze(-2)


def _unit(x: Tensor) -> Tensor:
    unit: Tensor = x / torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return unit


def is_flat(states: Tensor) -> Tensor:  # (batch, count) -> (batch, count, 3)
    """Which entries are zero on these faces."""
    bits = (states - FLAT).clamp(min=0.0).to(torch.int64).unsqueeze(-1)
    place = torch.arange(3, device=states.device)
    return (bits >> place) % 2 > 0


def active_rows(states: Tensor) -> Tensor:  # (batch, count) -> (batch, count, 3)
    """The first row for a curved surface, and those of the entries that are zero."""
    first = torch.arange(3, device=states.device) == 0
    return is_flat(states) | ((states == CURVED).unsqueeze(-1) & first)


class SurfaceFace(Face):
    """A curved surface c(s) = 0 with the gradient n, entries that are zero, or neither; the curvature is w w'."""

    def __init__(self, s: Tensor, states: Tensor, value: Tensor, normal: Tensor, bent: Tensor) -> None:
        self.s, self.flat = s, is_flat(states)
        curved, self.active = (states == CURVED).unsqueeze(-1), active_rows(states)
        length = torch.linalg.vector_norm(torch.where(curved, normal, 1.0), dim=-1, keepdim=True)
        self.gap = value / length
        self.normal = torch.where(curved, normal / length, 0.0).unsqueeze(-1)
        self.bent = bent.unsqueeze(-1)

    def value(self) -> Tensor:
        return torch.where(self.flat, self.s, torch.where(self.active, self.gap, 0.0))

    def across(self, x: Tensor) -> Tensor:
        rows = torch.nn.functional.pad(self.normal.mT @ x, (0, 0, 0, 2))
        return rows + torch.where(self.flat.unsqueeze(-1), x, 0.0)

    def along(self, y: Tensor) -> Tensor:
        return self.normal * y[..., :1, :] + torch.where(self.flat.unsqueeze(-1), y, 0.0)

    def coordinates(self, z: Tensor) -> Tensor:
        return self.across(z.unsqueeze(-1)).squeeze(-1)

    def bend(self, x: Tensor) -> Tensor:
        return self.bent * (self.bent.mT @ x)
