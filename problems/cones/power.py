"""The power cone {(x, y, z): x, y >= 0, x^a y^(1 - a) >= |z|}.

Its dual is {(u, v, w): (u / a, v / (1 - a), w) is in it}.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from .cone import Face
from .three_dimensional import CURVED, NEGLIGIBLE, Slopes, SurfaceFace, ThreeDimensional, is_flat

NEWTON_STEPS = 60


@dataclass(frozen=True)
class Power(ThreeDimensional):
    """Points (x, y, z) with x^a y^(1 - a) >= |z|.

    Attributes:
        exponents: the a of each cone.
    """

    exponents: tuple[float, ...] = ()

    def powers(self, like: Tensor) -> tuple[Tensor, Tensor]:  # (count,)
        """a and 1 - a."""
        a = like.new_tensor(self.exponents)
        return a, 1 - a

    def unit(self, like: Tensor) -> Tensor:
        a, b = self.powers(like)
        return torch.stack([(1 + a).sqrt(), (1 + b).sqrt(), 0 * a], -1)

    def depth(self, x: Tensor) -> Tensor:
        a, b = self.powers(x)
        x, y, z = x.unbind(-1)
        good = (x > 0) & (y > 0)
        x1, y1 = torch.where(good, x, 1.0), torch.where(good, y, 1.0)
        level = (a * x1.log() + b * y1.log()).exp()
        steep = (1 + (a * level / x1).square() + (b * level / y1).square()).sqrt()
        inside = torch.minimum(torch.minimum(x, y), (level - z.abs()) / steep)
        flat = -torch.stack([x.clamp(max=0.0), y.clamp(max=0.0), z]).norm(dim=0)
        return torch.where(good, torch.maximum(inside, flat), flat)

    def dual_depth(self, z: Tensor) -> Tensor:
        a, b = self.powers(z)
        return self.depth(z / torch.stack([a, b, torch.ones_like(a)], -1))

    def boundary(self, s: Tensor) -> Tensor:
        a, b = self.powers(s)
        x, y, z = s.unbind(-1)
        return z.abs() - x**a * y**b

    def dual_barrier(self, z: Tensor) -> Slopes:
        """-log(p) - (1 - a) log(u) - a log(v) with p = t - w^2, t = (u / a)^2a (v / (1 - a))^2(1 - a)."""
        a, b = self.powers(z)
        u, v, w = z.unbind(-1)
        t = (2 * a * (u / a).log() + 2 * b * (v / b).log()).exp()
        p, zero = t - w.square(), torch.zeros_like(u)
        first = torch.stack([2 * a * t / u, 2 * b * t / v, -2 * w], -1)  # of p
        mixed = 4 * a * b * t / (u * v)
        corner = 2 * a * (2 * a - 1) * t / u.square(), 2 * b * (2 * b - 1) * t / v.square()
        second = torch.stack([corner[0], mixed, zero, mixed, corner[1], zero, zero, zero, zero - 2], -1)
        gradient = -first / p.unsqueeze(-1) - torch.stack([b / u, a / v, zero], -1)
        own = torch.stack([b / u.square(), a / v.square(), zero], -1).diag_embed()
        p = p[..., None, None]
        hessian = first.unsqueeze(-1) * first.unsqueeze(-2) / p.square() - second.unflatten(-1, (3, 3)) / p + own
        return Slopes(-p[..., 0, 0].log() - b * u.log() - a * v.log(), gradient, hessian)

    def shadow(self, s: Tensor) -> Tensor:
        """By an equation for r = t / p - 1, which rises with log(r) and is concave: Newton's method from the left."""
        a, b = self.powers(s)
        x, y, z = s.unbind(-1)
        z = torch.where(z.abs() > 1e-150, z, 1e-150)
        level = 2 * (a * x.log() + b * y.log()).exp() / z.abs()
        constant = 2 * level.log()
        at = -constant + 2 * a * (2 + b / a).log() + 2 * b * (2 + a / b).log()
        at = torch.minimum(at, torch.zeros_like(at)) - 1
        gap = constant - 2 * math.log(2)
        near = gap < 1  # to the boundary: there the equation is gap = 2 / r, up to higher orders
        at = torch.where(near, (2 / torch.where(near, gap, 1.0).clamp(min=1e-15)).log(), at)
        for _ in range(NEWTON_STEPS):
            r = at.exp()
            left, right = 2 * (r + 1) + b / a, 2 * (r + 1) + a / b
            value = constant + (r + 1).log() + at - 2 * a * left.log() - 2 * b * right.log()
            slope = 1 + r / (r + 1) - 4 * r * (a / left + b / right)
            step = value / slope
            at = at - step
            if not (step.abs() > 1e-15 * at.abs().clamp(min=1.0)).any():
                break
        r = at.exp()
        p = 4 * r / z.square()
        return torch.stack([(2 * a * (r + 1) + b) / x, (2 * b * (r + 1) + a) / y, -z * p / 2], -1)

    def flat_entries(self, s: Tensor, z: Tensor) -> Tensor:
        """x = 0 or y = 0, and z = 0 where it is steep there, if neither z nor its counterpart is of any size."""
        a, b = self.powers(s)
        size_s, size_z = (NEGLIGIBLE**0.5 * torch.linalg.vector_norm(x, dim=-1) for x in (s, z))
        flat = (s[..., 2].abs() <= size_s) & (z[..., 2].abs() <= size_z)
        first, second = (flat & (s[..., i] <= size_s) for i in (0, 1))
        return torch.stack([first, second, (first & (a > 0.5)) | (second & (b > 0.5)) | (first & second)], -1)

    def face(self, s: Tensor, z: Tensor, states: Tensor) -> Face:
        """c = x^a y^(1 - a) - |z|; where x = 0, a = 1/2 and z = 0 the surface is x = z^2 / y instead."""
        a, b = self.powers(s)
        curved, flat = states == CURVED, is_flat(states)
        x, y, last = (torch.where(curved, part, 1.0) for part in s.unbind(-1))
        level = (a * x.log() + b * y.log()).exp()
        normal = torch.stack([a * level / x, b * level / y, -last.sign()], -1)
        pull = torch.where(curved, z[..., 2].abs(), 1.0)
        bent = torch.stack([1 / x, -1 / y, 0 * x], -1) * (pull * a * b * level).sqrt().unsqueeze(-1)
        bent = torch.where(curved.unsqueeze(-1), bent, 0.0)
        round_ = (a == 0.5) & (flat[..., 0] != flat[..., 1])
        force = torch.where(flat[..., 0], z[..., 0], z[..., 1])
        width = torch.where(flat[..., 0], s[..., 1], s[..., 0])
        ratio = torch.where(round_, 2 * force / torch.where(round_, width, 1.0), 1.0).clamp(min=0.0)
        tip = torch.where(round_, ratio.sqrt(), 0.0)
        bent = bent + torch.nn.functional.pad(tip.unsqueeze(-1), (2, 0))
        value = (level - last.abs()).unsqueeze(-1)
        return SurfaceFace(s, states, value, normal, bent)
