"""What a certificate needs of optimal transport."""

from __future__ import annotations

import torch
from torch import Tensor

from declarative.structure import Point
from declarative.theory.schur_complement import SchurComplement


def transport_complement(point: Point) -> SchurComplement:
    """S of a transport plan P with row sums r and column sums c, in the units of these sums, with a floor.

    With all rows of A, and divided by the roots of the sums on both sides, S / gamma is [I N; N' I] for
    N = diag(r)^-1/2 P diag(c)^-1/2, whose largest singular value is 1, with the vectors r^1/2 and c^1/2. If
    P >= d r c' entry by entry, N - d r^1/2 c^1/2' has singular values of at most 1 - d (it is 1 - d times the N of
    another plan with the same sums). So the second one of N is at most 1 - d, and the eigenvalues of S / gamma are 0,
    for the vector (r^1/2, -c^1/2) that no right-hand side has a part of, at least d and at most 2. (For a total mass
    other than 1, d is divided by that.)
    """
    plan = point.u.unflatten(-1, point.batch.shape)
    scale = point.system("curvature").factorise()(torch.ones_like(point.u), point.multipliers)[0]  # gamma P
    gamma = (scale / point.u).mean(-1)
    row, column = plan.sum(-1).sqrt(), plan.sum(-2).sqrt()
    product = row.square().unsqueeze(-1) * column.square().unsqueeze(-2)
    floor = gamma * (plan.sum((-2, -1), keepdim=True) * plan / product).amin((-2, -1))
    normal = torch.cat([row, -column], -1)
    normal = normal / normal.norm(dim=-1, keepdim=True)

    def rows(z: Tensor) -> Tensor:
        change: Tensor = z.unflatten(-1, point.batch.shape)
        return along(torch.cat([change.sum(-1) / row, change.sum(-2) / column], -1))

    def columns(s: Tensor) -> Tensor:
        a, b = along(s).split([row.shape[-1], column.shape[-1]], -1)
        spread: Tensor = (a / row).unsqueeze(-1) + (b / column).unsqueeze(-2)
        return spread.flatten(-2)

    def along(s: Tensor) -> Tensor:
        """Without what rounding errors have brought into the direction in which S is singular."""
        left: Tensor = s - (s * normal).sum(-1, keepdim=True) * normal
        return left

    def adapt(c: Tensor) -> Tensor:
        """The node has one constraint less: the one that the others imply."""
        a, b = c.split([row.shape[-1], column.shape[-1] - 1], -1)
        last = a.sum(-1, keepdim=True) - b.sum(-1, keepdim=True)
        return along(torch.cat([a / row, torch.cat([b, last], -1) / column], -1))

    return SchurComplement(lambda z: scale * z, rows, columns, 0.999 * floor, adapt, 2.001 * gamma)
