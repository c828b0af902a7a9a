"""The exponential cone, the closure of {(x, y, z): y > 0, y exp(x / y) <= z}.

Its dual is the closure of {(u, v, w): u < 0, -u exp(v / u) <= e w}.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .cone import Face
from .three_dimensional import CURVED, NEGLIGIBLE, Slopes, SurfaceFace, ThreeDimensional

CENTRE = (-1.0513830139427, 0.5564098034302, 1.2589670254117)  # s = z = -grad f(s)
NEWTON_STEPS = 8


def wright_omega(x: Tensor) -> Tensor:
    """The w with w + log(w) = x, for x >= 1."""
    w = torch.where(x > 3, x - x.log(), 1 + (x - 1) / 2)
    for _ in range(NEWTON_STEPS):
        w = w * (1 + x - w.log()) / (1 + w)
    return w


def _apart(x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, ...]:
    """log(z / y) where both are positive, 0 elsewhere, and where that is."""
    good = (y > 0) & (z > 0)
    return torch.where(good, z, 1.0).log() - torch.where(good, y, 1.0).log(), good & x.isfinite()


@dataclass(frozen=True)
class Exponential(ThreeDimensional):
    """Points (x, y, z) with y exp(x / y) <= z."""

    def unit(self, like: Tensor) -> Tensor:
        return like.new_tensor(CENTRE).expand(self.count, 3)

    def depth(self, x: Tensor) -> Tensor:
        x, y, z = x.unbind(-1)
        log, good = _apart(x, y, z)
        steep = (1 + (log - 1).square() + (y / torch.where(good, z, 1.0)).square()).sqrt()
        inside = torch.minimum(torch.minimum(y, z), (y * log - x) / steep)
        flat = -torch.stack([x.clamp(min=0.0), y, z.clamp(max=0.0)]).norm(dim=0)
        return torch.where(good, torch.maximum(inside, flat), flat)

    def dual_depth(self, z: Tensor) -> Tensor:
        u, v, w = z.unbind(-1)
        log, good = _apart(v, w, -u)
        steep = (1 + log.square() + (u / torch.where(good, w, 1.0)).square()).sqrt()
        inside = torch.minimum(torch.minimum(-u, w), (v - u + u * log) / steep)
        flat = -torch.stack([u, v.clamp(max=0.0), w.clamp(max=0.0)]).norm(dim=0)
        return torch.where(good, torch.maximum(inside, flat), flat)

    def boundary(self, s: Tensor) -> Tensor:
        x, y, z = s.unbind(-1)
        return y * (x / y).exp() - z

    def dual_barrier(self, z: Tensor) -> Slopes:
        """-log(p) - log(-u) - log(w) with p = v - u + u log(-u / w)."""
        u, v, w = z.unbind(-1)
        log = (-u / w).log()
        p, zero = v - u + u * log, torch.zeros_like(u)
        first = torch.stack([log, torch.ones_like(u), -u / w], -1)  # of p
        second = torch.stack([1 / u, zero, -1 / w, zero, zero, zero, -1 / w, zero, u / w.square()], -1)
        gradient = -first / p.unsqueeze(-1) - torch.stack([1 / u, zero, 1 / w], -1)
        own = torch.stack([u.square().reciprocal(), zero, w.square().reciprocal()], -1).diag_embed()
        p = p[..., None, None]
        hessian = first.unsqueeze(-1) * first.unsqueeze(-2) / p.square() - second.unflatten(-1, (3, 3)) / p + own
        return Slopes(-p[..., 0, 0].log() - (-u).log() - w.log(), gradient, hessian)

    def shadow(self, s: Tensor) -> Tensor:
        """By the equation o + log(o) = 1 - x / y + log(z / y) for o = 1 - 1 / (u y)."""
        x, y, z = s.unbind(-1)
        log = (z / y).log()
        omega = wright_omega((1 - x / y + log).clamp(min=1 + 1e-15))
        u = -1 / (y * (omega - 1))
        w = omega / ((omega - 1) * z)
        return torch.stack([u, 1 / y + u - u * (-u / w).log(), w], -1)

    def flat_entries(self, s: Tensor, z: Tensor) -> Tensor:
        """y = 0, and perhaps z = 0, where neither y nor its counterpart u is of any size."""
        size_s, size_z = (NEGLIGIBLE * torch.linalg.vector_norm(x, dim=-1) for x in (s, z))
        flat = (s[..., 1] <= size_s) & (-z[..., 0] <= size_z)
        return torch.stack([torch.zeros_like(flat), flat, flat & (s[..., 2] <= size_s)], -1)

    def face(self, s: Tensor, z: Tensor, states: Tensor) -> Face:
        """c = z - y exp(x / y) where x < 0, and y log(z / y) - x elsewhere: neither is steep there."""
        curved = states == CURVED
        low = curved & (s[..., 0] < 0)
        high = curved & ~low
        zero = torch.zeros_like(s[..., 0])
        x, y = (torch.where(low, part, 1.0) for part in (s[..., 0], s[..., 1]))
        slope, pull = (x / y).exp(), torch.where(low, z[..., 2], 1.0).clamp(min=0.0)
        value = torch.where(low, s[..., 2] - y * slope, 0.0)
        normal = torch.stack([-slope, (x / y - 1) * slope, zero + 1], -1)
        bent = torch.stack([zero + 1, -x / y, zero], -1) * (pull * slope / y).sqrt().unsqueeze(-1)
        y, top = (torch.where(high, part, 1.0) for part in (s[..., 1], s[..., 2]))
        log, force = (top / y).log(), torch.where(high, -z[..., 0], 1.0).clamp(min=0.0)
        value = torch.where(high, y * log - s[..., 0], value).unsqueeze(-1)
        other = torch.stack([zero - 1, log - 1, y / top], -1)
        also = torch.stack([zero, 1 / y, -1 / top], -1) * (force * y).sqrt().unsqueeze(-1)
        high, low = high.unsqueeze(-1), low.unsqueeze(-1)
        bent = torch.where(high, also, torch.where(low, bent, 0.0))
        return SurfaceFace(s, states, value, torch.where(high, other, normal), bent)
