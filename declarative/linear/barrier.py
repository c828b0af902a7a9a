"""The system of constraints that are neither active nor inactive: as much of each as its multiplier beside its slack.

With a share a between 0 and 1 of each constraint, and D = diag(a), it is

    [ H             A' D^1/2 ]
    [ D^1/2 A      -(I - D)  ]

For shares of 0 and 1 alone that is the system of the exact gradient. On the central path, where slack times multiplier
is a barrier, the share is y / (y + slack), and eliminating the last rows leaves H + A' diag(y / slack) A.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from .contract import Pair, Solve, System
from .forms import kkt_product
from .indefinite import IndefiniteFactorisation
from .layout import Layout
from .sparse import SparseLayout


class BarrierSystem(System):
    """The system of H and A, in the form that the layout says, and the shares of the constraints, (batch, k)."""

    def __init__(self, layout: Layout, hessian: Tensor, jacobian: Tensor, share: Tensor) -> None:
        super().__init__(hessian, jacobian, share)
        self.layout = layout
        self.hessian = hessian
        self.share = share
        self.rows = layout.jacobian.scale_rows(jacobian, share.sqrt())

    @property
    def rebuild(self) -> partial[BarrierSystem]:
        return partial(BarrierSystem, self.layout)

    def multiply(self, z: Tensor, s: Tensor) -> Pair:
        curved = self.layout.hessian.multiply(self.hessian, z)
        return kkt_product(curved, self.layout.jacobian, self.rows, 1 - self.share, z, s)

    def factorise(self) -> Solve:
        if isinstance(self.layout, SparseLayout):
            factor = self.layout.kkt.factorise(self.hessian, self.rows, dual=1 - self.share)
            return lambda r, t: factor.solve(r, t)[:2]
        factors = IndefiniteFactorisation(self.hessian, self.rows, self.share, torch.finfo(self.hessian.dtype).eps)

        def solve(r: Tensor, t: Tensor) -> Pair:
            z, s = factors(r, t)
            top, bottom = self.multiply(z, s)
            change_z, change_s = factors(r - top, t - bottom)  # what is left is solved for once more
            return z + change_z, s + change_s

        return solve
